//! Builder of an account: sources that agree overlap, sources that contradict each other are refused.

use std::sync::Arc;

use azure_core::credentials::Secret;
use url::Url;

use super::account::{Account, AccountError, Service, contradiction, malformed, missing};
use super::address::{SplitUrl, end_of, is_loopback, is_sas, names_the_emulator, safe, split_url};
use super::credential::{
    Auth, AuthOptions, Credential, Env, Found, Offered, STORAGE, choose, connection_string,
    unknown_part,
};
use super::proxy::Proxy;
use super::transport::Client;
use super::variables::{ENDPOINT, MODE};

/// Variable with a connection string.
pub const STRING: &str = "AZURE_STORAGE_CONNECTION_STRING";
/// Variable with an account's name.
pub const ACCOUNT: &str = "AZURE_STORAGE_ACCOUNT";
/// Variable with an account key.
pub const KEY: &str = "AZURE_STORAGE_KEY";
/// Variable with a shared access signature.
pub const SAS: &str = "AZURE_STORAGE_SAS_TOKEN";
pub(super) const SUFFIX: &str = "AZURE_STORAGE_ENDPOINT_SUFFIX";
pub(super) const THE_URL: &str = "the URL";
pub(super) const THE_FLAG: &str = "--emulator";

/// Account of the emulator; every Azurite has this key.
pub(super) const EMULATOR: &str = "devstoreaccount1";
pub(super) const EMULATOR_KEY: &str =
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==";

type Result<T> = std::result::Result<T, AccountError>;
type Source = &'static str;
type Setting<T> = Option<(T, Source)>;

pub(super) struct AccountBuilder {
    service: &'static Service,
    pub(super) string: bool,
    name: Setting<String>,
    key: Setting<String>,
    sas: Setting<String>,
    endpoint: Setting<Url>,
    suffix: Setting<String>,
    protocol: Option<String>,
    // The program's; no variable or URL can hold one.
    pub(super) own: Option<Credential>,
}

fn agree<T: PartialEq>(slot: &mut Setting<T>, value: T, source: Source, about: &str) -> Result<()> {
    match slot {
        Some((known, first)) if *known != value => Err(contradiction(*first, source, about)),
        Some(_) => Ok(()),
        None => {
            *slot = Some((value, source));
            Ok(())
        }
    }
}

impl AccountBuilder {
    pub(super) fn about(service: &'static Service) -> AccountBuilder {
        AccountBuilder {
            service,
            string: false,
            name: None,
            key: None,
            sas: None,
            endpoint: None,
            suffix: None,
            protocol: None,
            own: None,
        }
    }

