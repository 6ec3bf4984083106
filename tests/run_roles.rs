//! `trafficcop run --standby`, `--on-acquire`, `--on-lost`: what runs before, between and after
//! tenures, end to end.
//!
//! Read as a specification: each test is one sentence of it.

#[expect(dead_code, reason = "each test binary uses a part of the support")]
mod support;

use std::collections::BTreeMap;
use std::fs::File;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use trafficcop::clock::Instant;

use support::azurite::{azurite, connection_string};
use support::blob::Blob;
use support::instance::{Ended, Instance, Run};
use support::journal::{Journal, What};
use support::processes::{self, Process};
use support::proxy::{Mode, Proxy};
use support::scene::Scene;
use support::{await_for, programs};

const TERM: Ended = Ended::Died(Signal::SIGTERM);

/// What the standby commands write: they have no token, so it is a journal of its own.
fn standbys(scene: &Scene) -> Journal {
    Journal::at(scene.path("standbys"))
}

/// A script that becomes a journalist of this tag.
fn script(journal: &Journal, tag: &str, options: &str) -> String {
    let journalist = programs::journalist().display();
    format!(
        "exec {journalist} {} {tag} {options}",
        journal.path().display()
    )
}

fn standby(scene: &Scene, name: &str, options: &str) -> [String; 2] {
    let script = script(&standbys(scene), name, options);
    [
        "--standby".into(),
        format!("TRAFFICCOP_TOKEN=0; export TRAFFICCOP_TOKEN; {script}"),
    ]
}

fn hook(scene: &Scene, name: &str, options: &str) -> [String; 2] {
    let tag = format!("{name}/hook");
    ["--on-acquire".into(), script(&scene.journal, &tag, options)]
}

fn until(scene: &Scene, name: &str) -> String {
    format!("--until {}", scene.path(&format!("{name}.done")).display())
}

fn let_end(scene: &Scene, name: &str) {
    File::create(scene.path(&format!("{name}.done"))).unwrap();
}

/// An instance on the scene's file whose command beats until it is asked to end.
fn on_file<'a>(scene: &'a Scene, name: &str) -> Run<'a> {
    scene
        .run_on_file()
        .args(["--identity", name])
        .journalist(name, &[])
}

/// A holder, whose command beats until it is let end.
fn holder(scene: &Scene, name: &str) -> Instance {
    let done = scene.path(&format!("{name}.done"));
    let holder = scene
        .run_on_file()
        .args(["--identity", name])
        .journalist(name, &["--until", done.to_str().unwrap()])
        .start();
    scene.journal.await_tag(What::Beat, name);
    holder
}

/// From the first to the last line of each process, by the command it is of.
fn lives(journal: &Journal) -> BTreeMap<(String, i32), (u64, u64)> {
    let mut lives = BTreeMap::new();
    for line in journal.lines() {
        let of = line.tag.split('/').next().unwrap().to_owned();
        let life = lives.entry((of, line.pid)).or_insert((line.at, line.at));
        life.1 = line.at;
    }
    lives
}

/// Fails if on any instance a standby's process and one under control lived at the same time, or if
/// two tenures did.
fn judge(scene: &Scene) -> Vec<String> {
    for ((name, pid), (first, last)) in lives(&standbys(scene)) {
        for ((other, beside), (begin, end)) in lives(&scene.journal) {
            assert!(
                name != other || last < begin || end < first,
                "{name}: standby {pid} beside {beside}\n{}{}",
                standbys(scene),
                scene.journal
            );
        }
    }
    scene.journal.judge()
}

fn starts(journal: &Journal, tag: &str) -> usize {
    let lines = journal.lines();
    let starts = lines
        .iter()
        .filter(|line| line.what == What::Start && line.tag == tag);
    starts.count()
}

fn await_starts(journal: &Journal, tag: &str, count: usize) {
    await_for(
        &format!("{count} starts of {tag}"),
        || (starts(journal, tag) >= count).then_some(()),
        || journal.to_string(),
    );
}

