use super::*;
use crate::entra::desk::Manner;

#[test]
fn they_look_and_intervene_with_a_token() {
    let stage = Stage::local("verbs");
    stage.scene.excuse_confession("the lease is broken at once");
    let hold = stage
        .with_endpoint(stage.run())
        .env("AZURE_AUTHORITY_HOST", "");
    let mut one = stage.instance(hold, "one", &["--term", "60000:9"]);
    stage.scene.journal.await_tag(What::Beat, "one");
    let ask = |verb: &str, words: &[&str]| {
        let run = stage.with_endpoint(stage.verb(verb));
        let run = run.env("AZURE_AUTHORITY_HOST", "");
        let finished = run.args(words).finish();
        no_secret(&(finished.stdout.clone() + &finished.stderr));
        finished
    };
    let status = ask("status", &[]);
    assert_eq!(status.ended, Ended::Code(0), "{status:?}");
    assert!(status.stdout.contains("one"), "{status:?}");

    let doctor = ask("doctor", &[]);
    assert_eq!(doctor.ended, Ended::Code(0), "{doctor:?}");
    assert!(
        doctor
            .stdout
            .contains("Entra ID (managed identity) for https://127.0.0.1"),
        "{doctor:?}"
    );
    assert!(doctor.stdout.contains("a token for 5"), "{doctor:?}");

    let broken = ask("break", &["--yes", "--period", "0"]);
    assert_eq!(broken.ended, Ended::Code(0), "{broken:?}");
    one.await_log("the lease was broken");
    stage.let_end("one");
    let _ = one.wait();

    stage.desk.set(Manner::Answer(
        400,
        r#"{"error":"invalid_request","error_description":"Identity not found"}"#.into(),
    ));
    let doctor = ask("doctor", &[]);
    assert_eq!(doctor.ended, Ended::Code(1), "{doctor:?}");
    for word in ["fail", "credential", "400", "Identity not found", "assign"] {
        assert!(doctor.stdout.contains(word), "no {word} in {doctor:?}");
    }
}

#[test]
fn elect_competes_with_a_token() {
    let stage = Stage::new("verbs-elect");
    let run = stage
        .with_secret(stage.verb("elect"))
        .env("TRAFFICCOP_LEASE", "15s");
    let mut one = run.start();
    crate::support::await_for(
        "control",
        || one.stdout().contains("holder 1").then_some(()),
        || one.stderr(),
    );
    one.signal(nix::sys::signal::Signal::SIGTERM);
    let _ = one.wait();
    no_secret(&(one.stdout() + &one.stderr()));
}
