//! The control file and `trafficcop check`: "may I begin another piece?" and "am I still in
//! control?"

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use trafficcop::Deadline;
use trafficcop::Instant;

use crate::support::await_for;
use crate::support::instance::{Ended, Instance, Run};
use crate::support::journal::What;
use crate::support::namespaces::mounts_or_say_so;
use crate::support::processes::await_stopped;
use crate::support::programs::trafficcop;
use crate::support::scene::Scene;

/// Options that give a local file's lock a deadline.
const LEASE: &[&str] = &["--shared", "--lease", "15s", "--grace-on-loss", "4s"];

/// Runs with a /run of its own: every start sweeps what dead instances of this user have left in
/// /run, and no other test may sweep these.
fn apart(scene: &Scene) -> Run<'_> {
    let place = scene.path("run");
    std::fs::create_dir_all(&place).unwrap();
    scene.run_on_file().with_run(&place)
}

fn seen(scene: &Scene, path: &Path) -> PathBuf {
    let within = path.strip_prefix("/run").expect("the first place for it");
    scene.path("run").join(within)
}

/// Starts an instance whose command prints the path of its control file, then becomes the
/// journalist.
fn instance(scene: &Scene, options: &[&str], command: &[&str]) -> (Instance, PathBuf) {
    instance_of(scene.run_on_file(), scene, options, command)
}

fn instance_of(
    run: Run<'_>,
    scene: &Scene,
    options: &[&str],
    command: &[&str],
) -> (Instance, PathBuf) {
    let words = scene.journalist("one", command);
    let script = r#"echo "$TRAFFICCOP_CONTROL"; exec "$@""#;
    let mut line: Vec<_> = ["sh", "-c", script, "sh"].map(Into::into).into();
    line.extend(words);
    let instance = run.args(options).command(line).start();
    scene.journal.await_tag(What::Beat, "one");
    let path = PathBuf::from(instance.stdout().trim_end());
    assert!(path.is_absolute(), "{}", path.display());
    (instance, path)
}

fn check(path: Option<&Path>, arguments: &[&str]) -> Output {
    let mut command = Command::new(trafficcop());
    command.arg("check").args(arguments);
    command.env_remove("TRAFFICCOP_CONTROL");
    if let Some(path) = path {
        command.env("TRAFFICCOP_CONTROL", path);
    }
    command.output().expect("it can be run")
}

fn status(path: &Path) -> Option<i32> {
    check(Some(path), &[]).status.code()
}

fn word(path: &Path) -> u64 {
    let bytes = std::fs::read(path).unwrap();
    u64::from_ne_bytes(*bytes.first_chunk().unwrap())
}

fn remaining(path: &Path) -> u64 {
    let printed = check(Some(path), &["--remaining"]).stdout;
    String::from_utf8(printed).unwrap().trim().parse().unwrap()
}

fn in_control(path: &Path) -> Option<i32> {
    check(Some(path), &["--control"]).status.code()
}

fn path_to_trafficcop() -> String {
    let directory = Path::new(trafficcop()).parent().unwrap();
    let rest = std::env::var("PATH").unwrap_or_default();
    format!("{}:{rest}", directory.display())
}

fn await_gone(path: &Path) {
    await_for(
        "the control file to be gone",
        || (!path.exists()).then_some(()),
        || path.display().to_string(),
    );
}

fn send(pid: i32, signal: Signal) {
    kill(Pid::from_raw(pid), signal).unwrap();
}

