//! Namespaces for processes that tests start. Many containers deny them, and some machines deny
//! them to unprivileged users.

use std::process::{Command, Stdio};

use nix::unistd::geteuid;

/// Returns a command that runs this script of sh in new namespaces, by options of unshare(1);
/// arguments added to it are the script's `"$@"`. Prints why and returns `None` if the script fails
/// even with `true`.
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

/// Whether `Run::with_tmpfs` and `Run::with_run` work here.
#[must_use]
pub(crate) fn mounts_or_say_so() -> bool {
    unshared_or_say_so(&["--mount"], "mount -t tmpfs none /dev && exec \"$@\"").is_some()
}

#[must_use]
pub(crate) fn network_or_say_so() -> bool {
    unshared_or_say_so(&["--net"], "exec \"$@\"").is_some()
}
