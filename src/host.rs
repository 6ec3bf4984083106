//! The machine, the process, and its environment.
//!
//! It must never show a value of the environment: some are secrets.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt as _;
use std::path::PathBuf;

use crate::deadline::{Deadline, VARIABLE};
use crate::procfs;
use crate::util::is_unprintable;

// Shells within shells make about ten.
const ANCESTORS: usize = 64;

// In bytes: a blob's metadata has 8 KiB in total.
const IDENTITY_LIMIT: usize = 128;

#[derive(Clone, Debug)]
pub struct Host {
    pub host: String,
    pub pid: u32,
    /// Seed that spreads polls and retries.
    pub seed: u64,
    /// Locks that other trafficcops hold for the commands that this process belongs to.
    pub outer: Vec<String>,
}

impl Host {
    /// Returns this machine and process.
    #[must_use]
    pub fn here() -> Host {
        let host = nix::unistd::gethostname().unwrap_or_default();
        Host {
            host: host.to_string_lossy().into_owned(),
            pid: std::process::id(),
            seed: azure_core::Uuid::new_v4().as_u64_pair().0,
            outer: outer(),
        }
    }

    /// Returns the default name of an instance.
    #[must_use]
    pub fn identity(&self) -> String {
        format!("{}-{}", self.host, self.pid)
    }
}

/// Returns the outer locks, the nearest first.
fn outer() -> Vec<String> {
    let mut locks: Vec<String> = held(|name| std::env::var_os(name)).into_iter().collect();
    // Most processes are inside no command, and the way up costs files of /proc.
    let mut process = match locks.is_empty() {
        true => return locks,
        false => "self".to_owned(),
    };
    for _ in 0..ANCESTORS {
        let Some(parent) = parent_of(&process) else {
            break;
        };
        // Another user's environment cannot be read.
        let environment = std::fs::read(format!("/proc/{parent}/environ")).unwrap_or_default();
        let lock = held(|name| value_in(&environment, name));
        locks.extend(lock.filter(|lock| !locks.contains(lock)));
        process = parent;
    }
    locks
}

/// Returns the lock of a command that is in control.
fn held(told: impl Fn(&str) -> Option<OsString>) -> Option<String> {
    let lock = told("TRAFFICCOP_LOCK")?.into_string().ok()?;
    // A standby command gets the lock's name, too. A daemon may have outlived its command.
    let holds = told("TRAFFICCOP_ROLE").is_some_and(|role| role == "holder");
    let deadline = Deadline::open(told(VARIABLE)?.as_ref());
    let lasts = deadline.is_ok_and(|deadline| deadline.in_control());
    (holds && lasts).then_some(lock)
}

fn parent_of(process: &str) -> Option<String> {
    let status = procfs::text(&format!("/proc/{process}/status")).ok()?;
    let parent = status.lines().find_map(|line| line.strip_prefix("PPid:"));
    parent.map(|id| id.trim().to_owned()).filter(|id| id != "0")
}

/// Reads the contents of /proc/PID/environ.
fn value_in(environment: &[u8], name: &str) -> Option<OsString> {
    let mut variables = environment.split(|byte| *byte == 0);
    variables.find_map(|variable| {
        let value = variable.strip_prefix(name.as_bytes())?;
        Some(OsString::from_vec(value.strip_prefix(b"=")?.to_vec()))
    })
}

/// Returns a variable; empty counts as unset.
#[must_use]
pub(crate) fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

pub(crate) fn path() -> Option<OsString> {
    std::env::var_os("PATH")
}

/// Returns a directory that does not outlast the boot.
#[must_use]
pub(crate) fn runtime_directory() -> Option<PathBuf> {
    std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from)
}

/// Leaves out the arguments, which may contain secrets.
#[must_use]
pub(crate) fn program() -> String {
    let path = std::env::args_os().next().map(PathBuf::from);
    let name = path.as_deref().and_then(std::path::Path::file_name);
    name.map(OsString::from)
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned()
}

#[must_use]
pub(crate) fn unfit_identity(identity: &str) -> Option<String> {
    if identity.trim().is_empty() || identity.chars().any(is_unprintable) {
        return Some("it cannot be empty or have control characters".to_owned());
    }
    (identity.len() > IDENTITY_LIMIT).then(|| {
        format!(
            "{} bytes are too many: take {IDENTITY_LIMIT} at most",
            identity.len()
        )
    })
}