fn await_text(scene: &Scene, file: &str) -> String {
    await_for(
        &format!("a line in {file}"),
        || {
            let text = std::fs::read_to_string(scene.path(file)).ok()?;
            text.ends_with('\n').then(|| text.trim_end().to_owned())
        },
        || scene.journal.to_string(),
    )
}

/// Writes the cause, token and role of the end of each tenure of this instance.
fn on_lost(scene: &Scene, name: &str) -> [String; 2] {
    let file = scene.path(&format!("{name}.lost"));
    let line = "$TRAFFICCOP_ROLE $TRAFFICCOP_TOKEN $TRAFFICCOP_CAUSE";
    [
        "--on-lost".into(),
        format!("echo \"{line}\" >> {}", file.display()),
    ]
}

/// The guardians of an instance, the command's first.
fn guardians(scene: &Scene, instance: &Instance) -> Vec<Process> {
    let mut all = processes::marked(scene.directory());
    all.retain(|process| process.is_ours() && process.parent == instance.pid());
    all.sort_by_key(|process| process.pid);
    all
}

fn sigkill(pid: i32) {
    kill(Pid::from_raw(pid), Signal::SIGKILL).unwrap();
}

#[test]
fn one_of_three_holds_the_others_stand_by_and_roles_change() {
    let scene = Scene::new();
    let standbys = standbys(&scene);
    let start = |name: &str| {
        on_file(&scene, name)
            .args(standby(&scene, name, ""))
            .start()
    };
    let mut first = start("first");
    scene.journal.await_tag(What::Beat, "first");
    let (second, third) = (start("second"), start("third"));
    standbys.await_tag(What::Beat, "second");
    standbys.await_tag(What::Beat, "third");
    assert_eq!(starts(&standbys, "first"), 0, "it never waited");
    first.signal(Signal::SIGKILL);
    first.wait();
    let next = scene
        .journal
        .await_line("the next holder", |line| line.token == 2);
    let (mut next, mut last) = if next.tag == "second" {
        (second, third)
    } else {
        (third, second)
    };
    next.signal(Signal::SIGTERM);
    assert_eq!(next.wait(), TERM);
    scene
        .journal
        .await_line("the last holder", |line| line.token == 3);
    last.signal(Signal::SIGTERM);
    assert_eq!(last.wait(), TERM);
    scene.await_nobody();
    assert_eq!(judge(&scene).len(), 3);
}

#[test]
fn a_standby_that_ignores_term_and_its_daemon_are_gone_before_the_command_starts() {
    for contain in ["none", "cgroup", "pidns"] {
        let scene = Scene::new();
        let mut first = holder(&scene, "first");
        let mut second = on_file(&scene, "second")
            .args(["--grace", "2s", "--contain", contain])
            .args(standby(
                &scene,
                "second",
                "--term ignore --daemon --children 1",
            ))
            .start();
        let standbys = standbys(&scene);
        await_for(
            "a standby, or the word that this machine has no such containment",
            || (starts(&standbys, "second/daemon") > 0 || second.ended().is_some()).then_some(()),
            || standbys.to_string(),
        );
        if second.ended() == Some(Ended::Code(64)) {
            assert!(
                second.stderr().contains("cannot be had"),
                "{}",
                second.stderr()
            );
            println!("no --contain {contain} here: {}", second.stderr());
            continue;
        }
        standbys.await_tag(What::Beat, "second/child");
        let_end(&scene, "first");
        assert_eq!(first.wait(), Ended::Code(0));
        let freed = Instant::now().as_nanos();
        let begun = scene.journal.await_tag(What::Start, "second");
        // Two seconds of grace; the rest is for a slow machine.
        assert!(Duration::from_nanos(begun.at.saturating_sub(freed)) < Duration::from_secs(30));
        second.signal(Signal::SIGTERM);
        assert_eq!(second.wait(), TERM, "{}", second.stderr());
        scene.await_nobody();
        assert_eq!(judge(&scene), ["first", "second"]);
    }
}

