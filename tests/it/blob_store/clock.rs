//! A wrong clock: the service refuses dates more than fifteen minutes off its own; that must not
//! matter.

use std::time::Duration;

use trafficcop::Instant;
use trafficcop_core::Failure;
use trafficcop_lease::LeaseStore;

use super::server::*;

const HOUR: i64 = 3600;

fn a_tenure() -> Vec<(&'static str, Reply)> {
    vec![
        ("look", free()),
        ("acquire", acquired()),
        ("metadata", done()),
        ("renew", renewed()),
        ("release", done()),
    ]
}

#[tokio::test]
async fn a_clock_that_is_an_hour_off_costs_one_refusal_and_nothing_else() {
    for off in [HOUR, -HOUR] {
        let server = Server::start(a_tenure());
        server.keeps_time(off);
        let blob = server.blob();
        let grant = blob.acquire(later()).await.expect("control");
        assert_eq!(grant.token, 1);
        blob.renew(later()).await.expect("renewed");
        blob.release(later()).await.expect("released");
        server.played();
        assert_eq!(server.misdated(), ["look"], "{off}");
    }
}

#[tokio::test]
async fn a_clock_that_is_nearly_right_costs_nothing() {
    for off in [10 * 60, -10 * 60] {
        let server = Server::start(a_tenure());
        server.keeps_time(off);
        let blob = server.blob();
        blob.acquire(later()).await.expect("control");
        // By the service's clock since its first answer.
        server.keeps_time(off * 2);
        blob.renew(later()).await.expect("renewed");
        blob.release(later()).await.expect("released");
        server.played();
        assert_eq!(server.misdated(), [""; 0], "{off}");
    }
}

#[tokio::test]
async fn a_clock_that_jumps_in_mid_tenure_is_no_doubt() {
    let server = Server::start(a_tenure());
    server.keeps_time(0);
    let blob = server.blob();
    blob.acquire(later()).await.expect("control");
    // As on a machine that was frozen together with its clocks.
    server.keeps_time(2 * HOUR);
    blob.renew(later())
        .await
        .expect("renewed within the same attempt");
    server.keeps_time(-HOUR);
    blob.release(later())
        .await
        .expect("released within the same attempt");
    server.played();
    assert_eq!(server.misdated(), ["renew", "release"]);
}

#[tokio::test]
async fn a_refusal_that_is_not_about_the_date_is_not_repeated() {
    for reply in [
        error(403, "AuthenticationFailed"),
        error(403, "AuthorizationFailure"),
        error(403, "InsufficientAccountPermissions"),
    ] {
        let server = Server::start(vec![("look", reply)]);
        server.keeps_time(0);
        let said = server.blob().acquire(later()).await.expect_err("refused");
        assert!(
            matches!(said, Failure::Fatal { denied: true, .. }),
            "{said:?}"
        );
        server.played();
    }
}

#[tokio::test]
async fn only_the_date_is_a_reason_to_ask_again_and_only_once() {
    // The refusal has another reason: repeating it would never end.
    let server = Server::start(vec![("look", error(403, "AuthorizationFailure"))]);
    server.keeps_time(HOUR);
    server.ignores_dates();
    let said = server.blob().acquire(later()).await.expect_err("refused");
    assert!(matches!(said, Failure::Fatal { .. }), "{said:?}");
    server.played();
    // A wrong key with a wrong clock is reported after the second refusal.
    let refused = || ("look", error(403, "AuthenticationFailed"));
    let server = Server::start(vec![refused(), refused()]);
    server.keeps_time(HOUR);
    server.ignores_dates();
    let said = server.blob().acquire(later()).await.expect_err("refused");
    assert!(said.to_string().contains("replace it"), "{said}");
    server.played();
    // An intermediary's date does not count.
    let server = Server::start(vec![("look", page(403))]);
    server.keeps_time(HOUR);
    server.ignores_dates();
    let said = server.blob().acquire(later()).await.expect_err("a portal");
    assert!(matches!(said, Failure::Transient { .. }), "{said:?}");
    server.played();
}

#[tokio::test]
async fn the_repetition_keeps_to_the_time_limit_of_the_first() {
    let server = Server::start(vec![
        ("look", free()),
        ("acquire", acquired()),
        ("metadata", done()),
    ]);
    server.keeps_time(0);
    let blob = server.blob();
    blob.acquire(later()).await.expect("control");
    server.keeps_time(HOUR);
    server.then(vec![("renew", hang())]);
    let limit = Instant::now() + Duration::from_millis(400);
    let said = blob.renew(limit).await.expect_err("no answer");
    assert!(
        matches!(&said, Failure::Transient { why, .. } if why.contains("in time")),
        "{said:?}"
    );
    assert!(Instant::now().since(limit) < Duration::from_secs(4));
    server.played();
    assert_eq!(server.misdated(), ["renew"]);
}

#[tokio::test]
async fn all_locks_of_an_account_know_what_one_has_learnt() {
    let server = Server::start([a_tenure(), a_tenure()].concat());
    server.keeps_time(HOUR);
    let lock = server.lock();
    for _ in 0..2 {
        let blob = open(&lock);
        blob.acquire(later()).await.expect("control");
        blob.renew(later()).await.expect("renewed");
        blob.release(later()).await.expect("released");
    }
    server.played();
    assert_eq!(server.misdated(), ["look"]);
}