#[test]
fn a_command_finds_itself_in_control_from_its_first_moment() {
    let scene = Scene::new();
    let program = trafficcop();
    let script = format!(
        "'{program}' check && '{program}' check --remaining && \
         stat -c '%a %s' \"$TRAFFICCOP_CONTROL\" && echo \"$TRAFFICCOP_CONTROL\""
    );
    let plain = scene.run_on_file().shell(&script).finish();
    assert_eq!(plain.ended, Ended::Code(0), "{}", plain.stderr);
    let lines: Vec<&str> = plain.stdout.lines().collect();
    let [remaining, file, path] = lines[..] else {
        panic!("{}", plain.stdout);
    };
    assert_eq!((remaining, file), ("18446744073", "444 16"));
    assert!(!Path::new(path).exists(), "{path} was left behind");

    let scene = Scene::new();
    let leased = scene.run_on_file().args(LEASE).shell(&script).finish();
    assert_eq!(leased.ended, Ended::Code(0), "{}", leased.stderr);
    let remaining: u64 = leased.stdout.lines().next().unwrap().parse().unwrap();
    assert!((1..=14).contains(&remaining), "{remaining}");
}

#[test]
fn the_control_file_lies_where_the_service_manager_keeps_what_is_the_unit_s() {
    let scene = Scene::new();
    let kept = scene.path("kept");
    std::fs::create_dir(&kept).unwrap();
    let all = format!("{}:/nonexistent", kept.display());
    let run = scene.run_on_file().env("RUNTIME_DIRECTORY", &all);
    let finished = run.shell("echo \"$TRAFFICCOP_CONTROL\"").finish();
    assert_eq!(finished.ended, Ended::Code(0), "{}", finished.stderr);
    let path = Path::new(finished.stdout.trim());
    assert_eq!(path.parent(), Some(&*kept));
}

#[test]
fn the_deadline_moves_with_every_renewal() {
    let scene = Scene::new();
    let (mut one, path) = instance(&scene, LEASE, &[]);
    assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o444);
    let first = word(&path);
    let now = Instant::now().as_nanos();
    assert!(first > now && first < now + 15_000_000_000);
    await_for(
        "the deadline to move",
        || (word(&path) > first).then_some(()),
        || one.stderr(),
    );
    assert_eq!(status(&path), Some(0));
    one.signal(Signal::SIGTERM);
    one.wait();
    assert!(!path.exists());
}

#[test]
fn outside_of_a_command_there_is_no_answer() {
    let outside = check(None, &[]);
    let said = String::from_utf8_lossy(&outside.stderr).into_owned();
    assert_eq!(outside.status.code(), Some(64), "{said}");
    assert!(said.contains("TRAFFICCOP_CONTROL is not set") && said.lines().count() == 1);
    let scene = Scene::new();
    let short = scene.path("short");
    std::fs::write(&short, "1234").unwrap();
    for (path, words) in [
        (scene.path("nowhere"), "nowhere"),
        (short, "eight or sixteen bytes"),
        (PathBuf::new(), "is empty"),
    ] {
        let output = check(Some(&path), &["--remaining"]);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(69), "{said}");
        assert!(said.contains(words) && said.lines().count() == 1, "{said}");
        assert!(output.stdout.is_empty());
    }
}

#[test]
fn a_lost_lock_is_no_control_at_once() {
    let scene = Scene::new();
    scene.excuse_confession("the lease is broken at once");
    let (mut one, path) = instance(&scene, LEASE, &["--term", "ignore"]);
    let deadline = Deadline::open(&path).unwrap();
    assert!(deadline.in_control());
    let mut broken = Command::new(trafficcop());
    broken.args(["break", "--period", "0", "--yes", "--file"]);
    let broken = broken.arg(scene.lock()).output().expect("it can be run");
    assert!(broken.status.success(), "{broken:?}");
    // The mapping outlives the tenure, and the instance gets control again.
    await_for(
        "control to be lost",
        || (!deadline.in_control()).then_some(()),
        || one.stderr(),
    );
    scene
        .journal
        .await_line("a second tenure", |line| line.token > 1);
    await_for(
        "control to be regained",
        || deadline.in_control().then_some(()),
        || one.stderr(),
    );
    one.signal(Signal::SIGTERM);
    one.signal(Signal::SIGKILL);
    one.wait();
    scene.await_nobody();
    assert!(!deadline.in_control());
    await_gone(&path);
}

