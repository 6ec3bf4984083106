//! Results of `--once` tasks in the metadata.

use std::time::Duration;

use trafficcop_core::{Exit, Failure, Outcome};
use trafficcop_lease::blob::Blob;
use trafficcop_lease::once::Task;
use trafficcop_lease::{LeaseStore, RecordUpdate};

use super::server::*;

const SUCCESS: Outcome = Outcome {
    exit: Exit::Code(0),
    over: true,
};
const DONE: &str = r#"[{"key":"v7","over":{"exit":0,"token":4,"by":"box-2","at":"then"}}]"#;
const DONE_AT_10: &str = concat!(
    r#"[{"key":"v7","periods":true,"over":{"period":1763719200,"#,
    r#""exit":0,"token":4,"by":"box-2","at":"then"}}]"#
);

fn task(per: Option<u64>) -> Task {
    Task {
        key: "v7".into(),
        per: per.map(Duration::from_secs),
    }
}

/// Takes control with the three requests of a task, then plays this script.
async fn in_control(script: Vec<(&'static str, Reply)>) -> (Server, Blob) {
    let server = Server::start(vec![
        ("look", free()),
        ("acquire", acquired()),
        ("metadata", done()),
    ]);
    let blob = server.blob_for(task(None));
    blob.acquire(later()).await.expect("control");
    server.then(script);
    (server, blob)
}

#[tokio::test]
async fn finished_task_is_not_competed_for() {
    for view in [free(), leased()] {
        let server = Server::start(vec![(
            "look",
            view.meta("trafficcop_once", DONE)
                .meta("trafficcop_token", "4"),
        )]);
        let blob = server.blob_for(task(None));
        match blob.acquire(later()).await {
            Err(Failure::AlreadyDone(result)) => {
                assert_eq!((result.status, &*result.holder), (0, "box-2"))
            }
            other => panic!("{other:?}"),
        }
        server.played();
    }
}

#[tokio::test]
async fn record_is_reread_under_the_lease_if_it_changed() {
    let written = seen("leased", "\"9\"")
        .meta("trafficcop_once", DONE)
        .meta("trafficcop_token", "4");
    let server = Server::start(vec![
        (
            "look",
            seen("available", "\"0\"").meta("trafficcop_token", "3"),
        ),
        ("acquire", acquired()),
        ("look", written),
        ("release", done()),
    ]);
    let blob = server.blob_for(task(None));
    let said = blob.acquire(later()).await;
    assert!(matches!(said, Err(Failure::AlreadyDone(_))), "{said:?}");
    server.played();
    assert!(server.of("metadata").is_empty(), "no token is spent");
}

#[tokio::test]
async fn the_slot_is_the_one_of_the_service_s_date() {
    for (date, over) in [
        ("Fri, 21 Nov 2025 10:59:59 GMT", true),
        ("Fri, 21 Nov 2025 11:00:00 GMT", false),
    ] {
        let view = free()
            .with("date", date)
            .meta("trafficcop_once", DONE_AT_10)
            .meta("trafficcop_token", "4");
        let server = Server::start(vec![("look", view)]);
        if !over {
            server.then(vec![
                ("acquire", acquired().with("date", date)),
                ("metadata", done()),
            ]);
        }
        let blob = server.blob_for(task(Some(3600)));
        let said = blob.acquire(later()).await;
        assert_eq!(
            matches!(said, Err(Failure::AlreadyDone(_))),
            over,
            "{date}: {said:?}"
        );
        assert_eq!(said.is_ok(), !over, "{date}: {said:?}");
        let period = (!over).then(|| "2025-11-21T11:00:00Z".to_owned());
        assert_eq!(blob.info().period.filter(|_| !over), period);
        server.played();
    }
}

#[tokio::test]
async fn answer_without_a_date_runs_nothing() {
    let server = Server::start(vec![
        ("look", free()),
        ("acquire", acquired()),
        ("release", done()),
    ]);
    let blob = server.blob_for(task(Some(3600)));
    let said = blob.acquire(later()).await;
    assert!(
        matches!(&said, Err(Failure::Transient { why, .. }) if why.contains("Date")),
        "{said:?}"
    );
    server.played();
}

#[tokio::test]
async fn result_is_written_only_over_an_unchanged_record() {
    let (server, blob) = in_control(vec![("metadata", done())]).await;
    blob.update_record(RecordUpdate::Outcome(SUCCESS), later())
        .await
        .expect("recorded");
    server.played();
    let writes = server.of("metadata");
    assert_eq!(
        writes[1].header("if-match"),
        "\"2\"",
        "what the write before it left"
    );
    assert_ne!(writes[1].header("x-ms-lease-id"), "");
    let result = writes[1].header("x-ms-meta-trafficcop_once");
    assert!(
        result.contains("\"key\":\"v7\"") && result.contains("\"exit\":0"),
        "{result}"
    );
}

#[tokio::test]
async fn an_announcement_that_is_late_cannot_undo_it() {
    let (server, blob) = in_control(vec![("metadata", done())]).await;
    blob.update_record(
        RecordUpdate::Draining {
            health: String::new(),
        },
        later(),
    )
    .await
    .expect("announced");
    server.played();
    assert_eq!(server.of("metadata")[1].header("if-match"), "\"2\"");
}

#[tokio::test]
async fn a_result_whose_reply_was_lost_is_recognised() {
    let (server, blob) = in_control(vec![
        ("metadata", lost()),
        ("metadata", error(412, "ConditionNotMet")),
        ("look", as_written()),
    ])
    .await;
    let said = blob
        .update_record(RecordUpdate::Outcome(SUCCESS), later())
        .await;
    assert!(matches!(said, Err(Failure::Transient { .. })), "{said:?}");
    blob.update_record(RecordUpdate::Outcome(SUCCESS), later())
        .await
        .expect("it stands there");
    server.played();
}

/// The first write was answered, but changed nothing: only a copy of this machine knows the lease
/// id.
#[tokio::test]
async fn result_of_a_copy_of_this_machine_is_not_mistaken_for_ones_own() {
    let (server, blob) = in_control(vec![
        ("metadata", error(412, "ConditionNotMet")),
        ("look", as_written()),
    ])
    .await;
    let said = blob
        .update_record(RecordUpdate::Outcome(SUCCESS), later())
        .await;
    assert!(
        matches!(&said, Err(Failure::Lost { until: None, why }) if why.contains("a copy of this machine")),
        "{said:?}"
    );
    server.played();
}

#[tokio::test]
async fn a_condition_that_an_announcement_has_changed_is_not_a_result() {
    let (server, blob) = in_control(vec![
        ("metadata", error(412, "ConditionNotMet")),
        (
            "look",
            seen("leased", "\"7\"")
                .meta("trafficcop_token", "1")
                .meta("colour", "red"),
        ),
        ("metadata", done()),
    ])
    .await;
    blob.update_record(RecordUpdate::Outcome(SUCCESS), later())
        .await
        .expect("recorded");
    server.played();
    let writes = server.of("metadata");
    assert_eq!(writes[2].header("if-match"), "\"7\"");
    assert_eq!(writes[2].header("x-ms-meta-colour"), "red");
}

#[tokio::test]
async fn unrecorded_result_is_never_reported_as_recorded() {
    for (reply, is_lost) in [
        (error(412, "LeaseLost"), true),
        (error(412, "LeaseIdMismatchWithBlobOperation"), true),
        (error(404, "BlobNotFound"), true),
        (error(503, "ServerBusy"), false),
        (error(403, "AuthorizationFailure"), false),
        (page(200), false),
    ] {
        let (server, blob) = in_control(vec![("metadata", reply)]).await;
        let said = blob
            .update_record(RecordUpdate::Outcome(SUCCESS), later())
            .await
            .expect_err("not recorded");
        assert_eq!(
            matches!(said, Failure::Lost { until: None, .. }),
            is_lost,
            "{said:?}"
        );
        assert_eq!(
            matches!(said, Failure::Transient { .. }),
            !is_lost,
            "{said:?}"
        );
        server.played();
    }
}

#[tokio::test]
async fn a_store_without_a_task_keeps_results_and_records_none() {
    let server = Server::start(vec![
        (
            "look",
            free()
                .meta("trafficcop_once", DONE)
                .meta("trafficcop_token", "4"),
        ),
        ("acquire", acquired()),
        ("metadata", done()),
    ]);
    let blob = server.blob();
    assert_eq!(blob.acquire(later()).await.expect("control").token, 5);
    assert_eq!(
        server.of("metadata")[0].header("x-ms-meta-trafficcop_once"),
        DONE
    );
    let said = blob
        .update_record(RecordUpdate::Outcome(SUCCESS), later())
        .await;
    assert!(matches!(said, Err(Failure::Fatal { .. })), "{said:?}");
    server.played();
}
