//! Opens the queue of the plan. The only place here that knows which kinds there are.

use std::sync::Arc;

use crate::azure::Account;
#[cfg(feature = "service-bus")]
use crate::azure::ServiceBus;
use crate::plan::{self, Refusal, Source};
use crate::queue::Queue;
use crate::queue::storage::{Config, Encoding, StorageQueue, Target};

/// The queue of the plan; nothing is sent.
///
/// # Errors
/// What speaks against its name, its address or our credentials.
pub(super) fn open(plan: &plan::Work) -> Result<Arc<dyn Queue>, Refusal> {
    let max_body = usize::try_from(plan.max_body).unwrap_or(usize::MAX);
    match &plan.source {
        Source::Storage(source) => storage(source, max_body),
        #[cfg(feature = "service-bus")]
        Source::ServiceBus(source) => service_bus(source, max_body),
    }
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

fn refuse(why: impl ToString) -> Refusal {
    Refusal::new(why.to_string())
}

fn storage(source: &plan::Storage, max_body: usize) -> Result<Arc<dyn Queue>, Refusal> {
    let target = Target::parse(&source.queue).map_err(refuse)?;
    let account = Account::find_queue(&variable, &source.wishes, target.url()).map_err(refuse)?;
    tracing::info!("credential: {}", account.kind());
    let queue = StorageQueue::open(Config {
        target,
        account,
        lock_time: source.lock_time,
        encoding: match source.encoding {
            plan::Encoding::Auto => Encoding::Auto,
            plan::Encoding::Base64 => Encoding::Base64,
            plan::Encoding::Text => Encoding::Text,
        },
        max_body,
        poison: source.poison_queue.clone(),
        create: source.create,
    });
    Ok(Arc::new(queue.map_err(refuse)?))
}

#[cfg(feature = "service-bus")]
fn service_bus(source: &plan::ServiceBus, max_body: usize) -> Result<Arc<dyn Queue>, Refusal> {
    let bus = ServiceBus::find(&variable, &source.wishes, &source.asked).map_err(refuse)?;
    tracing::info!("credential: {}", bus.credential.kind());
    if bus.is_open_to_others() {
        tracing::warn!(
            "{} is spoken to without TLS, as an emulator: whoever is on the way can read the messages, \
             and the token that gives them",
            bus.name()
        );
    }
    let _ = max_body;
    unimplemented!()
}
