//! Which credential is taken, of a storage account as of Service Bus: what was typed, against what was
//! found.
//!
//! Called by the two of them once at start. Must never take one of two that contradict each other,
//! must never hand a token to plain http or plain TCP, and must never show what a credential holds.

use std::path::PathBuf;
use std::sync::Arc;

use azure_core::credentials::Secret;
use url::Url;

use super::account_error::{AccountError, contradiction};
use super::ca_file::CaCertificates;
#[cfg(feature = "entra")]
use super::entra::Entra;
use super::env::{Env, named};
#[cfg(feature = "entra")]
use super::token_cache::TokenCache;
use super::transport::Client;

/// What was typed about the account.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AuthOptions {
    /// Azurite's well-known account.
    pub emulator: bool,
    /// Which kind of credential.
    pub auth: Auth,
    /// A file with additional authorities for https, in PEM.
    pub ca_file: Option<PathBuf>,
}

impl AuthOptions {
    /// Whom to trust for https besides the system's authorities.
    pub(super) fn trust(&self) -> Result<CaCertificates, AccountError> {
        let Some(path) = &self.ca_file else {
            return Ok(CaCertificates::default());
        };
        CaCertificates::read(path)
    }
}

/// Which kind of credential is to be taken; as it is typed, with its help.
#[cfg_attr(feature = "cli", derive(clap::ValueEnum))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Auth {
    /// The one that is there
    #[default]
    Auto,
    /// The account's key
    Key,
    /// A shared access signature
    Sas,
    /// A token of Entra ID, however it can be had
    Entra,
    /// A token of Entra ID by workload identity
    Workload,
    /// A token of Entra ID by the machine's managed identity
    Managed,
    /// A token of Entra ID of whoever is logged in with the Azure CLI
    Cli,
}

impl Auth {
    /// As it is typed, with its flag.
    pub(super) fn flag(self) -> String {
        let word = match self {
            Auth::Auto => "auto",
            Auth::Key => "key",
            Auth::Sas => "sas",
            Auth::Entra => "entra",
            Auth::Workload => "workload",
            Auth::Managed => "managed",
            Auth::Cli => "cli",
        };
        format!("--auth {word}")
    }
}

/// How we prove who we are.
#[derive(Clone)]
pub(crate) enum Credential {
    /// A key as it is written, and whose: an account's, or a rule's of Service Bus.
    Key { name: String, key: Secret },
    /// A signature that somebody else has made; an account's is without the question mark.
    Sas(Secret),
    /// Tokens of Entra ID.
    #[cfg(feature = "entra")]
    Token(Arc<TokenCache>),
}

/// What a token is for. In every cloud it is called the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// Storage, of every account.
    Storage,
    /// Service Bus, of every namespace.
    #[cfg(feature = "service-bus")]
    ServiceBus,
}

impl Purpose {
    /// What would do instead of a token.
    pub(super) fn instead(self) -> &'static str {
        match self {
            Purpose::Storage => {
                "set AZURE_STORAGE_KEY, AZURE_STORAGE_SAS_TOKEN or AZURE_STORAGE_CONNECTION_STRING"
            }
            #[cfg(feature = "service-bus")]
            Purpose::ServiceBus => "set AZURE_SERVICEBUS_CONNECTION_STRING",
        }
    }
}

impl Credential {
    /// Tokens of Entra ID for what is at `endpoint`. Nothing is asked for before the first request.
    ///
    /// # Errors
    /// A part that is missing or unreadable, named.
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

    /// None can be had.
    #[cfg(not(feature = "entra"))]
    pub(super) fn entra(
        _: Auth,
        _: &Env<'_>,
        _: &Url,
        _: Arc<Client>,
        purpose: Purpose,
    ) -> Result<Credential, AccountError> {
        Err(super::account_error::missing(
            "the credential",
            format!(
                "Entra ID cannot be had, this trafficcop was built without the feature `entra`: \
                 {}, or build it anew",
                purpose.instead()
            ),
        ))
    }
}

/// A key or a signature that was found.
pub(super) struct Found {
    pub(super) credential: Credential,
    /// What it is and where it is from, in words.
    pub(super) what: String,
    /// It is from the flag or the URL, which say which credential as clearly as `--auth` does.
    pub(super) typed: bool,
    /// Another credential that was named beside it makes nobody doubt that it is the one.
    pub(super) is_meant: bool,
}

/// All that there is, and what to say where that is not enough.
pub(super) struct Offered {
    /// The key, or how one is given.
    pub(super) key: Result<Found, AccountError>,
    /// The signature, or how one is given.
    pub(super) sas: Result<Found, AccountError>,
    /// Whether a token may be sent there.
    pub(super) token: Result<(), AccountError>,
    /// Why it cannot do without all of these, unless Entra ID is named.
    pub(super) needed: Result<(), AccountError>,
}

/// Chooses; `None` is a token of Entra ID.
///
/// # Errors
/// Nothing that would do, or two where one is needed.
pub(super) fn choose(
    auth: Auth,
    offered: Offered,
    env: &Env<'_>,
) -> Result<Option<Credential>, AccountError> {
    match auth {
        Auth::Key => Ok(Some(offered.key?.credential)),
        Auth::Sas => Ok(Some(offered.sas?.credential)),
        Auth::Auto => {
            // Where no token can be sent, none contradicts.
            let named = named(env).filter(|_| offered.token.is_ok());
            match (offered.key, offered.sas, named) {
                (Ok(key), Ok(sas), _) => Err(contradiction(
                    key.what,
                    sas.what,
                    "one credential is needed, not two",
                )),
                (Ok(found), Err(_), Some(named)) | (Err(_), Ok(found), Some(named))
                    if !found.is_meant =>
                {
                    Err(contradiction(
                        found.what,
                        named,
                        "two credentials: --auth key, sas or entra says which",
                    ))
                }
                (Ok(found), Err(_), _) | (Err(_), Ok(found), _) => Ok(Some(found.credential)),
                (Err(_), Err(_), Some(_)) => Ok(None),
                (Err(_), Err(_), None) => offered.needed.map(|()| None),
            }
        }
        Auth::Entra | Auth::Workload | Auth::Managed | Auth::Cli => {
            let mut found = [offered.key, offered.sas].into_iter().flatten();
            match found.find(|found| found.typed) {
                Some(found) => Err(contradiction(
                    found.what,
                    auth.flag(),
                    "each brings a credential of its own",
                )),
                None => offered.token.map(|()| None),
            }
        }
    }
}

#[cfg(all(test, feature = "cli"))]
mod tests {
    use clap::ValueEnum as _;

    use super::Auth;

    #[test]
    fn a_kind_is_told_as_it_is_typed() {
        for kind in Auth::value_variants() {
            let typed = kind.to_possible_value().expect("none is skipped");
            assert_eq!(kind.flag(), format!("--auth {}", typed.get_name()));
        }
    }
}
