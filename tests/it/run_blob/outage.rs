//! An unreachable store: the command ends in time, and is not disturbed without need.

use nix::sys::signal::Signal;
use trafficcop::Instant;

use super::{A_TREE, SECOND, Stage, assert_dead_in_time, assert_no_secret, last_grant};
use crate::support::azurite::azurite;
use crate::support::instance::Ended;
use crate::support::journal::What;
use crate::support::proxy::{Call, Fate, Mode, Proxy};

#[test]
fn a_holder_cut_off_from_the_store_is_drained_and_gone_before_another_runs() {
    let stage = Stage::new("frozen");
    let journal = &stage.scene.journal;
    let proxy = Proxy::before(azurite().port);
    let mut first = stage.instance(proxy.port, "first", &[], &A_TREE);
    journal.await_tag(What::Beat, "first/daemon");
    let mut second = stage.instance(azurite().port, "second", &[], &[]);
    second.await_log("standing by: first is in control");
    proxy.await_next(Call::Renew);
    proxy.set(Mode::Freeze);

    journal.await_tag(What::Beat, "second");
    let last = last_grant(&proxy);
    assert_dead_in_time(&stage, "first", &last);
    let term = journal.await_tag(What::Term, "first");
    // 11 s after t0, a moment before the proxy saw the request.
    assert!(
        term.at > last.at + 9 * SECOND,
        "asked to end without need\n{journal}"
    );
    assert!(term.at < last.at + 14 * SECOND, "asked too late\n{journal}");

    proxy.set(Mode::Pass);
    first.await_log("standing by: second is in control");
    first.assert_running();
    stage.let_end("second");
    assert_eq!(second.wait(), Ended::Code(0));
    journal.await_line("a third tenure", |line| {
        line.token == 3 && line.tag == "first"
    });
    stage.let_end("first");
    assert_eq!(first.wait(), Ended::Code(0), "{}", first.stderr());
    assert_eq!(journal.judge(), ["first", "second", "first"]);
    assert_no_secret(&first.stderr());
    stage.scene.await_nobody();
}

#[test]
fn a_holder_whose_store_resets_every_connection_is_gone_in_time_and_ends_with_70_if_asked_to() {
    let stage = Stage::new("cut");
    let proxy = Proxy::before(azurite().port);
    let first = stage.instance(proxy.port, "first", &["--if-lost", "exit"], &A_TREE);
    stage.scene.journal.await_tag(What::Beat, "first/daemon");
    proxy.set(Mode::Cut);
    let finished = first.finish();
    assert_eq!(finished.ended, Ended::Code(70), "{}", finished.stderr);
    assert_dead_in_time(&stage, "first", &last_grant(&proxy));
    assert_no_secret(&finished.stderr);
    stage.scene.await_nobody();
}

/// Checks that a failure of the store from one renewal until its report does not disturb the
/// command.
fn outage(container: &str, begin: impl FnOnce(&Proxy), end: impl FnOnce(&Proxy)) {
    let stage = Stage::new(container);
    let journal = &stage.scene.journal;
    let proxy = Proxy::before(azurite().port);
    let mut one = stage.instance(proxy.port, "one", &[], &["--term", "60000:9"]);
    journal.await_tag(What::Beat, "one");
    proxy.await_next(Call::Renew);
    begin(&proxy);
    one.await_log("cannot renew the lease");
    end(&proxy);
    one.await_log("the store answers again");
    let recovered = Instant::now().as_nanos();
    // Longer than the old lease could last.
    journal.await_line("life on the new lease", |line| {
        line.at > recovered + 12 * SECOND
    });
    stage.let_end("one");
    assert_eq!(one.wait(), Ended::Code(0), "{}", one.stderr());
    assert_eq!(journal.judge(), ["one"]);
    stage.assert_undisturbed();
    assert_no_secret(&one.stderr());
}

#[test]
fn connections_reset_for_a_while_cost_nothing() {
    outage(
        "outage-cut",
        |proxy| proxy.set(Mode::Cut),
        |proxy| proxy.set(Mode::Pass),
    );
}

