//! Namespaces of their own for what tests start. They are not to be had everywhere: many containers deny them, and
//! some machines do so to whoever is not root.

use std::process::{Command, Stdio};

use nix::unistd::geteuid;

/// What runs this script of sh in namespaces of its own, of the kinds that these options of unshare(1) name; what
/// is added to it is the script's `"$@"`. `None`, and said, where the script does not even succeed with `true`.
#[must_use]
pub(crate) fn unshared_or_say_so(options: &[&str], script: &str) -> Option<Command> {
    let begin = || {
        let mut command = Command::new("unshare");
        if !geteuid().is_root() {
            command.arg("--map-root-user");
        }
        command.args(options).args(["sh", "-c", script, "sh"]);
        command.stdin(Stdio::null());
        command
    };
    match begin().arg("true").output() {
        Ok(tried) if tried.status.success() => Some(begin()),
        tried => {
            println!("NOT TESTED on this machine: no namespace for {script:?}: {tried:?}");
            None
        }
    }
}

/// Whether an instance can be started with mounts of its own (`Run::with_tmpfs`, `Run::with_run`).
#[must_use]
pub(crate) fn mounts_or_say_so() -> bool {
    unshared_or_say_so(&["--mount"], "mount -t tmpfs none /dev && exec \"$@\"").is_some()
}

/// Whether one can be started without a network.
#[must_use]
pub(crate) fn network_or_say_so() -> bool {
    unshared_or_say_so(&["--net"], "exec \"$@\"").is_some()
}
