//! A storage account: where it is and how we prove who we are, from the environment variables the
//! Azure tools read, a URL with a SAS, or the emulator's well-known account.
//!
//! Called once at start. Must never show a secret: errors name variables and parts, not values.

use std::fmt;
use std::sync::Arc;

use azure_core::credentials::Secret;
use azure_core::http::policies::Policy;
use azure_core::http::{ClientOptions, RetryOptions, Transport};
use url::Url;

use super::address::{Service, SplitUrl, is_loopback, is_sas, malformed, safe, split_url};
use super::service_clock::ServiceClock;
use super::shared_key::SharedKey;
use super::transport::Client;

const STRING: &str = "AZURE_STORAGE_CONNECTION_STRING";
const ACCOUNT: &str = "AZURE_STORAGE_ACCOUNT";
const KEY: &str = "AZURE_STORAGE_KEY";
const SAS: &str = "AZURE_STORAGE_SAS_TOKEN";
const THE_URL: &str = "the URL";
const THE_FLAG: &str = "--emulator";

/// The emulator's account; not a secret, every Azurite has it.
const EMULATOR: &str = "devstoreaccount1";
const EMULATOR_KEY: &str =
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==";

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

#[derive(Clone)]
enum Credential {
    Key(Secret),
    /// A SAS, without the question mark.
    Sas(Secret),
}

/// A service of a storage account and the credential for it. `Debug` shows no secret.
#[derive(Clone)]
pub struct Account {
    name: Option<String>,
    credential: Credential,
    emulator: bool,
    service: Service,
    endpoint: Url,
    client: Arc<Client>,
    clock: Arc<ServiceClock>,
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
    /// Finds the blob service of the account in the environment (`get`), the flag `--emulator`, and
    /// the lock's URL if it was given as one. Sources that say the same overlap; sources that contradict each other
    /// are refused.
    ///
    /// # Errors
    /// A missing, unreadable or contradicting part, named.
    pub fn resolve(
        get: &dyn Fn(&str) -> Option<String>,
        emulator: bool,
        url: Option<&Url>,
    ) -> Result<Account, AccountError> {
        Account::of_service(Service::Blob, get, emulator, url)
    }

    /// The same for the account's queue service, and the queue's URL if it was given as one.
    ///
    /// # Errors
    /// A missing, unreadable or contradicting part, named.
    pub fn resolve_queue(
        get: &dyn Fn(&str) -> Option<String>,
        emulator: bool,
        url: Option<&Url>,
    ) -> Result<Account, AccountError> {
        Account::of_service(Service::Queue, get, emulator, url)
    }

    fn of_service(
        service: Service,
        get: &dyn Fn(&str) -> Option<String>,
        emulator: bool,
        url: Option<&Url>,
    ) -> Result<Account, AccountError> {
        let mut found = Found::about(service);
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
        if let Some((variable, text)) = service.variable().and_then(|v| Some((v, env(v)?))) {
            found.at(Found::endpoint(&text, variable)?, variable)?;
        }
        if emulator {
            found.emulator(url.is_some())?;
        }
        if let Some(url) = url {
            found.url(url)?;
        }
        found.finish(emulator)
    }

    /// What the credential is, for the log.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match &self.credential {
            Credential::Key(_) if self.emulator => "emulator key",
            Credential::Key(_) => "account key",
            Credential::Sas(_) => "SAS",
        }
    }

    /// The account's name, where it is known.
    #[must_use]
    pub fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// The address of the service, without a secret.
    #[must_use]
    pub fn endpoint(&self) -> &Url {
        &self.endpoint
    }

    /// `url` as it must be requested: with the SAS, if there is one. A secret.
    pub(crate) fn authorised(&self, url: &Url) -> Url {
        let mut url = url.clone();
        if let Credential::Sas(sas) = &self.credential {
            url.set_query(Some(sas.secret()));
        }
        url
    }

    /// Options for the official clients: our transport and signature, and no retries.
    pub(crate) fn client_options(&self) -> ClientOptions {
        let mut per_try: Vec<Arc<dyn Policy>> = Vec::new();
        if let (Credential::Key(key), Some(name)) = (&self.credential, &self.name) {
            let clock = Arc::clone(&self.clock);
            per_try.push(Arc::new(SharedKey::new(name.clone(), key.clone(), clock)));
        }
        ClientOptions {
            per_try_policies: per_try,
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
        Account {
            client: Arc::new(self.service.client(&self.endpoint)),
            clock: Arc::new(clock),
            ..self.clone()
        }
    }
}

