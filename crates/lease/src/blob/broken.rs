//! Rest of this instance's broken lease, after a refused renewal.
//!
//! It must never take the next holder's lease for this instance's.

use std::time::Duration;

use super::inspect::LOOKS;
use super::{Blob, LeaseState, is_gone};
use trafficcop_azure::ServiceError;
use trafficcop_core::clock::Instant;

impl Blob {
    /// Returns the end of a breaking lease; `None`: another instance may have it already.
    ///
    /// The next holder may come between the look and the question. Its ETag protects it once its record is
    /// written. In the round trip before, its lease would break: a tenure lost, no overlap.
    pub(super) async fn rest_of_breaking(
        &self,
        give_up_at: Instant,
    ) -> Result<Option<Instant>, ServiceError> {
        // Meanwhile the command may run without control.
        let limit = give_up_at.min(Instant::now() + Duration::from_secs(1));
        let mut tenure = None;
        for _ in 0..LOOKS {
            match self.rest_by_a_look(&mut tenure, limit).await {
                // This instance or the next holder wrote.
                Err(error) if error.code() == Some("ConditionNotMet") => {}
                said => return said,
            }
        }
        Ok(None)
    }

    /// Looks once. `tenure` is the first look's token; another is the next holder's.
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
        // In whole seconds and "approximate": count one less. Count from before the question: the answer may
        // have taken a second.
        let rest = rest
            .min(self.config.lease)
            .checked_sub(Duration::from_secs(1));
        Ok(rest.map(|rest| asked + rest))
    }
}
