//! Acquiring control of a blob: success and refusal.

use std::time::Duration;

use trafficcop::Instant;
use trafficcop_core::{Failure, HolderInfo};
use trafficcop_lease::LeaseStore;

use super::server::*;
use crate::support::closed_port::ClosedPort;

#[tokio::test]
async fn a_free_blob_is_leased_and_signed_and_others_metadata_stay() {
    let server = Server::start(vec![
        (
            "look",
            free()
                .meta("owner", "ops 100%")
                .meta("colour", "grün")
                .meta("TrafficCop_Token", "6")
                .meta("trafficcop_holder", "old"),
        ),
        ("acquire", acquired()),
        ("metadata", done()),
    ]);
    let before = Instant::now();
    let blob = server.blob();
    let grant = blob.acquire(later()).await.expect("control");
    server.played();
    assert_eq!(grant.token, 7);
    assert!(grant.t0 >= before && grant.t0 <= Instant::now());
    let acquire = &server.of("acquire")[0];
    assert!(
        grant.t0 <= acquire.at,
        "counted from before it was asked for"
    );
    assert_eq!(acquire.header("x-ms-lease-duration"), "30");
    let id = acquire.header("x-ms-proposed-lease-id").to_owned();
    assert_eq!((id.len(), id.to_lowercase()), (36, id.clone()));
    assert!(
        acquire
            .header("authorization")
            .starts_with("SharedKey testacct:")
    );
    let written = &server.of("metadata")[0];
    assert_eq!(written.header("x-ms-lease-id"), id);
    assert_eq!(written.header("if-match"), "\"1\"");
    // The service refuses a PUT without a length.
    assert_eq!(acquire.header("content-length"), "0");
    assert_eq!(written.header("content-length"), "0");
    for (name, value) in [
        ("owner", "ops 100%"),
        ("colour", "grün"),
        ("trafficcop_token", "7"),
        ("trafficcop_holder", "box-1"),
        ("trafficcop_host", "box"),
        ("trafficcop_pid", "42"),
        ("trafficcop_command", "echo h%C3%B6me"),
        ("trafficcop_draining", "false"),
    ] {
        assert_eq!(
            written.header(&format!("x-ms-meta-{name}")),
            value,
            "{name}"
        );
    }
    let will = String::from_utf8(
        blob.orphan_release()
            .expect("known")
            .release_info
            .expect("a will"),
    )
    .expect("text");
    assert!(will.contains(&id) && !will.contains(SECRET), "{will}");
    assert!(will.len() <= 2048);
}

#[tokio::test]
async fn held_lock_is_only_looked_at() {
    for state in ["leased", "breaking"] {
        let server = Server::start(vec![(
            "look",
            seen(state, "\"1\"")
                .meta("trafficcop_token", "3")
                .meta("trafficcop_holder", "h%C3%B6st")
                .meta("trafficcop_draining", "true"),
        )]);
        let said = server.blob().acquire(later()).await.expect_err("held");
        let sight = HolderInfo {
            holder: Some("höst".into()),
            token: Some(3),
            draining: true,
            ..HolderInfo::default()
        };
        assert_eq!(said, Failure::Held(sight));
        server.played();
    }
}

#[tokio::test]
async fn lost_race_is_held_by_an_unknown_holder() {
    let server = Server::start(vec![
        (
            "look",
            free()
                .meta("trafficcop_token", "3")
                .meta("trafficcop_holder", "old"),
        ),
        ("acquire", error(409, "LeaseAlreadyPresent")),
        ("look", leased()),
    ]);
    let blob = server.blob();
    let said = blob.acquire(later()).await.expect_err("held");
    assert_eq!(said, Failure::Held(HolderInfo::default()));
    // After a refusal there is nothing to repeat or undo.
    assert!(matches!(blob.acquire(later()).await, Err(Failure::Held(_))));
    blob.release(later()).await.expect("nothing to do");
    server.played();
}

