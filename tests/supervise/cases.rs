//! The cases. Every one tells in its name what must hold.

use std::fs;
use std::time::Duration;

use trafficcop::clock::Instant;
use trafficcop::supervise::Contain;

use super::proc::{self, LONG};
use super::scene::{Deadlines, Props, Scene, Who, await_stopped, sleep_until, word};

pub(crate) type Case = fn(Who);

macro_rules! cases {
    ($($name:ident),* $(,)?) => {
        pub(crate) const ALL: &[(&str, Case)] = &[$((stringify!($name), $name)),*];
    };
}

cases![
    an_exit_status_is_told_as_it_was,
    a_deadly_signal_is_told_as_it_was,
    what_cannot_be_run_is_told_by_its_error_number,
    a_script_without_a_first_line_is_run_by_sh,
    the_command_finds_everything_as_we_got_it,
    an_ignored_hangup_stays_ignored,
    a_second_command_is_served_after_the_first,
    an_order_that_comes_too_late_is_not_started,
    the_whole_family_dies_at_the_deadline,
    a_polite_command_ends_within_its_grace,
    the_whole_family_dies_with_the_supervisor,
    the_guardian_survives_the_death_of_the_supervisors_group,
    a_second_guardian_does_not_hide_the_supervisors_death,
    a_will_is_carried_out_between_two_commands,
    a_dismissed_guardian_carries_out_no_will,
    the_supervisor_finishes_for_a_killed_guardian,
    the_supervisor_finishes_for_a_stopped_guardian,
    a_second_guardian_survives_the_rescue,
    the_command_dies_with_its_guardian,
    a_stopped_supervisor_cannot_keep_the_family_alive,
    a_stopped_supervisor_does_not_blame_the_guardian,
    a_renewal_that_waited_past_the_deadline_is_an_expiry,
    a_shorter_deadline_holds,
    a_renewal_while_draining_moves_the_kill,
    a_polite_daemon_that_was_left_behind_is_drained,
    a_deaf_family_that_was_left_behind_is_killed,
    the_lock_lives_as_long_as_the_tree,
    a_stopped_command_is_told_of_and_resumed,
    both_killed_at_once,
    a_stopped_guardian_and_a_killed_supervisor,
    a_guardian_that_stays_stopped_and_a_killed_supervisor,
    both_stopped,
    an_idle_guardian_is_left_in_peace,
    the_guardian_does_not_bear_our_name,
];

const FAR: u64 = 600_000;

fn an_exit_status_is_told_as_it_was(who: Who) {
    let mut scene = Scene::acting(who, &["exit", "7"]);
    scene.start(Deadlines::none());
    scene.expect("Started");
    scene.expect("Exited(Code(7))");
    scene.expect("TreeEmpty");
    scene.dismiss();
}

fn a_deadly_signal_is_told_as_it_was(who: Who) {
    let mut scene = Scene::acting(who, &["die", "34"]);
    scene.start(Deadlines::none());
    scene.expect("Started");
    scene.expect("Exited(Signal(34))");
    scene.expect("TreeEmpty");
}

fn what_cannot_be_run_is_told_by_its_error_number(who: Who) {
    for (command, errno) in [
        ("no-such-command", libc::ENOENT),
        ("/etc/passwd", libc::EACCES),
        ("/etc/passwd/x", libc::ENOTDIR),
        ("", libc::ENOENT),
    ] {
        let props = Props {
            // All of it can be searched by everybody: EACCES would be the right answer otherwise.
            env: vec![("PATH", "/usr/bin:/bin")],
            ..Props::default()
        };
        let mut scene = Scene::new(who, &[command], props);
        for _ in 0..2 {
            scene.start(Deadlines::none());
            assert_eq!(scene.news(), format!("NotStarted {{ errno: {errno} }}"));
        }
        scene.dismiss();
    }
}

