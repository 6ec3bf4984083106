//! The command's tree was asked to end, or is being killed.
//!
//! The lease is renewed all the while: whoever dies slowly must not die into the next holder's
//! time. SIGKILL comes at the earlier of two ends: that of the grace, fixed when the drain began,
//! and kill_at of the lease, which every renewal moves on. Both states are left by "tree empty".

use std::time::Duration;

use super::campaign::{Campaign, Stop, Turn};
use super::control::Answer;
use super::holding::Charge;
use super::{Phase, Releasing, resting};
use crate::clock::Instant;
use crate::core::{Action, Cause, Event};

/// A tree that ends faster than this is not worth a word in the record.
const ANNOUNCE_AFTER: Duration = Duration::from_millis(200);

/// The tree was asked to end.
#[derive(Debug)]
pub(super) struct Draining {
    charge: Charge,
    cause: Cause,
    /// From when on the command can have ended because of us.
    due: Instant,
    end_of_grace: Instant,
    /// When to announce; `FOREVER` once done.
    announce_at: Instant,
}

impl Draining {
    /// A drain that begins at `due`.
    pub(super) fn begin(
        charge: Charge,
        cause: Cause,
        due: Instant,
        end_of_grace: Instant,
    ) -> Draining {
        Draining {
            charge,
            cause,
            due,
            end_of_grace,
            announce_at: due + ANNOUNCE_AFTER,
        }
    }

    /// The drain was due earlier, but begins now.
    pub(super) fn since(mut self, now: Instant) -> Draining {
        self.announce_at = now + ANNOUNCE_AFTER;
        self
    }

    /// Nobody is told.
    pub(super) fn unannounced(mut self) -> Draining {
        self.announce_at = Instant::FOREVER;
        self
    }

    pub(super) fn wake_at(&self) -> Instant {
        let limit = self.charge.control.kill_at();
        let renewal = self.charge.control.renewal_due(limit);
        self.killed_at().min(self.announce_at).min(renewal)
    }

    fn killed_at(&self) -> Instant {
        self.end_of_grace.min(self.charge.control.kill_at())
    }

    pub(super) fn step(mut self, campaign: &mut Campaign, turn: &mut Turn, event: Event) -> Phase {
        let over = self.charge.is_over_by(&event);
        if !over && turn.now >= self.killed_at() {
            return self.kill(turn).step(campaign, turn, event);
        }
        match event {
            Event::Ticked | Event::ClockJumped => self.go_on(turn),
            Event::Renewed { t0, reply } => {
                let control = &mut self.charge.control;
                let (term_at, kill_at) = (control.term_at(), control.kill_at());
                match control.renewed(campaign, turn.now, t0, reply, kill_at) {
                    Answer::Confirmed => {
                        turn.extend(control);
                        campaign.answered(turn);
                        self.go_on(turn)
                    }
                    Answer::Doubt(why) => {
                        campaign.doubts(turn, why, Some(term_at));
                        self.go_on(turn)
                    }
                    // After a loss only: the deadlines stand as they are.
                    Answer::TooLate => self.go_on(turn),
                    Answer::Lost(why) => {
                        self.cause = lost(self.cause, why);
                        if turn.now >= self.killed_at() {
                            return Phase::Killing(self.kill(turn));
                        }
                        turn.extend(&self.charge.control);
                        self.go_on(turn)
                    }
                }
            }
            Event::Started { .. } => {
                self.charge.has_started();
                self.go_on(turn)
            }
            Event::NotStarted { errno } if over => Releasing::after(
                campaign,
                turn,
                self.charge,
                Cause::NotStarted { errno },
                None,
            ),
            Event::Exited(exit) => {
                self.charge.exited(turn, exit);
                self.go_on(turn)
            }
            Event::TreeEmpty { at } if over => {
                let cause = ended_by(self.cause, self.due, at);
                resting::after(campaign, turn, self.charge, cause, at)
            }
            // Whatever failed while it was asked to end failed because of that.
            Event::Unprepared { at, .. } if over => {
                Releasing::after(campaign, turn, self.charge, self.cause, Some(at))
            }
            Event::GuardianLost => {
                campaign.guardian_lost = true;
                let cause = guardian_lost(self.cause);
                Killing::under_way(self.charge, cause, self.due)
            }
            Event::TreeStuck => Releasing::never(turn, self.charge.exit, self.cause),
            Event::StopAsked(signal) => match campaign.asked_to_stop(turn.now, signal) {
                Stop::Asked | Stop::Again => self.go_on(turn),
                Stop::AtOnce => Phase::Killing(self.kill(turn)),
            },
            // It ends in any case; what comes after is for those who come after. And echoes of an
            // earlier round.
            Event::Cordoned(_)
            | Event::Uncordoned
            | Event::Freed
            | Event::Acquired(_)
            | Event::Released(_)
            | Event::Recorded(_)
            | Event::NotStarted { .. }
            | Event::Unprepared { .. }
            | Event::TreeEmpty { .. } => self.go_on(turn),
        }
    }