    pub(super) fn name(&mut self, name: &str, source: Source) -> Result<()> {
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

    pub(super) fn key(&mut self, key: &str, source: Source) -> Result<()> {
        // Otherwise only the first request would report it.
        if azure_core::base64::decode(key).map_or(true, |bytes| bytes.is_empty()) {
            return Err(malformed(
                format!("the account key in {source}"),
                "is not base64: copy it again, whole",
            ));
        }
        agree(&mut self.key, key.to_owned(), source, "different keys")
    }

    pub(super) fn sas(&mut self, sas: &str, source: Source) -> Result<()> {
        // Azure's portal shows a question mark, the CLI none.
        let sas = sas.strip_prefix('?').unwrap_or(sas);
        if !is_sas(sas) {
            return Err(malformed(
                format!("the SAS in {source}"),
                "has no signature ('sig='): copy it again, whole",
            ));
        }
        agree(&mut self.sas, sas.to_owned(), source, "different SAS")
    }

    pub(super) fn suffix(&mut self, suffix: &str, source: Source) -> Result<()> {
        // It becomes part of an address that receives the key's signatures.
        let label = |label: &str| {
            !label.is_empty()
                && label
                    .bytes()
                    .all(|b| b.is_ascii_alphanumeric() || b == b'-')
        };
        if !suffix.split('.').all(label) {
            return Err(malformed(
                format!("the endpoint suffix in {source}"),
                "is not a domain like core.windows.net",
            ));
        }
        let suffix = suffix.to_owned();
        agree(&mut self.suffix, suffix, source, "different clouds")
    }

    pub(super) fn at(&mut self, endpoint: Url, source: Source) -> Result<()> {
        agree(&mut self.endpoint, endpoint, source, self.service.differs)
    }

    pub(super) fn endpoint(text: &str, what: &str) -> Result<Url> {
        let url = Url::parse(text.trim_end_matches('/'))
            .map_err(|error| malformed(what, format!("is not a URL: {error}")))?;
        // No address has a `=` in its path, but a pasted SAS has, and messages would show it.
        let query = url.query().is_some() || url.path().contains('=');
        if query || !url.username().is_empty() || url.password().is_some() {
            return Err(malformed(
                what,
                "has a query or a user name: write a SAS as SharedAccessSignature",
            ));
        }
        safe(&url)?;
        Ok(url)
    }

    pub(super) fn connection_string(&mut self, text: &str) -> Result<()> {
        let part = self.service.part;
        for (name, value) in connection_string(text, STRING)? {
            match name.as_str() {
                "usedevelopmentstorage" if value.eq_ignore_ascii_case("true") => {
                    self.name(EMULATOR, STRING)?;
                    self.key(EMULATOR_KEY, STRING)?;
                    let url = Self::endpoint(self.service.emulator, "UseDevelopmentStorage")?;
                    self.at(url, STRING)?;
                }
                "usedevelopmentstorage" => {
                    return Err(malformed(
                        format!("UseDevelopmentStorage in {STRING}"),
                        "can only be 'true'",
                    ));
                }
                "accountname" => self.name(value, STRING)?,
                "accountkey" => self.key(value, STRING)?,
                "sharedaccesssignature" => self.sas(value, STRING)?,
                name if name.eq_ignore_ascii_case(part) => {
                    let url = Self::endpoint(value, &format!("{part} in {STRING}"))?;
                    self.at(url, STRING)?;
                }
                "endpointsuffix" => self.suffix(value, STRING)?,
                "defaultendpointsprotocol" => self.protocol = Some(value.to_ascii_lowercase()),
                "blobendpoint" | "queueendpoint" | "tableendpoint" | "fileendpoint"
                | "dfsendpoint" | "webendpoint" => {}
                // A replica is read-only.
                part if part.ends_with("secondaryendpoint") => {}
                part => return Err(unknown_part(part, STRING)),
            }
        }
        Ok(())
    }

    pub(super) fn emulator(&mut self, url_given: bool) -> Result<()> {
        self.name(EMULATOR, THE_FLAG)?;
        self.key(EMULATOR_KEY, THE_FLAG)?;
        match &self.endpoint {
            Some((known, first)) if !is_loopback(known) && !names_the_emulator(known) => {
                let about = "it does not have the emulator's account";
                Err(contradiction(*first, THE_FLAG, about))
            }
            // A port that the user set stays.
            None if !url_given => {
                let url = Self::endpoint(self.service.emulator, THE_FLAG)?;
                self.endpoint = Some((url, THE_FLAG));
                Ok(())
            }
            _ => Ok(()),
        }
    }

    pub(super) fn url(&mut self, url: SplitUrl) -> Result<()> {
        let same_account = match (&self.name, &url.account) {
            (Some((known, _)), Some(name)) => known == name,
            _ => true,
        };
        if let Some(sas) = &url.sas {
            if !same_account && self.endpoint.as_ref().is_none_or(|(_, s)| *s != THE_FLAG) {
                // Settings for another account are not about this lock.
                *self = AccountBuilder {
                    own: self.own.take(),
                    ..AccountBuilder::about(self.service)
                };
            }
            self.sas(sas, THE_URL)?;
        }
        if let Some(name) = &url.account {
            agree(&mut self.name, name.clone(), THE_URL, "different accounts")?;
        }
        self.at(url.endpoint, THE_URL)
    }

    pub(super) fn finish(self, options: &AuthOptions, env: &Env<'_>) -> Result<Account> {
        let whole = format!("copy the whole connection string into {STRING}");
        let by_name = || -> Result<Option<Url>> {
            let Some((name, _)) = &self.name else {
                return Ok(None);
            };
            let protocol = self.protocol.as_deref().unwrap_or("https");
            if protocol != "https" && protocol != "http" {
                return Err(malformed(
                    format!("DefaultEndpointsProtocol in {STRING}"),
                    "is neither 'https' nor 'http'",
                ));
            }
            let suffix = self
                .suffix
                .as_ref()
                .map_or("core.windows.net", |said| &said.0);
            let text = format!("{protocol}://{name}.{}.{suffix}", self.service.word);
            Self::endpoint(&text, "EndpointSuffix").map(Some)
        };
        let endpoint = match &self.endpoint {
            Some((url, _)) => url.clone(),
            None => by_name()?.ok_or_else(|| {
                if self.string {
                    let part = format!("AccountName (or {})", self.service.part);
                    return missing(part, &*whole);
                }
                let how = match options.auth {
                    Auth::Entra | Auth::Workload | Auth::Managed | Auth::Cli => format!(
                        "{} needs its name: set {ACCOUNT}, or pass the whole URL",
                        options.auth.flag()
                    ),
                    Auth::Auto | Auth::Key | Auth::Sas => {
                        format!(
                            "set {STRING}, or {ACCOUNT} with {KEY} or {SAS}, or alone for Entra ID \
                                 (an empty one counts as unset; cron and sudo drop a shell's); or use --emulator"
                        )
                    }
                };
                missing("the storage account", how)
            })?,
        };
        if self.endpoint.is_none() && env(ENDPOINT).is_some() {
            let how = format!("is not read: pass the whole URL, or set {STRING}; or unset it");
            return Err(malformed(ENDPOINT, how));
        }
        // Again: the address may consist of parts.
        safe(&endpoint)?;
        let name = match (&self.name, split_url(&endpoint)?.account) {
            (Some((name, _)), _) => Some(name.clone()),
            (None, in_endpoint) => in_endpoint,
        };
        let https = endpoint.scheme() == "https";
        let proxy = match https {
            true => Proxy::find(env, &endpoint)?,
            false => None,
        };
        let client = Client::new(https, self.service.idle, options.trust()?, proxy);
        let client = Arc::new(client);
        // Name and key of the emulator are public: only they may go over plain http to another host.
        let is_local = is_loopback(&endpoint);
        let known_key = matches!(&self.key, Some((key, _)) if key == EMULATOR_KEY)
            && (is_local || name.as_deref() == Some(EMULATOR));
        let unsafe_host = (endpoint.scheme() == "http" && !is_local)
            .then(|| endpoint.host_str().unwrap_or_default().to_owned());
        if let (Some(host), false) = (&unsafe_host, known_key) {
            let host = host.clone();
            return Err(AccountError::PlainHttp { host });
        }
        let sources = (
            self.key.as_ref().map(|(_, source)| *source),
            self.sas.as_ref().map(|(_, source)| *source),
        );
        let (auth, by_key) = match env(MODE).as_deref() {
            Some(_) if options.auth != Auth::Auto || known_key || self.own.is_some() => {
                (options.auth, false)
            }
            Some(_) if sources.1 == Some(THE_URL) => (Auth::Auto, false),
            None => (options.auth, false),
            Some("login") => (Auth::Entra, false),
            Some("key") => (Auth::Auto, true),
            Some(_) => return Err(malformed(MODE, "is neither 'key' nor 'login'")),
        };
        let flag = match auth == options.auth {
            true => auth.flag(),
            false => "AZURE_STORAGE_AUTH_MODE=login".to_owned(),
        };
        let needs = |what, variable| {
            let how = format!("{flag} needs one: set {variable}, or a whole {STRING}");
            Err(missing(what, how))
        };
        let offered = Offered {
            key: match self.key {
                None => needs("the account key", KEY),
                Some((key, source)) => Ok(Found {
                    credential: Credential::Key {
                        name: name.clone().unwrap_or_default(),
                        key: Secret::new(key),
                    },
                    what: format!("the account key in {source}"),
                    typed: source == THE_FLAG,
                    // The emulator's key opens nothing else, so an identity does not contradict it.
                    is_meant: known_key,
                }),
            },
            sas: match self.sas {
                None => needs("the SAS", SAS),
                Some((sas, source)) => Ok(Found {
                    credential: Credential::Sas(Secret::new(sas)),
                    what: format!("the SAS in {source}"),
                    typed: source == THE_URL,
                    is_meant: source == THE_URL,
                }),
            },
            token: match endpoint.scheme() {
                "https" => Ok(()),
                _ => Err(missing(
                    "https",
                    format!(
                        "{flag}: a token is never sent over plain http, and the endpoint is {endpoint}"
                    ),
                )),
            },
            needed: match endpoint.scheme() {
                _ if self.string => Err(missing("AccountKey (or SharedAccessSignature)", whole)),
                "https" => Ok(()),
                _ => Err(missing(
                    "the credential",
                    format!(
                        "set {KEY} or {SAS}, or a whole {STRING}; for the emulator use --emulator"
                    ),
                )),
            },
        };
        let chosen = match (self.own, &offered.key, &offered.sas) {
            (None, ..) => choose(auth, offered, env).and_then(|chosen| match chosen {
                None if by_key => Err(missing(
                    "the account key",
                    format!("{MODE} says 'key': set {KEY} or a whole {STRING}, or unset {MODE}"),
                )),
                chosen => Ok(chosen),
            }),
            (Some(own), Err(_), Err(_)) => offered.token.map(|()| Some(own)),
            (Some(_), Ok(found), _) | (Some(_), _, Ok(found)) => {
                let own = "the token credential";
                Err(contradiction(
                    found.what.clone(),
                    own,
                    "one credential is needed, not two",
                ))
            }
        };
        let credential = match chosen? {
            Some(Credential::Key { .. }) if name.is_none() => {
                let advice =
                    format!("an account key needs one: set {ACCOUNT}, or AccountName in {STRING}");
                return Err(missing("the account's name", advice));
            }
            Some(credential) => credential,
            None => {
                let client = Arc::clone(&client);
                Credential::entra(auth, env, &endpoint, client, STORAGE)?
            }
        };
        if let (Some(host), false) = (unsafe_host, matches!(credential, Credential::Key { .. })) {
            return Err(AccountError::PlainHttp { host });
        }
        let (source, sas_end) = match &credential {
            Credential::Key { .. } => (sources.0, None),
            Credential::Sas(sas) => (sources.1, end_of(sas.secret())),
            #[cfg(feature = "entra")]
            Credential::Token(_) => (None, None),
        };
        Ok(Account {
            source,
            sas_end,
            told: Arc::default(),
            name,
            credential,
            emulator: options.emulator || known_key,
            client,
            clock: Arc::default(),
            endpoint,
        })
    }
}
