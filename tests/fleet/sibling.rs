//! The crowd's sibling blob: the steps of `src/lease/blob/hot.rs` on the real [`Roster`], against a
//! blob that counts for itself. A part of the crowd; decides nothing about figures.

use std::time::Duration;

use trafficcop::core::duty::{Heard, Move, Question, Roster, WARM_POLL};
use trafficcop::core::{Duty, Failure, Sight};

use super::super::clock::SECOND;
use super::super::service::at;
use super::super::store::{Code, Id, LeaseState, Reply, Request};
use super::{Crowd, Errand, Plan};

/// What one member has to do with it.
pub(super) struct Share {
    roster: Roster,
    duty: Duty,
    /// The lease id it proposes.
    id: Id,
    /// What it saw of the lock, while it asks the sibling.
    sight: Option<Sight>,
}

impl Share {
    /// As `plan` has it: who polls as slowly as that anyway does not ask.
    pub(super) fn of(plan: Plan, id: Id) -> Option<Share> {
        (plan.poll < WARM_POLL).then(|| Share {
            roster: Roster::new(true),
            duty: Duty::Unshared,
            id,
            sight: None,
        })
    }
}

impl Crowd {
    /// How long the longest pace of a member is.
    pub(super) fn slowest(&self) -> Duration {
        self.plan.poll.max(WARM_POLL)
    }

    /// How many are the hot standby, and how many another's warm ones, as they see it themselves.
    pub(crate) fn hot_and_warm(&self) -> (usize, usize) {
        let count = |duty| {
            let shares = self.members.iter().filter(|member| !member.runs);
            let shares = shares.filter_map(|member| member.share.as_ref());
            shares.filter(|share| share.duty == duty).count()
        };
        (count(Duty::Hot), count(Duty::Warm))
    }

    /// The holder's supervisor and the hot standby's whole machine end at the same moment, for a
    /// minute.
    pub(crate) fn crash_with_the_hot_standby(&mut self) -> Duration {
        let hot = |share: &Share| share.duty == Duty::Hot;
        let hot = self
            .members
            .iter()
            .position(|member| !member.runs && member.share.as_ref().is_some_and(hot));
        self.leave_for(hot.expect("somebody is hot"), 60 * SECOND);
        self.loses_the_supervisor(60 * SECOND);
        self.run_until_control()
    }

    /// Another has the lock: who looks how often?
    pub(super) fn held(&mut self, who: usize, sight: Sight) {
        let now = at(self.now);
        let Some(share) = &mut self.members[who].share else {
            return self.refuse(who, Failure::Held(sight));
        };
        let step = share.roster.begin(now, sight.draining);
        share.sight = Some(sight);
        self.goes_on(who, step);
    }

    fn goes_on(&mut self, who: usize, step: Move) {
        let share = self.members[who].share.as_mut().expect("it asks");
        match step {
            Move::Settled(duty) => {
                share.duty = duty;
                let sight = share.sight.take().expect("it looked");
                self.refuse(who, Failure::Held(Sight { duty, ..sight }));
            }
            Move::Ask(question) => {
                let request = match question {
                    Question::Look => Request::Look { lease: None },
                    Question::Create => Request::Create,
                    Question::Acquire => Request::Acquire { id: share.id },
                };
                self.send(who, Errand::Sibling(question), request);
            }
        }
    }

    /// The sibling answered.
    pub(super) fn heard(&mut self, who: usize, question: Question, reply: Reply) {
        let heard = match (question, reply) {
            _ if self.plan.refuses_sibling => Heard::Refused,
            (_, Reply::Error { .. }) => Heard::Silence,
            (_, Reply::Refused(Code::BlobNotFound)) => Heard::Missing,
            (
                Question::Look,
                Reply::View {
                    lease: LeaseState::Free,
                    ..
                },
            ) => Heard::Free,
            (Question::Look, Reply::View { .. }) => Heard::Taken,
            (Question::Create, Reply::Etag(_)) => Heard::Made,
            (Question::Create, _) => Heard::There,
            (Question::Acquire, Reply::Etag(_)) => Heard::Obtained,
            (Question::Acquire, Reply::Refused(_)) => Heard::Taken,
            (question, reply) => unreachable!("{question:?} was answered by {reply:?}"),
        };
        let now = at(self.now);
        let share = self.members[who].share.as_mut().expect("it asked");
        let step = share.roster.heard(now, heard);
        self.goes_on(who, step);
    }

    /// It has control: the sibling is the others'.
    pub(super) fn gives_back(&mut self, who: usize) {
        let (now, new) = (at(self.now), self.chance.u64(..));
        let Some(share) = &mut self.members[who].share else {
            return;
        };
        share.duty = Duty::Unshared;
        if share.roster.retire(now) {
            let id = std::mem::replace(&mut share.id, new);
            self.send(who, Errand::GiveBack, Request::Release { id });
        }
    }
}
