//! Commands and lock files that cannot work.

use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use super::{judge, refused};
use crate::support::await_for;
use crate::support::instance::{Ended, assert_ended};
use crate::support::namespaces::{mounts_or_say_so, unshared_or_say_so};
use crate::support::scene::Scene;

/// Commands that fail to start: the lock file exists afterwards, and is free.
#[test]
fn commands_that_cannot_be_run() {
    let scene = Scene::new();
    let script = scene.path("script");
    std::fs::write(&script, "#!/no/such/interpreter\n").unwrap();
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).unwrap();
    let plain = scene.path("plain");
    std::fs::write(&plain, "text\n").unwrap();
    for (command, status, word) in [
        ("no-such-command-anywhere", 127, "no-such-command-anywhere"),
        (
            "echo a line for a shell",
            127,
            "-- sh -c 'echo a line for a shell'",
        ),
        (script.to_str().unwrap(), 127, "does not exist"),
        (plain.to_str().unwrap(), 126, "cannot run"),
        (scene.directory().to_str().unwrap(), 126, "cannot run"),
    ] {
        let run = scene.run_on_file().env("PATH", "/usr/bin:/bin");
        let finished = run.command([command]).finish();
        judge(&scene, &finished.stderr, finished.ended, status, &[word]);
    }
    let after = scene.run_on_file().arg("-n").command(["true"]).finish();
    assert_eq!(
        after.ended,
        Ended::Code(0),
        "the lock was not given back: {}",
        after.stderr
    );
}

#[test]
fn standby_that_could_never_run_is_refused_at_its_start() {
    let scene = Scene::new();
    let holder = scene
        .run_on_file()
        .arg("-q")
        .shell("echo begun; exec sleep 1000")
        .start();
    await_for(
        "a holder",
        || holder.stdout().contains("begun").then_some(()),
        || holder.stderr(),
    );
    let plain = scene.path("plain");
    std::fs::write(&plain, "text\n").unwrap();
    let nowhere = scene.path("no/such/directory/file");
    let nowhere = nowhere.to_str().unwrap();
    let long = scene.path(&"a".repeat(256)).to_str().unwrap().to_owned();
    for (flags, command, status, word) in [
        (&[][..], "no-such-command-anywhere", 127, "cannot run"),
        (&[], "./no/such/path", 127, "cannot run"),
        (&[], plain.to_str().unwrap(), 126, "make it executable"),
        (&["--status-file", nowhere], "true", 64, "no such directory"),
        (&["--event-log", nowhere], "true", 64, "no such directory"),
        (&["--status-file", &long], "true", 64, "too long"),
        (&["--event-log", &long], "true", 64, "too long"),
    ] {
        let run = scene.run_on_file().env("PATH", "/usr/bin:/bin").args(flags);
        let finished = run.command([command]).finish();
        assert_ended(&finished, status, word);
        assert!(
            !finished.stderr.contains("standing by"),
            "{}",
            finished.stderr
        );
    }
    // A hook may create the command.
    let other = scene.path("other.lock");
    let job = scene.path("job");
    let bring = format!("cp /bin/true {}", job.display());
    let run = scene.run().arg("--file").arg(&other);
    let finished = run.args(["--on-acquire", &bring]).command([&job]).finish();
    assert_ended(&finished, 0, "warning: cannot run");
}

/// A command is missing only if every directory could be searched, as with `env` and `timeout`.
#[test]
fn a_command_in_a_directory_that_may_not_be_searched_is_not_taken_for_missing() {
    let scene = Scene::new();
    let closed = scene.path("closed");
    std::fs::create_dir(&closed).unwrap();
    std::fs::copy("/bin/true", closed.join("job")).unwrap();
    std::fs::set_permissions(&closed, std::fs::Permissions::from_mode(0o000)).unwrap();
    let directory = closed.to_str().unwrap();
    let path = format!("{directory}/job");
    for (name, search, status, word) in [
        (&*path, "/bin", 126, "Permission denied"),
        ("job", directory, 126, "is not searchable"),
        // Found in another directory; or missing from all that may be searched.
        ("true", &format!("{directory}:/bin"), 0, ""),
        ("job", "/bin", 127, "No such file"),
        ("/etc/passwd/job", "/bin", 126, "Not a directory"),
    ] {
        let run = scene.run_on_file().env("PATH", search);
        let finished = run.bound_by_permissions().command([name]).finish();
        assert_ended(&finished, status, word);
    }
    std::fs::set_permissions(&closed, std::fs::Permissions::from_mode(0o700)).unwrap();
}

#[test]
fn removed_working_directory_is_an_error_that_names_the_path() {
    let scene = Scene::new();
    let gone = scene.path("gone");
    for verb in [
        "run -n",
        "run -n --shared",
        "status",
        "list",
        "doctor",
        "watch",
    ] {
        std::fs::create_dir(&gone).unwrap();
        let command = if verb.starts_with("run") {
            "-- true"
        } else {
            ""
        };
        let script = format!(
            "cd {0} && rmdir {0} && exec {1} {verb} --file a.lock {command}",
            gone.display(),
            env!("CARGO_BIN_EXE_trafficcop")
        );
        let done = Command::new("sh").args(["-c", &script]).output().unwrap();
        let said = String::from_utf8_lossy(&done.stderr);
        assert_eq!(done.status.code(), Some(69), "{verb}: {said}");
        let words = "error: a.lock: cannot be made absolute";
        assert!(said.contains(words), "{verb}: {said}");
    }
}