#[test]
fn living_command_reads_a_doubt_in_its_control_file() {
    let scene = Scene::new();
    let (mut one, path) = instance(&scene, LEASE, &["--term", "ignore"]);
    // Frozen, it renews no more; at its deadline the guardian asks the command to end.
    one.freeze();
    let deadline = Deadline::open(&path).unwrap();
    let before = word(&path);
    await_for(
        "the control file to say no",
        || (!deadline.in_control()).then_some(()),
        || one.stderr(),
    );
    assert!(
        Instant::now().as_nanos() < before,
        "not before the deadline"
    );
    let tree = scene.trees();
    assert!(!tree.is_empty(), "the grace was to come");
    assert_eq!(word(&path), 0);
    assert_eq!(status(&path), Some(1));
    assert_eq!(in_control(&path), Some(1));
    // The rest is the grace on loss, which the lease's deadline ends.
    let printed = check(Some(&path), &["--remaining"]);
    assert_eq!(printed.status.code(), Some(1));
    assert!(remaining(&path) <= 4);
    one.signal(Signal::SIGKILL);
    one.wait();
    scene.await_nobody();
    await_gone(&path);
}

#[test]
fn a_deadline_passes_though_supervisor_and_guardian_are_stopped() {
    let scene = Scene::new();
    let (mut one, path) = instance(&scene, LEASE, &[]);
    let guardian = one.guardian();
    one.freeze();
    send(guardian, Signal::SIGSTOP);
    await_stopped(guardian);
    let deadline = Deadline::open(&path).unwrap();
    let until = word(&path);
    await_for(
        "the deadline to pass",
        || (!deadline.in_control()).then_some(()),
        || one.stderr(),
    );
    // No process wrote this: the file has a time, not a flag.
    assert_eq!(word(&path), until);
    assert!(Instant::now().as_nanos() >= until);
    assert_eq!(status(&path), Some(1));
    send(guardian, Signal::SIGCONT);
    one.signal(Signal::SIGKILL);
    one.wait();
    scene.await_nobody();
}

#[test]
fn a_requested_stop_is_no_loss() {
    let scene = Scene::new();
    let end = scene.path("end");
    let words = ["--term", "ignore", "--status", "3", "--until"];
    let words = [&words[..], &[end.to_str().unwrap()]].concat();
    // It ends when it may, and has plenty of time until then.
    let (mut one, path) = instance(&scene, &["--grace", "10m"], &words);
    one.signal(Signal::SIGTERM);
    one.await_log("stopping the command");
    scene.journal.await_sign_of_life("one");
    assert_eq!(word(&path), u64::MAX);
    assert_eq!((in_control(&path), status(&path)), (Some(0), Some(1)));
    assert!((1..=600).contains(&remaining(&path)), "the rest of --grace");
    std::fs::write(&end, "").unwrap();
    assert_eq!(one.wait(), Ended::Code(3));
    assert!(!path.exists());
}

#[test]
fn the_death_of_the_supervisor_leaves_no_file() {
    let scene = Scene::new();
    let (mut one, path) = instance(&scene, &[], &[]);
    one.signal(Signal::SIGKILL);
    one.wait();
    scene.await_nobody();
    await_gone(&path);
}

#[test]
fn the_death_of_the_guardian_leaves_no_file() {
    let scene = Scene::new();
    let (mut one, path) = instance(&scene, &["--if-lost", "exit"], &[]);
    let deadline = Deadline::open(&path).unwrap();
    send(one.guardian(), Signal::SIGKILL);
    assert_eq!(one.wait(), Ended::Code(70));
    assert!(!deadline.in_control() && !path.exists());
}

