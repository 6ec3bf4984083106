//! Rules for one instance, whatever happens to it. The referee knows what the instance was told and
//! did, and the state of lock and command; the arithmetic is that of the book's tables.

use std::time::Duration;

use trafficcop::Instant;
use trafficcop_core::{Cause, Deadlines, Exit, Rules, State};

use super::plan::secs;
use super::world::World;

#[path = "referee/actions.rs"]
mod actions;
#[path = "referee/bell.rs"]
mod bell;
#[path = "referee/causes.rs"]
mod causes;
#[path = "referee/command.rs"]
mod command;
#[path = "referee/condition.rs"]
mod condition;
#[path = "referee/drive.rs"]
mod drive;
#[path = "referee/duties.rs"]
mod duties;
#[path = "referee/giving_back.rs"]
mod giving_back;
#[path = "referee/health.rs"]
mod health;
#[path = "referee/ledger.rs"]
mod ledger;
#[path = "referee/notices.rs"]
mod notices;
#[path = "referee/record.rs"]
mod record;
#[path = "referee/settings.rs"]
mod settings;
#[path = "referee/told.rs"]
mod told;
#[path = "referee/tree.rs"]
mod tree;
#[path = "referee/truth.rs"]
mod truth;
#[path = "referee/window.rs"]
mod window;

pub(crate) use ledger::Ledger;
use window::Window;

const RETRY: Duration = secs(2);
const ATTEMPT: Duration = secs(5);

#[derive(Clone, Debug)]
struct Held {
    began: Instant,
    confirmed: Instant,
    asked: Instant,
    token: u64,
    failed: u32,
    /// Time until which the lost lease still keeps others out.
    safe_until: Option<Instant>,
    renewal: Window,
    /// Times of an unanswered renewal.
    renewing: Option<(Instant, Instant)>,
    doubted: bool,
    restarts: Vec<Instant>,
    in_a_row: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reason {
    Exited,
    Asked,
    HandOver,
    Cordon,
    Doubt,
    Lost,
    Guardian,
    Hung,
    /// The health cannot be checked.
    Unwatched,
}

#[derive(Clone, Debug)]
struct Run {
    since: Instant,
    started: bool,
    exit: Option<(Instant, Exit)>,
    /// Reason for its end, and the time from which that can have ended it.
    reason: Option<(Reason, Instant)>,
    drained: Option<(Instant, Instant)>,
    killed: bool,
    announced: bool,
    /// The lease is kept, so standbys need not look more often.
    quiet: bool,
    /// End of the grace of a doubt, fixed before anything is heard.
    doubt_ends: Option<Instant>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    Restart {
        until: Instant,
    },
    Keep {
        until: Instant,
    },
    Record,
    /// Pause after a failed task, in which other instances wait, too.
    Pause {
        until: Instant,
    },
    Leave,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Why {
    Ended,
    NotStarted,
    Stopped,
    Doubt,
    Lost,
    Guardian,
    HandOver,
    Cordoned,
    Unfit,
    GivenUp,
    NotRecorded,
    AlreadyDone,
    NotObtained,
    Store,
}

impl Reason {
    fn why(self) -> Why {
        match self {
            Reason::Exited => Why::Ended,
            Reason::Asked => Why::Stopped,
            Reason::HandOver => Why::HandOver,
            Reason::Cordon => Why::Cordoned,
            Reason::Doubt => Why::Doubt,
            Reason::Lost => Why::Lost,
            Reason::Guardian | Reason::Unwatched => Why::Guardian,
            Reason::Hung => Why::GivenUp,
        }
    }
}

fn why(cause: &Cause) -> Why {
    match cause {
        Cause::CommandEnded => Why::Ended,
        Cause::NotStarted { .. } => Why::NotStarted,
        Cause::Stopped(_) => Why::Stopped,
        Cause::Doubt { .. } => Why::Doubt,
        Cause::Lost { .. } => Why::Lost,
        Cause::GuardianLost => Why::Guardian,
        Cause::HandOver => Why::HandOver,
        Cause::Cordoned { .. } => Why::Cordoned,
        Cause::Unfit(_) => Why::Unfit,
        Cause::GivenUp(_) => Why::GivenUp,
        Cause::NotRecorded { .. } => Why::NotRecorded,
        Cause::AlreadyDone(_) => Why::AlreadyDone,
        Cause::NotObtained(_) => Why::NotObtained,
        Cause::Store { .. } => Why::Store,
    }
}

impl Held {
    fn kill(&self, rules: &Rules) -> Instant {
        let planned = rules.budget.map_or(Instant::FOREVER, |b| {
            self.confirmed + b.lease.saturating_sub(b.margin)
        });
        let margin = rules.budget.map_or(secs(1), |b| b.margin);
        self.safe_until
            .map_or(planned, |until| planned.min(until - margin))
    }

    fn term(&self, rules: &Rules) -> Instant {
        let planned = rules.budget.map_or(Instant::FOREVER, |b| {
            self.confirmed
                + b.lease
                    .saturating_sub(b.margin)
                    .saturating_sub(b.grace_on_loss)
        });
        planned.min(self.kill(rules))
    }

    fn is_half_gone(&self, rules: &Rules, now: Instant) -> bool {
        rules
            .budget
            .is_some_and(|b| now.since(self.confirmed) > b.lease / 2)
    }

    fn deadlines(&self, rules: &Rules) -> Deadlines {
        Deadlines {
            term_at: self.term(rules),
            kill_at: self.kill(rules),
        }
    }

    fn hurry(&mut self, now: Instant) {
        if self.renewal.1 < Instant::FOREVER {
            self.renewal = self.renewal.no_later(now);
        }
    }
}

impl World {
    fn rules(&self) -> &Rules {
        &self.plan.rules
    }

    /// Whether `at` has passed, with no pause as an excuse.
    fn is_late(&self, at: Instant) -> bool {
        self.now > at.max(self.resumed)
    }

    /// Returns until when a renewal makes sense.
    fn limit(&self, state: State) -> Instant {
        let Some(held) = &self.ledger.held else {
            return Instant::ZERO;
        };
        let rules = self.rules();
        match state {
            State::Confirming | State::Holding => held.term(rules),
            State::Draining | State::Killing | State::Recording => held.kill(rules),
            State::Resting if matches!(self.ledger.next, Some(Next::Keep { .. })) => {
                held.kill(rules)
            }
            State::Resting => held.term(rules),
            State::Standby | State::Acquiring | State::Releasing | State::Done => Instant::ZERO,
        }
    }
}
