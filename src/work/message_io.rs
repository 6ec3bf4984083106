//! Passes a message to its command: exact bytes on stdin or in a private directory, metadata in the
//! environment, nothing in an argument.
//!
//! Stdin is a sealed file in memory, not a pipe: a command need not read it, and can do so twice.

use std::ffi::{CStr, OsString};
use std::fs::{self, DirBuilder, File, Metadata, OpenOptions, Permissions};
use std::io::{self, Seek as _, Write as _};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nix::fcntl::{FcntlArg, FlockArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use serde::Serialize;

use crate::lasting;
use crate::queue::{About, Message};
use crate::util::{flock, is_safe_from_others, ours_in};

const PREFIX: &str = "trafficcop-message.";
// The kernel limits each variable to 128 KiB, and all of them by the stack's size. Without a limit here, a message's
// sender could keep the command from starting (E2BIG).
const PROPERTIES_LIMIT: usize = 32 << 10;
const MEMORY: &CStr = c"trafficcop-message";

pub(super) const QUEUE: &str = "TRAFFICCOP_MESSAGE_QUEUE";
const ID: &str = "TRAFFICCOP_MESSAGE_ID";
const ATTEMPT: &str = "TRAFFICCOP_MESSAGE_ATTEMPT";
const MAX_ATTEMPTS: &str = "TRAFFICCOP_MESSAGE_MAX_ATTEMPTS";
const ENQUEUED_AT: &str = "TRAFFICCOP_MESSAGE_ENQUEUED_AT";
const LOCKED_UNTIL: &str = "TRAFFICCOP_MESSAGE_LOCKED_UNTIL";
const ENCODING: &str = "TRAFFICCOP_MESSAGE_ENCODING";
const CONTENT_TYPE: &str = "TRAFFICCOP_MESSAGE_CONTENT_TYPE";
const PROPERTIES: &str = "TRAFFICCOP_MESSAGE_PROPERTIES";
const DIR: &str = "TRAFFICCOP_MESSAGE_DIR";
const FILE: &str = "TRAFFICCOP_MESSAGE_FILE";
const SESSION: &str = "TRAFFICCOP_SESSION_ID";
const SESSION_STATE: &str = "TRAFFICCOP_SESSION_STATE_FILE";

/// Variables to unset: an outer trafficcop's, about another lock or message.
pub(super) const FOREIGN: &[&str] = &[
    "TRAFFICCOP_TOKEN",
    "TRAFFICCOP_LOCK",
    "TRAFFICCOP_HOLDER",
    "TRAFFICCOP_SLOT",
    "TRAFFICCOP_CAUSE",
    "TRAFFICCOP_TASK",
    "TRAFFICCOP_PERIOD",
    "TRAFFICCOP_ROLE",
    // This worker's, too: where [`environment`] leaves one out, the outer one must not stay.
    ID,
    ENQUEUED_AT,
    LOCKED_UNTIL,
    ENCODING,
    CONTENT_TYPE,
    MAX_ATTEMPTS,
    PROPERTIES,
    DIR,
    FILE,
    SESSION,
    SESSION_STATE,
];

#[derive(Debug, Default)]
pub(super) struct MessageIo {
    /// `None` if the message is in a directory.
    pub(super) input: Option<OwnedFd>,
    /// Keeps the directory from being swept.
    pub(super) lock: Option<OwnedFd>,
    pub(super) env: Vec<(OsString, OsString)>,
    folder: Option<Folder>,
}

impl MessageIo {
    pub(super) fn on_stdin(body: &[u8]) -> io::Result<MessageIo> {
        Ok(MessageIo {
            input: Some(in_memory(body)?),
            ..MessageIo::default()
        })
    }

    pub(super) fn in_directory(base: &Path, body: &[u8], json: &[u8]) -> io::Result<MessageIo> {
        let folder = Folder::create(base)?;
        write(&folder.path.join("body"), body)?;
        write(&folder.path.join("message.json"), json)?;
        let env = vec![
            (DIR.into(), folder.path.clone().into()),
            (FILE.into(), folder.path.join("body").into()),
        ];
        Ok(MessageIo {
            // A duplicate shares the lock until the command's last process has closed it.
            lock: Some(folder.lock.try_clone()?.into()),
            env,
            folder: Some(folder),
            input: None,
        })
    }

    pub(super) fn and_state(
        mut self,
        base: &Path,
        state: &[u8],
    ) -> io::Result<(MessageIo, PathBuf)> {
        // Only one descriptor is passed to the command. If that is stdin, only this worker holds the directory's
        // lock.
        let folder = match self.folder.take() {
            Some(folder) => folder,
            None => Folder::create(base)?,
        };
        let path = folder.path.join("state");
        write(&path, state)?;
        self.env.push((SESSION_STATE.into(), path.clone().into()));
        self.folder = Some(folder);
        Ok((self, path))
    }

    pub(super) fn has_directory(&self) -> bool {
        self.folder.is_some()
    }

    pub(super) fn remove(mut self) {
        drop(self.folder.take());
    }
}

fn in_memory(body: &[u8]) -> io::Result<OwnedFd> {
    // A file would have to be removed.
    let memory = memfd_create(MEMORY, MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING)?;
    let mut memory = File::from(memory);
    memory.write_all(body)?;
    // Otherwise a child process of the command could change what the command reads.
    let seals = SealFlag::F_SEAL_WRITE
        | SealFlag::F_SEAL_GROW
        | SealFlag::F_SEAL_SHRINK
        | SealFlag::F_SEAL_SEAL;
    fcntl(&memory, FcntlArg::F_ADD_SEALS(seals))?;
    // Read-only; without /proc the seals have to be enough.
    match File::open(format!("/proc/self/fd/{}", memory.as_raw_fd())) {
        Ok(reader) => Ok(reader.into()),
        Err(_) => {
            memory.rewind()?;
            Ok(memory.into())
        }
    }
}

fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut options = OpenOptions::new();
    let mut file = options
        .write(true)
        // Never follow or overwrite what another process has put there.
        .create_new(true)
        .mode(0o600)
        .open(path)?;
    file.write_all(bytes)
}

