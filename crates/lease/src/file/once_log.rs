//! Results of a one-time task on a file: two lines behind the record, with the file system's time.
//!
//! Each line is JSON in a page of its own. New results replace only the older line, and count if their check is
//! right: a crash leaves one line whole.
//!
//! A result is confirmed when it was written, and the lock and the file at the path were still this instance's
//! after that. The newer line must never be overwritten, nor a torn line accepted.

use std::fs;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::thread;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::store::LockFile;
use super::{lock, open, record};
use crate::errors::{fatal, transient};
use crate::once::{OnceTask, TaskLog};
use trafficcop_core::clock::Instant;
use trafficcop_core::util::{self, read_up_to};
use trafficcop_core::{Failure, HolderInfo, Outcome};

// Offsets of the two lines, and their length with the newline. A disk writes pages: a torn one must damage
// neither the older line nor the record.
const PLACES: [u64; 2] = [4096, 8192];
const WIDTH: usize = 4096;
/// Length of a file with results.
pub(super) const LENGTH: usize = 3 * 4096;

#[derive(Serialize, Deserialize)]
struct Row {
    once: TaskLog,
    // Grows with every write: the greater is the newer.
    edition: u64,
    /// Hash of the two fields above.
    check: String,
}

enum Position {
    Blank,
    Whole(u64, TaskLog),
    /// Torn by a crash, or written by another program.
    Torn,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Lookup {
    /// No results, and no room for them yet.
    Nothing,
    /// Results, with the place and the edition of the next ones.
    Results {
        task_log: TaskLog,
        next: usize,
        edition: u64,
    },
    Damaged,
}

impl Lookup {
    pub(super) fn into_task_log(self) -> TaskLog {
        match self {
            Lookup::Results { task_log, .. } => task_log,
            Lookup::Nothing | Lookup::Damaged => TaskLog::EMPTY,
        }
    }
}

pub(super) fn read(file: &fs::File) -> io::Result<Lookup> {
    let (first, second) = (place(file, 0)?, place(file, 1)?);
    Ok(match (first, second) {
        (Position::Whole(one, task_log), Position::Whole(two, other)) => {
            let (task_log, next) = if one > two { (task_log, 1) } else { (other, 0) };
            results(task_log, next, one.max(two))
        }
        (Position::Whole(edition, task_log), _) => results(task_log, 1, edition),
        (_, Position::Whole(edition, task_log)) => results(task_log, 0, edition),
        // Room is made before there is any result: a crash in the middle of that loses nothing.
        (Position::Blank, _) | (_, Position::Blank) => Lookup::Nothing,
        (Position::Torn, Position::Torn) => Lookup::Damaged,
    })
}

fn results(task_log: TaskLog, next: usize, edition: u64) -> Lookup {
    Lookup::Results {
        task_log,
        next,
        edition: edition.saturating_add(1),
    }
}

/// Makes room, and syncs it to the disk: a full disk is noticed before the command runs.
pub(super) fn make_room(file: &fs::File, task_log: &TaskLog) -> io::Result<()> {
    let mut gap = vec![b' '; 4096 - record::WIDTH];
    if let Some(last) = gap.last_mut() {
        *last = b'\n';
    }
    file.write_all_at(&gap, record::WIDTH as u64)?;
    // Both: until the first new result is written, a crash leaves one line whole.
    for (place, edition) in PLACES.iter().zip(1..) {
        file.write_all_at(&encode(task_log, edition), *place)?;
    }
    file.sync_data()
}

/// Writes over the older line, and syncs it.
pub(super) fn write(file: &fs::File, task_log: &TaskLog) -> io::Result<()> {
    match read(file)? {
        // No edition follows the greatest: count anew, with the present results in both places meanwhile.
        Lookup::Results {
            task_log: there,
            next,
            edition: u64::MAX,
        } => {
            file.write_all_at(&encode(&there, 1), PLACES[next])?;
            file.sync_data()?;
            file.write_all_at(&encode(task_log, 2), PLACES[1 - next])?;
            file.sync_data()
        }
        Lookup::Results { next, edition, .. } => {
            file.write_all_at(&encode(task_log, edition), PLACES[next])?;
            file.sync_data()
        }
        // Another program emptied the file.
        Lookup::Nothing | Lookup::Damaged => make_room(file, task_log),
    }
}

/// Encodes results as a line; those that do not [fit](TaskLog::fits) are cut, and invalid.
pub fn encode(task_log: &TaskLog, edition: u64) -> Vec<u8> {
    // Nothing of a longer line before it is left.
    let line = Row {
        once: task_log.clone(),
        edition,
        check: check(task_log, edition),
    };
    let mut bytes = serde_json::to_vec(&line).unwrap_or_default();
    bytes.resize(WIDTH - 1, b' ');
    bytes.push(b'\n');
    bytes
}

fn place(file: &fs::File, index: usize) -> io::Result<Position> {
    let mut bytes = [0; WIDTH];
    let filled = read_up_to(file, &mut bytes, PLACES[index])?;
    let bytes = &bytes[..filled];
    if record::is_blank(bytes) {
        return Ok(Position::Blank);
    }
    Ok(match decode(bytes) {
        Some((edition, task_log)) => Position::Whole(edition, task_log),
        None => Position::Torn,
    })
}

/// Decodes a line of [`encode`] to its edition and results; `None` if it is not whole.
pub fn decode(bytes: &[u8]) -> Option<(u64, TaskLog)> {
    let line: Row = serde_json::from_slice(bytes).ok()?;
    (line.check == check(&line.once, line.edition)).then_some((line.edition, line.once))
}

fn check(task_log: &TaskLog, edition: u64) -> String {
    util::check(format!("{edition} {}", task_log.text()).as_bytes())
}

// A standby that looks before the first record waits for it, to ask the time by its newline.
const RECORD_RETRY: Duration = Duration::from_millis(20);
const RECORD_RETRIES: usize = 10;

impl LockFile {
    pub(super) fn held(&self, file: &fs::File) -> Failure {
        // With flock(2) alone, the record in the file is an earlier holder's.
        let info = match lock::locked_by_another(file) {
            Ok(Some(lock::Kind::Flock)) => HolderInfo::default(),
            _ => open::holder_info(file),
        };
        let held = Failure::Held(info);
        let Some(task) = &self.task else {
            return held;
        };
        if task.lacks_the_time() {
            for _ in 0..RECORD_RETRIES {
                let whole = file.metadata().map_or(0, |found| found.len());
                if whole >= record::WIDTH as u64 {
                    break;
                }
                thread::sleep(RECORD_RETRY);
            }
            // Some file systems refuse writes under another's lock; then this instance asks under its own.
            if let Err(error) = self.ask_the_time(task, file) {
                tracing::debug!(%error, "the file system's clock cannot be asked without the lock");
            }
        }
        let Ok(Lookup::Results { task_log, .. }) = read(file) else {
            return held;
        };
        let result = task.result(&task_log);
        result.map_or(held, Failure::AlreadyDone)
    }

