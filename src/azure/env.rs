//! The environment, in the variables that Microsoft's own tools read.
//!
//! Read where a credential is chosen. Must never show a value: the client secret is among them.

use super::account_error::{AccountError, malformed};

pub(super) const TENANT: &str = "AZURE_TENANT_ID";
pub(super) const CLIENT: &str = "AZURE_CLIENT_ID";
pub(super) const CLIENT_SECRET: &str = "AZURE_CLIENT_SECRET";
pub(super) const TOKEN_FILE: &str = "AZURE_FEDERATED_TOKEN_FILE";

/// Every variable that can hold what we prove ourselves by, or names whom we are.
pub const CREDENTIALS: &[&str] = &[
    "AZURE_STORAGE_CONNECTION_STRING",
    "AZURE_STORAGE_ACCOUNT",
    "AZURE_STORAGE_KEY",
    "AZURE_STORAGE_SAS_TOKEN",
    "AZURE_SERVICEBUS_CONNECTION_STRING",
    TENANT,
    CLIENT,
    CLIENT_SECRET,
    TOKEN_FILE,
];

/// What a variable says.
pub(super) type Env<'a> = dyn Fn(&str) -> Option<String> + 'a;

/// The same without the blanks around it; an empty one is none.
pub(super) fn trimmed(get: &Env<'_>) -> impl Fn(&str) -> Option<String> {
    move |name| {
        let text = get(name)?;
        Some(text.trim().to_owned()).filter(|text| !text.is_empty())
    }
}

/// The variable that names a credential of Entra ID, if one does. (A managed identity is not named:
/// it is there or it is not.)
pub(super) fn named(env: &Env<'_>) -> Option<&'static str> {
    let mut names = [TOKEN_FILE, CLIENT_SECRET].into_iter();
    names.find(|name| cfg!(feature = "entra") && env(name).is_some())
}

/// The parts of a connection string, their names in lower case.
pub(super) fn connection_string<'a>(
    text: &'a str,
    source: &str,
) -> Result<Vec<(String, &'a str)>, AccountError> {
    let parts = text.split(';').map(str::trim);
    let parts = parts.filter(|part| !part.is_empty()).map(|part| {
        let (name, value) = part
            .split_once('=')
            .ok_or_else(|| malformed(source, "has a part without `=`"))?;
        Ok((name.trim().to_ascii_lowercase(), value.trim()))
    });
    parts.collect()
}