/// Private directory, locked while in use, removed when dropped.
///
/// A command whose message is in it shares the lock. A directory that is not locked is not in use, and is swept.
#[derive(Debug)]
struct Folder {
    path: PathBuf,
    lock: Arc<File>,
}

impl Folder {
    fn create(base: &Path) -> io::Result<Folder> {
        let name = format!("{}.{:016x}", std::process::id(), fastrand::u64(..));
        // Hidden until it is locked: no worker sweeps it.
        let fresh = base.join(format!(".{PREFIX}{name}"));
        // With its mode: before a chmod another user could enter and stay.
        DirBuilder::new().mode(0o700).create(&fresh)?;
        let path = base.join(format!("{PREFIX}{name}"));
        let made = File::open(&fresh).and_then(|lock| {
            flock(&lock, FlockArg::LockExclusiveNonblock)?;
            fs::rename(&fresh, &path)?;
            Ok(lock)
        });
        match made {
            Ok(lock) => {
                let lock = Arc::new(lock);
                // Keeps the directory's timestamps fresh: cleaners of temporary files delete what looks old.
                lasting::add(&lock);
                Ok(Folder { path, lock })
            }
            Err(why) => {
                let _ = fs::remove_dir(&fresh);
                Err(why)
            }
        }
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        remove(&self.path);
    }
}

fn remove(path: &Path) {
    // The command may have made it unreadable for its owner.
    let _ = fs::set_permissions(path, Permissions::from_mode(0o700));
    let removed = fs::remove_dir_all(path).or_else(|_| {
        open_up(path);
        fs::remove_dir_all(path)
    });
    if let Err(why) = removed {
        tracing::warn!(
            "cannot remove the message's directory {}: {why}: delete it by hand",
            path.display()
        );
    }
}

fn open_up(path: &Path) {
    let _ = fs::set_permissions(path, Permissions::from_mode(0o700));
    for entry in fs::read_dir(path).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            open_up(&entry.path());
        }
    }
}

/// Returns TMPDIR, or /tmp, if messages are safe there.
pub(super) fn base(tmpdir: Option<OsString>, flag: &str) -> Result<PathBuf, String> {
    let base = tmpdir
        .filter(|path| !path.is_empty())
        .unwrap_or("/tmp".into());
    let base = PathBuf::from(base);
    let refuse = |why: &str| {
        Err(format!(
            "{flag}: {} {why}: set TMPDIR to another directory",
            base.display()
        ))
    };
    let found = match fs::metadata(&base) {
        Ok(found) => found,
        Err(why) => return refuse(&format!("cannot be used: {why}")),
    };
    // A user who can rename a message's directory could replace the message.
    if !is_safe_from_others(&found) {
        return refuse("is a directory that other users can change");
    }
    // Tried now: otherwise the first message is taken in vain.
    match Folder::create(&base) {
        Ok(_) => Ok(base),
        Err(why) => refuse(&format!("cannot be written to ({why})")),
    }
}

pub(super) fn sweep(base: &Path) {
    for path in ours_in(base, PREFIX, Metadata::is_dir) {
        if let Ok(file) = File::open(&path)
            // Locked: another worker may sweep at the same time.
            && flock(&file, FlockArg::LockExclusiveNonblock).is_ok()
        {
            remove(&path);
        }
    }
}

