//! The result of a task: what keeps it, what cannot remove it, and what happens if it cannot be
//! written.

use std::time::Duration;

use super::{DONE, Ended, Stage, assert_was_served};
use crate::support::azurite::azurite;
use crate::support::journal::What;
use crate::support::proxy::{Call, Fate, Mode, Proxy};

const BUSY: Mode = Mode::Answer(
    503,
    "application/xml",
    "<?xml version=\"1.0\"?><Error><Code>ServerBusy</Code></Error>",
);

#[test]
fn a_result_that_cannot_be_recorded_is_an_end_with_70_and_the_task_runs_again() {
    let stage = Stage::on_blob("once-unrecorded");
    let proxy = Proxy::before(azurite().port);
    let one = stage.candidate_by(proxy.port, "one", &[]);
    stage.scene.journal.await_tag(What::Beat, "one");
    let two = stage.candidate("two", &[]);
    two.await_log("standing by");
    proxy.set(BUSY);
    stage.let_end("one");
    let one = one.finish();
    assert_eq!(one.ended, Ended::Code(70), "{}", one.stderr);
    for words in ["cannot record", "could not be recorded", "can run again"] {
        assert!(one.stderr.contains(words), "{}", one.stderr);
    }
    stage.scene.journal.await_tag(What::Beat, "two");
    stage.let_end("two");
    assert_eq!(two.finish().ended, DONE);
    assert_eq!(stage.scene.journal.judge(), ["one", "two"]);
    stage.assert_done_by("two");
}

#[test]
fn a_store_that_is_away_for_a_while_gets_the_result_when_it_is_back() {
    let stage = Stage::on_blob("once-away");
    let proxy = Proxy::before(azurite().port);
    let one = stage.candidate_by(proxy.port, "one", &["--lease", "60s"]);
    stage.scene.journal.await_tag(What::Beat, "one");
    proxy.set(BUSY);
    stage.let_end("one");
    one.await_log("cannot record");
    proxy.set(Mode::Pass);
    let one = one.finish();
    assert_eq!(one.ended, DONE, "{}", one.stderr);
    stage.assert_done_by("one");
}

#[test]
fn the_lost_reply_to_a_result_is_recognised_when_it_is_written_again() {
    let stage = Stage::on_blob("once-lost-reply");
    let proxy = Proxy::before(azurite().port);
    let one = stage.candidate_by(proxy.port, "one", &["--lease", "60s"]);
    stage.scene.journal.await_tag(What::Beat, "one");
    proxy.next(Call::SetMetadata, Fate::LoseReply);
    stage.let_end("one");
    let one = one.finish();
    assert_eq!(one.ended, DONE, "{}", one.stderr);
    assert!(one.stderr.contains("recorded that the task is done"));
    stage.assert_done_by("one");
    let token = stage.blob().metadata("trafficcop_token");
    assert_eq!(token.as_deref(), Some("1"), "no other instance got control");
}

#[test]
fn a_late_word_of_the_drain_does_not_take_the_result_away() {
    let stage = Stage::on_blob("once-announce");
    let proxy = Proxy::before(azurite().port);
    let done = stage.scene.path("one.done");
    let until = done.to_str().unwrap();
    // The child takes a while: the drain is announced.
    let one = stage
        .run_by(proxy.port)
        .args(["--once", "--identity", "one", "--lease", "60s"])
        .args(["--stop-signal", "USR1"])
        .shell(&format!(
            "trap '' USR1; (while [ ! -e {until}.left ]; do sleep 0.05; done) & \
             while [ ! -e {until} ]; do sleep 0.05; done"
        ))
        .start();
    one.await_log("in control");
    let announced = |proxy: &Proxy| {
        let log = proxy.log();
        log.iter()
            .filter(|seen| seen.call == Call::SetMetadata)
            .count()
    };
    crate::support::await_for(
        "the record",
        || (announced(&proxy) == 1).then_some(()),
        || one.stderr(),
    );
    proxy.next(Call::SetMetadata, Fate::DelayReply(Duration::from_secs(3)));
    stage.let_end("one");
    crate::support::await_for(
        "the announcement",
        || (announced(&proxy) == 2).then_some(()),
        || one.stderr(),
    );
    std::fs::File::create(format!("{until}.left")).unwrap();
    let one = one.finish();
    assert_eq!(one.ended, DONE, "{}", one.stderr);
    stage.assert_done_by("one");
}

