//! Rest of a lease that an operator has broken.
//!
//! It must never report time left if anyone but an operator can have made the version that ended the lease.

use super::chain::Chain;
use crate::version_record::VersionRecord;
use trafficcop_core::clock::Instant;
use trafficcop_core::observed::Version;
use trafficcop_core::{Budget, Failure};

#[derive(Clone)]
pub(super) struct Break {
    version: Version,
    /// Earliest moment at which another instance can have control; `None`: now.
    until: Option<Instant>,
    why: String,
}

impl Chain {
    pub(super) fn lost_to(&self, record: &VersionRecord) -> Failure {
        let who = Some(record.record.holder.as_str()).filter(|who| !who.is_empty());
        let who = who.unwrap_or("another");
        let lost = Break {
            version: record.version,
            until: self.left_by(record),
            why: format!("{}: held by {who}", self.share.path().display()),
        };
        self.clear_note();
        self.ask_again(lost)
    }

    pub(super) fn rest_of_break(&self) -> Option<Failure> {
        let broken = self.state().broken.clone()?;
        Some(self.ask_again(broken))
    }

    /// Looks for further breaks: each can shorten the rest, or give the lock away.
    fn ask_again(&self, mut broken: Break) -> Failure {
        // An error keeps the known rest: no instance continues for longer than its own lease.
        while broken.until.is_some()
            && let Some(next) = broken.version.checked_add(1)
            && self.share.exists(next).unwrap_or(false)
        {
            // Without a record it may give the lock away at once.
            let record = self.share.record(next);
            let left = record.and_then(|record| self.left_by(&record));
            broken.version = next;
            // `None` is less than any moment.
            broken.until = broken.until.min(left);
        }
        self.state().broken = Some(broken.clone());
        Failure::Lost {
            until: broken.until,
            why: broken.why,
        }
    }

    /// Returns the earliest moment at which another instance can have control; `None`: now.
    fn left_by(&self, record: &VersionRecord) -> Option<Instant> {
        let state = self.state();
        let is_break = record.is_break_of(&state.tenure.as_ref()?.record);
        // Others count from when they saw the break, after this t0. A break does not prolong the lease that it
        // ends.
        let left = Budget::for_lease(self.lease.min(record.lease));
        let t0 = state.t0.filter(|_| is_break);
        t0.map(|t0| left.others_from(t0))
    }
}
