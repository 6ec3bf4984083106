use std::collections::HashMap;

use super::*;
use crate::Auth;
use crate::account_builder::{EMULATOR, EMULATOR_KEY};
use crate::address::end_of;

/// Base64 of "a very secret key of ours".
const SECRET: &str = "YSB2ZXJ5IHNlY3JldCBrZXkgb2Ygb3Vycw==";
const OTHER: &str = "YW5vdGhlciBzZWNyZXQga2V5IG9mIG91cnM=";
const A_SAS: &str = "sv=2026-04-06&sp=rcw&sig=s3cr3tsignature%3D";

fn resolve(
    env: &[(&str, &str)],
    emulator: bool,
    url: Option<&str>,
) -> Result<Account, AccountError> {
    find(env, &with_emulator(emulator), url)
}

fn find(
    env: &[(&str, &str)],
    options: &AuthOptions,
    url: Option<&str>,
) -> Result<Account, AccountError> {
    let env: HashMap<&str, &str> = env.iter().copied().collect();
    let url = url.map(|text| Url::parse(text).expect("a URL"));
    let get = |name: &str| env.get(name).map(|value| (*value).to_owned());
    Account::find(&get, options, url.as_ref())
}

fn with_emulator(emulator: bool) -> AuthOptions {
    AuthOptions {
        emulator,
        ..AuthOptions::default()
    }
}

fn by(auth: Auth) -> AuthOptions {
    AuthOptions {
        auth,
        ..AuthOptions::default()
    }
}

fn queues(
    env: &[(&str, &str)],
    emulator: bool,
    url: Option<&str>,
) -> Result<Account, AccountError> {
    let env: HashMap<&str, &str> = env.iter().copied().collect();
    let url = url.map(|text| Url::parse(text).expect("a URL"));
    let get = |name: &str| env.get(name).map(|value| (*value).to_owned());
    Account::find_queue(&get, &with_emulator(emulator), url.as_ref())
}

fn string(rest: &str) -> String {
    format!("DefaultEndpointsProtocol=https;AccountName=myacct;{rest}")
}

#[test]
fn each_source_alone_is_enough() {
    let key = string(&format!(
        "AccountKey={SECRET};EndpointSuffix=core.usgovcloudapi.net"
    ));
    let account = resolve(&[(STRING, &key)], false, None).expect("an account");
    assert_eq!(
        account.endpoint().as_str(),
        "https://myacct.blob.core.usgovcloudapi.net/"
    );
    assert_eq!(
        (account.kind(), account.name()),
        ("account key", Some("myacct"))
    );

    let account = resolve(&[(ACCOUNT, "myacct"), (KEY, SECRET)], false, None).expect("an account");
    assert_eq!(
        account.endpoint().as_str(),
        "https://myacct.blob.core.windows.net/"
    );

    let sas = format!("?{A_SAS}");
    let account = resolve(&[(ACCOUNT, "myacct"), (SAS, &sas)], false, None).expect("an account");
    assert_eq!(account.kind(), "SAS");
    assert_eq!(
        account.authorised(account.endpoint()).as_str(),
        format!("https://myacct.blob.core.windows.net/?{A_SAS}")
    );

    let only_sas = format!("BlobEndpoint=https://locks.example/;SharedAccessSignature={A_SAS}");
    let account = resolve(&[(STRING, &only_sas)], false, None).expect("an account");
    assert_eq!(account.endpoint().as_str(), "https://locks.example/");

    let url = format!("https://myacct.blob.core.windows.net/locks/x?{A_SAS}");
    let account = resolve(&[], false, Some(&url)).expect("an account");
    assert_eq!((account.kind(), account.name()), ("SAS", Some("myacct")));
    assert_eq!(
        account.endpoint().as_str(),
        "https://myacct.blob.core.windows.net/"
    );

    let plain = "https://myacct.blob.core.windows.net/locks/x";
    let account = resolve(&[(KEY, SECRET)], false, Some(plain)).expect("an account");
    assert_eq!(
        (account.kind(), account.name()),
        ("account key", Some("myacct"))
    );
}