pub(super) fn environment(
    queue: &str,
    message: &Message,
    max_attempts: Option<u32>,
) -> Vec<(OsString, OsString)> {
    let about = &message.about;
    let session = message.lock.session();
    let properties = (!about.properties.is_empty())
        .then(|| serde_json::to_string(&about.properties).unwrap_or_default())
        // Left out, not cut: half an object is no JSON.
        .filter(|text| text.len() <= PROPERTIES_LIMIT);
    let known = [
        (QUEUE, Some(queue.to_owned())),
        (ID, Some(message.id.clone())),
        (ATTEMPT, Some(message.attempt.to_string())),
        (MAX_ATTEMPTS, max_attempts.map(|most| most.to_string())),
        (ENQUEUED_AT, about.enqueued.clone()),
        (LOCKED_UNTIL, about.locked_until.clone()),
        (ENCODING, about.encoding.map(str::to_owned)),
        (CONTENT_TYPE, about.content_type.clone()),
        (PROPERTIES, properties),
        (SESSION, session.map(|session| session.id().to_owned())),
    ];
    known
        .into_iter()
        .filter_map(|(name, value)| Some((name, value?)))
        // Control characters, such as NUL, fit only into message.json.
        .filter(|(_, value)| !value.chars().any(char::is_control))
        .map(|(name, value)| (name.into(), value.into()))
        .collect()
}

pub(super) fn json(queue: &str, message: &Message, max_attempts: Option<u32>) -> Vec<u8> {
    #[derive(Serialize)]
    struct MessageJson<'a> {
        id: &'a str,
        attempt: u32,
        #[serde(skip_serializing_if = "Option::is_none")]
        max_attempts: Option<u32>,
        queue: &'a str,
        #[serde(skip_serializing_if = "Option::is_none")]
        session: Option<&'a str>,
        #[serde(flatten)]
        about: &'a About,
    }
    let session = message.lock.session();
    let told = MessageJson {
        id: &message.id,
        attempt: message.attempt,
        max_attempts,
        queue,
        session: session.as_ref().map(|session| session.id()),
        about: &message.about,
    };
    let mut text = serde_json::to_vec_pretty(&told).unwrap_or_default();
    text.push(b'\n');
    text
}