#[tokio::test]
async fn a_lost_reply_to_the_record_is_recognised_and_a_foreign_write_is_not_overwritten() {
    // The write was done, only its reply was lost: the second look shows it.
    let server = Server::start(vec![
        ("look", free().meta("trafficcop_token", "4")),
        ("acquire", acquired()),
        ("metadata", lost()),
        ("look", as_written()),
    ]);
    let blob = server.blob();
    let said = blob.acquire(later()).await;
    assert_eq!(said.expect("control").token, 5);
    server.played();

    // Another client wrote between the look and the lease.
    let server = Server::start(vec![
        ("look", free().meta("trafficcop_token", "4")),
        ("acquire", acquired()),
        ("metadata", error(412, "ConditionNotMet")),
        (
            "look",
            seen("leased", "\"9\"")
                .meta("trafficcop_token", "8")
                .meta("note", "new"),
        ),
        ("metadata", done()),
    ]);
    assert_eq!(
        server.blob().acquire(later()).await.expect("control").token,
        9
    );
    server.played();
    let written = server.of("metadata");
    assert_eq!(written[1].header("if-match"), "\"9\"");
    assert_eq!(written[1].header("x-ms-meta-note"), "new");
    let looks = server.of("look");
    assert_eq!(
        looks[1].header("x-ms-lease-id"),
        written[1].header("x-ms-lease-id")
    );
}

#[tokio::test]
async fn a_stale_look_is_repeated_under_the_lease() {
    let server = Server::start(vec![
        (
            "look",
            seen("available", "\"0\"").meta("trafficcop_token", "4"),
        ),
        ("acquire", acquired()),
        (
            "look",
            seen("leased", "\"1\"").meta("trafficcop_token", "5"),
        ),
        ("metadata", done()),
    ]);
    assert_eq!(
        server.blob().acquire(later()).await.expect("control").token,
        6
    );
    server.played();
}

#[tokio::test]
async fn a_record_that_cannot_be_written_gives_the_lease_back() {
    let server = Server::start(vec![
        ("look", free()),
        ("acquire", acquired()),
        ("metadata", error(403, "AuthorizationPermissionMismatch")),
        ("release", done()),
        ("look", free()),
        ("acquire", acquired()),
        ("metadata", done()),
    ]);
    let blob = server.blob();
    let said = blob.acquire(later()).await.expect_err("no record");
    let (why, denied) = fatal(&said);
    assert!(denied && why.contains("permissions"), "{why}");
    assert_eq!(blob.orphan_release().expect("known").release_info, None);
    blob.acquire(later()).await.expect("control");
    server.played();
    let acquires = server.of("acquire");
    assert_eq!(
        server.of("release")[0].header("x-ms-lease-id"),
        acquires[0].header("x-ms-proposed-lease-id")
    );
    assert_ne!(
        acquires[0].header("x-ms-proposed-lease-id"),
        acquires[1].header("x-ms-proposed-lease-id")
    );
}

#[tokio::test]
async fn a_token_never_goes_back() {
    // Nor if another client removed the metadata.
    let server = Server::start(vec![
        ("look", free().meta("trafficcop_token", "41")),
        ("acquire", acquired()),
        ("metadata", done()),
        ("release", done()),
        ("look", free()),
        ("acquire", acquired()),
        ("metadata", done()),
    ]);
    let blob = server.blob();
    assert_eq!(blob.acquire(later()).await.expect("control").token, 42);
    blob.release(later()).await.expect("released");
    assert_eq!(blob.acquire(later()).await.expect("control").token, 43);
    server.played();
    // An unreadable token is refused before the lease.
    for bad in ["seven", "-1", "18446744073709551616"] {
        let server = Server::start(vec![("look", free().meta("trafficcop_token", bad))]);
        let said = server.blob().acquire(later()).await.expect_err("no number");
        assert!(fatal(&said).0.contains("trafficcop_token"), "{said}");
        server.played();
    }
    let server = Server::start(vec![
        (
            "look",
            free().meta("trafficcop_token", "18446744073709551615"),
        ),
        ("acquire", acquired()),
        ("release", done()),
    ]);
    fatal(
        &server
            .blob()
            .acquire(later())
            .await
            .expect_err("the greatest"),
    );
    server.played();
}

