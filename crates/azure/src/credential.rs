//! Credentials for storage accounts and Service Bus, and the certificates that TLS trusts.
//!
//! This module must never pick one of two contradictory credentials, and must never send a token over plain http
//! or plain TCP.

use std::fmt;
use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use azure_core::credentials::Secret;
#[cfg(feature = "entra")]
use azure_core::credentials::TokenCredential;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use url::Url;

use super::account::{AccountError, contradiction, malformed};
use super::account_builder::{ACCOUNT, KEY, SAS, STRING};
#[cfg(feature = "entra")]
use super::entra::Entra;
#[cfg(feature = "entra")]
use super::program_credential::ProgramCredential;
#[cfg(feature = "entra")]
use super::token_cache::TokenCache;
use super::transport::Client;
use super::variables;

pub(super) const TENANT: &str = "AZURE_TENANT_ID";
pub(super) const CLIENT: &str = "AZURE_CLIENT_ID";
pub(super) const CLIENT_SECRET: &str = "AZURE_CLIENT_SECRET";
pub(super) const TOKEN_FILE: &str = "AZURE_FEDERATED_TOKEN_FILE";
pub(super) const IDENTITY_ENDPOINT: &str = "IDENTITY_ENDPOINT";
pub(super) const IDENTITY_HEADER: &str = "IDENTITY_HEADER";

/// For each variable, the library method that passes the same value: an error in a program names the method.
pub const LIBRARY_METHODS: &[(&str, &str)] = &[
    (STRING, "connection_string()"),
    (ACCOUNT, "account()"),
    (KEY, "AccountCredential::key()"),
    (SAS, "AccountCredential::sas()"),
];

// A Linux distribution's file of all authorities is about a quarter of this size.
const CA_FILE_LIMIT: u64 = 1024 * 1024;

pub(super) type Env<'a> = dyn Fn(&str) -> Option<String> + 'a;

/// Like `get`, without surrounding blanks; an empty value counts as unset.
pub(super) fn trimmed(get: &Env<'_>) -> impl Fn(&str) -> Option<String> {
    // A secret from a file ends in a line break, and systemd units and Kubernetes manifests often set empty
    // variables.
    move |name| {
        let text = get(name)?;
        Some(text.trim().to_owned()).filter(|text| !text.is_empty())
    }
}

pub(super) fn refuse_quotes(name: &str, text: Option<&str>) -> Result<(), AccountError> {
    match text.filter(|text| text.starts_with(['"', '\''])) {
        None => Ok(()),
        Some(_) => Err(malformed(
            name,
            "has quotes around its value, which docker's --env-file keeps: remove them",
        )),
    }
}

pub(super) fn parts_of_connection_string<'a>(
    text: &'a str,
    source: &str,
) -> Result<Vec<(String, &'a str)>, AccountError> {
    let parts = text.split(';').map(str::trim);
    let parts = parts.filter(|part| !part.is_empty()).map(|part| {
        // At the first '=' only: a base64 key may end in more.
        let (name, value) = part
            .split_once('=')
            .ok_or_else(|| malformed(source, "has a part without '=': copy it again, whole"))?;
        Ok((name.trim().to_ascii_lowercase(), value.trim()))
    });
    parts.collect()
}

pub(super) fn unknown_part(part: &str, source: &str) -> AccountError {
    // Anything else could be a key, which must not be printed.
    let is_word = part.len() <= 32 && part.bytes().all(|byte| byte.is_ascii_alphabetic());
    let what = match is_word {
        true => format!("{part} in {source}"),
        false => format!("a part of {source}"),
    };
    malformed(
        what,
        "is not supported by trafficcop here: correct or remove it (is the string another service's?)",
    )
}

/// Flags for credential and certificates.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AuthOptions {
    /// Whether to use Azurite's well-known account.
    pub emulator: bool,
    /// Kind of credential.
    pub auth: Auth,
    /// PEM file with additional certificate authorities for TLS.
    pub ca_file: Option<PathBuf>,
}

impl AuthOptions {
    pub(super) fn ca_certificates(&self) -> Result<CaCertificates, AccountError> {
        let path = self.ca_file.as_deref();
        path.map_or_else(|| Ok(CaCertificates::default()), CaCertificates::read)
    }
}

/// Kind of credential to take. The variants are the values of `--auth`, their comments its help.
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Auth {
    /// The only one that is set, or Entra ID if none is
    #[default]
    Auto,
    /// The account's key
    Key,
    /// A shared access signature
    Sas,
    /// A token from Entra ID, obtained in the first way that works
    Entra,
    /// A token from Entra ID, obtained by workload identity
    Workload,
    /// A token from Entra ID, obtained with the machine's managed identity
    Managed,
    /// A token from Entra ID for the account that is logged in with the Azure CLI
    Cli,
}