/// Fields of `message.json`.
pub const FIELDS: &[(&str, &str)] = &[
    ("id", "the message's id: the same at every attempt"),
    ("attempt", "which attempt this is, from 1"),
    (
        "max_attempts",
        "how many there are (--max-attempts), if trafficcop counts them",
    ),
    ("queue", "the queue's address"),
    ("session", "the session that it belongs to, with --sessions"),
    (
        "enqueued",
        "when it was put into the queue, by the service's clock (RFC 3339, UTC)",
    ),
    (
        "locked_until",
        "the end of its lock when it was taken; trafficcop renews the lock, so it ends later",
    ),
    ("expires", "when the queue deletes it"),
    (
        "encoding",
        "on a storage queue, how the body was read: text (as it was sent) or base64 (decoded)",
    ),
    ("content_type", "the content's type, as its sender gave it"),
    (
        "properties",
        "the properties that the service and the sender gave it, by name",
    ),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lasting::{is_old, make_old};
    use crate::work::scripted;
    use std::io::Read as _;
    use std::os::unix::fs::MetadataExt as _;

    #[test]
    fn stdin_has_every_byte_and_cannot_be_changed() {
        let body: Vec<u8> = (0..=255).cycle().take(64 << 10).collect();
        let message_io = MessageIo::on_stdin(&body).unwrap();
        let mut file = File::from(message_io.input.unwrap());
        let mut read = Vec::new();
        file.read_to_end(&mut read).unwrap();
        assert_eq!(read, body);
        assert!(file.write_all(b"x").is_err());
        file.rewind().unwrap();
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        let written = OpenOptions::new()
            .write(true)
            .open(path)
            .and_then(|mut again| again.write_all(b"x"));
        assert!(written.is_err());
        assert!(MessageIo::on_stdin(b"").unwrap().input.is_some());
    }

    fn names(base: &Path) -> Vec<String> {
        let entries = fs::read_dir(base).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.collect()
    }

    #[test]
    fn message_directory_is_private_and_always_removed() {
        let base = tempfile::tempdir().unwrap();
        let message_io = MessageIo::in_directory(base.path(), b"\0\xff", b"{}").unwrap();
        let path = PathBuf::from(&message_io.env[0].1);
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o700);
        assert_eq!(fs::read(path.join("body")).unwrap(), b"\0\xff");
        assert_eq!(message_io.env[1].1, path.join("body"));
        assert_eq!(fs::read(path.join("message.json")).unwrap(), b"{}");
        fs::create_dir(path.join("more")).unwrap();
        fs::write(path.join("more/file"), "x").unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o0)).unwrap();
        message_io.remove();
        assert_eq!(names(base.path()), [""; 0]);
    }

    #[test]
    fn a_message_in_use_never_looks_old() {
        let base = tempfile::tempdir().unwrap();
        let message_io = MessageIo::in_directory(base.path(), b"a", b"{}").unwrap();
        let (message_io, state) = message_io.and_state(base.path(), b"").unwrap();
        let directory = state.parent().unwrap();
        let names = ["", "body", "message.json", "state"];
        let paths = names.map(|name| directory.join(name));
        paths.iter().for_each(|path| make_old(path));
        lasting::refresh();
        assert_eq!(paths.map(|path| is_old(&path)), [false; 4]);
        message_io.remove();
    }

    #[test]
    fn sweep_removes_only_leftovers_of_killed_workers() {
        let base = tempfile::tempdir().unwrap();
        let living = MessageIo::in_directory(base.path(), b"a", b"").unwrap();
        let left = base.path().join(format!("{PREFIX}1.dead"));
        fs::create_dir(&left).unwrap();
        fs::write(left.join("body"), "secret").unwrap();
        fs::create_dir(base.path().join("other")).unwrap();
        sweep(base.path());
        assert!(!left.exists());
        assert_eq!(names(base.path()).len(), 2);
        let mut orphan = MessageIo::in_directory(base.path(), b"b", b"").unwrap();
        let held_by_the_tree = orphan.lock.take().unwrap();
        let path = orphan.folder.as_ref().unwrap().path.clone();
        let folder = orphan.folder.take().unwrap();
        let number = folder.lock.as_raw_fd();
        std::mem::forget(folder);
        nix::unistd::close(number).unwrap();
        sweep(base.path());
        assert!(path.exists());
        drop(held_by_the_tree);
        // A neighbouring test's child keeps the descriptor until it execs.
        let give_up_at = crate::clock::Instant::now() + std::time::Duration::from_secs(60);
        while path.exists() && crate::clock::Instant::now() < give_up_at {
            sweep(base.path());
        }
        assert!(!path.exists());
        living.remove();
        assert_eq!(names(base.path()), ["other"]);
    }

    #[test]
    fn metadata_is_in_the_environment_unless_unfit() {
        let mut message = scripted::of_session("id-1");
        message.about.content_type = Some("text/plain\0; evil".into());
        message.about.enqueued = Some("2026-01-31T13:00:00Z".into());
        message
            .about
            .properties
            .insert("a\n".into(), "1\u{7}".into());
        let env = environment("http://q", &message, Some(5));
        let text = |name: &str| {
            let found = env.iter().find(|(known, _)| known == name);
            found.map(|(_, value)| value.to_str().unwrap().to_owned())
        };
        assert_eq!(text(QUEUE).unwrap(), "http://q");
        assert_eq!(text(ID).unwrap(), "id-1");
        assert_eq!(text(ATTEMPT).unwrap(), "2");
        assert_eq!(text(MAX_ATTEMPTS).unwrap(), "5");
        assert_eq!(text(SESSION).unwrap(), "s-1");
        assert_eq!(text(ENQUEUED_AT).unwrap(), "2026-01-31T13:00:00Z");
        assert_eq!(text(CONTENT_TYPE), None, "it has a NUL in it");
        assert_eq!(text(LOCKED_UNTIL), None, "not known");
        assert_eq!(text(PROPERTIES).unwrap(), r#"{"a\n":"1\u0007"}"#);
        let told: serde_json::Value =
            serde_json::from_slice(&json("http://q", &message, Some(5))).unwrap();
        assert_eq!(told["content_type"], "text/plain\0; evil");
        assert_eq!(told["session"], "s-1");
        assert_eq!(told["properties"]["a\n"], "1\u{7}");
        let keys: Vec<_> = told.as_object().unwrap().keys().cloned().collect();
        let mut documented: Vec<_> = FIELDS.iter().map(|(name, _)| *name).collect();
        documented.sort_unstable();
        assert_eq!(keys, documented);
        message
            .about
            .properties
            .insert("big".into(), "x".repeat(PROPERTIES_LIMIT));
        let env = environment("http://q", &message, Some(5));
        assert!(env.iter().all(|(name, _)| name != PROPERTIES));
    }

    #[test]
    fn directory_that_others_can_change_is_refused() {
        let base = tempfile::tempdir().unwrap();
        let asked = |mode| {
            fs::set_permissions(base.path(), Permissions::from_mode(mode)).unwrap();
            super::base(Some(base.path().into()), "--sessions")
        };
        assert!(asked(0o700).is_ok() && asked(0o1777).is_ok());
        assert!(asked(0o777).unwrap_err().contains("TMPDIR"));
        assert!(super::base(Some("/nowhere".into()), "--sessions").is_err());
        fs::set_permissions(base.path(), Permissions::from_mode(0o700)).unwrap();
        assert_eq!(names(base.path()), [""; 0]);
    }
}
