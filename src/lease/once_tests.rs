//! What a ledger says of a task, what it keeps, and which slot a run belongs to.

use super::*;
use crate::core::Exit;

const HOUR: u64 = 3600;
/// Ten past ten on some day.
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

fn with(task: &Task, slot: u64, token: u64) -> Ledger {
    let mut ledger = Ledger::default();
    ledger.note(task, slot, &outcome(0, true), token, "web1-7", "then");
    ledger
}

#[test]
fn what_is_written_down_comes_back_from_the_text() {
    let odd = "k\n\"é\u{1}%=;,\u{1f600} ";
    let mut ledger = with(&task(odd), 0, 7);
    ledger.note(&hourly(odd), NOW, &outcome(3, false), 8, "b", "then");
    let text = ledger.text();
    assert!(!text.contains('\n'));
    assert_eq!(Ledger::parse(&text), Some(ledger.clone()));
    assert_eq!(ledger.entries().len(), 2);
    assert_eq!(Ledger::default().text(), "");
    for bad in [
        "",
        "{}",
        "[{}]",
        "[{\"key\":\"a\",\"over\":{}}]",
        "[1",
        "null",
    ] {
        assert_eq!(Ledger::parse(bad), None, "{bad}");
    }
}

#[test]
fn each_key_is_a_task_of_its_own_and_so_is_one_with_slots() {
    let ledger = with(&task("v7"), 0, 7);
    let verdict = ledger.verdict(&task("v7"), 0, 0).expect("it is done");
    assert_eq!((verdict.status, verdict.token), (0, 7));
    assert_eq!((&*verdict.holder, &*verdict.at), ("web1-7", "then"));
    assert_eq!(ledger.verdict(&task("v8"), 0, 0), None);
    assert_eq!(ledger.verdict(&hourly("v7"), 0, NOW), None);
}

#[test]
fn a_signal_is_kept_as_128_and_its_number() {
    let mut ledger = Ledger::default();
    let killed = Outcome {
        exit: Exit::Signal(9),
        over: true,
    };
    ledger.note(&task("a"), 0, &killed, 1, "b", "then");
    assert_eq!(ledger.verdict(&task("a"), 0, 0).unwrap().status, 137);
}

#[test]
fn failures_are_counted_in_their_slot_and_end_with_a_result() {
    let task = hourly("a");
    let mut ledger = Ledger::default();
    for (token, failed) in [(1, 1), (2, 2), (3, 3)] {
        ledger.note(&task, HOUR, &outcome(3, false), token, "b", "then");
        assert_eq!(ledger.failed(&task, HOUR), failed);
        assert!(ledger.bears(&task, token) && !ledger.bears(&task, token + 1));
        assert_eq!(ledger.verdict(&task, 0, NOW), None);
    }
    assert_eq!(ledger.failed(&task, 2 * HOUR), 0, "another slot");
    ledger.note(&task, HOUR, &outcome(3, true), 4, "b", "then");
    assert_eq!(ledger.failed(&task, HOUR), 0);
    assert_eq!(ledger.verdict(&task, HOUR, HOUR).unwrap().status, 3);
}

#[test]
fn a_candidate_is_served_by_the_slot_it_came_in_or_a_later_one() {
    let task = hourly("a");
    let (before, this, next) = (NOW - 600 - HOUR, NOW - 600, NOW - 600 + HOUR);
    assert_eq!(task.slot(NOW), this);
    let came_now = |ledger: &Ledger, now| ledger.verdict(&task, this, now).is_some();
    assert!(!came_now(&with(&task, before, 1), NOW));
    assert!(came_now(&with(&task, this, 1), NOW));
    // The run began in our slot and ended in the next: its result is ours.
    assert!(came_now(&with(&task, this, 1), next + 60));
    // Nobody succeeded in our slot, but somebody did in the next.
    assert!(came_now(&with(&task, next, 1), next + 60));
    // The store's clock was set back: by a little, and by what cannot be true.
    assert!(came_now(&with(&task, next, 1), NOW));
    assert!(!came_now(&with(&task, this + 24 * HOUR, 1), NOW));
}

