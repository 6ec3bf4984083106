//! Accounts: address and credential of a storage service.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use azure_core::http::policies::Policy;
use azure_core::http::{ClientOptions, HttpClient, RetryOptions, Transport};
use azure_core::time::{OffsetDateTime, to_rfc3339};
use url::Url;

use super::account_builder::{ACCOUNT, AccountBuilder, KEY, SAS, STRING, SUFFIX};
use super::address::{is_loopback, split_url};
use super::credential::{AuthOptions, Credential, refuse_quotes, trimmed};
use super::error::ServiceError;
use super::service_clock::{OwnAnswers, ServiceClock};
use super::shared_key::SharedKey;
#[cfg(feature = "entra")]
use super::token_cache::Bearer;
use super::transport::Client;
use trafficcop_core::Failure;
use trafficcop_core::clock::Instant;
#[cfg(feature = "entra")]
use trafficcop_core::util::SharedMemory;

const LAST_WEEK: azure_core::time::Duration = azure_core::time::Duration::days(7);

/// A service of a storage account, with the credential for it.
#[derive(Clone)]
pub struct Account {
    pub(super) name: Option<String>,
    pub(super) credential: Credential,
    pub(super) emulator: bool,
    pub(super) endpoint: Url,
    pub(super) client: Arc<Client>,
    pub(super) clock: Arc<ServiceClock>,
    // End of the SAS, and what the log already has of it: a level of [`Account::tell`].
    pub(super) sas_end: Option<OffsetDateTime>,
    pub(super) told: Arc<AtomicU8>,
    pub(super) source: Option<&'static str>,
    // Instead of the client, in tests.
    #[cfg(debug_assertions)]
    pub(super) network: Option<Arc<dyn HttpClient>>,
}

impl fmt::Debug for Account {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Account")
            .field("endpoint", &self.endpoint.as_str())
            .field("kind", &self.kind())
            .finish_non_exhaustive()
    }
}

impl Account {
    /// Finds the account's blob service in the environment (`get`), the flags, and the lock's URL if it is one.
    /// Refuses contradictory sources. Sends nothing, and reads no certificates except `--ca-file`.
    pub fn find(
        get: &dyn Fn(&str) -> Option<String>,
        options: &AuthOptions,
        url: Option<&Url>,
    ) -> Result<Account, AccountError> {
        Account::of_service(&BLOB, get, options, url, None)
    }

    /// Like [`Account::find`], for the account's queue service.
    pub fn find_queue(
        get: &dyn Fn(&str) -> Option<String>,
        options: &AuthOptions,
        url: Option<&Url>,
    ) -> Result<Account, AccountError> {
        Account::of_service(&QUEUE, get, options, url, None)
    }

    /// Finds the account of a program, which may pass a credential.
    pub fn of_program(
        service: &'static Service,
        get: &dyn Fn(&str) -> Option<String>,
        url: Option<&Url>,
        own: Option<Credential>,
    ) -> Result<Account, AccountError> {
        Account::of_service(service, get, &AuthOptions::default(), url, own)
    }

    fn of_service(
        service: &'static Service,
        get: &dyn Fn(&str) -> Option<String>,
        options: &AuthOptions,
        url: Option<&Url>,
        own: Option<Credential>,
    ) -> Result<Account, AccountError> {
        // Earlier sources decide what a later one may add; a URL with a SAS may override all.
        let mut found = AccountBuilder::new(service, own);
        let url = url.map(split_url).transpose()?;
        let env = trimmed(get);
        for name in [STRING, ACCOUNT, KEY, SAS, SUFFIX] {
            refuse_quotes(name, env(name).as_deref())?;
        }
        if let Some(text) = env(STRING) {
            found.connection_string(&text)?;
        }
        if let Some(name) = env(ACCOUNT) {
            found.name(&name, ACCOUNT)?;
        }
        if let Some(key) = env(KEY) {
            found.key(&key, KEY)?;
        }
        if let Some(sas) = env(SAS) {
            found.sas(&sas, SAS)?;
        }
        if let Some((variable, text)) = service.variable.and_then(|v| Some((v, env(v)?))) {
            found.at(AccountBuilder::endpoint(&text, variable)?, variable)?;
        }
        if let Some(suffix) = env(SUFFIX) {
            found.suffix(&suffix, SUFFIX)?;
        }
        if options.emulator {
            found.emulator(url.is_some())?;
        }
        if let Some(url) = url {
            found.url(url)?;
        }
        found.finish(options, &env)
    }

