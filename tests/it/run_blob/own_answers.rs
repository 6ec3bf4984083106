//! An answer to an earlier renewal counts only for that one.

use super::{SECOND, Stage, TERM, assert_dead_in_time, last_grant};
use crate::support::azurite::azurite;
use crate::support::instance::Ended;
use crate::support::journal::What;
use crate::support::proxy::{Call, Fate, Proxy, Seen};

/// Plays a proxy that passes a renewal, repeats its answer for the next, and passes no more.
fn answers_are_one_behind(container: &str, nameless: bool) {
    let stage = Stage::new(container);
    let journal = &stage.scene.journal;
    let proxy = Proxy::before(azurite().port);
    if nameless {
        proxy.strips_request_ids();
    }
    let mut first = stage.instance(proxy.port, "first", &[], &["--term", "600000:9"]);
    journal.await_tag(What::Beat, "first");
    let mut second = stage.instance(azurite().port, "second", &[], &[]);
    second.await_log("standing by: first is in control");
    proxy.await_next(Call::Renew);
    proxy.next(Call::Renew, Fate::Repeat);
    for _ in 0..20 {
        proxy.next(Call::Renew, Fate::Swallow);
    }
    journal.await_tag(What::Beat, "second");
    assert_dead_in_time(&stage, "first", &last_grant(&proxy));
    first.signal(nix::sys::signal::Signal::SIGTERM);
    assert_eq!(first.wait(), TERM, "{}", first.stderr());
    stage.let_end("second");
    assert_eq!(second.wait(), Ended::Code(0));
    assert_eq!(journal.judge(), ["first", "second"]);
    stage.scene.await_nobody();
}

#[test]
fn answer_to_the_renewal_before_makes_no_lease_longer() {
    answers_are_one_behind("one-behind", false);
}

#[test]
fn answer_to_the_renewal_before_is_known_by_its_date_where_it_bears_no_id() {
    answers_are_one_behind("one-behind-nameless", true);
}

#[test]
fn one_answer_to_an_earlier_renewal_costs_a_healthy_holder_nothing() {
    let stage = Stage::new("repeated");
    let journal = &stage.scene.journal;
    let proxy = Proxy::before(azurite().port);
    let mut one = stage.instance(proxy.port, "one", &[], &[]);
    journal.await_tag(What::Beat, "one");
    proxy.await_next(Call::Renew);
    proxy.next(Call::Renew, Fate::Repeat);
    let next = proxy.await_next(Call::Renew);
    proxy.await_next(Call::Renew);
    let log = proxy.log();
    let repeated = log
        .iter()
        .rfind(|seen| seen.call == Call::Renew && seen.at < next.at);
    let between = next.at - repeated.expect("the one before").at;
    assert!(between < SECOND, "asked for again after {between} ns");
    stage.let_end("one");
    assert_eq!(one.wait(), Ended::Code(0), "{}", one.stderr());
    assert!(!one.stderr().contains("cannot renew"), "{}", one.stderr());
    stage.assert_undisturbed();
}

#[test]
fn date_that_becomes_late_in_mid_tenure_stops_no_healthy_holder() {
    let stage = Stage::new("late-date");
    let journal = &stage.scene.journal;
    let proxy = Proxy::before(azurite().port);
    proxy.strips_request_ids();
    let mut one = stage.instance(proxy.port, "one", &[], &[]);
    journal.await_tag(What::Beat, "one");
    proxy.await_next(Call::Renew);
    proxy.keeps_time(-10);
    one.await_log("the answer belongs to an earlier request");
    // A refused renewal is repeated within two seconds, and one that counts is followed after five.
    let refused = proxy.await_next(Call::Renew);
    proxy.await_seen("three renewals that counted", |last| {
        let later = |seen: &&Seen| seen.call == Call::Renew && seen.at > refused.at + 15 * SECOND;
        Some(last).filter(later).is_some()
    });
    stage.let_end("one");
    assert_eq!(one.wait(), Ended::Code(0), "{}", one.stderr());
    stage.assert_undisturbed();
    stage.scene.await_nobody();
}
