//! "May I begin another piece of work?" and "am I still in control?", asked from inside a command: [`Deadline`].
//!
//! Used by programs that run under `trafficcop run`, and by `trafficcop check` for scripts. An
//! answer costs a read of memory and of the clock, and, where that would say yes, one system call:
//! whether whoever wrote it lives. It must never say yes where another instance could have been given
//! control.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::clock::Instant;
use crate::guardian::{ControlState, View};

/// The variable in which `trafficcop run` tells its command where the control file is.
pub(crate) const VARIABLE: &str = "TRAFFICCOP_CONTROL";

/// Why nobody can tell whether we are in control. One line each.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeadlineError {
    /// There is no `TRAFFICCOP_CONTROL` in the environment.
    #[error(
        "TRAFFICCOP_CONTROL is not set: run this in a command that trafficcop runs, as in 'trafficcop run --file PATH -- ./job'"
    )]
    Outside,
    /// `TRAFFICCOP_CONTROL` is empty: there was no directory for a control file.
    #[error(
        "TRAFFICCOP_CONTROL is empty: trafficcop found no directory for a control file; its log has the reason"
    )]
    None,
    /// The file cannot be read, or is not what it should be.
    #[error("{path}: {why}: it exists while the command runs, and all users of this machine can read it", path = .path.display())]
    Unreadable {
        /// Which file.
        path: PathBuf,
        /// What is wrong with it.
        why: std::io::Error,
    },
}

/// Until when a command that trafficcop runs is in control.
///
/// ```no_run
/// let deadline = trafficcop::Deadline::from_env()?;
/// while deadline.may_begin() {
///     // A piece of work that is shorter than the grace.
/// }
/// # Ok::<(), trafficcop::DeadlineError>(())
/// ```
#[derive(Debug)]
pub struct Deadline(View);

impl Deadline {
    /// The deadline of the command we are (a part of).
    ///
    /// # Errors
    /// Where there is none, or it cannot be read.
    pub fn from_env() -> Result<Deadline, DeadlineError> {
        Deadline::of(std::env::var_os(VARIABLE))
    }

    fn of(variable: Option<OsString>) -> Result<Deadline, DeadlineError> {
        match variable {
            None => Err(DeadlineError::Outside),
            Some(path) if path.is_empty() => Err(DeadlineError::None),
            Some(path) => Deadline::open(Path::new(&path)),
        }
    }

    /// The deadline in this control file.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn open(path: &Path) -> Result<Deadline, DeadlineError> {
        let view = View::open(path).map_err(|why| DeadlineError::Unreadable {
            path: path.to_owned(),
            why,
        })?;
        Ok(Deadline(view))
    }

    /// Whether the command is in control at this moment: no other instance can have been given it.
    ///
    /// False from the moment the command is asked to end because control is in doubt. A requested stop and a
    /// hand-over do not change it: the command is in control until it has ended.
    #[must_use]
    pub fn in_control(&self) -> bool {
        !left(self.0.read().until).is_zero()
    }

    /// Whether another piece of work may be begun: the command is in control, and nothing has asked it to stop.
    ///
    /// False from the moment at which a stop, a hand-over or any other drain begins. That is written before the
    /// first signal is sent, so a signal handler that asks hears no.
    #[must_use]
    pub fn may_begin(&self) -> bool {
        let ControlState { until, drain } = self.0.read();
        drain == Instant::ZERO && !left(until).is_zero()
    }

    /// Time until trafficcop may send SIGKILL, should the lease not be renewed any more: the end of the grace
    /// once a drain has begun, or the lease's deadline if that is earlier. [`Duration::MAX`] where neither
    /// exists. Before a drain it knows nothing of the grace.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        match self.0.read() {
            ControlState {
                until,
                drain: Instant::ZERO,
            } => left(until),
            // The guardian never writes one behind the lease's deadline.
            ControlState { drain, .. } => left(drain),
        }
    }

    /// Waits until `limit` has passed, or until the answer to [`Deadline::may_begin`] is no; returns that answer.
    /// It blocks the thread.
    #[must_use]
    pub fn wait(&self, limit: Duration) -> bool {
        wait_while(limit, || self.may_begin())
    }
}

