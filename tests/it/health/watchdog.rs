//! `--watchdog`: messages of the command, and their absence.

use std::fs::File;
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::time::Duration;

use nix::sys::signal::Signal;

use super::{COOL, await_next, events, signal, stop, timeline};
use crate::support::azurite::{azurite, connection_string};
use crate::support::blob::Blob;
use crate::support::instance::{Ended, Instance, Run};
use crate::support::journal::What;
use crate::support::scene::Scene;
use crate::support::{await_for, processes};

/// Starts a command that feeds its watchdog until a file exists. Its limit is three seconds: a busy
/// machine may not schedule it for more than one.
fn fed<'a>(scene: &'a Scene, run: Run<'a>, name: &str) -> Instance {
    let deadlock = scene.path(&format!("{name}.deadlock"));
    run.args(["--identity", name, "--watchdog", "3s", "--event-log"])
        .arg(events(scene))
        .args(COOL)
        .journalist(
            name,
            &["--watchdog", "--deadlock", deadlock.to_str().unwrap()],
        )
        .start()
}

/// Checks that control went from the hanging `one` to `two`, and the timeline has the cause.
fn control_moved(scene: &Scene, mut one: Instance, mut two: Instance) {
    scene.journal.await_tag(What::Beat, "two");
    one.await_log("hung: no WATCHDOG=1 for 3s");
    one.await_log("cooling down");
    one.assert_running();
    scene.journal.await_sign_of_life("two");
    stop(&mut two);
    stop(&mut one);
    scene.await_nobody();
    assert_eq!(scene.journal.judge(), ["one", "two"]);
    let (text, picture) = timeline(scene);
    assert!(text.ends_with("no overlap\n"), "{text}");
    let why = "given back: hung: no WATCHDOG=1 for 3s";
    assert_eq!(text.matches(why).count(), 1, "{text}");
    assert_eq!(text.matches("its command at").count(), 1, "{text}");
    assert!(picture.contains(">the command hangs<"), "the legend");
    assert!(picture.contains("class=\"hung\""), "the mark");
}

#[test]
fn a_command_that_was_stopped_loses_control_to_another_instance() {
    let scene = Scene::new();
    let one = fed(&scene, scene.run_on_file(), "one");
    let first = scene.journal.await_tag(What::Beat, "one");
    let two = fed(&scene, scene.run_on_file(), "two");
    two.await_log("standing by");
    signal(first.pid, Signal::SIGSTOP);
    control_moved(&scene, one, two);
}

#[test]
fn a_command_that_waits_for_itself_loses_control_of_a_blob() {
    let scene = Scene::new();
    let blob = Blob::named("health/singleton");
    let on_blob = || {
        scene
            .run()
            .env(
                "AZURE_STORAGE_CONNECTION_STRING",
                connection_string(azurite().port),
            )
            .args(["--lease", "15s", "--poll", "500ms", "--blob", &blob.name])
    };
    let one = fed(&scene, on_blob(), "one");
    scene.journal.await_tag(What::Beat, "one");
    let two = fed(&scene, on_blob(), "two");
    two.await_log("standing by");
    File::create(scene.path("one.deadlock")).unwrap();
    control_moved(&scene, one, two);
}

#[test]
fn a_supervisor_that_was_stopped_does_not_take_that_for_its_command_s_silence() {
    let scene = Scene::new();
    let mut one = fed(&scene, scene.run_on_file(), "one");
    let first = scene.journal.await_tag(What::Beat, "one");
    let guardian = one.guardian();
    let beats = |after: u64| {
        scene
            .journal
            .await_line("beats for longer than the watchdog has", |line| {
                line.tag == "one" && line.at > after
            })
            .at
    };
    let now = || trafficcop::Instant::now().as_nanos();
    let twice_its_time = 6_000_000_000;
    // The supervisor alone; the command continues.
    one.freeze();
    beats(now() + twice_its_time);
    one.signal(Signal::SIGCONT);
    beats(now() + twice_its_time);
    // All processes: as on a machine in suspend.
    for pid in [one.pid(), guardian, first.pid] {
        signal(pid, Signal::SIGSTOP);
        processes::await_stopped(pid);
    }
    let until = now() + twice_its_time;
    await_for(
        "time to pass",
        || (now() > until).then_some(()),
        String::new,
    );
    for pid in [first.pid, guardian, one.pid()] {
        signal(pid, Signal::SIGCONT);
    }
    beats(now() + twice_its_time);
    assert!(!one.stderr().contains("hung:"), "{}", one.stderr());
    stop(&mut one);
    assert_eq!(scene.journal.tenures().len(), 1);
}

