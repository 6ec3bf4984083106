//! A machine with a wrong clock: the store refuses dates more than fifteen minutes off its own, and
//! users do not notice.

use nix::sys::signal::Signal;

use super::{Stage, assert_no_secret};
use crate::support::azurite::azurite;
use crate::support::instance::Ended;
use crate::support::journal::What;
use crate::support::proxy::{Call, Proxy};

const HOUR: i64 = 3600;

#[test]
fn a_clock_that_is_an_hour_off_and_then_on_the_other_side_costs_nothing() {
    let stage = Stage::new("clock");
    let journal = &stage.scene.journal;
    let proxy = Proxy::before(azurite().port);
    proxy.keeps_time(HOUR);
    let mut first = stage.instance(proxy.port, "first", &[], &["--daemon"]);
    first.await_log("behind the storage service's");
    journal.await_tag(What::Beat, "first/daemon");
    proxy.await_next(Call::Renew);
    assert_eq!(
        proxy.misdated(),
        [Call::Look],
        "the first request, and no other"
    );
    let mut second = stage.instance(azurite().port, "second", &[], &[]);
    second.await_log("standing by: first is in control");

    // Refused once, and renewed in the same attempt.
    proxy.keeps_time(-HOUR);
    proxy.await_seen("a refused renewal", |seen| {
        seen.call == Call::Renew && seen.status == Some(403)
    });
    proxy.await_next(Call::Renew);
    proxy.await_next(Call::Renew);
    assert_eq!(proxy.misdated(), [Call::Look, Call::Renew]);
    assert!(
        !first.stderr().contains("cannot renew"),
        "{}",
        first.stderr()
    );
    stage.assert_undisturbed();

    // The guardian's release is dated by the offset known when the command started, two hours wrong
    // by now. (An attempt that a slow machine has withdrawn was released before.)
    let killed_at = proxy.log().last().map_or(0, |seen| seen.at);
    first.signal(Signal::SIGKILL);
    proxy.await_seen("the guardian's release", |seen| {
        seen.at > killed_at && seen.call == Call::Release && seen.status == Some(200)
    });
    assert_eq!(
        proxy.misdated(),
        [Call::Look, Call::Renew, Call::Release],
        "{:?}",
        proxy.log()
    );
    journal.await_tag(What::Beat, "second");
    stage.let_end("second");
    assert_eq!(second.wait(), Ended::Code(0));
    first.wait();
    assert_eq!(journal.judge(), ["first", "second"]);
    assert_no_secret(&first.stderr());
    stage.scene.await_nobody();
}
