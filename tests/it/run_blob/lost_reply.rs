//! A request whose reply was lost is recognized when repeated.

use std::time::Duration;

use nix::sys::signal::Signal;

use super::{Stage, TERM};
use crate::support::azurite::azurite;
use crate::support::instance::Ended;
use crate::support::journal::What;
use crate::support::proxy::{Call, Fate, Proxy, Seen};

#[test]
fn the_lost_reply_to_an_acquire_is_recognised_when_asked_again() {
    let stage = Stage::new("lost-acquire");
    stage.blob.create(&[]);
    let proxy = Proxy::before(azurite().port);
    proxy.next(Call::Acquire, Fate::LoseReply);
    let mut one = stage.instance(proxy.port, "one", &["--lease", "60s"], &[]);
    stage.scene.journal.await_tag(What::Beat, "one");
    let acquires: Vec<Seen> = proxy
        .log()
        .into_iter()
        .filter(|seen| seen.call == Call::Acquire)
        .collect();
    assert!(
        acquires.len() >= 2 && !acquires[0].delivered,
        "{acquires:#?}"
    );
    assert_eq!(acquires[0].lease_id, acquires.last().unwrap().lease_id);
    stage.let_end("one");
    assert_eq!(one.wait(), Ended::Code(0), "{}", one.stderr());
    assert_eq!(stage.blob.lease_state(), "available");
    assert_eq!(stage.scene.journal.judge(), ["one"]);
}

#[test]
fn the_lost_reply_to_the_record_does_not_lose_the_token() {
    let stage = Stage::new("lost-record");
    stage.blob.create(&[("trafficcop_token", "41")]);
    let proxy = Proxy::before(azurite().port);
    proxy.next(Call::SetMetadata, Fate::LoseReply);
    let mut one = stage.instance(proxy.port, "one", &["--lease", "60s"], &[]);
    let first = stage.scene.journal.await_tag(What::Start, "one");
    assert!(first.token > 41, "{}", stage.scene.journal);
    assert_eq!(
        stage.blob.metadata("trafficcop_token").unwrap(),
        first.token.to_string()
    );
    stage.let_end("one");
    assert_eq!(one.wait(), Ended::Code(0), "{}", one.stderr());
}

#[test]
fn the_lost_reply_to_a_release_is_a_release() {
    let stage = Stage::new("lost-release");
    let proxy = Proxy::before(azurite().port);
    proxy.next(Call::Release, Fate::LoseReply);
    let mut one = stage.instance(proxy.port, "one", &["--lease", "60s"], &["--beats", "3"]);
    assert_eq!(one.wait(), Ended::Code(0), "{}", one.stderr());
    assert_eq!(stage.blob.lease_state(), "available");
    stage.scene.await_nobody();
}

#[test]
fn a_stop_while_an_acquire_is_under_way_leaves_no_lease_behind() {
    let stage = Stage::new("undone");
    stage.blob.create(&[]);
    let proxy = Proxy::before(azurite().port);
    proxy.next(Call::Acquire, Fate::DelayReply(Duration::from_secs(3)));
    let mut one = stage.instance(proxy.port, "one", &["--lease", "60s"], &[]);
    stage.blob.await_lease_state("leased");
    one.signal(Signal::SIGTERM);
    assert_eq!(one.wait(), TERM, "{}", one.stderr());
    assert_eq!(stage.blob.lease_state(), "available");
    assert!(
        stage.scene.journal.lines().is_empty(),
        "the command must not have run"
    );
    stage.scene.await_nobody();
}