    pub(super) fn check_result(&self) -> Result<(), Failure> {
        // At the path: no attempt waits behind an earlier file's lock meanwhile.
        let file = match open::open_existing(&self.path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(self.results_failure("reading", &error)),
        };
        match self.held(&file) {
            over @ Failure::AlreadyDone(_) => Err(over),
            _ => Ok(()),
        }
    }

    /// Returns the results, before any write, unless the task is over.
    pub(super) fn results(&self, file: &fs::File) -> Result<TaskLog, Failure> {
        let found = read(file).map_err(|error| self.results_failure("reading", &error))?;
        let Some(task) = &self.task else {
            return Ok(found.into_task_log());
        };
        // --once must prevent that a task is done twice.
        if found == Lookup::Damaged {
            return Err(fatal(format!(
                "{}: its results cannot be read, so it is not known which tasks are done: empty it to run all \
                 tasks again",
                self.path.display()
            )));
        }
        let task_log = found.into_task_log();
        let whole = file.metadata().map_or(0, |found| found.len()) >= record::WIDTH as u64;
        if task.is_periodic() && whole {
            self.ask_the_time(task, file)
                .map_err(|error| self.results_failure("asking the time by", &error))?;
        }
        match task.result(&task_log) {
            Some(result) => Err(Failure::AlreadyDone(result)),
            None => Ok(task_log),
        }
    }

    /// Begins the task, after the record was written. Returns how often it failed in this period.
    pub(super) fn begin_task(&self, file: &fs::File, task_log: &TaskLog) -> Result<u32, Failure> {
        let Some(task) = &self.task else {
            return Ok(0);
        };
        let failed = |error| self.results_failure("making room for", &error);
        if read(file).map_err(failed)? == Lookup::Nothing {
            make_room(file, task_log).map_err(failed)?;
        }
        if task.lacks_the_time() {
            self.ask_the_time(task, file)
                .map_err(|error| self.results_failure("asking the time by", &error))?;
        }
        let begun = task.begin_known(task_log, false, &self.candidate.identity);
        begun.map_err(|why| self.fatal(why))
    }

    pub(super) fn record(&self, outcome: &Outcome) -> Result<(), Failure> {
        let (file, mut record) = self.tenure()?;
        // Read again: an operator may have had one forgotten since (`reset --force`).
        if let Ok(Lookup::Results { task_log, .. }) = read(&file) {
            record.once = task_log;
        }
        let by = &self.candidate.identity;
        OnceTask::note_known(self.task.as_deref(), &mut record, outcome, by)
            .map_err(|why| self.fatal(why))?;
        write(&file, &record.once).map_err(|error| {
            transient(format!(
                "{}: writing the result: {error}",
                self.path.display()
            ))
        })?;
        self.set_record(record);
        // A result in a file that left the path is never found.
        self.confirm()
    }

