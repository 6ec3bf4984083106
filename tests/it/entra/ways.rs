//! Each way to a token leads to control, in their order.

use std::os::unix::fs::PermissionsExt as _;

use super::*;
use crate::entra::desk::Manner;
use crate::support::namespaces::network_or_say_so;

/// Checks that it gets control, names this credential, and the command ends well.
fn gets_control(stage: &Stage, run: Run<'_>, kind: &str) -> Finished {
    let finished = run.arg("-v").shell("echo run").finish();
    assert_eq!(finished.ended, Ended::Code(0), "{finished:?}");
    assert_eq!(finished.stdout, "run\n");
    let line = format!("credential: {kind}\n");
    assert!(finished.stderr.contains(&line), "{}", finished.stderr);
    assert!(!stage.desk.asked().is_empty());
    no_secret(&finished.stderr);
    finished
}

#[test]
fn workload_identity_by_the_federated_token_s_file_and_before_a_client_secret() {
    let stage = Stage::new("way-workload");
    let run = stage.with_workload(stage.with_secret(stage.run()));
    gets_control(&stage, run, "Entra ID (workload identity)");
    let asked = stage.desk.asked();
    assert_eq!(asked.len(), 1, "{asked:?}");
    let path = format!("POST /{TENANT}/oauth2/v2.0/token ");
    assert!(asked[0].head.starts_with(&path), "{asked:?}");
    let body = &asked[0].body;
    for word in [
        &format!("client_assertion={ASSERTION}"),
        &format!("client_id={CLIENT}"),
        "scope=https%3A%2F%2Fstorage.azure.com%2F.default",
    ] {
        assert!(body.contains(word), "{word} in {body}");
    }
}

#[test]
fn a_client_secret_before_a_managed_identity() {
    let stage = Stage::new("way-secret");
    let run = stage.with_endpoint(stage.with_secret(stage.run()));
    gets_control(&stage, run, "Entra ID (client secret)");
    let asked = stage.desk.asked();
    assert!(asked[0].body.contains("client_secret=cl13nt"), "{asked:?}");
}

#[test]
fn a_managed_identity_by_the_platform_s_endpoint() {
    let stage = Stage::local("way-managed");
    let run = stage.with_endpoint(stage.run());
    let run = run
        .env("AZURE_AUTHORITY_HOST", "")
        .env("HTTP_PROXY", "http://127.0.0.1:1");
    gets_control(&stage, run, "Entra ID (managed identity)");
    let asked = stage.desk.asked();
    let head = &asked[0].head;
    assert!(head.starts_with("GET /msi/token?"), "{head}");
    assert!(
        head.contains("resource=https%3A%2F%2Fstorage.azure.com"),
        "{head}"
    );
    assert!(
        head.contains(&format!("x-identity-header: {HEADER}")),
        "{head}"
    );
    assert!(!head.contains("client_id="), "{head}");
}

#[test]
fn a_user_assigned_managed_identity_by_the_machine_s_metadata_service() {
    let stage = Stage::local("way-metadata");
    let run = stage.run().args(["--auth", "managed"]);
    let run = run
        .env("AZURE_AUTHORITY_HOST", "")
        .env("AZURE_POD_IDENTITY_AUTHORITY_HOST", stage.desk.address())
        .env("AZURE_CLIENT_ID", CLIENT);
    gets_control(&stage, run, "Entra ID (user-assigned managed identity)");
    let head = &stage.desk.asked()[0].head;
    assert!(
        head.starts_with("GET /metadata/identity/oauth2/token?"),
        "{head}"
    );
    assert!(head.contains(&format!("client_id={CLIENT}")), "{head}");
    assert!(head.contains("metadata: true"), "{head}");
}

/// Puts an `az` with this script first in the PATH.
fn with_az<'a>(stage: &'a Stage, run: Run<'a>, script: &str) -> Run<'a> {
    let directory = stage.scene.path("bin");
    std::fs::create_dir_all(&directory).expect("a directory");
    let az = directory.join("az");
    std::fs::write(&az, format!("#!/bin/sh\n{script}\n")).expect("a file");
    std::fs::set_permissions(&az, std::fs::Permissions::from_mode(0o755)).expect("ours");
    let path = std::env::var("PATH").expect("a way");
    let path = format!("{}:{path}", directory.display());
    run.env("PATH", path)
        .env("AZURE_POD_IDENTITY_AUTHORITY_HOST", "http://127.0.0.1:1")
}

#[test]
fn azure_cli_is_used_without_a_managed_identity() {
    let stage = Stage::new("way-cli");
    let asked = stage.scene.path("asked");
    let script = format!(
        r#"echo "$@" >>{}; echo '{{"accessToken":"{}","expires_on":{},"tokenType":"Bearer"}}'"#,
        asked.display(),
        desk::token(HOUR),
        4_000_000_000_u64,
    );
    let run = with_az(&stage, stage.run(), &script);
    let run = run.arg("-v").shell("echo run");
    let finished = run.finish();
    assert_eq!(finished.ended, Ended::Code(0), "{finished:?}");
    let said = &finished.stderr;
    assert!(
        said.contains("credential: Entra ID (Azure CLI)\n"),
        "{said}"
    );
    no_secret(said);
    let asked = std::fs::read_to_string(asked).expect("az was asked");
    assert_eq!(
        asked,
        "account get-access-token -o json --scope https://storage.azure.com/.default\n"
    );
}

#[test]
fn no_source_of_tokens_exits_77_with_advice_in_one_line() {
    let stage = Stage::new("way-none");
    let script = "echo \"ERROR: Please run 'az login' to setup account.\" >&2; exit 1";
    let finished = with_az(&stage, stage.run(), script)
        .shell("echo run")
        .finish();
    let words = [
        "managed identity: cannot connect",
        "Azure CLI: ",
        "az login",
        "AZURE_STORAGE_KEY",
    ];
    refused(&finished, 77, &words);
    assert_eq!(finished.stdout, "");
    assert!(stage.desk.asked().is_empty());
}

#[test]
fn machine_without_a_network_is_doubt_not_a_missing_login() {
    if !network_or_say_so() {
        return;
    }
    let stage = Stage::new("way-booting");
    let script = "echo \"ERROR: Please run 'az login' to setup account.\" >&2; exit 1";
    let run = with_az(&stage, stage.run(), script).without_network();
    let mut one = run.shell("echo run").start();
    one.await_log("retrying");
    one.assert_running();
    let said = one.stderr();
    assert!(
        said.contains("managed identity: cannot connect: Network is unreachable"),
        "{said}"
    );
}

#[test]
fn refused_secret_exits_77_with_the_reason_and_is_not_shown() {
    let stage = Stage::new("way-refused");
    let why = format!("AADSTS7000215: Invalid client secret '{SECRET}' provided. Trace ID: 123");
    let text = serde_json::json!({"error": "invalid_client", "error_description": why}).to_string();
    stage.desk.set(Manner::Answer(401, text));
    let finished = stage.with_secret(stage.run()).shell("echo run").finish();
    refused(
        &finished,
        77,
        &["client secret: 401", "AADSTS7000215", "AZURE_CLIENT_SECRET"],
    );
    assert!(!finished.stderr.contains("Trace ID"), "{}", finished.stderr);

    let status = stage.with_secret(stage.verb("status")).finish();
    refused(&status, 77, &["AADSTS7000215"]);
}
