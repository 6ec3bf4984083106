//! Sources of an account with Entra ID.

use super::*;

const TENANT: (&str, &str) = ("AZURE_TENANT_ID", "contoso.example");
const CLIENT: (&str, &str) = ("AZURE_CLIENT_ID", "0f0f");
const FILE: (&str, &str) = ("AZURE_FEDERATED_TOKEN_FILE", "/var/run/token");
const CLIENT_SECRET: (&str, &str) = ("AZURE_CLIENT_SECRET", "s3cr3t~client");
const ACCT: (&str, &str) = (ACCOUNT, "myacct");
const URL: &str = "https://myacct.blob.core.windows.net/locks/x";

fn kind(env: &[(&str, &str)], auth: Auth) -> &'static str {
    find(env, &by(auth), None).expect("an account").kind()
}

fn said(env: &[(&str, &str)], options: &AuthOptions, url: Option<&str>) -> String {
    let said = find(env, options, url).expect_err("an error").to_string();
    assert!(!said.contains('\n') && !said.contains("s3cr3t"), "{said}");
    said
}

#[test]
fn token_sources_have_a_fixed_order() {
    let all = [ACCT, TENANT, CLIENT, FILE, CLIENT_SECRET];
    assert_eq!(kind(&all, Auth::Auto), "Entra ID (workload identity)");
    assert_eq!(kind(&all, Auth::Entra), "Entra ID (workload identity)");
    let secret = [ACCT, TENANT, CLIENT, CLIENT_SECRET];
    assert_eq!(kind(&secret, Auth::Auto), "Entra ID (client secret)");
    let rest = "Entra ID (managed identity, else Azure CLI)";
    assert_eq!(kind(&[ACCT], Auth::Auto), rest);
    assert_eq!(kind(&[ACCT, CLIENT], Auth::Entra), rest);
    assert_eq!(kind(&all, Auth::Cli), "Entra ID (Azure CLI)");
    assert_eq!(kind(&[ACCT], Auth::Managed), "Entra ID (managed identity)");
    assert_eq!(
        kind(&[ACCT, CLIENT], Auth::Managed),
        "Entra ID (user-assigned managed identity)"
    );
}

#[test]
fn key_or_sas_with_a_client_credential_needs_a_choice() {
    for own in [FILE, CLIENT_SECRET] {
        for storage in [(KEY, SECRET), (SAS, A_SAS)] {
            let env = [ACCT, storage, TENANT, CLIENT, own];
            let text = said(&env, &AuthOptions::default(), None);
            assert!(text.contains(own.0) && text.contains("--auth"), "{text}");
            assert!(kind(&env, Auth::Entra).starts_with("Entra ID"));
        }
        let env = [ACCT, (KEY, SECRET), TENANT, CLIENT, own];
        assert_eq!(kind(&env, Auth::Key), "account key");
        // The URL chooses; the emulator's key is public; no token goes to plain http.
        let url = format!("{URL}?{A_SAS}");
        let account = find(&[TENANT, CLIENT, own], &AuthOptions::default(), Some(&url));
        assert_eq!(account.expect("an account").kind(), "SAS");
        let emulator = [(STRING, "UseDevelopmentStorage=true"), TENANT, CLIENT, own];
        assert_eq!(kind(&emulator, Auth::Auto), "emulator key");
    }
    assert_eq!(
        kind(&[ACCT, (KEY, SECRET), CLIENT], Auth::Auto),
        "account key"
    );
    let url = format!("{URL}?{A_SAS}");
    let text = said(&[], &by(Auth::Entra), Some(&url));
    assert!(
        text.contains("the URL") && text.contains("--auth entra"),
        "{text}"
    );
    let emulator = AuthOptions {
        emulator: true,
        ..by(Auth::Managed)
    };
    assert!(said(&[], &emulator, None).contains("--emulator"));
}

#[test]
fn missing_and_bad_variables_of_a_token_source_are_named() {
    for (env, auth, words) in [
        (
            vec![ACCT, FILE, TENANT],
            Auth::Auto,
            "AZURE_CLIENT_ID is missing",
        ),
        (
            vec![ACCT, FILE, CLIENT],
            Auth::Auto,
            "AZURE_TENANT_ID is missing",
        ),
        (
            vec![ACCT, CLIENT_SECRET, TENANT],
            Auth::Auto,
            "AZURE_CLIENT_ID is missing",
        ),
        (
            vec![ACCT, CLIENT, TENANT],
            Auth::Workload,
            "AZURE_FEDERATED_TOKEN_FILE is missing",
        ),
        (
            vec![ACCT, CLIENT_SECRET, CLIENT, ("AZURE_TENANT_ID", "a/b")],
            Auth::Auto,
            "AZURE_TENANT_ID is neither",
        ),
        (
            vec![ACCT, ("AZURE_AUTHORITY_HOST", "http://login.example")],
            Auth::Auto,
            "AZURE_AUTHORITY_HOST does not begin with https",
        ),
        (
            vec![
                ACCT,
                ("IDENTITY_ENDPOINT", "http://10.0.0.1/token"),
                ("IDENTITY_HEADER", "x"),
            ],
            Auth::Managed,
            "plain http is only allowed to this machine, not to 10.0.0.1",
        ),
        (
            vec![(STRING, "UseDevelopmentStorage=true")],
            Auth::Managed,
            "never sent over plain http",
        ),
    ] {
        let text = said(&env, &by(auth), None);
        assert!(text.contains(words), "{env:?}: {text}");
    }
    let string = string("EndpointSuffix=core.usgovcloudapi.net");
    let keyless = [(STRING, string.as_str())];
    assert!(said(&keyless, &AuthOptions::default(), None).contains("AccountKey"));
    assert_eq!(kind(&keyless, Auth::Cli), "Entra ID (Azure CLI)");
    let account = find(
        &[keyless[0], TENANT, CLIENT, CLIENT_SECRET],
        &AuthOptions::default(),
        None,
    );
    let account = account.expect("an account");
    assert_eq!(account.kind(), "Entra ID (client secret)");
    let text = format!("{account:?}");
    assert!(!text.contains("s3cr3t"), "{text}");
}
