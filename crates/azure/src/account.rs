//! A storage account and what is addressed in it: where it is and how we prove who we are, from the
//! environment variables the Azure tools read, a URL with a SAS, or the emulator's well-known account.
//!
//! Called once at start, and by the stores to take their URLs apart. Must never show a secret: errors
//! name variables and parts, not values.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

#[cfg(debug_assertions)]
use azure_core::http::HttpClient;
use azure_core::http::policies::Policy;
use azure_core::http::{ClientOptions, RetryOptions, Transport};
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

// How long before its end a SAS is warned of.
const LAST_WEEK: azure_core::time::Duration = azure_core::time::Duration::days(7);

/// A service of a storage account and the credential for it. `Debug` shows no secret.
#[derive(Clone)]
pub struct Account {
    pub(super) name: Option<String>,
    pub(super) credential: Credential,
    pub(super) emulator: bool,
    pub(super) endpoint: Url,
    pub(super) client: Arc<Client>,
    pub(super) clock: Arc<ServiceClock>,
    // When the SAS ends, and what of that was said: a level of [`Account::tell`].
    pub(super) sas_end: Option<OffsetDateTime>,
    pub(super) told: Arc<AtomicU8>,
    /// The variable or flag that brought a key or a SAS.
    pub(super) source: Option<&'static str>,
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
    /// Finds the blob service of the account in the environment (`get`), what was typed, and the
    /// lock's URL if it was given as one. Sources that say the same overlap; sources that contradict
    /// each other are refused. Nothing is asked of anybody, and no certificate but those of
    /// `--ca-file` is read.
    ///
    /// # Errors
    /// A missing, unreadable or contradicting part, named.
    pub fn find(
        get: &dyn Fn(&str) -> Option<String>,
        options: &AuthOptions,
        url: Option<&Url>,
    ) -> Result<Account, AccountError> {
        Account::of_service(&BLOB, get, options, url, None)
    }

    /// The same for the account's queue service, and the queue's URL if it was given as one.
    ///
    /// # Errors
    /// A missing, unreadable or contradicting part, named.
    pub fn find_queue(
        get: &dyn Fn(&str) -> Option<String>,
        options: &AuthOptions,
        url: Option<&Url>,
    ) -> Result<Account, AccountError> {
        Account::of_service(&QUEUE, get, options, url, None)
    }

    /// Finds the account of a program, which may have a credential of its own.
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
        // In this order: what a later source says of an account is judged by what the earlier ones
        // said, and a URL with a SAS may set all of them aside.
        let mut found = AccountBuilder::about(service);
        found.own = own;
        let url = url.map(split_url).transpose()?;
        let env = trimmed(get);
        for name in [STRING, ACCOUNT, KEY, SAS, SUFFIX] {
            refuse_quotes(name, env(name).as_deref())?;
        }
        if let Some(text) = env(STRING) {
            found.string = true;
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

    /// Whether the credential opens one blob and nothing beside it: a SAS of the service's, not of
    /// the account's.
    pub fn is_for_one_blob(&self) -> bool {
        let Credential::Sas(sas) = &self.credential else {
            return false;
        };
        let mut pairs = url::form_urlencoded::parse(sas.secret().as_bytes());
        pairs.any(|(name, value)| name == "sr" && value == "b")
    }

    /// What the credential is, for the log.
    pub fn kind(&self) -> &'static str {
        match &self.credential {
            Credential::Key { .. } if self.emulator => "emulator key",
            Credential::Key { .. } => "account key",
            Credential::Sas(_) => "SAS",
            #[cfg(feature = "entra")]
            Credential::Token(tokens) => tokens.kind(),
        }
    }

    /// Sees to it that there is what requests are to bear. For how long a token is good; `None`
    /// for a credential that is none.
    ///
    /// # Errors
    /// Why there is no token.
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

    /// The same account, with the present token kept in memory (which is made only then) for a
    /// process that will be forked.
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

    /// A refusal that names the credential which was refused, and when it expired.
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

    /// The credential and where it is from.
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

    /// When the SAS ends, if there is one, for people; `true`: within a week, or it has ended.
    pub fn sas_end(&self) -> Option<(String, bool)> {
        let end = self.sas_end?;
        let left = end - OffsetDateTime::now_utc();
        let ends = if left.is_positive() {
            "expires"
        } else {
            "expired"
        };
        let soon = left < LAST_WEEK;
        Some((
            format!("{} {ends} at {}", self.credential_name(), to_rfc3339(&end)),
            soon,
        ))
    }

