//! Puts lines at the end of a file that others may append to as well: one write for each line,
//! which the kernel does not tear, and on the disk where it matters.
//!
//! Called by the event log, after the guardian was forked: it writes from a thread of its own, because
//! a disk that hangs must not keep the supervisor from renewing. It must never fail or delay
//! anything: what cannot be written is lost, and that is told once, until it can be again.

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use nix::fcntl::readlinkat;

use crate::background_writer::BackgroundWriter;
use crate::util::is_same_file;

/// So many links one behind another are followed, which is what the kernel grants.
const LINKS: usize = 40;
/// How many lines wait for a disk that hangs; what comes after is lost.
const MOST: usize = 4096;

pub(super) struct LogLine {
    text: Vec<u8>,
    /// It is on the disk before the next one is written.
    sync: bool,
}

/// A file that is appended to, by a thread of its own.
pub(super) struct Writer {
    pub(super) lines: BackgroundWriter<LogLine>,
    /// Lines were lost because too many waited, and that has been told.
    full: AtomicBool,
}

impl Writer {
    /// Starts the thread; nothing is opened by the caller. Not before the guardian was forked.
    #[must_use]
    pub(super) fn new(path: PathBuf) -> Writer {
        let mut file = Appended::to(path);
        let mut failing = false;
        let append = move |line: LogLine| match file.append(&line) {
            Ok(()) => failing = false,
            Err(why) if !failing => {
                failing = true;
                tracing::warn!(
                    "cannot write the event log {}: {why}; control is kept, and events are lost until it can be written",
                    file.path.display()
                );
            }
            Err(_) => {}
        };
        Writer {
            lines: BackgroundWriter::new("event-log", append),
            full: AtomicBool::new(false),
        }
    }

    /// Has this line (without its end) appended; returns at once.
    pub(super) fn put(&self, mut text: Vec<u8>, sync: bool) {
        text.push(b'\n');
        let fits = self.lines.put(LogLine { text, sync }, MOST);
        // Told once, until lines fit again: the log would be as full as the disk.
        if !self.full.swap(!fits, Ordering::Relaxed) && !fits {
            tracing::warn!(
                "the event log cannot be written as fast as things happen: lines are lost; control is kept"
            );
        }
    }
}

/// The file as the thread has it.
struct Appended {
    path: PathBuf,
    file: Option<File>,
    /// The file ends within a line, ours or that of somebody who was killed: the next one begins
    /// on its own.
    torn: bool,
}

impl Appended {
    fn to(path: PathBuf) -> Appended {
        Appended {
            path,
            file: None,
            torn: false,
        }
    }

    fn append(&mut self, line: &LogLine) -> io::Result<()> {
        // Somebody rotates logs: the name is what counts.
        if self
            .file
            .as_ref()
            .is_some_and(|file| moved(file, &self.path))
        {
            self.file = None;
        }
        if self.file.is_none() {
            let (file, torn) = open(&self.path)?;
            (self.file, self.torn) = (Some(file), torn);
        }
        let Some(file) = &mut self.file else {
            return Ok(());
        };
        let mut text = Vec::with_capacity(line.text.len() + 1);
        if self.torn {
            text.push(b'\n');
        }
        text.extend(&line.text);
        // One write for one line: by O_APPEND the kernel puts it at the end as a whole, beside those of
        // others. `write_all` would go on behind somebody else's line.
        let written = file.write(&text)?;
        self.torn = written > 0 && written < text.len();
        if self.torn {
            // The disk is full: the rest of the line is lost, and the next one begins on its own.
            return Err(io::ErrorKind::StorageFull.into());
        }
        // Who had control must be known after the machine has died, too; the rest may be lost with it.
        if line.sync {
            match file.sync_data() {
                // What cannot be synced (a pipe, /dev/null) has nothing to lose.
                Err(why) if why.kind() != io::ErrorKind::InvalidInput => return Err(why),
                _ => {}
            }
        }
        Ok(())
    }
}

fn moved(file: &File, path: &Path) -> bool {
    match (file.metadata(), path.metadata()) {
        (Ok(ours), Ok(there)) => !is_same_file(&ours, &there),
        // Any other error is a file system in trouble, and no rotation: what is open is kept.
        (_, Err(why)) => why.kind() == io::ErrorKind::NotFound,
        (Err(_), Ok(_)) => false,
    }
}

/// Opens the file at its end, and says whether it ends within a line.
fn open(path: &Path) -> io::Result<(File, bool)> {
    let path = &by_our_links(path)?;
    let mut options = OpenOptions::new();
    options.append(true).create(true);
    // What stands there now is no link, unless it was changed since we looked.
    // A FIFO that nobody reads is an error then, and nothing to wait for; and a terminal that was
    // named as the log does not become ours.
    let mut flags = libc::O_NONBLOCK | libc::O_NOCTTY | libc::O_NOFOLLOW;
    if path.starts_with("/proc") {
        flags &= !libc::O_NOFOLLOW;
    }
    options.custom_flags(flags);
    // Reading as well, for a look at its last byte.
    match options.clone().read(true).open(path) {
        Ok(mut file) => {
            let torn = ends_torn(&mut file).unwrap_or(false);
            Ok((file, torn))
        }
        // We may write it, but not look at it.
        Err(why) if why.kind() == io::ErrorKind::PermissionDenied => {
            Ok((options.open(path)?, false))
        }
        Err(why) => Err(why),
    }
}

