//! "Am I still in control?", asked from inside a command: [`Deadline`].
//!
//! Used by programs that run under `trafficcop run`, and by `trafficcop check` for scripts. An
//! answer costs a read of memory and of the clock, and, where that would say yes, one system call:
//! whether whoever wrote it lives. It must never say yes where another instance could have been given
//! control.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::clock::Instant;
use crate::guardian::View;

/// The variable in which `trafficcop run` tells its command where the control file is.
pub(crate) const VARIABLE: &str = "TRAFFICCOP_CONTROL";

/// Why nobody can tell whether we are in control. One line each.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeadlineError {
    /// There is no `TRAFFICCOP_CONTROL` in the environment.
    #[error(
        "TRAFFICCOP_CONTROL is not set: this is to be asked by a command that trafficcop runs, as in 'trafficcop run --file PATH -- ./job'"
    )]
    Outside,
    /// `TRAFFICCOP_CONTROL` is empty: there was no directory for a control file.
    #[error(
        "TRAFFICCOP_CONTROL is empty: trafficcop found no directory for a control file, its log says why"
    )]
    None,
    /// The file cannot be read, or is not what it should be.
    #[error("{path}: {why}: it is there for as long as the command runs, and readable by all on this machine", path = .path.display())]
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
/// while deadline.in_control() {
///     // A piece of work that is shorter than the grace on loss.
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

    /// Whether we are in control at this moment: no other instance can have been given it.
    ///
    /// False from the moment the command is asked to end because control is in doubt.
    #[must_use]
    pub fn in_control(&self) -> bool {
        !self.remaining().is_zero()
    }

    /// For how long we are in control at least, should the lease not be renewed any more; zero if
    /// we are not, [`Duration::MAX`] where the lock lasts as long as the command.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        // The clock goes second: what was true when it was read is then judged by a later time. The
        // other way round, a process that was stopped in between would take an old hour for the present.
        match self.0.until() {
            Instant::FOREVER => Duration::MAX,
            until => until.since(Instant::now()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(value: u64) -> Duration {
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), value.to_ne_bytes()).expect("written");
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
        assert_eq!(deadline.in_control(), !deadline.remaining().is_zero());
        deadline.remaining()
    }

    #[test]
    fn a_deadline_ahead_is_control_and_one_that_passed_is_not() {
        let now = Instant::now();
        let ahead = written((now + Duration::from_secs(1000)).as_nanos());
        assert!(ahead > Duration::ZERO && ahead <= Duration::from_secs(1000));
        assert_eq!(written(now.as_nanos()), Duration::ZERO);
        assert_eq!(written(0), Duration::ZERO);
        assert_eq!(written(u64::MAX), Duration::MAX);
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