/// Conditions that may pass have a status that service managers restart on.
#[test]
fn temporary_refusal_of_the_machine_exits_69() {
    let scene = Scene::new();
    for (shell, words) in [
        ("ulimit -n 8; exec \"$@\"", "Too many open files"),
        (
            "ulimit -f 0; exec \"$@\"",
            "raise the limit of files' sizes (ulimit -f)",
        ),
        // It can report only on stderr.
        (
            "mount -t tmpfs none /dev && exec \"$@\" <&-",
            "no /dev/null to put in its place",
        ),
        ("umount -l /proc && exec \"$@\"", "/proc"),
    ] {
        let Some(mut unshared) = unshared_or_say_so(&["--mount"], shell) else {
            continue;
        };
        let output = unshared
            .args([env!("CARGO_BIN_EXE_trafficcop"), "run", "-q"])
            .args(["--contain", "none", "--file"])
            .arg(scene.lock())
            .args(["--", "true"])
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(69), "{said}");
        assert!(said.contains(words), "{said}");
    }
}

/// Without a /dev, as in some containers.
#[test]
fn hook_has_an_empty_stdin_without_dev_null() {
    let scene = Scene::new();
    let shell = "mount -t tmpfs none /dev && exec \"$@\"";
    let Some(mut unshared) = unshared_or_say_so(&["--mount"], shell) else {
        return;
    };
    let output = unshared
        .args([env!("CARGO_BIN_EXE_trafficcop"), "run", "-n", "-q"])
        .args(["--on-acquire", "cat", "--file"])
        .arg(scene.lock())
        .args(["--", "true"])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{said}");
}

#[test]
fn lock_files_that_cannot_be() {
    let scene = Scene::new();
    let file = |path: &str| scene.run().arg("--file").arg(scene.path(path));
    refused(
        &scene,
        file("no/such/lock"),
        69,
        &["no/such/lock", "directory"],
    );
    let long = "a".repeat(300);
    refused(&scene, file(&long), 69, &["name is too long: take"]);
    std::os::unix::fs::symlink("circle", scene.path("circle")).unwrap();
    refused(&scene, file("circle"), 69, &["lead in a circle: name"]);
    std::fs::create_dir(scene.path("directory")).unwrap();
    refused(
        &scene,
        file("directory"),
        69,
        &["directory", "name a file in it"],
    );
    std::fs::write(scene.path("letter"), "Dear Sir or Madam,\n").unwrap();
    refused(&scene, file("letter"), 69, &["letter", "not a lock record"]);
    let kept = std::fs::read_to_string(scene.path("letter")).unwrap();
    assert_eq!(
        kept, "Dear Sir or Madam,\n",
        "other people's files are theirs"
    );
    refused(
        &scene,
        scene.run().args(["--file", "/dev/null"]),
        69,
        &["regular file"],
    );
    refused(&scene, scene.run().args(["--file", ""]), 64, &["--file"]);
}

#[test]
fn a_lock_file_without_permission() {
    let scene = Scene::new();
    let lock = scene.lock();
    std::fs::write(&lock, "").unwrap();
    std::fs::set_permissions(&lock, std::fs::Permissions::from_mode(0o444)).unwrap();
    let run = scene.run_on_file().bound_by_permissions();
    refused(&scene, run, 77, &["singleton.lock", "permission"]);
}

#[test]
fn a_lock_file_on_a_read_only_file_system() {
    if !mounts_or_say_so() {
        return;
    }
    let scene = Scene::new();
    let mount = scene.path("mount");
    std::fs::create_dir(&mount).unwrap();
    let run = scene
        .run()
        .with_tmpfs(&mount, 0)
        .arg("--file")
        .arg(mount.join("lock"));
    refused(&scene, run, 69, &["mount/lock", "read-only"]);
}

#[test]
fn a_lock_file_on_a_full_file_system() {
    if !mounts_or_say_so() {
        return;
    }
    let scene = Scene::new();
    let mount = scene.path("mount");
    std::fs::create_dir(&mount).unwrap();
    // One page long; the shell takes it, then becomes the program.
    let lock = mount.join("lock");
    let run = scene
        .run()
        .with_tmpfs(&mount, 1)
        .with_full(&mount)
        .arg("--file")
        .arg(&lock);
    refused(&scene, run, 69, &["mount/lock", "room"]);
}

#[test]
fn doctor_advises_to_make_room_on_a_full_file_system() {
    if !mounts_or_say_so() {
        return;
    }
    let scene = Scene::new();
    let mount = scene.path("mount");
    std::fs::create_dir(&mount).unwrap();
    let doctor = scene
        .verb("doctor")
        .with_tmpfs(&mount, 1)
        .with_full(&mount)
        .arg("--file")
        .arg(mount.join("lock"));
    let found = doctor.finish().stdout;
    let mut lines = found.lines();
    let line = lines.find(|line| line.starts_with("fail  ") && line.contains("No space left"));
    assert!(
        line.is_some_and(|line| line.contains("make room")),
        "{found}"
    );
}

/// The files at the path, not a flag, make it a shared drive.
#[test]
fn a_cooldown_in_which_no_standby_of_a_shared_drive_looks() {
    let scene = Scene::new();
    let first = scene.run_on_file().arg("--shared").command(["true"]);
    assert_eq!(first.finish().ended, Ended::Code(0));
    for cooldown in ["100ms", "2s"] {
        let run = scene.run_on_file().args(["--max-hold", "1m"]);
        let run = run.args(["--cooldown", cooldown]);
        refused(&scene, run, 64, &["--cooldown", "take 2s400ms or more"]);
    }
}
