//! Control is obtained, kept, released and lost.

use super::*;
use trafficcop_core::{Exit, Outcome};
use trafficcop_lease::inspect::BreakResult;
use trafficcop_lease::shared_file::{break_lock, look};

#[tokio::test]
async fn one_holds_and_the_other_is_told_by_whom_and_for_how_long() {
    let (_directory, path) = temporary();
    let (a, b) = (open(&path, "a"), open(&path, "b"));
    assert_eq!(a.info().lease, Some(LEASE));
    assert!(!a.info().wakes);
    assert_eq!(a.info().name, path.display().to_string());
    let before = Instant::now();
    let grant = acquire(&a).await;
    assert_eq!(grant.token, 1);
    assert!(grant.t0 >= before && grant.t0 <= Instant::now());
    await_record(&path, 1);
    let looked = Instant::now();
    let sight = held(&b).await;
    assert_eq!(sight.holder.as_deref(), Some("a"));
    assert_eq!((sight.token, sight.draining), (Some(1), false));
    // Counted from when it is seen, so a bell replaces no look.
    assert!(sight.polls_as_ever);
    let expires = sight.expires.expect("a moment");
    assert!(expires >= looked + LEASE && expires <= Instant::now() + LEASE);
    // A renewal is a change, and restarts the lease.
    renew(&a).await;
    await_record(&path, 2);
    assert!(held(&b).await.expires.expect("a moment") > expires);
    in_time(a.update_record(
        RecordUpdate::Draining {
            health: "hung: it".into(),
        },
        late(),
    ))
    .await
    .expect("to announce");
    await_record(&path, 3);
    assert!(held(&b).await.draining);
    assert_eq!(await_record(&path, 3)["health"], "hung: it");
    release(&a).await;
    assert_eq!(acquire(&b).await.token, 5);
    await_record(&path, 5);
    assert_eq!(held(&a).await.token, Some(5));
    release(&b).await;
    assert_eq!(acquire(&a).await.token, 7);
    release(&a).await;
}

#[tokio::test]
async fn release_without_a_lease_changes_nothing() {
    let (_directory, path) = temporary();
    let (a, b) = (open(&path, "a"), open(&path, "b"));
    release(&a).await;
    assert!(!path.exists());
    acquire(&a).await;
    await_record(&path, 1);
    held(&b).await;
    release(&b).await;
    renew(&a).await;
    release(&a).await;
    let made = list(&path);
    release(&a).await;
    assert_eq!(list(&path), made);
    assert_lost(&in_time(a.renew(late())).await.expect_err("not ours"));
}

#[tokio::test]
async fn a_version_of_another_ends_a_tenure() {
    let (_directory, path) = temporary();
    let a = open(&path, "a");
    acquire(&a).await;
    Written::new(2, "held").put(&path);
    let lost = in_time(a.renew(late())).await.expect_err("not ours");
    assert_lost(&lost);
    assert!(matches!(lost, Failure::Lost { until: None, .. }));
    assert!(lost.to_string().contains("held by hand"), "{lost}");
    let lost = in_time(a.release(late())).await;
    assert!(
        matches!(lost, Ok(()) | Err(Failure::Lost { .. })),
        "{lost:?}"
    );
    assert_eq!(list(&path), [0, 1, 2]);
    assert_eq!(held(&a).await.holder.as_deref(), Some("hand"));
}

#[tokio::test]
async fn a_version_of_ours_whose_answer_was_lost_is_stepped_over() {
    let (_directory, path) = temporary();
    let a = open(&path, "a");
    acquire(&a).await;
    fs::create_dir(version_of(&path, 2)).expect("a version");
    renew(&a).await;
    await_record(&path, 3);
    assert_eq!(held(&open(&path, "b")).await.holder.as_deref(), Some("a"));
}

