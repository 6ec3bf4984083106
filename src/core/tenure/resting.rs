//! In control with nothing running: the lease is kept, and renewed as ever, until the command is
//! started again (the back-off of a restart) or until it may be given back (a minimal hold).
//!
//! Entered only after "tree empty". Never starts a command under a deadline that has passed, nor
//! under a lease whose last confirmation is old; never keeps a lease that is not ours any more.

use super::campaign::{Campaign, Turn};
use super::control::Answer;
use super::holding::{Charge, in_doubt};
use super::{Holding, Phase, Releasing, recording};
use crate::clock::Instant;
use crate::core::{Cause, Cordon, Event, Notice, Unfit};

/// See the module's text.
#[derive(Debug)]
pub(super) struct Resting {
    charge: Charge,
    /// When the last of the tree was seen to be gone; `None` once the store has confirmed a request
    /// sent later than that: whatever is lost after it was not lost while anything of ours lived.
    empty_at: Option<Instant>,
    rest: Rest,
}

#[derive(Debug)]
enum Rest {
    /// The command is started again at this moment.
    BackOff { until: Instant },
    /// It is to be started as soon as the store has confirmed the lease.
    Due,
    /// The command has done its work; the lease is given back at this moment.
    Keeping { until: Instant },
}

/// What becomes of a lease whose command ended by itself.
enum Next {
    Restart,
    Keep { until: Instant },
    ExitAction,
}

fn next(campaign: &Campaign, charge: &Charge, now: Instant) -> Next {
    let habits = &campaign.rules.habits;
    let Some(exit) = charge.exit.filter(|_| campaign.stopping().is_none()) else {
        return Next::ExitAction;
    };
    if habits.restart.is_some_and(|rule| rule.applies_to(exit)) {
        return Next::Restart;
    }
    match habits.min_hold.map(|span| charge.control.began() + span) {
        Some(until) if now < until => Next::Keep { until },
        _ => Next::ExitAction,
    }
}

/// Whether the lease will be kept when the tree of this command, which has ended, is empty.
pub(super) fn is_ahead(campaign: &Campaign, charge: &Charge, now: Instant) -> bool {
    !matches!(next(campaign, charge, now), Next::ExitAction)
}

/// After a tenure's tree was empty at `empty_at`: a rest if the command ended by itself and there
/// is a reason for one, else the lease is given back. What a task came to is recorded before that.
pub(super) fn after(
    campaign: &mut Campaign,
    turn: &mut Turn,
    mut charge: Charge,
    cause: Cause,
    empty_at: Instant,
) -> Phase {
    if let Some(rule) = campaign.rules.once {
        return recording::after(campaign, turn, charge, cause, empty_at, rule);
    }
    let now = turn.now;
    let rest = match next(campaign, &charge, now) {
        Next::Restart if cause == Cause::CommandEnded => {
            // From here on its end is no end of ours.
            charge.exit = None;
            match restart(campaign, turn, &mut charge) {
                Ok(rest) => rest,
                Err(cause) => {
                    return Releasing::after(campaign, turn, charge, cause, Some(empty_at));
                }
            }
        }
        Next::Keep { until } if cause == Cause::CommandEnded && now < charge.control.kill_at() => {
            turn.report(Notice::Keeping { until });
            Rest::Keeping { until }
        }
        Next::Restart | Next::Keep { .. } | Next::ExitAction => {
            return Releasing::after(campaign, turn, charge, cause, Some(empty_at));
        }
    };
    // Asked at once whether the lease is still ours: so a later loss is known to be one that
    // nothing of ours lived to see.
    charge.control.hurry(now);
    Resting {
        charge,
        empty_at: Some(empty_at),
        rest,
    }
    .go_on(campaign, turn)
}

/// The back-off before a restart, or why there is none.
fn restart(campaign: &mut Campaign, turn: &mut Turn, charge: &mut Charge) -> Result<Rest, Cause> {
    if campaign.guardian_lost {
        return Err(Cause::GuardianLost);
    }
    if charge.control.lost() {
        let why = "it was lost while the command ended".to_owned();
        return Err(Cause::Lost { why });
    }
    if turn.now >= charge.control.term_at() {
        return Err(in_doubt(campaign));
    }
    if let Some(cause) = campaign.cordon_as_cause() {
        return Err(cause);
    }
    let Some((wait, number)) = campaign.next_restart(charge, turn.now) else {
        turn.report(Notice::RestartsSpent);
        return Err(Cause::GivenUp(Unfit::RestartsSpent));
    };
    let until = turn.now + wait;
    turn.report(Notice::BackingOff { until, number });
    Ok(Rest::BackOff { until })
}

impl Resting {
    /// Until when it makes sense to ask for the lease: to start something there has to be time for
    /// its end; to keep others out, all of it is good.
    fn limit(&self) -> Instant {
        match self.rest {
            Rest::BackOff { .. } | Rest::Due => self.charge.control.term_at(),
            Rest::Keeping { .. } => self.charge.control.kill_at(),
        }
    }

