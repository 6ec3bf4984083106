//! Opens the queue of the plan. The only place here that knows which kinds there are.

use std::sync::Arc;

use crate::azure::Account;
use crate::plan::{self, Refusal};
use crate::queue::Queue;
use crate::queue::storage::{Config, Encoding, StorageQueue, Target};

/// The queue of the plan; nothing is sent.
///
/// # Errors
/// What speaks against its name, its address or our credentials.
pub(super) fn open(plan: &plan::Work) -> Result<Arc<dyn Queue>, Refusal> {
    let refuse = |why: String| Refusal::new(why);
    let target = Target::parse(&plan.queue).map_err(|why| refuse(why.to_string()))?;
    let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let account = Account::find_queue(&variable, &plan.wishes, target.url())
        .map_err(|why| refuse(why.to_string()))?;
    tracing::info!("credential: {}", account.kind());
    let queue = StorageQueue::open(Config {
        target,
        account,
        lock_time: plan.lock_time,
        encoding: match plan.encoding {
            plan::Encoding::Auto => Encoding::Auto,
            plan::Encoding::Base64 => Encoding::Base64,
            plan::Encoding::Text => Encoding::Text,
        },
        max_body: usize::try_from(plan.max_body).unwrap_or(usize::MAX),
        poison: plan.poison_queue.clone(),
        create: plan.create,
    });
    Ok(Arc::new(queue.map_err(|why| refuse(why.to_string()))?))
}
