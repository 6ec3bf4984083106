//! However the holder ends, the next instance runs then, and never before.

use std::time::Duration;

use nix::sys::signal::Signal;
use trafficcop::Instant;

use super::{A_TREE, KILL, Stage, TERM, assert_no_secret};
use crate::support::await_for;
use crate::support::azurite::azurite;
use crate::support::instance::{Ended, Instance};
use crate::support::journal::What;

/// Two instances compete, and `end` ends the first. The second must run long before a lease of a
/// minute would have run out, but not before all processes of the first have ended.
fn hand_over(
    container: &str,
    command: &[&str],
    end: impl FnOnce(&Stage, &Instance),
    expected: Ended,
) {
    let stage = Stage::new(container);
    let journal = &stage.scene.journal;
    let options = [
        "--lease",
        "60s",
        "--grace",
        "500ms",
        "--grace-on-loss",
        "1s",
    ];
    let port = azurite().port;
    let mut first = stage.instance(port, "first", &options, command);
    journal.await_tag(What::Beat, "first");
    let mut second = stage.instance(port, "second", &options, &[]);
    second.await_log("standing by: first is in control, token 1");
    journal.await_sign_of_life("first");

    let begin = Instant::now();
    end(&stage, &first);
    assert_eq!(first.wait(), expected, "{}", first.stderr());
    journal.await_tag(What::Beat, "second");
    let took = Instant::now().since(begin);
    assert!(
        took < Duration::from_secs(40),
        "the lease was left to run out: {took:?}"
    );
    stage.let_end("second");
    assert_eq!(second.wait(), Ended::Code(0), "{}", second.stderr());
    assert_eq!(journal.judge(), ["first", "second"]);
    assert_eq!(stage.blob.lease_state(), "available");
    assert_eq!(
        stage.blob.metadata("trafficcop_token").as_deref(),
        Some("2")
    );
    assert_no_secret(&(first.stderr() + &second.stderr()));
    stage.scene.await_nobody();
}

#[test]
fn the_end_of_the_command_hands_over() {
    hand_over(
        "by-exit",
        &["--status", "7"],
        |stage, _| stage.let_end("first"),
        Ended::Code(7),
    );
}

#[test]
fn sigterm_ends_the_command_and_hands_over() {
    hand_over(
        "by-term",
        &[],
        |_, first| first.signal(Signal::SIGTERM),
        TERM,
    );
}

#[test]
fn a_tree_that_ignores_sigterm_is_killed_before_the_hand_over() {
    hand_over(
        "by-kill",
        &A_TREE,
        |_, first| first.signal(Signal::SIGTERM),
        KILL,
    );
}

#[test]
fn the_death_of_the_supervisor_hands_over_because_the_guardian_gives_the_lease_back() {
    hand_over(
        "by-death",
        &A_TREE,
        |_, first| first.signal(Signal::SIGKILL),
        KILL,
    );
}

#[test]
fn many_instances_run_one_at_a_time() {
    let stage = Stage::new("crowd");
    let names = ["a", "b", "c", "d"];
    let options = ["--grace", "100ms"];
    let command = ["--beats", "20", "--daemon"];
    let crowd: Vec<Instance> = names
        .iter()
        .map(|name| stage.instance(azurite().port, name, &options, &command))
        .collect();
    for one in crowd {
        let finished = one.finish();
        assert_eq!(finished.ended, Ended::Code(0), "{}", finished.stderr);
    }
    let mut order = stage.scene.journal.judge();
    order.sort();
    assert_eq!(order, names);
    stage.scene.await_nobody();
}

#[test]
fn a_drain_may_last_longer_than_the_lease_because_renewals_go_on() {
    let stage = Stage::new("long-drain");
    let journal = &stage.scene.journal;
    let port = azurite().port;
    let mut first = stage.instance(port, "first", &["--grace", "10m"], &["--term", "18000:5"]);
    journal.await_tag(What::Beat, "first");
    let mut second = stage.instance(port, "second", &[], &[]);
    second.await_log("standing by: first is in control");
    first.signal(Signal::SIGTERM);
    await_for(
        "the record to say that control will change",
        || {
            let draining = stage.blob.metadata("trafficcop_draining")?;
            (draining == "true").then_some(())
        },
        || format!("{:?}", stage.blob.look()),
    );
    assert_eq!(first.wait(), Ended::Code(5), "{}", first.stderr());
    journal.await_tag(What::End, "first");
    journal.await_tag(What::Beat, "second");
    stage.let_end("second");
    assert_eq!(second.wait(), Ended::Code(0));
    assert_eq!(journal.judge(), ["first", "second"]);
}
