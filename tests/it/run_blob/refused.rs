//! A machine that refuses threads and other calls of the runtime.

use super::{SECOND, Stage, assert_no_secret};
use crate::support::azurite::{azurite, connection_string};
use crate::support::instance::{Ended, Instance};
use crate::support::journal::What;
use crate::support::processes::Process;
use crate::support::proxy::{Call, Mode, Proxy};

/// Starts an instance on such a machine; its store's name must be resolved.
fn instance(stage: &Stage, port: u16, options: &[&str], command: &[&str]) -> Instance {
    let done = stage.scene.path("one.done");
    let mut words = vec!["--until", done.to_str().unwrap()];
    words.extend(command);
    let by_name = connection_string(port).replace("127.0.0.1", "localhost");
    stage
        .run(port)
        .env("AZURE_STORAGE_CONNECTION_STRING", by_name)
        .on_a_machine_that_refuses()
        .args(["--identity", "one"])
        .args(options)
        .journalist("one", &words)
        .start()
}

#[test]
fn store_is_resolved_without_a_spare_thread() {
    let stage = Stage::new("no-thread");
    let journal = &stage.scene.journal;
    let proxy = Proxy::before(azurite().port);
    let mut one = instance(&stage, proxy.port, &[], &["--term", "60000:9"]);
    journal.await_tag(What::Beat, "one");
    proxy.await_next(Call::Renew);
    stage.scene.refuse("pthread_create");
    // Each renewal needs a new connection.
    proxy.set(Mode::Cut);
    one.await_log("cannot renew the lease");
    proxy.set(Mode::Pass);
    one.await_log("the store answers again");
    let recovered = trafficcop::Instant::now().as_nanos();
    journal.await_line("life on the new lease", |line| {
        line.at > recovered + 12 * SECOND
    });
    stage.let_end("one");
    assert_eq!(one.wait(), Ended::Code(0), "{}", one.stderr());
    assert_eq!(journal.judge(), ["one"]);
    stage.assert_undisturbed();
    assert_eq!(stage.blob.lease_state(), "available");
}

#[test]
fn a_store_that_was_never_looked_up_for_want_of_a_thread_is_out_of_reach_and_no_panic() {
    let stage = Stage::new("no-thread-at-all");
    stage.scene.refuse("pthread_create");
    let finished = instance(&stage, azurite().port, &["-w", "3s"], &[]).finish();
    assert_eq!(finished.ended, Ended::Code(69), "{}", finished.stderr);
    let said = &finished.stderr;
    assert!(
        said.contains("localhost cannot be looked up: no thread can be started"),
        "{said}"
    );
    assert!(
        stage.scene.journal.lines().is_empty(),
        "it must not have run"
    );
}

/// The runtime fails in a way that never happens, and panics.
#[test]
fn a_supervisor_that_panics_leaves_a_drained_command_and_a_released_lease() {
    let stage = Stage::new("panic");
    let journal = &stage.scene.journal;
    // Its command takes a while after TERM.
    let term = ["--term", "3000:0", "--daemon"];
    let one = instance(&stage, azurite().port, &["--lease", "60s"], &term);
    journal.await_tag(What::Beat, "one/daemon");
    let guardian = one.guardian();
    stage.scene.refuse("epoll_wait");
    one.await_log("trafficcop itself failed");
    // The guardian needs it once the command has ended.
    stage.scene.grant("epoll_wait");
    journal.await_tag(What::Term, "one");
    let finished = one.finish();
    assert_eq!(finished.ended, Ended::Code(70), "{}", finished.stderr);
    // The guardian ended it: a caller that waits for the supervisor finds no leftovers.
    assert!(Process::read(guardian).is_none(), "{}", finished.stderr);
    stage.scene.assert_no_tree();
    assert_eq!(stage.blob.lease_state(), "available");
    let said = finished.stderr.matches("itself failed").count();
    assert_eq!(said, 1, "{}", finished.stderr);
    assert_no_secret(&finished.stderr);
}