#[test]
fn with_restart_a_command_that_hangs_is_started_again_and_control_is_kept() {
    let scene = Scene::new();
    let run = scene
        .run_on_file()
        .args(["--restart", "on-failure"])
        // It exits 0 after the stop signal, and has still failed.
        .args(["--grace", "1m"]);
    let starts = scene.path("starts");
    let script = format!(
        "trap 'exit 0' TERM; echo >> {}; while :; do sleep 0.05; done",
        starts.display()
    );
    let mut one = run
        .args(["--watchdog", "1s", "--watchdog-start", "1s"])
        .shell(&script)
        .start();
    super::await_lines(&starts, 2);
    one.await_log("the command is started again");
    assert!(!one.stderr().contains("token 2"), "{}", one.stderr());
    stop(&mut one);
}

/// Prints the address of its socket, and runs on.
fn telling(scene: &Scene) -> String {
    let found = scene.path("found");
    format!(
        "echo \"$NOTIFY_SOCKET $WATCHDOG_USEC $WATCHDOG_PID $$\" > {}; while :; do sleep 0.05; done",
        found.display()
    )
}

fn told(scene: &Scene) -> Vec<String> {
    await_for(
        "the command to tell",
        || {
            let text = std::fs::read_to_string(scene.path("found")).ok()?;
            let words = text.strip_suffix('\n')?.split(' ');
            Some(words.map(str::to_owned).collect())
        },
        String::new,
    )
}

#[test]
fn the_command_finds_what_systemd_would_tell_it_and_can_say_that_it_hangs() {
    for (word, why) in [
        ("WATCHDOG=trigger", "hung: WATCHDOG=trigger"),
        (
            "READY=1\nWATCHDOG_USEC=1000000",
            "hung: no WATCHDOG=1 for 1s",
        ),
    ] {
        let scene = Scene::new();
        let mut one = scene
            .run_on_file()
            .args(["--watchdog", "1h"])
            .args(COOL)
            // The service manager's variables, which are not meant for the command.
            .env("WATCHDOG_USEC", "77")
            .env("WATCHDOG_PID", "1")
            .shell(&telling(&scene))
            .start();
        let [socket, micros, pid, own] = &told(&scene)[..] else {
            panic!("not told: {}", one.stderr());
        };
        assert_eq!(
            Duration::from_micros(micros.parse().unwrap()).as_secs(),
            3600
        );
        assert_eq!(pid, own);
        let command = UnixDatagram::unbound().expect("a socket");
        command
            .send_to(word.as_bytes(), PathBuf::from(socket))
            .expect("heard");
        one.await_log(why);
        one.await_log("cooling down");
        stop(&mut one);
    }
}

#[test]
fn watchdog_counts_from_the_first_word_and_not_from_the_start() {
    let scene = Scene::new();
    let mut one = scene
        .run_on_file()
        .args(["--watchdog", "1s"])
        .args(COOL)
        // A start longer than later silence may be.
        .shell(&format!("sleep 3; {}", telling(&scene)))
        .start();
    let [socket, ..] = &told(&scene)[..] else {
        panic!("not told: {}", one.stderr());
    };
    one.assert_running();
    assert!(!one.stderr().contains("hung"), "{}", one.stderr());
    let command = UnixDatagram::unbound().expect("a socket");
    command.send_to(b"READY=1", socket).expect("heard");
    one.await_log("hung: no WATCHDOG=1 for 1s");
    one.await_log("cooling down");
    stop(&mut one);
}

