use super::*;

pub(super) fn an_exit_status_is_told_as_it_was(who: Who) {
    let mut scene = Scene::acting(who, &["exit", "7"]);
    scene.start(Deadlines::none());
    scene.expect("Started");
    scene.expect("Exited(Code(7))");
    scene.expect("TreeEmpty");
    scene.dismiss();
}

pub(super) fn a_deadly_signal_is_told_as_it_was(who: Who) {
    let mut scene = Scene::acting(who, &["die", "34"]);
    scene.start(Deadlines::none());
    scene.expect("Started");
    scene.expect("Exited(Signal(34))");
    scene.expect("TreeEmpty");
}

pub(super) fn what_cannot_be_run_is_told_by_its_error_number(who: Who) {
    for (command, errno) in [
        ("no-such-command", libc::ENOENT),
        ("/etc/passwd", libc::EACCES),
        ("/etc/passwd/x", libc::ENOTDIR),
        ("", libc::ENOENT),
    ] {
        let props = Props {
            // Every user can search these; otherwise EACCES would be right.
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

pub(super) fn a_script_without_a_first_line_is_run_by_sh(who: Who) {
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

pub(super) fn the_command_finds_everything_as_we_got_it(who: Who) {
    let input = tempfile::NamedTempFile::new().unwrap();
    fs::write(input.path(), "hello").unwrap();
    let props = Props {
        // Without trafficcop, for comparison.
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
    has("policy 0");
    // Compared below: these tests may be nice themselves.
    assert!(!report.lines().any(|line| line == "nice 0"));
    // As without trafficcop, and the lock.
    let plain = fs::read_to_string(scene.path("plain")).unwrap();
    let fds = |report: &str| -> Vec<String> {
        let lines = report.lines().filter(|line| line.starts_with("fd "));
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

pub(super) fn an_ignored_hangup_stays_ignored(who: Who) {
    let props = Props {
        through: vec!["sh", "-c", "trap '' HUP; exec \"$0\" \"$@\""],
        ..Props::default()
    };
    // SIGHUP is, SIGPIPE is not. (The tests' parent may ignore the C library's own two.)
    let show = ["grep", "-q", "^SigIgn:.[0-9a-f]*0001$", "/proc/self/status"];
    let mut scene = Scene::new(who, &show, props);
    scene.start(Deadlines::none());
    scene.expect("Started");
    scene.expect("Exited(Code(0))");
}

pub(super) fn a_second_command_is_served_after_the_first(who: Who) {
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

pub(super) fn an_order_that_comes_too_late_is_not_started(who: Who) {
    let mut scene = Scene::acting(who, &["wait", "@/journal"]);
    scene.start(Deadlines {
        term_at: Instant::now(),
        kill_at: Instant::FOREVER,
    });
    scene.expect(&format!("NotStarted {{ errno: {} }}", libc::ETIME));
    assert!(proc::journal(&scene.path("journal")).is_empty());
}

pub(super) fn a_stopped_command_is_told_of_and_resumed(who: Who) {
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
