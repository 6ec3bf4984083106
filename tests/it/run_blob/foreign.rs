//! Other programs' blobs: leases without an end, and data.

use nix::sys::signal::Signal;

use super::{STRANGER, Stage};
use crate::support::azurite::{azurite, connection_string};
use crate::support::blob::Blob;
use crate::support::instance::{Ended, Finished, Run};
use crate::support::journal::What;
use crate::support::proxy::{Call, Fate, Proxy};

/// Runs an operator's command on the stage's container or blob.
fn command<'a>(stage: &'a Stage, verb: &str, blob: &str) -> Run<'a> {
    let credential = connection_string(azurite().port);
    let run = stage
        .scene
        .verb(verb)
        .env("AZURE_STORAGE_CONNECTION_STRING", credential);
    run.args(["--blob", blob])
}

fn warnings(finished: &Finished, words: &str) -> usize {
    let lines = finished.stderr.lines();
    lines
        .filter(|line| line.contains("warning: ") && line.contains(words))
        .count()
}

#[test]
fn lease_without_an_end_is_reported_as_another_programs() {
    let stage = Stage::new("foreign-endless");
    let held = stage
        .run(azurite().port)
        .args(["--identity", "gone"])
        .shell("true")
        .finish();
    assert_eq!(held.ended, Ended::Code(0), "{held:?}");
    stage.blob.acquire(STRANGER, -1);
    let endless =
        "no instance gets control until 'trafficcop break --blob foreign-endless/singleton' ends";

    let mut standby = stage.instance(azurite().port, "one", &["--poll", "200ms"], &[]);
    standby.await_log(endless);
    let name = &stage.blob.name;
    let status = command(&stage, "status", name).finish();
    assert!(status.stdout.contains(endless), "{status:?}");
    assert!(!status.stdout.contains("gone"), "{status:?}");
    let json = command(&stage, "status", name).arg("--json").finish();
    assert!(
        json.stdout
            .contains("\"holder\":null,\"host\":null,\"pid\":null"),
        "{json:?}"
    );
    let doctor = command(&stage, "doctor", name).finish();
    assert!(
        doctor.stdout.contains(endless) && doctor.ended == Ended::Code(1),
        "{doctor:?}"
    );
    // The list includes a blob without a record.
    let other = Blob::named("foreign-endless/other");
    other.create(&[]);
    other.acquire(STRANGER, -1);
    let list = command(&stage, "list", "foreign-endless").finish();
    assert!(list.stdout.contains("foreign-endless/other"), "{list:?}");

    let broken = command(&stage, "break", name)
        .args(["--yes", "--period", "0"])
        .finish();
    assert!(
        broken.stdout.contains("belongs to another program"),
        "{broken:?}"
    );
    assert!(!broken.stdout.contains("kill "), "{broken:?}");
    stage.scene.journal.await_tag(What::Beat, "one");
    stage.let_end("one");
    assert_eq!(standby.wait(), Ended::Code(0), "{}", standby.stderr());
    let said = standby.stderr();
    assert_eq!(said.matches(endless).count(), 1, "{said}");
    assert!(
        said.contains("warning: standing by: the lease is another program's"),
        "{said}"
    );
}

#[test]
fn finite_lease_of_another_program_names_the_last_recorded_holder() {
    let stage = Stage::new("foreign-finite");
    let held = stage
        .run(azurite().port)
        .args(["--identity", "gone"])
        .shell("true")
        .finish();
    assert_eq!(held.ended, Ended::Code(0), "{held:?}");
    // The lease is free, and its acquire is refused once.
    let proxy = Proxy::before(azurite().port);
    proxy.next(Call::Acquire, Fate::Refuse(503, "ServerBusy"));
    let mut standby = stage.instance(proxy.port, "one", &["--poll", "5s"], &[]);
    proxy.await_seen("an acquire", |seen| seen.call == Call::Acquire);
    stage.blob.acquire(STRANGER, 60);
    standby.await_log("standing by: the lease is another program's; last recorded holder: gone");
    standby.signal(Signal::SIGTERM);
    standby.wait();
}

#[test]
fn data_in_the_blob_is_warned_of_once_and_zeros_are_not_data() {
    let stage = Stage::new("foreign-data");
    let words = "bytes of data: other writers are refused while the lock is held";
    let named = |name: &str| Blob::named(&format!("foreign-data/{name}"));
    let [data, empty, zeros, pages] = ["data", "empty", "zeros", "pages"].map(named);
    data.create_with_data("a,b,c,d\n");
    empty.create_with_data("");
    zeros.create_page_blob(512);
    pages.create_page_blob(1024);
    pages.write_page();
    for (blob, expected) in [(data, 1), (empty, 0), (zeros, 0), (pages, 1)] {
        let name = blob.name;
        let run = stage.scene.run().env(
            "AZURE_STORAGE_CONNECTION_STRING",
            connection_string(azurite().port),
        );
        let finished = run
            .args(["--blob", &name, "--lease", "15s"])
            .shell("true")
            .finish();
        assert_eq!(finished.ended, Ended::Code(0), "{finished:?}");
        assert_eq!(warnings(&finished, words), expected, "{name}: {finished:?}");
        let doctor = command(&stage, "doctor", &name).finish();
        assert_eq!(
            doctor.stdout.contains(words),
            expected == 1,
            "{name}: {doctor:?}"
        );
    }
}
