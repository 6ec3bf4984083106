//! Variables and connection string parts of Azure's own tools.

use super::*;
use crate::variables::{Role, VARIABLES, withheld};

const ACCT: (&str, &str) = (ACCOUNT, "myacct");
const PLACE: (&str, &str) = ("IDENTITY_ENDPOINT", "https://localhost/token");

/// Documented variables of `DefaultAzureCredential` in all SDKs, managed identities, and the Azure CLI.
const DOCUMENTED: &str = "
    AZURE_TENANT_ID AZURE_CLIENT_ID AZURE_CLIENT_SECRET AZURE_FEDERATED_TOKEN_FILE AZURE_AUTHORITY_HOST
    AZURE_CLIENT_CERTIFICATE_PATH AZURE_CLIENT_CERTIFICATE_PASSWORD AZURE_CLIENT_SEND_CERTIFICATE_CHAIN
    AZURE_USERNAME AZURE_PASSWORD AZURE_TOKEN_CREDENTIALS AZURE_ADDITIONALLY_ALLOWED_TENANTS
    AZURE_POD_IDENTITY_AUTHORITY_HOST AZURE_REGIONAL_AUTHORITY_NAME AZURE_IDENTITY_DISABLE_MULTITENANTAUTH
    IDENTITY_ENDPOINT IDENTITY_HEADER IDENTITY_SERVER_THUMBPRINT IMDS_ENDPOINT MSI_ENDPOINT MSI_SECRET
    AZURE_STORAGE_ACCOUNT AZURE_STORAGE_KEY AZURE_STORAGE_CONNECTION_STRING AZURE_STORAGE_SAS_TOKEN
    AZURE_STORAGE_AUTH_MODE AZURE_STORAGE_SERVICE_ENDPOINT AZURE_CONFIG_DIR";

fn beside(name: &str) -> Vec<(&'static str, &'static str)> {
    match name {
        "AZURE_PASSWORD" => vec![("AZURE_USERNAME", "x")],
        "IDENTITY_SERVER_THUMBPRINT" => vec![PLACE, ("IDENTITY_HEADER", "x")],
        _ => vec![],
    }
}

fn refused(env: &[(&str, &str)], options: &AuthOptions) -> String {
    find(env, options, None).expect_err("an error").to_string()
}

fn kind(env: &[(&str, &str)], auth: Auth) -> &'static str {
    let found = find(env, &by(auth), None);
    found.unwrap_or_else(|why| panic!("{env:?}: {why}")).kind()
}

#[test]
fn every_documented_variable_has_a_row() {
    for name in DOCUMENTED.split_whitespace() {
        let rows = VARIABLES.iter().filter(|(known, ..)| *known == name);
        assert_eq!(rows.count(), 1, "{name}");
    }
}

#[test]
fn refused_variables_are_named_and_idle_ones_change_nothing() {
    for (name, role, _) in VARIABLES {
        let mut env = vec![ACCT, (*name, "s3cr3t")];
        env.extend(beside(name));
        match role {
            Role::Read => {}
            Role::Refused => {
                let said = refused(&env, &AuthOptions::default());
                assert!(said.contains(name) && !said.contains("s3cr3t"), "{said}");
            }
            Role::Idle(_) => assert_eq!(kind(&env, Auth::Auto), kind(&[ACCT], Auth::Auto)),
        }
    }
    let said = refused(&[ACCT, PLACE], &by(Auth::Managed));
    assert!(said.contains("IDENTITY_ENDPOINT"), "{said}");
}

#[test]
fn auth_flag_overrides_refused_variables() {
    let certificate = ("AZURE_CLIENT_CERTIFICATE_PATH", "/x.pem");
    let arc = ("MSI_ENDPOINT", "http://localhost");
    let key = (KEY, SECRET);
    assert_eq!(
        kind(&[ACCT, certificate], Auth::Managed),
        "Entra ID (managed identity)"
    );
    assert_eq!(kind(&[ACCT, arc], Auth::Cli), "Entra ID (Azure CLI)");
    assert_eq!(
        kind(&[ACCT, key, certificate, arc], Auth::Key),
        "account key"
    );
    assert_eq!(kind(&[ACCT, key, arc], Auth::Auto), "account key");
    let said = refused(&[ACCT, key, certificate], &AuthOptions::default());
    assert!(said.contains(KEY) && said.contains(certificate.0), "{said}");
}