#[test]
fn emulator_is_found_by_flag_and_by_connection_string() {
    for account in [
        resolve(&[], true, None),
        resolve(&[(STRING, "UseDevelopmentStorage=true")], false, None),
        resolve(&[(STRING, "UseDevelopmentStorage=true;")], true, None),
        resolve(&[(ACCOUNT, EMULATOR), (KEY, EMULATOR_KEY)], true, None),
        resolve(
            &[],
            true,
            Some("http://127.0.0.1:10000/devstoreaccount1/locks/x"),
        ),
    ] {
        let account = account.expect("an account");
        assert_eq!(account.endpoint().as_str(), BLOB.emulator);
        assert_eq!(account.kind(), "emulator key");
    }
    let own_port = format!(
        "AccountName={EMULATOR};AccountKey={EMULATOR_KEY};\
         BlobEndpoint=http://127.0.0.1:21000/{EMULATOR};QueueEndpoint=http://127.0.0.1:21001/{EMULATOR}"
    );
    for flag in [false, true] {
        let account = resolve(&[(STRING, &own_port)], flag, None).expect("an account");
        assert_eq!(account.endpoint().port(), Some(21000));
        let queue = queues(&[(STRING, &own_port)], flag, None).expect("an account");
        assert_eq!(queue.endpoint().port(), Some(21001));
        assert_eq!(queue.kind(), "emulator key");
        assert_eq!(account.kind(), "emulator key");
    }
}

#[test]
fn sources_that_agree_overlap() {
    let key = string(&format!("AccountKey={SECRET}"));
    let both = [(STRING, key.as_str()), (ACCOUNT, "myacct"), (KEY, SECRET)];
    let url = "https://myacct.blob.core.windows.net/locks/x";
    assert!(resolve(&both, false, Some(url)).is_ok());
    let with_sas = format!("{url}?{A_SAS}");
    assert!(resolve(&[(ACCOUNT, "myacct"), (SAS, A_SAS)], false, Some(&with_sas)).is_ok());
    // A URL with its own SAS needs no other account.
    let account = resolve(
        &[(ACCOUNT, "otheracct"), (KEY, SECRET)],
        false,
        Some(&with_sas),
    )
    .expect("an account");
    assert_eq!((account.kind(), account.name()), ("SAS", Some("myacct")));
    assert!(
        resolve(
            &[(ACCOUNT, "myacct"), (KEY, SECRET), (SAS, " ")],
            false,
            None
        )
        .is_ok()
    );
}

#[test]
fn contradictions_are_refused_in_one_line_without_secrets() {
    let key = string(&format!("AccountKey={SECRET}"));
    let two = string(&format!(
        "AccountKey={SECRET};SharedAccessSignature={A_SAS}"
    ));
    let url = "https://urlacct.blob.core.windows.net/locks/x";
    let with_sas = format!("https://myacct.blob.core.windows.net/locks/x?{A_SAS}");
    let key = key.as_str();
    type Case<'a> = (Vec<(&'a str, &'a str)>, bool, Option<&'a str>);
    let cases: Vec<Case> = vec![
        (vec![(STRING, key), (ACCOUNT, "otheracct")], false, None),
        (vec![(STRING, key), (KEY, OTHER)], false, None),
        (vec![(STRING, key), (SAS, A_SAS)], false, None),
        (vec![(STRING, &two)], false, None),
        (
            vec![(ACCOUNT, "myacct"), (KEY, SECRET), (SAS, A_SAS)],
            false,
            None,
        ),
        (vec![(STRING, key)], false, Some(url)),
        (vec![(ACCOUNT, "myacct"), (KEY, SECRET)], false, Some(url)),
        (
            vec![(ACCOUNT, "myacct"), (KEY, SECRET)],
            false,
            Some(&with_sas),
        ),
        (vec![(STRING, key)], true, None),
        (vec![(ACCOUNT, "myacct")], true, None),
        (vec![(ACCOUNT, EMULATOR), (KEY, SECRET)], true, None),
        (vec![(SAS, A_SAS)], true, None),
        (vec![], true, Some(url)),
    ];
    for (env, emulator, url) in cases {
        let error = resolve(&env, emulator, url).expect_err("a contradiction");
        assert!(
            matches!(error, AccountError::Contradiction { .. }),
            "{env:?} {emulator} {url:?}: {error}"
        );
        let text = error.to_string();
        assert!(!text.contains('\n') && !text.contains("secret"), "{text}");
    }
}