impl Auth {
    pub(super) fn flag(self) -> String {
        format!("--auth {self:?}").to_lowercase()
    }
}

/// Proof of identity for requests.
#[derive(Clone)]
pub enum Credential {
    /// A key, not decoded: an account's, or that of a Service Bus rule.
    Key {
        /// Name of the key or the account.
        name: String,
        /// The key.
        key: Secret,
    },
    /// A shared access signature. A leading '?' has been removed for a storage account.
    Sas(Secret),
    /// Tokens of Entra ID.
    #[cfg(feature = "entra")]
    Token(Arc<TokenCache>),
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Purpose {
    #[cfg_attr(not(feature = "entra"), expect(dead_code, reason = "for Entra ID"))]
    pub(super) scope: &'static str,
    /// Advice in an error: what to set instead of using Entra ID.
    pub(super) alternative: &'static str,
}

pub(super) const STORAGE: Purpose = Purpose {
    scope: "https://storage.azure.com/.default",
    alternative: "set AZURE_STORAGE_KEY, AZURE_STORAGE_SAS_TOKEN or AZURE_STORAGE_CONNECTION_STRING",
};

pub(super) const SERVICE_BUS: Purpose = Purpose {
    scope: "https://servicebus.azure.net/.default",
    alternative: "set AZURE_SERVICEBUS_CONNECTION_STRING",
};

impl Credential {
    #[cfg(feature = "entra")]
    pub(super) fn entra(
        auth: Auth,
        env: &Env<'_>,
        endpoint: &Url,
        client: Arc<Client>,
        purpose: Purpose,
    ) -> Result<Credential, AccountError> {
        let issuer = Arc::new(Entra::new(auth, env, endpoint, client, purpose)?);
        Ok(Credential::Token(Arc::new(TokenCache::new(issuer, None))))
    }

    /// Takes tokens from a credential that the program passed.
    #[cfg(feature = "entra")]
    pub fn of_program(own: Arc<dyn TokenCredential>) -> Credential {
        let issuer = Arc::new(ProgramCredential(own));
        Credential::Token(Arc::new(TokenCache::new(issuer, None)))
    }

    #[cfg(not(feature = "entra"))]
    pub(super) fn entra(
        _: Auth,
        _: &Env<'_>,
        _: &Url,
        _: Arc<Client>,
        purpose: Purpose,
    ) -> Result<Credential, AccountError> {
        Err(super::account::missing(
            "the credential",
            format!(
                "Entra ID is not available, because this trafficcop was built without the feature 'entra': {}, or \
                 build it with that feature",
                purpose.alternative
            ),
        ))
    }
}

pub(super) struct Found<'a> {
    pub(super) credential: Credential,
    pub(super) kind: &'static str,
    pub(super) source: &'a str,
    // Whether the user gave it in a flag or the URL: that choice is as explicit as `--auth`.
    pub(super) is_explicit: bool,
    // Whether to use it even if variables also configure Entra ID; otherwise the two are a contradiction.
    pub(super) overrides_entra: bool,
}

impl Found<'_> {
    pub(super) fn what(&self) -> String {
        format!("{} in {}", self.kind, self.source)
    }
}

pub(super) struct Offered<'a> {
    pub(super) key: Result<Found<'a>, AccountError>,
    pub(super) sas: Result<Found<'a>, AccountError>,
    // Whether a token may be sent.
    pub(super) token: Result<(), AccountError>,
    // `Ok` if Entra ID may be tried although nothing is configured; otherwise the error says what is missing.
    pub(super) entra_by_default: Result<(), AccountError>,
}

