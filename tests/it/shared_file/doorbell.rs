//! The doorbell of a lock on a shared drive: for an instance of `run` and for a program.

use std::time::Duration;

use trafficcop::TrafficCop;

use crate::support::await_for;
use crate::support::bell::Bell;
use crate::support::instance::Ended;
use crate::support::journal::What;
use crate::support::scene::Scene;

const BELL: [&str; 5] = ["--shared", "--doorbell=127.0.0.1", "--poll", "1h", "-v"];

#[test]
fn the_next_command_is_started_although_nobody_would_have_looked_for_an_hour() {
    let scene = Scene::new();
    let journal = &scene.journal;
    let instance = |name: &'static str| {
        let done = scene.path(&format!("{name}.done"));
        let words = ["--until", done.to_str().expect("text")];
        let run = scene.run().arg("--file").arg(scene.lock());
        let run = run.args(["--identity", name]).args(BELL);
        run.journalist(name, &words).start()
    };
    let let_end = |name: &str| drop(std::fs::File::create(scene.path(&format!("{name}.done"))));
    let mut first = instance("first");
    journal.await_tag(What::Beat, "first");
    let mut second = instance("second");
    second.await_log("hears the holder's doorbell, 0 before us");
    let_end("first");
    assert_eq!(first.wait(), Ended::Code(0), "{}", first.stderr());
    journal.await_tag(What::Beat, "second");
    let_end("second");
    assert_eq!(second.wait(), Ended::Code(0), "{}", second.stderr());
    assert_eq!(journal.judge(), ["first", "second"]);
}

#[tokio::test]
async fn a_program_hears_it_and_rings_too() {
    let scene = Scene::new();
    let done = scene.path("done");
    let words = ["--until", done.to_str().expect("text")];
    let run = scene.run().arg("--file").arg(scene.lock()).args(BELL);
    let mut holder = run.journalist("holder", &words).start();
    scene.journal.await_tag(What::Beat, "holder");
    // Written behind the making of the version, and the command is not kept waiting for it.
    let rings_at = || {
        let record = std::fs::read_to_string(scene.lock()).ok()?;
        let record: serde_json::Value = serde_json::from_str(record.lines().nth(1)?).ok()?;
        Some(Bell::parse(record["doorbell"].as_str()?))
    };
    let bell = await_for("the holder's doorbell", rings_at, || holder.stderr());
    let cop = TrafficCop::file(scene.lock()).expect("a lock");
    let cop = cop
        .poll(Duration::from_secs(3600))
        .doorbell(Some(([127, 0, 0, 1], 0).into()))
        .start();
    let cop = cop.await.expect("competes");
    // It listens on this runtime, which must not be blocked meanwhile.
    let listens = tokio::task::spawn_blocking(move || bell.await_listener());
    listens.await.expect("not cancelled");
    drop(std::fs::File::create(&done));
    let guard = cop.acquired().await.expect("control");
    assert_eq!(holder.wait(), Ended::Code(0), "{}", holder.stderr());
    let run = scene.run().arg("--file").arg(scene.lock()).args(BELL);
    let standby = run.journalist("standby", &["--beats", "1"]).start();
    // The bell is rung on this runtime, which must not be blocked meanwhile.
    let hears = move || {
        standby.await_log("hears the holder's doorbell, 0 before us");
        standby
    };
    let hears = tokio::task::spawn_blocking(hears);
    let mut standby = hears.await.expect("not cancelled");
    drop(guard);
    cop.stop().await.expect("given back");
    assert_eq!(standby.wait(), Ended::Code(0), "{}", standby.stderr());
}
