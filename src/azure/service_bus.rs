//! A queue, a subscription or a dead-letter queue on Azure Service Bus: where it is and how we prove
//! who we are, from a connection string as Microsoft's clients take it, or a namespace and Entra ID.
//!
//! Called once at start, before anything is asked of anybody. Must never show a secret: errors name
//! variables and parts, not values.

mod entity;
mod namespace;
mod string;

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use azure_core::credentials::Secret;
use rustls::ClientConfig;

use super::account_error::{AccountError, contradiction, malformed, missing};
use super::ca_file::CaCertificates;
use super::credential_kind::{Auth, AuthOptions};
use super::env::{Env, named, trimmed};
use crate::clock::Instant;
use crate::core::Failure;

use self::entity::Typed;
use self::namespace::Namespace;
use self::string::Parts;

/// The variable that is read if no other is named.
const STRING: &str = "AZURE_SERVICEBUS_CONNECTION_STRING";
const TLS_PORT: u16 = 5671;
const PLAIN_PORT: u16 = 5672;

/// What was typed of a queue on Service Bus.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServiceBusOptions {
    /// `QUEUE`, `TOPIC/Subscriptions/NAME`, either behind `NAMESPACE/`, or `sb://HOST/ENTITY`.
    pub entity: String,
    /// What has been put aside there, instead of what waits.
    pub dead_letters: bool,
    /// The variable that holds the connection string, if not [`STRING`].
    pub string_in: Option<String>,
}

/// Where a queue is, and our credential. `Debug` shows no secret.
#[derive(Clone)]
pub struct ServiceBus {
    /// The host's name, or its address.
    pub host: String,
    /// Its port.
    pub port: u16,
    /// What TLS goes by; `None`: the emulator's plain TCP.
    pub tls: Option<Arc<ClientConfig>>,
    /// The path of the queue, as the service has it.
    pub entity: String,
    /// Our credential.
    pub credential: BusCredential,
}

/// How we prove who we are.
#[derive(Clone)]
pub enum BusCredential {
    /// Signatures made with a key.
    Key {
        /// The key's name.
        name: String,
        /// The key, as it is written.
        key: Secret,
    },
    /// A signature that somebody else has made.
    Sas(Secret),
    /// TokenCache of Entra ID.
    #[cfg(feature = "entra")]
    Entra(BusTokens),
}

impl BusCredential {
    /// What it is, for the log.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            BusCredential::Key { .. } => "shared access key",
            BusCredential::Sas(_) => "shared access signature",
            #[cfg(feature = "entra")]
            BusCredential::Entra(tokens) => tokens.0.kind(),
        }
    }
}

/// TokenCache of Entra ID for Service Bus, renewed in the background.
#[cfg(feature = "entra")]
#[derive(Clone)]
pub struct BusTokens(Arc<super::token_cache::TokenCache>);

#[cfg(feature = "entra")]
impl BusTokens {
    /// The present token, and until when it is good. Waits only where none is good.
    ///
    /// # Errors
    /// Why there is none: `Fatal` if the issuer says no.
    pub async fn token(&self, give_up_at: Instant) -> Result<(Secret, Instant), Failure> {
        match self.0.token(give_up_at).await {
            Ok(secret) => {
                let left = self.0.left().unwrap_or_default();
                Ok((secret, Instant::now() + left))
            }
            Err(none) if none.refused => Err(Failure::Fatal {
                why: none.why,
                denied: true,
            }),
            Err(none) => Err(Failure::Transient {
                why: none.why,
                retry_after: None,
            }),
        }
    }
}

impl fmt::Debug for ServiceBus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServiceBus")
            .field("name", &self.name())
            .field("tls", &self.tls.is_some())
            .field("kind", &self.credential.kind())
            .finish_non_exhaustive()
    }
}

impl ServiceBus {
    /// Finds it in what was typed and in the environment (`get`). Nothing is asked of anybody.
    ///
    /// # Errors
    /// A missing, unreadable or contradicting part, named.
    pub fn find(
        get: &dyn Fn(&str) -> Option<String>,
        options: &AuthOptions,
        asked: &ServiceBusOptions,
    ) -> Result<ServiceBus, AccountError> {
        let env = trimmed(get);
        let typed = Typed::read(&asked.entity)?;
        let source = asked.string_in.as_deref().unwrap_or(STRING);
        let text = env(source);
        if let (None, Some(name)) = (&text, &asked.string_in) {
            return Err(missing(
                "the connection string",
                format!("--connection-string-env names {name}, which is not set"),
            ));
        }
        let parts = text.map(|text| Parts::read(&text, source)).transpose()?;
        let (namespace, entity) = settle(typed, parts.as_ref(), source)?;
        let entity = match asked.dead_letters {
            true => format!("{entity}/$DeadLetterQueue"),
            false => entity,
        };
        let plain = parts.as_ref().is_some_and(|parts| parts.emulator);
        let trust = match &options.ca_file {
            Some(path) => CaCertificates::read(Path::new(path))?,
            None => CaCertificates::default(),
        };
        let credential = choose(options.auth, parts, source, plain, &env, || {
            entra(options.auth, &env, &namespace, trust.clone())
        })?;
        let tls = match plain {
            true => None,
            false => Some(Arc::new(trust.tls()?)),
        };
        let port = match plain {
            true => PLAIN_PORT,
            false => TLS_PORT,
        };
        Ok(ServiceBus {
            port: namespace.port.unwrap_or(port),
            host: namespace.host,
            tls,
            entity,
            credential,
        })
    }

