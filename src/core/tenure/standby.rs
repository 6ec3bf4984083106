//! Waiting for control, and the attempt to get it.
//!
//! Nothing of ours runs in these states. Between attempts nothing is held either, but for what an
//! unanswered attempt may have obtained.

use std::time::Duration;

use super::campaign::{Campaign, Turn};
use super::control::Control;
use super::poll_interval::poll_interval;
use super::{Confirming, Holding, Phase, Releasing};
use crate::clock::Instant;
use crate::core::budget::RETRY;
use crate::core::{Action, Cause, Event, Failure, Grant, Sight};

/// How long before the end of the wait the last look begins: what an answer may take. Not a pace,
/// so it does not grow with the poll.
const LAST_LOOK: Duration = Duration::from_millis(250);

/// The store may wake us in vain; not more often than this.
const FREED_GAP: Duration = Duration::from_millis(50);

/// Between two attempts.
#[derive(Debug)]
pub(super) struct Standby {
    next_at: Instant,
}

impl Standby {
    pub(super) fn until(next_at: Instant) -> Standby {
        Standby { next_at }
    }

    /// No attempt is planned: it is the store that wakes us.
    pub(super) fn listens(&self, campaign: &Campaign) -> bool {
        self.next_at == Instant::FOREVER && !campaign.is_cordoned()
    }

    pub(super) fn wake_at(&self, campaign: &Campaign) -> Instant {
        if campaign.is_cordoned() {
            return campaign.wait_ends();
        }
        self.next_at.min(campaign.wait_ends())
    }

    pub(super) fn step(mut self, campaign: &mut Campaign, turn: &mut Turn, event: Event) -> Phase {
        match event {
            Event::Ticked | Event::ClockJumped | Event::Cordoned(_) => self.look(campaign, turn),
            Event::Uncordoned => {
                // Whoever is only woken when the lock is free would not know behind whom it stands.
                if self.next_at == Instant::FOREVER {
                    self.next_at = turn.now;
                }
                self.look(campaign, turn)
            }
            Event::Freed => {
                self.next_at = after_freed(campaign, turn.now);
                self.look(campaign, turn)
            }
            Event::StopAsked(signal) => {
                campaign.asked_to_stop(turn.now, signal);
                campaign.leave(turn, Cause::Stopped(signal))
            }
            // Without a guardian nothing can be started.
            Event::GuardianLost => campaign.leave(turn, Cause::GuardianLost),
            // No attempt is in flight, so nobody waits for this grant: back with it.
            Event::Acquired(Ok(_)) => Releasing::of_a_stray(campaign, turn),
            // Late echoes of an earlier round.
            Event::Acquired(Err(_))
            | Event::Renewed { .. }
            | Event::Released(_)
            | Event::Recorded(_)
            | Event::Started { .. }
            | Event::NotStarted { .. }
            | Event::Unprepared { .. }
            | Event::Exited(_)
            | Event::TreeEmpty { .. }
            | Event::TreeStuck => self.look(campaign, turn),
        }
    }

    /// Begins an attempt if it is time for one.
    pub(super) fn look(self, campaign: &mut Campaign, turn: &mut Turn) -> Phase {
        if campaign.out_of_time(turn.now) {
            let cause = campaign.not_obtained();
            return campaign.leave(turn, cause);
        }
        if campaign.stands_aside(turn) {
            campaign.stands_by(turn);
            return Phase::Standby(self);
        }
        if turn.now < self.next_at {
            campaign.stands_by(turn);
            return Phase::Standby(self);
        }
        campaign.attempt_sent(turn.now);
        turn.act(Action::Acquire {
            give_up_at: campaign.attempt_ends(turn.now),
        });
        Phase::Acquiring(Acquiring {
            sent: turn.now,
            freed: false,
        })
    }
}

/// An attempt is in flight.
#[derive(Debug)]
pub(super) struct Acquiring {
    sent: Instant,
    /// The store woke us meanwhile.
    freed: bool,
}