fn a_script_without_a_first_line_is_run_by_sh(who: Who) {
    let scripts = tempfile::TempDir::new().unwrap();
    let script = scripts.path().join("script");
    fs::write(&script, "exit $1\n").unwrap();
    for path in [scripts.path(), &script] {
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        fs::set_permissions(path, mode).unwrap();
    }
    let mut scene = Scene::new(who, &[script.to_str().unwrap(), "9"], Props::default());
    scene.start(Deadlines::none());
    scene.expect("Started");
    scene.expect("Exited(Code(9))");
}

fn the_command_finds_everything_as_we_got_it(who: Who) {
    let input = tempfile::NamedTempFile::new().unwrap();
    fs::write(input.path(), "hello").unwrap();
    let props = Props {
        // First without us, for comparison.
        through: vec![
            "sh",
            "-c",
            "exec 9</etc/passwd; nice -n 3 \"$0\" --act report plain </dev/null; exec nice -n 3 \"$0\" \"$@\"",
        ],
        env: vec![("KEPT", "as it was"), ("REPLACED", "old")],
        stdin: Some(fs::File::open(input.path()).unwrap()),
        ..Props::default()
    };
    let mut scene = Scene::acting_with(who, &["report", "@/report"], props);
    let lock = scene.path("lock");
    fs::write(&lock, "").unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o666);
    fs::set_permissions(&lock, mode).unwrap();
    scene.start_with(Deadlines::none(), &lock, "REPLACED=new ADDED=x=y");
    scene.expect("Started");
    scene.expect("Exited(Code(0))");
    let report = fs::read_to_string(scene.path("report")).unwrap();
    let has = |line: &str| assert!(report.lines().any(|l| l == line), "{line} in\n{report}");
    has("stdin hello");
    has(&format!("cwd {}", scene.dir.path().display()));
    has("env KEPT=as it was");
    has("env REPLACED=new");
    has("env ADDED=x=y");
    assert!(!report.contains("REPLACED=old"));
    has("nice 3");
    has("policy 0");
    // What it would have got without us, and the lock: nothing of ours.
    let plain = fs::read_to_string(scene.path("plain")).unwrap();
    let fds = |report: &str| -> Vec<String> {
        let lines = report.lines().filter(|line| line.starts_with("fd "));
        // The listing itself.
        let lines = lines.filter(|line| !line.ends_with("/fd"));
        lines.map(ToOwned::to_owned).collect()
    };
    let mut expected = fds(&plain);
    assert!(expected.contains(&"fd 9 /etc/passwd".to_owned()));
    let (ours, others): (Vec<_>, Vec<_>) =
        fds(&report).into_iter().partition(|fd| fd.ends_with(&lock));
    assert_eq!(ours.len(), 1, "the lock");
    expected.retain(|fd| !fd.starts_with("fd 0 "));
    assert_eq!(
        others
            .iter()
            .filter(|fd| !fd.starts_with("fd 0 "))
            .collect::<Vec<_>>(),
        expected.iter().collect::<Vec<_>>()
    );
    let alike = |report: &str| -> Vec<String> {
        let names = [
            "Sig",
            "Shd",
            "Cap",
            "NoNewPrivs",
            "Uid",
            "Gid",
            "Groups",
            "Umask",
            "Max ",
            "oom",
            "nice",
            "policy",
            "Seccomp",
            "Cpus",
        ];
        let lines = report.lines().filter(|line| {
            names.iter().any(|name| line.starts_with(name)) && !line.starts_with("SigQ")
        });
        lines.map(ToOwned::to_owned).collect()
    };
    assert_eq!(alike(&report), alike(&plain));
    let field = |name: &str| {
        let line = report.lines().find(|line| line.starts_with(name));
        line.unwrap().rsplit('\t').next().unwrap().to_owned()
    };
    assert_eq!(field("SigBlk:"), "0000000000000000");
    assert_eq!(
        report.lines().find_map(|l| l.strip_prefix("pgrp ")),
        Some(field("Pid:").as_str())
    );
}

