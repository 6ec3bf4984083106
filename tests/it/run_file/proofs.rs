//! Proof instead of belief: processes that may be alive keep the lock, and an instance that could
//! not prove their end does not start.

use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use nix::sys::resource::Resource;
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, geteuid};
use trafficcop::Instant;

use super::{A_TREE, instance, let_end};
use crate::support::await_for;
use crate::support::instance::{Ended, assert_ended};
use crate::support::journal::What;
use crate::support::namespaces::unshared_or_say_so;
use crate::support::processes::{MARK, await_stopped};
use crate::support::programs::trafficcop;
use crate::support::scene::Scene;

/// Runs a script as process 1 of a PID namespace; `None` where that is not possible.
fn in_another_namespace(scene: &Scene, options: &[&str], script: &str) -> Option<Output> {
    let options = [&["--pid", "--fork", "--kill-child"][..], options].concat();
    let mut command = unshared_or_say_so(&options, "exec \"$@\"")?;
    command.args(["sh", "-c", script]);
    command.env(MARK, scene.directory());
    Some(command.output().expect("it was tried"))
}

#[test]
fn process_1_reaps_the_orphans_that_it_adopts() {
    let scene = Scene::new();
    let (program, lock) = (trafficcop(), scene.lock().display().to_string());
    let orphan = scene.path("orphan").display().to_string();
    // Apart from the command, like a leftover of `docker exec`.
    let script = format!(
        "sh -c 'sleep 1 & echo $! >{orphan}' &
        exec '{program}' run --contain none --file '{lock}' -- sh -c '
            for i in $(seq 300); do
                [ -s {orphan} ] && [ ! -e /proc/$(cat {orphan}) ] && exit 0
                sleep 0.1
            done
            exit 3'"
    );
    let Some(output) = in_another_namespace(&scene, &["--mount-proc"], &script) else {
        return;
    };
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{said}");
}

#[test]
fn proc_of_another_namespace_is_refused() {
    let scene = Scene::new();
    let (program, lock) = (trafficcop(), scene.lock().display().to_string());
    let begun = scene.path("begun").display().to_string();
    for contain in ["auto", "none", "cgroup", "pidns"] {
        let script = format!(
            "'{program}' run --contain {contain} --file '{lock}' -- touch '{begun}'; echo $?"
        );
        let Some(output) = in_another_namespace(&scene, &[], &script) else {
            return;
        };
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.stdout, b"69\n", "--contain {contain}: {said}");
        assert!(said.contains("/proc is another PID namespace's"), "{said}");
        assert!(said.contains("mount -t proc proc /proc"), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
        assert!(!scene.path("begun").exists(), "--contain {contain}");
    }
}

/// `unshare --pid` without `--fork`: children are in a namespace without the instance.
#[test]
fn pid_namespace_for_children_only_is_refused() {
    if !geteuid().is_root() {
        return println!("NOT TESTED: it takes root");
    }
    let scene = Scene::new();
    let begun = scene.path("begun");
    let mut command = Command::new("unshare");
    command.args(["--pid", trafficcop(), "run", "--contain", "none", "--file"]);
    command.arg(scene.lock()).args(["--", "touch"]).arg(&begun);
    command.env(MARK, scene.directory()).stdin(Stdio::null());
    let output = command.output().expect("unshare");
    let said = String::from_utf8_lossy(&output.stderr);
    if said.starts_with("unshare:") {
        return println!("NOT TESTED on this machine: no namespace: {said}");
    }
    assert_eq!(output.status.code(), Some(69), "{said}");
    assert!(said.contains("unshare --fork"), "{said}");
    assert!(!begun.exists());
}

/// The guardian dies after its /proc was unmounted, and the one below shows other processes: only
/// the kernel can tell whether a daemon of the command lives.
#[test]
fn a_list_of_strangers_is_not_taken_for_an_empty_tree() {
    let scene = Scene::new();
    let (program, lock) = (trafficcop(), scene.lock().display().to_string());
    let at = scene.directory().display().to_string();
    // Not the number of an important process outside: 1 and 2 have children.
    let script = format!(
        r#"cd '{at}'
        daemon='setsid sh -c "echo \$\$ > pid; mv pid daemon; exec sleep 600" > daemon.log 2>&1'
        daemon="$daemon 3>&- 4>&- 5>&- 6>&- 7>&- 8>&- 9>&- &"
        for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15; do true & done
        '{program}' run -v --contain none --file '{lock}' -- sh -c "$daemon exec sleep 600" 2> log &
        supervisor=$!
        until test -e daemon; do sleep 0.01; done
        guardian=$(cat /proc/$supervisor/task/$supervisor/children)
        umount -l /proc
        kill -9 $guardian
        until grep -q "this process keeps the lock" log; do sleep 0.01; done
        kill -9 $(cat daemon)
        wait $supervisor
        echo $?"#
    );
    let Some(output) = in_another_namespace(&scene, &["--mount-proc"], &script) else {
        return;
    };
    let said = std::fs::read_to_string(scene.path("log")).unwrap_or_default();
    assert_eq!(output.stdout, b"71\n", "{said}{output:?}");
    assert!(!said.contains("gave the lock back"), "{said}");
    assert!(said.contains("cannot be killed"), "{said}");
}

