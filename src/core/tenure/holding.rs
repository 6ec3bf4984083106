//! In control: first with nothing running (a lease that wants to be confirmed), then with the
//! command.
//!
//! Never starts a command under a deadline that has passed, and looks at the clock before it looks
//! at what happened.

use std::time::Duration;

use super::campaign::{Campaign, Stop, Turn};
use super::control::{Answer, Control};
use super::draining::{Draining, Killing};
use super::{Phase, Releasing, resting};
use crate::clock::Instant;
use crate::core::habits::History;
use crate::core::{Action, Cause, Cordon, Event, Exit, Failed, Notice, Unfit};

/// The lease is ours, but the answer took so long that it is renewed before anything starts.
#[derive(Debug)]
pub(super) struct Confirming {
    control: Control,
}

impl Confirming {
    pub(super) fn begin(mut control: Control, turn: &mut Turn) -> Phase {
        control.hurry(turn.now);
        Confirming { control }.go_on(turn)
    }

    pub(super) fn wake_at(&self) -> Instant {
        let limit = self.control.term_at();
        limit.min(self.control.renewal_due(limit))
    }

    pub(super) fn step(mut self, campaign: &mut Campaign, turn: &mut Turn, event: Event) -> Phase {
        let limit = self.control.term_at();
        if turn.now >= limit {
            if let Event::StopAsked(signal) = event {
                campaign.asked_to_stop(turn.now, signal);
            }
            campaign.guardian_lost |= event == Event::GuardianLost;
            let why = "the lease could not be confirmed in time".to_owned();
            campaign.doubts(turn, why, None);
            return self.give_back(campaign, turn, None);
        }
        match event {
            Event::Renewed { t0, reply } => {
                match self.control.renewed(campaign, turn.now, t0, reply, limit) {
                    Answer::Confirmed if self.control.half_gone(turn.now) => {
                        self.control.hurry(turn.now);
                        self.go_on(turn)
                    }
                    Answer::Confirmed => {
                        campaign.answered(turn);
                        Holding::begin(self.control, campaign, turn)
                    }
                    Answer::Doubt(why) => {
                        campaign.doubts(turn, why, None);
                        self.go_on(turn)
                    }
                    Answer::TooLate => self.give_back(campaign, turn, None),
                    Answer::Lost(why) => {
                        campaign.doubts(turn, why, None);
                        self.give_back(campaign, turn, None)
                    }
                }
            }
            Event::StopAsked(signal) => {
                campaign.asked_to_stop(turn.now, signal);
                self.give_back(campaign, turn, Some(Cause::Stopped(signal)))
            }
            Event::GuardianLost => self.give_back(campaign, turn, Some(Cause::GuardianLost)),
            Event::Cordoned(_) => self.give_back(campaign, turn, None),
            // Nothing of ours runs yet: all but the clock are late echoes of an earlier round.
            Event::Ticked
            | Event::ClockJumped
            | Event::Uncordoned
            | Event::Freed
            | Event::Acquired(_)
            | Event::Released(_)
            | Event::Recorded(_)
            | Event::Started { .. }
            | Event::NotStarted { .. }
            | Event::Unprepared { .. }
            | Event::Exited(_)
            | Event::TreeEmpty { .. }
            | Event::TreeStuck => self.go_on(turn),
        }
    }

    fn go_on(mut self, turn: &mut Turn) -> Phase {
        let limit = self.control.term_at();
        self.control.renew_if_due(turn, limit);
        Phase::Confirming(self)
    }

    fn give_back(self, campaign: &mut Campaign, turn: &mut Turn, cause: Option<Cause>) -> Phase {
        Releasing::of_a_lease(campaign, turn, &self.control, cause)
    }
}

/// A lease, and what was started under it.
#[derive(Debug)]
pub(super) struct Charge {
    pub(super) control: Control,
    /// When the command was ordered to start: no tree of ours was empty before.
    since: Instant,
    started: bool,
    pub(super) exit: Option<Exit>,
    /// When its main process ended.
    exited_at: Option<Instant>,
    /// The restarts of this tenure.
    pub(super) history: History,
}

