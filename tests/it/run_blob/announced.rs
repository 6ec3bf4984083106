//! An event for the holder's machine: the lease goes to another instance, and comes back only after
//! it.

use super::{A_TREE, Stage};
use crate::support::azurite::azurite;
use crate::support::instance::Ended;
use crate::support::journal::What;
use crate::support::metadata::Metadata;
use crate::support::proxy::{Call, Proxy};

#[test]
fn a_machine_about_to_be_rebooted_gives_its_lease_away_and_asks_for_none_until_it_is_over() {
    let stage = Stage::new("announced");
    let journal = &stage.scene.journal;
    let metadata = Metadata::of("web-1");
    let proxy = Proxy::before(azurite().port);
    let run = stage.run(proxy.port).args(["--identity", "first"]);
    let done = stage.scene.path("first.done");
    let mut words = vec!["--until", done.to_str().unwrap()];
    words.extend(A_TREE);
    let mut first = run
        .args(["--grace", "500ms", "--scheduled-events"])
        .env("TRAFFICCOP_SCHEDULED_EVENTS_ENDPOINT", &metadata.url)
        .journalist("first", &words)
        .start();
    journal.await_tag(What::Beat, "first");
    let mut second = stage.instance(azurite().port, "second", &[], &[]);
    second.await_log("standing by: first is in control, token 1");

    metadata.announce("x", "Reboot", "web-1");
    journal.await_tag(What::Beat, "second");
    first.await_log("gave the lock back");
    first.await_log("cordoned");
    let asked = || {
        let log = proxy.log();
        log.iter().filter(|seen| seen.call == Call::Acquire).count()
    };
    let before = asked();
    stage.let_end("second");
    assert_eq!(second.wait(), Ended::Code(0), "{}", second.stderr());
    assert_eq!(stage.blob.lease_state(), "available");
    metadata.await_asked(2);
    assert_eq!(asked(), before, "it competed on a cordoned machine");

    metadata.announce_nothing();
    first.await_log("in control, token 3");
    stage.let_end("first");
    first.wait();
    // Twice the first, with the other in between.
    assert_eq!(journal.judge(), ["first", "second", "first"]);
    stage.scene.await_nobody();
}
