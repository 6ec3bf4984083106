//! Answers to code inside a command: may it begin more work, and is it still in control? See [`Deadline`].
//!
//! An answer reads memory and the clock; before a yes one system call checks that the writer is alive. It must
//! never be yes when another instance could have been given control.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::clock::Instant;
use crate::guardian::{ControlState, View};

/// Variable with the path of the control file.
pub(crate) const VARIABLE: &str = "TRAFFICCOP_CONTROL";

/// Reason why the answer is unknown.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeadlineError {
    /// `TRAFFICCOP_CONTROL` is not set.
    #[error(
        "TRAFFICCOP_CONTROL is not set: run this in a command that trafficcop runs, \
         as in 'trafficcop run --file PATH -- ./job'"
    )]
    Outside,
    /// There was no directory for a control file.
    #[error(
        "TRAFFICCOP_CONTROL is empty: trafficcop found no directory for a control file; its log has the reason"
    )]
    None,
    /// The file cannot be read, or is no control file.
    #[error(
        "{path}: {why}: it exists while the command runs, and all users of this machine can read it",
        path = .path.display()
    )]
    Unreadable {
        /// Path of the file.
        path: PathBuf,
        /// Error of the read.
        why: std::io::Error,
    },
}

/// Deadline of the command that this program belongs to.
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
    /// Opens the deadline of the command that this process belongs to.
    ///
    /// # Errors
    /// If there is none, or it cannot be read.
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

    /// Opens this control file.
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

    /// Returns whether the command is in control: no other instance can have been given it.
    ///
    /// False once the command is asked to end because control is in doubt. After a requested stop or in a hand-over
    /// the command is in control until it has ended.
    #[must_use]
    pub fn in_control(&self) -> bool {
        !left(self.0.read().until).is_zero()
    }

    /// Returns whether more work may begin: the command is in control, and no drain has begun.
    ///
    /// A drain is written before its first signal is sent, so a signal handler gets `false`.
    #[must_use]
    pub fn may_begin(&self) -> bool {
        let ControlState { until, drain } = self.0.read();
        drain == Instant::ZERO && !left(until).is_zero()
    }

    /// Returns the time until trafficcop may send SIGKILL if no renewal succeeds. It ends with the grace once a drain
    /// has begun, or at the lease's deadline if that is earlier; [`Duration::MAX`] if there is neither. Before a
    /// drain the grace does not count.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        match self.0.read() {
            ControlState {
                until,
                drain: Instant::ZERO,
            } => left(until),
            // The guardian never lets it pass the lease's deadline.
            ControlState { drain, .. } => left(drain),
        }
    }

    /// Blocks until [`Deadline::may_begin`] is false, or for `limit`, and returns the last answer.
    #[must_use]
    pub fn wait(&self, limit: Duration) -> bool {
        wait_while(limit, || self.may_begin())
    }
}

/// Longest delay of an answer: no event wakes the reader when a deadline passes or the writer dies.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

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

fn left(until: Instant) -> Duration {
    // After the file: a process that was stopped in between must not judge it by an old time.
    match until {
        Instant::FOREVER => Duration::MAX,
        until => until.since(Instant::now()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answers(words: &[u64]) -> (bool, bool, Duration) {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        std::fs::write(file.path(), bytes).expect("written");
        let deadline = Deadline::open(file.path()).expect("a control file");
        assert!(!deadline.in_control(), "no writer holds the lock");
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
    fn future_deadline_means_control_and_past_deadline_does_not() {
        let now = Instant::now();
        let ahead = (now + Duration::from_secs(1000)).as_nanos();
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
    fn drain_forbids_new_work_and_remaining_counts_to_its_end() {
        let soon = (Instant::now() + Duration::from_secs(1000)).as_nanos();
        let (in_control, may_begin, remaining) = answers(&[u64::MAX, soon]);
        assert!(in_control && !may_begin);
        assert!(remaining > Duration::ZERO && remaining <= Duration::from_secs(1000));
        // The rest of the grace is left to clean up in.
        let (in_control, may_begin, remaining) = answers(&[0, soon]);
        assert!(!in_control && !may_begin && remaining > Duration::ZERO);
        let endless = (true, false, Duration::MAX);
        assert_eq!(answers(&[u64::MAX, u64::MAX]), endless);
        assert_eq!(answers(&[u64::MAX, 1]), (true, false, Duration::ZERO));
    }

    #[test]
    fn each_missing_control_file_has_its_own_error() {
        assert!(matches!(Deadline::of(None), Err(DeadlineError::Outside)));
        let empty = Deadline::of(Some(OsString::new()));
        assert!(matches!(empty, Err(DeadlineError::None)));
        let nowhere = Deadline::of(Some("/nowhere/at/all".into()));
        assert!(matches!(nowhere, Err(DeadlineError::Unreadable { .. })));
    }
}
