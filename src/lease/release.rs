//! Gives back, from the guardian, what a dead supervisor had: whichever store it was of.
//!
//! Called by the guardian when nothing of the tree lives any more. It must never do anything that the
//! store's own note does not say.

use super::{blob, shared_file};

/// What the guardian calls after the supervisor's death: see [`LeaseStore::release_info`](super::LeaseStore::release_info).
pub fn release_orphaned(release_info: &[u8]) {
    if shared_file::is_release(release_info) {
        shared_file::execute_release();
    } else {
        blob::release_orphaned(release_info);
    }
}