/// Chooses the credential; `None` is a token of Entra ID. Refuses two where one is needed: the operator may
/// mean either, and the wrong one can open another account.
pub(super) fn choose<'a>(
    auth: Auth,
    offered: Offered<'a>,
    env: &Env<'_>,
) -> Result<Option<Found<'a>>, AccountError> {
    let (found, more) = match (auth, offered.key, offered.sas) {
        (Auth::Key, key, _) => return key.map(Some),
        (Auth::Sas, _, sas) => return sas.map(Some),
        (_, Ok(key), sas) => (Some(key), sas.ok()),
        (_, Err(_), sas) => (sas.ok(), None),
    };
    if auth != Auth::Auto {
        // A variable may be for another tool; a flag or URL is not.
        let mut both = [found, more].into_iter().flatten();
        return match both.find(|found| found.is_explicit) {
            Some(found) => Err(contradiction(
                found.what(),
                auth.flag(),
                "each brings a credential of its own",
            )),
            None => offered.token.map(|()| None),
        };
    }
    // A managed identity contradicts nothing: no variable asks for it, the machine has one or not.
    let named = variables::named(env).filter(|_| cfg!(feature = "entra") && offered.token.is_ok());
    match (found, more, named) {
        (Some(key), Some(sas), _) => Err(contradiction(
            key.what(),
            sas.what(),
            "one credential is needed, not two",
        )),
        (Some(found), _, Some(named)) if !found.overrides_entra => Err(contradiction(
            found.what(),
            named,
            "two credentials: choose with --auth key, sas or entra",
        )),
        (Some(found), ..) => Ok(Some(found)),
        (None, _, Some(_)) => Ok(None),
        (None, _, None) => offered.entra_by_default.map(|()| None),
    }
}

#[derive(Clone, Default)]
pub(super) struct CaCertificates(Vec<CertificateDer<'static>>);

impl CaCertificates {
    /// Reads PEM certificates at start, so that a bad file breaks no renewal.
    pub(super) fn read(path: &Path) -> Result<CaCertificates, AccountError> {
        let refuse = |why: String| malformed(format!("--ca-file {}", path.display()), why);
        let unreadable = |why: std::io::Error| {
            refuse(format!(
                "cannot be read: {why}: name a file of certificates in PEM"
            ))
        };
        // Opening a named pipe would wait for its writer.
        if !path.metadata().map_err(unreadable)?.is_file() {
            return Err(refuse("is not a file: name one in PEM".to_owned()));
        }
        let mut text = Vec::new();
        let file = File::open(path).map_err(unreadable)?;
        file.take(CA_FILE_LIMIT + 1)
            .read_to_end(&mut text)
            .map_err(unreadable)?;
        if text.len() as u64 > CA_FILE_LIMIT {
            return Err(refuse(
                "is longer than a megabyte: name a file of certificates in PEM".to_owned(),
            ));
        }
        let mut authorities = rustls::RootCertStore::empty();
        let mut trust = Vec::new();
        for (at, found) in CertificateDer::pem_slice_iter(&text).enumerate() {
            let broken = || {
                refuse(format!(
                    "has a certificate that cannot be read (number {}): replace it",
                    at + 1
                ))
            };
            let der = found.map_err(|_| broken())?;
            // `add` parses what `from_der` only wraps.
            reqwest::Certificate::from_der(&der).map_err(|_| broken())?;
            authorities.add(der.clone()).map_err(|_| broken())?;
            trust.push(der);
        }
        if trust.is_empty() {
            return Err(refuse(
                "has no certificate: name a file in PEM (-----BEGIN CERTIFICATE-----)".to_owned(),
            ));
        }
        Ok(CaCertificates(trust))
    }

    pub(super) fn certificates(&self) -> impl Iterator<Item = reqwest::Certificate> {
        // `read` has checked them.
        let certificate = |der| reqwest::Certificate::from_der(der).ok();
        self.0.iter().filter_map(move |der| certificate(der))
    }

    /// Returns the TLS configuration for AMQP. Slow: it loads the system's authorities.
    pub(super) fn tls(&self) -> Result<rustls::ClientConfig, AccountError> {
        use rustls_platform_verifier::Verifier;
        let refuse = |why: rustls::Error| {
            malformed(
                "TLS",
                format!(
                    "cannot be set up: {why} (install the system's CA certificates, or name a file \
                     of them in --ca-file or SSL_CERT_FILE)"
                ),
            )
        };
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let verifier =
            Verifier::new_with_extra_roots(self.0.iter().cloned(), Arc::clone(&provider))
                .map_err(refuse)?;
        let config = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(refuse)?;
        // rustls calls every verifier but its own dangerous; this is the platform's.
        Ok(config
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(verifier))
            .with_no_client_auth())
    }
}

impl fmt::Debug for CaCertificates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CaCertificates({})", self.0.len())
    }
}

#[cfg(all(test, feature = "clap"))]
mod tests {
    use clap::ValueEnum as _;

    use super::Auth;

    #[test]
    fn flag_shows_a_kind_as_typed() {
        for kind in Auth::value_variants() {
            let typed = kind.to_possible_value().expect("none is skipped");
            assert_eq!(kind.flag(), format!("--auth {}", typed.get_name()));
        }
    }
}