#[test]
fn a_stop_while_standing_by_drains_the_standby_command() {
    let scene = Scene::new();
    let _first = holder(&scene, "first");
    let mut second = on_file(&scene, "second")
        .args(standby(&scene, "second", "--term 300:5 --daemon"))
        .args(["--grace", "2s"])
        .start();
    standbys(&scene).await_tag(What::Beat, "second/daemon");
    second.signal(Signal::SIGTERM);
    assert_eq!(second.wait(), TERM, "the standby's status is not ours");
    standbys(&scene).await_tag(What::End, "second");
    let left = scene.trees();
    assert_eq!(left.len(), 1, "only the holder's command: {left:?}");
}

#[test]
fn a_second_stop_kills_the_standby_command_at_once() {
    let scene = Scene::new();
    let _first = holder(&scene, "first");
    let mut second = on_file(&scene, "second")
        .args(standby(&scene, "second", "--term ignore"))
        .args(["--grace", "10m"])
        .start();
    standbys(&scene).await_tag(What::Beat, "second");
    second.signal(Signal::SIGTERM);
    // Not an echo of the first.
    std::thread::sleep(Duration::from_millis(300));
    second.assert_running();
    second.signal(Signal::SIGTERM);
    assert_eq!(second.wait(), TERM);
}

#[test]
fn a_stop_while_the_standby_drains_gives_the_lock_back_at_once() {
    let scene = Scene::new();
    let mut first = holder(&scene, "first");
    let mut second = on_file(&scene, "second")
        .args(standby(&scene, "second", "--term ignore"))
        .args(on_lost(&scene, "second"))
        .args(["--grace", "10m"])
        .start();
    standbys(&scene).await_tag(What::Beat, "second");
    let_end(&scene, "first");
    first.wait();
    second.await_log("stopping the standby command");
    let mut third = on_file(&scene, "third").start();
    third.await_log("standing by");
    second.signal(Signal::SIGTERM);
    scene.journal.await_tag(What::Beat, "third");
    assert_eq!(
        await_text(&scene, "second.lost"),
        "standby 2 stopped by SIGTERM"
    );
    // Not an echo of the first.
    std::thread::sleep(Duration::from_millis(300));
    second.assert_running();
    second.signal(Signal::SIGTERM);
    assert_eq!(second.wait(), TERM);
    third.signal(Signal::SIGTERM);
    third.wait();
    scene.await_nobody();
    assert_eq!(judge(&scene), ["first", "third"]);
}

#[test]
fn a_killed_guardian_of_a_standby_leaves_nothing_and_is_status_70() {
    let scene = Scene::new();
    let first = holder(&scene, "first");
    let mut second = on_file(&scene, "second")
        .args(standby(&scene, "second", "--term ignore --daemon"))
        .args(on_lost(&scene, "second"))
        .start();
    standbys(&scene).await_tag(What::Beat, "second/daemon");
    sigkill(guardians(&scene, &second)[0].pid);
    assert_eq!(second.wait(), Ended::Code(70), "{}", second.stderr());
    let left = scene.trees();
    assert_eq!(left.len(), 1, "only the holder's command: {left:?}");
    scene.journal.await_sign_of_life("first");
    assert!(!scene.path("second.lost").exists(), "there was no tenure");
    drop(first);
}

#[test]
fn supervisor_and_guardian_of_a_standby_killed_at_once_take_it_along() {
    let scene = Scene::new();
    let _first = holder(&scene, "first");
    let mut second = on_file(&scene, "second")
        .args(standby(&scene, "second", "--term ignore"))
        .start();
    standbys(&scene).await_tag(What::Beat, "second");
    let guardian = guardians(&scene, &second)[0].pid;
    second.freeze();
    sigkill(guardian);
    second.signal(Signal::SIGKILL);
    second.wait();
    await_for(
        "the standby command to be gone",
        || (scene.trees().len() == 1).then_some(()),
        || format!("{:?}", scene.trees()),
    );
}