    pub(super) fn go_on(mut self, turn: &mut Turn) -> Phase {
        let limit = self.charge.control.kill_at();
        self.charge.control.renew_if_due(turn, limit);
        if turn.now >= self.announce_at {
            self.announce_at = Instant::FOREVER;
            turn.act(Action::Announce);
        }
        Phase::Draining(self)
    }

    fn kill(self, turn: &mut Turn) -> Killing {
        turn.act(Action::Kill);
        Killing::begin(self.charge, self.cause, self.due)
    }
}

/// The tree is being killed.
#[derive(Debug)]
pub(super) struct Killing {
    charge: Charge,
    cause: Cause,
    /// From when on the command can have ended because of us.
    due: Instant,
}

impl Killing {
    pub(super) fn begin(charge: Charge, cause: Cause, due: Instant) -> Killing {
        Killing { charge, cause, due }
    }

    /// The guardian is gone, and the supervisor is killing the tree already.
    pub(super) fn under_way(charge: Charge, cause: Cause, due: Instant) -> Phase {
        Phase::Killing(Killing::begin(charge, cause, due))
    }

    pub(super) fn wake_at(&self) -> Instant {
        let limit = self.charge.control.kill_at();
        self.charge.control.renewal_due(limit)
    }

    pub(super) fn step(mut self, campaign: &mut Campaign, turn: &mut Turn, event: Event) -> Phase {
        let over = self.charge.is_over_by(&event);
        let limit = self.charge.control.kill_at();
        match event {
            Event::Renewed { t0, reply } => {
                let control = &mut self.charge.control;
                match control.renewed(campaign, turn.now, t0, reply, limit) {
                    // It keeps others out while the tree dies; it spares nobody.
                    Answer::Confirmed | Answer::TooLate | Answer::Doubt(_) => {}
                    Answer::Lost(why) => self.cause = lost(self.cause, why),
                }
                self.go_on(turn)
            }
            Event::Started { .. } => {
                self.charge.has_started();
                self.go_on(turn)
            }
            Event::NotStarted { errno } if over => Releasing::after(
                campaign,
                turn,
                self.charge,
                Cause::NotStarted { errno },
                None,
            ),
            Event::Exited(exit) => {
                self.charge.exited(turn, exit);
                self.go_on(turn)
            }
            Event::TreeEmpty { at } if over => {
                let cause = ended_by(self.cause, self.due, at);
                resting::after(campaign, turn, self.charge, cause, at)
            }
            // Whatever failed while it was asked to end failed because of that.
            Event::Unprepared { at, .. } if over => {
                Releasing::after(campaign, turn, self.charge, self.cause, Some(at))
            }
            Event::GuardianLost => {
                campaign.guardian_lost = true;
                self.cause = guardian_lost(self.cause);
                self.go_on(turn)
            }
            Event::TreeStuck => Releasing::never(turn, self.charge.exit, self.cause),
            Event::StopAsked(signal) => {
                // Nothing is faster than SIGKILL; remembered, so that we do not compete again.
                let _: Stop = campaign.asked_to_stop(turn.now, signal);
                self.go_on(turn)
            }
            // Echoes of an earlier round, and the clock, which can do no more.
            Event::Ticked
            | Event::ClockJumped
            | Event::Cordoned(_)
            | Event::Uncordoned
            | Event::Freed
            | Event::Acquired(_)
            | Event::Released(_)
            | Event::Recorded(_)
            | Event::NotStarted { .. }
            | Event::Unprepared { .. }
            | Event::TreeEmpty { .. } => self.go_on(turn),
        }
    }

    fn go_on(mut self, turn: &mut Turn) -> Phase {
        let limit = self.charge.control.kill_at();
        self.charge.control.renew_if_due(turn, limit);
        Phase::Killing(self)
    }
}

/// A tree that was empty before we can have touched it ended by itself, whatever we learnt later.
fn ended_by(cause: Cause, due: Instant, at: Instant) -> Cause {
    match cause {
        Cause::Stopped(_)
        | Cause::HandOver
        | Cause::Cordoned { .. }
        | Cause::Doubt { .. }
        | Cause::Lost { .. }
            if at < due =>
        {
            Cause::CommandEnded
        }
        cause => cause,
    }
}

/// A loss makes certain what was doubt, and leaves nothing to hand over; a drain that had another reason keeps it.
fn lost(cause: Cause, why: String) -> Cause {
    if matches!(
        cause,
        Cause::Doubt { .. } | Cause::HandOver | Cause::Cordoned { .. }
    ) {
        return Cause::Lost { why };
    }
    cause
}

/// Without a guardian there is no next round.
fn guardian_lost(cause: Cause) -> Cause {
    if matches!(
        cause,
        Cause::HandOver | Cause::Cordoned { .. } | Cause::Doubt { .. } | Cause::Lost { .. }
    ) {
        return Cause::GuardianLost;
    }
    cause
}
