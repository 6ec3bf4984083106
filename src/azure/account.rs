//! A storage account: where it is and how we prove who we are, from the environment variables the
//! Azure tools read, a URL with a SAS, or the emulator's well-known account.
//!
//! Called once at start. Must never show a secret: errors name variables and parts, not values.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use azure_core::credentials::Secret;
use azure_core::http::{ClientOptions, RetryOptions, Transport};
use url::Url;

use super::account_error::{AccountError, contradiction, malformed, missing};
use super::address::{SplitUrl, is_loopback, is_sas, safe, split_url};
use super::ambient::Ambient;
use super::choice::{Advice, Kind, Offered, Wishes, choose};
use super::credential::Credential;
#[cfg(feature = "entra")]
use super::entra::Entra;
use super::errors::Trouble;
use super::service_clock::ServiceClock;
#[cfg(feature = "entra")]
use super::tokens::{Tokens, Vault};
use super::transport::Client;
use super::trust::Trust;
use crate::clock::Instant;

const STRING: &str = "AZURE_STORAGE_CONNECTION_STRING";
const ACCOUNT: &str = "AZURE_STORAGE_ACCOUNT";
const KEY: &str = "AZURE_STORAGE_KEY";
const SAS: &str = "AZURE_STORAGE_SAS_TOKEN";
const SUFFIX: &str = "AZURE_STORAGE_ENDPOINT_SUFFIX";
const THE_URL: &str = "the URL";
const THE_FLAG: &str = "--emulator";

/// The emulator's account; not a secret, every Azurite has it.
const EMULATOR: &str = "devstoreaccount1";
const EMULATOR_KEY: &str =
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==";
const EMULATOR_BLOB: &str = "http://127.0.0.1:10000/devstoreaccount1";
const EMULATOR_QUEUE: &str = "http://127.0.0.1:10001/devstoreaccount1";

/// A storage account and its credential. `Debug` shows no secret.
#[derive(Clone)]
pub struct Account {
    name: Option<String>,
    credential: Credential,
    emulator: bool,
    blob: Url,
    queue: Option<Url>,
    client: Arc<Client>,
    clock: Arc<ServiceClock>,
}

impl fmt::Debug for Account {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Account")
            .field("blob", &self.blob.as_str())
            .field("kind", &self.kind())
            .finish_non_exhaustive()
    }
}

impl Account {
    /// [`Account::find`] with no more wishes than the flag `--emulator`.
    ///
    /// # Errors
    /// A missing, unreadable or contradicting part, named.
    pub fn resolve(
        get: &dyn Fn(&str) -> Option<String>,
        emulator: bool,
        url: Option<&Url>,
    ) -> Result<Account, AccountError> {
        let wishes = Wishes {
            emulator,
            ..Wishes::default()
        };
        Account::find(get, &wishes, url)
    }

    /// Finds the account in the environment (`get`), what was typed, and the lock's URL if it was
    /// given as one. Sources that say the same overlap; sources that contradict each other are
    /// refused. Nothing is asked of anybody, and no certificate but those of `--ca-file` is read.
    ///
    /// # Errors
    /// A missing, unreadable or contradicting part, named.
    pub fn find(
        get: &dyn Fn(&str) -> Option<String>,
        wishes: &Wishes,
        url: Option<&Url>,
    ) -> Result<Account, AccountError> {
        let mut found = Found::default();
        let url = url.map(split_url).transpose()?;
        let env = |name: &str| {
            get(name)
                .map(|text| text.trim().to_owned())
                .filter(|text| !text.is_empty())
        };
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
        if let Some(suffix) = env(SUFFIX) {
            found.suffix(&suffix, SUFFIX)?;
        }
        if wishes.emulator {
            found.emulator(url.is_some())?;
        }
        if let Some(url) = url {
            found.url(url)?;
        }
        let trust = match &wishes.ca_file {
            Some(path) => Trust::read(path)?,
            None => Trust::default(),
        };
        found.finish(wishes, &Ambient::read(&env), trust)
    }

