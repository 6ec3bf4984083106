//! Others hold, break or take the lease, or delete the blob.

use std::time::Duration;

use nix::sys::signal::Signal;
use trafficcop::Instant;

use super::{A_TREE, LEASE, STRANGER, Stage, TERM, last_grant};
use crate::support::await_for;
use crate::support::azurite::azurite;
use crate::support::instance::Ended;
use crate::support::journal::What;
use crate::support::proxy::{Call, Fate, Proxy};

#[test]
fn a_lease_broken_at_once_kills_at_once_and_says_that_an_overlap_cannot_be_excluded() {
    let stage = Stage::new("broken-now");
    stage.scene.excuse_confession("the lease is broken at once");
    let one = stage.instance(azurite().port, "one", &["--if-lost", "exit"], &A_TREE);
    stage.scene.journal.await_tag(What::Beat, "one/daemon");
    stage.blob.break_lease(Some(0));
    let finished = one.finish();
    assert_eq!(finished.ended, Ended::Code(71), "{}", finished.stderr);
    stage.scene.assert_no_tree();
    // The present holder of the lease would have to wait for it.
    let journal = &stage.scene.journal;
    assert!(
        journal.lines().iter().all(|line| line.what != What::Term),
        "{journal}"
    );
    stage.scene.await_nobody();
}

#[test]
fn a_lease_broken_with_a_period_drains_within_it() {
    let stage = Stage::new("broken-later");
    let journal = &stage.scene.journal;
    let command = ["--term", "200:9"];
    let proxy = Proxy::before(azurite().port);
    // The longest lease: a machine that stalls for some seconds still renews while it breaks.
    let options = ["--if-lost", "exit", "--lease", "60s"];
    let mut one = stage.instance(proxy.port, "one", &options, &command);
    journal.await_tag(What::Beat, "one");
    proxy.await_next(Call::Renew);
    stage.blob.break_lease(None);
    let begin = Instant::now().as_nanos();
    assert_eq!(one.wait(), Ended::Code(70), "{}", one.stderr());
    let end = journal.await_tag(What::End, "one");
    assert!(end.at < begin + 4 * LEASE, "{journal}");
    stage.scene.await_nobody();
}

#[test]
fn a_lease_taken_over_by_a_stranger_kills_and_the_instance_stands_by_again() {
    let stage = Stage::new("taken");
    stage.scene.excuse_confession("the lease is broken at once");
    let journal = &stage.scene.journal;
    let mut one = stage.instance(azurite().port, "one", &[], &A_TREE);
    journal.await_tag(What::Beat, "one/daemon");
    stage.blob.break_lease(Some(0));
    stage.blob.acquire(STRANGER, 60);
    await_for(
        "the tree to be gone",
        || stage.scene.trees().is_empty().then_some(()),
        || one.stderr(),
    );
    one.await_log("standing by");
    stage.blob.release(STRANGER);
    journal.await_line("a second tenure", |line| line.token == 2);
    stage.let_end("one");
    one.wait();
    journal.judge();
    stage.scene.await_nobody();
}

#[test]
fn a_deleted_blob_kills_and_is_created_again_with_a_greater_token() {
    let stage = Stage::new("deleted");
    stage
        .scene
        .excuse_confession("the lease goes with its blob");
    let journal = &stage.scene.journal;
    let proxy = Proxy::before(azurite().port);
    let mut one = stage.instance(proxy.port, "one", &[], &A_TREE);
    journal.await_tag(What::Beat, "one/daemon");
    stage.blob.delete(&last_grant(&proxy).lease_id.unwrap());
    journal.await_line("a second tenure", |line| line.token == 2);
    stage.let_end("one");
    one.wait();
    assert_eq!(journal.judge(), ["one", "one"]);
    assert_eq!(
        stage.blob.metadata("trafficcop_token").as_deref(),
        Some("2")
    );
    stage.scene.await_nobody();
}

#[test]
fn a_deleted_container_kills_and_is_created_again_once_the_store_lets_us() {
    let stage = Stage::new("container-gone");
    stage
        .scene
        .excuse_confession("the lease goes with its container");
    let journal = &stage.scene.journal;
    let proxy = Proxy::before(azurite().port);
    let mut one = stage.instance(proxy.port, "one", &[], &A_TREE);
    journal.await_tag(What::Beat, "one/daemon");
    // The real service needs half a minute for it.
    proxy.next(Call::Create, Fate::Refuse(409, "ContainerBeingDeleted"));
    stage.blob.delete_container();
    journal.await_line("a second tenure", |line| line.token == 2);
    stage.let_end("one");
    assert_eq!(one.wait(), Ended::Code(0), "{}", one.stderr());
    let said = one.stderr();
    assert!(said.contains("ContainerNotFound"), "{said}");
    assert!(
        said.contains("may have run at the same time as another"),
        "{said}"
    );
    assert_eq!(journal.judge(), ["one", "one"]);
    stage.scene.await_nobody();
}

