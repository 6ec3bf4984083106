//! A connection string of Service Bus, as Microsoft's clients take it.
//!
//! Called by the parent alone. Must never show a value: a key is among them.

use azure_core::credentials::Secret;

use super::entity::scheme_is_ours;
use super::namespace::Namespace;
use crate::azure::account_error::{AccountError, contradiction, malformed, missing};
use crate::azure::credential::Credential;
use crate::azure::env::connection_string;

/// What it says.
pub(super) struct Parts {
    pub(super) endpoint: Namespace,
    pub(super) entity: Option<String>,
    /// Plain TCP.
    pub(super) emulator: bool,
    pub(super) secret: Option<Credential>,
}

impl Parts {
    /// Reads the text of the variable `source`.
    pub(super) fn read(text: &str, source: &str) -> Result<Parts, AccountError> {
        let whole = format!("copy the whole connection string into {source}");
        let (mut endpoint, mut entity, mut emulator) = (None, None, None);
        let (mut name, mut key, mut signature) = (None, None, None);
        for (part, value) in connection_string(text, source)? {
            let (word, slot) = match part.as_str() {
                "endpoint" => ("Endpoint", &mut endpoint),
                "entitypath" => ("EntityPath", &mut entity),
                "sharedaccesskeyname" => ("SharedAccessKeyName", &mut name),
                "sharedaccesskey" => ("SharedAccessKey", &mut key),
                "sharedaccesssignature" => ("SharedAccessSignature", &mut signature),
                "usedevelopmentemulator" => ("UseDevelopmentEmulator", &mut emulator),
                // Of other clients: how they connect, what they log.
                _ => continue,
            };
            if value.is_empty() {
                return Err(malformed(
                    format!("{word} in {source}"),
                    format!("is empty: {whole}"),
                ));
            }
            if slot.replace(value.to_owned()).is_some() {
                return Err(malformed(format!("{word} in {source}"), "is there twice"));
            }
        }
        let emulator = match emulator.as_deref() {
            None => false,
            Some(word) if word.eq_ignore_ascii_case("true") => true,
            Some(word) if word.eq_ignore_ascii_case("false") => false,
            Some(_) => {
                return Err(malformed(
                    format!("UseDevelopmentEmulator in {source}"),
                    "is neither `true` nor `false`",
                ));
            }
        };
        let endpoint = endpoint.ok_or_else(|| missing(format!("Endpoint in {source}"), &*whole))?;
        let secret = match (name, key, signature) {
            (Some(_), _, Some(_)) | (_, Some(_), Some(_)) => {
                return Err(contradiction(
                    format!("SharedAccessKey in {source}"),
                    "SharedAccessSignature",
                    "one credential is needed, not two",
                ));
            }
            (Some(name), Some(key), None) => Some(Credential::Key {
                name,
                key: Secret::new(key),
            }),
            (Some(_), None, None) => {
                return Err(missing(format!("SharedAccessKey in {source}"), whole));
            }
            (None, Some(_), None) => {
                return Err(missing(format!("SharedAccessKeyName in {source}"), whole));
            }
            (None, None, Some(signature)) => Some(of_signature(signature, source)?),
            (None, None, None) => None,
        };
        Ok(Parts {
            endpoint: of_endpoint(&endpoint, source)?,
            entity,
            emulator,
            secret,
        })
    }
}

fn of_signature(text: String, source: &str) -> Result<Credential, AccountError> {
    let fields = text.strip_prefix("SharedAccessSignature ").unwrap_or("");
    let has = |name: &str| {
        fields
            .split('&')
            .any(|field| field.starts_with(name) && field.len() > name.len())
    };
    if !has("sr=") || !has("sig=") {
        return Err(malformed(
            format!("SharedAccessSignature in {source}"),
            "is none: it is `SharedAccessSignature sr=...&sig=...&se=...&skn=...`",
        ));
    }
    Ok(Credential::Sas(Secret::new(text)))
}

fn of_endpoint(text: &str, source: &str) -> Result<Namespace, AccountError> {
    let what = format!("Endpoint in {source}");
    let Some((scheme, rest)) = text.split_once("://") else {
        return Err(malformed(what, "does not begin with sb://"));
    };
    scheme_is_ours(scheme, &what)?;
    let host = rest.strip_suffix('/').unwrap_or(rest);
    if host.contains(['/', '?', '#', '@']) {
        return Err(malformed(
            what,
            "is more than sb://HOST/: a queue is named by EntityPath, and no key belongs there",
        ));
    }
    Namespace::at(host, &what)
}