#[test]
fn a_killed_supervisor_s_hook_is_gone_before_another_has_control() {
    let scene = Scene::new();
    let mut first = on_file(&scene, "first")
        .args(hook(&scene, "first", "--term ignore --daemon"))
        .args(["--grace", "2s"])
        .start();
    scene.journal.await_tag(What::Beat, "first/hook/daemon");
    let mut second = on_file(&scene, "second").start();
    second.await_log("standing by");
    first.signal(Signal::SIGKILL);
    first.wait();
    scene.journal.await_tag(What::Beat, "second");
    second.signal(Signal::SIGTERM);
    second.wait();
    scene.await_nobody();
    assert_eq!(judge(&scene), ["first", "second"]);
    assert_eq!(starts(&scene.journal, "first"), 0);
}

#[test]
fn a_killed_guardian_s_hook_is_gone_before_another_has_control() {
    let scene = Scene::new();
    let mut first = on_file(&scene, "first")
        .args(hook(&scene, "first", "--term ignore --daemon --children 2"))
        .args(on_lost(&scene, "first"))
        .start();
    scene.journal.await_tag(What::Beat, "first/hook/daemon");
    let mut second = on_file(&scene, "second").start();
    second.await_log("standing by");
    let [guardian, _aftermath] = &guardians(&scene, &first)[..] else {
        panic!("two guardians");
    };
    sigkill(guardian.pid);
    assert_eq!(first.wait(), Ended::Code(70), "{}", first.stderr());
    let cause = "the guardian died or fell silent";
    assert_eq!(
        await_text(&scene, "first.lost"),
        format!("standby 1 {cause}")
    );
    scene.journal.await_tag(What::Beat, "second");
    second.signal(Signal::SIGTERM);
    second.wait();
    scene.await_nobody();
    assert_eq!(judge(&scene), ["first", "second"]);
}

#[test]
fn a_silent_guardian_s_hook_is_gone_before_another_has_control() {
    let scene = Scene::new();
    let mut first = on_file(&scene, "first")
        .args(hook(&scene, "first", "--term ignore --children 2"))
        .start();
    scene.journal.await_tag(What::Beat, "first/hook/child");
    let mut second = on_file(&scene, "second").start();
    second.await_log("standing by");
    kill(Pid::from_raw(first.guardian()), Signal::SIGSTOP).unwrap();
    assert_eq!(first.wait(), Ended::Code(70), "{}", first.stderr());
    scene.journal.await_tag(What::Beat, "second");
    second.signal(Signal::SIGTERM);
    second.wait();
    scene.await_nobody();
    assert_eq!(judge(&scene), ["first", "second"]);
}

#[test]
fn a_hook_that_fails_lets_another_have_its_turn() {
    let scene = Scene::new();
    let mut first = on_file(&scene, "first")
        .args(hook(&scene, "first", "--beats 40 --status 3 --daemon"))
        .args(standby(&scene, "first", ""))
        .args(on_lost(&scene, "first"))
        .args(["--grace", "2s"])
        .start();
    scene.journal.await_tag(What::Start, "first/hook");
    let mut second = on_file(&scene, "second").start();
    scene.journal.await_tag(What::Beat, "second");
    standbys(&scene).await_tag(What::Beat, "first");
    let log = first.stderr();
    for words in [
        "the --on-acquire command exited with status 3: handing control over",
        "standing back for 4s",
    ] {
        assert!(log.contains(words), "'{words}' is not in\n{log}");
    }
    assert_eq!(
        await_text(&scene, "first.lost"),
        "standby 1 the --on-acquire command exited with status 3"
    );
    first.signal(Signal::SIGTERM);
    assert_eq!(first.wait(), TERM);
    second.signal(Signal::SIGTERM);
    second.wait();
    scene.await_nobody();
    // The daemon that the hook left behind was gone before the lock was given back.
    assert_eq!(judge(&scene), ["first", "second"]);
    assert_eq!(starts(&scene.journal, "first"), 0);
}

