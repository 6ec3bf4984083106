//! `trafficcop work` on a real (emulated) queue, with real commands and a network that fails on
//! command.

mod at_most_once;
mod crashes;
mod exclusive;
mod handing;
mod peer;
mod refused;
mod settling;
mod stopping;
mod told;

use crate::support::azurite::{KEY, queue_string, queues};
use crate::support::instance::{Ended, Finished, Run, assert_ended};
use crate::support::queue::{Letter, Mailbox};
use crate::support::scene::Scene;
use crate::support::stopping::stopped_by;

const CONNECTION: &str = "AZURE_STORAGE_CONNECTION_STRING";

fn worker_at<'a>(scene: &'a Scene, mailbox: &Mailbox, port: u16) -> Run<'a> {
    scene
        .verb("work")
        .args(["--queue", &mailbox.name])
        .env(CONNECTION, queue_string(port, KEY))
}

fn worker<'a>(scene: &'a Scene, mailbox: &Mailbox) -> Run<'a> {
    worker_at(scene, mailbox, queues().port)
}

fn with(text: &str) -> (Scene, Mailbox) {
    let mailbox = Mailbox::fresh();
    mailbox.put(text);
    (Scene::new(), mailbox)
}

fn once(scene: &Scene, mailbox: &Mailbox, more: &[&str], script: &str) -> Finished {
    worker(scene, mailbox)
        .args(["--once", "--retry-delay", "1h"])
        .args(more)
        .shell(script)
        .finish()
}

#[track_caller]
fn poisoned(mailbox: &Mailbox) -> Letter {
    let poison = mailbox.poison();
    assert!(poison.exists(), "nothing was dead-lettered");
    let mut letters = poison.visible();
    assert_eq!(letters.len(), 1, "{letters:?}");
    assert_eq!(mailbox.count(), 0, "it is still here, too");
    letters.remove(0)
}
