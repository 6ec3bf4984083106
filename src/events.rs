//! The event log: a line of JSON for each change of an instance's state, to show later who held control when.
//!
//! [`EventLog`] is an observer; it never decides or fails. [`record`] defines the lines, and
//! `trafficcop-timeline` reads them.
//!
//! Other processes may append to the same file, so each line is one write, which the kernel does not tear. Lines
//! about control are synced to disk. A separate thread writes, because a disk that hangs must not keep the
//! supervisor from renewing. Lines that cannot be written are lost; the log reports that once, until writing
//! succeeds again.

pub use trafficcop_timeline::record;

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use nix::fcntl::readlinkat;

use crate::background_writer::BackgroundWriter;
use crate::clock::Instant;
use crate::core::{Cause, Notice};
use crate::driver::Observation;
use crate::report::{self, Fold, Happened, MessageRow, Place};
use crate::util::is_same_file;
use record::VERSION;

pub use record::{EventKind, Record};

const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// Instance that writes the events.
#[derive(Clone, Debug)]
pub struct Instance {
    /// Name of the instance (`--identity`).
    pub identity: String,
    /// Name of the instance's machine.
    pub host: String,
    /// Process id of the supervisor.
    pub pid: u32,
    /// Address of the lock.
    pub lock: String,
}

/// The event log of an instance. Its drop waits a while for the last lines to be written.
pub struct EventLog {
    writer: Writer,
    instance: Record,
}

impl EventLog {
    /// Begins a log with this event. Starts a thread, so call it after the guardian was forked.
    #[must_use]
    pub fn begin(path: PathBuf, who: Instance, word: EventKind) -> EventLog {
        let now = Instant::now();
        // Without it only the clock of the records cannot be compared with others.
        let boot_id = std::fs::read_to_string(BOOT_ID).unwrap_or_default();
        let mut log = EventLog {
            writer: Writer::new(path),
            instance: Record {
                v: VERSION,
                boot_id: boot_id.trim().to_owned(),
                host: who.host,
                identity: who.identity,
                pid: who.pid,
                // Process ids are reused, and in containers each instance has the same.
                run: now.as_nanos(),
                lock: who.lock,
                ..Record::default()
            },
        };
        log.append(Record {
            event: word,
            boottime_ns: now.as_nanos(),
            ..Record::default()
        });
        log
    }

    /// Records the end of a message.
    pub fn message(&mut self, now: Instant, row: &MessageRow) {
        self.append(Record {
            event: EventKind::Message,
            boottime_ns: now.as_nanos(),
            message_id: Some(row.id.clone()),
            session_id: row.session.clone(),
            attempt: Some(row.attempt),
            outcome: Some(row.outcome.to_owned()),
            cause: row.reason.clone(),
            command_exit: row.exit,
            duration_ms: row.duration.map(report::millis),
            renewals: Some(row.renewals),
            overlap: row.overlap.then_some(true),
            ..Record::default()
        });
    }

    fn append(&mut self, mut record: Record) {
        // Servers, other instances and senders of messages wrote these texts.
        for text in [
            &mut record.cause,
            &mut record.holder,
            &mut record.message_id,
            &mut record.session_id,
        ]
        .into_iter()
        .flatten()
        {
            *text = report::plain(text);
        }
        let Record { event, token, .. } = record;
        let instance = self.instance.clone();
        let record = Record {
            v: instance.v,
            time: time_of(record.boottime_ns),
            boot_id: instance.boot_id,
            host: instance.host,
            identity: instance.identity,
            pid: instance.pid,
            run: instance.run,
            seq: instance.seq,
            lock: instance.lock,
            token: token.or(instance.token),
            deadline: record.deadline_ns.map(time_of),
            ..record
        };
        // Before the write: a missing number shows a lost line.
        self.instance.seq += 1;
        if let Ok(line) = serde_json::to_vec(&record) {
            self.writer.put(line, event.changes_control());
        }
    }
}

impl Fold for EventLog {
    fn take(&mut self, happened: &Happened<'_>) {
        let Some(record) = &happened.row.record else {
            return;
        };
        let Observation::Notice { notice, lock } = *happened.observation else {
            return self.append(record.clone());
        };
        lock.clone_into(&mut self.instance.lock);
        if let Place::First | Place::Outside = happened.row.place {
            self.instance.token = None;
        }
        // Two records, so that a search finds every loss, whatever it ended.
        if let Notice::Draining(Cause::Lost { .. }) = notice {
            let event = EventKind::Lost;
            self.append(Record {
                event,
                ..record.clone()
            });
        }
        self.append(record.clone());
        match happened.row.place {
            Place::First => self.instance.token = record.token,
            Place::Last => self.instance.token = None,
            Place::Within | Place::Outside => {}
        }
    }
}

