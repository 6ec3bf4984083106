//! What the environment says about Entra ID, in the variables that Microsoft's own tools read.
//!
//! Read by the account. Must never show a value: the client secret is among them.

use azure_core::credentials::Secret;

pub(super) const TENANT: &str = "AZURE_TENANT_ID";
pub(super) const CLIENT: &str = "AZURE_CLIENT_ID";
pub(super) const CLIENT_SECRET: &str = "AZURE_CLIENT_SECRET";
pub(super) const TOKEN_FILE: &str = "AZURE_FEDERATED_TOKEN_FILE";
pub(super) const AUTHORITY: &str = "AZURE_AUTHORITY_HOST";
pub(super) const IDENTITY_ENDPOINT: &str = "IDENTITY_ENDPOINT";
pub(super) const METADATA: &str = "AZURE_POD_IDENTITY_AUTHORITY_HOST";

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

/// The values, as they were given.
#[cfg_attr(
    not(feature = "entra"),
    expect(dead_code, reason = "nobody asks for a token")
)]
#[derive(Clone, Debug, Default)]
pub(super) struct EntraEnv {
    pub(super) tenant: Option<String>,
    pub(super) client: Option<String>,
    pub(super) secret: Option<Secret>,
    pub(super) token_file: Option<String>,
    pub(super) authority: Option<String>,
    pub(super) identity_endpoint: Option<String>,
    pub(super) metadata: Option<String>,
}

impl EntraEnv {
    /// Reads them.
    pub(super) fn read(get: &dyn Fn(&str) -> Option<String>) -> EntraEnv {
        EntraEnv {
            tenant: get(TENANT),
            client: get(CLIENT),
            secret: get(CLIENT_SECRET).map(Secret::new),
            token_file: get(TOKEN_FILE),
            authority: get(AUTHORITY),
            identity_endpoint: get(IDENTITY_ENDPOINT),
            metadata: get(METADATA),
        }
    }

    /// The variable that names a credential of its own, if one does. (A managed identity is not
    /// named: it is there or it is not.)
    pub(super) fn named(&self) -> Option<&'static str> {
        if !cfg!(feature = "entra") {
            None
        } else if self.token_file.is_some() {
            Some(TOKEN_FILE)
        } else if self.secret.is_some() {
            Some(CLIENT_SECRET)
        } else {
            None
        }
    }
}
