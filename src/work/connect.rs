//! Opens a queue on Service Bus: brings together the address and the credential that were found and
//! the client that uses them. Called by `open` alone; nothing is sent.

use std::sync::Arc;

#[cfg(feature = "entra")]
use async_trait::async_trait;

use super::open::refuse;
#[cfg(feature = "entra")]
use crate::azure::TokenCache;
use crate::azure::{Credential, ServiceBus};
#[cfg(feature = "entra")]
use crate::clock::Instant;
use crate::config::{self, UsageError};
#[cfg(feature = "entra")]
use crate::core::Failure;
use crate::host::variable;
use crate::queue::Queue;
#[cfg(feature = "entra")]
use crate::queue::service_bus::{CbsToken, JWT};
use crate::queue::service_bus::{CbsTokens, Config, SasTokens, ServiceBusQueue, Target};

/// How long a connection waits for a token of Entra ID; it is asked for again with the next one.
#[cfg(feature = "entra")]
const WAIT: std::time::Duration = std::time::Duration::from_secs(4);

/// The queue that was asked for.
///
/// # Errors
/// What speaks against its name, its address or our credential.
pub(super) fn open(
    source: &config::ServiceBus,
    max_body: usize,
) -> Result<Arc<dyn Queue>, UsageError> {
    let bus = ServiceBus::find(&variable, &source.options, &source.asked).map_err(refuse)?;
    tracing::info!("credential: {}", bus.kind());
    if bus.is_open_to_others() {
        tracing::warn!(
            "{} is spoken to without TLS, as an emulator is: whoever is on the way can read the \
             messages, and what they are had by",
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
    Ok(Arc::new(ServiceBusQueue::open(Config {
        target: Target {
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
    })))
}

/// Tokens of Entra ID, as `$cbs` takes them.
#[cfg(feature = "entra")]
#[async_trait]
impl CbsTokens for TokenCache {
    /// One token is for all queues that its bearer may use.
    async fn token(&self, _audience: &str) -> Result<CbsToken, Failure> {
        let token = TokenCache::token(self, Instant::now() + WAIT).await?;
        Ok(CbsToken {
            kind: JWT,
            token,
            good_until: Instant::now() + self.left().unwrap_or_default(),
        })
    }
}
