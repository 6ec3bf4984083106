//! The command of a task that is to be done once has ended: what it came to is recorded under the
//! lease, which is renewed meanwhile.
//!
//! Entered only after "tree empty". A result counts when the store has confirmed it, and only then
//! is the lease given back; a run that was ended by us is no result. After a failed run that is not
//! the last one the lease is kept for a back-off, so that nobody tries at once, whoever comes next.

use std::time::Duration;

use super::campaign::{Campaign, Stop, Turn};
use super::control::Answer;
use super::holding::Charge;
use super::{Phase, Releasing};
use crate::clock::Instant;
use crate::core::budget::{ATTEMPT, RETRY};
use crate::core::{Action, Cause, Event, Failure, Notice, Once, Outcome};

/// For how long a result is tried to be recorded while the lease can be renewed: a store that takes
/// renewals and no records is not what we hope for any longer.
const PATIENCE: Duration = Duration::from_secs(300);

/// See the module's text.
#[derive(Debug)]
pub(super) struct Recording {
    charge: Charge,
    outcome: Outcome,
    /// When the last of the tree was seen to be gone; `None` once the store has confirmed a request
    /// sent later than that.
    empty_at: Option<Instant>,
    give_up_at: Instant,
    /// Why it is not recorded yet, as far as that is known.
    why: Option<String>,
    stage: Stage,
}

#[derive(Debug)]
enum Stage {
    /// The store is to be asked.
    Due { at: Instant },
    /// The store was asked; the attempt keeps its own time limit, and its reply comes in any case.
    Asked { sent: Instant },
    /// It is recorded that the run failed; the lease is given back at this moment.
    BackOff { until: Instant },
}

/// After the tree of a task's run was empty at `empty_at`.
pub(super) fn after(
    campaign: &mut Campaign,
    turn: &mut Turn,
    charge: Charge,
    cause: Cause,
    empty_at: Instant,
    rule: Once,
) -> Phase {
    if cause != Cause::CommandEnded {
        // It may have been in the middle of its work, whatever status it ended with.
        if matches!(cause, Cause::Stopped(_) | Cause::Cordoned { .. }) {
            turn.report(Notice::NotDone);
        }
        return Releasing::after(campaign, turn, charge, cause, Some(empty_at));
    }
    let Some(exit) = charge.exit else {
        let why = "how the command ended is not known".to_owned();
        let cause = Cause::NotRecorded { why };
        return Releasing::after(campaign, turn, charge, cause, Some(empty_at));
    };
    Recording {
        outcome: rule.outcome(exit, charge.control.failed()),
        charge,
        empty_at: Some(empty_at),
        give_up_at: turn.now + PATIENCE,
        why: None,
        stage: Stage::Due { at: turn.now },
    }
    .go_on(campaign, turn)
}

impl Recording {
    /// Until when the store takes anything of us.
    fn limit(&self) -> Instant {
        self.charge.control.kill_at()
    }

    pub(super) fn wake_at(&self) -> Instant {
        let limit = self.limit();
        let next = match self.stage {
            Stage::Due { at } => at.min(self.give_up_at).min(limit),
            Stage::Asked { .. } => Instant::FOREVER,
            Stage::BackOff { until } => until.min(limit),
        };
        next.min(self.charge.control.renewal_due(limit))
    }

    pub(super) fn step(mut self, campaign: &mut Campaign, turn: &mut Turn, event: Event) -> Phase {
        match event {
            Event::Recorded(reply) => self.recorded(campaign, turn, reply),
            Event::Renewed { t0, reply } => {
                let limit = self.limit();
                let control = &mut self.charge.control;
                match control.renewed(campaign, turn.now, t0, reply, limit) {
                    Answer::Confirmed => {
                        campaign.answered(turn);
                        self.empty_at = self.empty_at.filter(|at| t0 < *at);
                    }
                    Answer::Doubt(why) => campaign.doubts(turn, why, None),
                    Answer::TooLate => {}
                    // What is left of a lease that is being broken is good enough for a record.
                    Answer::Lost(why) => self.why = Some(format!("the lease was lost: {why}")),
                }
                self.go_on(campaign, turn)
            }
            Event::ClockJumped => {
                self.charge.control.hurry(turn.now);
                self.go_on(campaign, turn)
            }
            Event::StopAsked(signal) => {
                match (campaign.asked_to_stop(turn.now, signal), &self.stage) {
                    (_, Stage::BackOff { .. }) => {
                        self.leave(campaign, turn, Cause::Stopped(signal))
                    }
                    (Stop::Asked | Stop::Again, _) => self.go_on(campaign, turn),
                    (Stop::AtOnce, _) => {
                        self.why = Some("we were told to stop at once".to_owned());
                        self.give_up(campaign, turn)
                    }
                }
            }
            Event::GuardianLost => {
                // Nothing is to be started any more by us; the result is as good as before.
                campaign.guardian_lost = true;
                self.go_on(campaign, turn)
            }
            // Nothing of ours runs: the clock, late echoes, and a dead guardian's own corpse.
            Event::Ticked
            | Event::Cordoned(_)
            | Event::Uncordoned
            | Event::Freed
            | Event::Acquired(_)
            | Event::Released(_)
            | Event::Started { .. }
            | Event::NotStarted { .. }
            | Event::Unprepared { .. }
            | Event::Exited(_)
            | Event::TreeEmpty { .. }
            | Event::TreeStuck => self.go_on(campaign, turn),
        }
    }

