//! Opens the queue of the config, and checks it before the worker takes anything.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::message_io;
use super::observer::WorkerObserver;
use super::processor::{MessageProcessor, idle_event};
use crate::azure::Account;
#[cfg(feature = "service-bus")]
use crate::azure::Credential;
use crate::clock::Instant;
use crate::config::{self, Source, UsageError};
use crate::core::Failure;
use crate::core::budget::{ATTEMPT, RETRY};
use crate::host::variable;
#[cfg(feature = "service-bus")]
use crate::queue::service_bus::{self, CbsTokens, SasTokens, ServiceBusQueue};
use crate::queue::storage::{Config, StorageQueue, Target};
use crate::queue::{Missing, Queue};
use crate::signals::{SignalEvent, Signals};

// As `run`'s --connect-timeout.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);

/// Opens the queue; sends nothing.
pub(super) fn open(config: &config::Work) -> Result<Arc<dyn Queue>, UsageError> {
    let max_body = usize::try_from(config.max_body).unwrap_or(usize::MAX);
    match &config.source {
        Source::Storage(source) => open_storage(source, max_body),
        #[cfg(feature = "service-bus")]
        Source::ServiceBus(source) => open_service_bus(source, max_body),
    }
}

/// Returns the directory for messages and states, swept.
pub(super) fn directories(config: &config::Work) -> Result<Option<PathBuf>, UsageError> {
    let flag = match config.in_directories {
        true => "--message file",
        false if config.source.sessions().is_some() => "--sessions",
        false => return Ok(None),
    };
    let base = message_io::base(std::env::var_os("TMPDIR"), flag).map_err(UsageError::new)?;
    message_io::sweep(&base);
    Ok(Some(base))
}

fn refuse(why: impl ToString) -> UsageError {
    UsageError::new(why.to_string())
}

fn open_storage(source: &config::Storage, max_body: usize) -> Result<Arc<dyn Queue>, UsageError> {
    let target = Target::parse(&source.queue).map_err(refuse)?;
    let account = Account::find_queue(&variable, &source.options, target.url()).map_err(refuse)?;
    tracing::debug!("credential: {}", account.kind());
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

#[cfg(feature = "service-bus")]
fn open_service_bus(
    source: &config::ServiceBus,
    max_body: usize,
) -> Result<Arc<dyn Queue>, UsageError> {
    let bus = crate::azure::ServiceBus::find(&variable, &source.options, &source.asked)
        .map_err(refuse)?;
    tracing::debug!("credential: {}", bus.kind());
    // Only the emulator gets here: all others without TLS were refused.
    if bus.is_open_to_others() {
        tracing::warn!(
            "{} is used without TLS, as an emulator is: everyone on the network path can read the messages and the \
             credential",
            bus.name()
        );
    }
    let name = bus.name();
    let tokens: Arc<dyn CbsTokens> = match bus.credential {
        Credential::Key { name, key } => Arc::new(SasTokens::Key { name, key }),
        Credential::Sas(text) => Arc::new(SasTokens::Signature(text)),
        #[cfg(feature = "entra")]
        Credential::Token(tokens) => tokens,
    };
    Ok(Arc::new(ServiceBusQueue::open(service_bus::Config {
        target: service_bus::Target {
            host: bus.host,
            port: bus.port,
            tls: bus.tls,
            entity: bus.entity,
        },
        name,
        tokens,
        lock_time: source.lock_time,
        max_body,
        link_settle: source.link_settle,
        sessions: source.sessions.is_some(),
    })))
}

/// Checks the queue until it answers, or a stop is requested.
pub(super) async fn prepare(
    queue: &dyn Queue,
    signals: &mut Signals,
    idle: &mut [MessageProcessor],
    observer: &WorkerObserver,
) -> Result<Option<i32>, Missing> {
    // Other signals are for commands, and none runs yet.
    let stopped = async {
        loop {
            if let SignalEvent::Stop(signal) = signals.next().await {
                return signal;
            }
        }
    };
    // The guardians need answers meanwhile.
    let answering = async {
        loop {
            let _ = idle_event(idle).await;
        }
    };
    tokio::select! {
        biased;
        signal = stopped => Ok(Some(signal)),
        () = answering => Ok(None),
        looked = look(queue, observer) => looked.map(|()| None),
    }
}

async fn look(queue: &dyn Queue, observer: &WorkerObserver) -> Result<(), Missing> {
    let give_up_at = Instant::now() + CONNECT_TIMEOUT;
    let mut told = false;
    loop {
        let sent = Instant::now();
        match queue.prepare(give_up_at.min(sent + ATTEMPT)).await {
            Ok(()) => {
                observer.doubts(None);
                return Ok(());
            }
            Err(Missing::Failed(Failure::Transient { why, .. }))
                if Instant::now() + RETRY < give_up_at =>
            {
                if !std::mem::replace(&mut told, true) {
                    tracing::warn!("cannot reach the queue: {why}; retrying for 30s in all");
                    observer.doubts(Some(format!("cannot reach the queue: {why}")));
                }
            }
            // Waiting mends neither a wrong name nor a missing right.
            Err(missing) => return Err(missing),
        }
        tokio::time::sleep((sent + RETRY).since(Instant::now())).await;
    }
}