fn limit_files(pid: i32, most: u64) {
    let limit = nix::libc::rlimit {
        rlim_cur: most,
        rlim_max: most,
    };
    let which = Resource::RLIMIT_NOFILE as u32;
    // SAFETY: a valid limit to be read; nothing is written back.
    let done = unsafe { nix::libc::prlimit(pid, which, &raw const limit, std::ptr::null_mut()) };
    assert_eq!(done, 0, "the limit of {pid}");
}

#[test]
fn without_a_duplicate_of_the_lock_s_descriptor_the_command_is_not_started() {
    for guardian_s in [false, true] {
        let scene = Scene::new();
        let (hook, go) = (scene.path("hook"), scene.path("go"));
        let script = format!(
            "touch '{}'; until test -e '{}'; do sleep 0.01; done",
            hook.display(),
            go.display()
        );
        let one = scene
            .run_on_file()
            .args(["--contain", "none", "--on-acquire", &script])
            .journalist("one", &[])
            .start();
        await_for("the hook", || hook.exists().then_some(()), || one.stderr());
        // The hook got the lock's; none is free for the command.
        limit_files(
            if guardian_s {
                one.guardian()
            } else {
                one.pid()
            },
            4,
        );
        std::fs::write(&go, "").unwrap();
        let one = one.finish();
        assert_ended(&one, 69, "Too many open files");
        assert!(one.stderr.contains("check its limits"));
        assert!(one.stderr.contains("gave the lock back"), "{}", one.stderr);
        assert!(scene.journal.lines().is_empty(), "{}", scene.journal);
    }
}

#[test]
fn on_a_local_file_a_dead_supervisor_s_command_has_the_grace_of_a_stop() {
    let scene = Scene::new();
    let mut one = instance(&scene, "one", &["--grace", "1s"], &A_TREE);
    scene.journal.await_tag(What::Beat, "one/daemon");
    let killed = Instant::now();
    one.signal(Signal::SIGKILL);
    one.wait();
    scene.await_nobody();
    let took = Instant::now().since(killed);
    // Without --grace-on-loss, which a lock without a deadline does not use: 10 s.
    assert!((1..6).contains(&took.as_secs()), "{took:?}");
}

fn cgroups() -> Option<PathBuf> {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").ok()?;
    let line = mounts.lines().find(|line| line.contains(" - cgroup2 "))?;
    Some(line.split(' ').nth(4)?.into())
}

/// A standby waits on the dead holder's machine. The holder's cgroup ends before the standby's
/// command starts, and is removed.
#[test]
fn a_standby_ends_what_a_dead_holder_left_before_its_own_command_starts() {
    let scene = Scene::new();
    let contained = ["--contain", "cgroup"];
    let tried = scene
        .run_on_file()
        .args(contained)
        .command(["true"])
        .finish();
    if tried.ended != Ended::Code(0) {
        println!("NOT TESTED on this machine: {}", tried.stderr);
        return;
    }
    let mut one = instance(&scene, "one", &contained, &["--term", "ignore", "--daemon"]);
    let daemon = scene.journal.await_tag(What::Beat, "one/daemon");
    let place = std::fs::read_to_string(format!("/proc/{}/cgroup", daemon.pid)).unwrap();
    let place = place.lines().find_map(|line| line.strip_prefix("0::/"));
    let place = cgroups().unwrap().join(place.unwrap());
    assert!(place.exists(), "{}", place.display());
    let two = instance(&scene, "two", &contained, &[]);
    two.await_log("standing by");
    let guardian = one.guardian();
    one.freeze();
    let send = |signal| kill(Pid::from_raw(guardian), signal).unwrap();
    send(Signal::SIGSTOP);
    await_stopped(guardian);
    send(Signal::SIGKILL);
    one.signal(Signal::SIGKILL);
    one.wait();
    scene.journal.await_sign_of_life("two");
    assert!(!place.exists(), "{} is left", place.display());
    let_end(&scene, "two");
    let two = two.finish();
    assert_eq!(two.ended, Ended::Code(0), "{}", two.stderr);
    // No beat of the first's daemon lies in the second's tenure.
    assert_eq!(scene.journal.judge(), ["one", "two"]);
    scene.await_nobody();
}
