//! The condition of `--if`: a command that says whether this machine is fit to take control, under a
//! guardian of its own.
//!
//! Made by `run`, owned by its workload, asked by the core while nothing of ours has control. It has a time
//! limit, and nothing of it outlives its answer: what it leaves behind is killed, and so is all of it where
//! it hangs. It never delays anything but the next attempt to acquire, and it decides nothing.

use std::ffi::{OsStr, OsString};

use crate::clock::Instant;
use crate::core::{Deadlines, Exit, Failed, Unfit, WorkloadEvent};
use crate::guardian::{GuardianHandle, Program, SpawnRequest, StopTo};

// The script's stdout is our stderr: ours may be the command's or a reader's.
const ON_STDERR: &str = "exec /bin/sh -c \"$0\" >&2";

/// What `sh` runs.
pub(super) fn program(script: &OsStr) -> Program {
    Program::handler(vec![
        "/bin/sh".into(),
        "-c".into(),
        ON_STDERR.into(),
        script.to_owned(),
    ])
}

/// What it said.
pub(super) type Answer = Result<(), Unfit>;

/// See the module's text.
pub(super) struct ConditionCommand {
    handle: GuardianHandle,
    /// What was asked, and not answered yet.
    asked: Option<ConditionRun>,
    /// Its guardian is dead, or cannot get rid of what it has.
    over: bool,
    /// People know that it leaves processes behind: it does so each time.
    told: bool,
}

impl ConditionCommand {
    pub(super) fn new(handle: GuardianHandle) -> ConditionCommand {
        ConditionCommand {
            handle,
            asked: None,
            over: false,
            told: false,
        }
    }

    /// Runs it, with this in its environment; an answer comes from [`ConditionCommand::step`], or at once
    /// where there can be none.
    pub(super) fn ask(
        &mut self,
        env: Vec<(OsString, OsString)>,
        unset: Vec<OsString>,
        give_up_at: Instant,
    ) -> Option<Answer> {
        if self.over {
            return Some(Err(Unfit::Unasked));
        }
        let limit = give_up_at.since(Instant::now());
        self.asked = Some(ConditionRun::default());
        self.handle.start(SpawnRequest {
            program: 0,
            in_control: false,
            env,
            unset,
            // Room for an orderly end within the limit.
            deadlines: Deadlines {
                term_at: give_up_at - limit / 10,
                kill_at: give_up_at,
            },
            stop_signal: libc::SIGTERM,
            stop_to: StopTo::Group,
            lock: None,
            input: None,
            release_info: Vec::new(),
        });
        // It runs under no lease.
        self.handle.hurry_at(Instant::FOREVER);
        None
    }

    /// Ends it now: nobody waits for its answer any more.
    pub(super) fn kill(&mut self) {
        if self.asked.is_some() {
            self.handle.kill();
        }
    }

    /// Ends its guardian.
    pub(super) async fn dismiss(self) {
        self.handle.dismiss().await;
    }

    /// Waits until something becomes of it; its answer, if that is it. Cancel-safe.
    pub(super) async fn step(&mut self) -> Option<Answer> {
        let event = self.handle.next_event().await;
        // Also where nobody asked: from now on there is nobody to ask.
        self.over |= matches!(event, WorkloadEvent::Lost | WorkloadEvent::TreeStuck);
        if event == WorkloadEvent::LeftBehind {
            // It has said what it had to say, and nobody waits for the rest.
            self.handle.kill();
            if !std::mem::replace(&mut self.told, true) {
                tracing::warn!("the --if command left processes behind: killing them each time");
            }
        }
        let answer = self.asked.as_mut()?.hears(&event)?;
        self.asked = None;
        Some(answer)
    }
}

/// One run of it.
#[derive(Default)]
struct ConditionRun {
    exit: Option<Exit>,
    /// It did not end by itself in time.
    is_late: bool,
}

