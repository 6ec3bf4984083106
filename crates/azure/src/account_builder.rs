//! Builder of an account: sources that agree overlap, sources that contradict each other are refused.

use std::sync::Arc;

use azure_core::credentials::Secret;
use url::Url;

use super::account::{Account, AccountError, Service, contradiction, malformed, missing};
use super::address::{
    SplitUrl, end_of, is_loopback, is_sas, names_the_emulator, parsed, safe, split_url,
};
use super::credential::{
    Auth, AuthOptions, Credential, Env, Found, Offered, STORAGE, choose,
    parts_of_connection_string, unknown_part,
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
const WHOLE: &str = "copy the whole connection string into AZURE_STORAGE_CONNECTION_STRING";
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
    string: bool,
    name: Setting<String>,
    key: Setting<String>,
    sas: Setting<String>,
    endpoint: Setting<Url>,
    suffix: Setting<String>,
    protocol: Option<String>,
    // The program's; no variable or URL can hold one.
    own: Option<Credential>,
}

fn demand(fits: bool, what: &str, source: Source, why: &str) -> Result<()> {
    match fits {
        true => Ok(()),
        false => Err(malformed(format!("{what} in {source}"), why)),
    }
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
    pub(super) fn new(service: &'static Service, own: Option<Credential>) -> AccountBuilder {
        AccountBuilder {
            service,
            string: false,
            name: None,
            key: None,
            sas: None,
            endpoint: None,
            suffix: None,
            protocol: None,
            own,
        }
    }

    pub(super) fn name(&mut self, name: &str, source: Source) -> Result<()> {
        let of_name = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
        let fits = (3..=24).contains(&name.len()) && name.bytes().all(of_name);
        let why = "is not 3 to 24 lower-case letters and digits";
        demand(fits, "the account name", source, why)?;
        let name = name.to_owned();
        agree(&mut self.name, name, source, "different accounts")
    }

    pub(super) fn key(&mut self, key: &str, source: Source) -> Result<()> {
        // Otherwise only the first request would report it.
        let fits = azure_core::base64::decode(key).is_ok_and(|bytes| !bytes.is_empty());
        let why = "is not base64: copy it again, whole";
        demand(fits, "the account key", source, why)?;
        agree(&mut self.key, key.to_owned(), source, "different keys")
    }

    pub(super) fn sas(&mut self, sas: &str, source: Source) -> Result<()> {
        // Azure's portal shows a question mark, the CLI none.
        let sas = sas.strip_prefix('?').unwrap_or(sas);
        let why = "has no signature ('sig='): copy it again, whole";
        demand(is_sas(sas), "the SAS", source, why)?;
        agree(&mut self.sas, sas.to_owned(), source, "different SAS")
    }

    pub(super) fn suffix(&mut self, suffix: &str, source: Source) -> Result<()> {
        // It becomes part of an address that receives the key's signatures.
        let of_label = |b: u8| b.is_ascii_alphanumeric() || b == b'-';
        let is_label = |label: &str| !label.is_empty() && label.bytes().all(of_label);
        let fits = suffix.split('.').all(is_label);
        let why = "is not a domain like core.windows.net";
        demand(fits, "the endpoint suffix", source, why)?;
        let suffix = suffix.to_owned();
        agree(&mut self.suffix, suffix, source, "different clouds")
    }

    pub(super) fn at(&mut self, endpoint: Url, source: Source) -> Result<()> {
        let about = format!("different {} endpoints", self.service.word);
        agree(&mut self.endpoint, endpoint, source, &about)
    }

    pub(super) fn endpoint(text: &str, what: &str) -> Result<Url> {
        let url = parsed(text.trim_end_matches('/'), what)?;
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
        self.string = true;
        let part = self.service.part;
        for (name, value) in parts_of_connection_string(text, STRING)? {
            match name.as_str() {
                "usedevelopmentstorage" => {
                    let is_true = value.eq_ignore_ascii_case("true");
                    demand(
                        is_true,
                        "UseDevelopmentStorage",
                        STRING,
                        "can only be 'true'",
                    )?;
                    self.name(EMULATOR, STRING)?;
                    self.key(EMULATOR_KEY, STRING)?;
                    let url = Self::endpoint(self.service.emulator, "UseDevelopmentStorage")?;
                    self.at(url, STRING)?;
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
                *self = AccountBuilder::new(self.service, self.own.take());
            }
            self.sas(sas, THE_URL)?;
        }
        if let Some(name) = &url.account {
            agree(&mut self.name, name.clone(), THE_URL, "different accounts")?;
        }
        self.at(url.endpoint, THE_URL)
    }

    /// Returns the address: the one that is set, else by the account's name.
    fn address(&self, auth: Auth, env: &Env<'_>) -> Result<Url> {
        if let Some((url, _)) = &self.endpoint {
            return Ok(url.clone());
        }
        let Some((name, _)) = &self.name else {
            if self.string {
                return Err(missing(
                    format!("AccountName (or {})", self.service.part),
                    WHOLE,
                ));
            }
            let how = match auth {
                Auth::Entra | Auth::Workload | Auth::Managed | Auth::Cli => format!(
                    "{} needs its name: set {ACCOUNT}, or pass the whole URL",
                    auth.flag()
                ),
                Auth::Auto | Auth::Key | Auth::Sas => format!(
                    "set {STRING}, or {ACCOUNT} with {KEY} or {SAS}, or alone for Entra ID (an empty one counts as \
                     unset; cron and sudo drop a shell's); or use --emulator"
                ),
            };
            return Err(missing("the storage account", how));
        };
        let protocol = self.protocol.as_deref().unwrap_or("https");
        let fits = matches!(protocol, "https" | "http");
        let why = "is neither 'https' nor 'http'";
        demand(fits, "DefaultEndpointsProtocol", STRING, why)?;
        let suffix = self
            .suffix
            .as_ref()
            .map_or("core.windows.net", |set| &set.0);
        let text = format!("{protocol}://{name}.{}.{suffix}", self.service.word);
        let url = Self::endpoint(&text, "EndpointSuffix")?;
        if env(ENDPOINT).is_some() {
            let how = format!("is not read: pass the whole URL, or set {STRING}; or unset it");
            return Err(malformed(ENDPOINT, how));
        }
        Ok(url)
    }

    pub(super) fn finish(self, options: &AuthOptions, env: &Env<'_>) -> Result<Account> {
        let endpoint = self.address(options.auth, env)?;
        // Again: the address may consist of parts.
        safe(&endpoint)?;
        let in_endpoint = split_url(&endpoint)?.account;
        let name = self.name.map(|(name, _)| name).or(in_endpoint);
        let https = endpoint.scheme() == "https";
        let proxy = match https {
            true => Proxy::find(env, &endpoint)?,
            false => None,
        };
        let client = Client::new(https, self.service.idle, options.ca_certificates()?, proxy);
        let client = Arc::new(client);
        // Name and key of the emulator are public: only they may go over plain http to another host.
        let is_local = is_loopback(&endpoint);
        let known_key = matches!(&self.key, Some((key, _)) if key == EMULATOR_KEY)
            && (is_local || name.as_deref() == Some(EMULATOR));
        let is_exposed = !https && !is_local;
        let refuse_plain_http = || {
            let host = endpoint.host_str().unwrap_or_default().to_owned();
            Err(AccountError::PlainHttp { host })
        };
        if is_exposed && !known_key {
            return refuse_plain_http();
        }
        let sas_in_url = matches!(&self.sas, Some((_, source)) if *source == THE_URL);
        let is_chosen = options.auth != Auth::Auto || known_key || self.own.is_some() || sas_in_url;
        let mode = env(MODE).filter(|_| !is_chosen);
        let (auth, flag) = match mode.as_deref() {
            None | Some("key") => (options.auth, options.auth.flag()),
            Some("login") => (Auth::Entra, format!("{MODE}=login")),
            Some(_) => return Err(malformed(MODE, "is neither 'key' nor 'login'")),
        };
        let needs = |what, variable| {
            let how = format!("{flag} needs one: set {variable}, or a whole {STRING}");
            missing(what, how)
        };
        let key = self.key.map(|(key, source)| Found {
            credential: Credential::Key {
                name: name.clone().unwrap_or_default(),
                key: Secret::new(key),
            },
            kind: "the account key",
            source,
            is_explicit: source == THE_FLAG,
            // The emulator's key opens nothing else, so an identity does not contradict it.
            overrides_entra: known_key,
        });
        let sas = self.sas.map(|(sas, source)| Found {
            credential: Credential::Sas(Secret::new(sas)),
            kind: "the SAS",
            source,
            is_explicit: sas_in_url,
            overrides_entra: sas_in_url,
        });
        let offered = Offered {
            key: key.ok_or_else(|| needs("the account key", KEY)),
            sas: sas.ok_or_else(|| needs("the SAS", SAS)),
            token: match https {
                true => Ok(()),
                false => Err(missing(
                    "https",
                    format!(
                        "{flag}: a token is never sent over plain http, and the endpoint is {endpoint}"
                    ),
                )),
            },
            entra_by_default: match https {
                _ if self.string => Err(missing("AccountKey (or SharedAccessSignature)", WHOLE)),
                true => Ok(()),
                false => Err(missing(
                    "the credential",
                    format!(
                        "set {KEY} or {SAS}, or a whole {STRING}; for the emulator use --emulator"
                    ),
                )),
            },
        };
        let found = match &self.own {
            None => choose(auth, offered, env)?,
            Some(_) => match offered.key.or(offered.sas) {
                Ok(found) => {
                    let own = "the token credential";
                    let about = "one credential is needed, not two";
                    return Err(contradiction(found.what(), own, about));
                }
                Err(_) => offered.token.map(|()| None)?,
            },
        };
        let source = found.as_ref().map(|found| found.source);
        let credential = match (found.map(|found| found.credential), self.own) {
            (Some(Credential::Key { .. }), _) if name.is_none() => {
                let advice =
                    format!("an account key needs one: set {ACCOUNT}, or AccountName in {STRING}");
                return Err(missing("the account's name", advice));
            }
            (Some(credential), _) | (None, Some(credential)) => credential,
            (None, None) if mode.as_deref() == Some("key") => {
                let how =
                    format!("{MODE} says 'key': set {KEY} or a whole {STRING}, or unset {MODE}");
                return Err(missing("the account key", how));
            }
            (None, None) => {
                let client = Arc::clone(&client);
                Credential::entra(auth, env, &endpoint, client, STORAGE)?
            }
        };
        if is_exposed && !matches!(credential, Credential::Key { .. }) {
            return refuse_plain_http();
        }
        let sas_end = match &credential {
            Credential::Sas(sas) => end_of(sas.secret()),
            _ => None,
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
            #[cfg(debug_assertions)]
            network: None,
        })
    }
}