impl Charge {
    /// Whether this says that nothing of ours lives any more (rather than being an echo of an
    /// earlier round). If so the deadlines have nothing left to act upon.
    pub(super) fn is_over_by(&self, event: &Event) -> bool {
        match event {
            Event::TreeEmpty { at } => *at >= self.since,
            Event::Unprepared { at, .. } => !self.started && *at >= self.since,
            Event::NotStarted { .. } => !self.started,
            Event::Ticked
            | Event::ClockJumped
            | Event::Freed
            | Event::Acquired(_)
            | Event::Renewed { .. }
            | Event::Released(_)
            | Event::Recorded(_)
            | Event::Started { .. }
            | Event::Exited(_)
            | Event::GuardianLost
            | Event::TreeStuck
            | Event::StopAsked(_)
            | Event::Cordoned(_)
            | Event::Uncordoned => false,
        }
    }

    pub(super) fn has_started(&mut self) {
        self.started = true;
    }

    /// What has ended had started: nobody can say any more that nothing was.
    pub(super) fn exited(&mut self, turn: &mut Turn, exit: Exit) {
        self.started = true;
        self.exit = Some(exit);
        self.exited_at = Some(turn.now);
        turn.report(Notice::CommandEnded(exit));
    }

    /// For how long the command's main process ran.
    pub(super) fn ran(&self, now: Instant) -> Duration {
        self.exited_at.unwrap_or(now).since(self.since)
    }
}

/// In control; the command runs.
#[derive(Debug)]
pub(super) struct Holding {
    charge: Charge,
}

impl Holding {
    pub(super) fn begin(control: Control, campaign: &mut Campaign, turn: &mut Turn) -> Phase {
        campaign.in_control();
        turn.report(Notice::InControl {
            token: control.token(),
        });
        Holding::start(control, History::default(), turn)
    }

    /// The same tenure's command once more.
    pub(super) fn again(charge: Charge, turn: &mut Turn) -> Phase {
        Holding::start(charge.control, charge.history, turn)
    }

    fn start(control: Control, history: History, turn: &mut Turn) -> Phase {
        turn.act(Action::Start {
            term_at: control.term_at(),
            kill_at: control.kill_at(),
            fresh_until: control.fresh_until(),
            token: control.token(),
        });
        Phase::Holding(Holding {
            charge: Charge {
                control,
                since: turn.now,
                started: false,
                exit: None,
                exited_at: None,
                history,
            },
        })
    }

    pub(super) fn wake_at(&self, campaign: &Campaign) -> Instant {
        let control = &self.charge.control;
        let limit = control.term_at();
        limit
            .min(control.renewal_due(limit))
            .min(campaign.hands_over_at(control))
    }