#[test]
fn azure_token_credentials_selects_the_source() {
    let chain = |value| [ACCT, ("AZURE_TOKEN_CREDENTIALS", value)];
    for (value, expected) in [
        ("prod", "Entra ID (managed identity)"),
        ("ManagedIdentityCredential", "Entra ID (managed identity)"),
        ("dev", "Entra ID (Azure CLI)"),
        ("AzureCliCredential", "Entra ID (Azure CLI)"),
    ] {
        assert_eq!(kind(&chain(value), Auth::Auto), expected, "{value}");
        assert_eq!(kind(&chain(value), Auth::Entra), expected, "{value}");
    }
    for (value, named) in [
        ("AzurePowerShellCredential", "AZURE_TOKEN_CREDENTIALS"),
        ("WorkloadIdentityCredential", "AZURE_FEDERATED_TOKEN_FILE"),
        ("EnvironmentCredential", "AZURE_CLIENT_SECRET"),
    ] {
        let said = refused(&chain(value), &AuthOptions::default());
        assert!(said.contains(named), "{value}: {said}");
        assert_eq!(
            kind(&chain(value), Auth::Managed),
            "Entra ID (managed identity)"
        );
    }
}

#[test]
fn azure_storage_auth_mode_selects_key_or_login() {
    let mode = |value| ("AZURE_STORAGE_AUTH_MODE", value);
    let key = (KEY, SECRET);
    let tokens = "Entra ID (managed identity, else Azure CLI)";
    assert_eq!(kind(&[ACCT, key, mode("login")], Auth::Auto), tokens);
    assert_eq!(kind(&[ACCT, key, mode("key")], Auth::Auto), "account key");
    assert_eq!(kind(&[ACCT, (SAS, A_SAS), mode("key")], Auth::Auto), "SAS");
    assert_eq!(kind(&[ACCT, key, mode("login")], Auth::Key), "account key");
    for value in ["key", "other"] {
        let said = refused(&[ACCT, mode(value)], &AuthOptions::default());
        assert!(said.contains("AZURE_STORAGE_AUTH_MODE"), "{said}");
    }
}

#[test]
fn unknown_parts_of_a_connection_string_are_refused_without_their_values() {
    for (rest, named) in [
        ("AcountKey=s3cr3t", "acountkey"),
        (
            "DevelopmentStorageProxyUri=http://proxy",
            "developmentstorageproxyuri",
        ),
        ("YSB2ZXJ5IHNlY3JldCBrZXkgb2Ygb3Vycw==", "a part of"),
    ] {
        let text = string(&format!("AccountKey={SECRET};{rest}"));
        let said = refused(&[(STRING, &text)], &AuthOptions::default());
        assert!(said.contains(named) && said.contains(STRING), "{said}");
        assert!(
            !said.to_lowercase().contains("ysb2") && !said.contains("s3cr3t"),
            "{said}"
        );
    }
    let known = "BlobSecondaryEndpoint=https://x;TableEndpoint=https://y;FileEndpoint=https://z";
    let text = string(&format!("AccountKey={SECRET};{known}"));
    assert_eq!(kind(&[(STRING, &text)], Auth::Auto), "account key");
}

#[test]
fn refused_credentials_are_withheld_from_the_command() {
    let all: Vec<_> = withheld().collect();
    for name in [
        "AZURE_CLIENT_CERTIFICATE_PASSWORD",
        "AZURE_PASSWORD",
        "MSI_SECRET",
        KEY,
    ] {
        assert!(all.contains(&name), "{name}");
    }
    assert!(!all.contains(&"AZURE_AUTHORITY_HOST"));
}
