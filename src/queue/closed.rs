//! What the locks of every kind of queue have in common: requests about one message never overlap, and
//! once it is settled or lost nothing is asked for any more.

use std::mem::discriminant;

use tokio::sync::{Mutex, MutexGuard};

use super::Settlement;
use crate::azure::before;
use crate::clock::Instant;
use crate::core::Failure;

/// Why nothing can be done with a message any more.
pub(super) enum Closed {
    /// It was settled, by us.
    Settled(Settlement),
    /// It is not ours any more, or nobody can say whether it was settled.
    Failed(Failure),
}

impl Closed {
    /// What whoever asks for something is told.
    pub(super) fn failure(&self) -> Failure {
        match self {
            Closed::Settled(_) => Failure::Lost {
                until: None,
                why: "the message is settled".to_owned(),
            },
            Closed::Failed(Failure::Lost { until, why }) => Failure::Lost {
                // What has passed by now protects nobody.
                until: until.filter(|until| *until > Instant::now()),
                why: why.clone(),
            },
            Closed::Failed(failure) => failure.clone(),
        }
    }

    /// The same for whoever asks for a settlement: one that was done may be asked for again.
    pub(super) fn settled_as(&self, settlement: &Settlement) -> Result<(), Failure> {
        match self {
            // By its kind alone: whichever delay or text the first one bore, it is done and cannot
            // be done anew.
            Closed::Settled(how) if discriminant(how) == discriminant(settlement) => Ok(()),
            _ => Err(self.failure()),
        }
    }
}

/// What is known of the message, for as long as it is this call's turn. Never waits for longer than
/// the caller has.
///
/// # Errors
/// `Transient` if another call had it until `give_up_at`.
pub(super) async fn turn<State>(
    state: &Mutex<State>,
    give_up_at: Instant,
) -> Result<MutexGuard<'_, State>, Failure> {
    // A renewal that overtakes a settlement is refused, and would be taken for a lost lock; of two
    // updates of a storage queue the first makes the second's receipt stale.
    let turn = before(give_up_at, state.lock()).await;
    turn.ok_or_else(|| Failure::Transient {
        why: "the request before this one is still under way".to_owned(),
        retry_after: None,
    })
}