#[test]
fn a_lock_file_that_was_removed_keeps_no_result() {
    let stage = Stage::on_file();
    stage
        .scene
        .excuse_event_logs("another file is locked and counts anew");
    let one = stage.candidate("one", &[]);
    stage.scene.journal.await_tag(What::Beat, "one");
    std::fs::remove_file(stage.scene.lock()).unwrap();
    stage.let_end("one");
    let one = one.finish();
    // Another may have had control of a new file meanwhile.
    assert_eq!(one.ended, Ended::Code(71), "{}", one.stderr);
    assert!(
        one.stderr.contains("could not be recorded"),
        "{}",
        one.stderr
    );
    assert_eq!(stage.late("two", &[]).ended, DONE);
    // Tokens start from 1, so the journal is not judged.
    let late = stage.late("late", &["-n"]);
    assert_eq!(late.ended, DONE, "{}", late.stderr);
    assert_was_served(&late.stderr, "two");
}

#[test]
fn a_result_stays_through_a_broken_lease_other_people_s_metadata_and_runs_of_other_things() {
    let stage = Stage::on_blob("once-kept");
    stage.scene.excuse_confession("the lease is broken at once");
    let blob = stage.blob();
    blob.create(&[("colour", "red"), ("note", "100% theirs")]);
    assert_eq!(stage.late("one", &[]).ended, DONE);
    let result = blob.metadata("trafficcop_once").expect("a result");
    assert!(
        result.contains("\"once\"") && result.contains("one"),
        "{result}"
    );
    let other = stage.candidate("two", &["--once-key", "other"]);
    stage.scene.journal.await_tag(What::Beat, "two");
    blob.break_lease(Some(0));
    other.await_log("lease was lost");
    drop(other);
    stage.assert_done_by("one");
    let plain = stage.run().shell("echo $TRAFFICCOP_TOKEN").finish();
    assert_eq!(plain.ended, DONE, "{}", plain.stderr);
    let token: u64 = plain.stdout.trim().parse().unwrap();
    assert!(token >= 3, "{token}");
    assert_eq!(blob.metadata("trafficcop_once"), Some(result));
    assert_eq!(blob.metadata("colour").as_deref(), Some("red"));
    assert_eq!(blob.metadata("note").as_deref(), Some("100% theirs"));
    let late = stage.late("late", &["-n"]);
    assert_eq!(late.ended, DONE, "{}", late.stderr);
    super::assert_was_served(&late.stderr, "one");
}

#[test]
fn each_key_is_a_task_of_its_own_whatever_is_in_it() {
    for stage in Stage::on_both("once-keys") {
        for (number, key) in ["v7", "v8", "é\n\"=;,%41 \t", "\u{1f600}", " v7"]
            .iter()
            .enumerate()
        {
            for (round, ran) in [(0, true), (1, false)] {
                let name = format!("{number}-{round}");
                let finished = stage.late(&name, &["--once-key", key]);
                assert_eq!(finished.ended, DONE, "{key:?}: {}", finished.stderr);
                let runs = stage.scene.journal.judge();
                assert_eq!(
                    runs.contains(&name),
                    ran,
                    "{key:?}: {}",
                    stage.scene.journal
                );
            }
        }
    }
}

#[test]
fn unreadable_results_do_not_allow_a_run() {
    let stage = Stage::on_blob("once-unreadable");
    stage
        .blob()
        .create(&[("trafficcop_token", "5"), ("trafficcop_once", "[{oops")]);
    let refused = stage.late("one", &[]);
    assert_eq!(refused.ended, Ended::Code(69), "{}", refused.stderr);
    assert!(
        refused.stderr.contains("trafficcop_once"),
        "{}",
        refused.stderr
    );
    // A run without --once ignores it, and leaves it as it is.
    let plain = stage.run().command(["true"]).finish();
    assert_eq!(plain.ended, DONE, "{}", plain.stderr);
    let kept = stage.blob().metadata("trafficcop_once");
    assert_eq!(kept.as_deref(), Some("[{oops"));
    assert!(stage.scene.journal.lines().is_empty());
}

#[test]
fn metadata_without_room_for_a_result_are_told_before_anything_is_run() {
    let stage = Stage::on_blob("once-full");
    let theirs = "x".repeat(7900);
    stage.blob().create(&[("theirs", &theirs)]);
    let refused = stage.late("one", &[]);
    assert_eq!(refused.ended, Ended::Code(69), "{}", refused.stderr);
    assert!(refused.stderr.contains("no room"), "{}", refused.stderr);
    assert_eq!(stage.blob().lease_state(), "available");
    assert!(stage.scene.journal.lines().is_empty());
}