#[test]
fn a_busy_service_costs_nothing() {
    let busy = Mode::Answer(503, "text/html", "<html>503</html>");
    outage(
        "outage-503",
        |proxy| proxy.set(busy),
        |proxy| proxy.set(Mode::Pass),
    );
}

#[test]
fn a_refusal_in_mid_tenure_is_doubt_and_costs_nothing() {
    let refused = Mode::Answer(403, "application/xml", "<Error><Code>X</Code></Error>");
    outage(
        "outage-403",
        |proxy| proxy.set(refused),
        |proxy| proxy.set(Mode::Pass),
    );
}

const READ_ONLY: Mode = Mode::RefuseWrites(403, "InsufficientAccountPermissions");

#[test]
fn an_account_that_is_read_only_for_a_while_costs_nothing() {
    outage(
        "outage-read-only",
        |proxy| proxy.set(READ_ONLY),
        |proxy| proxy.set(Mode::Pass),
    );
}

#[test]
fn an_account_that_stays_read_only_lets_the_command_run_until_its_time_is_up() {
    let stage = Stage::new("read-only");
    let journal = &stage.scene.journal;
    let proxy = Proxy::before(azurite().port);
    let first = stage.instance(proxy.port, "first", &["--if-lost", "exit"], &A_TREE);
    journal.await_tag(What::Beat, "first/daemon");
    proxy.await_next(Call::Renew);
    proxy.set(READ_ONLY);
    let finished = first.finish();
    assert_eq!(finished.ended, Ended::Code(70), "{}", finished.stderr);
    let said = &finished.stderr;
    assert!(
        said.contains("403 InsufficientAccountPermissions"),
        "{said}"
    );
    let last = last_grant(&proxy);
    let term = journal.await_tag(What::Term, "first");
    assert!(
        term.at > last.at + 9 * SECOND,
        "asked to end without need\n{journal}"
    );
    assert_dead_in_time(&stage, "first", &last);
    stage.scene.await_nobody();
}

#[test]
fn the_lost_reply_to_a_renewal_costs_nothing() {
    outage(
        "outage-lost",
        |proxy| proxy.next(Call::Renew, Fate::LoseReply),
        |_| {},
    );
}

#[test]
fn a_stopped_supervisor_s_tree_is_gone_in_time_and_it_stands_by_when_continued() {
    let stage = Stage::new("stopped");
    let journal = &stage.scene.journal;
    let proxy = Proxy::before(azurite().port);
    let mut first = stage.instance(proxy.port, "first", &[], &A_TREE);
    journal.await_tag(What::Beat, "first/daemon");
    let mut second = stage.instance(azurite().port, "second", &[], &[]);
    second.await_log("standing by: first is in control");
    first.freeze();
    journal.await_tag(What::Beat, "second");
    assert_dead_in_time(&stage, "first", &last_grant(&proxy));

    first.signal(Signal::SIGCONT);
    first.await_log("standing by: second is in control");
    stage.let_end("second");
    assert_eq!(second.wait(), Ended::Code(0));
    journal.await_line("a third tenure", |line| {
        line.token == 3 && line.tag == "first"
    });
    stage.let_end("first");
    assert_eq!(first.wait(), Ended::Code(0), "{}", first.stderr());
    assert_eq!(journal.judge(), ["first", "second", "first"]);
    stage.scene.await_nobody();
}

#[test]
fn a_standby_survives_an_outage_of_the_store() {
    let stage = Stage::new("standby-outage");
    let journal = &stage.scene.journal;
    let proxy = Proxy::before(azurite().port);
    let mut first = stage.instance(azurite().port, "first", &[], &[]);
    journal.await_tag(What::Beat, "first");
    let mut second = stage.instance(proxy.port, "second", &[], &[]);
    second.await_log("standing by: first is in control");
    proxy.set(Mode::Answer(500, "text/plain", "no"));
    second.await_log("retrying");
    stage.let_end("first");
    assert_eq!(first.wait(), Ended::Code(0));
    proxy.set(Mode::Pass);
    journal.await_tag(What::Beat, "second");
    stage.let_end("second");
    assert_eq!(second.wait(), Ended::Code(0));
    assert_eq!(journal.judge(), ["first", "second"]);
}
