//! A lease of ours that an operator has broken: how much of it is left.
//!
//! Called by `chain` when the version after our last is another's, and from then on whenever one more is asked for. It
//! must never say that anything is left where anybody but an operator can have made a version after ours.

use super::chain::Chain;
use crate::version_record::VersionRecord;
use trafficcop_core::clock::Instant;
use trafficcop_core::observed::Version;
use trafficcop_core::{Budget, Failure};

/// What is known of it.
#[derive(Clone)]
pub(super) struct Break {
    /// The last version that an operator has made.
    version: Version,
    /// Nobody else can have control before; `None`: somebody may have it now.
    until: Option<Instant>,
    why: String,
}

impl Chain {
    /// The version after our last is another's, with this record.
    pub(super) fn lost_to(&self, record: &VersionRecord) -> Failure {
        let who = Some(record.record.holder.as_str()).filter(|who| !who.is_empty());
        let who = who.unwrap_or("another");
        let lost = Break {
            version: record.version,
            until: self.left_by(record),
            why: format!("{}: held by {who}", self.share.path().display()),
        };
        self.forget();
        self.ask_again(lost)
    }

    /// What is left of our lease, if it was broken.
    pub(super) fn rest_of_break(&self) -> Option<Failure> {
        let broken = self.state().broken.clone()?;
        Some(self.ask_again(broken))
    }

    /// It may have been broken once more, and less of it be left; it may even be another's by that.
    fn ask_again(&self, mut broken: Break) -> Failure {
        // Where that cannot be seen it stays as it is known: nobody goes on by it for longer than the lease he had.
        while broken.until.is_some()
            && let Some(next) = broken.version.checked_add(1)
            && self.share.exists(next).unwrap_or(false)
        {
            // One without a record may give it away at once.
            let record = self.share.record(next);
            let left = record.and_then(|record| self.left_by(&record));
            broken.version = next;
            // Nothing is less than any moment.
            broken.until = broken.until.min(left);
        }
        self.state().broken = Some(broken.clone());
        Failure::Lost {
            until: broken.until,
            why: broken.why,
        }
    }

    /// Until when nobody else can have control although this version ends our tenure; `None`: it may be had now.
    fn left_by(&self, record: &VersionRecord) -> Option<Instant> {
        let state = self.state();
        let is_break = record.is_break_of(&state.tenure.as_ref()?.record);
        // Made after our last one was seen, so after this t0; and whoever waits for as long as it says counts from when
        // he saw it. What it says does not prolong the lease that we had.
        let left = Budget::for_lease(self.lease.min(record.lease));
        let t0 = state.t0.filter(|_| is_break);
        t0.map(|t0| left.others_from(t0))
    }
}
