//! The turn of one call about a message among several: requests about it never overlap.
//!
//! Called by the locks of every kind of queue. Must never wait for longer than the caller has.

use tokio::sync::{Mutex, MutexGuard};

use crate::azure::before;
use crate::clock::Instant;
use crate::core::Failure;

/// What is known of the message, for as long as it is this call's turn.
///
/// # Errors
/// `Transient` if another call had it until `give_up_at`.
pub(super) async fn turn<State>(
    state: &Mutex<State>,
    give_up_at: Instant,
) -> Result<MutexGuard<'_, State>, Failure> {
    let turn = before(give_up_at, state.lock()).await;
    turn.ok_or_else(|| Failure::Transient {
        why: "the request before this one is still under way".to_owned(),
        retry_after: None,
    })
}
