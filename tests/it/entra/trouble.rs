//! A failing endpoint costs no control while there is a valid token, or time.

use super::*;
use crate::entra::desk::Manner;

/// Plays tokens of 36 seconds with a lease of 30. The endpoint fails from the first token on, until
/// a renewal has failed for want of one; then it recovers.
fn outage(container: &str, manner: Manner) {
    let stage = Stage::new(container);
    let journal = &stage.scene.journal;
    stage.desk.set(Manner::Issue(36));
    let run = stage.with_workload(stage.run());
    let run = run.args(["--lease", "30s", "-v"]);
    let mut one = stage.instance(run, "one", &["--term", "60000:9"]);
    journal.await_tag(What::Beat, "one");
    stage.desk.set(manner);
    // The new token does not come; renewals continue with the old one, without waiting.
    stage.desk.await_asked(2);
    let renewed = one.stderr().matches("renewed").count();
    one.await_log_times("renewed", renewed + 1);
    let said = one.stderr();
    assert!(!said.contains("cannot renew"), "{said}");
    one.await_log("cannot renew the lease");
    stage.desk.set(Manner::Issue(HOUR));
    one.await_log("the store answers again");
    one.assert_running();
    stage.let_end("one");
    assert_eq!(one.wait(), Ended::Code(0), "{}", one.stderr());
    assert_eq!(journal.judge(), ["one"]);
    stage.assert_undisturbed();
    no_secret(&one.stderr());
}

#[test]
fn an_endpoint_that_hangs_costs_nothing_while_the_token_is_good_and_is_doubt_after() {
    outage("hangs", Manner::Hang);
}

#[test]
fn an_endpoint_that_answers_500_costs_nothing_while_the_token_is_good_and_is_doubt_after() {
    outage("fails", Manner::Answer(500, "no".into()));
}

#[test]
fn a_credential_that_is_revoked_in_mid_tenure_is_doubt() {
    let text = r#"{"error":"invalid_client","error_description":"AADSTS7000222: expired"}"#;
    outage("revoked", Manner::Answer(401, text.into()));
}

#[test]
fn a_credential_that_stays_away_lets_the_command_run_until_its_time_is_up() {
    let stage = Stage::new("stays-away");
    let journal = &stage.scene.journal;
    stage.desk.set(Manner::Issue(8));
    let run = stage.with_secret(stage.run()).args(["--if-lost", "exit"]);
    let tree = ["--term", "600000:9", "--daemon", "--children", "1"];
    let one = stage.instance(run, "one", &tree);
    let began = journal.await_tag(What::Beat, "one/daemon");
    stage.desk.set(Manner::Hang);
    let finished = one.finish();
    assert_eq!(finished.ended, Ended::Code(70), "{}", finished.stderr);
    let term = journal.await_tag(What::Term, "one");
    // TERM is due eleven seconds after the last renewal.
    assert!(term.at > began.at + 9 * SECOND, "without need\n{journal}");
    no_secret(&finished.stderr);
    stage.scene.await_nobody();
}

#[test]
fn short_lived_tokens_are_renewed_unnoticed() {
    let stage = Stage::new("short-lived");
    let journal = &stage.scene.journal;
    stage.desk.set(Manner::Issue(6));
    let run = stage.with_workload(stage.run()).arg("-v");
    let mut one = stage.instance(run, "one", &[]);
    // More than two of their lifetimes, and than one lease.
    stage.desk.await_asked(7);
    one.assert_running();
    stage.let_end("one");
    assert_eq!(one.wait(), Ended::Code(0), "{}", one.stderr());
    let said = one.stderr();
    assert!(said.matches("renewed").count() >= 2, "{said}");
    for word in ["cannot renew", "no new token", "retrying"] {
        assert!(!said.contains(word), "{said}");
    }
    assert_eq!(journal.judge(), ["one"]);
    stage.assert_undisturbed();
}

#[test]
fn a_standby_waits_for_an_endpoint_that_is_away_at_first() {
    for (container, manner) in [
        ("away-hangs", Manner::Hang),
        ("away-fails", Manner::Answer(503, "no".into())),
    ] {
        let stage = Stage::new(container);
        stage.desk.set(manner);
        let run = stage.with_secret(stage.run());
        let mut one = stage.instance(run, "one", &[]);
        one.await_log("retrying");
        one.assert_running();
        stage.desk.set(Manner::Issue(HOUR));
        stage.scene.journal.await_tag(What::Beat, "one");
        stage.let_end("one");
        assert_eq!(one.wait(), Ended::Code(0), "{}", one.stderr());
    }
}

#[test]
fn a_token_that_the_store_refuses_is_asked_for_anew() {
    let stage = Stage::new("stale");
    // Claimed for an hour, valid for twelve seconds: a clock is wrong.
    let until = 4_000_000_000_u64;
    let stale = format!(
        r#"{{"token_type":"Bearer","expires_in":3600,"expires_on":"{until}","access_token":"{}"}}"#,
        desk::token(12)
    );
    stage.desk.set(Manner::Answer(200, stale));
    let run = stage.with_secret(stage.run());
    let mut one = stage.instance(run, "one", &["--term", "60000:9"]);
    stage.scene.journal.await_tag(What::Beat, "one");
    stage.desk.set(Manner::Issue(HOUR));
    one.await_log("the store answers again");
    stage.let_end("one");
    assert_eq!(one.wait(), Ended::Code(0), "{}", one.stderr());
    stage.assert_undisturbed();
}
