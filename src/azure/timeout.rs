//! The time limit of one exchange with the service, on the clock that counts suspend.
//!
//! Called round every request. Must never be used to judge a lease: it only ends waiting.

use std::future::Future;
use std::pin::pin;
use std::time::Duration;

use super::error::ServiceError;
use crate::clock::Instant;

/// No exchange takes longer: a dead connection must leave time for another attempt.
const EXCHANGE_LIMIT: Duration = Duration::from_secs(5);

/// tokio's timers stand still while the machine sleeps, so the clock is looked at again this often.
const LOOK: Duration = Duration::from_millis(250);

/// Waits for `work` until `deadline`; `None` if it was not done by then (it is dropped, which
/// closes its connection).
pub async fn before<T>(deadline: Instant, work: impl Future<Output = T>) -> Option<T> {
    let mut work = pin!(work);
    loop {
        let left = deadline.since(Instant::now());
        if left.is_zero() {
            return None;
        }
        if let Ok(done) = tokio::time::timeout(left.min(LOOK), &mut work).await {
            return Some(done);
        }
    }
}

/// One exchange, until then and no longer than any.
pub(crate) async fn limited<T>(
    give_up_at: Instant,
    work: impl IntoFuture<Output = azure_core::Result<T>>,
) -> Result<T, ServiceError> {
    unhurried(give_up_at.min(Instant::now() + EXCHANGE_LIMIT), work).await
}

/// One exchange, for as long as is given: its answer can be long.
pub(crate) async fn unhurried<T>(
    give_up_at: Instant,
    work: impl IntoFuture<Output = azure_core::Result<T>>,
) -> Result<T, ServiceError> {
    match before(give_up_at, work.into_future()).await {
        Some(Ok(done)) => Ok(done),
        Some(Err(error)) => Err(ServiceError::of(&error)),
        None => Err(ServiceError::timed_out()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_is_done_in_time_is_returned_and_what_hangs_is_given_up() {
        let soon = Instant::now() + Duration::from_millis(300);
        assert_eq!(before(soon, std::future::pending::<()>()).await, None);
        assert!(Instant::now() >= soon);
        let late = Instant::now() + Duration::from_secs(60);
        assert_eq!(before(late, async { 7 }).await, Some(7));
    }

    #[tokio::test]
    async fn nothing_is_begun_after_the_deadline() {
        let mut begun = false;
        assert_eq!(before(Instant::now(), async { begun = true }).await, None);
        assert!(!begun);
    }
}
