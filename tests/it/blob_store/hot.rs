//! The sibling of a lock, by which one of the standbys looks for all: what is asked of it, when,
//! and what becomes of the looking when it cannot be had.

use std::time::Duration;

use trafficcop::clock::Instant;
use trafficcop::core::{Duty, Failure};
use trafficcop::lease::Store as _;
use trafficcop::lease::blob::{Blob, Config, Target};

use super::server::{
    Reply, Server, acquired, answer, created, done, error, fatal, free, hang, later, leased, lost,
    seen,
};

/// What the sibling looks like.
fn marked(state: &str) -> Reply {
    seen(state, "\"1\"").meta("trafficcop_standby_of", "job")
}

fn standby(server: &Server) -> Blob {
    server.blob().with_hot_standby()
}

/// Which part of the looking is this one's, by an attempt that finds the lock held.
#[track_caller]
fn duty(reply: &Result<trafficcop::core::Grant, Failure>) -> Duty {
    match reply {
        Err(Failure::Held(sight)) => sight.duty,
        other => panic!("not held: {other:?}"),
    }
}

/// What was asked of the sibling, in order.
fn beside(server: &Server) -> Vec<String> {
    let seen = server.seen().into_iter();
    let path = |target: &str| target.split('?').next().map(str::to_owned);
    let sibling = Some("/testacct/locks/job.standby".to_owned());
    let beside = seen.filter(|request| path(&request.target) == sibling);
    beside.map(|request| request.op).collect()
}

#[tokio::test]
async fn the_first_standby_makes_the_sibling_and_is_hot_without_asking_each_time() {
    let server = Server::start(vec![
        ("look", leased()),
        ("look", error(404, "BlobNotFound")),
        ("create", created()),
        ("acquire", acquired()),
        ("look", leased()),
        ("look", leased()),
    ]);
    let blob = standby(&server);
    for _ in 0..3 {
        assert_eq!(duty(&blob.acquire(later()).await), Duty::Hot);
    }
    server.played();
    assert_eq!(beside(&server), ["look", "create", "acquire"]);
    let create = &server.of("create")[0];
    assert_eq!(create.header("x-ms-blob-type"), "BlockBlob");
    assert_eq!(create.header("content-length"), "0");
    assert_eq!(create.header("if-none-match"), "*");
    assert_eq!(create.header("x-ms-meta-trafficcop_standby_of"), "job");
    assert_eq!(
        server.of("acquire")[0].header("x-ms-lease-duration"),
        "15",
        "the shortest there is"
    );
}

#[tokio::test]
async fn a_warm_standby_looks_at_the_sibling_each_time_but_not_while_the_holder_drains() {
    let draining = || {
        leased()
            .meta("trafficcop_token", "1")
            .meta("trafficcop_draining", "true")
    };
    let server = Server::start(vec![
        ("look", leased()),
        ("look", marked("leased")),
        ("look", leased()),
        ("look", marked("breaking")),
        ("look", draining()),
        ("look", draining()),
        ("look", leased()),
        ("look", marked("available")),
        // Another was faster.
        ("acquire", error(409, "LeaseAlreadyPresent")),
        ("look", leased()),
        ("look", marked("expired")),
        ("acquire", acquired()),
    ]);
    let blob = standby(&server);
    for nth in 0..6 {
        let expected = if nth < 5 { Duty::Warm } else { Duty::Hot };
        assert_eq!(duty(&blob.acquire(later()).await), expected, "{nth}");
    }
    server.played();
    let looks = ["look", "look", "look", "acquire", "look", "acquire"];
    assert_eq!(beside(&server), looks);
}

#[tokio::test]
async fn a_standby_that_lost_the_race_for_the_lock_shares_the_looking_too() {
    let server = Server::start(vec![
        ("look", free()),
        ("acquire", error(409, "LeaseAlreadyPresent")),
        ("look", marked("leased")),
    ]);
    assert_eq!(duty(&standby(&server).acquire(later()).await), Duty::Warm);
    server.played();
}

#[tokio::test]
async fn nothing_is_asked_on_the_way_to_control_nor_by_whoever_does_not_share() {
    let control = || {
        vec![
            ("look", free()),
            ("acquire", acquired()),
            ("metadata", done()),
        ]
    };
    let server = Server::start(control());
    let blob = standby(&server);
    blob.acquire(later()).await.expect("control");
    blob.leave(later()).await;
    let server_of_another = Server::start(vec![("look", leased())]);
    let said = server_of_another.blob().acquire(later()).await;
    assert_eq!(duty(&said), Duty::Unshared);
    for server in [server, server_of_another] {
        server.played();
        assert_eq!(beside(&server), [""; 0]);
    }
}

