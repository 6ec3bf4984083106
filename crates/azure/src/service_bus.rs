//! Address and credential of a queue or subscription on Azure Service Bus, from a connection string or a
//! namespace and Entra ID.

mod parse;

use std::fmt;
use std::sync::Arc;

use rustls::ClientConfig;
use url::Url;

use self::parse::{Namespace, Parts, Typed};
use super::account::{AccountError, contradiction, malformed, missing};
use super::credential::{AuthOptions, Credential, Found, Offered, SERVICE_BUS, choose, trimmed};
use super::proxy::Proxy;
use super::transport::Client;

const STRING: &str = "AZURE_SERVICEBUS_CONNECTION_STRING";
const TLS_PORT: u16 = 5671;
const PLAIN_PORT: u16 = 5672;

/// Flags for a queue on Service Bus.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServiceBusOptions {
    /// `QUEUE`, `TOPIC/Subscriptions/NAME`, either with `NAMESPACE/` in front, or `sb://HOST/ENTITY`.
    pub entity: String,
    /// Work on its dead letters instead.
    pub dead_letters: bool,
    /// The variable that holds the connection string, if not the usual one.
    pub string_in: Option<String>,
}

/// Address of a queue, with the credential.
#[derive(Clone)]
pub struct ServiceBus {
    /// Name or IP address of the host.
    pub host: String,
    /// Port of the host.
    pub port: u16,
    /// TLS settings; `None`: the emulator's plain TCP.
    pub tls: Option<Arc<ClientConfig>>,
    /// Path of the queue in the service.
    pub entity: String,
    /// The credential.
    pub credential: Credential,
}

impl fmt::Debug for ServiceBus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServiceBus")
            .field("name", &self.name())
            .field("tls", &self.tls.is_some())
            .field("kind", &self.kind())
            .finish_non_exhaustive()
    }
}

impl ServiceBus {
    /// Finds the queue in flags and environment (`get`); sends no request.
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
                format!("--connection-string-env names {name}, which is not set: set it"),
            ));
        }
        let parts = text.map(|text| Parts::read(&text, source)).transpose()?;
        let (namespace, entity) = settle(typed, parts.as_ref(), source)?;
        let entity = match asked.dead_letters {
            true => format!("{entity}/$DeadLetterQueue"),
            false => entity,
        };
        let flag = options.auth.flag();
        let plain = parts.as_ref().is_some_and(|parts| parts.emulator);
        let trust = options.ca_certificates()?;
        let given = parts.is_some();
        let (key, sas) = match parts.and_then(|parts| parts.secret) {
            Some(key @ Credential::Key { .. }) => (Some(key), None),
            sas => (None, sas),
        };
        let refuse_if = |refused, what, how| match refused {
            true => Err(missing(what, how)),
            false => Ok(()),
        };
        let offer = |credential: Option<Credential>, kind, how| {
            let found = credential.map(|credential| Found {
                credential,
                kind,
                source,
                is_explicit: false,
                overrides_entra: false,
            });
            found.ok_or_else(|| {
                let how = format!("{flag} needs {how} in the connection string ({source})");
                missing(kind, how)
            })
        };
        let offered = Offered {
            key: offer(
                key,
                "the shared access key",
                "SharedAccessKeyName and SharedAccessKey",
            ),
            sas: offer(sas, "the shared access signature", "SharedAccessSignature"),
            token: refuse_if(
                plain,
                "TLS",
                format!(
                    "{flag}: a token is never sent over plain TCP, and {source} says \
                     UseDevelopmentEmulator"
                ),
            ),
            // Entra ID provides the credential for a string without a key.
            entra_by_default: refuse_if(
                given && (plain || !cfg!(feature = "entra")),
                "SharedAccessKeyName and SharedAccessKey (or SharedAccessSignature)",
                format!("copy the whole connection string into {source}"),
            ),
        };
        let credential = match choose(options.auth, offered, &env)? {
            Some(found) => found.credential,
            None => {
                let endpoint = Url::parse(&format!("https://{}", namespace.host));
                let endpoint = endpoint.map_err(|error| {
                    malformed(
                        format!("the namespace {}", namespace.host),
                        format!("is not a host name: {error}"),
                    )
                })?;
                let proxy = Proxy::find(&env, &endpoint)?;
                let client = Arc::new(Client::new(true, 1, trust.clone(), proxy));
                Credential::entra(options.auth, &env, &endpoint, client, SERVICE_BUS)?
            }
        };
        let (port, tls) = match plain {
            true => (PLAIN_PORT, None),
            false => (TLS_PORT, Some(Arc::new(trust.tls()?))),
        };
        Ok(ServiceBus {
            port: namespace.port.unwrap_or(port),
            host: namespace.host,
            tls,
            entity,
            credential,
        })
    }

    /// Returns the address for people, without a secret.
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

    /// Returns the kind of credential, for the log.
    pub fn kind(&self) -> &'static str {
        match &self.credential {
            Credential::Key { .. } => "shared access key",
            Credential::Sas(_) => "shared access signature",
            #[cfg(feature = "entra")]
            Credential::Token(tokens) => tokens.kind(),
        }
    }

    /// Returns whether the connection leaves this machine without TLS.
    pub fn is_open_to_others(&self) -> bool {
        let bare = self.host.trim_start_matches('[').trim_end_matches(']');
        let local = bare == "localhost"
            || bare
                .parse()
                .is_ok_and(|address: std::net::IpAddr| address.is_loopback());
        self.tls.is_none() && !local
    }
}

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
                    "set {STRING} (or name another variable with --connection-string-env), or name the queue as \
                     NAMESPACE/QUEUE"
                ),
            ));
        }
        (Some(typed), Some(parts)) if !typed.is(&parts.endpoint) => {
            return Err(contradiction(
                format!("the namespace {} in --service-bus", typed.host),
                format!("Endpoint in {source}"),
                "different namespaces; a queue with a slash in its name is written as sb://HOST/NAME",
            ));
        }
        (_, Some(parts)) => parts.endpoint.clone(),
        (Some(typed), None) => typed,
    };
    Ok((namespace, typed.entity))
}

#[cfg(test)]
mod tests;