    /// Returns whether the credential is a service SAS for one blob.
    pub fn is_for_one_blob(&self) -> bool {
        let Credential::Sas(sas) = &self.credential else {
            return false;
        };
        let mut pairs = url::form_urlencoded::parse(sas.secret().as_bytes());
        pairs.any(|(name, value)| name == "sr" && value == "b")
    }

    /// Kind of the credential, for the log.
    pub fn kind(&self) -> &'static str {
        match &self.credential {
            Credential::Key { .. } if self.emulator => "emulator key",
            Credential::Key { .. } => "account key",
            Credential::Sas(_) => "SAS",
            #[cfg(feature = "entra")]
            Credential::Token(tokens) => tokens.kind(),
        }
    }

    /// Gets a token if requests need one; returns how long it is valid.
    #[cfg_attr(
        not(feature = "entra"),
        expect(unused_variables, reason = "nobody asks")
    )]
    pub async fn obtain(&self, give_up_at: Instant) -> Result<Option<Duration>, ServiceError> {
        #[cfg(feature = "entra")]
        if let Credential::Token(tokens) = &self.credential {
            return match tokens.token(give_up_at).await {
                Ok(_) => Ok(tokens.left()),
                Err(none) if none.refused => Err(ServiceError::Denied(none.why)),
                Err(none) => Err(ServiceError::Unsent(none.why)),
            };
        }
        Ok(None)
    }

    /// Shares the token with processes that will be forked; calls `make` only if there are tokens.
    #[cfg(feature = "entra")]
    pub fn with_shared_token(
        mut self,
        make: impl FnOnce() -> Option<Arc<dyn SharedMemory>>,
    ) -> Account {
        if let Credential::Token(tokens) = &self.credential
            && let Some(shared_token) = make()
        {
            let tokens = tokens.with_shared_token(shared_token);
            self.credential = Credential::Token(Arc::new(tokens));
        }
        self
    }

    /// Adds the credential's name to a refusal, and when it expired.
    #[must_use]
    pub fn naming_the_credential(&self, failure: Failure) -> Failure {
        match failure {
            Failure::Fatal { why, denied: true } => {
                let expired = self.sas_end().filter(|_| self.has_expired());
                let which = expired.map_or_else(|| self.credential_name(), |(text, _)| text);
                Failure::Fatal {
                    why: format!("{why} (used: {which})"),
                    denied: true,
                }
            }
            other => other,
        }
    }

    fn credential_name(&self) -> String {
        match self.source {
            Some(source) => format!("the {} from {source}", self.kind()),
            None => self.kind().to_owned(),
        }
    }

    fn has_expired(&self) -> bool {
        self.sas_end
            .is_some_and(|end| end < OffsetDateTime::now_utc())
    }

    /// Returns when the SAS ends, and whether that is within a week or past.
    pub fn sas_end(&self) -> Option<(String, bool)> {
        let end = self.sas_end?;
        let left = end - OffsetDateTime::now_utc();
        let name = self.credential_name();
        let ends = if left.is_positive() {
            "expires"
        } else {
            "expired"
        };
        let text = format!("{name} {ends} at {}", to_rfc3339(&end));
        Some((text, left < LAST_WEEK))
    }

    /// Logs the end of the SAS: once, and when its last week begins.
    pub fn tell(&self) {
        let known = self.sas_end();
        let level = 1 + u8::from(matches!(known, Some((_, true))));
        let told = self.told.fetch_max(level, Ordering::Relaxed);
        if told >= level {
            return;
        }
        if told == 0 && self.endpoint.scheme() == "http" && !is_loopback(&self.endpoint) {
            tracing::warn!(
                "plain http to {}: everyone on the network path can read and change the requests: use it for the \
                 emulator only",
                self.endpoint
            );
        }
        match known {
            Some((text, true)) => {
                tracing::warn!("{text}: replace it, and start every instance again");
            }
            Some((text, false)) => tracing::info!("{text}"),
            None => {}
        }
    }

    /// Name of the account, where known.
    pub fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// Address of the service, without a secret.
    pub fn endpoint(&self) -> &Url {
        &self.endpoint
    }

    /// Adds the SAS, if any, to `url`; the result is a secret.
    pub fn authorised(&self, url: &Url) -> Url {
        let mut url = url.clone();
        // In the URL, not in a policy: the clients copy it to every URL that they derive.
        if let Credential::Sas(sas) = &self.credential {
            url.set_query(Some(sas.secret()));
        }
        url
    }

    /// Options for the official clients: trafficcop's transport and signature.
    pub fn client_options(&self) -> ClientOptions {
        let signing: Option<Arc<dyn Policy>> = match &self.credential {
            Credential::Key { name, key } => Some(Arc::new(SharedKey::new(
                name.clone(),
                key.clone(),
                Arc::clone(&self.clock),
            ))),
            Credential::Sas(_) => None,
            #[cfg(feature = "entra")]
            Credential::Token(tokens) => Some(Arc::new(Bearer(Arc::clone(tokens)))),
        };
        let own_answers = Arc::new(OwnAnswers {
            clock: Arc::clone(&self.clock),
            client: Arc::clone(&self.client),
        });
        let transport: Arc<dyn HttpClient> = Arc::clone(&self.client) as _;
        #[cfg(debug_assertions)]
        let transport = self.network.clone().unwrap_or(transport);
        ClientOptions {
            // Last, so that what they sign is what is sent.
            per_try_policies: signing.into_iter().chain([own_answers as _]).collect(),
            // The clients' retries outlast a lease (74 to 82 s), and would repeat what may have been done.
            retry: RetryOptions::none(),
            transport: Some(Transport::new(transport)),
            ..ClientOptions::default()
        }
    }

    /// Replaces the network, for tests.
    #[cfg(debug_assertions)]
    #[must_use]
    pub fn over(self, network: Arc<dyn HttpClient>) -> Account {
        let network = Some(network);
        Account { network, ..self }
    }

    /// Clock that dates requests.
    pub fn service_clock(&self) -> Arc<ServiceClock> {
        Arc::clone(&self.clock)
    }

    /// Returns the account with a new client and clock, for a forked process.
    pub fn in_another_process(&self, clock: ServiceClock) -> Account {
        // The parent's last requests may still be on their way.
        let client = Arc::new(self.client.anew());
        let credential = match &self.credential {
            #[cfg(feature = "entra")]
            Credential::Token(tokens) => {
                Credential::Token(Arc::new(tokens.in_another_process(Arc::clone(&client))))
            }
            other => other.clone(),
        };
        Account {
            credential,
            client,
            clock: Arc::new(clock),
            ..self.clone()
        }
    }
}