#[test]
fn control_file_of_a_killed_instance_is_swept_by_the_next() {
    if !mounts_or_say_so() {
        return;
    }
    let scene = Scene::new();
    let (mut one, path) = instance_of(apart(&scene), &scene, &[], &[]);
    let path = seen(&scene, &path);
    let guardian = one.guardian();
    // Both are stopped and report nothing.
    one.freeze();
    send(guardian, Signal::SIGSTOP);
    await_stopped(guardian);
    send(guardian, Signal::SIGKILL);
    one.signal(Signal::SIGKILL);
    one.wait();
    scene.await_nobody();
    assert!(path.exists());
    let next = apart(&scene).shell("true").finish();
    assert_eq!(next.ended, Ended::Code(0), "{}", next.stderr);
    assert!(!path.exists());
}

#[test]
fn an_inner_trafficcop_answers_for_itself() {
    let scene = Scene::new();
    let program = trafficcop();
    let inner = scene.path("inner.lock");
    let script = format!(
        "outer=$TRAFFICCOP_CONTROL; '{program}' run --file '{}' -- \
         sh -c 'test \"$TRAFFICCOP_CONTROL\" != \"$0\" && \"$1\" check' \"$outer\" '{program}'",
        inner.display()
    );
    let finished = scene.run_on_file().shell(&script).finish();
    assert_eq!(finished.ended, Ended::Code(0), "{}", finished.stderr);
}

#[test]
fn examples_finish_their_piece_when_control_is_lost_or_a_stop_is_asked() {
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/check");
    let python = Command::new("python3").arg("--version").output().is_ok();
    let rows = ["worker.sh", "worker.py"].map(|name| [(name, true), (name, false)]);
    for (name, lost) in rows.into_iter().flatten() {
        if name.ends_with(".py") && !python {
            println!("python3 is not installed here: {name} was not run");
            continue;
        }
        let scene = Scene::new();
        let program = examples.join(name);
        let run = scene
            .run_on_file()
            .env("PATH", path_to_trafficcop())
            .args(LEASE);
        // A signal that it does not notice: it must use `check`.
        let run = run.args(["--stop-signal", "WINCH"]).command([&program]);
        let mut one = run.start();
        await_for(
            "a piece of work",
            || one.stdout().contains("began a piece").then_some(()),
            || one.stderr(),
        );
        match lost {
            true => one.freeze(),
            false => one.signal(Signal::SIGTERM),
        }
        await_for(
            "the example to stop",
            || one.stdout().contains("safe: ").then_some(()),
            || format!("{}{}", one.stdout(), one.stderr()),
        );
        let said = one.stdout();
        let count = |words| said.matches(words).count();
        assert_eq!(
            count("began a piece"),
            count("finished the piece"),
            "{said}"
        );
        match lost {
            true => one.signal(Signal::SIGKILL),
            false => assert_eq!(one.wait(), Ended::Code(0)),
        }
        one.wait();
        scene.await_nobody();
    }
}

#[test]
fn every_drain_is_told_before_its_first_signal() {
    let watched = ["--watchdog", "2s", "--watchdog-start", "2s"];
    let rows: [(&str, &[&str], Option<Signal>, u8); 5] = [
        ("a stop", &[], Some(Signal::SIGTERM), 0),
        ("the supervisor's death", &[], Some(Signal::SIGKILL), 0),
        ("a hand-over", &["--max-hold", "1s"], None, 0),
        ("a command that hangs", &watched, None, 0),
        ("a doubt", LEASE, Some(Signal::SIGSTOP), 1),
    ];
    for (cause, options, signal, control) in rows {
        let scene = Scene::new();
        let run = scene.run_on_file().env("PATH", path_to_trafficcop());
        let asks = "trap 'trafficcop check; begin=$?; trafficcop check --control; echo \"told $begin $?\"; exit' TERM; \
            trafficcop check && echo began; while :; do sleep 0.1; done";
        let mut one = run.args(options).shell(asks).start();
        let said = |words: &str| {
            await_for(
                cause,
                || one.stdout().contains(words).then_some(()),
                || format!("{cause}: {}{}", one.stdout(), one.stderr()),
            );
        };
        said("began");
        if let Some(signal) = signal {
            one.signal(signal);
        }
        said(&format!("told 1 {control}"));
        one.signal(Signal::SIGTERM);
        if signal == Some(Signal::SIGSTOP) {
            one.signal(Signal::SIGKILL);
        }
        one.wait();
        scene.await_nobody();
    }
}

