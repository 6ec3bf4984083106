//! Condition of `--if`: a command that tells whether this machine is fit for control.
//!
//! It has a time limit, and no process of it outlives its answer. It delays only the next attempt to acquire.

use std::ffi::{OsStr, OsString};

use crate::clock::Instant;
use crate::core::{Deadlines, Exit, Failed, Unfit, WorkloadEvent};
use crate::guardian::{GuardianHandle, Program, SpawnRequest, StopTo};

// To stderr: stdout may be the command's or a reader's.
const ON_STDERR: &str = "exec /bin/sh -c \"$0\" >&2";

pub(super) fn program(script: &OsStr) -> Program {
    Program::handler(vec![
        "/bin/sh".into(),
        "-c".into(),
        ON_STDERR.into(),
        script.to_owned(),
    ])
}

pub(super) type Verdict = Result<(), Unfit>;

pub(super) struct ConditionCommand {
    handle: GuardianHandle,
    asked: Option<ConditionRun>,
    /// The guardian is dead, or cannot kill.
    over: bool,
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

    /// Runs the command; [`ConditionCommand::step`] returns the answer.
    pub(super) fn ask(
        &mut self,
        env: Vec<(OsString, OsString)>,
        unset: Vec<OsString>,
        give_up_at: Instant,
    ) -> Option<Verdict> {
        if self.over {
            return Some(Err(Unfit::CannotAsk));
        }
        let limit = give_up_at.since(Instant::now());
        self.asked = Some(ConditionRun::default());
        self.handle.start(SpawnRequest {
            program: 0,
            in_control: false,
            env,
            unset,
            // Time for an orderly end.
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
        // No lease.
        self.handle.hurry_at(Instant::FOREVER);
        None
    }

    pub(super) fn kill(&mut self) {
        if self.asked.is_some() {
            self.handle.kill();
        }
    }

    pub(super) async fn dismiss(self) {
        self.handle.dismiss().await;
    }

    /// Waits for the next event. Cancel-safe.
    pub(super) async fn step(&mut self) -> Option<Verdict> {
        let event = self.handle.next_event().await;
        self.over |= matches!(event, WorkloadEvent::Lost | WorkloadEvent::TreeStuck);
        if event == WorkloadEvent::LeftBehind {
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

#[derive(Default)]
struct ConditionRun {
    exit: Option<Exit>,
    is_late: bool,
}

impl ConditionRun {
    fn hears(&mut self, event: &WorkloadEvent) -> Option<Verdict> {
        match event {
            WorkloadEvent::Exited(exit) => {
                self.exit = Some(*exit);
                None
            }
            WorkloadEvent::Acting => {
                self.is_late |= self.exit.is_none();
                None
            }
            WorkloadEvent::NotStarted { errno: libc::ETIME } => Some(Err(Unfit::TimedOut)),
            WorkloadEvent::NotStarted { errno } => {
                Some(Err(Unfit::Failed(Failed::NotStarted(*errno))))
            }
            WorkloadEvent::TreeEmpty { .. } if self.is_late => Some(Err(Unfit::TimedOut)),
            WorkloadEvent::TreeEmpty { .. } => Some(match self.exit {
                Some(Exit::Code(0)) => Ok(()),
                // Without its exit status it counts as killed.
                exit => Err(Unfit::Failed(Failed::Exited(
                    exit.unwrap_or(Exit::Signal(libc::SIGKILL)),
                ))),
            }),
            WorkloadEvent::Lost | WorkloadEvent::TreeStuck => Some(Err(Unfit::CannotAsk)),
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

    fn hears(events: &[WorkloadEvent]) -> Vec<Option<Verdict>> {
        let mut asked = ConditionRun::default();
        events.iter().map(|event| asked.hears(event)).collect()
    }

    #[test]
    fn answer_waits_until_the_tree_is_empty() {
        let events = [exited(0), WorkloadEvent::LeftBehind, EMPTY];
        assert_eq!(hears(&events), [None, None, Some(Ok(()))]);
        let no = Unfit::Failed(Failed::Exited(Exit::Code(3)));
        assert_eq!(hears(&[exited(3), EMPTY]), [None, Some(Err(no))]);
    }

    #[test]
    fn late_condition_times_out_whatever_its_exit_status() {
        let late = Some(Err(Unfit::TimedOut));
        let events = [WorkloadEvent::Acting, exited(0), EMPTY];
        assert_eq!(hears(&events), [None, None, late]);
        assert_eq!(hears(&[WorkloadEvent::Acting, EMPTY]), [None, late]);
        let too_late = WorkloadEvent::NotStarted { errno: libc::ETIME };
        assert_eq!(hears(&[too_late]), [late]);
        let events = [exited(0), WorkloadEvent::Acting, EMPTY];
        assert_eq!(hears(&events).pop(), Some(Some(Ok(()))));
    }

    #[test]
    fn missing_guardian_or_exit_status_makes_the_machine_unfit() {
        let killed = Unfit::Failed(Failed::Exited(Exit::Signal(libc::SIGKILL)));
        assert_eq!(hears(&[EMPTY]), [Some(Err(killed))]);
        let unasked = Some(Err(Unfit::CannotAsk));
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
