//! Environment variables of Azure's SDKs and command line. One that selects an unsupported identity or method
//! is refused by name: trafficcop never uses another credential instead.

#[cfg(feature = "entra")]
use super::account::{AccountError, malformed};
use super::account_builder::{ACCOUNT, KEY, SAS, STRING, SUFFIX};
use super::credential::{
    CLIENT, CLIENT_SECRET, Env, IDENTITY_ENDPOINT, IDENTITY_HEADER, TENANT, TOKEN_FILE,
};

const CERTIFICATE: &str = "AZURE_CLIENT_CERTIFICATE_PATH";
const USERNAME: &str = "AZURE_USERNAME";
const PASSWORD: &str = "AZURE_PASSWORD";
const MSI_ENDPOINT: &str = "MSI_ENDPOINT";
const THUMBPRINT: &str = "IDENTITY_SERVER_THUMBPRINT";
pub(super) const CHAIN: &str = "AZURE_TOKEN_CREDENTIALS";
pub(super) const MODE: &str = "AZURE_STORAGE_AUTH_MODE";
pub(super) const ENDPOINT: &str = "AZURE_STORAGE_SERVICE_ENDPOINT";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Read,
    /// trafficcop refuses to start where it would need this variable.
    Refused,
    /// Changes neither identity nor address, for this reason.
    Idle(&'static str),
}

use Role::{Idle, Read, Refused};

/// Name and role of a variable, and whether `--no-credentials` hides it from the command: it can hold a
/// credential, name an identity, or give access to one.
pub(crate) type Variable = (&'static str, Role, bool);

const WITH_CERTIFICATE: Role = Idle("it belongs to a certificate, which is refused");
const WITH_PASSWORD: Role = Idle("it belongs to AZURE_PASSWORD, which is refused");
const WITH_MSI: Role = Idle("it belongs to MSI_ENDPOINT, which is refused");
const OF_ARC: Role = Idle("Azure Arc sets it beside IDENTITY_ENDPOINT, which is then refused");
const TENANTS: Role = Idle("a token is asked for in the identity's own tenant only");
const REGION: Role = Idle("the authority of a region issues the same tokens");
const OF_THE_CLI: Role = Idle("the Azure CLI reads it itself");
const UNNEEDED: Role = Idle("a storage account needs none");

/// All that the documentation of Azure's SDKs names for `DefaultAzureCredential`, and that of the Azure CLI for
/// storage accounts.
pub(crate) const VARIABLES: &[Variable] = &[
    (STRING, Read, true),
    (ACCOUNT, Read, true),
    (KEY, Read, true),
    (SAS, Read, true),
    (SUFFIX, Read, false),
    ("AZURE_STORAGE_QUEUE_ENDPOINT", Read, false),
    (MODE, Read, false),
    (ENDPOINT, Refused, false),
    ("AZURE_SERVICEBUS_CONNECTION_STRING", Read, true),
    (TENANT, Read, true),
    (CLIENT, Read, true),
    (CLIENT_SECRET, Read, true),
    (TOKEN_FILE, Read, true),
    (CERTIFICATE, Refused, true),
    ("AZURE_CLIENT_CERTIFICATE_PASSWORD", WITH_CERTIFICATE, true),
    (
        "AZURE_CLIENT_SEND_CERTIFICATE_CHAIN",
        WITH_CERTIFICATE,
        false,
    ),
    (USERNAME, WITH_PASSWORD, true),
    (PASSWORD, Refused, true),
    (CHAIN, Read, false),
    ("AZURE_AUTHORITY_HOST", Read, false),
    ("AZURE_POD_IDENTITY_AUTHORITY_HOST", Read, false),
    (IDENTITY_ENDPOINT, Read, true),
    (IDENTITY_HEADER, Read, true),
    (THUMBPRINT, Refused, true),
    ("IMDS_ENDPOINT", OF_ARC, true),
    (MSI_ENDPOINT, Refused, true),
    ("MSI_SECRET", WITH_MSI, true),
    ("AZURE_ADDITIONALLY_ALLOWED_TENANTS", TENANTS, false),
    ("AZURE_IDENTITY_DISABLE_MULTITENANTAUTH", TENANTS, false),
    ("AZURE_REGIONAL_AUTHORITY_NAME", REGION, false),
    ("AZURE_CONFIG_DIR", OF_THE_CLI, false),
    ("AZURE_SUBSCRIPTION_ID", UNNEEDED, false),
];

/// Returns the variables that `--no-credentials` hides from the command.
pub fn withheld() -> impl Iterator<Item = &'static str> {
    let secret = VARIABLES.iter().filter(|(.., secret)| *secret);
    secret.map(|(name, ..)| *name)
}

pub(super) fn named(env: &Env<'_>) -> Option<&'static str> {
    let all = [TOKEN_FILE, CLIENT_SECRET, CERTIFICATE, PASSWORD];
    all.into_iter().find(|name| match *name {
        PASSWORD => env(PASSWORD).is_some() && env(USERNAME).is_some(),
        name => env(name).is_some(),
    })
}

#[cfg(feature = "entra")]
fn unavailable(name: &str, what: &str, instead: &str) -> AccountError {
    malformed(
        name,
        format!("asks for {what}, which trafficcop does not support: {instead}"),
    )
}

/// Refuses unsupported service principals and users, before another identity is used.
#[cfg(feature = "entra")]
pub(super) fn refuse_principals(env: &Env<'_>) -> Result<(), AccountError> {
    let instead = format!("set {CLIENT_SECRET} or {TOKEN_FILE}, or choose with --auth");
    match named(env) {
        // As in the SDKs, a client secret overrides both.
        _ if env(CLIENT_SECRET).is_some() => Ok(()),
        _ if env(CERTIFICATE).is_some() => {
            Err(unavailable(CERTIFICATE, "a client certificate", &instead))
        }
        Some(PASSWORD) => Err(unavailable(PASSWORD, "a user's password", &instead)),
        _ => Ok(()),
    }
}

/// Refuses managed identities of hosts whose protocol trafficcop does not speak.
#[cfg(feature = "entra")]
pub(super) fn refuse_hosts(env: &Env<'_>) -> Result<(), AccountError> {
    let instead = "choose another credential with --auth";
    let has = |name: &str| env(name).is_some();
    match (has(IDENTITY_ENDPOINT), has(IDENTITY_HEADER)) {
        (true, true) if has(THUMBPRINT) => Err(unavailable(
            THUMBPRINT,
            "the identity of Service Fabric",
            instead,
        )),
        (true, false) => {
            let what = "the identity of Azure Arc (there is no IDENTITY_HEADER)";
            Err(unavailable(IDENTITY_ENDPOINT, what, instead))
        }
        (false, _) if has(MSI_ENDPOINT) => {
            let what = "the identity of Azure ML or of the Cloud Shell";
            Err(unavailable(MSI_ENDPOINT, what, instead))
        }
        _ => Ok(()),
    }
}
