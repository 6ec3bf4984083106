//! A lease of ours that somebody broke: how much of it is left.
//!
//! Asked by the store when a renewal was refused for that. It must never take the next holder's lease for ours.

use std::time::Duration;

use super::inspect::LOOKS;
use super::{Blob, LeaseState, is_gone};
use trafficcop_azure::ServiceError;
use trafficcop_core::clock::Instant;

impl Blob {
    /// What a lease that breaks still gives us; `None`: it may be somebody else's now.
    ///
    /// Between the look and the question the lease may end and the next holder come; the ETag
    /// keeps us off from the moment he has written his record. Within the one round trip before
    /// that his lease would break and he would drain: a tenure lost, no overlap.
    ///
    /// # Errors
    /// If the service did not say.
    pub(super) async fn rest_of_breaking(
        &self,
        give_up_at: Instant,
    ) -> Result<Option<Instant>, ServiceError> {
        // Every moment spent here the command may run without control.
        let limit = give_up_at.min(Instant::now() + Duration::from_secs(1));
        let mut tenure = None;
        for _ in 0..LOOKS {
            match self.rest_by_a_look(&mut tenure, limit).await {
                // A write of ours came in between, or the next holder's: the next look tells.
                Err(error) if error.code() == Some("ConditionNotMet") => {}
                said => return said,
            }
        }
        Ok(None)
    }

    /// The same; `tenure` is the token by the first look, and who bears another is the next holder.
    async fn rest_by_a_look(
        &self,
        tenure: &mut Option<Option<u64>>,
        limit: Instant,
    ) -> Result<Option<Instant>, ServiceError> {
        let view = match self.client.look(None, limit).await {
            Ok(view) => view,
            Err(error) if is_gone(&error) => return Ok(None),
            Err(error) => return Err(error),
        };
        let token = view.metadata.record.as_ref().map(|record| record.token);
        if *tenure.get_or_insert(token) != token {
            return Ok(None);
        }
        let (LeaseState::Breaking, Some(etag)) = (view.lease, view.etag) else {
            return Ok(None);
        };
        let asked = Instant::now();
        let rest = match self.client.rest_of_breaking(&etag, limit).await {
            Ok(rest) => rest,
            Err(error) if is_gone(&error) => return Ok(None),
            Err(error) => return Err(error),
        };
        // In whole seconds and "approximate", so one less is counted on; never longer than a lease. From
        // before the question was sent: the answer may have been a second on its way.
        let rest = rest
            .min(self.config.lease)
            .checked_sub(Duration::from_secs(1));
        Ok(rest.map(|rest| asked + rest))
    }
}