#[tokio::test]
async fn broken_holder_makes_no_version_after_the_operators() {
    let (_directory, path) = temporary();
    let a = open(&path, "a");
    acquire(&a).await;
    let broken = || {
        let seen = look(&path).ok()?.record?;
        break_lock(&path, &seen, Some(Duration::ZERO), "an operator").ok()
    };
    let at_once = || broken().filter(|it| *it == BreakResult::Within(Duration::ZERO));
    await_for("the break", at_once, String::new);
    let b = open(&path, "b");
    assert_eq!(acquire(&b).await.token, 3);
    await_record(&path, 3);
    // An old view: the names exist, but cannot be read.
    let aside = |version| version_of(&path, version - 1).join("next/aside");
    for version in [2, 3] {
        fs::rename(record_of(&path, version), aside(version)).expect("to hide it");
    }
    for _ in 0..2 {
        let doubt = in_time(a.renew(late())).await.expect_err("not known");
        assert_doubt(&doubt, "version 2 exists, and its record cannot be read");
        assert_eq!(list(&path), [0, 1, 2, 3]);
    }
    for version in [2, 3] {
        fs::rename(aside(version), record_of(&path, version)).expect("to show it");
    }
    assert_lost(&in_time(a.renew(late())).await.expect_err("another's"));
    renew(&b).await;
    assert_eq!(list(&path), [0, 1, 2, 3, 4]);
}

fn breaks(path: &Path, period: Option<Duration>) {
    let seen = look(path).expect("to look").record.expect("a record");
    let broken = break_lock(path, &seen, period, "an operator").expect("to break");
    assert!(matches!(broken, BreakResult::Within(_)), "{broken:?}");
}

/// Returns how long a lost lease keeps others out.
async fn left(store: &SharedFile) -> Option<Instant> {
    match in_time(store.renew(late())).await.expect_err("not ours") {
        Failure::Lost { until, .. } => until,
        other => panic!("not lost: {other:?}"),
    }
}

#[tokio::test]
async fn break_at_the_end_leaves_the_rest_until_a_shorter_break() {
    let (_directory, path) = temporary();
    let a = open(&path, "a");
    let grant = acquire(&a).await;
    await_record(&path, 1);
    breaks(&path, None);
    let until = left(&a).await.expect("something is left");
    assert!(until > grant.t0 + LEASE * 9 / 10 && until <= grant.t0 + LEASE);
    // Repeated, it is the same; also after another break of the same kind.
    assert_eq!(left(&a).await, Some(until));
    breaks(&path, None);
    assert_eq!(left(&a).await, Some(until));
    assert_eq!(list(&path), [0, 1, 2, 3], "it makes nothing after them");
    breaks(&path, Some(Duration::ZERO));
    for _ in 0..2 {
        assert_eq!(left(&a).await, None);
    }
    assert_eq!(list(&path), [0, 1, 2, 3, 4]);
    // It competes like any other instance, and keeps what it gets then.
    assert_eq!(acquire(&a).await.token, 5);
    renew(&a).await;
}

#[tokio::test]
async fn break_with_a_period_leaves_no_more_than_the_period() {
    let (_directory, path) = temporary();
    let competitor = Competitor::new(candidate("a"), LEASE * 3);
    let a = SharedFile::open(&path, &competitor).expect("a store");
    let grant = acquire(&a).await;
    await_record(&path, 1);
    breaks(&path, Some(LEASE));
    let until = left(&a).await.expect("something is left");
    assert!(until > grant.t0 + LEASE * 9 / 10 && until <= grant.t0 + LEASE);
    // Perhaps made by an instance that took over from that, without a visible record.
    fs::create_dir(version_of(&path, 3)).expect("a version");
    assert_eq!(left(&a).await, None);
}

/// A server that forgets a version gives one number to two tenures.
#[tokio::test]
async fn own_version_with_a_foreign_record_leaves_nothing() {
    let (_directory, path) = temporary();
    let a = open(&path, "a");
    acquire(&a).await;
    await_record(&path, 1);
    let renewed = Written {
        tenure: 1,
        ..Written::new(2, "held")
    };
    renewed.put(&path);
    assert_eq!(left(&a).await, None);
}

#[tokio::test]
async fn release_reports_a_break_even_if_reported_before() {
    let (_directory, path) = temporary();
    let a = open(&path, "a");
    acquire(&a).await;
    await_record(&path, 1);
    breaks(&path, Some(Duration::ZERO));
    // As an abandoned announcement does.
    assert_eq!(left(&a).await, None);
    assert_lost(&in_time(a.release(late())).await.expect_err("not ours"));
    release(&a).await;
}

