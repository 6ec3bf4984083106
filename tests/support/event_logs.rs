//! The event logs of a scene's instances, checked by the rules of `trafficcop timeline`.
//!
//! Every instance that a test starts writes one, and each scene is judged at its end. That never
//! replaces what the test asserts: a log is the program's own account.

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

const WRITERS: [&str; 3] = ["run", "elect", "work"];

/// All instances of a scene are on one machine: the order of two moments is certain.
const SKEW: i64 = 0;

/// Judged logs, and their lines.
static JUDGED: [AtomicUsize; 2] = [AtomicUsize::new(0), AtomicUsize::new(0)];

#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Excused {
    #[default]
    Nothing,
    /// Instances cannot exclude an overlap of their commands.
    Confessions,
    Everything,
}

pub(crate) struct EventLogs {
    // Not the scene's directory, which tests look at.
    directory: tempfile::TempDir,
    files: Mutex<Vec<PathBuf>>,
    excused: Mutex<Excused>,
}

impl EventLogs {
    pub(crate) fn new() -> EventLogs {
        EventLogs {
            directory: tempfile::tempdir().expect("a directory for the event logs"),
            files: Mutex::default(),
            excused: Mutex::default(),
        }
    }

    /// Returns additional arguments with which such an instance writes a log; none if it does
    /// already, or is not `wanted`.
    pub(crate) fn of(
        &self,
        verb: &str,
        args: &[OsString],
        number: u32,
        wanted: bool,
    ) -> Vec<OsString> {
        let own = args.windows(2).rev().find(|pair| pair[0] == "--event-log");
        if !WRITERS.contains(&verb) || (own.is_none() && !wanted) {
            return Vec::new();
        }
        let log = own.map_or_else(
            || self.directory.path().join(format!("events-{number}")),
            |pair| PathBuf::from(&pair[1]),
        );
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        if !files.contains(&log) {
            files.push(log.clone());
        }
        match own {
            Some(_) => Vec::new(),
            None => vec!["--event-log".into(), log.into()],
        }
    }

    /// Excuses such contradictions, also earlier ones.
    pub(super) fn excuse(&self, what: Excused) {
        let mut excused = self.excused.lock().unwrap_or_else(PoisonError::into_inner);
        *excused = what.max(*excused);
    }

    pub(crate) fn contradictions(&self) -> Vec<String> {
        let excused = *self.excused.lock().unwrap_or_else(PoisonError::into_inner);
        if excused == Excused::Everything {
            return Vec::new();
        }
        let files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        let texts: Vec<(String, Vec<u8>)> = files
            .iter()
            // Only files: a device or a pipe would block.
            .filter(|path| path.is_file())
            .filter_map(|path| Some((path.display().to_string(), std::fs::read(path).ok()?)))
            .collect();
        let lines = texts
            .iter()
            .map(|(_, text)| text.split(|byte| *byte == b'\n'));
        JUDGED[0].fetch_add(texts.len(), Ordering::Relaxed);
        JUDGED[1].fetch_add(
            lines.map(|lines| lines.count() - 1).sum(),
            Ordering::Relaxed,
        );
        let log = trafficcop_timeline::read(texts.iter().map(|(name, text)| (&**name, &**text)));
        let mut all = trafficcop_timeline::merge(&log, SKEW).contradictions();
        if excused == Excused::Confessions {
            all.retain(|one| !one.contains("reports that its command may have run"));
        }
        all
    }
}

/// Describes how many logs were judged in this process so far, and how many lines they had.
pub(crate) fn judged() -> String {
    let [logs, lines] = JUDGED.each_ref().map(|count| count.load(Ordering::Relaxed));
    format!("{logs} event logs with {lines} lines judged")
}