#[test]
fn what_a_hook_left_behind_is_gone_before_the_command_starts() {
    let scene = Scene::new();
    let mut one = on_file(&scene, "one")
        .args(hook(&scene, "one", "--beats 40 --daemon"))
        .args(["--grace", "2s"])
        .start();
    let begun = scene.journal.await_tag(What::Start, "one");
    one.signal(Signal::SIGTERM);
    assert_eq!(one.wait(), TERM);
    let lines = scene.journal.lines();
    let daemon = lines.iter().rfind(|line| line.tag == "one/hook/daemon");
    let daemon = daemon.expect("the hook left a daemon");
    assert!(daemon.at < begun.at, "{}", scene.journal);
    assert_eq!(starts(&scene.journal, "one/hook"), 1);
}

#[test]
fn a_stop_during_the_hook_is_death_by_its_signal_and_starts_nothing() {
    let scene = Scene::new();
    let mut one = on_file(&scene, "one")
        .args(hook(&scene, "one", "--term 200:0 --daemon"))
        .args(on_lost(&scene, "one"))
        .args(["--grace", "2s"])
        .start();
    scene.journal.await_tag(What::Beat, "one/hook/daemon");
    one.signal(Signal::SIGTERM);
    assert_eq!(one.wait(), TERM, "{}", one.stderr());
    scene.await_nobody();
    scene.journal.await_tag(What::End, "one/hook");
    assert_eq!(starts(&scene.journal, "one"), 0);
    assert_eq!(
        await_text(&scene, "one.lost"),
        "standby 1 stopped by SIGTERM"
    );
}

#[test]
fn a_hook_that_hangs_past_the_deadline_is_gone_before_another_has_control() {
    let scene = Scene::new();
    let lock = Blob::named("roles/hanging-hook");
    let proxy = Proxy::before(azurite().port);
    let on_blob = |name: &str, port| {
        scene
            .run()
            .args(["--identity", name, "--blob", &lock.name, "--lease", "15s"])
            .env("AZURE_STORAGE_CONNECTION_STRING", connection_string(port))
            .journalist(name, &[])
    };
    let mut first = on_blob("first", proxy.port)
        .args(hook(&scene, "first", "--term ignore --daemon"))
        .args(standby(&scene, "first", ""))
        .args(on_lost(&scene, "first"))
        .start();
    scene.journal.await_tag(What::Beat, "first/hook/daemon");
    proxy.set(Mode::Freeze);
    let mut second = on_blob("second", azurite().port).start();
    scene.journal.await_tag(What::Beat, "second");
    proxy.set(Mode::Pass);
    standbys(&scene).await_tag(What::Beat, "first");
    let lost = await_text(&scene, "first.lost");
    let cause = "standby 1 the lease could not be renewed in time: ";
    assert!(lost.starts_with(cause), "{lost}");
    first.signal(Signal::SIGTERM);
    assert_eq!(first.wait(), TERM);
    second.signal(Signal::SIGTERM);
    assert_eq!(second.wait(), TERM);
    scene.await_nobody();
    assert_eq!(judge(&scene), ["first", "second"]);
}

#[test]
fn the_hook_after_a_tenure_is_told_how_the_command_ended_and_our_status_is_the_command_s() {
    let scene = Scene::new();
    let finished = scene
        .run_on_file()
        .args(on_lost(&scene, "one"))
        .shell("exit 7")
        .finish();
    assert_eq!(finished.ended, Ended::Code(7), "{}", finished.stderr);
    assert_eq!(
        await_text(&scene, "one.lost"),
        "standby 1 the command ended"
    );
}

