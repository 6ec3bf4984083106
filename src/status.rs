//! The status file: an instance's state as JSON, for scripts and people.
//!
//! A thread writes: a file system that hangs must not keep the supervisor from renewing. It must never cause a
//! failure: the log reports once that the file cannot be written.

use std::fs::File;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::background_writer::BackgroundWriter;
use crate::report;
pub(crate) use crate::report::{REFUSED, UNFIT};
use crate::util::documented;

documented! {
    /// Content of the status file. Fields that do not apply are `null`.
    #[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
    struct Status {
        state: String = "what the instance does: starting, standby, preparing (in control; the standby command is \
            being stopped, or --on-acquire runs), holding, resting (in control, nothing runs), recording (the result \
            of --once, which the store does not take), draining, released, cooling down (after handing control over), \
            cordoned (something is announced for this machine: see --scheduled-events), unfit (--if says that this \
            machine is not to take control: see cause), refused (the store refuses the credential that it accepted \
            before: see cause), done; of a worker: waiting (there is no message), working, refused (its queue refuses \
            the credential: see cause), draining (it takes no more), done",
        since: String = "since when, by the wall clock (RFC 3339, UTC)",
        lock: String = "the lock's address; with --slots that of the slot",
        identity: String = "the instance's identity (--identity)",
        pid: u32 = "the supervisor's process",
        guardian_pid: Option<i32> = "the guardian's process",
        command_pid: Option<i32> = "the command's main process, while it runs",
        standby_pid: Option<i32> = "the standby command's main process, while it runs (--standby)",
        token: Option<u64> = "the fencing token of the present tenure, or of the last",
        contain: Option<String> = "what keeps the command's processes together",
        holder: Option<String> = "who holds the lock, while another does",
        doorbell: Option<String> = "of a standby with --doorbell: heard, or silent (it polls as ever)",
        health: Option<String> = "of a command with --watchdog or --health that runs: ok, failing, hung; \
            null until the first answer",
        cause: Option<String> = "why the last tenure ended; of one that is cordoned, unfit or refused, why that is so",
        command_exit: Option<i32> = "how the command ended last: its exit status, or 128+n for signal n",
        overlap: bool = "true: an overlap with another holder cannot be excluded",
        exit: Option<i32> = "the exit status of trafficcop, once it is known (128+n if it dies of signal n)",
    }
}

impl Status {
    /// Returns the status of a process that starts.
    #[must_use]
    pub fn starting(identity: &str, pid: u32, guardian_pid: i32, contain: String) -> Status {
        Status {
            state: "starting".into(),
            identity: identity.to_owned(),
            pid,
            guardian_pid: Some(guardian_pid),
            contain: Some(contain),
            ..Status::default()
        }
    }

    /// Returns the other holder in one safe line: another program wrote the record.
    #[must_use]
    pub fn holder_for_people(&self) -> Option<String> {
        self.holder.as_deref().map(report::plain)
    }

    /// Notes a new state.
    pub fn enter(&mut self, state: &str) {
        // The same state must not look young.
        if self.state != state || self.since.is_empty() {
            state.clone_into(&mut self.state);
            self.since = crate::util::wall_clock();
        }
    }
}

/// A status file. Its drop waits a while for the latest content.
pub struct StatusFile {
    writer: BackgroundWriter<Status>,
}

impl StatusFile {
    /// Starts the writer's thread: call it after the fork.
    #[must_use]
    pub fn new(path: PathBuf) -> StatusFile {
        let mut failing = false;
        let write = move |status: Status| match replace(&path, &status) {
            Ok(()) => failing = false,
            Err(why) if !failing => {
                failing = true;
                tracing::warn!("cannot write the status file {}: {why}", path.display());
            }
            Err(_) => {}
        };
        StatusFile {
            writer: BackgroundWriter::new("status-file", write),
        }
    }

    /// Requests a write, and returns at once. A slow file system gets only the latest content.
    pub fn write(&self, status: &Status) {
        self.writer.replace(status.clone());
    }
}

