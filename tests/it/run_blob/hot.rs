//! One of the standbys, the hot one, looks for all: who is, what becomes of it, and what is asked
//! of the lock's sibling.

use std::time::Duration;

use nix::sys::signal::Signal;
use trafficcop::clock::Instant;

use super::{KILL, STRANGER, Stage, TERM};
use crate::support::azurite::azurite;
use crate::support::blob::Blob;
use crate::support::instance::{Ended, Instance};
use crate::support::journal::What;
use crate::support::processes::await_stopped;
use crate::support::proxy::{Call, Fate, Proxy, Seen};

fn sibling(stage: &Stage) -> Blob {
    Blob::named(&format!("{}.standby", stage.blob.name))
}

fn is_beside(seen: &Seen) -> bool {
    seen.path.ends_with("/singleton.standby")
}

/// It has the sibling's lease.
fn became_hot(seen: &Seen) -> bool {
    is_beside(seen) && seen.call == Call::Acquire && seen.status == Some(201)
}

#[test]
fn the_hot_standby_takes_over_and_then_the_warm_one_is_hot() {
    let stage = Stage::new("hot-and-warm");
    let journal = &stage.scene.journal;
    let (two, three) = (Proxy::before(azurite().port), Proxy::before(azurite().port));
    let mut first = stage.instance(azurite().port, "first", &[], &["--term", "300:0"]);
    journal.await_tag(What::Beat, "first");
    let mut second = stage.instance(two.port, "second", &[], &[]);
    second.await_log("standing by: first is in control");
    two.await_seen("the second to be hot", became_hot);
    assert_eq!(
        sibling(&stage).metadata("trafficcop_standby_of").as_deref(),
        Some("singleton")
    );
    let mut third = stage.instance(three.port, "third", &[], &[]);
    third.await_log("standing by: first is in control");
    three.await_seen("the third to see that another is hot", is_beside);
    // The hot one looks on meanwhile.
    for _ in 0..4 {
        two.await_next(Call::Look);
    }
    let looks = |proxy: &Proxy| {
        let log = proxy.log().into_iter();
        log.filter(|seen| !is_beside(seen)).count()
    };
    assert!(looks(&three) <= 2, "{:#?}", three.log());
    first.signal(Signal::SIGTERM);
    assert_eq!(first.wait(), Ended::Code(0), "{}", first.stderr());
    journal.await_tag(What::Beat, "second");
    let given_back = |seen: &Seen| is_beside(seen) && seen.call == Call::Release;
    two.await_seen("the second to give the sibling back", given_back);
    three.await_seen("the third to be hot", became_hot);
    stage.let_end("second");
    assert_eq!(second.wait(), Ended::Code(0), "{}", second.stderr());
    journal.await_tag(What::Beat, "third");
    sibling(&stage).await_lease_state("available");
    stage.let_end("third");
    assert_eq!(third.wait(), Ended::Code(0), "{}", third.stderr());
    assert_eq!(journal.judge(), ["first", "second", "third"]);
    stage.scene.await_nobody();
}

#[test]
fn a_hot_standby_that_is_stopped_gives_the_sibling_back_and_leaves_at_once() {
    let stage = Stage::new("hot-stopped");
    stage.blob.create(&[]);
    stage.blob.acquire(STRANGER, 60);
    let mut one = stage.instance(azurite().port, "one", &[], &[]);
    sibling(&stage).await_lease_state("leased");
    one.await_log("standing by");
    one.signal(Signal::SIGTERM);
    assert_eq!(one.wait(), TERM, "{}", one.stderr());
    assert_eq!(sibling(&stage).lease_state(), "available");
}

#[test]
fn whoever_does_not_wait_asks_nothing_beside_the_lock() {
    let stage = Stage::new("hot-no-wait");
    stage.blob.create(&[]);
    stage.blob.acquire(STRANGER, 60);
    for options in [
        &["-n"][..],
        &["--poll", "12s", "-w", "1s"],
        &["--once", "-w", "1s"],
    ] {
        let proxy = Proxy::before(azurite().port);
        let run = stage.run(proxy.port).args(options).shell("touch marker");
        assert_eq!(run.finish().ended, Ended::Code(75), "{options:?}");
        let log = proxy.log();
        assert!(!log.is_empty() && !log.iter().any(is_beside), "{log:#?}");
        assert!(options[0] != "-n" || log.len() == 1, "{log:#?}");
    }
    assert_eq!(sibling(&stage).look(), None);
}