#[test]
fn a_lease_that_was_taken_unnoticed_is_found_lost_when_it_is_given_back() {
    let stage = Stage::new("taken-unnoticed");
    stage.scene.excuse_confession("the lease is broken at once");
    let journal = &stage.scene.journal;
    // The first renewal is due after 20 s.
    let mut one = stage.instance(azurite().port, "one", &["--lease", "60s"], &[]);
    journal.await_tag(What::Beat, "one");
    stage.blob.break_lease(Some(0));
    stage.blob.acquire(STRANGER, 60);
    stage.let_end("one");
    assert_eq!(one.wait(), Ended::Code(71), "{}", one.stderr());
    let said = one.stderr();
    assert!(
        said.contains("another instance had the lease when it was given back"),
        "{said}"
    );
    assert!(
        said.contains("may have run at the same time as another"),
        "{said}"
    );
    stage.blob.release(STRANGER);
    stage.scene.await_nobody();
}

#[test]
fn a_lease_that_is_broken_again_while_the_command_drains_kills_at_once() {
    let stage = Stage::new("broken-twice");
    stage.scene.excuse_confession("the lease is broken at once");
    let journal = &stage.scene.journal;
    let options = [
        "--lease",
        "30s",
        "--grace-on-loss",
        "15s",
        "--if-lost",
        "exit",
    ];
    let mut one = stage.instance(azurite().port, "one", &options, &["--term", "600000:9"]);
    journal.await_tag(What::Beat, "one");
    stage.blob.break_lease(None);
    // The next renewal notices it; the command then has the rest of the lease or 15 s, whichever is
    // less.
    journal.await_tag(What::Term, "one");
    stage.blob.break_lease(Some(0));
    stage.blob.acquire(STRANGER, 60);
    assert_eq!(one.wait(), Ended::Code(71), "{}", one.stderr());
    stage.blob.release(STRANGER);
    stage.scene.await_nobody();
}

#[test]
fn no_wait_and_wait_give_up_on_a_lease_that_is_held() {
    let stage = Stage::new("conflict");
    stage.blob.create(&[]);
    stage.blob.acquire(STRANGER, 60);
    for (options, status) in [
        (&["-n"][..], 75),
        (&["-n", "-E", "9"][..], 9),
        (&["-w", "1s"][..], 75),
        (&["-w", "1s", "-E", "0"][..], 0),
    ] {
        let begin = Instant::now();
        let finished = stage
            .run(azurite().port)
            .args(options)
            .shell("touch marker")
            .finish();
        assert_eq!(
            finished.ended,
            Ended::Code(status),
            "{options:?}: {}",
            finished.stderr
        );
        if options[0] == "-w" {
            assert!(Instant::now().since(begin) >= Duration::from_secs(1));
        }
    }
    assert_eq!(
        stage.blob.metadata("trafficcop_token"),
        None,
        "a held lock is only looked at"
    );
}

#[test]
fn a_standby_polls_without_writing_to_the_lock() {
    let stage = Stage::new("polls");
    stage.blob.create(&[]);
    stage.blob.acquire(STRANGER, 60);
    let proxy = Proxy::before(azurite().port);
    let mut one = stage.instance(proxy.port, "one", &["--poll", "100ms"], &[]);
    await_for(
        "ten polls",
        || (proxy.log().len() >= 10).then_some(()),
        || format!("{:?}", proxy.log()),
    );
    one.signal(Signal::SIGTERM);
    assert_eq!(one.wait(), TERM);
    let log = proxy.log();
    assert!(log.len() >= 5, "{log:#?}");
    assert!(log.iter().all(|seen| seen.call == Call::Look), "{log:#?}");
}

#[test]
fn write_of_a_copied_machine_is_reported() {
    let stage = Stage::new("twofold");
    let journal = &stage.scene.journal;
    let proxy = Proxy::before(azurite().port);
    let mut one = stage.instance(proxy.port, "one", &[], &[]);
    journal.await_tag(What::Beat, "one");
    proxy.await_next(Call::Renew);
    proxy.await_next(Call::Renew);
    assert!(!one.stderr().contains("a copy of"), "{}", one.stderr());
    // The copy drains: the same record under the same lease.
    let id = last_grant(&proxy).lease_id.expect("an id");
    let record: Vec<(String, String)> = (stage.blob.look().expect("the blob").into_iter())
        .filter_map(|(name, value)| Some((name.strip_prefix("x-ms-meta-")?.to_owned(), value)))
        .collect();
    let record: Vec<(&str, &str)> = (record.iter())
        .filter(|(name, _)| name != "trafficcop_draining")
        .map(|(name, value)| (&**name, &**value))
        .chain([("trafficcop_draining", "true")])
        .collect();
    let asked = proxy.log().len();
    stage.blob.write(&id, &record);
    one.await_log("a copy of this machine");
    let calls = proxy.log().split_off(asked);
    assert!(
        calls.iter().all(|seen| seen.call == Call::Renew),
        "it costs no further request: {calls:?}"
    );
    // It is reported once, and no command is stopped for it.
    proxy.await_next(Call::Renew);
    stage.let_end("one");
    assert_eq!(one.wait(), Ended::Code(0), "{}", one.stderr());
    assert_eq!(one.stderr().matches("a copy of this machine").count(), 1);
    assert_eq!(journal.judge(), ["one"]);
}
