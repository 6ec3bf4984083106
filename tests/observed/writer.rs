//! What goes on behind the making of versions: records and hints are written, what is old is removed,
//! and the guardian releases what its supervisor has left.

use std::future::poll_fn;
use std::task::Poll;
use std::time::Duration;

use trafficcop::internals::core::Failure;
use trafficcop::internals::core::observed::Version;

use super::protocol::Mutation;
use super::share::{Reply, Request};
use super::store::Store;

impl Store {
    /// The writer's thread: one record and its hint; then, now and then, what is old is removed.
    pub(crate) async fn write_behind(self) {
        loop {
            let Some((version, claim)) = self.records.borrow_mut().pop_front() else {
                return;
            };
            let wrote = self.desk.ask(Request::Record(version, claim)).await;
            self.desk.ask(Request::WriteHint(version, claim)).await;
            if wrote == Reply::Done {
                self.written.set(self.written.get().max(version));
            }
            if version >= self.removal.get() {
                self.removal.set(version + self.protocol.kept / 2);
                self.remove_old(version).await;
            }
        }
    }

    /// Removes what is old: oldest first, never the last of them, and nothing after a failure.
    async fn remove_old(&self, ours: Version) {
        let Reply::List(mut list) = self.desk.ask(Request::List).await else {
            return;
        };
        let now = match list.last() {
            Some((greatest, made)) if *greatest == ours => *made,
            _ => return,
        };
        let kept = usize::try_from(self.protocol.kept).expect("a few");
        list.truncate(list.len().saturating_sub(kept));
        if !self.protocol.first_is_removed {
            list.retain(|(version, _)| *version > 1);
        }
        list.retain(|(_, made)| *made + self.protocol.kept_for <= now);
        if self.is(Mutation::CleaningNewestFirst) {
            list.reverse();
        }
        for (version, _) in list.into_iter().take(self.protocol.removed) {
            if self.desk.ask(Request::Remove(version)).await == Reply::Error {
                return;
            }
        }
    }

    /// The guardian's, when supervisor and command are gone.
    pub(crate) async fn release_orphan(self) {
        loop {
            match self.step().await {
                Ok(version) => {
                    let claim = self.state.borrow().observed.claim(true);
                    self.desk.ask(Request::Record(version, claim)).await;
                    self.desk.ask(Request::WriteHint(version, claim)).await;
                    return;
                }
                Err(Failure::Transient { .. }) => {}
                Err(_) => return,
            }
            let again = self.now() + Duration::from_secs(1);
            poll_fn(|_| {
                if self.now() >= again {
                    Poll::Ready(())
                } else {
                    Poll::Pending
                }
            })
            .await;
        }
    }
}
