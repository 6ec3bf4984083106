//! The doorbell on a shared drive, for `run` and for a program.

use trafficcop::TrafficCop;

use super::*;
use crate::support::await_for;
use crate::support::bell::Bell;

const BELL: [&str; 5] = ["--shared", "--doorbell=127.0.0.1", "--poll", "1h", "-v"];

#[test]
fn doorbell_starts_the_next_command_despite_a_poll_of_an_hour() {
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
    second.await_log("hears the holder's doorbell, 0 standbys before this one");
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
    // It is written after the version is made, and does not delay the command.
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
    // This runtime serves the bell, so it must not be blocked.
    let listens = tokio::task::spawn_blocking(move || bell.await_listener());
    listens.await.expect("not cancelled");
    drop(std::fs::File::create(&done));
    let guard = cop.acquired().await.expect("control");
    assert_eq!(holder.wait(), Ended::Code(0), "{}", holder.stderr());
    let run = scene.run().arg("--file").arg(scene.lock()).args(BELL);
    let standby = run.journalist("standby", &["--beats", "1"]).start();
    let hears = move || {
        standby.await_log("hears the holder's doorbell, 0 standbys before this one");
        standby
    };
    let hears = tokio::task::spawn_blocking(hears);
    let mut standby = hears.await.expect("not cancelled");
    drop(guard);
    cop.stop().await.expect("given back");
    assert_eq!(standby.wait(), Ended::Code(0), "{}", standby.stderr());
}

/// A stopped holder's bell is silent; only the lease tells when it is over.
#[test]
fn doorbell_of_a_stopped_holder_delays_no_take_over() {
    let Some(drive) = Drive::new() else { return };
    let (scene, here, there) = (Scene::new(), drive.mount(), drive.mount());
    let bell = ["--doorbell=127.0.0.1", "-v"];
    let one = instance(&scene, &here.path("lock"), "one", &bell, &[]);
    scene.journal.await_tag(What::Beat, "one");
    drive.await_renewal("lock");
    // It hears the bell early between two renewals.
    let two = instance(&scene, &there.path("lock"), "two", &bell, &[]);
    two.await_log("hears the holder's doorbell");
    drive.await_renewal("lock");
    let renewed = Instant::now();
    // Most of the time to the next renewal: a standby that waited for the bell's silence would see
    // this one that much later.
    std::thread::sleep(LEASE / 5);
    one.freeze();
    let first = scene.journal.await_tag(What::Start, "two");
    let latest = renewed + LEASE + POLL * 2;
    assert!(first.at < latest.as_nanos(), "{}", two.stderr());
    one.signal(Signal::SIGCONT);
    one.await_log("standing by: two is in control");
    terminate(one);
    terminate(two);
    assert_eq!(scene.journal.judge(), ["one", "two"]);
}
