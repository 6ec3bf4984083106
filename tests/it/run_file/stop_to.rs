//! `--stop-to` and `--stop-signal none`.

use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use trafficcop_guardian::containment::Pidns;

use crate::support::await_for;
use crate::support::instance::{Ended, Instance};
use crate::support::scene::Scene;

/// A worker's loop: a piece dies of SIGTERM, the loop ends after it.
const LOOP: &str = r#"trap 'stop=1' TERM
while [ -z "$stop" ] && "$BIN" check; do
    sh -c 'echo Starting; sleep 0.5; echo Finished'
done
echo safe"#;

fn start(scene: &Scene, options: &[&str], script: &str) -> Instance {
    let binary = env!("CARGO_BIN_EXE_trafficcop");
    let run = scene.run_on_file().env("BIN", binary).args(options);
    run.shell(script).start()
}

fn await_output(of: &Instance, words: &str) {
    let seen = || of.stdout().contains(words).then_some(());
    await_for(words, seen, || of.stdout() + &of.stderr());
}

#[test]
fn piece_in_hand_is_finished_where_only_the_main_process_is_signalled() {
    for killed in [false, true] {
        let scene = Scene::new();
        let mut one = start(&scene, &["--stop-to", "main", "--grace", "30s"], LOOP);
        await_output(&one, "Starting");
        // By the supervisor, or by the guardian of a dead one.
        one.signal(if killed {
            Signal::SIGKILL
        } else {
            Signal::SIGTERM
        });
        await_output(&one, "safe");
        let said = one.stdout();
        let count = |word: &str| said.matches(word).count();
        assert_eq!(count("Starting"), count("Finished"), "{said}");
        if !killed {
            assert_eq!(one.wait(), Ended::Code(0), "{}", one.stderr());
        }
        scene.assert_no_tree();
    }
}

#[test]
fn deaf_tree_dies_at_the_end_of_the_grace_for_every_stop_to() {
    for options in [["--stop-to", "main"], ["--stop-signal", "none"]] {
        let scene = Scene::new();
        let script = "trap '' TERM; sh -c \"trap '' TERM; echo deaf; sleep 100\"";
        let mut one = start(&scene, &[options[0], options[1], "--grace", "1s"], script);
        await_output(&one, "deaf");
        one.signal(Signal::SIGTERM);
        assert_eq!(one.wait(), Ended::Died(Signal::SIGKILL), "{}", one.stderr());
        scene.assert_no_tree();
    }
}

#[test]
fn processes_left_by_a_signalled_main_process_are_signalled_when_it_has_ended() {
    let scene = Scene::new();
    let script = "trap 'exit 0' TERM; (trap 'echo told; exit' TERM; echo ready; while :; do sleep 0.1; done) & wait";
    let mut one = start(&scene, &["--stop-to", "main", "--grace", "30s"], script);
    await_output(&one, "ready");
    one.signal(Signal::SIGTERM);
    await_output(&one, "told");
    assert_eq!(one.wait(), Ended::Code(0), "{}", one.stderr());
}

#[test]
fn command_without_a_stop_signal_asks_and_is_never_signalled() {
    let scene = Scene::new();
    let script = r#"trap 'echo signalled' TERM INT
until "$BIN" check --wait 100ms; do break; done
while "$BIN" check --wait 100ms; do echo works; done
echo safe"#;
    let mut one = start(&scene, &["--stop-signal", "none", "--grace", "30s"], script);
    await_output(&one, "works");
    one.signal(Signal::SIGTERM);
    await_output(&one, "safe");
    assert_eq!(one.wait(), Ended::Code(0), "{}", one.stderr());
    assert!(!one.stdout().contains("signalled"), "{}", one.stdout());
}

/// The guardian gets no SIGCHLD for them, and its supervisor looks only every three seconds.
#[test]
fn lock_is_given_back_as_soon_as_the_processes_of_a_namespace_have_ended() {
    if let Err(why) = Pidns::available() {
        return println!("CANNOT RUN HERE: no PID namespace is available: {why}");
    }
    let scene = Scene::new();
    // The child ends a moment after the main process.
    let script = r#"sh -c "trap 'sleep 0.3; exit' TERM; echo ready; while :; do sleep 0.1; done" & exec sleep 600"#;
    // A busy machine may be late, but not each time.
    let mut quick = 0;
    for _ in 0..5 {
        let mut instance = start(&scene, &["--contain", "pidns", "--grace", "20s"], script);
        await_output(&instance, "ready");
        let asked = Instant::now();
        instance.signal(Signal::SIGTERM);
        instance.wait();
        quick += u32::from(asked.elapsed() < Duration::from_secs(2));
    }
    assert!(quick >= 3, "{quick} of 5");
}
