//! A task that is to be done once: what a run of it comes to, and how it ended as its record says.
//!
//! Called by the tenure, which decides by [`Once`] what is recorded, and by the stores, which keep
//! the records. Pure, and knows no key and no clock: which task it is, and in which slot of time,
//! is between `config` and the store.

use super::Exit;

/// The rule of a task that is to be done once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Once {
    /// What a failed run means.
    pub on_failure: OnFailure,
    /// After so many failed runs, of all candidates together, the task has failed; `None`: never.
    pub attempts: Option<u32>,
}

/// What a failed run means; as it is typed, with its help.
#[cfg_attr(feature = "cli", derive(clap::ValueEnum))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnFailure {
    /// After a back-off of 1 to 30 seconds the next candidate runs the command
    #[default]
    Retry,
    /// The task has failed: that is recorded, and everybody exits with the command's status
    Stop,
}

impl Once {
    /// What a run that ended so means, after `failed` runs that failed before it.
    #[must_use]
    pub fn outcome(&self, exit: Exit, failed: u32) -> Outcome {
        let last = match self.on_failure {
            OnFailure::Stop => true,
            OnFailure::Retry => self
                .attempts
                .is_some_and(|most| failed.saturating_add(1) >= most),
        };
        // A success counts whenever it comes: also where others used up the attempts meanwhile.
        Outcome {
            exit,
            over: last || exit == Exit::Code(0),
        }
    }
}

/// What a run came to: what is written into the record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// How the command ended.
    pub exit: Exit,
    /// Nobody runs it again: it succeeded, or it was the last attempt.
    pub over: bool,
}

/// How a task ended, as its record says: all of it is for people, but for the status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskResult {
    /// The exit status of the run that settled it (128 + n for signal n).
    pub status: u8,
    /// The identity of the instance that ran it.
    pub holder: String,
    /// When it was recorded (RFC 3339, UTC).
    pub at: String,
    /// The fencing token of the run.
    pub token: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_success_settles_it_and_a_failure_only_if_it_was_the_last_attempt() {
        let (done, failed, killed) = (Exit::Code(0), Exit::Code(3), Exit::Signal(9));
        for (on_failure, attempts, before, fails_for_good) in [
            (OnFailure::Retry, None, 0, false),
            (OnFailure::Retry, None, u32::MAX, false),
            (OnFailure::Retry, Some(3), 0, false),
            (OnFailure::Retry, Some(3), 1, false),
            (OnFailure::Retry, Some(3), 2, true),
            (OnFailure::Retry, Some(3), 9, true),
            (OnFailure::Retry, Some(1), 0, true),
            (OnFailure::Stop, None, 0, true),
        ] {
            let once = Once {
                on_failure,
                attempts,
            };
            assert!(once.outcome(done, before).over);
            for exit in [failed, killed] {
                let outcome = once.outcome(exit, before);
                assert_eq!(outcome.over, fails_for_good, "{once:?} after {before}");
                assert_eq!(outcome.exit, exit);
            }
        }
    }
}
