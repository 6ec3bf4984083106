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
use crate::core::doorbell::Ring;
use crate::core::{Cause, HealthEvent, Notice, WorkloadEvent};
use crate::driver::{Observation, Observer};
use crate::report::{self, MessageRow};
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
    common: Record,
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
            common: Record {
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
        log.tell(now, word, |_| {});
        log
    }

    /// Records the end of a message.
    pub fn message(&mut self, now: Instant, row: &MessageRow) {
        self.tell(now, EventKind::Message, |record| {
            record.message_id = Some(row.id.clone());
            record.session_id.clone_from(&row.session);
            record.attempt = Some(row.attempt);
            record.outcome = Some(row.outcome.to_owned());
            record.cause.clone_from(&row.reason);
            record.command_exit = row.exit;
            record.duration_ms = row.duration.map(report::millis);
            record.renewals = Some(row.renewals);
            record.overlap = row.overlap.then_some(true);
        });
    }

    fn notice(&mut self, now: Instant, notice: &Notice) {
        match notice {
            // `workload_event` records it.
            Notice::LeftBehind => return,
            // Two records, so that a search finds every loss, whatever it ended.
            Notice::Draining(Cause::Lost { .. }) => self.because(now, EventKind::Lost, notice),
            Notice::StandingBy(_) | Notice::Cordoned { .. } | Notice::Unfit(_) => {
                self.common.token = None;
            }
            Notice::InControl { token } => self.common.token = Some(*token),
            _ => {}
        }
        self.because(now, EventKind::of(report::event(notice)), notice);
        if let Notice::Released | Notice::FoundLost { .. } | Notice::LeftToRunOut { .. } = notice {
            self.common.token = None;
        }
    }

    fn because(&mut self, now: Instant, word: EventKind, notice: &Notice) {
        self.tell(now, word, |record| match notice {
            Notice::StandingBy(info) => {
                record.holder.clone_from(&info.holder);
                record.token = info.token;
            }
            Notice::CommandEnded(exit) => record.command_exit = Some(exit.as_status()),
            Notice::Overlapped => record.overlap = Some(true),
            Notice::Unfit(unfit) => record.cause = Some(report::cause(&Cause::Unfit(*unfit))),
            Notice::Draining(cause) => record.cause = Some(report::cause(cause)),
            Notice::Doubt { why, .. }
            | Notice::Refused { why, .. }
            | Notice::Cordoned { why }
            | Notice::FoundLost { why }
            | Notice::LeftToRunOut { why } => record.cause = Some(why.clone()),
            Notice::BackingOff { .. }
            | Notice::Keeping { .. }
            | Notice::Pausing { .. }
            | Notice::Recorded { .. }
            | Notice::Unrecorded { .. }
            | Notice::NotDone
            | Notice::RestartsSpent
            | Notice::HookFailed(_)
            | Notice::HoldOver
            | Notice::CoolingDown { .. } => record.cause = Some(report::text(notice, now)),
            Notice::InControl { .. }
            | Notice::Recovered
            | Notice::LeftBehind
            | Notice::Restarting
            | Notice::Uncordoned
            | Notice::Fit
            | Notice::Released => {}
        });
    }

    fn workload_event(&mut self, now: Instant, event: &WorkloadEvent) {
        match event {
            WorkloadEvent::Started { pid } => self.tell(now, EventKind::CommandStarted, |record| {
                record.command_pid = Some(*pid);
            }),
            WorkloadEvent::NotStarted { errno } => {
                let cause = report::cause(&Cause::NotStarted { errno: *errno });
                self.tell(now, EventKind::NotStarted, |record| {
                    record.cause = Some(cause)
                });
            }
            // The guardian's time: this process may have been stopped since.
            WorkloadEvent::TreeEmpty { at } | WorkloadEvent::HookFailed { at, .. } => {
                self.tell(*at, EventKind::TreeEmpty, |_| {})
            }
            WorkloadEvent::LeftBehind => self.tell(now, EventKind::LeftBehind, |_| {}),
            WorkloadEvent::Lost => self.tell(now, EventKind::GuardianLost, |_| {}),
            WorkloadEvent::TreeStuck => self.tell(now, EventKind::TreeStuck, |_| {}),
            WorkloadEvent::Health(health) => {
                let word = match health {
                    HealthEvent::Answered { again: true } => EventKind::Healthy,
                    // Otherwise each WATCHDOG=1 would be a line.
                    HealthEvent::Answered { again: false } => return,
                    HealthEvent::NotAsked { .. } => return,
                    HealthEvent::Failed { .. } => EventKind::Unhealthy,
                    HealthEvent::Hung(_) => EventKind::Hung,
                    HealthEvent::GuardianLost => EventKind::GuardianLost,
                };
                let cause = report::failing_health(health);
                self.tell(now, word, |record| record.cause = cause);
            }
            // The core reports the end. The standby command has nothing to do with control.
            WorkloadEvent::Standby(_)
            | WorkloadEvent::Condition(_)
            | WorkloadEvent::Exited(_)
            | WorkloadEvent::Stopped
            | WorkloadEvent::Acting
            | WorkloadEvent::ClockJumped => {}
        }
    }

    fn deadline(&mut self, now: Instant, word: EventKind, deadline: Instant, expires: Instant) {
        self.tell(now, word, |record| {
            if deadline == Instant::FOREVER {
                return;
            }
            record.deadline_ns = Some(deadline.as_nanos());
            let wall = wall_clock_at(deadline);
            record.deadline = Some(record::spelt(wall));
            record.expires_ns = (expires != Instant::FOREVER).then_some(expires.as_nanos());
        });
    }

    fn tell(&mut self, at: Instant, word: EventKind, more: impl FnOnce(&mut Record)) {
        let mut record = Record {
            time: record::spelt(wall_clock_at(at)),
            boottime_ns: at.as_nanos(),
            event: word,
            ..self.common.clone()
        };
        more(&mut record);
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
        // Before the write: a missing number shows a lost line.
        self.common.seq += 1;
        if let Ok(line) = serde_json::to_vec(&record) {
            self.writer.put(line, word.changes_control());
        }
    }
}