/// Reason why the sources give no account, or a text no queue.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AccountError {
    /// A part is missing.
    #[error("{part} is missing: {advice}")]
    Missing {
        /// The part.
        part: String,
        /// Where it could come from.
        advice: String,
    },
    /// A part is not valid.
    #[error("{what} {why}")]
    Malformed {
        /// The variable, or the part of the connection string.
        what: String,
        /// The problem with it.
        why: String,
    },
    /// Two sources contradict each other.
    #[error("{first} and {second} contradict each other ({about}): unset one of them")]
    Contradiction {
        /// One source.
        first: String,
        /// The other.
        second: String,
        /// The difference.
        about: String,
    },
    /// Plain http to another machine: everyone on the way could take the lock.
    #[error("plain http is only allowed to this machine, not to {host}: use https")]
    PlainHttp {
        /// The host.
        host: String,
    },
}

pub(super) fn malformed(what: impl Into<String>, why: impl Into<String>) -> AccountError {
    AccountError::Malformed {
        what: what.into(),
        why: why.into(),
    }
}

pub(super) fn missing(part: impl Into<String>, advice: impl Into<String>) -> AccountError {
    AccountError::Missing {
        part: part.into(),
        advice: advice.into(),
    }
}

pub(super) fn contradiction(
    first: impl Into<String>,
    second: impl Into<String>,
    about: impl Into<String>,
) -> AccountError {
    AccountError::Contradiction {
        first: first.into(),
        second: second.into(),
        about: about.into(),
    }
}

/// A service of a storage account.
#[derive(Debug)]
pub struct Service {
    pub(super) word: &'static str,
    pub(super) part: &'static str,
    pub(super) variable: Option<&'static str>,
    pub(super) emulator: &'static str,
    // Connections to keep open: each message in work renews its lock; a lease needs one, and one for reads.
    pub(super) idle: usize,
}

/// Blob storage.
pub static BLOB: Service = Service {
    word: "blob",
    part: "BlobEndpoint",
    variable: None,
    emulator: "http://127.0.0.1:10000/devstoreaccount1",
    idle: 2,
};

/// Queue storage.
pub static QUEUE: Service = Service {
    word: "queue",
    part: "QueueEndpoint",
    variable: Some("AZURE_STORAGE_QUEUE_ENDPOINT"),
    emulator: "http://127.0.0.1:10001/devstoreaccount1",
    idle: 32,
};

#[cfg(test)]
mod tests;
