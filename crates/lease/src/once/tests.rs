//! Tests of a task log.

use super::*;
use trafficcop_core::Exit;

const HOUR: u64 = 3600;
const NOW: u64 = 1_763_719_800;

fn task(key: &str) -> Task {
    Task {
        key: key.into(),
        per: None,
    }
}

fn hourly(key: &str) -> Task {
    Task {
        per: Some(Duration::from_secs(HOUR)),
        ..task(key)
    }
}

fn outcome(status: u8, over: bool) -> Outcome {
    Outcome {
        exit: Exit::Code(status),
        over,
    }
}

fn with(task: &Task, period: u64, token: u64) -> TaskLog {
    let mut task_log = TaskLog::default();
    task_log.note(task, period, &outcome(0, true), token, "web1-7", "then");
    task_log
}

#[test]
fn task_log_round_trips_as_text() {
    let odd = "k\n\"é\u{1}%=;,\u{1f600} ";
    let mut task_log = with(&task(odd), 0, 7);
    task_log.note(&hourly(odd), NOW, &outcome(3, false), 8, "b", "then");
    let text = task_log.text();
    assert!(!text.contains('\n'));
    assert_eq!(TaskLog::parse(&text), Some(task_log.clone()));
    assert_eq!(task_log.entries().len(), 2);
    assert_eq!(TaskLog::default().text(), "");
    for bad in [
        "",
        "{}",
        "[{}]",
        "[{\"key\":\"a\",\"over\":{}}]",
        "[1",
        "null",
    ] {
        assert_eq!(TaskLog::parse(bad), None, "{bad}");
    }
}

#[test]
fn each_key_is_a_separate_task_and_so_is_one_with_periods() {
    let task_log = with(&task("v7"), 0, 7);
    let result = task_log.result(&task("v7"), 0, 0).expect("it is done");
    assert_eq!((result.status, result.token), (0, 7));
    assert_eq!((&*result.holder, &*result.at), ("web1-7", "then"));
    assert_eq!(task_log.result(&task("v8"), 0, 0), None);
    assert_eq!(task_log.result(&hourly("v7"), 0, NOW), None);
}

#[test]
fn a_signal_is_kept_as_128_and_its_number() {
    let mut task_log = TaskLog::default();
    let killed = Outcome {
        exit: Exit::Signal(9),
        over: true,
    };
    task_log.note(&task("a"), 0, &killed, 1, "b", "then");
    assert_eq!(task_log.result(&task("a"), 0, 0).unwrap().status, 137);
}

#[test]
fn failures_count_in_their_period_and_end_with_a_result() {
    let task = hourly("a");
    let mut task_log = TaskLog::default();
    for (token, failed) in [(1, 1), (2, 2), (3, 3)] {
        task_log.note(&task, HOUR, &outcome(3, false), token, "b", "then");
        assert_eq!(task_log.failed(&task, HOUR), failed);
        assert!(task_log.bears(&task, token) && !task_log.bears(&task, token + 1));
        assert_eq!(task_log.result(&task, 0, NOW), None);
    }
    assert_eq!(task_log.failed(&task, 2 * HOUR), 0, "another slot");
    task_log.note(&task, HOUR, &outcome(3, true), 4, "b", "then");
    assert_eq!(task_log.failed(&task, HOUR), 0);
    assert_eq!(task_log.result(&task, HOUR, HOUR).unwrap().status, 3);
}

#[test]
fn result_of_the_candidate_s_period_or_a_later_one_counts() {
    let task = hourly("a");
    let (before, this, next) = (NOW - 600 - HOUR, NOW - 600, NOW - 600 + HOUR);
    assert_eq!(task.period(NOW), this);
    let came_now = |task_log: &TaskLog, now| task_log.result(&task, this, now).is_some();
    assert!(!came_now(&with(&task, before, 1), NOW));
    assert!(came_now(&with(&task, this, 1), NOW));
    // The run began in this period and ended in the next: its result counts.
    assert!(came_now(&with(&task, this, 1), next + 60));
    // No instance succeeded in this period, but one did in the next.
    assert!(came_now(&with(&task, next, 1), next + 60));
    // The store's clock was set back: a little, and impossibly far.
    assert!(came_now(&with(&task, next, 1), NOW));
    assert!(!came_now(&with(&task, this + 24 * HOUR, 1), NOW));
}

