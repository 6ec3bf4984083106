//! Each standby polls independently of the others.

use nix::sys::signal::Signal;

use super::{KILL, SECOND, STRANGER, Stage, TERM};
use crate::support::azurite::azurite;
use crate::support::blob::Blob;
use crate::support::instance::{Ended, Instance};
use crate::support::journal::What;
use crate::support::processes::await_stopped;
use crate::support::proxy::{Call, Proxy, Seen};

fn waits(log: &[Seen]) -> Vec<u64> {
    log.windows(2).map(|pair| pair[1].at - pair[0].at).collect()
}

#[test]
fn each_polls_the_lock_and_nothing_beside_it_and_faster_while_the_holder_drains() {
    let stage = Stage::new("each-polls");
    // Another program's lease on a similar name.
    let left = Blob::named(&format!("{}.standby", stage.blob.name));
    left.create(&[]);
    left.acquire(STRANGER, 60);
    let journal = &stage.scene.journal;
    let mut first = stage.instance(azurite().port, "first", &[], &["--term", "12000:0"]);
    journal.await_tag(What::Beat, "first");
    let standby = |name: &str| {
        let proxy = Proxy::before(azurite().port);
        let one = stage.instance(proxy.port, name, &["--poll", "2s"], &[]);
        one.await_log("standing by: first is in control");
        (one, proxy)
    };
    let mut standbys = [standby("second"), standby("third")];
    for (_, proxy) in &standbys {
        for _ in 0..2 {
            proxy.await_next(Call::Look);
        }
    }
    let calm = standbys.each_ref().map(|(_, proxy)| proxy.log());
    first.signal(Signal::SIGTERM);
    journal.await_tag(What::Term, "first");
    for ((_, proxy), calm) in standbys.iter().zip(&calm) {
        // The first wait is shorter, so that instances that start together do not stay together.
        for wait in &waits(calm)[1..] {
            assert!(*wait > SECOND, "{wait} ns\n{calm:#?}");
        }
        // Four times a second means 250 ms ±20 %; a busy machine adds to that, but never as much as
        // a calm wait.
        for _ in 0..8 {
            proxy.await_next(Call::Look);
        }
        let log = proxy.log();
        let mut fast = waits(&log[log.len() - 6..]);
        fast.sort_unstable();
        assert!(fast[2] < SECOND, "{fast:?}\n{log:#?}");
        assert!(fast[0] > SECOND / 10, "{fast:?}\n{log:#?}");
        let at_the_lock =
            |seen: &Seen| seen.call == Call::Look && seen.path.ends_with("/singleton");
        assert!(log.iter().all(at_the_lock), "{log:#?}");
    }
    assert_eq!(first.wait(), Ended::Code(0), "{}", first.stderr());
    stage.let_end("second");
    stage.let_end("third");
    for (one, proxy) in &mut standbys {
        assert_eq!(one.wait(), Ended::Code(0), "{}", one.stderr());
        let beside = |seen: &Seen| seen.path.ends_with(".standby");
        assert!(!proxy.log().iter().any(beside), "{:#?}", proxy.log());
    }
    assert_eq!(journal.judge().len(), 3);
    assert_eq!(left.lease_state(), "leased", "no instance touched it");
}

fn trio(stage: &Stage) -> [Instance; 3] {
    let port = azurite().port;
    let first = stage.instance(port, "first", &[], &[]);
    stage.scene.journal.await_tag(What::Beat, "first");
    let [second, third] = ["second", "third"].map(|name| {
        let one = stage.instance(port, name, &[], &[]);
        one.await_log("standing by: first is in control");
        one
    });
    [first, second, third]
}

#[test]
fn stopped_standby_is_passed_over_and_harmless_when_continued() {
    let stage = Stage::new("standby-stands-still");
    let [mut first, mut second, mut third] = trio(&stage);
    second.signal(Signal::SIGSTOP);
    await_stopped(second.pid());
    stage.let_end("first");
    assert_eq!(first.wait(), Ended::Code(0), "{}", first.stderr());
    let journal = &stage.scene.journal;
    journal.await_tag(What::Beat, "third");
    second.signal(Signal::SIGCONT);
    second.await_log("standing by: third is in control");
    stage.let_end("third");
    assert_eq!(third.wait(), Ended::Code(0), "{}", third.stderr());
    journal.await_tag(What::Beat, "second");
    stage.let_end("second");
    assert_eq!(second.wait(), Ended::Code(0), "{}", second.stderr());
    assert_eq!(journal.judge(), ["first", "third", "second"]);
    stage.scene.await_nobody();
}

#[test]
fn a_standby_that_is_killed_leaves_nothing_behind_and_another_takes_over() {
    let stage = Stage::new("standby-killed");
    let [mut first, mut second, mut third] = trio(&stage);
    second.signal(Signal::SIGKILL);
    assert_eq!(second.wait(), KILL);
    stage.let_end("first");
    assert_eq!(first.wait(), Ended::Code(0), "{}", first.stderr());
    stage.scene.journal.await_tag(What::Beat, "third");
    stage.let_end("third");
    assert_eq!(third.wait(), Ended::Code(0), "{}", third.stderr());
    stage.scene.await_nobody();
    assert_eq!(stage.blob.all_in_its_container(), ["singleton"]);
}

#[test]
fn standby_with_another_lease_margin_grace_and_poll_starts_after_the_tree_of_the_holder_is_gone() {
    let stage = Stage::new("standby-other-settings");
    let port = azurite().port;
    let longer = [
        "--lease",
        "20s",
        "--grace-on-loss",
        "4s",
        "--margin",
        "600ms",
        "--poll",
        "5s",
    ];
    let deaf = ["--term", "ignore", "--daemon", "--children", "2"];
    let mut one = stage.instance(port, "one", &longer, &deaf);
    stage.scene.journal.await_tag(What::Beat, "one/daemon");
    let two = stage.instance(port, "two", &["--poll", "250ms"], &[]);
    two.await_log("standing by: one is in control");
    one.freeze();
    stage.scene.journal.await_tag(What::Beat, "two");
    one.signal(Signal::SIGCONT);
    one.await_log("standing by: two is in control");
    one.signal(Signal::SIGTERM);
    assert_eq!(one.wait(), TERM, "{}", one.stderr());
    stage.let_end("two");
    assert_eq!(two.finish().ended, Ended::Code(0));
    assert_eq!(stage.scene.journal.judge(), ["one", "two"]);
    stage.scene.await_nobody();
}