fn time_of(boottime_ns: u64) -> String {
    let (at, now) = (Instant::from_nanos(boottime_ns), Instant::now());
    let span = |span: Duration| i64::try_from(span.as_nanos()).unwrap_or(i64::MAX);
    let wall = record::wall_clock()
        .saturating_add(span(at.since(now)))
        .saturating_sub(span(now.since(at)));
    record::spelt(wall)
}

/// Same limit as the kernel's.
const LINKS: usize = 40;
/// Most lines that wait for a disk that hangs.
const MOST: usize = 4096;

struct LogLine {
    text: Vec<u8>,
    sync: bool,
}

struct Writer {
    lines: BackgroundWriter<LogLine>,
    full: AtomicBool,
}

impl Writer {
    #[must_use]
    fn new(path: PathBuf) -> Writer {
        let mut file = Appended::to(path);
        let mut failing = false;
        let append = move |line: LogLine| match file.append(&line) {
            Ok(()) => failing = false,
            Err(why) if !failing => {
                failing = true;
                tracing::warn!(
                    "cannot write the event log {}: {why}; control is kept, \
                     and events are lost until it can be written",
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

    fn put(&self, mut text: Vec<u8>, sync: bool) {
        text.push(b'\n');
        let fits = self.lines.put(LogLine { text, sync }, MOST);
        // Once, until lines fit again: otherwise the log would be as full as the disk.
        if !self.full.swap(!fits, Ordering::Relaxed) && !fits {
            tracing::warn!(
                "the event log cannot be written fast enough: lines are lost; control is kept"
            );
        }
    }
}

struct Appended {
    path: PathBuf,
    file: Option<File>,
    /// The next line must begin with a newline.
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
        // Log rotation may have moved the file: the name counts.
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
        // One write: O_APPEND keeps it whole. `write_all` would continue behind another writer's line.
        let written = file.write(&text)?;
        self.torn = written > 0 && written < text.len();
        if self.torn {
            // The disk is full: the rest of the line is lost.
            return Err(io::ErrorKind::StorageFull.into());
        }
        if line.sync {
            match file.sync_data() {
                // A pipe or /dev/null has nothing to lose.
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
        // Any other error is a file system in trouble, not a rotation: keep the open file.
        (_, Err(why)) => why.kind() == io::ErrorKind::NotFound,
        // On a shared drive another client has rotated the log, and removed the old file.
        (Err(why), Ok(_)) => why.raw_os_error() == Some(libc::ESTALE),
    }
}

/// Opens the file; returns whether it ends within a line.
fn open(path: &Path) -> io::Result<(File, bool)> {
    let path = &by_our_links(path)?;
    let mut options = OpenOptions::new();
    options.append(true).create(true);
    // O_NOFOLLOW: `path` was no link when it was checked. O_NONBLOCK: a FIFO without a reader is an error, not a
    // wait. O_NOCTTY: a terminal does not become the controlling one.
    let mut flags = libc::O_NONBLOCK | libc::O_NOCTTY | libc::O_NOFOLLOW;
    if path.starts_with("/proc") {
        flags &= !libc::O_NOFOLLOW;
    }
    let file = options.custom_flags(flags).open(path)?;
    // Permission to write does not include permission to read.
    let torn = ends_torn(&file, path, flags).unwrap_or(false);
    Ok((file, torn))
}

/// Follows links that belong to this user or to root.
///
/// Another user's link could lead to a file that only this process may write. A descriptor holds each link, so
/// the one that was checked is followed.
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
        if !found.is_symlink() {
            return Ok(path);
        }
        // Links in /proc are the kernel's own, and lead to files without names.
        let place = path.parent().and_then(|place| place.canonicalize().ok());
        if let (Some(place), Some(name)) = (place, path.file_name())
            && place.starts_with("/proc")
        {
            return Ok(place.join(name));
        }
        if found.uid() != 0 && found.uid() != ours {
            let why = format!(
                "{} is a link of another user (uid {}), and not followed",
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

/// Opens only a regular file: as a reader of a pipe this process would hide from the writers that the real reader
/// is gone.
fn ends_torn(written: &File, path: &Path, flags: libc::c_int) -> io::Result<bool> {
    let ours = written.metadata()?;
    if !ours.is_file() || ours.len() == 0 {
        return Ok(false);
    }
    let mut options = OpenOptions::new();
    let mut file = options.read(true).custom_flags(flags).open(path)?;
    if !is_same_file(&ours, &file.metadata()?) {
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
    use crate::core::{Exit, HolderInfo, WorkloadEvent};

    impl EventLog {
        pub(crate) fn written(&self) {
            self.writer.lines.finish(Duration::from_secs(60));
        }

        fn observe(&mut self, now: Instant, observation: &Observation<'_>) {
            self.take(&Happened::new(now, observation));
        }

        fn told(&mut self, now: Instant, notice: &Notice, lock: &str) {
            self.observe(now, &Observation::Notice { notice, lock });
        }
    }

    fn told(tell: impl FnOnce(&mut EventLog)) -> Vec<Record> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let who = Instance {
            identity: "web1".into(),
            host: "web".into(),
            pid: 42,
            lock: "file:/x".into(),
        };
        let mut log = EventLog::begin(path.clone(), who, EventKind::Competing);
        tell(&mut log);
        let done = Observation::Done {
            cause: "the command ended",
            overlap: false,
            exit: 3,
        };
        log.observe(Instant::now(), &done);
        log.written();
        let text = std::fs::read_to_string(path).unwrap();
        text.lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }

    #[test]
    fn tenure_is_recorded_from_its_start_to_its_end() {
        let now = Instant::now();
        let empty = now + Duration::from_secs(1);
        let records = told(|log| {
            log.told(now, &Notice::StandingBy(HolderInfo::default()), "file:/x");
            log.told(now, &Notice::InControl { token: 7 }, "file:/x.1");
            let kill_at = now + Duration::from_secs(58);
            let expires = kill_at + Duration::from_secs(2);
            let starts = Observation::Starts {
                kill_at,
                expires,
                slot: 0,
            };
            log.observe(now, &starts);
            log.observe(
                now,
                &Observation::Workload(&WorkloadEvent::Started { pid: 9 }),
            );
            let kill_at = Instant::FOREVER;
            let expires = Instant::FOREVER;
            log.observe(now, &Observation::Extended { kill_at, expires });
            log.told(now, &Notice::CommandEnded(Exit::Signal(9)), "file:/x.1");
            log.observe(
                now,
                &Observation::Workload(&WorkloadEvent::TreeEmpty { at: empty }),
            );
            log.told(now, &Notice::Released, "file:/x.1");
        });
        let words: Vec<_> = records.iter().map(|record| record.event).collect();
        assert_eq!(
            words,
            [
                EventKind::Competing,
                EventKind::Standby,
                EventKind::Holding,
                EventKind::Starting,
                EventKind::CommandStarted,
                EventKind::Renewed,
                EventKind::CommandEnded,
                EventKind::TreeEmpty,
                EventKind::Released,
                EventKind::Done
            ]
        );
        let numbers: Vec<_> = records.iter().map(|record| record.seq).collect();
        assert_eq!(numbers, (0..10).collect::<Vec<_>>());
        let [.., starting, started, renewed, ended, gone, released, done] = &records[..] else {
            panic!("{records:?}")
        };
        assert_eq!(
            starting.deadline_ns,
            Some((now + Duration::from_secs(58)).as_nanos())
        );
        assert_eq!(
            starting.expires_ns,
            Some((now + Duration::from_secs(60)).as_nanos())
        );
        assert!(starting.deadline.as_ref().unwrap() > &starting.time);
        assert_eq!(started.command_pid, Some(9));
        assert_eq!((renewed.deadline_ns, renewed.token), (None, Some(7)));
        assert_eq!(ended.command_exit, Some(137));
        assert_eq!(gone.boottime_ns, empty.as_nanos());
        assert_eq!((&*released.lock, released.token), ("file:/x.1", Some(7)));
        assert_eq!((done.exit, done.token, done.overlap), (Some(3), None, None));
    }

    #[test]
    fn loss_has_its_own_record_and_its_cause_is_cut() {
        let why = "x\n".repeat(5000);
        let records = told(|log| {
            log.told(
                Instant::now(),
                &Notice::Draining(Cause::Lost { why }),
                "file:/x",
            );
        });
        let words: Vec<_> = records.iter().map(|record| record.event).collect();
        assert_eq!(
            words,
            [
                EventKind::Competing,
                EventKind::Lost,
                EventKind::Draining,
                EventKind::Done
            ]
        );
        let cause = records[1].cause.as_ref().unwrap();
        assert!(cause.len() < 2100 && !cause.contains('\n'));
    }

    const LONG: Duration = Duration::from_secs(60);

    fn put(writer: &Writer, text: &str) {
        writer.put(text.into(), true);
    }

    #[test]
    fn several_writers_append_whole_lines_in_order() {
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
    fn torn_line_is_ended_before_the_next() {
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
    fn rotated_log_is_opened_again() {
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
    fn own_links_are_followed_and_links_of_other_users_are_not() {
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

        if nix::unistd::geteuid().is_root() {
            std::fs::write(at("secret"), "root's\n").unwrap();
            symlink(at("secret"), at("planted")).unwrap();
            lchown(at("planted"), Some(65534), None).unwrap();
            let why = open(&at("planted")).expect_err("another's").to_string();
            assert!(why.contains("link of another user"), "{why}");
            symlink(at("new"), at("dangling")).unwrap();
            lchown(at("dangling"), Some(65534), None).unwrap();
            assert!(open(&at("dangling")).is_err());
            assert!(!at("new").exists());
        }
    }

    #[test]
    fn writing_resumes_after_a_failure() {
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
