//! Whether a copy of us is in control as well: a machine that was cloned, or restored from a snapshot,
//! renews the same lease as the one that it was copied from.
//!
//! Called where the blob store writes under its lease, and where it renews it. Only what is answered
//! anyway is looked at: nobody can write there without the id of the lease, so what stands there is
//! what we wrote last, if that was answered. It must never take a write of ours for another's.

use super::{Blob, Held};
use crate::azure::ServiceError;

impl Held {
    /// Its id, and the ETag of what stands there if nobody but us writes.
    pub(super) fn known(&self) -> (String, Option<String>) {
        let etag = self.etag.clone().filter(|_| !self.unanswered);
        (self.id.clone(), etag)
    }
}

impl Blob {
    /// A write under the lease is sent, and may be done whatever is answered, or not. Whether the one
    /// before it was so already.
    pub(super) fn begin_to_write(&self) -> bool {
        let mut state = self.state();
        let held = state.held.as_mut();
        held.is_some_and(|held| std::mem::replace(&mut held.unanswered, true))
    }

    /// That write was not answered as it should be; `unanswered` is what [`Blob::begin_to_write`] said.
    pub(super) fn not_written(&self, trouble: &ServiceError, unanswered: bool) {
        if trouble.is_unclear() {
            return;
        }
        if let Some(held) = &mut self.state().held {
            held.unanswered = unanswered;
        }
        // What stood there was ours, and no write of ours can have changed it.
        if trouble.code() == Some("ConditionNotMet") && !unanswered {
            self.tell_of_a_copy();
        }
    }

    /// The blob bears this ETag: was it as we knew it, and is what we know still the same?
    pub(super) fn compare(&self, known: &(String, Option<String>), etag: Option<String>) {
        let now = self.state().held.as_ref().map(Held::known);
        let is_ours = etag.is_none() || known.1.is_none() || etag == known.1;
        if !is_ours && now.as_ref() == Some(known) {
            self.tell_of_a_copy();
        }
    }

    /// Nobody can write there without the id of our lease, which only we know: or a copy of us.
    fn tell_of_a_copy(&self) {
        let mut state = self.state();
        let held = state.held.as_mut();
        if held.is_some_and(|held| !std::mem::replace(&mut held.copied, true)) {
            drop(state);
            tracing::warn!(
                "{}: somebody else writes under our lease: a copy of this machine (cloned, or \
                 restored from a snapshot) is in control as well, and both renew it: end one of \
                 the two",
                self.name
            );
        }
    }
}