#[tokio::test]
async fn refusals_are_fatal_at_first_contact_and_doubt_afterwards() {
    for (status, code, denied) in [
        (401, "NoAuthenticationInformation", true),
        (403, "AuthenticationFailed", true),
        (403, "AuthorizationFailure", true),
        (403, "KeyBasedAuthenticationNotPermitted", true),
        (409, "AccountIsDisabled", true),
        (400, "InvalidResourceName", false),
        (400, "InvalidUri", false),
    ] {
        let server = Server::start(vec![
            ("look", error(status, code)),
            ("look", leased()),
            ("look", error(status, code)),
        ]);
        let blob = server.blob();
        let said = blob.acquire(later()).await.expect_err("refused");
        assert_eq!(fatal(&said).1, denied, "{said}");
        assert!(
            said.to_string().contains(code) && said.to_string().contains("locks/job"),
            "{said}"
        );
        assert!(matches!(blob.acquire(later()).await, Err(Failure::Held(_))));
        let why = blob.acquire(later()).await.expect_err("refused");
        match denied {
            // The core limits how long a missing right may last; any other refusal after a success
            // is doubt.
            true => assert!(fatal(&why).1, "{why}"),
            false => assert!(transient(&why).contains(code), "{why}"),
        }
        server.played();
    }
}

#[tokio::test]
async fn everything_else_is_doubt_from_the_first() {
    for (reply, word) in [
        (error(500, "InternalError"), "500 InternalError"),
        (error(503, "ServerBusy"), "503 ServerBusy"),
        (error(408, "RequestTimeout"), "408"),
        (error(429, "TooManyRequests"), "429"),
        (page(502), "502 with a web page"),
        (page(403), "403 with a web page"),
        (page(404), "404 with a web page"),
        (page(200), "a web page"),
        (answer(200), "lacks a lease state"),
        (answer(302).with("location", "http://127.0.0.1:1/"), "302"),
        (answer(404), "404 without an error code"),
        (lost(), "connection lost"),
    ] {
        let server = Server::start(vec![("look", reply)]);
        let said = server.blob().acquire(later()).await.expect_err("doubt");
        assert!(transient(&said).contains(word), "{word}: {said}");
        server.played();
    }
    let mut server = Server::start(vec![]);
    let closed = ClosedPort::new();
    server.port = closed.port;
    let said = server.blob().acquire(later()).await.expect_err("doubt");
    assert!(
        transient(&said)
            .to_lowercase()
            .contains("connection refused"),
        "{said}"
    );
}

#[tokio::test]
async fn a_wish_to_be_left_alone_is_passed_on() {
    for (reply, wish) in [
        (error(503, "ServerBusy").with("retry-after", "7"), 7),
        (
            error(429, "TooManyRequests").with("x-ms-retry-after-ms", "3000"),
            3,
        ),
        (
            error(503, "ServerBusy")
                .with("date", "Fri, 26 Jun 2015 23:39:12 GMT")
                .with("retry-after", "Fri, 26 Jun 2015 23:39:32 GMT"),
            20,
        ),
    ] {
        let server = Server::start(vec![("look", reply)]);
        let said = server.blob().acquire(later()).await.expect_err("busy");
        assert!(
            matches!(said, Failure::Transient { retry_after: Some(after), .. } if after == Duration::from_secs(wish)),
            "{said:?}"
        );
    }
}

#[tokio::test]
async fn no_attempt_outlasts_its_limit() {
    let scripts = [
        vec![("look", hang())],
        vec![("look", free()), ("acquire", hang())],
        vec![
            ("look", free()),
            ("acquire", acquired()),
            ("metadata", hang()),
            ("release", hang()),
        ],
    ];
    // Long enough for a release to begin within it, on a slow machine, too.
    let plays = scripts.map(|script| async {
        let server = Server::start(script);
        let blob = server.blob();
        let limit = Instant::now() + Duration::from_secs(6);
        transient(&blob.acquire(limit).await.expect_err("hangs"));
        let over = Instant::now().since(limit);
        assert!(over < Duration::from_secs(10), "{over:?}");
        server.played();
    });
    futures::future::join_all(plays).await;
}
