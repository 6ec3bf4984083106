//! Giving back what we have, or may have, at the store; and what comes after.
//!
//! Nothing of ours runs here: every way in is from a state without a command, by "tree empty", or
//! by "nothing of it runs". Ends in `Done`, or in `Standby` where control was lost or
//! handed over and we compete.

use std::time::Duration;

use super::campaign::{Campaign, Stop, Turn};
use super::control::Control;
use super::holding::Charge;
use super::{IfLost, Phase, Standby};
use crate::clock::Instant;
use crate::core::budget::ATTEMPT;
use crate::core::{Action, Cause, Ending, Event, Exit, Failure, Notice};

/// How long we ask a store to take the lease back before it is left to run out.
const PATIENCE: Duration = Duration::from_secs(10);

/// See the module's text.
#[derive(Debug)]
pub(super) struct Releasing {
    /// Why the tenure ended; `None`: it never began, and the wait goes on.
    cause: Option<Cause>,
    exit: Option<Exit>,
    overlap: bool,
    /// When the last of the command's tree was seen to be gone, if it ran.
    empty_at: Option<Instant>,
    /// The moment before the request was sent that the store granted last.
    confirmed: Instant,
    /// From when on somebody else can have it because it ran out.
    others_from: Instant,
    /// A command was ordered to start: a tenure had begun.
    began: bool,
    /// A lease was granted (rather than: an attempt may have obtained one).
    granted: bool,
    give_up_at: Instant,
    stage: Stage,
}

#[derive(Debug)]
enum Stage {
    /// A renewal is in flight, and calls to the store do not overlap.
    Renewing { until: Instant },
    /// The store is to be asked.
    Due { at: Instant },
    /// The store was asked.
    Asked { sent: Instant },
}

impl Releasing {
    /// After a tenure: its tree was empty at `empty_at` (`None`: nothing of it ever ran).
    pub(super) fn after(
        campaign: &mut Campaign,
        turn: &mut Turn,
        charge: Charge,
        cause: Cause,
        empty_at: Option<Instant>,
    ) -> Phase {
        let control = &charge.control;
        let mut this = Releasing::new(turn, Some(cause), Some(control));
        this.began = true;
        this.exit = charge.exit;
        this.confirmed = control.confirmed();
        this.others_from = control.others_from();
        this.overlap = empty_at.is_some_and(|at| at > this.others_from);
        this.empty_at = empty_at;
        this.begin(campaign, turn, control)
    }

    /// Of a lease under which nothing was started.
    pub(super) fn of_a_lease(
        campaign: &mut Campaign,
        turn: &mut Turn,
        control: &Control,
        cause: Option<Cause>,
    ) -> Phase {
        Releasing::new(turn, cause, Some(control)).begin(campaign, turn, control)
    }

    /// Of a lease that was granted when nobody waited for it.
    pub(super) fn of_a_stray(campaign: &mut Campaign, turn: &mut Turn) -> Phase {
        let mut this = Releasing::new(turn, None, None);
        this.granted = true;
        this.go_on(campaign, turn)
    }

    /// Of what an attempt that was not answered may have obtained.
    pub(super) fn of_a_maybe(campaign: &mut Campaign, turn: &mut Turn, cause: Cause) -> Phase {
        Releasing::new(turn, Some(cause), None).go_on(campaign, turn)
    }

    /// Of what the attempt that is in flight may obtain.
    pub(super) fn of_an_attempt(turn: &mut Turn, cause: Cause) -> Phase {
        let mut this = Releasing::new(turn, Some(cause), None);
        turn.act(Action::Withdraw {
            give_up_at: this.give_up_at.min(turn.now + ATTEMPT),
        });
        this.stage = Stage::Asked { sent: turn.now };
        Phase::Releasing(this)
    }

    /// A tree that cannot be killed may live for ever: its lease is never given back.
    pub(super) fn never(turn: &mut Turn, exit: Option<Exit>, cause: Cause) -> Phase {
        left_to_run_out(turn, "a process of the command cannot be killed".to_owned());
        turn.act(Action::TenureOver {
            cause: cause.clone(),
        });
        Phase::Done(Ending {
            cause,
            exit,
            overlap: true,
            released: false,
        })
    }

    /// Why, and how the command ended.
    pub(super) fn reason(&self) -> (Option<&Cause>, Option<Exit>) {
        (self.cause.as_ref(), self.exit)
    }

