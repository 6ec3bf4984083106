//! The verbs that look at locks and intervene: output, effects, and what they must not do. Output
//! is judged by its content, not its layout.

mod breaking;
mod doctor;
mod health;
mod list;
mod look;
mod reset;
mod secrets;
mod slots;
mod watch;

use crate::support::azurite::{KEY, azurite, connection_string};
use crate::support::instance::{Ended, Finished, Instance, Run};
use crate::support::scene::Scene;
use serde_json::Value;

const STRING: &str = "AZURE_STORAGE_CONNECTION_STRING";

/// Fields of a lock in JSON.
const FIELDS: [&str; 15] = [
    "command",
    "health",
    "health_cause",
    "held",
    "holder",
    "host",
    "lock",
    "name",
    "once",
    "pid",
    "problem",
    "seconds",
    "since",
    "state",
    "token",
];

#[derive(Clone)]
struct Place {
    args: Vec<String>,
    string: Option<String>,
}

impl Place {
    fn file(scene: &Scene) -> Place {
        Place::path(&scene.lock())
    }

    fn path(path: &std::path::Path) -> Place {
        Place {
            args: vec!["--file".into(), path.display().to_string()],
            string: None,
        }
    }

    fn blob(name: &str) -> Place {
        Place::blob_at(name, azurite().port)
    }

    fn blob_at(name: &str, port: u16) -> Place {
        Place {
            args: vec!["--blob".into(), name.into()],
            string: Some(connection_string(port)),
        }
    }

    fn verb<'a>(&self, scene: &'a Scene, verb: &str) -> Run<'a> {
        let run = scene.verb(verb).args(&self.args);
        match &self.string {
            Some(string) => run.env(STRING, string),
            None => run,
        }
    }

    fn hold(&self, scene: &Scene, identity: &str, script: &str) -> Instance {
        let run = self.verb(scene, "run").args(["--identity", identity]);
        let instance = run.args(["--grace", "60s"]).shell(script).start();
        instance.await_log("in control");
        instance
    }

    /// Starts a holder whose command ignores SIGTERM by now.
    fn hold_stubbornly(&self, scene: &Scene) -> Instance {
        let deaf = scene.path("deaf");
        let script = format!(
            "trap '' TERM; : >'{}'; while :; do sleep 0.05; done",
            deaf.display()
        );
        let holder = self.hold(scene, "web1", &script);
        crate::support::await_for(
            "the command to be deaf",
            || deaf.exists().then_some(()),
            String::new,
        );
        holder
    }

    fn status(&self, scene: &Scene) -> Value {
        let finished = self.verb(scene, "status").arg("--json").finish();
        let told: Value = json(&finished);
        let held = told["held"].as_bool().expect("a boolean");
        let status = i32::from(!held);
        assert_eq!(finished.ended, Ended::Code(status), "{finished:?}");
        told
    }

    fn await_state(&self, scene: &Scene, state: &str) -> Value {
        crate::support::await_for(
            &format!("status to say {state}"),
            || Some(self.status(scene)).filter(|told| told["state"] == state),
            || self.status(scene).to_string(),
        )
    }
}

fn json(finished: &Finished) -> Value {
    serde_json::from_str(&finished.stdout).unwrap_or_else(|why| panic!("{why}: {finished:?}"))
}

#[track_caller]
fn assert_whole(lock: &Value) {
    let fields = lock.as_object().expect("an object").keys();
    assert!(fields.eq(FIELDS), "{lock}");
}

/// Checks for this status, these words on stdout, and no secret.
fn said(finished: &Finished, status: i32, words: &[&str]) {
    assert_eq!(finished.ended, Ended::Code(status), "{finished:?}");
    for word in words {
        assert!(
            finished.stdout.contains(word),
            "no {word:?} in {finished:?}"
        );
    }
    no_secret(finished);
}

/// Checks for a refusal with this status in one line on stderr with these words.
fn refused(finished: &Finished, status: i32, words: &[&str]) {
    assert_eq!(finished.ended, Ended::Code(status), "{finished:?}");
    let lines: Vec<&str> = finished.stderr.lines().collect();
    let [line] = lines[..] else {
        panic!("not one line that says why: {finished:?}");
    };
    assert!(line.starts_with("trafficcop: error: "), "{line}");
    for word in words {
        assert!(line.contains(word), "no {word:?} in {line}");
    }
    no_secret(finished);
}

fn no_secret(finished: &Finished) {
    let all = format!("{}{}", finished.stdout, finished.stderr);
    for secret in [KEY, "sig="] {
        assert!(!all.contains(secret), "a secret is shown: {all}");
    }
}