#[test]
fn wait_lasts_for_its_time_and_ends_when_a_stop_begins() {
    let scene = Scene::new();
    let run = scene.run_on_file().env("PATH", path_to_trafficcop());
    // A signal that ends no process: only the control file tells.
    let run = run.args(["--stop-signal", "WINCH", "--grace", "10m"]);
    let waits = "trafficcop check --wait 300ms; echo \"first $?\"; trafficcop check --wait 10m; echo \"second $?\"; \
        trafficcop check --control --wait 100ms; echo \"control $?\"";
    let began = Instant::now();
    let mut one = run.shell(waits).start();
    await_for(
        "the first answer",
        || one.stdout().contains("first 0").then_some(()),
        || one.stdout() + &one.stderr(),
    );
    assert!(Instant::now().since(began) >= Duration::from_millis(300));
    one.signal(Signal::SIGTERM);
    assert_eq!(one.wait(), Ended::Code(0));
    assert_eq!(one.stdout(), "first 0\nsecond 1\ncontrol 0\n");
}

#[test]
fn piece_that_check_allowed_is_finished_whenever_a_stop_comes() {
    let mut random = fastrand::Rng::with_seed(36);
    let places: [&[&str]; 2] = [&[], LEASE];
    for options in places.into_iter().flat_map(|place| [place; 8]) {
        let scene = Scene::new();
        let run = scene.run_on_file().env("PATH", path_to_trafficcop());
        let run = run.args(options).args(["--grace", "10m"]);
        let works = "trap '' TERM; while trafficcop check; do echo Starting; sleep 0.2; echo Finished; done; echo safe";
        let mut one = run.shell(works).start();
        await_for(
            "a piece",
            || one.stdout().contains("Starting").then_some(()),
            || one.stderr(),
        );
        std::thread::sleep(Duration::from_millis(random.u64(..500)));
        one.signal(Signal::SIGTERM);
        assert_eq!(one.wait(), Ended::Code(0));
        let said = one.stdout();
        let count = |words| said.matches(words).count();
        assert_eq!(count("Starting"), count("Finished"), "{said}");
        assert!(said.ends_with("safe\n"), "{said}");
    }
}

#[test]
fn control_file_of_dead_processes_grants_no_control() {
    if !mounts_or_say_so() {
        return;
    }
    let scene = Scene::new();
    let options = ["--contain", "none"];
    let (mut one, path) = instance_of(apart(&scene), &scene, &options, &[]);
    let path = seen(&scene, &path);
    let deadline = Deadline::open(&path).unwrap();
    assert!(deadline.in_control() && status(&path) == Some(0));
    let guardian = one.guardian();
    one.freeze();
    send(guardian, Signal::SIGSTOP);
    await_stopped(guardian);
    send(guardian, Signal::SIGKILL);
    one.signal(Signal::SIGKILL);
    one.wait();
    scene.await_nobody();
    assert_eq!(word(&path), u64::MAX, "no process was left to withdraw it");
    assert_eq!(status(&path), Some(1));
    assert!(!deadline.in_control(), "open since it was true");
    // The next instance sweeps it, and marks it for processes that have it mapped.
    let mapped = std::fs::File::open(&path).unwrap();
    let next = apart(&scene).command(["true"]).finish();
    assert_eq!(next.ended, Ended::Code(0), "{}", next.stderr);
    assert!(!path.exists());
    let mut left = [1; 16];
    std::os::unix::fs::FileExt::read_exact_at(&mapped, &mut left, 0).unwrap();
    assert_eq!(left, [0; 16]);
}