    fn hands_over_at(&self, campaign: &Campaign) -> Instant {
        match self.rest {
            Rest::BackOff { .. } | Rest::Due => campaign.hands_over_at(&self.charge.control),
            Rest::Keeping { .. } => Instant::FOREVER,
        }
    }

    pub(super) fn wake_at(&self, campaign: &Campaign) -> Instant {
        let limit = self.limit();
        let rest = match self.rest {
            Rest::BackOff { until } | Rest::Keeping { until } => until,
            Rest::Due => Instant::FOREVER,
        };
        let renewal = self.charge.control.renewal_due(limit);
        limit
            .min(rest)
            .min(renewal)
            .min(self.hands_over_at(campaign))
    }

    pub(super) fn step(mut self, campaign: &mut Campaign, turn: &mut Turn, event: Event) -> Phase {
        let limit = self.limit();
        if turn.now >= limit {
            if let Event::StopAsked(signal) = event {
                campaign.asked_to_stop(turn.now, signal);
            }
            campaign.guardian_lost |= event == Event::GuardianLost;
            return self.out_of_time(campaign, turn);
        }
        match event {
            Event::Ticked => self.go_on(campaign, turn),
            Event::ClockJumped => {
                self.charge.control.hurry(turn.now);
                self.go_on(campaign, turn)
            }
            Event::Renewed { t0, reply } => {
                let control = &mut self.charge.control;
                match control.renewed(campaign, turn.now, t0, reply, limit) {
                    Answer::Confirmed => {
                        campaign.answered(turn);
                        self.empty_at = self.empty_at.filter(|at| t0 < *at);
                        self.go_on(campaign, turn)
                    }
                    Answer::Doubt(why) => {
                        campaign.doubts(turn, why, None);
                        self.go_on(campaign, turn)
                    }
                    // Ruled out by the look at the clock; the deadlines stand as they are.
                    Answer::TooLate => self.go_on(campaign, turn),
                    Answer::Lost(why) => {
                        turn.report(Notice::LeftToRunOut { why: why.clone() });
                        self.leave(campaign, turn, Cause::Lost { why })
                    }
                }
            }
            Event::StopAsked(signal) => {
                campaign.asked_to_stop(turn.now, signal);
                self.leave(campaign, turn, Cause::Stopped(signal))
            }
            Event::GuardianLost => {
                campaign.guardian_lost = true;
                match self.rest {
                    Rest::BackOff { .. } | Rest::Due => {
                        self.leave(campaign, turn, Cause::GuardianLost)
                    }
                    // Nothing is to be started any more.
                    Rest::Keeping { .. } => self.go_on(campaign, turn),
                }
            }
            Event::Cordoned(Cordon { why, .. }) => match self.rest {
                Rest::BackOff { .. } | Rest::Due => {
                    self.leave(campaign, turn, Cause::Cordoned { why })
                }
                // It keeps others out until then, and runs nothing.
                Rest::Keeping { .. } => self.go_on(campaign, turn),
            },
            // Nothing of ours runs: late echoes, and a dead guardian's own corpse.
            Event::Uncordoned
            | Event::Freed
            | Event::Acquired(_)
            | Event::Released(_)
            | Event::Recorded(_)
            | Event::Started { .. }
            | Event::NotStarted { .. }
            | Event::Unprepared { .. }
            | Event::Exited(_)
            | Event::TreeEmpty { .. }
            | Event::TreeStuck => self.go_on(campaign, turn),
        }
    }

    fn go_on(mut self, campaign: &mut Campaign, turn: &mut Turn) -> Phase {
        let now = turn.now;
        if now >= self.hands_over_at(campaign) {
            turn.report(Notice::HoldOver);
            return self.leave(campaign, turn, Cause::HandOver);
        }
        match self.rest {
            Rest::Keeping { until } if now >= until => {
                return self.leave(campaign, turn, Cause::CommandEnded);
            }
            Rest::BackOff { until } if now >= until => self.rest = Rest::Due,
            Rest::BackOff { .. } | Rest::Due | Rest::Keeping { .. } => {}
        }
        if matches!(self.rest, Rest::Due) {
            if !self.charge.control.half_gone(now) {
                turn.report(Notice::Restarting);
                return Holding::again(self.charge, turn);
            }
            self.charge.control.hurry(now);
        }
        let limit = self.limit();
        self.charge.control.renew_if_due(turn, limit);
        Phase::Resting(self)
    }

    /// The lease could not be confirmed for too long.
    fn out_of_time(self, campaign: &mut Campaign, turn: &mut Turn) -> Phase {
        if campaign.doubt().is_none() {
            let why = "the lease could not be confirmed in time".to_owned();
            campaign.doubts(turn, why, None);
        }
        let cause = in_doubt(campaign);
        self.leave(campaign, turn, cause)
    }

    /// Gives the lease back (or up). A command that has done its work keeps its ending, whatever
    /// ends the keeping.
    fn leave(self, campaign: &mut Campaign, turn: &mut Turn, cause: Cause) -> Phase {
        let cause = match self.rest {
            Rest::Keeping { .. } => Cause::CommandEnded,
            Rest::BackOff { .. } | Rest::Due => cause,
        };
        Releasing::after(campaign, turn, self.charge, cause, self.empty_at)
    }
}