#[tokio::test]
async fn whoever_comes_to_control_or_leaves_gives_the_sibling_back_once() {
    let hot = || {
        vec![
            ("look", leased()),
            ("look", marked("available")),
            ("acquire", acquired()),
        ]
    };
    let control = vec![
        ("look", free()),
        ("acquire", acquired()),
        ("metadata", done()),
    ];
    let server = Server::start([hot(), control, vec![("release", done())]].concat());
    let blob = standby(&server);
    assert_eq!(duty(&blob.acquire(later()).await), Duty::Hot);
    blob.acquire(later()).await.expect("control");
    // In the background: nothing waits for it, and on this runtime it has not even been sent yet.
    assert_eq!(server.seen().len(), 6);
    server.comes("release").await;
    server.played();
    blob.leave(later()).await;
    assert_eq!(beside(&server), ["look", "acquire", "release"]);
    let id = server.of("acquire")[0]
        .header("x-ms-proposed-lease-id")
        .to_owned();
    assert_eq!(server.of("release")[0].header("x-ms-lease-id"), id);
    // What was given back is not leased again under its id: the release may come late.
    server.then([vec![("release", done())], hot()].concat());
    blob.release(later()).await.expect("released");
    assert_eq!(duty(&blob.acquire(later()).await), Duty::Hot);
    server.played();
    let again = server.of("acquire").pop().expect("one");
    assert_ne!(again.header("x-ms-proposed-lease-id"), id);

    let server = Server::start([hot(), vec![("release", done())]].concat());
    let blob = standby(&server);
    assert_eq!(duty(&blob.acquire(later()).await), Duty::Hot);
    blob.leave(later()).await;
    blob.leave(later()).await;
    server.played();
}

#[tokio::test]
async fn a_lease_whose_reply_was_lost_is_asked_for_again_under_the_same_id_or_given_back() {
    let server = Server::start(vec![
        ("look", leased()),
        ("look", marked("available")),
        ("acquire", lost()),
        ("release", done()),
    ]);
    let blob = standby(&server);
    assert_eq!(duty(&blob.acquire(later()).await), Duty::Unshared);
    blob.leave(later()).await;
    server.played();
    assert_eq!(
        server.of("release")[0].header("x-ms-lease-id"),
        server.of("acquire")[0].header("x-ms-proposed-lease-id")
    );
}

#[tokio::test]
async fn what_the_service_refuses_is_asked_once_and_then_each_looks_for_itself() {
    let denied = || error(403, "AuthorizationPermissionMismatch");
    let missing = || error(404, "BlobNotFound");
    for (script, create) in [
        (vec![("look", denied())], true),
        (vec![("look", missing()), ("create", denied())], true),
        (
            vec![
                ("look", missing()),
                ("create", error(409, "BlobImmutableDueToPolicy")),
            ],
            true,
        ),
        (
            vec![("look", marked("available")), ("acquire", denied())],
            true,
        ),
        (
            vec![
                ("look", marked("available")),
                ("acquire", error(409, "FeatureNotSupported")),
            ],
            true,
        ),
        (vec![("look", missing())], false),
        // Somebody's blob, and somebody's lock, whatever its name.
        (vec![("look", free())], true),
        (
            vec![("look", marked("leased").meta("trafficcop_token", "3"))],
            true,
        ),
    ] {
        let asked = script.len();
        let server = Server::start([vec![("look", leased())], script].concat());
        let config = Config {
            create,
            ..server.config()
        };
        let blob = Blob::open(config).expect("a store").with_hot_standby();
        assert_eq!(duty(&blob.acquire(later()).await), Duty::Unshared);
        server.then(vec![("look", leased()), ("look", leased())]);
        for _ in 0..2 {
            assert_eq!(duty(&blob.acquire(later()).await), Duty::Unshared);
        }
        blob.leave(later()).await;
        server.played();
        assert_eq!(beside(&server).len(), asked);
    }
}

#[tokio::test]
async fn a_sibling_that_another_made_meanwhile_is_looked_at_before_it_is_leased() {
    let server = Server::start(vec![
        ("look", leased()),
        ("look", error(404, "BlobNotFound")),
        ("create", error(409, "BlobAlreadyExists")),
        ("look", leased()),
        ("look", marked("leased")),
    ]);
    let blob = standby(&server);
    assert_eq!(duty(&blob.acquire(later()).await), Duty::Unshared);
    assert_eq!(duty(&blob.acquire(later()).await), Duty::Warm);
    server.played();
}

#[tokio::test]
async fn a_sibling_in_trouble_does_not_hold_up_the_looks_at_the_lock() {
    for trouble in [hang(), lost(), error(503, "ServerBusy"), answer(502)] {
        let server = Server::start(vec![
            ("look", leased()),
            ("look", trouble),
            ("look", leased()),
            ("look", leased()),
        ]);
        let blob = standby(&server);
        let begun = Instant::now();
        for _ in 0..3 {
            assert_eq!(duty(&blob.acquire(later()).await), Duty::Unshared);
        }
        // An exchange may take five seconds; this one may not.
        let took = Instant::now().since(begun);
        assert!(took < Duration::from_secs(5), "{took:?}");
        server.played();
        assert_eq!(beside(&server), ["look"]);
    }
    // Nor past the end of the attempt.
    let server = Server::start(vec![("look", leased()), ("look", hang())]);
    let limit = Instant::now() + Duration::from_millis(600);
    let said = standby(&server).acquire(limit).await;
    assert_eq!(duty(&said), Duty::Unshared, "what was seen is told");
}

#[tokio::test]
async fn where_there_can_be_no_sibling_nothing_is_asked() {
    let server = Server::start(vec![("look", leased())]);
    let name = format!("locks/{}", "x".repeat(1017));
    let config = Config {
        target: Target::parse(&name).expect("a target"),
        ..server.config()
    };
    let blob = Blob::open(config).expect("a store").with_hot_standby();
    assert_eq!(duty(&blob.acquire(later()).await), Duty::Unshared);
    server.played();
}

#[tokio::test]
async fn a_sibling_is_no_lock() {
    let server = Server::start(vec![("look", marked("available"))]);
    let said = server.blob().acquire(later()).await.expect_err("no lock");
    let (why, denied) = fatal(&said);
    assert!(!denied && why.contains("trafficcop_standby_of"), "{why}");
    server.played();
}