/// A value, and which source gave it first.
type Said<T> = Option<(T, &'static str)>;

#[derive(Default)]
struct Found {
    /// What of the account is asked for.
    service: Service,
    /// A connection string was given.
    string: bool,
    name: Said<String>,
    key: Said<String>,
    sas: Said<String>,
    endpoint: Said<Url>,
    suffix: Option<String>,
    protocol: Option<String>,
}

fn agree<T: PartialEq>(
    slot: &mut Said<T>,
    value: T,
    source: &'static str,
    about: &str,
) -> Result<(), AccountError> {
    match slot {
        Some((known, first)) if *known != value => Err(AccountError::Contradiction {
            first: (*first).to_owned(),
            second: source.to_owned(),
            about: about.to_owned(),
        }),
        Some(_) => Ok(()),
        None => {
            *slot = Some((value, source));
            Ok(())
        }
    }
}

impl Found {
    fn about(service: Service) -> Found {
        Found {
            service,
            ..Found::default()
        }
    }

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
        agree(&mut self.key, key.to_owned(), source, "different keys")?;
        self.one_kind()
    }

    fn sas(&mut self, sas: &str, source: &'static str) -> Result<(), AccountError> {
        let sas = sas.strip_prefix('?').unwrap_or(sas);
        if !is_sas(sas) {
            return Err(malformed(
                format!("the SAS in {source}"),
                "has no signature (`sig=`): copy it again, whole",
            ));
        }
        agree(&mut self.sas, sas.to_owned(), source, "different SAS")?;
        self.one_kind()
    }

    fn one_kind(&self) -> Result<(), AccountError> {
        match (&self.key, &self.sas) {
            (Some((_, first)), Some((_, second))) => Err(AccountError::Contradiction {
                first: format!("the account key in {first}"),
                second: format!("the SAS in {second}"),
                about: "one credential is needed, not two".to_owned(),
            }),
            _ => Ok(()),
        }
    }

    /// The service is there.
    fn at(&mut self, endpoint: Url, source: &'static str) -> Result<(), AccountError> {
        agree(&mut self.endpoint, endpoint, source, self.service.differs())
    }

    fn endpoint(text: &str, what: &str) -> Result<Url, AccountError> {
        let url = Url::parse(text.trim_end_matches('/'))
            .map_err(|error| malformed(what, format!("is not a URL: {error}")))?;
        if url.query().is_some() || !url.username().is_empty() || url.password().is_some() {
            return Err(malformed(
                what,
                "carries a query or a user name: give a SAS as SharedAccessSignature",
            ));
        }
        safe(&url)?;
        Ok(url)
    }

    fn connection_string(&mut self, text: &str) -> Result<(), AccountError> {
        let part = self.service.part();
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
                    let url = Self::endpoint(self.service.emulator(), "UseDevelopmentStorage")?;
                    self.at(url, STRING)?;
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
                name if name.eq_ignore_ascii_case(part) => {
                    let url = Self::endpoint(value, &format!("{part} in {STRING}"))?;
                    self.at(url, STRING)?;
                }
                "endpointsuffix" => self.suffix = Some(value.to_owned()),
                "defaultendpointsprotocol" => self.protocol = Some(value.to_ascii_lowercase()),
                // The addresses of other services, and whatever else: not ours.
                _ => {}
            }
        }
        Ok(())
    }

    fn emulator(&mut self, url_given: bool) -> Result<(), AccountError> {
        self.name(EMULATOR, THE_FLAG)?;
        self.key(EMULATOR_KEY, THE_FLAG)?;
        match &self.endpoint {
            Some((known, first)) if !is_loopback(known) => Err(AccountError::Contradiction {
                first: (*first).to_owned(),
                second: THE_FLAG.to_owned(),
                about: "the emulator is on this machine".to_owned(),
            }),
            // A port of one's own stands; else the well-known one, unless the URL has one.
            None if !url_given => {
                let url = Self::endpoint(self.service.emulator(), THE_FLAG)?;
                self.endpoint = Some((url, THE_FLAG));
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
            if !same_account && self.endpoint.as_ref().is_none_or(|(_, s)| *s != THE_FLAG) {
                // A URL with a SAS needs nothing else; what is set for another account is not
                // about this lock.
                *self = Found::about(self.service);
            }
            self.sas(sas, THE_URL)?;
        }
        if let Some(name) = &url.account {
            agree(&mut self.name, name.clone(), THE_URL, "different accounts")?;
        }
        self.at(url.endpoint, THE_URL)
    }

    fn finish(self, emulator: bool) -> Result<Account, AccountError> {
        let missing = |part: &str, advice: &str| AccountError::Missing {
            part: part.to_owned(),
            advice: advice.to_owned(),
        };
        let whole = format!("copy the whole connection string into {STRING}");
        let by_name = || -> Result<Option<Url>, AccountError> {
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
            let suffix = self.suffix.as_deref().unwrap_or("core.windows.net");
            let text = format!("{protocol}://{name}.{}.{suffix}", self.service.word());
            Self::endpoint(&text, &format!("EndpointSuffix in {STRING}")).map(Some)
        };
        let endpoint = match &self.endpoint {
            Some((url, _)) => url.clone(),
            None => by_name()?.ok_or_else(|| {
                if self.string {
                    let part = format!("AccountName (or {})", self.service.part());
                    return missing(&part, &whole);
                }
                missing(
                    "the storage account",
                    &format!("set {STRING}, or {ACCOUNT} with {KEY} or {SAS}; or use --emulator"),
                )
            })?,
        };
        safe(&endpoint)?;
        let name = match (&self.name, split_url(&endpoint)?.account) {
            (Some((name, _)), _) => Some(name.clone()),
            (None, in_endpoint) => in_endpoint,
        };
        let credential = match (&self.key, &self.sas) {
            (_, Some((sas, _))) => Credential::Sas(Secret::new(sas.clone())),
            (Some((key, _)), None) => {
                if name.is_none() {
                    return Err(missing(
                        "the account's name",
                        &format!(
                            "an account key needs one: set {ACCOUNT}, or AccountName in {STRING}"
                        ),
                    ));
                }
                Credential::Key(Secret::new(key.clone()))
            }
            (None, None) if self.string => {
                return Err(missing("AccountKey (or SharedAccessSignature)", &whole));
            }
            (None, None) => {
                let hint = if is_loopback(&endpoint) {
                    "; for the emulator use --emulator"
                } else {
                    ""
                };
                return Err(missing(
                    "the credential",
                    &format!("set {KEY} or {SAS}, or a whole {STRING}{hint}"),
                ));
            }
        };
        let known_key =
            matches!(&self.key, Some((key, _)) if key == EMULATOR_KEY) && is_loopback(&endpoint);
        Ok(Account {
            name,
            credential,
            emulator: emulator || known_key,
            client: Arc::new(self.service.client(&endpoint)),
            clock: Arc::new(ServiceClock::new()),
            service: self.service,
            endpoint,
        })
    }
}

#[cfg(test)]
#[path = "account_tests.rs"]
mod tests;