    /// The address for people: no secret in it.
    #[must_use]
    pub fn name(&self) -> String {
        let usual = match self.tls {
            Some(_) => TLS_PORT,
            None => PLAIN_PORT,
        };
        if self.port == usual {
            return format!("sb://{}/{}", self.host, self.entity);
        }
        format!("sb://{}:{}/{}", self.host, self.port, self.entity)
    }

    /// Nobody on this machine alone can listen to what goes there without TLS.
    #[must_use]
    pub fn is_open_to_others(&self) -> bool {
        let bare = self.host.trim_start_matches('[').trim_end_matches(']');
        let local = bare == "localhost"
            || bare
                .parse()
                .is_ok_and(|address: std::net::IpAddr| address.is_loopback());
        self.tls.is_none() && !local
    }
}

/// Which namespace and which entity: what was typed, against the connection string.
fn settle(
    typed: Typed,
    parts: Option<&Parts>,
    source: &str,
) -> Result<(Namespace, String), AccountError> {
    if let Some(path) = parts.and_then(|parts| parts.entity.as_deref())
        && !typed.is_of(path)
    {
        return Err(contradiction(
            format!("--service-bus {}", typed.entity),
            format!("EntityPath in {source}"),
            "the string is for another queue",
        ));
    }
    let namespace = match (typed.namespace, parts) {
        (None, None) => {
            return Err(missing(
                "the Service Bus namespace",
                format!(
                    "set {STRING} (or name another variable with --connection-string-env), or name \
                     the queue as NAMESPACE/QUEUE"
                ),
            ));
        }
        (None, Some(parts)) => parts.endpoint.clone(),
        (Some(typed), None) => typed,
        (Some(typed), Some(parts)) => {
            if !typed.is(&parts.endpoint) {
                return Err(contradiction(
                    format!("the namespace {} in --service-bus", typed.host),
                    format!("Endpoint in {source}"),
                    "different namespaces; a queue with a slash in its name is written as \
                     sb://HOST/NAME",
                ));
            }
            parts.endpoint.clone()
        }
    };
    Ok((namespace, typed.entity))
}

/// Which credential: what was typed, against what was found.
fn choose(
    auth: Auth,
    parts: Option<Parts>,
    source: &str,
    plain: bool,
    env: &Env<'_>,
    entra: impl FnOnce() -> Result<BusCredential, AccountError>,
) -> Result<BusCredential, AccountError> {
    let explicit = auth.flag();
    let given = parts.is_some();
    let secret = parts.and_then(|parts| parts.secret);
    match auth {
        Auth::Key => match secret {
            Some(key @ BusCredential::Key { .. }) => Ok(key),
            _ => Err(missing(
                "the shared access key",
                format!(
                    "{explicit} needs SharedAccessKeyName and SharedAccessKey in the connection \
                     string ({source})"
                ),
            )),
        },
        Auth::Sas => match secret {
            Some(sas @ BusCredential::Sas(_)) => Ok(sas),
            _ => Err(missing(
                "the shared access signature",
                format!(
                    "{explicit} needs SharedAccessSignature in the connection string ({source})"
                ),
            )),
        },
        Auth::Auto => match (secret, named(env).filter(|_| !plain)) {
            (Some(secret), Some(named)) => Err(contradiction(
                format!("the {} in {source}", secret.kind()),
                named,
                "two credentials: --auth key, sas or entra says which",
            )),
            (Some(secret), None) => Ok(secret),
            (None, None) if given && (plain || !cfg!(feature = "entra")) => Err(missing(
                "SharedAccessKeyName and SharedAccessKey (or SharedAccessSignature)",
                format!("copy the whole connection string into {source}"),
            )),
            (None, _) => entra(),
        },
        Auth::Entra | Auth::Workload | Auth::Managed | Auth::Cli if plain => Err(missing(
            "TLS",
            format!(
                "{explicit}: a token is never sent over plain TCP, and {source} says \
                 UseDevelopmentEmulator"
            ),
        )),
        Auth::Entra | Auth::Workload | Auth::Managed | Auth::Cli => entra(),
    }
}

/// What gives tokens for this namespace.
#[cfg(feature = "entra")]
fn entra(
    auth: Auth,
    env: &Env<'_>,
    namespace: &Namespace,
    trust: CaCertificates,
) -> Result<BusCredential, AccountError> {
    use super::entra::{Entra, Purpose};
    use super::token_cache::TokenCache;
    use super::transport::Client;
    let endpoint = url::Url::parse(&format!("https://{}", namespace.host)).map_err(|error| {
        malformed(
            format!("the namespace {}", namespace.host),
            format!("is no name of a host: {error}"),
        )
    })?;
    let client = Arc::new(Client::new(true, 1).trusting(trust));
    let entra = Entra::new(auth, env, &endpoint, client, Purpose::ServiceBus)?;
    let tokens = TokenCache::new(Arc::new(entra), None);
    Ok(BusCredential::Entra(BusTokens(Arc::new(tokens))))
}

#[cfg(not(feature = "entra"))]
fn entra(
    _: Auth,
    _: &Env<'_>,
    _: &Namespace,
    _: CaCertificates,
) -> Result<BusCredential, AccountError> {
    Err(missing(
        "the credential",
        format!("Entra ID was left out of this build: set {STRING}"),
    ))
}

#[cfg(test)]
mod tests;