#[test]
fn another_division_of_time_reads_the_same_results() {
    let daily = Task {
        per: Some(Duration::from_secs(24 * HOUR)),
        ..task("a")
    };
    let this_hour = NOW - 600;
    let today = daily.slot(NOW);
    assert_eq!(today % (24 * HOUR), 0);
    let ledger = with(&hourly("a"), this_hour, 1);
    assert!(ledger.verdict(&daily, today, NOW).is_some());
    let ledger = with(&daily, today, 1);
    assert!(ledger.verdict(&hourly("a"), this_hour, NOW).is_none());
}

#[test]
fn what_falls_out_is_what_was_run_the_longest_ago_and_never_the_task_itself() {
    let mut ledger = Ledger::default();
    for token in 1..=40 {
        let task = task(&format!("k{token}"));
        ledger.note(&task, 0, &outcome(0, true), token, "b", "then");
    }
    let mine = task("k1");
    let forgotten = ledger.fit(&mine, |_| true).expect("room");
    assert_eq!(
        forgotten,
        (2..=9).map(|n| format!("k{n}")).collect::<Vec<_>>()
    );
    assert!(ledger.get(&mine).is_some() && ledger.entries().len() == KEPT);
    let small = |ledger: &Ledger| ledger.entries().len() <= 1;
    assert!(ledger.has_room(&task("new"), "b", small));
    ledger.fit(&mine, small).expect("room");
    assert_eq!(ledger.entries()[0].key, "k1");
    assert_eq!(ledger.fit(&mine, |_| false), Err(NoRoom));
    assert!(!ledger.has_room(&task("new"), "b", |_| false));
}

#[test]
fn what_is_forgotten_can_be_run_again() {
    let mut ledger = with(&task("a"), 0, 1);
    ledger.note(&hourly("a"), NOW, &outcome(0, true), 2, "b", "then");
    ledger.note(&task("b"), 0, &outcome(0, true), 3, "b", "then");
    assert!(ledger.forget("a") && !ledger.forget("a"));
    assert_eq!(ledger.verdict(&task("a"), 0, 0), None);
    assert!(ledger.verdict(&task("b"), 0, 0).is_some());
}

#[test]
fn thirty_two_results_of_usual_length_find_room() {
    let mut ledger = Ledger::default();
    for token in 1..=KEPT as u64 {
        let task = task(&format!("migrate-v{token}"));
        let by = "web17-4194304";
        ledger.note(
            &task,
            0,
            &outcome(0, true),
            token,
            by,
            "2026-01-01T00:00:00Z",
        );
    }
    assert!(ledger.text().len() <= ROOM, "{}", ledger.text().len());
}

#[test]
fn the_slot_of_a_run_is_decided_at_its_start_and_never_before_we_came() {
    let task = hourly("a");
    let at = Instant::now();
    let mut errand = Errand::default();
    assert_eq!(
        errand.verdict(&task, &with(&task, NOW, 1)),
        None,
        "no clock"
    );
    errand.hear(&task, NOW, at);
    assert!(errand.verdict(&task, &with(&task, NOW - 600, 1)).is_some());
    errand.begin(&task, &Ledger::default());
    assert_eq!(errand.slot(), NOW - 600);
    errand.hear(&task, NOW + HOUR, at);
    assert!(
        errand.verdict(&task, &with(&task, NOW - 600, 1)).is_some(),
        "it is ours still"
    );
    errand.begin(&task, &Ledger::default());
    assert_eq!(errand.slot(), NOW - 600 + HOUR);
    assert_eq!(
        errand.slot_text(&task).as_deref(),
        Some("2025-11-21T11:00:00Z")
    );
    errand.hear(&task, NOW - HOUR, at);
    errand.begin(&task, &Ledger::default());
    assert_eq!(errand.slot(), NOW - 600);
    assert_eq!(errand.slot_text(&super::tests::task("a")), None);
}