#[tokio::test]
async fn the_removal_of_the_versions_ends_a_tenure_and_is_refused_until_the_path_is_removed() {
    let (_directory, path) = temporary();
    let (a, b) = (open(&path, "a"), open(&path, "b"));
    acquire(&a).await;
    release(&a).await;
    acquire(&b).await;
    release(&b).await;
    acquire(&a).await;
    // None may be written while they are removed.
    await_record(&path, 5);
    fs::remove_dir_all(versions_of(&path)).expect("to remove them");
    assert_lost(&in_time(a.renew(late())).await.expect_err("nothing is ours"));
    // As named by the hint.
    Written::new(5, "released").put_hint(&path);
    for store in [&open(&path, "c"), &b] {
        let refused = refusal(store).await;
        let words = "its versions have been removed";
        assert!(refused.to_string().contains(words), "{refused:?}");
    }
    assert!(
        !versions_of(&path).exists(),
        "no instance begins a new lock by itself"
    );
    fs::remove_file(&path).expect("to remove it");
    assert_eq!(acquire(&open(&path, "c")).await.token, 1);
}

#[tokio::test]
async fn the_removal_of_the_path_costs_nothing_and_it_comes_back() {
    let (_directory, path) = temporary();
    let a = open(&path, "a");
    acquire(&a).await;
    await_record(&path, 1);
    fs::remove_file(&path).expect("to remove it");
    renew(&a).await;
    await_record(&path, 2);
    let b = open(&path, "b");
    assert_eq!(held(&b).await.holder.as_deref(), Some("a"));
    assert!(path.exists());
    renew(&a).await;
    release(&a).await;
    assert_eq!(acquire(&b).await.token, 5);
}

fn task() -> Option<Task> {
    Some(Task {
        key: "once".into(),
        per: None,
    })
}

#[tokio::test]
async fn take_over_for_a_refused_task_is_released() {
    let (_directory, path) = temporary();
    let released = Written::new(1, "released").text();
    let line = released.lines().nth(1).expect("a record");
    let unread = line.replace("\"command\":", "\"unread\":true,\"command\":");
    put(&path, 1, checked(&unread).as_bytes());
    let a = open_with(&path, "a", task());
    assert_fatal(&refusal(&a).await, "its results cannot be read");
    // At once, not as for a version without a record.
    let b = open(&path, "b");
    acquire(&b).await;
}

#[tokio::test]
async fn the_result_of_a_task_goes_through_tenures_without_one_and_versions_without_a_record() {
    let (_directory, path) = temporary();
    let a = open_with(&path, "a", task());
    acquire(&a).await;
    let done = Outcome {
        exit: Exit::Code(0),
        over: true,
    };
    in_time(a.update_record(RecordUpdate::Outcome(done), late()))
        .await
        .expect("to record");
    // Repeated, as after a lost answer.
    in_time(a.update_record(RecordUpdate::Outcome(done), late()))
        .await
        .expect("to record");
    renew(&a).await;
    release(&a).await;
    let b = open(&path, "b");
    acquire(&b).await;
    renew(&b).await;
    release(&b).await;
    let over = |failure: Failure| match failure {
        Failure::AlreadyDone(result) => (result.holder, result.token, result.status),
        other => panic!("not over: {other:?}"),
    };
    let c = open_with(&path, "c", task());
    assert_eq!(over(refusal(&c).await), ("a".into(), 1, 0));
    let greatest = list(&path).pop().expect("a version");
    fs::create_dir(version_of(&path, greatest + 1)).expect("a version");
    let d = open_with(&path, "d", task());
    assert_eq!(over(refusal(&d).await), ("a".into(), 1, 0));
}

#[tokio::test]
async fn failing_health_is_written_with_the_next_renewal() {
    let (_directory, path) = temporary();
    let a = open(&path, "a");
    let tell = |health: &str| {
        let update = RecordUpdate::Health(health.to_owned());
        in_time(a.update_record(update, late()))
    };
    assert_lost(&tell("failing: it").await.expect_err("not ours"));
    acquire(&a).await;
    assert_eq!(await_record(&path, 1)["health"], serde_json::Value::Null);
    tell("failing: it").await.expect("to tell");
    assert_eq!(list(&path), [0, 1], "no version of its own");
    renew(&a).await;
    assert_eq!(await_record(&path, 2)["health"], "failing: it");
    tell("").await.expect("to tell");
    renew(&a).await;
    assert_eq!(await_record(&path, 3)["health"], serde_json::Value::Null);
    release(&a).await;
}