fn an_ignored_hangup_stays_ignored(who: Who) {
    let props = Props {
        through: vec!["sh", "-c", "trap '' HUP; exec \"$0\" \"$@\""],
        ..Props::default()
    };
    // SIGHUP is, SIGPIPE is not. (What spawns us may have the C library's own two ignored.)
    let show = ["grep", "-q", "^SigIgn:.[0-9a-f]*0001$", "/proc/self/status"];
    let mut scene = Scene::new(who, &show, props);
    scene.start(Deadlines::none());
    scene.expect("Started");
    scene.expect("Exited(Code(0))");
}

fn a_second_command_is_served_after_the_first(who: Who) {
    let mut scene = Scene::acting(who, &["family", "@/journal"]);
    for _ in 0..2 {
        scene.start_family(Deadlines::none(), 3);

        scene.say("kill");
        scene.expect("Exited(Signal(9))");
        scene.expect("TreeEmpty");
        scene.assert_all_dead();
        scene.forget();
    }
    scene.dismiss();
}

fn an_order_that_comes_too_late_is_not_started(who: Who) {
    let mut scene = Scene::acting(who, &["wait", "@/journal"]);
    scene.start(Deadlines {
        term_at: Instant::now(),
        kill_at: Instant::FOREVER,
    });
    scene.expect(&format!("NotStarted {{ errno: {} }}", libc::ETIME));
    assert!(proc::journal(&scene.path("journal")).is_empty());
}

fn the_whole_family_dies_at_the_deadline(who: Who) {
    let mut scene = Scene::acting(who, &["family", "@/journal"]);
    scene.start_family(Deadlines::none(), 3);
    let deadlines = Deadlines::within(1000, 1500);
    scene.give(deadlines);
    let (first, last) = scene.deaths();
    assert!(first >= deadlines.kill_at, "killed before the deadline");
    assert!(last < deadlines.kill_at + Duration::from_secs(20));
    let heard = scene.news_until("TreeEmpty");
    scene.assert_all_dead();
    assert_eq!(heard[0], "Acting");
    assert!(heard.contains(&"Exited(Signal(9))".to_owned()), "{heard:?}");
}

fn a_polite_command_ends_within_its_grace(who: Who) {
    let mut scene = Scene::acting(who, &["wait", "@/journal"]);
    scene.start_family(Deadlines::none(), 1);
    scene.give(Deadlines::within(0, FAR));
    scene.expect("Acting");
    scene.expect("Exited(Signal(15))");
    scene.expect("TreeEmpty");
    scene.assert_all_dead();
}

fn the_whole_family_dies_with_the_supervisor(who: Who) {
    let mut scene = Scene::acting(who, &["family", "@/journal"]);
    // A grace of half a second.
    scene.start_family(Deadlines::within(FAR, FAR + 500), 3);
    scene.entrust();
    scene.assert_all_alive();
    scene.signal_supervisor(libc::SIGKILL);
    scene.deaths();
    scene.assert_testament();
}

fn the_guardian_survives_the_death_of_the_supervisors_group(who: Who) {
    let mut scene = Scene::acting(who, &["family", "@/journal"]);
    scene.start_family(Deadlines::within(FAR, FAR + 100), 3);
    scene.entrust();
    proc::kill(-scene.supervisor_pid(), libc::SIGKILL);
    scene.deaths();
    scene.assert_testament();
}

fn a_second_guardian_does_not_hide_the_supervisors_death(who: Who) {
    let props = Props {
        env: vec![("SPARE_GUARDIAN", "1")],
        ..Props::default()
    };
    let mut scene = Scene::acting_with(who, &["family", "@/journal"], props);
    scene.start_family(Deadlines::within(FAR, FAR + 100), 3);
    scene.entrust();
    scene.signal_supervisor(libc::SIGKILL);
    scene.deaths();
    scene.assert_testament();
    scene.second.as_ref().unwrap().death();
}

