//! `trafficcop run --blob`: a lease on a real (emulated) store, with a network that fails on
//! command.
//!
//! Leases of 15 seconds cost real time; the tests spend it concurrently.

mod announced;
mod blob;
mod clock;
mod contact;
mod doorbell;
mod doorbell_forged;
mod foreign;
mod hand_over;
mod lost_reply;
mod others;
mod outage;
mod own_answers;
mod refused;
mod replaced;
mod standbys;

use std::fs::File;

use nix::sys::signal::Signal;

use crate::support::azurite::{KEY, connection_string};
use crate::support::bell::Bell;
use crate::support::blob::Blob;
use crate::support::instance::{Ended, Instance, Run};
use crate::support::journal::What;
use crate::support::proxy::{Call, Proxy, Seen};
use crate::support::scene::Scene;

const TERM: Ended = Ended::Died(Signal::SIGTERM);
const KILL: Ended = Ended::Died(Signal::SIGKILL);
/// Shortest lease of the service.
const LEASE: u64 = 15_000_000_000;
const SECOND: u64 = 1_000_000_000;
/// Lease id of no instance.
const STRANGER: &str = "11111111-2222-3333-4444-555555555555";

/// A doorbell without polls while a test lasts.
const BELL: [&str; 4] = ["--doorbell=127.0.0.1", "--poll", "1h", "-v"];

struct Stage {
    scene: Scene,
    blob: Blob,
}

impl Stage {
    fn new(container: &str) -> Stage {
        Stage {
            scene: Scene::new(),
            blob: Blob::named(&format!("{container}/singleton")),
        }
    }

    /// `trafficcop run` on the blob through this port, with the shortest lease.
    fn run(&self, port: u16) -> Run<'_> {
        self.scene
            .run()
            .env("AZURE_STORAGE_CONNECTION_STRING", connection_string(port))
            .env("TRAFFICCOP_LEASE", "15s")
            .env("TRAFFICCOP_POLL", "500ms")
            .args(["--blob", &self.blob.name])
    }

    /// Starts an instance whose command writes into the journal until [`Stage::let_end`].
    fn instance(&self, port: u16, name: &str, options: &[&str], command: &[&str]) -> Instance {
        let done = self.scene.path(&format!("{name}.done"));
        let mut words = vec!["--until", done.to_str().unwrap()];
        words.extend(command);
        let run = self.run(port).args(["--identity", name]).args(options);
        run.journalist(name, &words).start()
    }

    fn let_end(&self, name: &str) {
        File::create(self.scene.path(&format!("{name}.done"))).unwrap();
    }

    fn assert_undisturbed(&self) {
        let journal = &self.scene.journal;
        assert!(
            journal.lines().iter().all(|line| line.what != What::Term),
            "{journal}"
        );
    }
}

/// Checks that every process of the first tenure ended before its lease, last renewed by `last`,
/// could end.
fn assert_dead_in_time(stage: &Stage, tag: &str, last: &Seen) {
    let journal = &stage.scene.journal;
    let tenure = journal
        .tenures()
        .into_iter()
        .find(|tenure| tenure.tag == tag)
        .unwrap();
    // The proxy saw the request after it was sent: no stricter than the promise. The judge sees
    // whether another ran before.
    assert!(
        tenure.last < last.at + LEASE,
        "lived after its lease\n{journal}"
    );
}

/// Returns the last acquire or renewal whose reply reached the instance.
fn last_grant(proxy: &Proxy) -> Seen {
    let mut log = proxy.log();
    log.retain(|seen| {
        matches!(seen.call, Call::Acquire | Call::Renew)
            && seen.delivered
            && seen.status.is_some_and(|status| status < 300)
    });
    log.pop().expect("a grant")
}

fn advertised(stage: &Stage) -> Bell {
    Bell::parse(&stage.blob.metadata("trafficcop_doorbell").expect("a bell"))
}

/// Waits until a standby polls as often as every 500 ms.
fn await_polls_as_ever(proxy: &Proxy) {
    let first = proxy.await_next(Call::Look);
    let last = (0..4).fold(first.at, |_, _| proxy.await_next(Call::Look).at);
    // It would look once or twice if it heard a doorbell.
    let took = last - first.at;
    assert!(took < 2 * 9 * SECOND, "four looks more in {took} ns");
}

fn assert_no_secret(text: &str) {
    for secret in [KEY, "sig=", "Signature=SharedKey", "AccountKey="] {
        assert!(!text.contains(secret), "a secret is shown:\n{text}");
    }
}

/// One process notes a TERM and stays; others do not note it.
const A_TREE: [&str; 7] = [
    "--term",
    "600000:9",
    "--daemon",
    "--children",
    "1",
    "--storm",
    "3",
];