#[test]
fn missing_and_malformed_parts_are_named() {
    let said = |env: &[(&str, &str)], url: Option<&str>| {
        resolve(env, false, url).expect_err("an error").to_string()
    };
    assert!(said(&[], None).contains("the storage account is missing"));
    #[cfg(not(feature = "entra"))]
    assert!(said(&[(ACCOUNT, "myacct")], None).contains("the credential is missing"));
    assert!(said(&[(KEY, SECRET)], None).contains("the storage account is missing"));
    assert!(
        said(&[(STRING, "AccountName=myacct")], None)
            .contains("AccountKey (or SharedAccessSignature) is missing")
    );
    let local = "http://127.0.0.1:10000/devstoreaccount1/locks/x";
    assert!(said(&[], Some(local)).contains("--emulator"));
    let nameless = format!("BlobEndpoint=https://locks.example;AccountKey={SECRET}");
    assert!(said(&[(STRING, &nameless)], None).contains("the account's name is missing"));
    for (env, part) in [
        (vec![(ACCOUNT, "myacct"), (KEY, "not!base64")], KEY),
        (vec![(ACCOUNT, "myacct"), (SAS, "sv=1&sp=r")], SAS),
        (vec![(ACCOUNT, "my.evil.host/"), (KEY, SECRET)], ACCOUNT),
        (vec![(STRING, "nonsense")], STRING),
        (
            vec![(STRING, "UseDevelopmentStorage=false")],
            "UseDevelopmentStorage",
        ),
        (vec![(STRING, "AccountName=myacct;AccountKey=%%%")], STRING),
        (vec![(STRING, "BlobEndpoint=locks.example")], "BlobEndpoint"),
        (
            vec![(STRING, "BlobEndpoint=https://locks.example?sig=x")],
            "BlobEndpoint",
        ),
        (
            vec![(STRING, "BlobEndpoint=https://locks.example/sig=x")],
            "BlobEndpoint",
        ),
    ] {
        let text = said(&env, None);
        assert!(text.contains(part), "{env:?}: {text}");
        assert!(
            !text.contains("not!base64") && !text.contains("%%%"),
            "{text}"
        );
    }
}

#[test]
fn plain_http_goes_to_this_machine_only() {
    for (text, fits) in [
        ("http://127.0.0.1:1/acct", true),
        ("http://127.9.9.9/acct", true),
        ("http://[::1]:1/acct", true),
        ("http://localhost:1/acct", true),
        ("http://acct.blob.localhost:1", true),
        ("http://10.0.0.1/acct", false),
        ("http://localhost.evil.example", false),
        ("http://azurite:10000/acct", false),
    ] {
        let text = format!("AccountName=acct;AccountKey={SECRET};BlobEndpoint={text}");
        let said = resolve(&[(STRING, &text)], false, None);
        assert_eq!(said.is_ok(), fits, "{text}: {said:?}");
    }
    let text = format!("DefaultEndpointsProtocol=http;AccountName=acct;AccountKey={SECRET}");
    let said = resolve(&[(STRING, &text)], false, None).expect_err("refused");
    assert!(said.to_string().contains("use https"), "{said}");
}