fn a_will_is_carried_out_between_two_commands(who: Who) {
    let mut scene = Scene::acting(who, &["exit", "0"]);
    scene.start(Deadlines::none());
    scene.news_until("TreeEmpty");
    scene.entrust();
    scene.signal_supervisor(libc::SIGKILL);
    scene.assert_testament();
}

fn a_dismissed_guardian_carries_out_no_will(who: Who) {
    let mut scene = Scene::acting(who, &["exit", "0"]);
    scene.entrust();
    let testament = scene.path("testament");
    scene.say("dismiss");
    while scene.news() != "dismissed" {}
    scene.guardian.death();
    assert!(fs::metadata(testament).is_err());
}

fn the_supervisor_finishes_for_a_killed_guardian(who: Who) {
    let mut scene = Scene::acting(who, &["family", "@/journal"]);
    scene.start_family(Deadlines::none(), 3);
    scene.signal_guardian(libc::SIGKILL);
    scene.expect("Lost");
    scene.expect("TreeEmpty");
    scene.assert_all_dead();
}

fn the_supervisor_finishes_for_a_stopped_guardian(who: Who) {
    let mut scene = Scene::acting(who, &["family", "@/journal"]);
    scene.start_family(Deadlines::none(), 3);
    scene.signal_guardian(libc::SIGSTOP);
    scene.expect("Lost");
    scene.expect("TreeEmpty");
    scene.assert_all_dead();
    assert!(!scene.guardian.is_alive());
}

fn a_second_guardian_survives_the_rescue(who: Who) {
    let props = Props {
        env: vec![("SPARE_GUARDIAN", "1")],
        // A child that the supervisor was born with is not its to kill either.
        through: vec!["sh", "-c", "sleep 1000 & exec \"$0\" \"$@\""],
        ..Props::default()
    };
    let mut scene = Scene::acting_with(who, &["family", "@/journal"], props);
    let children = format!("/proc/{0}/task/{0}/children", scene.supervisor_pid());
    let before: Vec<i32> = ids(&children);
    assert_eq!(before.len(), 3, "sleep and two guardians");
    scene.start_family(Deadlines::none(), 3);
    scene.signal_guardian(libc::SIGKILL);
    scene.expect("Lost");
    scene.expect("TreeEmpty");
    scene.assert_all_dead();
    let mut after = ids(&children);
    after.push(scene.guardian.kin.pid);
    after.sort_unstable();
    let mut all = before.clone();
    all.sort_unstable();
    let stranger = before
        .iter()
        .find(|pid| **pid != scene.guardian.kin.pid && **pid != second(&scene));
    proc::kill(*stranger.unwrap(), libc::SIGKILL);
    assert_eq!(after, all);
}

fn second(scene: &Scene) -> i32 {
    scene.second.as_ref().unwrap().kin.pid
}

fn ids(path: &str) -> Vec<i32> {
    let text = fs::read_to_string(path).unwrap();
    text.split_whitespace()
        .map(|id| id.parse().unwrap())
        .collect()
}

fn the_command_dies_with_its_guardian(who: Who) {
    let mut scene = Scene::acting(who, &["deaf", "@/journal"]);
    scene.start_family(Deadlines::none(), 1);
    // Nobody but the kernel can do it now.
    scene.signal_supervisor(libc::SIGSTOP);
    scene.signal_guardian(libc::SIGKILL);
    scene.deaths();
}