#[test]
fn a_hook_that_hangs_after_a_tenure_delays_neither_the_release_nor_the_exit_for_long() {
    let scene = Scene::new();
    let hang = script(&standbys(&scene), "first", "--term ignore --daemon");
    let mut first = on_file(&scene, "first")
        .args(["--grace", "4s", "--on-lost"])
        .arg(hang)
        .start();
    scene.journal.await_tag(What::Beat, "first");
    let mut second = on_file(&scene, "second").start();
    second.await_log("standing by");
    first.signal(Signal::SIGTERM);
    // Both at the same time: the next holder does not wait for it.
    standbys(&scene).await_tag(What::Beat, "first/daemon");
    scene.journal.await_tag(What::Beat, "second");
    assert_eq!(first.wait(), TERM, "{}", first.stderr());
    let log = first.stderr();
    assert!(log.contains("--on-lost command takes too long"), "{log}");
    let next = scene.journal.await_tag(What::Start, "second");
    let lives = lives(&standbys(&scene));
    assert!(
        lives.values().all(|(_, last)| *last > next.at),
        "it held up the next holder"
    );
    second.signal(Signal::SIGTERM);
    second.wait();
    scene.await_nobody();
    assert_eq!(scene.journal.judge(), ["first", "second"]);
}

#[test]
fn the_death_of_the_guardian_of_the_hook_after_a_tenure_costs_the_command_nothing() {
    let scene = Scene::new();
    let mut one = on_file(&scene, "one").args(on_lost(&scene, "one")).start();
    scene.journal.await_tag(What::Beat, "one");
    let [_, aftermath] = &guardians(&scene, &one)[..] else {
        panic!("two guardians");
    };
    sigkill(aftermath.pid);
    one.await_log("the guardian of the --on-lost command died");
    scene.journal.await_sign_of_life("one");
    one.signal(Signal::SIGTERM);
    assert_eq!(one.wait(), TERM, "{}", one.stderr());
    assert!(
        one.stderr().contains("is not run: its guardian is gone"),
        "{}",
        one.stderr()
    );
    scene.await_nobody();
}

#[test]
fn both_guardians_killed_at_once_leave_nothing() {
    let scene = Scene::new();
    let mut one = scene
        .run_on_file()
        .args(on_lost(&scene, "one"))
        .journalist("one", &["--term", "ignore", "--daemon", "--children", "2"])
        .start();
    scene.journal.await_tag(What::Beat, "one/daemon");
    one.freeze();
    for guardian in guardians(&scene, &one) {
        sigkill(guardian.pid);
    }
    one.signal(Signal::SIGCONT);
    assert_eq!(one.wait(), Ended::Code(70), "{}", one.stderr());
    scene.await_nobody();
}

#[test]
fn each_finds_its_role_in_its_environment() {
    let scene = Scene::new();
    let mut first = holder(&scene, "first");
    let dump = |file: &str| {
        let fresh = scene.path(&format!("{file}.fresh"));
        let (fresh, file) = (fresh.display(), scene.path(file));
        let file = file.display();
        format!(
            "(env; trafficcop check && echo YES || echo NO; read line && echo \"GOT $line\"; echo END) > {fresh}; mv {fresh} {file}"
        )
    };
    let bin = std::path::Path::new(programs::trafficcop())
        .parent()
        .unwrap();
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
    let stdin = scene.path("stdin");
    std::fs::write(&stdin, "for the command\n").unwrap();
    let mut second = scene
        .run_on_file()
        .env("PATH", path)
        // As under an outer trafficcop.
        .env("TRAFFICCOP_TOKEN", "999")
        .env("TRAFFICCOP_HOLDER", "outer")
        .stdin(File::open(&stdin).unwrap())
        .args(["--identity", "second"])
        .args(["--standby", &format!("{}; sleep 1000", dump("standby.env"))])
        .args([
            "--on-acquire",
            &dump("hook.env"),
            "--on-lost",
            &dump("lost.env"),
        ])
        .shell(&dump("command.env"))
        .start();
    let standby = await_text(&scene, "standby.env");
    let_end(&scene, "first");
    first.wait();
    assert_eq!(second.wait(), Ended::Code(0), "{}", second.stderr());
    let [hook, command, lost] =
        ["hook.env", "command.env", "lost.env"].map(|file| await_text(&scene, file));
    let lock = format!("\nTRAFFICCOP_LOCK={}\n", scene.lock().display());
    for (text, has, lacks) in [
        (
            &standby,
            ["TRAFFICCOP_ROLE=standby", "TRAFFICCOP_CONTROL=/", "\nNO\n"],
            ["TRAFFICCOP_TOKEN", "TRAFFICCOP_HOLDER", "GOT"],
        ),
        (
            &hook,
            ["TRAFFICCOP_ROLE=holder", "TRAFFICCOP_TOKEN=2", "\nYES\n"],
            ["TRAFFICCOP_CAUSE", "=outer", "GOT"],
        ),
        (
            &command,
            ["TRAFFICCOP_ROLE=holder", "\nYES\n", "GOT for the command"],
            ["TRAFFICCOP_CAUSE", "=outer", "=999"],
        ),
        (
            &lost,
            [
                "TRAFFICCOP_CAUSE=the command ended",
                "TRAFFICCOP_TOKEN=2",
                "\nNO\n",
            ],
            ["=outer", "=999", "GOT"],
        ),
    ] {
        let text = format!("\n{text}");
        assert!(text.contains(&lock), "{lock} is not in {text}");
        for words in has {
            assert!(text.contains(words), "'{words}' is not in {text}");
        }
        for words in lacks {
            assert!(!text.contains(words), "'{words}' is in {text}");
        }
    }
}

