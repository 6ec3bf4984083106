//! Whose a version is that its holder was to make, and of which it is told that it exists.
//!
//! Called by `chain` and, when the supervisor is dead, by `release`. The drive may have lost the answer to what
//! we asked ourselves. Without a record that can be read (an old view, a server that opens nothing yet) another's is
//! told from ours by time: before our lease is over nobody takes over, but for an operator, who breaks it. So an
//! operator says first that he does, in names that a directory is made of, which no cache answers. It must never
//! take an operator's version for ours: whoever follows that would go on beside whoever followed it before.

use std::io;

use super::share::{Broken, Share};
use crate::version_record::VersionRecord;
use trafficcop_core::observed::{Claim, Exists, Version};

/// Whose it is.
pub(super) enum Whose {
    /// Ours: the one after it is to be made.
    Ours,
    /// Another's, with this record.
    Others(Box<VersionRecord>),
    /// Ours or another's: taken for ours, it would be an overlap; taken for another's, a command that is killed
    /// for nothing.
    Unknown,
    /// The version before it is not there any more.
    Removed,
}

/// Whose it is; `judge` is [`Observed::exists`](trafficcop_core::Observed::exists) of what it claims.
pub(super) fn whose(
    share: &Share,
    version: Version,
    judge: impl FnOnce(Option<Claim>) -> Exists,
) -> io::Result<Whose> {
    let before = version.saturating_sub(1);
    // Without opening anything where there is nothing to open: an open is what hangs for 41 s on a
    // server that was just restarted.
    let record = share.has_record(version).then(|| share.record(version));
    let Some(record) = record.flatten() else {
        return Ok(match share.broken(before)? {
            Broken::Perhaps => Whose::Unknown,
            Broken::IsGone => Whose::Removed,
            Broken::No if judge(None) == Exists::Ours => Whose::Ours,
            Broken::No => Whose::Unknown,
        });
    };
    Ok(match judge(Some(record.claim())) {
        Exists::Ours if share.is_there(before)? => Whose::Ours,
        Exists::Ours => Whose::Removed,
        Exists::Lost => Whose::Others(Box::new(record)),
        Exists::Unknown => Whose::Unknown,
    })
}
