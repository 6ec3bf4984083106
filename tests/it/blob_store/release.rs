//! Releasing a lease, by the supervisor and after its death.

use std::time::Duration;

use trafficcop::Instant;
use trafficcop_core::Failure;
use trafficcop_lease::LeaseStore;
use trafficcop_lease::blob::prepare_orphan_release;
use trafficcop_lease::release_orphaned;

use super::renew::in_control;
use super::server::*;

fn not_ours() -> [Reply; 6] {
    [
        error(409, "LeaseIdMismatchWithLeaseOperation"),
        error(409, "LeaseNotPresentWithLeaseOperation"),
        error(412, "LeaseLost"),
        error(404, "BlobNotFound"),
        error(404, "ContainerNotFound"),
        error(409, "ContainerBeingDeleted"),
    ]
}

#[tokio::test]
async fn a_lease_that_is_not_ours_any_more_when_it_is_given_back_was_taken_from_us() {
    for reply in not_ours() {
        let (server, blob) = in_control(vec![("release", reply)]).await;
        let said = blob.release(later()).await;
        assert!(
            matches!(said, Err(Failure::Lost { until: None, .. })),
            "{said:?}"
        );
        assert_eq!(blob.orphan_release().expect("known").release_info, None);
        // It is reported once; then there is nothing left to release.
        blob.release(later()).await.expect("nothing to do");
        server.played();
    }
}

#[tokio::test]
async fn a_release_that_may_have_been_done_before_is_no_loss() {
    for reply in not_ours() {
        for unclear in [
            lost(),
            page(200),
            page(409),
            answer(404),
            answer(200).without_version(),
            error(500, "InternalError"),
            error(503, "ServerBusy"),
            error(408, "RequestTimeout"),
        ] {
            let script = vec![("release", unclear.clone()), ("release", reply.clone())];
            let (server, blob) = in_control(script).await;
            let said = blob.release(later()).await;
            assert_eq!(said, Ok(()), "after {unclear:?}");
            server.played();
        }
    }
}

#[tokio::test]
async fn a_release_that_was_refused_was_not_done() {
    let refused = [
        error(403, "AuthorizationFailure"),
        error(429, "TooManyRequests"),
        error(409, "AccountIsDisabled"),
    ];
    for reply in refused {
        let mismatch = error(409, "LeaseIdMismatchWithLeaseOperation");
        let (server, blob) = in_control(vec![("release", reply), ("release", mismatch)]).await;
        let said = blob.release(later()).await;
        assert!(matches!(said, Err(Failure::Lost { .. })), "{said:?}");
        server.played();
    }
}

#[tokio::test]
async fn a_release_that_was_dropped_may_have_been_done() {
    let (server, blob) = in_control(vec![("release", hang())]).await;
    let dropped = tokio::time::timeout(Duration::from_millis(300), blob.release(later())).await;
    assert!(dropped.is_err());
    let mismatch = || error(409, "LeaseIdMismatchWithLeaseOperation");
    server.then(vec![("release", mismatch())]);
    assert_eq!(blob.release(later()).await, Ok(()));
    server.played();
}

#[tokio::test]
async fn uncertain_lease_is_no_loss() {
    let server = Server::start(vec![("look", free()), ("acquire", lost())]);
    let blob = server.blob();
    blob.acquire(later()).await.expect_err("no answer");
    server.then(vec![(
        "release",
        error(409, "LeaseNotPresentWithLeaseOperation"),
    )]);
    assert_eq!(blob.release(later()).await, Ok(()));
    server.played();
}

#[tokio::test]
async fn a_release_without_an_answer_is_said_again() {
    let (server, blob) = in_control(vec![
        ("release", lost()),
        ("release", page(200)),
        ("release", error(503, "ServerBusy")),
        ("release", done()),
    ])
    .await;
    blob.release(later()).await.expect("released");
    server.played();
}

#[tokio::test]
async fn an_unanswered_release_is_kept_in_mind_and_its_id_is_never_leased_again() {
    let (server, blob) = in_control(vec![("release", hang())]).await;
    let limit = Instant::now() + Duration::from_millis(300);
    let said = blob.release(limit).await.expect_err("no answer");
    assert!(matches!(said, Failure::Transient { .. }), "{said:?}");
    server.then(vec![
        ("release", error(409, "LeaseIdMismatchWithLeaseOperation")),
        ("look", free().meta("trafficcop_token", "1")),
        ("acquire", acquired()),
        ("metadata", done()),
    ]);
    assert_eq!(blob.acquire(later()).await.expect("control").token, 2);
    server.played();
    let first = server.of("acquire")[0]
        .header("x-ms-proposed-lease-id")
        .to_owned();
    assert!(
        server
            .of("release")
            .iter()
            .all(|r| r.header("x-ms-lease-id") == first)
    );
    assert_ne!(
        server.of("acquire")[1].header("x-ms-proposed-lease-id"),
        first
    );
}

#[tokio::test]
async fn a_lease_left_to_run_out_is_not_revived() {
    // The core forgot it without a release: it must end by itself, and the lock must name no
    // holder.
    let (server, blob) = in_control(vec![("look", leased())]).await;
    assert!(matches!(blob.acquire(later()).await, Err(Failure::Held(_))));
    server.then(vec![
        ("look", free()),
        ("acquire", acquired()),
        ("metadata", done()),
    ]);
    blob.acquire(later()).await.expect("control");
    server.played();
    let acquires = server.of("acquire");
    assert_ne!(
        acquires[0].header("x-ms-proposed-lease-id"),
        acquires[1].header("x-ms-proposed-lease-id")
    );
}

#[test]
fn the_last_will_releases_the_lease_from_another_thread_of_life() {
    let runtime = || {
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime")
    };
    let (server, blob) = runtime().block_on(async {
        let (server, blob) = in_control(vec![("renew", renewed())]).await;
        server.keeps_time(3600);
        blob.renew(later()).await.expect("renewed");
        (server, blob)
    });
    server.then(vec![("release", lost()), ("release", done())]);
    let will = blob
        .orphan_release()
        .expect("known")
        .release_info
        .expect("a will");
    release_orphaned(&will); // Not prepared: nothing is sent.
    prepare_orphan_release(server.account());
    release_orphaned(b"{nonsense");
    release_orphaned(b"{\"blob\":\"http://127.0.0.1:1/testacct/locks/job\",\"lease\":\"x\"}");
    release_orphaned(&will);
    server.played();
    // By the service's clock, as the supervisor knew it.
    assert_eq!(server.misdated(), ["renew"]);
    let id = server.of("acquire")[0]
        .header("x-ms-proposed-lease-id")
        .to_owned();
    for release in server.of("release") {
        assert_eq!(release.header("x-ms-lease-id"), id);
        assert!(
            release
                .header("authorization")
                .starts_with("SharedKey testacct:")
        );
    }
}