#[test]
fn plain_http_to_another_machine_needs_the_emulator_s_public_account() {
    let far = "http://azurite:10000/devstoreaccount1";
    let string = |name, key, url| format!("AccountName={name};AccountKey={key};BlobEndpoint={url}");
    let public = string(EMULATOR, EMULATOR_KEY, far);
    let account = resolve(&[(STRING, &public)], false, None).expect("an account");
    assert_eq!(
        (account.endpoint().as_str(), account.kind()),
        (far, "emulator key")
    );
    let lock = format!("{far}/locks/x");
    let account = resolve(&[], true, Some(&lock)).expect("an account");
    assert_eq!(
        (account.endpoint().as_str(), account.kind()),
        (far, "emulator key")
    );
    let own_key = string(EMULATOR, SECRET, far);
    let own_name = string("acct", EMULATOR_KEY, "http://azurite:10000/acct");
    let a_sas = format!("{lock}?{A_SAS}");
    for (env, url) in [
        (vec![(STRING, own_key.as_str())], None),
        (vec![(STRING, own_name.as_str())], None),
        (vec![], Some(a_sas.as_str())),
        (vec![(STRING, public.as_str())], Some(a_sas.as_str())),
        (
            vec![(ACCOUNT, EMULATOR), (KEY, SECRET)],
            Some(lock.as_str()),
        ),
    ] {
        let said = resolve(&env, false, url).expect_err("refused").to_string();
        assert!(
            said.contains("plain http") || said.contains("contradict"),
            "{said}"
        );
        assert!(!said.contains(SECRET) && !said.contains("s3cr3t"), "{said}");
    }
}

#[test]
fn sas_expiry_is_parsed_in_every_form() {
    for (se, end) in [
        ("2030-01-02T03%3A04%3A05Z", Some("2030-01-02T03:04:05Z")),
        ("2030-01-02T03:04Z", Some("2030-01-02T03:04:00Z")),
        ("2030-01-02", Some("2030-01-02T00:00:00Z")),
        ("soon", None),
    ] {
        let known = end_of(&format!("sv=1&se={se}&sig=x")).map(|end| to_rfc3339(&end));
        assert_eq!(known.as_deref(), end, "{se}");
    }
    let sas = |left: i64| {
        let end = OffsetDateTime::now_utc() + azure_core::time::Duration::hours(left);
        let url = format!(
            "https://a.blob.core.windows.net/locks/x?se={}&sig=x",
            to_rfc3339(&end)
        );
        let account = resolve(&[], false, Some(&url)).expect("an account");
        account.sas_end().expect("an end")
    };
    assert!(matches!(sas(8 * 24), (text, false) if text.contains("SAS from the URL expires at")));
    assert!(matches!(sas(6 * 24), (text, true) if text.contains("SAS from the URL expires at")));
    assert!(matches!(sas(-1), (text, true) if text.contains("expired at")));
}

#[test]
fn debug_shows_no_secret() {
    let key = resolve(&[(ACCOUNT, "myacct"), (KEY, SECRET)], false, None).expect("an account");
    let url = format!("https://myacct.blob.core.windows.net/locks/x?{A_SAS}");
    let sas = resolve(&[], false, Some(&url)).expect("an account");
    for account in [key, sas] {
        let text = format!("{account:?}");
        assert!(!text.contains(SECRET) && !text.contains("s3cr3t"), "{text}");
        assert!(text.contains("myacct"), "{text}");
    }
}