    /// What the credential is, for the log.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match &self.credential {
            Credential::Key(_) if self.emulator => "emulator key",
            credential => credential.kind(),
        }
    }

    /// Sees to it that there is what requests are to bear. For how long a token is good; `None`
    /// for a credential that is none.
    ///
    /// # Errors
    /// Why there is no token.
    pub async fn obtain(&self, give_up_at: Instant) -> Result<Option<Duration>, Trouble> {
        self.credential.obtain(give_up_at).await
    }

    /// The same account, with the present token kept in a vault (which is made only then) for a
    /// process that will be forked.
    #[cfg(feature = "entra")]
    #[must_use]
    pub fn with_vault(mut self, make: impl FnOnce() -> Option<Arc<dyn Vault>>) -> Account {
        if let Some(credential) = self.credential.with_vault(make) {
            self.credential = credential;
        }
        self
    }

    /// The account's name, where it is known.
    #[must_use]
    pub fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// The address of the blob service, without a secret.
    #[must_use]
    pub fn blob_endpoint(&self) -> &Url {
        &self.blob
    }

    /// The address of the queue service, where it is known; without a secret.
    #[must_use]
    pub fn queue_endpoint(&self) -> Option<&Url> {
        self.queue.as_ref()
    }

    /// `url` as it must be requested: with the SAS, if there is one. A secret.
    pub(crate) fn authorised(&self, url: &Url) -> Url {
        self.credential.authorised(url)
    }

    /// Options for the official clients: our transport and signature, and no retries.
    pub(crate) fn client_options(&self) -> ClientOptions {
        let signing = self.credential.policy(self.name(), &self.clock);
        ClientOptions {
            per_try_policies: signing.into_iter().collect(),
            retry: RetryOptions::none(),
            transport: Some(Transport::new(Arc::clone(&self.client) as _)),
            ..ClientOptions::default()
        }
    }

    /// The clock that requests are dated by.
    pub(crate) fn service_clock(&self) -> Arc<ServiceClock> {
        Arc::clone(&self.clock)
    }

    /// The same account with a client and a clock of its own, for a process that was forked.
    pub(crate) fn in_another_process(&self, clock: ServiceClock) -> Account {
        let client = Arc::new(self.client.anew());
        let credential = self.credential.in_another_process(&client);
        Account {
            credential,
            client,
            clock: Arc::new(clock),
            ..self.clone()
        }
    }
}

