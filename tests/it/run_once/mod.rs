//! `trafficcop run --once`: a task that one instance does once.
//!
//! Despite crashes, cuts and breaks there are never two runs at a time, never "done" without a
//! success, and never a second run after a recorded success.

mod clocks;
mod crashes;
mod results;
mod together;

use std::fs::File;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::support::await_for;
use crate::support::azurite::{azurite, connection_string};
use crate::support::blob::Blob;
use crate::support::instance::{Ended, Finished, Instance, Run};
use crate::support::journal::What;
use crate::support::scene::Scene;

const TERM: Ended = Ended::Died(Signal::SIGTERM);
const KILL: Ended = Ended::Died(Signal::SIGKILL);
const DONE: Ended = Ended::Code(0);

struct Stage {
    scene: Scene,
    /// The blob; `None` if the lock is the scene's file.
    blob: Option<Blob>,
}

impl Stage {
    fn on_file() -> Stage {
        Stage {
            scene: Scene::new(),
            blob: None,
        }
    }

    fn on_blob(container: &str) -> Stage {
        Stage {
            scene: Scene::new(),
            blob: Some(Blob::named(&format!("{container}/singleton"))),
        }
    }

    fn on_both(container: &str) -> [Stage; 2] {
        [Stage::on_file(), Stage::on_blob(container)]
    }

    fn blob(&self) -> &Blob {
        self.blob.as_ref().expect("a blob")
    }

    /// `trafficcop run` on the lock; a blob is reached directly.
    fn run(&self) -> Run<'_> {
        self.run_by(azurite_port(self))
    }

    /// `trafficcop run` on the lock; a blob is reached through this port.
    fn run_by(&self, port: u16) -> Run<'_> {
        let Some(blob) = &self.blob else {
            return self.scene.run_on_file();
        };
        self.scene
            .run()
            .env("AZURE_STORAGE_CONNECTION_STRING", connection_string(port))
            .env("TRAFFICCOP_LEASE", "15s")
            .env("TRAFFICCOP_POLL", "500ms")
            .args(["--blob", &blob.name])
    }

    /// Starts a candidate whose command writes into the journal until [`Stage::let_end`].
    fn candidate(&self, name: &str, options: &[&str]) -> Instance {
        self.candidate_by(azurite_port(self), name, options)
    }

    fn candidate_by(&self, port: u16, name: &str, options: &[&str]) -> Instance {
        let done = self.scene.path(&format!("{name}.done"));
        self.run_by(port)
            .args(["--once", "--identity", name])
            .args(options)
            .journalist(name, &["--until", done.to_str().unwrap()])
            .start()
    }

    fn let_end(&self, name: &str) {
        File::create(self.scene.path(&format!("{name}.done"))).unwrap();
    }

    fn late(&self, name: &str, options: &[&str]) -> Finished {
        self.run()
            .args(["--once", "--identity", name])
            .args(options)
            .journalist(name, &["--beats", "2"])
            .finish()
    }

    /// Checks that a newcomer reads that this instance has done the task.
    fn assert_done_by(&self, name: &str) {
        let runs = self.scene.journal.judge();
        let late = self.late("late", &["-n"]);
        assert_eq!(late.ended, DONE, "{}", late.stderr);
        assert_was_served(&late.stderr, name);
        assert_eq!(self.scene.journal.judge(), runs, "{}", self.scene.journal);
    }

    /// Waits until the command of this tag and its tree have ended by themselves.
    fn await_end_of(&self, tag: &str) {
        self.scene.journal.await_tag(What::End, tag);
        await_for(
            "the command's tree to be gone",
            || self.scene.trees().is_empty().then_some(()),
            || self.scene.journal.to_string(),
        );
    }
}

fn azurite_port(stage: &Stage) -> u16 {
    stage.blob.as_ref().map_or(0, |_| azurite().port)
}

fn assert_was_served(stderr: &str, by: &str) {
    let words = format!("already done by {by} at ");
    assert!(stderr.contains(&words), "{stderr}");
}

fn signal(pid: i32, number: Signal) {
    kill(Pid::from_raw(pid), number).expect("it is there and ours");
}