    fn new(turn: &Turn, cause: Option<Cause>, control: Option<&Control>) -> Releasing {
        let end = control.map_or(Instant::FOREVER, Control::may_last_until);
        Releasing {
            cause,
            exit: None,
            overlap: false,
            empty_at: None,
            confirmed: Instant::ZERO,
            others_from: Instant::FOREVER,
            began: false,
            granted: control.is_some(),
            give_up_at: end.min(turn.now + PATIENCE),
            stage: Stage::Due { at: turn.now },
        }
    }

    fn begin(mut self, campaign: &mut Campaign, turn: &mut Turn, control: &Control) -> Phase {
        if control.lost() {
            turn.act(Action::Abandon);
            return self.conclude(campaign, turn, false);
        }
        if let Some(until) = control.in_flight_until() {
            self.stage = Stage::Renewing { until };
        }
        self.go_on(campaign, turn)
    }

    pub(super) fn wake_at(&self) -> Instant {
        match self.stage {
            Stage::Renewing { until } => until,
            Stage::Due { at } => at,
            // The attempt keeps its own time limit, and its reply comes in any case.
            Stage::Asked { .. } => Instant::FOREVER,
        }
    }

    pub(super) fn step(mut self, campaign: &mut Campaign, turn: &mut Turn, event: Event) -> Phase {
        match event {
            Event::Released(reply) => self.released(campaign, turn, reply),
            Event::Renewed { reply, .. } => self.renewed(campaign, turn, reply),
            // The attempt that was withdrawn had been answered already: undo that, too.
            Event::Acquired(Ok(_)) => {
                self.granted = true;
                self.stage = Stage::Due { at: turn.now };
                self.go_on(campaign, turn)
            }
            Event::Exited(exit) => {
                if self.empty_at.is_some() && self.exit.is_none() {
                    self.exit = Some(exit);
                    turn.report(Notice::CommandEnded(exit));
                }
                self.go_on(campaign, turn)
            }
            Event::GuardianLost => {
                campaign.guardian_lost = true;
                self.go_on(campaign, turn)
            }
            Event::StopAsked(signal) => match campaign.asked_to_stop(turn.now, signal) {
                Stop::Asked | Stop::Again => self.go_on(campaign, turn),
                Stop::AtOnce => {
                    self.run_out(campaign, turn, "we were told to stop at once".to_owned())
                }
            },
            // The clock, and late echoes.
            Event::Ticked
            | Event::ClockJumped
            | Event::Cordoned(_)
            | Event::Uncordoned
            | Event::Freed
            | Event::Acquired(Err(_))
            | Event::Recorded(_)
            | Event::Started { .. }
            | Event::NotStarted { .. }
            | Event::Unprepared { .. }
            | Event::TreeEmpty { .. }
            | Event::TreeStuck => self.go_on(campaign, turn),
        }
    }

    /// Asks the store if it is time to.
    fn go_on(mut self, campaign: &mut Campaign, turn: &mut Turn) -> Phase {
        let at = match self.stage {
            Stage::Renewing { until } => until,
            Stage::Due { at } => at,
            Stage::Asked { .. } => return Phase::Releasing(self),
        };
        if turn.now >= self.give_up_at {
            return self.run_out(
                campaign,
                turn,
                "the store did not answer in time".to_owned(),
            );
        }
        if turn.now >= at {
            turn.act(Action::Release {
                give_up_at: self.give_up_at.min(turn.now + ATTEMPT),
            });
            self.stage = Stage::Asked { sent: turn.now };
        }
        Phase::Releasing(self)
    }

    fn released(
        mut self,
        campaign: &mut Campaign,
        turn: &mut Turn,
        reply: Result<(), Failure>,
    ) -> Phase {
        let Stage::Asked { sent } = self.stage else {
            return self.go_on(campaign, turn);
        };
        match reply {
            Ok(()) | Err(Failure::Held(_)) => {
                if self.granted {
                    turn.report(Notice::Released);
                }
                self.conclude(campaign, turn, true)
            }
            Err(Failure::Lost { why, .. }) => {
                // It was taken from us at some moment since it was confirmed last; unless it has run
                // out meanwhile, which the deadlines have seen to.
                if turn.now < self.others_from {
                    self.overlap |= self.empty_at.is_some_and(|at| at > self.confirmed);
                }
                turn.report(Notice::FoundLost { why });
                self.conclude(campaign, turn, false)
            }
            Err(Failure::Transient { why, retry_after }) => {
                let latest = self.give_up_at;
                let at = campaign
                    .chance
                    .again_at(sent, turn.now, retry_after, latest);
                if at >= self.give_up_at {
                    return self.run_out(campaign, turn, why);
                }
                self.stage = Stage::Due { at };
                self.go_on(campaign, turn)
            }
            Err(Failure::Fatal { why, .. }) => self.run_out(campaign, turn, why),
            Err(over @ Failure::Over(_)) => self.run_out(campaign, turn, over.to_string()),
        }
    }