/// A value, and which source gave it first.
type Said<T> = Option<(T, &'static str)>;

#[derive(Default)]
struct Found {
    /// A connection string was given.
    string: bool,
    name: Said<String>,
    key: Said<String>,
    sas: Said<String>,
    blob: Said<Url>,
    queue: Said<Url>,
    suffix: Said<String>,
    protocol: Option<String>,
}

fn agree<T: PartialEq>(
    slot: &mut Said<T>,
    value: T,
    source: &'static str,
    about: &str,
) -> Result<(), AccountError> {
    match slot {
        Some((known, first)) if *known != value => Err(contradiction(*first, source, about)),
        Some(_) => Ok(()),
        None => {
            *slot = Some((value, source));
            Ok(())
        }
    }
}

impl Found {
    fn name(&mut self, name: &str, source: &'static str) -> Result<(), AccountError> {
        let fits = (3..=24).contains(&name.len())
            && name
                .bytes()
                .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
        if !fits {
            return Err(malformed(
                format!("the account name in {source}"),
                "is not 3 to 24 lower-case letters and digits",
            ));
        }
        agree(
            &mut self.name,
            name.to_owned(),
            source,
            "different accounts",
        )
    }

    fn key(&mut self, key: &str, source: &'static str) -> Result<(), AccountError> {
        if azure_core::base64::decode(key).map_or(true, |bytes| bytes.is_empty()) {
            return Err(malformed(
                format!("the account key in {source}"),
                "is not base64: copy it again, whole",
            ));
        }
        agree(&mut self.key, key.to_owned(), source, "different keys")
    }

    fn sas(&mut self, sas: &str, source: &'static str) -> Result<(), AccountError> {
        let sas = sas.strip_prefix('?').unwrap_or(sas);
        if !is_sas(sas) {
            return Err(malformed(
                format!("the SAS in {source}"),
                "has no signature (`sig=`): copy it again, whole",
            ));
        }
        agree(&mut self.sas, sas.to_owned(), source, "different SAS")
    }

    fn suffix(&mut self, suffix: &str, source: &'static str) -> Result<(), AccountError> {
        let label = |label: &str| {
            !label.is_empty()
                && label
                    .bytes()
                    .all(|b| b.is_ascii_alphanumeric() || b == b'-')
        };
        if !suffix.split('.').all(label) {
            return Err(malformed(
                format!("the endpoint suffix in {source}"),
                "is not a domain, as core.windows.net is one",
            ));
        }
        let suffix = suffix.to_owned();
        agree(&mut self.suffix, suffix, source, "different clouds")
    }

    fn endpoint(text: &str, part: &str) -> Result<Url, AccountError> {
        let url = Url::parse(text.trim_end_matches('/')).map_err(|error| {
            malformed(
                format!("{part} in {STRING}"),
                format!("is not a URL: {error}"),
            )
        })?;
        if url.query().is_some() || !url.username().is_empty() || url.password().is_some() {
            return Err(malformed(
                format!("{part} in {STRING}"),
                "carries a query or a user name: give a SAS as SharedAccessSignature",
            ));
        }
        safe(&url)?;
        Ok(url)
    }

    fn connection_string(&mut self, text: &str) -> Result<(), AccountError> {
        for field in text
            .split(';')
            .map(str::trim)
            .filter(|field| !field.is_empty())
        {
            let (name, value) = field
                .split_once('=')
                .ok_or_else(|| malformed(STRING, "has a part without `=`"))?;
            let value = value.trim();
            match name.trim().to_ascii_lowercase().as_str() {
                "usedevelopmentstorage" if value.eq_ignore_ascii_case("true") => {
                    self.name(EMULATOR, STRING)?;
                    self.key(EMULATOR_KEY, STRING)?;
                    let blob = Self::endpoint(EMULATOR_BLOB, "UseDevelopmentStorage")?;
                    let queue = Self::endpoint(EMULATOR_QUEUE, "UseDevelopmentStorage")?;
                    agree(&mut self.blob, blob, STRING, "different blob endpoints")?;
                    agree(&mut self.queue, queue, STRING, "different queue endpoints")?;
                }
                "usedevelopmentstorage" => {
                    return Err(malformed(
                        format!("UseDevelopmentStorage in {STRING}"),
                        "can only be `true`",
                    ));
                }
                "accountname" => self.name(value, STRING)?,
                "accountkey" => self.key(value, STRING)?,
                "sharedaccesssignature" => self.sas(value, STRING)?,
                "blobendpoint" => {
                    let url = Self::endpoint(value, "BlobEndpoint")?;
                    agree(&mut self.blob, url, STRING, "different blob endpoints")?;
                }
                "queueendpoint" => {
                    let url = Self::endpoint(value, "QueueEndpoint")?;
                    agree(&mut self.queue, url, STRING, "different queue endpoints")?;
                }
                "endpointsuffix" => self.suffix(value, STRING)?,
                "defaultendpointsprotocol" => self.protocol = Some(value.to_ascii_lowercase()),
                // TableEndpoint, FileEndpoint and whatever else: not ours.
                _ => {}
            }
        }
        Ok(())
    }

    fn emulator(&mut self, url_given: bool) -> Result<(), AccountError> {
        agree(
            &mut self.name,
            EMULATOR.to_owned(),
            THE_FLAG,
            "different accounts",
        )?;
        self.key(EMULATOR_KEY, THE_FLAG)?;
        match &self.blob {
            Some((blob, first)) if !is_loopback(blob) => {
                let about = "the emulator is on this machine";
                Err(contradiction(*first, THE_FLAG, about))
            }
            // A port of one's own stands; else the well-known one, unless the URL has one.
            None if !url_given => {
                self.blob = Url::parse(EMULATOR_BLOB).ok().map(|url| (url, THE_FLAG));
                self.queue = Url::parse(EMULATOR_QUEUE).ok().map(|url| (url, THE_FLAG));
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn url(&mut self, url: SplitUrl) -> Result<(), AccountError> {
        let same_account = match (&self.name, &url.account) {
            (Some((known, _)), Some(name)) => known == name,
            _ => true,
        };
        if let Some(sas) = &url.sas {
            if !same_account && self.blob.as_ref().is_none_or(|(_, s)| *s != THE_FLAG) {
                // A URL with a SAS needs nothing else; what is set for another account is not
                // about this lock.
                *self = Found::default();
            }
            self.sas(sas, THE_URL)?;
        }
        if let Some(name) = &url.account {
            agree(&mut self.name, name.clone(), THE_URL, "different accounts")?;
        }
        agree(
            &mut self.blob,
            url.endpoint,
            THE_URL,
            "different blob endpoints",
        )
    }

    fn finish(
        self,
        wishes: &Wishes,
        ambient: &Ambient,
        trust: Trust,
    ) -> Result<Account, AccountError> {
        let whole = format!("copy the whole connection string into {STRING}");
        let service = |service: &str| -> Result<Option<Url>, AccountError> {
            let Some((name, _)) = &self.name else {
                return Ok(None);
            };
            let protocol = self.protocol.as_deref().unwrap_or("https");
            if protocol != "https" && protocol != "http" {
                return Err(malformed(
                    format!("DefaultEndpointsProtocol in {STRING}"),
                    "is neither `https` nor `http`",
                ));
            }
            let suffix = self
                .suffix
                .as_ref()
                .map_or("core.windows.net", |said| &said.0);
            let text = format!("{protocol}://{name}.{service}.{suffix}");
            Self::endpoint(&text, "EndpointSuffix").map(Some)
        };
        let blob = match &self.blob {
            Some((url, _)) => url.clone(),
            None => service("blob")?.ok_or_else(|| {
                if self.string {
                    return missing("AccountName (or BlobEndpoint)", whole);
                }
                missing(
                    "the storage account",
                    format!("set {STRING}, or {ACCOUNT} with {KEY} or {SAS}; or use --emulator"),
                )
            })?,
        };
        safe(&blob)?;
        let queue = match (&self.queue, &self.blob) {
            (Some((url, _)), _) => Some(url.clone()),
            (None, None) => service("queue")?,
            (None, Some(_)) => None,
        };
        let name = match (&self.name, split_url(&blob)?.account) {
            (Some((name, _)), _) => Some(name.clone()),
            (None, in_endpoint) => in_endpoint,
        };
        let client = Arc::new(Client::new(blob.scheme() == "https").trusting(trust));
        let known_key =
            matches!(&self.key, Some((key, _)) if key == EMULATOR_KEY) && is_loopback(&blob);
        let offered = Offered {
            key: self.key.as_ref().map(|said| said.1),
            sas: self.sas.as_ref().map(|said| said.1),
            emulator: known_key,
            string: self.string,
            ambient,
            typed: &[THE_FLAG, THE_URL],
            advice: Advice {
                key: KEY,
                sas: SAS,
                string: STRING,
            },
        };
        let secret = |said: Said<String>| Secret::new(said.map(|said| said.0).unwrap_or_default());
        let credential = match choose(wishes.auth, &offered, &blob)? {
            Kind::Key if name.is_none() => {
                let advice =
                    format!("an account key needs one: set {ACCOUNT}, or AccountName in {STRING}");
                return Err(missing("the account's name", advice));
            }
            Kind::Key => Credential::Key(secret(self.key)),
            Kind::Sas => Credential::Sas(secret(self.sas)),
            #[cfg(feature = "entra")]
            Kind::Entra => {
                let entra = Entra::new(wishes.auth, ambient, &blob, Arc::clone(&client))?;
                Credential::Token(Arc::new(Tokens::new(Arc::new(entra), None)))
            }
            #[cfg(not(feature = "entra"))]
            Kind::Entra => return Err(missing("Entra ID", "it was left out of this build")),
        };
        Ok(Account {
            name,
            credential,
            emulator: wishes.emulator || known_key,
            client,
            clock: Arc::new(ServiceClock::new()),
            blob,
            queue,
        })
    }
}

#[cfg(test)]
#[path = "account_tests.rs"]
mod tests;