/// How often a wait looks at the control file: a look costs a read of memory and one system call. Nothing wakes
/// it earlier, because a deadline that passes and a writer that dies wake no reader either.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Waits for `limit`, or until the answer is no; returns the answer.
pub(crate) fn wait_while(limit: Duration, answer: impl Fn() -> bool) -> bool {
    let begun = Instant::now();
    while answer() {
        let rest = limit.saturating_sub(Instant::now().since(begun));
        if rest.is_zero() {
            return true;
        }
        std::thread::sleep(rest.min(POLL_INTERVAL));
    }
    false
}

/// Time until this moment of a control file.
fn left(until: Instant) -> Duration {
    // The clock goes second: what was true when the file was read is then judged by a later time. The
    // other way round, a process that was stopped in between would take an old hour for the present.
    match until {
        Instant::FOREVER => Duration::MAX,
        until => until.since(Instant::now()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The answers about a file of these words whose writer lives.
    fn answers(words: &[u64]) -> (bool, bool, Duration) {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        std::fs::write(file.path(), bytes).expect("written");
        let deadline = Deadline::open(file.path()).expect("a control file");
        assert!(!deadline.in_control(), "nobody is there who wrote it");
        let whole = libc::flock {
            l_type: libc::F_WRLCK as libc::c_short,
            l_whence: libc::SEEK_SET as libc::c_short,
            l_start: 0,
            l_len: 0,
            l_pid: 0,
        };
        let lock = nix::fcntl::FcntlArg::F_OFD_SETLK(&whole);
        nix::fcntl::fcntl(&file, lock).expect("locked");
        let may_begin = deadline.may_begin();
        assert_eq!(deadline.wait(Duration::ZERO), may_begin);
        (deadline.in_control(), may_begin, deadline.remaining())
    }

    #[test]
    fn a_deadline_ahead_is_control_and_one_that_passed_is_not() {
        let now = Instant::now();
        let ahead = (now + Duration::from_secs(1000)).as_nanos();
        // A file of the first word alone is that of an older trafficcop.
        for more in [&[][..], &[0], &[0, 7]] {
            let answers = |word| answers(&[&[word], more].concat());
            let (in_control, may_begin, remaining) = answers(ahead);
            assert!(in_control && may_begin);
            assert!(remaining > Duration::ZERO && remaining <= Duration::from_secs(1000));
            assert_eq!(answers(now.as_nanos()), (false, false, Duration::ZERO));
            assert_eq!(answers(0), (false, false, Duration::ZERO));
            assert_eq!(answers(u64::MAX), (true, true, Duration::MAX));
        }
    }

    #[test]
    fn drain_allows_nothing_more_and_its_end_is_what_remains() {
        let soon = (Instant::now() + Duration::from_secs(1000)).as_nanos();
        let (in_control, may_begin, remaining) = answers(&[u64::MAX, soon]);
        assert!(in_control && !may_begin);
        assert!(remaining > Duration::ZERO && remaining <= Duration::from_secs(1000));
        // In doubt the rest of the grace is still there to clean up in.
        let (in_control, may_begin, remaining) = answers(&[0, soon]);
        assert!(!in_control && !may_begin && remaining > Duration::ZERO);
        let endless = (true, false, Duration::MAX);
        assert_eq!(answers(&[u64::MAX, u64::MAX]), endless);
        assert_eq!(answers(&[u64::MAX, 1]), (true, false, Duration::ZERO));
    }

    #[test]
    fn what_is_missing_is_told_apart() {
        assert!(matches!(Deadline::of(None), Err(DeadlineError::Outside)));
        let empty = Deadline::of(Some(OsString::new()));
        assert!(matches!(empty, Err(DeadlineError::None)));
        let nowhere = Deadline::of(Some("/nowhere/at/all".into()));
        assert!(matches!(nowhere, Err(DeadlineError::Unreadable { .. })));
    }
}