    /// The renewal that was in flight when the tree was empty has ended.
    fn renewed(
        mut self,
        campaign: &mut Campaign,
        turn: &mut Turn,
        reply: Result<(), Failure>,
    ) -> Phase {
        let others_from = match reply {
            Ok(()) | Err(Failure::Transient { .. } | Failure::Fatal { .. } | Failure::Over(_)) => {
                None
            }
            Err(Failure::Held(_)) => Some(Instant::ZERO),
            Err(Failure::Lost { until, .. }) => Some(until.unwrap_or(Instant::ZERO)),
        };
        if let Some(others_from) = others_from {
            // Nobody can say whether it was lost before or after the tree was empty.
            self.overlap |= self.empty_at.is_some_and(|at| at > others_from);
        }
        match self.stage {
            Stage::Renewing { .. } if others_from.is_some() => {
                turn.act(Action::Abandon);
                self.conclude(campaign, turn, false)
            }
            Stage::Renewing { .. } => {
                self.stage = Stage::Due { at: turn.now };
                self.go_on(campaign, turn)
            }
            Stage::Due { .. } | Stage::Asked { .. } => self.go_on(campaign, turn),
        }
    }

    fn run_out(self, campaign: &mut Campaign, turn: &mut Turn, why: String) -> Phase {
        left_to_run_out(turn, why);
        self.conclude(campaign, turn, false)
    }

    /// What comes after: another round where control was lost or handed over and we compete, unless somebody
    /// asked us to stop meanwhile or there is no guardian left to run anything.
    fn conclude(self, campaign: &mut Campaign, turn: &mut Turn, released: bool) -> Phase {
        if let Some(cause) = self.cause.clone().filter(|_| self.began) {
            turn.act(Action::TenureOver { cause });
        }
        let competes = match &self.cause {
            None | Some(Cause::HandOver | Cause::GivenUp(_) | Cause::Cordoned { .. }) => true,
            Some(Cause::Doubt { .. } | Cause::Lost { .. }) => {
                campaign.rules.if_lost == IfLost::Compete
            }
            Some(
                Cause::CommandEnded
                | Cause::NotStarted { .. }
                | Cause::Stopped(_)
                | Cause::GuardianLost
                | Cause::NotRecorded { .. }
                | Cause::Over(_)
                | Cause::NotObtained(_)
                | Cause::Store { .. },
            ) => false,
        };
        let handed_over = matches!(self.cause, Some(Cause::HandOver | Cause::GivenUp(_)));
        let cause = match self.cause {
            Some(cause) if !competes => cause,
            Some(_) | None => {
                if let Some(signal) = campaign.stopping() {
                    Cause::Stopped(signal)
                } else if campaign.guardian_lost {
                    Cause::GuardianLost
                } else {
                    if self.overlap {
                        turn.report(Notice::Overlapped);
                    }
                    let wait = if handed_over {
                        campaign.stand_back()
                    } else {
                        campaign.cool_down()
                    };
                    let next_at = turn.now + wait;
                    if handed_over {
                        turn.report(Notice::StandingBack { until: next_at });
                    }
                    return Standby::until(next_at).look(campaign, turn);
                }
            }
        };
        // A task that was stopped is not done, whatever its command said when it was asked to end:
        // nobody is to take that 0 for a success which stands in no record.
        let unfinished = campaign.rules.once.is_some() && matches!(cause, Cause::Stopped(_));
        Phase::Done(Ending {
            cause,
            exit: self
                .exit
                .filter(|exit| !unfinished || *exit != Exit::Code(0)),
            overlap: self.overlap,
            released,
        })
    }
}

fn left_to_run_out(turn: &mut Turn, why: String) {
    turn.act(Action::Abandon);
    turn.report(Notice::LeftToRunOut { why });
}