fn a_stopped_supervisor_cannot_keep_the_family_alive(who: Who) {
    let mut scene = Scene::acting(who, &["family", "@/journal"]);
    scene.start_family(Deadlines::none(), 3);
    let deadlines = Deadlines::within(1000, 1500);
    scene.give(deadlines);
    scene.signal_supervisor(libc::SIGSTOP);
    let (first, last) = scene.deaths();
    assert!(first >= deadlines.kill_at, "killed before the deadline");
    assert!(last < deadlines.kill_at + Duration::from_secs(20));
    // What it says when it comes back is too late, and the guardian is not to blame.
    let (term_at, kill_at) = Deadlines::within(FAR, FAR).words();
    scene.say(&format!("extend {term_at} {kill_at}"));
    scene.signal_supervisor(libc::SIGCONT);
    let heard = scene.news_until("TreeEmpty");
    assert!(!heard.contains(&"Lost".to_owned()), "{heard:?}");
}

fn a_stopped_supervisor_does_not_blame_the_guardian(who: Who) {
    let mut scene = Scene::acting(who, &["family", "@/journal"]);
    scene.start_family(Deadlines::none(), 3);
    for _ in 0..3 {
        scene.signal_supervisor(libc::SIGSTOP);
        // Longer than any patience.
        sleep_until(Instant::now() + Duration::from_millis(1500));
        scene.signal_supervisor(libc::SIGCONT);
        // Two pings' time to draw a wrong conclusion.
        sleep_until(Instant::now() + Duration::from_millis(700));
        scene.assert_all_alive();
    }
    scene.say("kill");
    scene.expect("Exited(Signal(9))");
    scene.expect("TreeEmpty");
    scene.assert_all_dead();
}

fn a_renewal_that_waited_past_the_deadline_is_an_expiry(who: Who) {
    let mut scene = Scene::acting(who, &["family", "@/journal"]);
    scene.start_family(Deadlines::none(), 3);
    let deadlines = Deadlines::within(FAR, 3000);
    scene.give_for_sure(deadlines);
    scene.signal_guardian(libc::SIGSTOP);
    scene.give(Deadlines::within(FAR, FAR));
    // Before it can take the guardian for silent.
    scene.signal_supervisor(libc::SIGSTOP);
    assert!(
        Instant::now() < deadlines.kill_at,
        "a machine too slow for this case"
    );
    scene.await_deadline_of_stopped(deadlines);
    scene.signal_guardian(libc::SIGCONT);
    scene.deaths();
    scene.signal_supervisor(libc::SIGCONT);
    scene.expect("Acting");
    scene.expect("Exited(Signal(9))");
    scene.expect("TreeEmpty");
}

fn a_shorter_deadline_holds(who: Who) {
    let mut scene = Scene::acting(who, &["family", "@/journal"]);
    scene.start_family(Deadlines::within(FAR, FAR), 3);
    let shorter = Deadlines::within(400, 800);
    scene.give(shorter);
    let (first, _) = scene.deaths();
    assert!(first >= shorter.kill_at);
}

fn a_renewal_while_draining_moves_the_kill(who: Who) {
    let mut scene = Scene::acting(who, &["family", "@/journal"]);
    scene.start_family(Deadlines::none(), 3);
    let deadlines = Deadlines::within(FAR, 3000);
    scene.give(deadlines);
    let end = word(Instant::now() + LONG * 10);
    scene.do_now(&format!("drain 15 {end}"));
    scene.give(Deadlines::within(FAR, FAR));
    assert!(
        Instant::now() < deadlines.kill_at,
        "a machine too slow for this case"
    );
    sleep_until(deadlines.kill_at + Duration::from_millis(300));
    scene.assert_all_alive();
    // And the end of the grace comes when it was told to.
    let end = Instant::now() + Duration::from_millis(200);
    scene.say(&format!("drain 15 {}", word(end)));
    let (first, _) = scene.deaths();
    assert!(first >= end);
    let heard = scene.news_until("TreeEmpty");
    assert!(!heard.contains(&"Acting".to_owned()), "{heard:?}");
}

fn a_polite_daemon_that_was_left_behind_is_drained(who: Who) {
    let mut scene = Scene::acting(who, &["leave", "@/journal"]);
    scene.start(Deadlines::within(FAR, FAR * 2));
    scene.expect("Started");
    scene.expect("Exited(Code(3))");
    scene.expect("LeftBehind");
    scene.expect("TreeEmpty");
    scene.meet(1);
    scene.assert_all_dead();
}

