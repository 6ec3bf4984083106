//! Which credential is taken: what was typed, against what was found.
//!
//! Called by the account. Must never take one of two that contradict each other, and must never
//! hand a token to plain http.

use std::path::PathBuf;

use clap::ValueEnum;
use url::Url;

use super::account_error::{AccountError, contradiction, missing};
use super::env::{Env, named};

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

/// Which kind of credential is to be taken; as it is typed, with its help.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
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
        let word = self.to_possible_value();
        format!(
            "--auth {}",
            word.as_ref().map_or("", |word| word.get_name())
        )
    }
}

/// The credential that is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CredentialKind {
    Key,
    Sas,
    Entra,
}

/// What was found, each with the name of its source.
pub(super) struct Offered<'a> {
    pub(super) key: Option<&'static str>,
    pub(super) sas: Option<&'static str>,
    /// The key is the emulator's, which is no secret and means nothing elsewhere.
    pub(super) emulator: bool,
    /// A connection string was given.
    pub(super) string: bool,
    pub(super) env: &'a Env<'a>,
    /// The flag, the URL: they say which credential as clearly as `--auth` does.
    pub(super) typed: &'a [&'static str],
    pub(super) advice: Advice<'a>,
}

/// Names for what is missing.
pub(super) struct Advice<'a> {
    pub(super) key: &'a str,
    pub(super) sas: &'a str,
    pub(super) string: &'a str,
}

/// Chooses. `endpoint` is where a token would go.
///
/// # Errors
/// Nothing that would do, or two where one is needed.
pub(super) fn choose(
    auth: Auth,
    offered: &Offered<'_>,
    endpoint: &Url,
) -> Result<CredentialKind, AccountError> {
    let Advice { key, sas, string } = offered.advice;
    let explicit = auth.flag();
    let in_the_key = |source: &str| format!("the account key in {source}");
    let in_the_sas = |source: &str| format!("the SAS in {source}");
    match auth {
        Auth::Key => match offered.key {
            Some(_) => Ok(CredentialKind::Key),
            None => Err(missing(
                "the account key",
                format!("{explicit} needs one: set {key}, or a whole {string}"),
            )),
        },
        Auth::Sas => match offered.sas {
            Some(_) => Ok(CredentialKind::Sas),
            None => Err(missing(
                "the SAS",
                format!("{explicit} needs one: set {sas}, or a whole {string}"),
            )),
        },
        Auth::Auto => {
            // Where no token can be sent, none contradicts.
            let named = named(offered.env).filter(|_| endpoint.scheme() == "https");
            let which = "two credentials: --auth key, sas or entra says which";
            match (offered.key, offered.sas) {
                (Some(first), Some(second)) => Err(contradiction(
                    in_the_key(first),
                    in_the_sas(second),
                    "one credential is needed, not two",
                )),
                (Some(first), None) => match named {
                    Some(second) if !offered.emulator => {
                        Err(contradiction(in_the_key(first), second, which))
                    }
                    _ => Ok(CredentialKind::Key),
                },
                (None, Some(first)) => match named {
                    Some(second) if !offered.typed.contains(&first) => {
                        Err(contradiction(in_the_sas(first), second, which))
                    }
                    _ => Ok(CredentialKind::Sas),
                },
                (None, None) if offered.string && named.is_none() => Err(missing(
                    "AccountKey (or SharedAccessSignature)",
                    format!("copy the whole connection string into {string}"),
                )),
                (None, None) if endpoint.scheme() != "https" || !cfg!(feature = "entra") => {
                    let hint = if endpoint.scheme() == "https" {
                        ""
                    } else {
                        "; for the emulator use --emulator"
                    };
                    Err(missing(
                        "the credential",
                        format!("set {key} or {sas}, or a whole {string}{hint}"),
                    ))
                }
                (None, None) => Ok(CredentialKind::Entra),
            }
        }
        Auth::Entra | Auth::Workload | Auth::Managed | Auth::Cli => {
            let sources = [offered.key, offered.sas];
            let typed = sources
                .into_iter()
                .flatten()
                .find(|source| offered.typed.contains(source));
            if let Some(source) = typed {
                return Err(contradiction(
                    source,
                    explicit,
                    "each brings a credential of its own",
                ));
            }
            if !cfg!(feature = "entra") {
                return Err(missing(
                    "Entra ID",
                    format!(
                        "{explicit} cannot be had, this trafficcop was built without the feature \
                         `entra`: set {key} or {sas}, or build it anew"
                    ),
                ));
            }
            if endpoint.scheme() != "https" {
                return Err(missing(
                    "https",
                    format!(
                        "{explicit}: a token is never sent over plain http, and the endpoint is {endpoint}"
                    ),
                ));
            }
            Ok(CredentialKind::Entra)
        }
    }
}
