//! An answer counts only for its own request.

use trafficcop_core::Failure;
use trafficcop_lease::LeaseStore;

use super::renew::in_control;
use super::server::*;

#[tokio::test]
async fn every_request_has_an_id_of_its_own() {
    let (server, blob) = in_control(vec![("renew", renewed()); 2]).await;
    blob.renew(later()).await.expect("renewed");
    // Refused for its date, and repeated in the same attempt.
    server.keeps_time(7200);
    blob.renew(later()).await.expect("renewed");
    server.played();
    assert_eq!(server.misdated(), ["renew"]);
    let ids = server.ids();
    let different: std::collections::BTreeSet<_> = ids.iter().collect();
    assert_eq!((ids.len(), different.len()), (6, 6), "{ids:?}");
    assert!(ids.iter().all(|id| id.len() == 36), "{ids:?}");
}

#[tokio::test]
async fn answer_to_another_renewal_is_no_renewal_and_asked_for_again_at_once() {
    let (server, blob) =
        in_control(vec![("renew", renewed().misnamed()), ("renew", renewed())]).await;
    blob.renew(later()).await.expect("renewed");
    server.played();
    let renewals = server.of("renew");
    assert_ne!(renewals[0].from, renewals[1].from, "on another connection");
}

#[tokio::test]
async fn answers_that_all_belong_to_others_are_doubt_and_no_loss() {
    for other in [
        renewed().misnamed(),
        error(409, "LeaseIdMismatchWithLeaseOperation").misnamed(),
        error(404, "BlobNotFound").misnamed(),
    ] {
        let (server, blob) = in_control(vec![("renew", other); 3]).await;
        let said = blob.renew(later()).await.expect_err("doubt");
        assert!(transient(&said).contains("an earlier request"), "{said:?}");
        server.then(vec![("renew", renewed())]);
        blob.renew(later()).await.expect("still ours");
        server.played();
    }
}

#[tokio::test]
async fn answer_without_an_id_that_is_older_than_its_request_is_doubt() {
    let old = || ("renew", renewed().nameless().with("date", &date(-5)));
    let server = Server::start(vec![
        ("look", free()),
        ("acquire", acquired()),
        ("metadata", done()),
        old(),
        ("renew", renewed().nameless()),
        old(),
        old(),
        old(),
    ]);
    server.keeps_time(0);
    let blob = server.blob();
    blob.acquire(later()).await.expect("control");
    blob.renew(later()).await.expect("asked for again at once");
    let said = blob.renew(later()).await.expect_err("doubt");
    assert!(transient(&said).contains("an earlier request"), "{said:?}");
    server.played();
}

#[tokio::test]
async fn front_end_whose_date_is_constantly_late_is_believed() {
    for late in [-3, -60, -600] {
        let server = Server::start(vec![
            ("look", free().nameless()),
            ("acquire", acquired().nameless()),
            ("metadata", done().nameless()),
            ("renew", renewed().nameless()),
            ("release", done().nameless()),
        ]);
        server.keeps_time(late);
        let blob = server.blob();
        blob.acquire(later()).await.expect("control");
        blob.renew(later()).await.expect("renewed");
        blob.release(later()).await.expect("released");
        server.played();
    }
}

#[tokio::test]
async fn acquire_that_was_answered_with_another_answer_is_asked_for_again_under_its_id() {
    let server = Server::start(vec![
        ("look", free()),
        ("acquire", acquired().misnamed()),
        ("look", leased()),
        ("acquire", acquired()),
        ("metadata", done()),
    ]);
    let blob = server.blob();
    let said = blob.acquire(later()).await.expect_err("doubt");
    assert!(transient(&said).contains("an earlier request"), "{said:?}");
    blob.acquire(later()).await.expect("control");
    server.played();
    let acquires = server.of("acquire");
    let id = |n: usize| acquires[n].header("x-ms-proposed-lease-id");
    assert_eq!(id(0), id(1));
}

#[tokio::test]
async fn release_counts_by_its_own_answer_alone() {
    let gone = error(409, "LeaseIdMismatchWithLeaseOperation");
    for own in [done(), gone] {
        let (server, blob) =
            in_control(vec![("release", done().misnamed()), ("release", own)]).await;
        let said: Result<(), Failure> = blob.release(later()).await;
        said.expect("released");
        server.played();
    }
}