impl Acquiring {
    pub(super) fn step(mut self, campaign: &mut Campaign, turn: &mut Turn, event: Event) -> Phase {
        match event {
            Event::Acquired(Ok(grant)) => granted(campaign, turn, grant),
            Event::Acquired(Err(Failure::Held(sight))) => self.held(campaign, turn, sight),
            // By way of the store: an attempt before this one, or the look under the lease that
            // told us, may have left something behind.
            Event::Acquired(Err(Failure::Over(verdict))) => {
                Releasing::of_a_maybe(campaign, turn, Cause::Over(verdict))
            }
            Event::Acquired(Err(Failure::Transient { why, retry_after })) => {
                self.no_answer(campaign, turn, why, retry_after)
            }
            Event::Acquired(Err(Failure::Lost { why, .. })) => {
                self.no_answer(campaign, turn, why, None)
            }
            Event::Acquired(Err(Failure::Fatal { why, denied })) => {
                if campaign.contacted() {
                    // It worked before, so it is not how we were configured: keys are being
                    // turned, a container is being moved.
                    return self.no_answer(campaign, turn, why, None);
                }
                campaign.leave(turn, Cause::Store { why, denied })
            }
            Event::Freed => {
                self.freed = true;
                Phase::Acquiring(self)
            }
            Event::StopAsked(signal) => {
                campaign.asked_to_stop(turn.now, signal);
                Releasing::of_an_attempt(turn, Cause::Stopped(signal))
            }
            Event::GuardianLost => {
                campaign.guardian_lost = true;
                Releasing::of_an_attempt(turn, Cause::GuardianLost)
            }
            // The attempt keeps its own time limit; the rest are late echoes of an earlier round.
            // What a cordoned machine obtains it gives back.
            Event::Ticked
            | Event::ClockJumped
            | Event::Cordoned(_)
            | Event::Uncordoned
            | Event::Renewed { .. }
            | Event::Released(_)
            | Event::Recorded(_)
            | Event::Started { .. }
            | Event::NotStarted { .. }
            | Event::Unprepared { .. }
            | Event::Exited(_)
            | Event::TreeEmpty { .. }
            | Event::TreeStuck => Phase::Acquiring(self),
        }
    }

    fn held(self, campaign: &mut Campaign, turn: &mut Turn, sight: Sight) -> Phase {
        campaign.answered(turn);
        let next_at = match campaign.rules.poll {
            _ if self.freed => after_freed(campaign, turn.now),
            Some(poll) => {
                let kept = campaign.keeps_the_pace(&sight);
                let wait = poll_interval(poll, sight.draining, kept, &mut campaign.chance);
                let due = sight.expires.filter(|due| *due > turn.now);
                let next_at = (turn.now + wait).min(due.unwrap_or(Instant::FOREVER));
                last_look(campaign, turn.now, next_at)
            }
            None => Instant::FOREVER,
        };
        campaign.sees(turn, sight);
        Standby::until(next_at).look(campaign, turn)
    }

    fn no_answer(
        self,
        campaign: &mut Campaign,
        turn: &mut Turn,
        why: String,
        retry_after: Option<Duration>,
    ) -> Phase {
        campaign.may_have_obtained();
        campaign.doubts(turn, why.clone(), None);
        let again = campaign
            .chance
            .again_at(self.sent, turn.now, retry_after, Instant::FOREVER);
        let next_at = if campaign.contacted() {
            // Whoever polls slowly, for the money's sake or because they are many, does not ask
            // faster in an outage.
            let poll = campaign.rules.poll.unwrap_or(RETRY);
            again.max(self.sent + poll_interval(poll, false, true, &mut campaign.chance))
        } else if turn.now >= campaign.patience_ends() {
            return campaign.leave(turn, Cause::Store { why, denied: false });
        } else {
            again.min(campaign.patience_ends())
        };
        let next_at = last_look(campaign, turn.now, next_at);
        Standby::until(next_at).look(campaign, turn)
    }
}

/// Pulls the next look before the end of the wait, if it would come too late to count.
fn last_look(campaign: &Campaign, now: Instant, next_at: Instant) -> Instant {
    let end = campaign.wait_ends();
    let last = end - LAST_LOOK;
    if end != Instant::FOREVER && next_at >= end && last > now {
        return last;
    }
    next_at
}

/// A wake-up is followed at once, unless the one before was in vain a moment ago.
fn after_freed(campaign: &mut Campaign, now: Instant) -> Instant {
    let next_at = campaign
        .woken
        .map_or(now, |woken| now.max(woken + FREED_GAP));
    campaign.woken = Some(next_at);
    next_at
}

/// Control was granted: is there enough of it left to start a command under?
fn granted(campaign: &mut Campaign, turn: &mut Turn, grant: Grant) -> Phase {
    campaign.answered(turn);
    let control = Control::new(campaign.rules.budget, grant, turn.now);
    if campaign.is_cordoned() {
        return Releasing::of_a_lease(campaign, turn, &control, None);
    }
    if turn.now >= control.term_at() {
        let why = "the lease was granted too late to be used".to_owned();
        campaign.doubts(turn, why, None);
        return Releasing::of_a_lease(campaign, turn, &control, None);
    }
    if control.half_gone(turn.now) {
        return Confirming::begin(control, turn);
    }
    Holding::begin(control, campaign, turn)
}
