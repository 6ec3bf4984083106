//! Owner of a version that a holder was to make, and that exists already.
//!
//! The answer to this instance's own request may have been lost. Without a readable record, time tells: no
//! other takes over before this instance's lease is over, unless an operator breaks it. So an operator
//! announces a break first, by directories, which no cache answers. An operator's version must never be taken
//! for an own one: the instance that continued from it would run beside the next holder.

use std::io;

use super::share::{Broken, Share};
use crate::version_record::VersionRecord;
use trafficcop_core::observed::{Claim, Exists, Version};

pub(super) enum Owner {
    Ours,
    Others(Box<VersionRecord>),
    /// Undecided: a wrong "ours" would be an overlap, a wrong "lost" would kill a command for nothing.
    Unknown,
    Removed,
}

/// Finds the owner; `judge` is [`Observed::exists`](trafficcop_core::Observed::exists).
pub(super) fn owner_of(
    share: &Share,
    version: Version,
    judge: impl FnOnce(Option<Claim>) -> Exists,
) -> io::Result<Owner> {
    let before = version.saturating_sub(1);
    // Open nothing that is missing: on a server that has just restarted an open hangs for 41 s.
    let record = share.has_record(version).then(|| share.record(version));
    let Some(record) = record.flatten() else {
        return Ok(match share.broken(before)? {
            Broken::Perhaps => Owner::Unknown,
            Broken::IsGone => Owner::Removed,
            Broken::No if judge(None) == Exists::Ours => Owner::Ours,
            Broken::No => Owner::Unknown,
        });
    };
    Ok(match judge(Some(record.claim())) {
        Exists::Ours if share.is_there(before)? => Owner::Ours,
        Exists::Ours => Owner::Removed,
        Exists::Lost => Owner::Others(Box::new(record)),
        Exists::Unknown => Owner::Unknown,
    })
}
