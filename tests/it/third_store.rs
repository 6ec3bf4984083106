//! A store that is neither a blob nor a file: with one file in `lease/` and one line where locks
//! are parsed, the whole program works with it. It is a script (see `lease/scripted.rs`), only in
//! builds with debug assertions.

use crate::support::instance::Ended;
use crate::support::scene::Scene;

/// Returns a scene with this script, and the name of its lock.
fn scripted(script: &str) -> (Scene, String) {
    let scene = Scene::new();
    std::fs::write(scene.path("script"), script).expect("the script");
    let lock = format!("scripted:{}", scene.path("script").display());
    (scene, lock)
}

fn asked(scene: &Scene) -> Vec<String> {
    let text = std::fs::read_to_string(scene.path("script.asked")).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

#[test]
fn a_command_runs_under_it_with_its_name_and_its_token_and_gives_it_back() {
    let (scene, lock) = scripted("acquire held web9\nacquire granted 7\n");
    let run = scene.verb("run").args(["--file", &lock, "--poll", "200ms"]);
    let script = "echo \"$TRAFFICCOP_TOKEN $TRAFFICCOP_LOCK $TRAFFICCOP_SLOT\"; exit 3";
    let finished = run.shell(script).finish();
    assert_eq!(finished.ended, Ended::Code(3), "{finished:?}");
    assert_eq!(finished.stdout, format!("7 {lock} 0\n"));
    assert!(finished.stderr.contains("web9"), "{finished:?}");
    assert_eq!(asked(&scene), ["acquire", "acquire", "release"]);
}

#[test]
fn lost_lease_ends_the_command_without_a_release() {
    let (scene, lock) = scripted("acquire granted 7\nrenew lost taken away\n");
    scene.excuse_confession("the store takes the lease away");
    let run = scene.verb("run").args(["--file", &lock, "--lease", "15s"]);
    let finished = run
        .args(["--if-lost", "exit"])
        .shell("while :; do sleep 0.05; done")
        .finish();
    // The store does not say for how long it would have kept others out.
    assert_eq!(finished.ended, Ended::Code(71), "{finished:?}");
    assert!(finished.stderr.contains("taken away"), "{finished:?}");
    assert_eq!(asked(&scene), ["acquire", "renew"]);
}

#[test]
fn one_of_its_slots_is_had() {
    let (scene, lock) = scripted("");
    for slot in 0..2 {
        let script = format!("acquire granted 1{slot}\n");
        std::fs::write(scene.path(&format!("script.{slot}")), script).expect("a script");
    }
    let run = scene.verb("run").args(["--file", &lock, "--slots", "2"]);
    let finished = run
        .shell("echo \"$TRAFFICCOP_TOKEN $TRAFFICCOP_SLOT\"")
        .finish();
    let said = &*finished.stdout;
    assert!(["10 0\n", "11 1\n"].contains(&said), "{finished:?}");
}

#[test]
fn third_store_supports_status_break_and_reset() {
    let (scene, lock) = scripted("look held web9\n");
    let verb = |verb| scene.verb(verb).args(["--file", &lock]);
    let status = verb("status").finish();
    assert_eq!(status.ended, Ended::Code(0), "{status:?}");
    assert!(status.stdout.contains("web9"), "{status:?}");
    let broken = verb("break").args(["--period", "5", "--yes"]).finish();
    assert_eq!(broken.ended, Ended::Code(0), "{broken:?}");
    let told = "another instance can have control in 5 seconds";
    assert!(broken.stdout.contains(told), "{broken:?}");
    assert_eq!(asked(&scene), ["look", "look", "break"]);
    let reset = verb("reset").args(["--all", "--yes"]).finish();
    assert!(reset.stdout.contains("no result"), "{reset:?}");
}