/// Where the links of this name lead to that we or the system have made. One that is another's is not
/// followed: in a directory of his it could lead to a file that only we may write. Each is looked at
/// by a descriptor, so it is the one that is followed.
fn by_our_links(path: &Path) -> io::Result<PathBuf> {
    let ours = nix::unistd::geteuid().as_raw();
    let mut path = path.to_owned();
    for _ in 0..LINKS {
        let mut options = OpenOptions::new();
        options.read(true);
        options.custom_flags(libc::O_PATH | libc::O_NOFOLLOW);
        let there = match options.open(&path) {
            Err(why) if why.kind() == io::ErrorKind::NotFound => return Ok(path),
            there => there?,
        };
        let found = there.metadata()?;
        // The kernel's own, which lead to what has no name.
        if !found.is_symlink() || path.starts_with("/proc") {
            return Ok(path);
        }
        if found.uid() != 0 && found.uid() != ours {
            let why = format!(
                "{} is a link of another user's (uid {}), and not followed",
                path.display(),
                found.uid()
            );
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
        }
        let target = readlinkat(&there, c"")?;
        path = path.parent().unwrap_or(Path::new("/")).join(target);
    }
    Err(io::Error::from_raw_os_error(libc::ELOOP))
}

fn ends_torn(file: &mut File) -> io::Result<bool> {
    if !file.metadata()?.is_file() || file.metadata()?.len() == 0 {
        return Ok(false);
    }
    file.seek(SeekFrom::End(-1))?;
    let mut last = [0];
    file.read_exact(&mut last)?;
    Ok(last != *b"\n")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    fn put(writer: &Writer, text: &str) {
        writer.put(text.into(), true);
    }

    #[test]
    fn lines_are_appended_whole_and_in_order_beside_those_of_others() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let writers = [(); 4].map(|()| Writer::new(path.clone()));
        for number in 0..100 {
            for (name, writer) in writers.iter().enumerate() {
                put(writer, &format!("{name} {number}"));
            }
        }
        for writer in &writers {
            writer.lines.finish(LONG);
        }
        let text = std::fs::read_to_string(&path).unwrap();
        for name in 0..4 {
            let ours: Vec<_> = text
                .lines()
                .filter(|line| line.starts_with(&format!("{name} ")))
                .collect();
            let wanted: Vec<_> = (0..100).map(|number| format!("{name} {number}")).collect();
            assert_eq!(ours, wanted);
        }
        assert_eq!(text.lines().count(), 400);
    }

    #[test]
    fn what_a_crash_tore_stays_in_its_own_line() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        std::fs::write(&path, "whole\nhal").unwrap();
        let writer = Writer::new(path.clone());
        put(&writer, "next");
        put(&writer, "last");
        writer.lines.finish(LONG);
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!(text, "whole\nhal\nnext\nlast\n");
    }

    #[test]
    fn a_log_that_was_rotated_is_begun_anew() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let writer = Writer::new(path.clone());
        put(&writer, "one");
        writer.lines.finish(LONG);
        std::fs::rename(&path, dir.path().join("log.1")).unwrap();
        put(&writer, "two");
        writer.lines.finish(LONG);
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "two\n");
    }

    #[test]
    fn our_own_links_are_followed_and_those_of_others_are_not() {
        use std::os::unix::fs::{lchown, symlink};
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        symlink("second", at("log")).unwrap();
        symlink(at("real"), at("second")).unwrap();
        let writer = Writer::new(at("log"));
        put(&writer, "one");
        put(&writer, "two");
        writer.lines.finish(LONG);
        assert_eq!(std::fs::read_to_string(at("real")).unwrap(), "one\ntwo\n");

        symlink("/dev/stderr", at("stderr")).unwrap();
        assert!(open(&at("stderr")).is_ok(), "the kernel's own");

        symlink("round", at("round")).unwrap();
        assert!(open(&at("round")).is_err());

        // Only root can give a link away.
        if nix::unistd::geteuid().is_root() {
            std::fs::write(at("secret"), "root's\n").unwrap();
            symlink(at("secret"), at("planted")).unwrap();
            lchown(at("planted"), Some(65534), None).unwrap();
            let why = open(&at("planted")).expect_err("another's").to_string();
            assert!(why.contains("link of another user's"), "{why}");
            symlink(at("new"), at("dangling")).unwrap();
            lchown(at("dangling"), Some(65534), None).unwrap();
            assert!(open(&at("dangling")).is_err());
            assert!(!at("new").exists());
        }
    }

    #[test]
    fn what_cannot_be_written_harms_nobody_and_can_be_written_again_later() {
        let dir = tempfile::tempdir().unwrap();
        let writer = Writer::new("/dev/full".into());
        put(&writer, "lost");
        writer.lines.finish(LONG);
        let path = dir.path().join("missing/log");
        let writer = Writer::new(path.clone());
        put(&writer, "lost");
        writer.lines.finish(LONG);
        std::fs::create_dir(path.parent().unwrap()).unwrap();
        put(&writer, "there");
        writer.lines.finish(LONG);
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "there\n");
    }
}