impl ConditionRun {
    /// What follows from what its guardian says: an answer, once nothing of it lives.
    fn hears(&mut self, event: &WorkloadEvent) -> Option<Answer> {
        match event {
            WorkloadEvent::Exited(exit) => {
                self.exit = Some(*exit);
                None
            }
            WorkloadEvent::Acting => {
                self.is_late |= self.exit.is_none();
                None
            }
            // The order came too late to be carried out.
            WorkloadEvent::NotStarted { errno: libc::ETIME } => Some(Err(Unfit::TimedOut)),
            WorkloadEvent::NotStarted { errno } => {
                Some(Err(Unfit::Failed(Failed::NotStarted(*errno))))
            }
            WorkloadEvent::TreeEmpty { .. } if self.is_late => Some(Err(Unfit::TimedOut)),
            WorkloadEvent::TreeEmpty { .. } => Some(match self.exit {
                Some(Exit::Code(0)) => Ok(()),
                // Without a word of how it ended nothing can be claimed for it.
                exit => Err(Unfit::Failed(Failed::Exited(
                    exit.unwrap_or(Exit::Signal(libc::SIGKILL)),
                ))),
            }),
            WorkloadEvent::Lost | WorkloadEvent::TreeStuck => Some(Err(Unfit::Unasked)),
            WorkloadEvent::Started { .. }
            | WorkloadEvent::Stopped
            | WorkloadEvent::LeftBehind
            | WorkloadEvent::ClockJumped
            | WorkloadEvent::HookFailed { .. }
            | WorkloadEvent::Standby(_)
            | WorkloadEvent::Condition(_)
            | WorkloadEvent::Health(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EMPTY: WorkloadEvent = WorkloadEvent::TreeEmpty { at: Instant::ZERO };

    fn exited(status: u8) -> WorkloadEvent {
        WorkloadEvent::Exited(Exit::Code(status))
    }

    /// The answers after each of these events.
    fn hears(events: &[WorkloadEvent]) -> Vec<Option<Answer>> {
        let mut asked = ConditionRun::default();
        events.iter().map(|event| asked.hears(event)).collect()
    }

    #[test]
    fn there_is_no_answer_before_nothing_of_it_lives() {
        let events = [exited(0), WorkloadEvent::LeftBehind, EMPTY];
        assert_eq!(hears(&events), [None, None, Some(Ok(()))]);
        let no = Unfit::Failed(Failed::Exited(Exit::Code(3)));
        assert_eq!(hears(&[exited(3), EMPTY]), [None, Some(Err(no))]);
    }

    #[test]
    fn what_ended_because_it_was_late_is_late_whatever_it_says() {
        let late = Some(Err(Unfit::TimedOut));
        let events = [WorkloadEvent::Acting, exited(0), EMPTY];
        assert_eq!(hears(&events), [None, None, late]);
        assert_eq!(hears(&[WorkloadEvent::Acting, EMPTY]), [None, late]);
        let too_late = WorkloadEvent::NotStarted { errno: libc::ETIME };
        assert_eq!(hears(&[too_late]), [late]);
        // What it left behind outlasted the limit, and not it.
        let events = [exited(0), WorkloadEvent::Acting, EMPTY];
        assert_eq!(hears(&events).pop(), Some(Some(Ok(()))));
    }

    #[test]
    fn without_a_guardian_or_a_word_of_its_end_it_is_a_no() {
        let killed = Unfit::Failed(Failed::Exited(Exit::Signal(libc::SIGKILL)));
        assert_eq!(hears(&[EMPTY]), [Some(Err(killed))]);
        let unasked = Some(Err(Unfit::Unasked));
        assert_eq!(hears(&[WorkloadEvent::Lost]), [unasked]);
        assert_eq!(
            hears(&[exited(0), WorkloadEvent::TreeStuck]),
            [None, unasked]
        );
        let errno = libc::EAGAIN;
        let no = Unfit::Failed(Failed::NotStarted(errno));
        assert_eq!(
            hears(&[WorkloadEvent::NotStarted { errno }]),
            [Some(Err(no))]
        );
    }
}
