//! The guardian releases with the dead supervisor's token.

use std::time::Duration;

use nix::sys::signal::Signal;
use trafficcop::Instant;

use super::*;
use crate::entra::desk::Manner;

#[test]
fn guardian_releases_although_no_new_token_is_available() {
    let stage = Stage::new("by-death");
    let journal = &stage.scene.journal;
    // Renewed once: forked before the first token, the guardian has the latest.
    stage.desk.set(Manner::Issue(10));
    let options = ["--lease", "60s", "--grace-on-loss", "1s", "--grace", "1s"];
    let run = stage.with_secret(stage.run()).args(options);
    let first = stage.instance(run, "first", &["--daemon"]);
    journal.await_tag(What::Beat, "first");
    stage.desk.set(Manner::Issue(HOUR));
    stage.desk.await_asked(2);
    let run = stage.with_secret(stage.run()).args(options);
    let mut second = stage.instance(run, "second", &[]);
    second.await_log("standing by: first is in control");
    // Longer than the first token was valid.
    let first_token_over = Instant::now() + Duration::from_secs(10);
    stage.desk.set(Manner::Answer(500, "no".into()));
    while Instant::now() < first_token_over {
        journal.await_sign_of_life("first");
    }

    let begin = Instant::now();
    first.signal(Signal::SIGKILL);
    journal.await_tag(What::Beat, "second");
    let took = Instant::now().since(begin);
    assert!(
        took < Duration::from_secs(30),
        "the lease was left to run out: {took:?}"
    );
    stage.let_end("second");
    assert_eq!(second.wait(), Ended::Code(0), "{}", second.stderr());
    assert_eq!(journal.judge(), ["first", "second"]);
    drop(first);
    stage.scene.await_nobody();
}