fn a_deaf_family_that_was_left_behind_is_killed(who: Who) {
    let mut scene = Scene::acting(who, &["leave-deaf", "@/journal"]);
    // A grace of 400 ms.
    scene.start(Deadlines::within(FAR, FAR + 400));
    scene.expect("Started");
    scene.expect("Exited(Code(3))");
    scene.expect("LeftBehind");
    scene.expect("TreeEmpty");
    scene.meet(2);
    scene.assert_all_dead();
    scene.dismiss();
}

fn the_lock_lives_as_long_as_the_tree(who: Who) {
    let mut scene = Scene::acting(who, &["deaf", "@/journal"]);
    let lock = scene.path("lock");
    fs::write(&lock, "").unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o666);
    fs::set_permissions(&lock, mode).unwrap();
    let is_free = || {
        let file = fs::File::options().write(true).open(&lock).unwrap();
        proc::try_lock(&file)
    };
    for _ in 0..2 {
        scene.start_with(Deadlines::none(), &lock, "");
        scene.expect("Started");
        scene.meet(1);
        assert!(!is_free());
        scene.say("kill");
        scene.news_until("TreeEmpty");
        // Our word that the tree is empty is the word that the lock is free.
        assert!(is_free());
        scene.forget();
    }
    // With the guardian dead and the supervisor unable, the command still holds it.
    scene.start_with(Deadlines::within(FAR, FAR + 500), &lock, "");
    scene.expect("Started");
    scene.meet(1);
    scene.signal_supervisor(libc::SIGKILL);
    assert!(!is_free() || !scene.main().is_alive());
    scene.deaths();
    scene.guardian.death();
    assert!(is_free());
}

fn a_stopped_command_is_told_of_and_resumed(who: Who) {
    let mut scene = Scene::acting(who, &["wait", "@/journal"]);
    scene.start_family(Deadlines::none(), 1);
    scene.say(&format!("signal {}", libc::SIGTSTP));
    scene.expect("Stopped");
    let main = scene.main().kin.pid;
    await_stopped(main);
    scene.say("resume");
    proc::wait_for("the command to go on", || {
        matches!(proc::stat(main), Some(('S' | 'R', _))).then_some(())
    });
    // A stopped command is continued when it is to end.
    scene.say(&format!("signal {}", libc::SIGTSTP));
    scene.expect("Stopped");
    scene.say(&format!("drain 15 {}", word(Instant::FOREVER)));
    scene.expect("Exited(Signal(15))");
    scene.expect("TreeEmpty");
}

/// A lock that is free again only when nothing of the tree lives.
fn lock_in(scene: &Scene) -> String {
    let lock = scene.path("lock");
    fs::write(&lock, "").unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o666);
    fs::set_permissions(&lock, mode).unwrap();
    lock
}

/// In a namespace the kernel kills all. Elsewhere this is the weakness that the manual tells of: the
/// main process dies with the guardian, what has left it lives on, and a cgroup is only killed by
/// the next of us that starts beside it.
fn both_killed_at_once(who: Who) {
    let mut scene = Scene::acting(who, &["family", "@/journal"]);
    let lock = lock_in(&scene);
    scene.start_with(Deadlines::none(), &lock, "");
    scene.expect("Started");
    scene.meet(3);
    // Stopped first, so that neither can act before the other is dead.
    scene.signal_guardian(libc::SIGSTOP);
    scene.signal_supervisor(libc::SIGSTOP);
    scene.signal_guardian(libc::SIGKILL);
    scene.signal_supervisor(libc::SIGKILL);
    if who.contain == Contain::Pidns {
        let file = fs::File::options().write(true).open(&lock).unwrap();
        proc::wait_for("the lock", || proc::try_lock(&file).then_some(()));
        scene.assert_all_dead();
        return;
    }
    scene.main().death();
    scene.assert_some_alive();
    if who.contain == Contain::Cgroup {
        scene.supervisor.wait().unwrap();
        scene.guardian.death();
        let next = Scene::acting(who, &["exit", "0"]);
        scene.deaths();
        next.dismiss();
    }
}