#[test]
fn results_are_read_with_another_period_length() {
    let daily = Task {
        per: Some(Duration::from_secs(24 * HOUR)),
        ..task("a")
    };
    let this_hour = NOW - 600;
    let today = daily.period(NOW);
    assert_eq!(today % (24 * HOUR), 0);
    let task_log = with(&hourly("a"), this_hour, 1);
    assert!(task_log.result(&daily, today, NOW).is_some());
    let task_log = with(&daily, today, 1);
    assert!(task_log.result(&hourly("a"), this_hour, NOW).is_none());
}

#[test]
fn oldest_runs_are_forgotten_first_and_never_the_task_itself() {
    let mut task_log = TaskLog::default();
    for token in 1..=40 {
        let task = task(&format!("k{token}"));
        task_log.note(&task, 0, &outcome(0, true), token, "b", "then");
    }
    let mine = task("k1");
    let forgotten = task_log.fit(&mine, |_| true).expect("room");
    assert_eq!(
        forgotten,
        (2..=9).map(|n| format!("k{n}")).collect::<Vec<_>>()
    );
    assert!(task_log.get(&mine).is_some() && task_log.entries().len() == KEPT);
    let small = |task_log: &TaskLog| task_log.entries().len() <= 1;
    assert!(task_log.has_room(&task("new"), "b", small));
    task_log.fit(&mine, small).expect("room");
    assert_eq!(task_log.entries()[0].key, "k1");
    assert_eq!(task_log.fit(&mine, |_| false), Err(NoRoom));
    assert!(!task_log.has_room(&task("new"), "b", |_| false));
}

#[test]
fn forgotten_key_can_run_again() {
    let mut task_log = with(&task("a"), 0, 1);
    task_log.note(&hourly("a"), NOW, &outcome(0, true), 2, "b", "then");
    task_log.note(&task("b"), 0, &outcome(0, true), 3, "b", "then");
    assert!(task_log.forget("a") && !task_log.forget("a"));
    assert_eq!(task_log.result(&task("a"), 0, 0), None);
    assert!(task_log.result(&task("b"), 0, 0).is_some());
}

#[test]
fn thirty_two_results_of_usual_length_fit() {
    let mut task_log = TaskLog::default();
    for token in 1..=KEPT as u64 {
        let task = task(&format!("migrate-v{token}"));
        let by = "web17-4194304";
        task_log.note(
            &task,
            0,
            &outcome(0, true),
            token,
            by,
            "2026-01-01T00:00:00Z",
        );
    }
    assert!(task_log.text().len() <= ROOM, "{}", task_log.text().len());
}

#[test]
fn period_of_a_run_is_fixed_at_its_start_and_never_before_the_instance_came() {
    let task = hourly("a");
    let at = Instant::now();
    let ours = OnceTask::new(task.clone());
    let begin = || {
        ours.begin(&TaskLog::default(), "b", |_| true)
            .expect("room")
    };
    assert_eq!(
        ours.result(&with(&task, NOW, 1)),
        None,
        "no clock was heard"
    );
    ours.hear(NOW, at);
    assert!(ours.result(&with(&task, NOW - 600, 1)).is_some());
    begin();
    assert_eq!(ours.clock().period, NOW - 600);
    ours.hear(NOW + HOUR, at);
    assert!(
        ours.result(&with(&task, NOW - 600, 1)).is_some(),
        "it is ours still"
    );
    begin();
    assert_eq!(ours.clock().period, NOW - 600 + HOUR);
    assert_eq!(ours.period().as_deref(), Some("2025-11-21T11:00:00Z"));
    ours.hear(NOW - HOUR, at);
    begin();
    assert_eq!(ours.clock().period, NOW - 600);
    assert_eq!(OnceTask::new(super::tests::task("a")).period(), None);
}
