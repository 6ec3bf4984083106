//! Meanings of the answers to a renewal.

use std::time::Duration;

use trafficcop::Instant;
use trafficcop_core::Failure;
use trafficcop_lease::blob::Blob;
use trafficcop_lease::{LeaseStore, RecordUpdate};

use super::server::*;

/// Takes control; then plays `script`.
pub(crate) async fn in_control(script: Vec<(&'static str, Reply)>) -> (Server, Blob) {
    let server = Server::start(vec![
        ("look", free().meta("owner", "ops")),
        ("acquire", acquired()),
        ("metadata", done()),
    ]);
    let blob = server.blob();
    blob.acquire(later()).await.expect("control");
    server.then(script);
    (server, blob)
}

#[tokio::test]
async fn a_renewal_with_our_id_is_a_renewal() {
    let (server, blob) = in_control(vec![("renew", renewed())]).await;
    blob.renew(later()).await.expect("renewed");
    server.played();
    let id = server.of("acquire")[0]
        .header("x-ms-proposed-lease-id")
        .to_owned();
    assert_eq!(server.of("renew")[0].header("x-ms-lease-id"), id);
}

#[tokio::test]
async fn only_the_services_own_word_is_a_loss() {
    for (status, code) in [
        (409, "LeaseIdMismatchWithLeaseOperation"),
        (409, "LeaseNotPresentWithLeaseOperation"),
        (412, "LeaseLost"),
        (404, "BlobNotFound"),
        (404, "ContainerNotFound"),
        (409, "ContainerBeingDeleted"),
    ] {
        let (server, blob) = in_control(vec![("renew", error(status, code))]).await;
        let said = blob.renew(later()).await.expect_err("lost");
        assert!(
            matches!(&said, Failure::Lost { until: None, why } if why.contains(code)),
            "{said:?}"
        );
        // Nothing left to renew or release: no request.
        assert!(matches!(
            blob.renew(later()).await,
            Err(Failure::Lost { until: None, .. })
        ));
        blob.release(later()).await.expect("nothing to do");
        assert_eq!(blob.orphan_release().expect("known").release_info, None);
        server.played();
    }
}

#[tokio::test]
async fn everything_else_is_doubt_and_the_lease_stays_ours() {
    let foreign = "11111111-2222-3333-4444-555555555555";
    for reply in [
        error(401, "InvalidAuthenticationInfo"),
        error(403, "AuthenticationFailed"),
        error(403, "AuthorizationFailure"),
        error(400, "InvalidHeaderValue"),
        error(408, "RequestTimeout"),
        error(429, "TooManyRequests"),
        error(500, "OperationTimedOut"),
        error(503, "ServerBusy"),
        error(409, "AccountIsDisabled"),
        error(404, "ResourceNotFound"),
        error(412, "ConditionNotMet"),
        page(200),
        page(403),
        page(404),
        page(409),
        page(502),
        answer(404),
        answer(409),
        answer(412),
        answer(200),
        answer(302),
        answer(200).with("x-ms-lease-id", foreign),
        lost(),
    ] {
        let name = format!("{reply:?}");
        let (server, blob) = in_control(vec![("renew", reply), ("renew", renewed())]).await;
        let said = blob.renew(later()).await.expect_err("doubt");
        assert!(
            matches!(said, Failure::Transient { .. }),
            "{name}: {said:?}"
        );
        blob.renew(later()).await.expect("still ours");
        server.played();
    }
}

#[tokio::test]
async fn a_breaking_lease_tells_its_rest() {
    let (server, blob) = in_control(vec![
        ("renew", error(409, "LeaseIsBrokenAndCannotBeRenewed")),
        ("look", seen("breaking", "\"2\"")),
        ("break", answer(202).with("x-ms-lease-time", "9")),
        ("release", done()),
    ])
    .await;
    let before = Instant::now();
    let said = blob.renew(later()).await.expect_err("broken");
    let Failure::Lost {
        until: Some(until), ..
    } = said
    else {
        panic!("{said:?}");
    };
    // One second less than the answer said, from before the request.
    assert!(until >= before + Duration::from_secs(8));
    assert!(until <= Instant::now() + Duration::from_secs(8));
    let asked = &server.of("break")[0];
    assert_eq!(asked.header("if-match"), "\"2\"");
    assert_eq!(asked.header("x-ms-lease-break-period"), "");
    // The rest can be released early.
    blob.release(later()).await.expect("released");
    server.played();
}

#[tokio::test]
async fn a_write_of_ours_beside_the_question_for_the_rest_is_not_the_next_holder_s() {
    let (server, blob) = in_control(vec![
        ("renew", error(409, "LeaseIsBrokenAndCannotBeRenewed")),
        ("look", seen("breaking", "\"2\"")),
        ("break", error(412, "ConditionNotMet")),
        ("look", seen("breaking", "\"3\"")),
        ("break", answer(202).with("x-ms-lease-time", "9")),
    ])
    .await;
    let said = blob.renew(later()).await;
    assert!(
        matches!(said, Err(Failure::Lost { until: Some(_), .. })),
        "{said:?}"
    );
    server.played();
}

#[tokio::test]
async fn a_breaking_lease_is_asked_for_again_and_silence_takes_nothing_back() {
    let broken = || ("renew", error(409, "LeaseIsBrokenAndCannotBeRenewed"));
    let breaking = || ("look", seen("breaking", "\"2\""));
    let rest = |seconds| ("break", answer(202).with("x-ms-lease-time", seconds));
    let (server, blob) = in_control(vec![broken(), breaking(), rest("20")]).await;
    let told = blob.renew(later()).await;
    assert!(matches!(told, Err(Failure::Lost { until: Some(_), .. })));
    for script in [
        vec![broken(), ("look", lost())],
        vec![broken(), ("look", error(503, "ServerBusy"))],
        vec![broken(), breaking(), ("break", error(500, "InternalError"))],
        vec![broken(), breaking(), ("break", answer(202))],
    ] {
        server.then(script);
        let said = blob.renew(later()).await;
        assert!(matches!(said, Err(Failure::Transient { .. })), "{said:?}");
    }
    // Broken twice: with a period of 5 s, then at once.
    server.then(vec![broken(), breaking(), rest("5")]);
    let Err(Failure::Lost {
        until: Some(until), ..
    }) = blob.renew(later()).await
    else {
        panic!("it is breaking");
    };
    assert!(until <= Instant::now() + Duration::from_secs(4));
    server.then(vec![broken(), ("look", seen("broken", "\"2\""))]);
    let said = blob.renew(later()).await;
    assert!(matches!(said, Err(Failure::Lost { until: None, .. })));
    server.played();
}

#[tokio::test]
async fn broken_lease_may_have_another_holder() {
    for script in [
        vec![("look", seen("broken", "\"2\""))],
        vec![("look", seen("leased", "\"2\""))],
        vec![("look", error(500, "InternalError"))],
        vec![("look", error(404, "BlobNotFound"))],
        vec![("look", lost())],
        vec![
            ("look", seen("breaking", "\"2\"")),
            ("break", error(412, "ConditionNotMet")),
            ("look", seen("leased", "\"3\"")),
        ],
        vec![("look", seen("breaking", "\"2\"")), ("break", answer(202))],
        vec![
            ("look", seen("breaking", "\"2\"")),
            ("break", answer(202).with("x-ms-lease-time", "0")),
        ],
    ] {
        let mut all = vec![("renew", error(409, "LeaseIsBrokenAndCannotBeRenewed"))];
        all.extend(script);
        let (server, blob) = in_control(all).await;
        let said = blob.renew(later()).await.expect_err("broken");
        assert!(
            matches!(said, Failure::Lost { until: None, .. }),
            "{said:?}"
        );
        server.played();
    }
}

#[tokio::test]
async fn a_service_that_hangs_is_doubt_within_the_limit() {
    let (server, blob) = in_control(vec![("renew", hang()), ("renew", renewed())]).await;
    let limit = Instant::now() + Duration::from_millis(400);
    let said = blob.renew(limit).await.expect_err("hangs");
    assert!(
        matches!(&said, Failure::Transient { why, .. } if why.contains("no answer in time")),
        "{said:?}"
    );
    assert!(Instant::now() >= limit && Instant::now().since(limit) < Duration::from_secs(10));
    // The dead connection is not used again.
    blob.renew(later()).await.expect("renewed");
    server.played();
}

#[tokio::test]
async fn the_announcement_keeps_what_is_not_ours() {
    let (server, blob) = in_control(vec![("metadata", done())]).await;
    blob.update_record(draining(""), later())
        .await
        .expect("announced");
    server.played();
    let written = &server.of("metadata")[1];
    assert_eq!(written.header("x-ms-meta-trafficcop_draining"), "true");
    assert_eq!(written.header("x-ms-meta-trafficcop_token"), "1");
    assert_eq!(written.header("x-ms-meta-owner"), "ops");
    assert_eq!(written.header("x-ms-meta-trafficcop_health"), "");
    // A late write must not undo later ones.
    assert_eq!(written.header("if-match"), "\"2\"");
    let id = server.of("acquire")[0]
        .header("x-ms-proposed-lease-id")
        .to_owned();
    assert_eq!(written.header("x-ms-lease-id"), id);
}

fn draining(health: &str) -> RecordUpdate {
    let health = health.to_owned();
    RecordUpdate::Draining { health }
}

#[tokio::test]
async fn failing_health_is_written_for_its_tenure_until_the_command_recovers() {
    let (server, blob) = in_control(vec![("metadata", done()); 4]).await;
    let tell = |health: &str| RecordUpdate::Health(health.to_owned());
    for update in [
        tell("failing: it"),
        tell(""),
        tell("failing: it"),
        draining("hung: it"),
    ] {
        blob.update_record(update, later()).await.expect("written");
    }
    server.played();
    let said = |write: usize| {
        let written = &server.of("metadata")[write];
        let of = |name: &str| {
            written
                .header(&format!("x-ms-meta-trafficcop_{name}"))
                .to_owned()
        };
        (of("health"), of("draining"))
    };
    let says = |health: &str, draining: &str| (health.to_owned(), draining.to_owned());
    // Marked with this tenure's token: an older version copies unknown metadata from tenure to
    // tenure.
    assert_eq!(said(1), says("1 failing: it", "false"));
    assert_eq!(said(2), says("", "false"));
    assert_eq!(said(4), says("1 hung: it", "true"));
}

#[tokio::test]
async fn a_write_whose_reply_was_lost_keeps_no_later_one_from_being_made() {
    let (server, blob) = in_control(vec![
        ("metadata", lost()),
        ("metadata", error(412, "ConditionNotMet")),
        (
            "look",
            seen("leased", "\"7\"")
                .meta("trafficcop_token", "1")
                .meta("trafficcop_health", "1 failing: it")
                .meta("colour", "red"),
        ),
        ("metadata", done()),
    ])
    .await;
    let health = RecordUpdate::Health("failing: it".to_owned());
    let said = blob.update_record(health, later()).await;
    assert!(matches!(said, Err(Failure::Transient { .. })), "{said:?}");
    blob.update_record(draining(""), later())
        .await
        .expect("announced");
    server.played();
    let written = &server.of("metadata")[3];
    assert_eq!(written.header("if-match"), "\"7\"");
    assert_eq!(written.header("x-ms-meta-trafficcop_draining"), "true");
    assert_eq!(written.header("x-ms-meta-trafficcop_health"), "");
    assert_eq!(written.header("x-ms-meta-colour"), "red");
}

/// Only a copy of this machine can have written since the answer: the instance does not fight it.
#[tokio::test]
async fn a_word_of_health_is_not_written_over_what_another_wrote() {
    let (server, blob) = in_control(vec![("metadata", error(412, "ConditionNotMet"))]).await;
    let health = RecordUpdate::Health("failing: it".to_owned());
    let said = blob.update_record(health, later()).await;
    assert!(matches!(said, Err(Failure::Transient { .. })), "{said:?}");
    server.played();
}