    fn ask_the_time(&self, task: &OnceTask, file: &fs::File) -> io::Result<()> {
        let found = file.metadata()?;
        if found.len() < record::WIDTH as u64 {
            return Err(io::Error::other("it has no record yet"));
        }
        // Machines have different clocks, and share the file's. The same newline harms no record, whichever
        // instance has the lock.
        file.write_all_at(b"\n", record::WIDTH as u64 - 1)?;
        let asked = Instant::now();
        let said = u64::try_from(file.metadata()?.mtime()).unwrap_or(0);
        task.hear(said, asked);
        Ok(())
    }

    fn fatal(&self, why: &str) -> Failure {
        fatal(format!("{}: {why}", self.path.display()))
    }

    fn results_failure(&self, what: &str, error: &io::Error) -> Failure {
        self.write_failure(&format!("{what} its results"), error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::once::Task;
    use trafficcop_core::{Exit, Outcome};

    fn with(key: &str) -> TaskLog {
        let mut task_log = TaskLog::EMPTY;
        let task = Task {
            key: key.into(),
            per: None,
        };
        let outcome = Outcome {
            exit: Exit::Code(0),
            over: true,
        };
        task_log.note(&task, 0, &outcome, 7, "b", "then");
        task_log
    }

    /// Makes a file whose results were written twice, those of `key` last.
    fn file(key: &str) -> fs::File {
        let file = tempfile::tempfile().expect("a file");
        file.write_all_at(&[b' '; record::WIDTH], 0).unwrap();
        make_room(&file, &TaskLog::EMPTY).unwrap();
        write(&file, &with("old")).unwrap();
        write(&file, &with(key)).unwrap();
        file
    }

    fn task_log(file: &fs::File) -> TaskLog {
        read(file).expect("read").into_task_log()
    }

    #[test]
    fn the_newer_line_counts_and_the_older_one_is_written_over() {
        let file = file("new");
        assert_eq!(file.metadata().unwrap().len(), LENGTH as u64);
        assert_eq!(task_log(&file), with("new"));
        for key in ["a", "b", "c"] {
            let before = task_log(&file);
            let lines = [place(&file, 0).unwrap(), place(&file, 1).unwrap()];
            write(&file, &with(key)).unwrap();
            assert_eq!(task_log(&file), with(key));
            let kept = lines.iter().zip([0, 1]).any(|(was, index)| {
                let is = place(&file, index).unwrap();
                matches!((was, is), (Position::Whole(a, x), Position::Whole(b, y))
                    if *a == b && *x == before && y == before)
            });
            assert!(kept, "the newer line was written over by {key}");
        }
    }

    #[test]
    fn a_write_torn_at_any_byte_leaves_the_results_before_it() {
        let file = file("new");
        let Lookup::Results { next, edition, .. } = read(&file).unwrap() else {
            panic!("no results");
        };
        let mut there = vec![0; WIDTH];
        file.read_exact_at(&mut there, PLACES[next]).unwrap();
        let fresh = encode(&with("fresh"), edition);
        for cut in 0..200 {
            let torn = [&fresh[..cut], &there[cut..]].concat();
            file.write_all_at(&torn, PLACES[next]).unwrap();
            let found = task_log(&file);
            assert!(
                found == with("new") || found == with("fresh"),
                "cut at {cut}"
            );
        }
        file.write_all_at(&vec![0; WIDTH], PLACES[next]).unwrap();
        assert_eq!(task_log(&file), with("new"), "a page lost in a crash");
    }

    #[test]
    fn results_survive_the_greatest_edition_number() {
        for greatest in [u64::MAX, u64::MAX - 1, u64::MAX - 2] {
            for place in PLACES {
                let file = file("new");
                let line = encode(&with("greatest"), greatest);
                file.write_all_at(&line, place).unwrap();
                assert_eq!(task_log(&file), with("greatest"));
                for key in ["a", "b", "c", "d"] {
                    write(&file, &with(key)).unwrap();
                    assert_eq!(task_log(&file), with(key), "after {greatest} at {place}");
                }
            }
        }
    }

    #[test]
    fn unreadable_lines_give_no_results() {
        let file = tempfile::tempfile().expect("a file");
        assert_eq!(read(&file).unwrap(), Lookup::Nothing);
        file.set_len(LENGTH as u64).unwrap();
        assert_eq!(read(&file).unwrap(), Lookup::Nothing);
        file.write_all_at(b"{\"once\":[", PLACES[0]).unwrap();
        assert_eq!(
            read(&file).unwrap(),
            Lookup::Nothing,
            "torn when room was made"
        );
        file.write_all_at(b"{\"once\":[],\"edition\":1,\"check\":\"no\"}", PLACES[1])
            .unwrap();
        assert_eq!(read(&file).unwrap(), Lookup::Damaged);
    }
}