/// Renames a new file over the old one: readers see one or the other.
fn replace(path: &Path, status: &Status) -> io::Result<()> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    // An unpredictable name: the directory's owner could put a link there to a file that only this process may
    // write.
    let random = fastrand::u64(..);
    let beside = path.with_file_name(format!(".{name}.{}.{random:016x}", std::process::id()));
    let mut text = serde_json::to_vec(status)?;
    text.push(b'\n');
    // Never through a link, nor into an existing file.
    let mut file = File::create_new(&beside)?;
    let written = file
        .write_all(&text)
        .and_then(|()| std::fs::rename(&beside, path));
    if written.is_err() {
        let _ = std::fs::remove_file(&beside);
    }
    written
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    fn status(state: &str) -> Status {
        Status {
            state: state.into(),
            lock: "file:/x".into(),
            token: Some(7),
            ..Status::default()
        }
    }

    fn read(path: &Path) -> serde_json::Value {
        serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
    }

    #[test]
    fn finished_status_file_has_the_latest_status() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("status.json");
        let file = StatusFile::new(path.clone());
        for state in ["standby", "holding", "done"] {
            file.write(&status(state));
        }
        file.writer.finish(LONG);
        let there = read(&path);
        assert_eq!(there["state"], "done");
        assert_eq!(there["token"], 7);
        assert_eq!(there["exit"], serde_json::Value::Null);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn planted_link_is_not_written_through() {
        let dir = tempfile::tempdir().unwrap();
        let secret = dir.path().join("secret");
        std::fs::write(&secret, "root's").unwrap();
        let known = format!(".status.json.{}", std::process::id());
        for name in [&*known, "status.json"] {
            std::os::unix::fs::symlink(&secret, dir.path().join(name)).unwrap();
        }
        let path = dir.path().join("status.json");
        let file = StatusFile::new(path.clone());
        for state in ["standby", "holding", "done"] {
            file.write(&status(state));
        }
        file.writer.finish(LONG);
        assert_eq!(read(&path)["state"], "done");
        assert_eq!(std::fs::read_to_string(&secret).unwrap(), "root's");
        assert!(path.symlink_metadata().unwrap().is_file());
    }

    #[test]
    fn holder_for_people_has_no_control_characters() {
        let mut status = status("standby");
        assert_eq!(status.holder_for_people(), None);
        status.holder = Some("web1\n\u{1b}[2Jweb2".into());
        assert_eq!(status.holder_for_people().unwrap(), "web1  [2Jweb2");
    }

    #[test]
    fn documented_fields_match_the_status_file() {
        let there = serde_json::to_value(Status::default()).unwrap();
        let there: Vec<_> = there.as_object().unwrap().keys().cloned().collect();
        let mut documented: Vec<_> = FIELDS.iter().map(|(name, _)| *name).collect();
        documented.sort_unstable();
        assert_eq!(there, documented);
    }

    #[test]
    fn since_is_kept_while_the_state_stays() {
        let mut status = status("starting");
        status.enter("holding");
        assert!(status.since.ends_with('Z'));
        status.since = "long ago".into();
        status.enter("holding");
        assert_eq!(status.since, "long ago");
        status.enter("draining");
        assert_ne!(status.since, "long ago");
    }

    #[test]
    fn failed_write_leaves_no_file_behind() {
        let dir = tempfile::tempdir().unwrap();
        let file = StatusFile::new(dir.path().join("missing/status"));
        file.write(&status("standby"));
        file.writer.finish(LONG);
        std::fs::create_dir(dir.path().join("dir")).unwrap();
        assert!(replace(&dir.path().join("dir"), &status("x")).is_err());
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn hanging_file_system_does_not_block_the_caller() {
        // A FIFO without a reader hangs the writer in its open, like a dead mount.
        let dir = tempfile::tempdir().unwrap();
        let beside = dir.path().join(format!(".s.{}", std::process::id()));
        nix::unistd::mkfifo(&beside, nix::sys::stat::Mode::S_IRWXU).unwrap();
        let file = StatusFile::new(dir.path().join("s"));
        for _ in 0..10 {
            file.write(&status("standby"));
        }
        file.writer.finish(Duration::from_millis(50));
        // No thread may outlive the test.
        let _ = std::fs::OpenOptions::new()
            .read(true)
            .write(true)
            .open(&beside);
    }
}
