//! First contact with the store, and the command's credentials.

use std::net::TcpListener;
use std::time::Duration;

use trafficcop::Instant;

use super::Stage;
use crate::listen::client::{address, get};
use crate::support::await_for;
use crate::support::azurite::azurite;
use crate::support::blob::sas_for;
use crate::support::closed_port::ClosedPort;
use crate::support::instance::{Ended, assert_ended};
use crate::support::journal::What;
use crate::support::proxy::{Mode, Proxy};

#[test]
fn no_wait_gives_up_within_five_seconds_where_no_store_answers() {
    let stage = Stage::new("no-contact");
    // It accepts connections, and never answers.
    let deaf = TcpListener::bind("127.0.0.1:0").unwrap();
    let closed = ClosedPort::new();
    let nobody = closed.port;
    for port in [deaf.local_addr().unwrap().port(), nobody] {
        let began = Instant::now();
        let run = stage.run(port).arg("-n").command(["true"]);
        assert_ended(&run.finish(), 69, "exit status 69");
        let took = Instant::now().since(began);
        // Sooner than a second attempt of 5 s, even on a busy machine.
        assert!(took < Duration::from_secs(9), "{took:?}");
    }
    let began = Instant::now();
    let run = stage.run(nobody).args(["--connect-timeout", "2s"]);
    assert_ended(&run.command(["true"]).finish(), 69, "exit status 69");
    let took = Instant::now().since(began);
    assert!(took >= Duration::from_secs(2) && took < Duration::from_secs(10));
}

/// The reason may be a rotated key, an expired SAS, or a removed role.
#[test]
fn refused_standby_is_not_ready_names_no_holder_and_exits_77() {
    let stage = Stage::new("refused-for-good");
    let _holder = stage.instance(azurite().port, "holder", &[], &[]);
    stage.scene.journal.await_tag(What::Beat, "holder");
    let proxy = Proxy::before(azurite().port);
    let run = stage.run(proxy.port).args(["--identity", "standby"]);
    let run = run.args(["--auth-patience", "3s", "--listen", "127.0.0.1:0"]);
    let mut standby = run.shell("exit 0").start();
    let at = address(&standby);
    let await_state = |state: &str| {
        await_for(
            state,
            || {
                let body = get(at, "/status").body;
                let status: serde_json::Value = serde_json::from_str(&body).ok()?;
                (status["state"] == state).then_some(status)
            },
            String::new,
        )
    };
    standby.await_log("holder is in control");
    assert_eq!(get(at, "/readyz").status, 200);
    proxy.set(Mode::Refuse(403, "AuthenticationFailed"));
    let status = await_state("refused");
    assert_eq!(status["holder"], serde_json::Value::Null, "{status}");
    assert!(
        status["cause"]
            .as_str()
            .unwrap()
            .contains("403 AuthenticationFailed"),
        "{status}"
    );
    let ready = get(at, "/readyz");
    assert_eq!(ready.status, 503, "{ready:?}");
    assert!(ready.body.contains("AuthenticationFailed"), "{ready:?}");
    // If the right comes back in time, nothing is lost.
    proxy.set(Mode::Pass);
    await_for(
        "the holder's name",
        || (await_state("standby")["holder"] == "holder").then_some(()),
        String::new,
    );
    assert_eq!(get(at, "/readyz").status, 200);
    proxy.set(Mode::Refuse(403, "AuthenticationFailed"));
    assert_eq!(standby.wait(), Ended::Code(77), "{}", standby.stderr());
    let said = standby.stderr();
    assert!(said.contains("--auth-patience"), "{said}");
    stage.assert_undisturbed();
    stage.let_end("holder");
}

#[test]
fn service_that_is_older_than_the_version_we_speak_is_named_with_what_helps() {
    let stage = Stage::new("old-service");
    let proxy = Proxy::before(azurite().port);
    proxy.set(Mode::Refuse(400, "InvalidHeaderValue"));
    let run = stage.run(proxy.port).command(["true"]);
    assert_ended(&run.finish(), 69, "--skipApiVersionCheck");
}

#[test]
fn credentials_are_kept_from_the_command_and_its_hooks_if_that_is_asked_for() {
    let stage = Stage::new("unshared-credentials");
    let script = "env | grep -o '^AZURE_[A-Z_]*' | sort";
    let inherited = |options: &[&str]| {
        let run = stage.run(azurite().port).args(["--identity", "one"]);
        let finished = run
            .env("AZURE_REGION", "westeurope")
            .args(["--on-acquire", script, "--on-lost", script])
            .args(options)
            .shell(script)
            .finish();
        assert_ended(&finished, 0, "");
        finished.stdout
    };
    let all = "AZURE_REGION\nAZURE_STORAGE_CONNECTION_STRING\n";
    assert_eq!(inherited(&[]), all.repeat(3));
    // No credentials, so they stay.
    assert_eq!(inherited(&["--no-credentials"]), "AZURE_REGION\n".repeat(3));
}

#[test]
fn the_lock_s_url_is_kept_from_the_command_where_it_has_a_signature_in_it() {
    let stage = Stage::new("unshared-signature");
    stage.blob.create(&[]);
    let (port, name) = (azurite().port, &stage.blob.name);
    let url = format!("http://127.0.0.1:{port}/devstoreaccount1/{name}");
    let inherited = |options: &[&str]| {
        let run = stage.scene.run();
        let run = run.env("TRAFFICCOP_BLOB", format!("{url}?{}", sas_for("rcw")));
        let script = "env | grep -o '^TRAFFICCOP_BLOB'; true";
        let finished = run.args(options).shell(script).finish();
        assert_ended(&finished, 0, "");
        finished.stdout
    };
    assert_eq!(inherited(&[]), "TRAFFICCOP_BLOB\n");
    assert_eq!(inherited(&["--no-credentials"]), "");
}
