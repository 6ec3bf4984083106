//! Opens the queue of the plan. The only place here that knows which kinds there are, with `bus`.

use std::sync::Arc;

use crate::azure::Account;
use crate::config::{self, Source, UsageError};
use crate::host::variable;
use crate::queue::Queue;
use crate::queue::storage::{Config, StorageQueue, Target};

/// The queue of the plan; nothing is sent.
///
/// # Errors
/// What speaks against its name, its address or our credentials.
pub(super) fn open(plan: &config::Work) -> Result<Arc<dyn Queue>, UsageError> {
    let max_body = usize::try_from(plan.max_body).unwrap_or(usize::MAX);
    match &plan.source {
        Source::Storage(source) => storage(source, max_body),
        #[cfg(feature = "service-bus")]
        Source::ServiceBus(source) => super::connect::open(source, max_body),
    }
}

pub(super) fn refuse(why: impl ToString) -> UsageError {
    UsageError::new(why.to_string())
}

fn storage(source: &config::Storage, max_body: usize) -> Result<Arc<dyn Queue>, UsageError> {
    let target = Target::parse(&source.queue).map_err(refuse)?;
    let account = Account::find_queue(&variable, &source.options, target.url()).map_err(refuse)?;
    tracing::info!("credential: {}", account.kind());
    let queue = StorageQueue::open(Config {
        target,
        account,
        lock_time: source.lock_time,
        encoding: source.encoding,
        max_body,
        poison: source.poison_queue.clone(),
        create: source.create,
    });
    Ok(Arc::new(queue.map_err(refuse)?))
}