impl Observer for EventLog {
    fn observe(&mut self, now: Instant, observation: &Observation<'_>) {
        match *observation {
            Observation::Notice { notice, lock } => {
                lock.clone_into(&mut self.common.lock);
                self.notice(now, notice);
            }
            Observation::Workload(event) => self.workload_event(now, event),
            Observation::Starts {
                kill_at, expires, ..
            } => self.deadline(now, EventKind::Starting, kill_at, expires),
            Observation::Extended { kill_at, expires } => {
                self.deadline(now, EventKind::Renewed, kill_at, expires);
            }
            // Only rings that hand over control; the log has the others.
            Observation::Rang(ring @ (Ring::Draining | Ring::Released)) => {
                self.tell(now, EventKind::Rang, |record| {
                    let cause = if ring == Ring::Released {
                        "it has released"
                    } else {
                        "it drains"
                    };
                    record.cause = Some(cause.to_owned());
                });
            }
            Observation::Done {
                cause,
                overlap,
                exit,
            } => self.tell(now, EventKind::Done, |record| {
                record.cause = Some(cause.to_owned());
                record.overlap = overlap.then_some(true);
                record.exit = Some(exit);
            }),
            _ => {}
        }
    }
}

fn wall_clock_at(at: Instant) -> i64 {
    let (now, wall) = (Instant::now(), record::wall_clock());
    let span = |span: Duration| i64::try_from(span.as_nanos()).unwrap_or(i64::MAX);
    wall.saturating_add(span(at.since(now)))
        .saturating_sub(span(now.since(at)))
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
    /// Starts the thread, so call it after the guardian was forked.
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
    use crate::core::{Exit, HolderInfo, Unfit};

    impl EventLog {
        /// Waits until all lines are written.
        pub(crate) fn written(&self) {
            self.writer.lines.finish(Duration::from_secs(60));
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
            log.workload_event(now, &WorkloadEvent::Started { pid: 9 });
            let kill_at = Instant::FOREVER;
            let expires = Instant::FOREVER;
            log.observe(now, &Observation::Extended { kill_at, expires });
            log.told(now, &Notice::CommandEnded(Exit::Signal(9)), "file:/x.1");
            log.workload_event(now, &WorkloadEvent::TreeEmpty { at: empty });
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
    fn log_and_event_log_use_the_same_words() {
        let now = Instant::now();
        for notice in [
            Notice::StandingBy(HolderInfo::default()),
            Notice::InControl { token: 1 },
            Notice::Doubt {
                why: String::new(),
                term_at: None,
            },
            Notice::Recovered,
            Notice::Draining(Cause::HandOver),
            Notice::CommandEnded(Exit::Code(0)),
            Notice::BackingOff {
                until: now,
                number: 1,
            },
            Notice::Keeping { until: now },
            Notice::Restarting,
            Notice::RestartsSpent,
            Notice::HoldOver,
            Notice::CoolingDown { until: now },
            Notice::Cordoned { why: String::new() },
            Notice::Uncordoned,
            Notice::Unfit(Unfit::TimedOut),
            Notice::Fit,
            Notice::Overlapped,
            Notice::Released,
            Notice::FoundLost { why: String::new() },
            Notice::LeftToRunOut { why: String::new() },
        ] {
            let records = told(|log| log.told(now, &notice, "file:/x"));
            let word = serde_json::to_value(records[1].event).unwrap();
            assert_eq!(word, report::event(&notice));
        }
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