    /// Says in the log what is to be known of the credential: once, and when the last week of a SAS begins.
    pub fn tell(&self) {
        let known = self.sas_end();
        let level = if known.as_ref().is_some_and(|(_, soon)| *soon) {
            2
        } else {
            1
        };
        let told = self.told.fetch_max(level, Ordering::Relaxed);
        if told >= level {
            return;
        }
        if told == 0 && self.endpoint.scheme() == "http" && !is_loopback(&self.endpoint) {
            tracing::warn!(
                "plain http to {}: everyone on the network path can read and change the requests: use it for the emulator only",
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

    /// The account's name, where it is known.
    pub fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// The address of the service, without a secret.
    pub fn endpoint(&self) -> &Url {
        &self.endpoint
    }

    /// `url` as it must be requested: with the SAS, if there is one. A secret.
    pub fn authorised(&self, url: &Url) -> Url {
        let mut url = url.clone();
        // In the URL, and not by a policy: the clients take it from there to all that they derive.
        if let Credential::Sas(sas) = &self.credential {
            url.set_query(Some(sas.secret()));
        }
        url
    }

    /// Options for the official clients: our transport and signature.
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
        ClientOptions {
            // The last of all, so that what they sign is what is sent. Every call has an id of its own by then.
            per_try_policies: signing.into_iter().chain([own_answers as _]).collect(),
            // Theirs outlast a lease (74 to 82 s were measured), and would repeat what may have been done.
            retry: RetryOptions::none(),
            transport: Some(Transport::new(Arc::clone(&self.client) as _)),
            ..ClientOptions::default()
        }
    }

    /// The same account, whose requests go to this and not to the network: for tests.
    #[cfg(debug_assertions)]
    #[must_use]
    pub fn over(self, network: Arc<dyn HttpClient>) -> Account {
        let client = Arc::new(Client::simulated(network));
        Account { client, ..self }
    }

    /// The clock that requests are dated by.
    pub fn service_clock(&self) -> Arc<ServiceClock> {
        Arc::clone(&self.clock)
    }

    /// The same account with a client and a clock of its own, for a process that was forked.
    pub fn in_another_process(&self, clock: ServiceClock) -> Account {
        // Nothing is shared with the parent, whose last requests may still be on their way.
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

/// Why no account could be made of what was given. One line each, what to do included.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AccountError {
    /// Something is not there.
    #[error("{part} is missing: {advice}")]
    Missing {
        /// What.
        part: String,
        /// Where it could come from.
        advice: String,
    },
    /// Something cannot be read.
    #[error("{what} {why}")]
    Malformed {
        /// The variable, or the part of the connection string.
        what: String,
        /// What is wrong with it.
        why: String,
    },
    /// Two sources say different things.
    #[error("{first} and {second} contradict each other ({about}): unset one of them")]
    Contradiction {
        /// One source.
        first: String,
        /// The other.
        second: String,
        /// What they differ in.
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

/// A service of a storage account, and what differs from one to the other.
#[derive(Debug)]
pub struct Service {
    // In the names of hosts.
    pub(super) word: &'static str,
    // Its address in a connection string.
    pub(super) part: &'static str,
    // The environment variable for its address, where there is one.
    pub(super) variable: Option<&'static str>,
    // Its address in an emulator that was started without options.
    pub(super) emulator: &'static str,
    // What two sources contradict each other in.
    pub(super) differs: &'static str,
    // How many connections are kept: every message that is worked on renews by itself; a lease is
    // one, and a second serves a look beside it.
    pub(super) idle: usize,
}

/// Blob storage.
pub static BLOB: Service = Service {
    word: "blob",
    part: "BlobEndpoint",
    variable: None,
    emulator: "http://127.0.0.1:10000/devstoreaccount1",
    differs: "different blob endpoints",
    idle: 2,
};

/// Queue storage.
pub static QUEUE: Service = Service {
    word: "queue",
    part: "QueueEndpoint",
    variable: Some("AZURE_STORAGE_QUEUE_ENDPOINT"),
    emulator: "http://127.0.0.1:10001/devstoreaccount1",
    differs: "different queue endpoints",
    idle: 32,
};

#[cfg(test)]
mod tests;