    pub(super) fn step(mut self, campaign: &mut Campaign, turn: &mut Turn, event: Event) -> Phase {
        let over = self.charge.is_over_by(&event);
        let term_at = self.charge.control.term_at();
        if !over && turn.now >= term_at {
            return self.out_of_time(campaign, turn, event);
        }
        if !over && turn.now >= campaign.hands_over_at(&self.charge.control) {
            return self.hand_over(campaign, turn, event);
        }
        match event {
            Event::Ticked => self.go_on(turn),
            Event::ClockJumped => {
                self.charge.control.hurry(turn.now);
                self.go_on(turn)
            }
            Event::Renewed { t0, reply } => {
                let control = &mut self.charge.control;
                match control.renewed(campaign, turn.now, t0, reply, term_at) {
                    Answer::Confirmed => {
                        turn.extend(control);
                        campaign.answered(turn);
                        self.go_on(turn)
                    }
                    Answer::Doubt(why) => {
                        campaign.doubts(turn, why, Some(term_at));
                        self.go_on(turn)
                    }
                    // Ruled out by the look at the clock; the deadlines stand as they are.
                    Answer::TooLate => self.go_on(turn),
                    Answer::Lost(why) => self.lost(campaign, turn, why),
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
            Event::Unprepared { at, how } if over => {
                unprepared(campaign, turn, self.charge, at, how)
            }
            Event::Exited(exit) => {
                let end_of_grace = turn.now + campaign.rules.grace;
                turn.act(drain(campaign, end_of_grace));
                self.charge.exited(turn, exit);
                let due = turn.now;
                // Nobody is to come closer for a lease that is kept.
                let kept = resting::is_ahead(campaign, &self.charge, due);
                let drain = Draining::begin(self.charge, Cause::CommandEnded, due, end_of_grace);
                if kept { drain.unannounced() } else { drain }.go_on(turn)
            }
            Event::TreeEmpty { at } if over => {
                // The guardian acts on its own at term_at: what ended before did so by itself.
                let cause = if at < term_at {
                    Cause::CommandEnded
                } else {
                    in_doubt(campaign)
                };
                resting::after(campaign, turn, self.charge, cause, at)
            }
            Event::GuardianLost => {
                campaign.guardian_lost = true;
                turn.report(Notice::Draining(Cause::GuardianLost));
                Killing::under_way(self.charge, Cause::GuardianLost, turn.now)
            }
            Event::TreeStuck => Releasing::never(turn, self.charge.exit, Cause::GuardianLost),
            Event::StopAsked(signal) => {
                // A stop that was asked for while nothing ran would have ended us there: this is
                // the first.
                let _: Stop = campaign.asked_to_stop(turn.now, signal);
                let end_of_grace = turn.now + campaign.rules.grace;
                self.drain(
                    campaign,
                    turn,
                    Cause::Stopped(signal),
                    turn.now,
                    end_of_grace,
                )
            }
            Event::Cordoned(Cordon { why, .. }) => {
                let end_of_grace = campaign.end_of_grace_for_a_cordon(turn.now);
                let cause = Cause::Cordoned { why };
                self.drain(campaign, turn, cause, turn.now, end_of_grace)
            }
            // Echoes of an earlier round.
            Event::Uncordoned
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
        let limit = self.charge.control.term_at();
        self.charge.control.renew_if_due(turn, limit);
        Phase::Holding(self)
    }

    /// term_at has passed; what happened is judged by the state that follows from that.
    fn out_of_time(self, campaign: &mut Campaign, turn: &mut Turn, event: Event) -> Phase {
        let (term_at, kill_at) = (self.charge.control.term_at(), self.charge.control.kill_at());
        let cause = in_doubt(campaign);
        if turn.now >= kill_at {
            turn.act(Action::Kill);
            turn.report(Notice::Draining(cause.clone()));
            return Killing::begin(self.charge, cause, term_at).step(campaign, turn, event);
        }
        turn.act(drain(campaign, kill_at));
        turn.report(Notice::Draining(cause.clone()));
        Draining::begin(self.charge, cause, term_at, kill_at)
            .since(turn.now)
            .step(campaign, turn, event)
    }

    /// The tenure has been long enough; what happened is judged by the state that follows from that.
    fn hand_over(self, campaign: &mut Campaign, turn: &mut Turn, event: Event) -> Phase {
        let end_of_grace = turn.now + campaign.rules.grace;
        turn.act(drain(campaign, end_of_grace));
        turn.report(Notice::Draining(Cause::HandOver));
        Draining::begin(self.charge, Cause::HandOver, turn.now, end_of_grace)
            .step(campaign, turn, event)
    }

    /// Definitely lost: at once, or in the time a lease that is being broken still has.
    fn lost(self, campaign: &mut Campaign, turn: &mut Turn, why: String) -> Phase {
        let control = &self.charge.control;
        let kill_at = control.kill_at();
        let cause = Cause::Lost { why };
        if turn.now >= kill_at {
            turn.act(Action::Kill);
            turn.report(Notice::Draining(cause.clone()));
            return Phase::Killing(Killing::begin(self.charge, cause, turn.now));
        }
        turn.extend(control);
        let grace = control.grace_on_loss(campaign.rules.grace);
        let end_of_grace = kill_at.min(turn.now + grace);
        self.drain(campaign, turn, cause, turn.now, end_of_grace)
    }

    fn drain(
        self,
        campaign: &Campaign,
        turn: &mut Turn,
        cause: Cause,
        due: Instant,
        end_of_grace: Instant,
    ) -> Phase {
        turn.act(drain(campaign, end_of_grace));
        turn.report(Notice::Draining(cause.clone()));
        Draining::begin(self.charge, cause, due, end_of_grace).go_on(turn)
    }
}

fn drain(campaign: &Campaign, end_of_grace: Instant) -> Action {
    Action::Drain {
        signal: campaign.rules.stop_signal,
        end_of_grace,
    }
}

/// The command was not started, because what has to succeed before it did not: another is to try.
fn unprepared(
    campaign: &mut Campaign,
    turn: &mut Turn,
    charge: Charge,
    at: Instant,
    how: Failed,
) -> Phase {
    turn.report(Notice::Unprepared(how));
    let cause = Cause::GivenUp(Unfit::Unprepared(how));
    Releasing::after(campaign, turn, charge, cause, Some(at))
}

pub(super) fn in_doubt(campaign: &Campaign) -> Cause {
    let why = campaign
        .doubt()
        .unwrap_or("no renewal was answered in time");
    Cause::Doubt {
        why: why.to_owned(),
    }
}
