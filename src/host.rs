//! Where we are: the machine, the process, and what its environment says.
//!
//! Used by the command line and by the library's face, so that both find the same. It must never
//! show a value: there are secrets among them.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt as _;
use std::path::PathBuf;

use crate::deadline::{Deadline, VARIABLE};
use crate::procfs;
use crate::util::is_unprintable;

// How far up the ancestors are looked at: shells within shells are ten.
const ANCESTORS: usize = 64;

// In bytes: it travels in the metadata of a blob, which has 8 KiB for all.
const IDENTITY_LIMIT: usize = 128;

/// Where we are: what a configuration must know and does not find out for itself.
#[derive(Clone, Debug)]
pub struct Host {
    /// The machine's name.
    pub host: String,
    /// Our process id.
    pub pid: u32,
    /// Seeds the spread of polls and retries; different on every instance.
    pub seed: u64,
    /// The locks that other trafficcops hold for the commands we are a part of.
    pub outer: Vec<String>,
}

impl Host {
    /// This machine, this process, and a seed from the system's randomness.
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

    /// What an instance goes by that was given no other name.
    #[must_use]
    pub fn identity(&self) -> String {
        format!("{}-{}", self.host, self.pid)
    }
}

/// The locks that are held for the commands we are a part of, the nearest first.
fn outer() -> Vec<String> {
    let mut locks: Vec<String> = held(|name| std::env::var_os(name)).into_iter().collect();
    // Only inside a command of ours: most are in none, and the way up is some files of /proc for each step.
    let mut process = match locks.is_empty() {
        true => return locks,
        false => "self".to_owned(),
    };
    for _ in 0..ANCESTORS {
        let Some(parent) = parent_of(&process) else {
            break;
        };
        // What another user's process was told cannot be read, and then nothing is known.
        let environment = std::fs::read(format!("/proc/{parent}/environ")).unwrap_or_default();
        let lock = held(|name| value_in(&environment, name));
        locks.extend(lock.filter(|lock| !locks.contains(lock)));
        process = parent;
    }
    locks
}

/// What a command is told by who runs it, as long as that is true.
fn held(told: impl Fn(&str) -> Option<OsString>) -> Option<String> {
    let lock = told("TRAFFICCOP_LOCK")?.into_string().ok()?;
    // A standby command is told the lock as well, and does not hold it. And what a command was told may
    // have outlived it, in the environment of a daemon that it left behind.
    let holds = told("TRAFFICCOP_ROLE").is_some_and(|role| role == "holder");
    let deadline = Deadline::open(told(VARIABLE)?.as_ref());
    let lasts = deadline.is_ok_and(|deadline| deadline.in_control());
    (holds && lasts).then_some(lock)
}

/// The process that has this one as its child, if we can see one.
fn parent_of(process: &str) -> Option<String> {
    let status = procfs::text(&format!("/proc/{process}/status")).ok()?;
    let parent = status.lines().find_map(|line| line.strip_prefix("PPid:"));
    parent.map(|id| id.trim().to_owned()).filter(|id| id != "0")
}

/// What this variable says among those that a process was started with.
fn value_in(environment: &[u8], name: &str) -> Option<OsString> {
    let mut variables = environment.split(|byte| *byte == 0);
    variables.find_map(|variable| {
        let value = variable.strip_prefix(name.as_bytes())?;
        Some(OsString::from_vec(value.strip_prefix(b"=")?.to_vec()))
    })
}

/// A variable of the environment; one that is empty is none.
#[must_use]
pub(crate) fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// A directory of this user's that does not outlast the boot, if there is one.
#[must_use]
pub(crate) fn runtime_directory() -> Option<PathBuf> {
    std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from)
}

/// The name of the program that we are, without its arguments: there may be secrets among them.
#[must_use]
pub(crate) fn program() -> String {
    let path = std::env::args_os().next().map(PathBuf::from);
    let name = path.as_deref().and_then(std::path::Path::file_name);
    name.map(OsString::from)
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned()
}

/// Why nobody can go by this name; `None`: somebody can.
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