#[test]
fn queue_service_has_its_own_address() {
    let key = string(&format!(
        "AccountKey={SECRET};EndpointSuffix=core.usgovcloudapi.net;BlobEndpoint=https://blobs.example"
    ));
    let of = |env: &[(&str, &str)], emulator, url: Option<&str>| {
        let account = queues(env, emulator, url).expect("an account");
        account.endpoint().to_string()
    };
    let usgov = "https://myacct.queue.core.usgovcloudapi.net/";
    assert_eq!(of(&[(STRING, &key)], false, None), usgov);
    let by_key = [(ACCOUNT, "myacct"), (KEY, SECRET)];
    let public = "https://myacct.queue.core.windows.net/";
    assert_eq!(of(&by_key, false, None), public);
    let url = format!("https://myacct.queue.core.windows.net/jobs?{A_SAS}");
    assert_eq!(of(&[], false, Some(&url)), public);
    let plain = "https://myacct.queue.core.windows.net/jobs";
    assert_eq!(of(&[(KEY, SECRET)], false, Some(plain)), public);
    let named = "AZURE_STORAGE_QUEUE_ENDPOINT";
    let own = [(named, "https://queues.example"), by_key[0], by_key[1]];
    assert_eq!(of(&own, false, None), "https://queues.example/");
    let string = format!("{key};QueueEndpoint=https://queues.example");
    assert_eq!(
        of(&[(STRING, &string)], false, None),
        "https://queues.example/"
    );
    let emulator = QUEUE.emulator;
    assert_eq!(of(&[], true, None), emulator);
    assert_eq!(
        of(&[(STRING, "UseDevelopmentStorage=true")], false, None),
        emulator
    );
    assert_eq!(of(&[], true, Some(&format!("{emulator}/jobs"))), emulator);
    let own_port = [(named, "http://127.0.0.1:21001/devstoreaccount1")];
    assert_eq!(of(&own_port, true, None), own_port[0].1);

    let said = |env: &[(&str, &str)], emulator, url| {
        queues(env, emulator, url)
            .expect_err("an error")
            .to_string()
    };
    let both = [(STRING, string.as_str()), (named, "https://others.example")];
    assert!(said(&both, false, None).contains("different queue endpoints"));
    assert!(said(&own, true, None).contains("contradict each other"));
    let bad = [(named, "queues.example"), by_key[0], by_key[1]];
    assert!(said(&bad, false, None).starts_with("AZURE_STORAGE_QUEUE_ENDPOINT is not a URL"));
    let far = [(named, "http://queues.example"), by_key[0], by_key[1]];
    assert!(said(&far, false, None).contains("use https"));
}

#[test]
fn endpoint_suffix_selects_the_cloud() {
    let key = [(ACCOUNT, "myacct"), (KEY, SECRET)];
    let with = |suffix| {
        let mut env = key.to_vec();
        env.push((SUFFIX, suffix));
        resolve(&env, false, None)
    };
    let account = with("core.chinacloudapi.cn").expect("an account");
    assert_eq!(
        account.endpoint().as_str(),
        "https://myacct.blob.core.chinacloudapi.cn/"
    );
    for bad in ["evil.example/", "a..b", "x@y", "core.windows.net:1"] {
        let said = with(bad).expect_err("no domain").to_string();
        assert!(said.contains(SUFFIX), "{said}");
    }
    let string = string(&format!(
        "AccountKey={SECRET};EndpointSuffix=core.windows.net"
    ));
    let two = [(STRING, string.as_str()), (SUFFIX, "core.chinacloudapi.cn")];
    let said = resolve(&two, false, None).expect_err("two clouds");
    assert!(matches!(said, AccountError::Contradiction { .. }), "{said}");
}

#[test]
fn auth_flag_selects_one_of_two_credentials() {
    let both = [(ACCOUNT, "myacct"), (KEY, SECRET), (SAS, A_SAS)];
    for (auth, kind) in [(Auth::Key, "account key"), (Auth::Sas, "SAS")] {
        let account = find(&both, &by(auth), None).expect("an account");
        assert_eq!(account.kind(), kind);
    }
    let said = find(&[(ACCOUNT, "myacct"), (SAS, A_SAS)], &by(Auth::Key), None);
    assert!(said.expect_err("no key").to_string().contains(KEY));
    let said = find(&[(ACCOUNT, "myacct"), (KEY, SECRET)], &by(Auth::Sas), None);
    assert!(said.expect_err("no SAS").to_string().contains(SAS));
}

#[cfg(not(feature = "entra"))]
#[test]
fn build_without_entra_names_the_missing_feature() {
    let said = find(&[(ACCOUNT, "myacct")], &by(Auth::Entra), None).expect_err("left out");
    assert!(
        said.to_string().contains("without the feature 'entra'"),
        "{said}"
    );
}

#[cfg(feature = "entra")]
mod entra;
#[cfg(feature = "entra")]
mod variables;