/// The guardian is continued by the kernel when its group is orphaned, and finds itself alone.
fn a_stopped_guardian_and_a_killed_supervisor(who: Who) {
    let mut scene = Scene::acting(who, &["family", "@/journal"]);
    // No grace.
    scene.start_family(Deadlines::within(FAR, FAR), 3);
    scene.entrust();
    scene.signal_supervisor(libc::SIGSTOP);
    scene.signal_guardian(libc::SIGSTOP);
    scene.signal_supervisor(libc::SIGKILL);
    scene.deaths();
    scene.assert_testament();
}

/// Where the group is not orphaned, the guardian stays stopped, and only a namespace has another
/// who looks at the clock.
fn a_guardian_that_stays_stopped_and_a_killed_supervisor(who: Who) {
    let props = Props {
        nursery: true,
        ..Props::default()
    };
    let mut scene = Scene::acting_with(who, &["family", "@/journal"], props);
    let lock = lock_in(&scene);
    scene.start_with(Deadlines::none(), &lock, "");
    scene.expect("Started");
    scene.meet(3);
    let deadlines = Deadlines::within(FAR, 1500);
    scene.give_for_sure(deadlines);
    scene.signal_supervisor(libc::SIGSTOP);
    scene.signal_guardian(libc::SIGSTOP);
    scene.signal_supervisor(libc::SIGKILL);
    scene.await_deadline_of_stopped(deadlines);
    let file = fs::File::options().write(true).open(&lock).unwrap();
    assert!(!proc::try_lock(&file), "the guardian has it");
    scene.signal_guardian(libc::SIGCONT);
    scene.deaths();
    scene.guardian.death();
    proc::wait_for("the lock", || proc::try_lock(&file).then_some(()));
}

fn both_stopped(who: Who) {
    let mut scene = Scene::acting(who, &["family", "@/journal"]);
    scene.start_family(Deadlines::none(), 3);
    let deadlines = Deadlines::within(FAR, 1500);
    scene.give_for_sure(deadlines);
    scene.signal_supervisor(libc::SIGSTOP);
    scene.signal_guardian(libc::SIGSTOP);
    scene.await_deadline_of_stopped(deadlines);
    scene.signal_guardian(libc::SIGCONT);
    scene.deaths();
    scene.signal_supervisor(libc::SIGCONT);
    scene.news_until("TreeEmpty");
    scene.assert_all_dead();
    scene.dismiss();
}

fn an_idle_guardian_is_left_in_peace(who: Who) {
    let mut scene = Scene::acting(who, &["exit", "0"]);
    scene.start(Deadlines::none());
    scene.news_until("TreeEmpty");
    let path = format!("/proc/{}/status", scene.guardian.kin.pid);
    let switches = || {
        let text = fs::read_to_string(&path).unwrap();
        let line = text.lines().find(|l| l.starts_with("voluntary"));
        line.unwrap().to_owned()
    };
    proc::wait_for("the guardian to rest", || {
        let before = switches();
        sleep_until(Instant::now() + Duration::from_millis(1200));
        (switches() == before).then_some(())
    });
}

fn the_guardian_does_not_bear_our_name(who: Who) {
    let scene = Scene::acting(who, &["exit", "0"]);
    let read = |name: &str| {
        let path = format!("/proc/{}/{name}", scene.guardian.kin.pid);
        fs::read_to_string(path).unwrap()
    };
    proc::wait_for("the name and the command line to be changed", || {
        (read("comm") == "tc-guardian\n" && read("cmdline").trim_end_matches('\0') == "tc-guardian")
            .then_some(())
    });
}