    fn go_on(mut self, campaign: &mut Campaign, turn: &mut Turn) -> Phase {
        let (now, limit) = (turn.now, self.limit());
        match self.stage {
            Stage::Due { .. } if now >= limit || now >= self.give_up_at => {
                return self.give_up(campaign, turn);
            }
            Stage::Due { at } if now >= at => {
                turn.act(Action::Record {
                    outcome: self.outcome,
                    give_up_at: limit.min(now + ATTEMPT),
                });
                self.stage = Stage::Asked { sent: now };
            }
            Stage::BackOff { until } if now >= until || now >= limit => {
                return self.leave(campaign, turn, Cause::HandOver);
            }
            Stage::Due { .. } | Stage::Asked { .. } | Stage::BackOff { .. } => {}
        }
        self.charge.control.renew_if_due(turn, limit);
        Phase::Recording(self)
    }

    fn recorded(
        mut self,
        campaign: &mut Campaign,
        turn: &mut Turn,
        reply: Result<(), Failure>,
    ) -> Phase {
        let Stage::Asked { sent } = self.stage else {
            return self.go_on(campaign, turn);
        };
        match reply {
            // However late we hear of it: no store takes a record from anybody but the holder.
            Ok(()) => self.confirmed(campaign, turn),
            Err(Failure::Transient { why, retry_after }) => {
                if self.why.is_none() {
                    turn.report(Notice::Unrecorded { why: why.clone() });
                }
                // The reason of a loss is the better one.
                if !self.charge.control.lost() {
                    self.why = Some(why);
                }
                let latest = self.limit() - RETRY;
                let chance = &mut campaign.chance;
                let at = chance.again_at(sent, turn.now, retry_after, latest);
                self.stage = Stage::Due { at };
                self.go_on(campaign, turn)
            }
            Err(failure) => {
                self.why = Some(failure.to_string());
                match failure {
                    Failure::Lost { until, .. } => {
                        self.charge.control.lose(turn.now, until);
                    }
                    Failure::Held(_) => self.charge.control.lose(turn.now, None),
                    Failure::Over(_) | Failure::Transient { .. } | Failure::Fatal { .. } => {}
                }
                self.give_up(campaign, turn)
            }
        }
    }

    /// The store has it.
    fn confirmed(mut self, campaign: &mut Campaign, turn: &mut Turn) -> Phase {
        // It took it from us, so the lease was ours when the tree was empty.
        self.empty_at = None;
        let failed = self.charge.control.failed();
        turn.report(Notice::Recorded {
            outcome: self.outcome,
            attempt: failed.saturating_add(1),
        });
        if self.outcome.over {
            return self.leave(campaign, turn, Cause::CommandEnded);
        }
        if let Some(signal) = campaign.stopping() {
            return self.leave(campaign, turn, Cause::Stopped(signal));
        }
        let until = turn.now + Once::back_off(failed);
        turn.report(Notice::Pausing { until });
        self.stage = Stage::BackOff { until };
        self.go_on(campaign, turn)
    }

    fn give_up(mut self, campaign: &mut Campaign, turn: &mut Turn) -> Phase {
        let why = self.why.take().or(campaign.doubt().map(str::to_owned));
        let why = why.unwrap_or_else(|| "the store did not answer in time".to_owned());
        self.leave(campaign, turn, Cause::NotRecorded { why })
    }

    fn leave(self, campaign: &mut Campaign, turn: &mut Turn, cause: Cause) -> Phase {
        Releasing::after(campaign, turn, self.charge, cause, self.empty_at)
    }
}
