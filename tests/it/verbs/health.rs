//! Reports of `status` and `watch` about a holder's command that hangs.

use std::fs::File;

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use super::{Place, assert_whole, said};
use crate::support::await_for;
use crate::support::azurite::azurite;
use crate::support::blob::Blob;
use crate::support::instance::Instance;
use crate::support::proxy::{Call, Fate, Proxy};
use crate::support::scene::Scene;

// A process may start more than a second late on a busy machine.
const PATIENT: [&str; 4] = ["--health-every", "3s", "--health-timeout", "3s"];

/// Starts a holder whose command ignores SIGTERM. Its health check fails once a file `sick` exists;
/// each check adds a line to `asked`.
fn asked(scene: &Scene, place: &Place, failures: &str) -> Instance {
    let script = format!(
        "echo >> {}; test ! -e {} || exit 3",
        scene.path("asked").display(),
        scene.path("sick").display()
    );
    let deaf = scene.path("deaf");
    let holder = place
        .verb(scene, "run")
        .args(["--identity", "web1", "--grace", "60s", "--health", &script])
        .args(PATIENT)
        .args(["--health-failures", failures, "--cooldown", "1h"])
        .shell(&format!(
            "trap '' TERM; : > '{}'; while :; do sleep 0.05; done",
            deaf.display()
        ))
        .start();
    await_for(
        "a deaf command",
        || deaf.exists().then_some(()),
        || holder.stderr(),
    );
    holder
}

/// Ends it with two TERMs; pending signals of one kind merge.
fn kill(holder: &mut Instance) {
    await_for(
        "its end",
        || {
            let ended = holder.ended().map(drop);
            if ended.is_none() {
                holder.signal(Signal::SIGTERM);
            }
            ended
        },
        String::new,
    );
}

fn await_asked(scene: &Scene, more: usize) {
    let times = || {
        let text = std::fs::read_to_string(scene.path("asked"));
        text.unwrap_or_default().lines().count()
    };
    let until = times() + more;
    await_for(
        "it to be asked",
        || (times() >= until).then_some(()),
        String::new,
    );
}

fn await_health(scene: &Scene, place: &Place, health: &Value) -> Value {
    await_for(
        &format!("health to be {health}"),
        || Some(place.status(scene)).filter(|told| told["health"] == *health),
        || place.status(scene).to_string(),
    )
}

/// Well, failing, well again, failing, hung; then free, without health.
fn as_status_tells_it(scene: &Scene, place: &Place) {
    let mut holder = asked(scene, place, "1000");
    await_asked(scene, 2);
    let well = place.status(scene);
    assert_eq!(
        (&well["health"], &well["health_cause"]),
        (&Value::Null, &Value::Null)
    );
    assert_whole(&well);
    let watch = place
        .verb(scene, "watch")
        .args(["--poll", "100ms", "--json"])
        .start();
    let lines = || -> Vec<Value> {
        let text = watch.stdout();
        let whole = text
            .split_inclusive('\n')
            .filter(|line| line.ends_with('\n'));
        let values = whole.map(|line| serde_json::from_str::<Value>(line).unwrap());
        values.map(|line| line["health"].clone()).collect()
    };
    let await_lines = |count: usize| {
        await_for(
            &format!("{count} lines"),
            || (lines().len() >= count).then_some(()),
            || watch.stdout(),
        );
    };
    await_lines(1);
    File::create(scene.path("sick")).unwrap();
    let failing = await_health(scene, place, &json!("failing"));
    assert_eq!(failing["health_cause"], "--health exited with status 3");
    assert_eq!(
        (&failing["state"], &failing["token"]),
        (&json!("held"), &json!(1))
    );
    assert_whole(&failing);
    let text = place.verb(scene, "status").finish();
    said(
        &text,
        0,
        &["  health    failing: --health exited with status 3\n"],
    );
    std::fs::remove_file(scene.path("sick")).unwrap();
    await_health(scene, place, &Value::Null);
    // One for each change.
    await_lines(3);
    assert_eq!(lines(), [Value::Null, json!("failing"), Value::Null]);
    kill(&mut holder);

    let mut holder = asked(scene, place, "2");
    File::create(scene.path("sick")).unwrap();
    let draining = place.await_state(scene, "draining");
    assert_eq!(draining["health"], "hung");
    let cause = "--health failed 2 times in a row; the last time it exited with status 3";
    assert_eq!(draining["health_cause"], cause);
    let text = place.verb(scene, "status").finish();
    said(
        &text,
        0,
        &["stopping", &format!("  health    hung: {cause}\n")],
    );
    kill(&mut holder);
    let free = place.status(scene);
    assert_eq!(
        (&free["state"], &free["health"]),
        (&json!("free"), &Value::Null)
    );
}

#[test]
fn status_of_a_file_whose_holder_s_command_hangs() {
    let scene = Scene::new();
    as_status_tells_it(&scene, &Place::file(&scene));
}

#[test]
fn status_of_a_blob_whose_holder_s_command_hangs() {
    let scene = Scene::new();
    as_status_tells_it(&scene, &Place::blob("status-health/one"));
}

#[test]
fn checks_that_fail_are_one_write_and_the_drain_s_reason_costs_none() {
    let scene = Scene::new();
    let proxy = Proxy::before(azurite().port);
    let blob = Blob::named("status-health/writes");
    blob.create(&[]);
    let place = Place::blob_at(&blob.name, proxy.port);
    let writes = || {
        let log = proxy.log();
        log.iter()
            .filter(|seen| seen.call == Call::SetMetadata)
            .count()
    };
    let mut holder = asked(&scene, &place, "4");
    await_asked(&scene, 2);
    assert_eq!(writes(), 1, "the tenure's beginning");
    // Done without an answer: the next write has the state of its time.
    proxy.next(Call::SetMetadata, Fate::LoseReply);
    File::create(scene.path("sick")).unwrap();
    let draining = place.await_state(&scene, "draining");
    assert_eq!(draining["health"], "hung");
    let told = proxy.log();
    let renewed = told.iter().filter(|seen| seen.call == Call::SetMetadata);
    // Failing; failing again because of the lost answer, and refused because it was done; then
    // after a look. The drain may meet that and be repeated.
    assert!((3..=6).contains(&renewed.count()), "{told:?}");
    kill(&mut holder);

    std::fs::remove_file(scene.path("sick")).unwrap();
    let before = writes();
    let mut holder = asked(&scene, &place, "4");
    await_asked(&scene, 2);
    File::create(scene.path("sick")).unwrap();
    place.await_state(&scene, "draining");
    assert_eq!(
        writes() - before,
        3,
        "its beginning, failing, and the drain"
    );
    kill(&mut holder);
}