#[test]
fn command_that_never_says_ready_is_hung_at_the_end_of_its_start() {
    let scene = Scene::new();
    let mut one = scene
        .run_on_file()
        .args(["--watchdog", "1h", "--watchdog-start", "1s"])
        .args(COOL)
        .shell(&telling(&scene))
        .start();
    one.await_log("hung: neither READY=1 nor WATCHDOG=1 within 1s of its start");
    one.await_log("cooling down");
    stop(&mut one);
}

#[test]
fn extend_timeout_gives_a_start_more_time() {
    let scene = Scene::new();
    let later = scene.path("later");
    // Another process notes that the limit has passed twice.
    let script = format!(
        "(sleep 12; echo >> {}) & {}",
        later.display(),
        telling(&scene)
    );
    let mut one = scene
        .run_on_file()
        .args(["--watchdog", "1h", "--watchdog-start", "6s"])
        .args(COOL)
        .shell(&script)
        .start();
    let [socket, ..] = &told(&scene)[..] else {
        panic!("not told: {}", one.stderr());
    };
    let command = UnixDatagram::unbound().expect("a socket");
    command
        .send_to(b"EXTEND_TIMEOUT_USEC=3600000000", socket)
        .expect("heard");
    super::await_lines(&later, 1);
    assert!(!one.stderr().contains("hung"), "{}", one.stderr());
    stop(&mut one);
}

#[test]
fn systemd_notify_feeds_the_watchdog() {
    let there = std::process::Command::new("systemd-notify")
        .arg("--version")
        .output();
    if there.is_err() {
        println!("NOT TESTED: there is no systemd-notify");
        return;
    }
    let scene = Scene::new();
    let finished = scene
        .run_on_file()
        .args(["--watchdog", "2s"])
        .args(COOL)
        .shell(
            "for n in $(seq 30); do systemd-notify WATCHDOG=1 || exit 9; sleep 0.2; done; exit 7",
        )
        .finish();
    assert_eq!(finished.ended, Ended::Code(7), "{}", finished.stderr);
}

#[test]
fn hooks_and_health_commands_have_no_watchdog() {
    let scene = Scene::new();
    let seen = scene.path("seen");
    let script = format!(
        "echo \"$0 ${{NOTIFY_SOCKET-none}} ${{WATCHDOG_USEC-none}} ${{WATCHDOG_PID-none}}\" >> {}",
        seen.display()
    );
    let mut one = scene
        .run_on_file()
        .args([
            "--watchdog",
            "1h",
            "--health",
            &script,
            "--on-acquire",
            &script,
        ])
        .args(["--on-lost", &script])
        .shell(&telling(&scene))
        .start();
    super::await_lines(&seen, 2);
    stop(&mut one);
    super::await_lines(&seen, 3);
    let text = std::fs::read_to_string(&seen).unwrap();
    let lines = text.lines().map(|line| line.split_once(' ').unwrap().1);
    for line in lines {
        assert_eq!(line, "none none none", "{text}");
    }
}

#[test]
fn seconds_that_the_first_tenure_was_not_fed_are_not_the_next_one_s() {
    let scene = Scene::new();
    let mut one = scene
        .run_on_file()
        .args([
            "--identity",
            "one",
            "--watchdog",
            "3s",
            "--restart",
            "always",
        ])
        .journalist("one", &["--watchdog"])
        .start();
    let first = scene.journal.await_tag(What::Beat, "one");
    signal(first.pid, Signal::SIGSTOP);
    let next = await_next(&scene, "one", first.pid);
    let now = trafficcop::Instant::now().as_nanos();
    let later = scene
        .journal
        .await_line("it to go on", |line| line.at > now + 6_000_000_000);
    assert_eq!(later.pid, next.pid, "{}", one.stderr());
    stop(&mut one);
}
