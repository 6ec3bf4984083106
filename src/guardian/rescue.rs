//! The killing of a dead guardian's tree, round by round.
//!
//! Done by [`super::handle`] in the guardian's place. It must never call a tree empty that it has not
//! seen empty.

use std::time::Duration;

use tokio::time::sleep;

use super::containment::Containment;
use super::{fork, state, tree};
use crate::clock::Instant;

/// Longer gaps between two looks are pauses of ours and count no more than this.
const GAP: Duration = Duration::from_millis(100);

/// See the module's text.
#[derive(Clone, Copy)]
pub(super) struct Rescue {
    looked: Instant,
    /// How long it has been tried, pauses of ours left out.
    tried: Duration,
    wait: Duration,
}

impl Rescue {
    pub(super) fn begin() -> Rescue {
        Rescue {
            looked: Instant::now(),
            tried: Duration::ZERO,
            wait: Duration::from_millis(1),
        }
    }

    /// It has been tried for as long as any tree may take.
    pub(super) fn is_stuck(&self) -> bool {
        self.tried >= state::STUCK_AFTER
    }

    /// One round of killing what a dead guardian left (it and all orphans are children of ours), and
    /// whether nothing of it is left.
    pub(super) fn is_done(&mut self, guardian: i32, containment: &Containment) -> bool {
        let now = Instant::now();
        self.tried += now.since(self.looked).min(GAP);
        self.looked = now;
        containment.kill();
        if self.tried >= GAP && tree::is_child(guardian) {
            // Killed and still not dead: it is stuck in the kernel, and its children have not come to
            // us. It can reap none of them any more, so their ids are theirs.
            for child in tree::children_of(guardian) {
                tree::signal(child, libc::SIGKILL);
            }
        }
        let mut unrelated_children = fork::unrelated_children();
        let me = i32::try_from(std::process::id()).unwrap_or(0);
        unrelated_children.extend(containment.lock_holders(&tree::children_of(me)));
        tree::sweep(&unrelated_children) && containment.is_empty()
    }

    /// Waits for the next round: longer and longer.
    pub(super) async fn nap(&mut self) {
        let wait = self.wait;
        self.wait = (wait * 2).min(GAP / 2);
        sleep(wait).await;
    }
}
