//! The condition of `--if`: a command that says whether this machine is fit to take control, under a
//! guardian of its own.
//!
//! Made by `run`, owned by its workload, asked by the core while nothing of ours has control. It has a time
//! limit, and nothing of it outlives its answer: what it leaves behind is killed, and so is all of it where
//! it hangs. It never delays anything but the next attempt to acquire, and it decides nothing.

use std::ffi::{OsStr, OsString};

use crate::clock::Instant;
use crate::core::{Deadlines, Exit, Failed, Unfit};
use crate::guardian::{GuardianHandle, Program, SpawnRequest, WorkloadEvent};
use crate::notify::PRIVATE;

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
    asked: Option<Asked>,
    /// Its guardian is dead, or cannot get rid of what it has.
    over: bool,
    /// People know that it leaves processes behind: it does so each time.
    told: bool,
}

#[derive(Default)]
struct Asked {
    exit: Option<Exit>,
    /// It did not end by itself in time.
    is_late: bool,
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
        self.asked = Some(Asked::default());
        self.handle.start(SpawnRequest {
            program: 0,
            in_control: false,
            env,
            unset: unset
                .into_iter()
                .chain(PRIVATE.map(OsString::from))
                .collect(),
            // Room for an orderly end within the limit.
            deadlines: Deadlines {
                term_at: give_up_at - limit / 10,
                kill_at: give_up_at,
            },
            stop_signal: libc::SIGTERM,
            lock: None,
            input: None,
            release_info: Vec::new(),
        });
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
        self.on_event(&event)
    }

    fn on_event(&mut self, event: &WorkloadEvent) -> Option<Answer> {
        match event {
            WorkloadEvent::Exited(exit) => {
                if let Some(asked) = &mut self.asked {
                    asked.exit = Some(*exit);
                }
                None
            }
            WorkloadEvent::Acting => {
                if let Some(asked) = &mut self.asked {
                    asked.is_late |= asked.exit.is_none();
                }
                None
            }
            WorkloadEvent::LeftBehind => {
                // It has said what it had to say, and nobody waits for the rest.
                self.handle.kill();
                if !std::mem::replace(&mut self.told, true) {
                    tracing::warn!(
                        "the --if command left processes behind: killing them, now and each time"
                    );
                }
                None
            }
            // The order came too late to be carried out.
            WorkloadEvent::NotStarted { errno: libc::ETIME } => self.answer(Err(Unfit::TimedOut)),
            WorkloadEvent::NotStarted { errno } => {
                self.answer(Err(Unfit::Failed(Failed::NotStarted(*errno))))
            }
            WorkloadEvent::TreeEmpty { .. } => {
                let answer = match &self.asked {
                    Some(Asked { is_late: true, .. }) => Err(Unfit::TimedOut),
                    Some(Asked {
                        exit: Some(Exit::Code(0)),
                        ..
                    }) => Ok(()),
                    // Without a word of how it ended nothing can be claimed for it.
                    Some(Asked { exit, .. }) => {
                        let exit = exit.unwrap_or(Exit::Signal(libc::SIGKILL));
                        Err(Unfit::Failed(Failed::Exited(exit)))
                    }
                    None => return None,
                };
                self.answer(answer)
            }
            WorkloadEvent::Lost | WorkloadEvent::TreeStuck => {
                self.over = true;
                self.answer(Err(Unfit::Unasked))
            }
            WorkloadEvent::Started { .. }
            | WorkloadEvent::Stopped
            | WorkloadEvent::ClockJumped
            | WorkloadEvent::HookFailed { .. }
            | WorkloadEvent::Standby(_)
            | WorkloadEvent::Condition(_) => None,
        }
    }

    fn answer(&mut self, answer: Answer) -> Option<Answer> {
        self.asked.take().map(|_| answer)
    }
}
