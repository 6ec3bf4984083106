//! Another program replaces a lock's metadata between two tenures.

use super::Stage;
use crate::support::azurite::azurite;
use crate::support::instance::Ended;

const WARNING: &str = "has no fencing token";

fn token(stage: &Stage) -> u64 {
    let token = stage.blob.metadata("trafficcop_token").expect("a token");
    token.parse().expect("a number")
}

fn run(stage: &Stage, options: &[&str]) -> String {
    let run = stage.run(azurite().port).args(options);
    let finished = run.command(["true"]).finish();
    assert_eq!(finished.ended, Ended::Code(0), "{}", finished.stderr);
    finished.stderr
}

#[test]
fn replaced_metadata_never_take_the_token_back_and_are_reported() {
    let stage = Stage::new("replaced");
    for _ in 0..3 {
        assert!(!run(&stage, &[]).contains(WARNING));
    }
    assert_eq!(token(&stage), 3);
    stage.blob.strip();
    let said = run(&stage, &["--once-key", "v1"]);
    assert!(said.contains(WARNING) && said.contains("--once"), "{said}");
    let first = token(&stage);
    assert!(first > 1_700_000_000, "{first}");
    assert!(!run(&stage, &[]).contains(WARNING));
    assert_eq!(token(&stage), first + 1);
}

#[test]
fn blob_that_a_tool_made_and_did_not_touch_gives_no_warning() {
    let stage = Stage::new("made-by-a-tool");
    stage.blob.create(&[]);
    let said = run(&stage, &[]);
    assert!(!said.contains(WARNING), "{said}");
    assert!(token(&stage) > 1_700_000_000);
}