#[test]
fn a_standby_that_fails_is_started_again_and_one_that_succeeds_is_not() {
    let scene = Scene::new();
    let _first = holder(&scene, "first");
    let start = |name: &str, options: &str| {
        on_file(&scene, name)
            .args(standby(&scene, name, options))
            .start()
    };
    let failing = start("failing", "--beats 2 --status 3");
    let done = start("done", "--beats 2");
    await_starts(&standbys(&scene), "failing", 2);
    failing.await_log("the standby command exited with status 3: it is started again in 1s");
    done.await_log("the standby command ended");
    assert_eq!(starts(&standbys(&scene), "done"), 1);
}

#[test]
fn the_status_file_tells_what_runs() {
    let scene = Scene::new();
    let mut first = holder(&scene, "first");
    let file = scene.path("status.json");
    let done = until(&scene, "hook");
    let mut second = on_file(&scene, "second")
        .arg("--status-file")
        .arg(&file)
        .args(standby(&scene, "second", ""))
        .args(hook(&scene, "second", &done))
        .start();
    let status = |what: &str, is: &dyn Fn(&serde_json::Value) -> bool| {
        let read = || -> Option<serde_json::Value> {
            serde_json::from_slice(&std::fs::read(&file).ok()?).ok()
        };
        await_for(what, || read().filter(is), || format!("{:?}", read()))
    };
    let begun = standbys(&scene).await_tag(What::Start, "second");
    let now = status("a standby", &|now| now["standby_pid"] == begun.pid);
    assert_eq!(now["state"], "standby");
    let_end(&scene, "first");
    first.wait();
    let now = status("a hook", &|now| {
        now["state"] == "preparing" && now["standby_pid"].is_null()
    });
    assert!(now["command_pid"].is_null());
    let_end(&scene, "hook");
    let begun = scene.journal.await_tag(What::Start, "second");
    status("a holder", &|now| {
        now["state"] == "holding" && now["command_pid"] == begun.pid
    });
    second.signal(Signal::SIGTERM);
    second.wait();
}

#[test]
fn a_command_that_is_empty_is_refused_in_words() {
    for flag in ["--standby", "--on-acquire", "--on-lost"] {
        let scene = Scene::new();
        let finished = on_file(&scene, "one").args([flag, " "]).finish();
        assert_eq!(finished.ended, Ended::Code(64));
        let words = format!("{flag} is empty: name a command for sh");
        assert!(finished.stderr.contains(&words), "{}", finished.stderr);
        assert!(!scene.lock().exists());
    }
}