#[test]
fn where_the_sibling_is_refused_the_standby_looks_at_its_poll_and_asks_no_more() {
    let stage = Stage::new("hot-refused");
    stage.blob.create(&[]);
    stage.blob.acquire(STRANGER, 60);
    let proxy = Proxy::before(azurite().port);
    let refusal = Fate::Refuse(403, "AuthorizationPermissionMismatch");
    proxy.next(Call::Create, refusal);
    let mut one = stage.instance(proxy.port, "one", &["-v"], &[]);
    for _ in 0..10 {
        proxy.await_next(Call::Look);
    }
    one.signal(Signal::SIGTERM);
    assert_eq!(one.wait(), TERM);
    let said = one.stderr();
    assert_eq!(said.matches("each looks for itself").count(), 1, "{said}");
    let beside: Vec<Call> = proxy
        .log()
        .into_iter()
        .filter(is_beside)
        .map(|seen| seen.call)
        .collect();
    assert_eq!(beside, [Call::Look, Call::Create]);
    assert_eq!(sibling(&stage).look(), None);
}

#[test]
fn a_sibling_that_hangs_does_not_hold_up_a_stop() {
    let stage = Stage::new("hot-hangs");
    stage.blob.create(&[]);
    stage.blob.acquire(STRANGER, 60);
    let proxy = Proxy::before(azurite().port);
    proxy.next(Call::Create, Fate::Swallow);
    let mut one = stage.instance(proxy.port, "one", &[], &[]);
    proxy.await_seen("the sibling to be made", |seen| seen.call == Call::Create);
    let asked = Instant::now();
    one.signal(Signal::SIGTERM);
    assert_eq!(one.wait(), TERM, "{}", one.stderr());
    // As long as an exchange may take else; the rest of a second is what it is.
    let took = Instant::now().since(asked);
    assert!(took < Duration::from_secs(5), "{took:?}");
}

/// The holder, the hot standby and a warm one, each behind a proxy of its own but for the first.
fn trio(stage: &Stage) -> (Instance, (Instance, Proxy), (Instance, Proxy)) {
    let first = stage.instance(azurite().port, "first", &[], &[]);
    stage.scene.journal.await_tag(What::Beat, "first");
    let standby = |name| {
        let proxy = Proxy::before(azurite().port);
        let one = stage.instance(proxy.port, name, &[], &[]);
        one.await_log("standing by: first is in control");
        (one, proxy)
    };
    let hot = standby("second");
    hot.1.await_seen("the second to be hot", became_hot);
    let warm = standby("third");
    (warm.1).await_seen("the third to see that another is hot", is_beside);
    (first, hot, warm)
}

#[test]
fn a_hot_standby_that_stands_still_is_passed_over_and_harms_nobody_when_it_goes_on() {
    let stage = Stage::new("hot-stands-still");
    let (mut first, (mut second, _two), (mut third, _three)) = trio(&stage);
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
fn a_hot_standby_that_is_killed_is_followed_by_a_warm_one() {
    let stage = Stage::new("hot-killed");
    let (mut first, (mut second, _two), (mut third, three)) = trio(&stage);
    second.signal(Signal::SIGKILL);
    assert_eq!(second.wait(), KILL);
    // When the lease on the sibling has run out, which nobody gives back.
    three.await_seen("the third to be hot", became_hot);
    stage.let_end("first");
    assert_eq!(first.wait(), Ended::Code(0), "{}", first.stderr());
    stage.scene.journal.await_tag(What::Beat, "third");
    stage.let_end("third");
    assert_eq!(third.wait(), Ended::Code(0), "{}", third.stderr());
    stage.scene.await_nobody();
}
