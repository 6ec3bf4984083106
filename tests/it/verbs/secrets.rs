//! Secrets that must never be shown: everything runs at the highest log level, with each kind of
//! secret, on a store that fails now and then. Then all output, files, answers and /proc are
//! searched.

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;

use nix::sys::signal::Signal;

use super::STRING;
use crate::support::azurite::{ACCOUNT, KEY, azurite, connection_string};
use crate::support::blob::{Blob, sas};
use crate::support::instance::{Ended, Finished, Instance, Run};
use crate::support::processes;
use crate::support::proxy::{Call, Fate, Proxy};
use crate::support::scene::Scene;
use crate::support::{WAIT_LIMIT, await_for};

/// Log filters of the client libraries, of those in other languages, and of usual Rust programs.
const LOUD: [(&str, &str); 5] = [
    ("RUST_LOG", "trace"),
    ("AZURE_LOG_LEVEL", "verbose"),
    ("AZURE_CLIENT_LOG_LEVEL", "trace"),
    ("TRAFFICCOP_VERBOSE", "1"),
    ("RUST_BACKTRACE", "full"),
];

/// The lock's name, the environment, and the texts that must not appear.
struct Kind {
    scene: Scene,
    proxy: Proxy,
    blob: Blob,
    env: Vec<(&'static str, String)>,
    needles: Vec<String>,
    haystack: Vec<(String, String)>,
}

fn escaped(text: &str) -> String {
    url::form_urlencoded::byte_serialize(text.as_bytes()).collect()
}

fn key() -> Vec<String> {
    let bare = KEY.trim_end_matches('=');
    vec![bare.to_owned(), escaped(bare), escaped(&escaped(bare))]
}

fn signature() -> Vec<String> {
    let (_, rest) = sas().split_once("sig=").expect("a signature");
    let decode = url::form_urlencoded::parse(sas().as_bytes());
    let plain = decode.filter(|(name, _)| name == "sig").map(|pair| pair.1);
    let plain = plain.last().expect("one").into_owned();
    let bare = plain.trim_end_matches('=').to_owned();
    let short = escaped(&bare);
    vec![bare, short.clone(), escaped(&short), rest.to_owned()]
}

impl Kind {
    fn new(
        name: &str,
        needles: Vec<String>,
        env: impl FnOnce(u16, &str) -> Vec<(&'static str, String)>,
    ) -> Kind {
        let proxy = Proxy::before(azurite().port);
        let blob = Blob::named(&format!("secrets-{name}/one"));
        let url = format!("http://127.0.0.1:{}/{ACCOUNT}/{}", proxy.port, blob.name);
        Kind {
            scene: Scene::new(),
            env: env(proxy.port, &url),
            proxy,
            blob,
            needles,
            haystack: Vec::new(),
        }
    }

    fn verb<'a>(scene: &'a Scene, env: &[(&'static str, String)], verb: &str) -> Run<'a> {
        let mut run = scene.verb(verb);
        for (name, value) in env {
            run = run.env(name, value);
        }
        for (name, value) in LOUD {
            run = run.env(name, value);
        }
        run
    }

    fn found(&mut self, place: &str, text: impl Into<String>) {
        self.haystack.push((place.to_owned(), text.into()));
    }

    fn ended(&mut self, verb: &str, finished: Finished) {
        self.found(&format!("{verb}, stdout"), finished.stdout);
        self.found(&format!("{verb}, stderr"), finished.stderr);
    }

    fn file(&mut self, path: &Path) {
        let bytes = std::fs::read(path).unwrap_or_else(|why| panic!("{}: {why}", path.display()));
        let text = String::from_utf8_lossy(&bytes).into_owned();
        assert!(!text.is_empty(), "{} is empty", path.display());
        self.found(&path.display().to_string(), text);
    }

    /// Searches what all users can see of the processes, and their environments, which only their
    /// owner can see and which may contain only what the test passed. Returns how many held a
    /// secret.
    fn processes(&mut self) -> usize {
        let all = processes::marked(self.scene.directory());
        assert!(
            all.len() >= 5,
            "supervisors, guardians and commands: {all:?}"
        );
        let given: BTreeMap<&str, &str> = self.env.iter().map(|(n, v)| (*n, &**v)).collect();
        let mut bearers = 0;
        let mut lines = Vec::new();
        for process in &all {
            let read = |name: &str| {
                let bytes = std::fs::read(format!("/proc/{}/{name}", process.pid));
                String::from_utf8_lossy(&bytes.unwrap_or_default()).into_owned()
            };
            for name in ["cmdline", "comm"] {
                lines.push((format!("{name} of {process:?}"), read(name)));
            }
            for variable in read("environ").split('\0') {
                let (name, value) = variable.split_once('=').unwrap_or((variable, ""));
                if self.shows(variable) {
                    bearers += 1;
                    assert_eq!(given.get(name), Some(&value), "{name} of {process:?}");
                }
            }
        }
        self.haystack.extend(lines);
        bearers
    }

    fn shows(&self, text: &str) -> bool {
        self.needles.iter().any(|needle| text.contains(&**needle))
    }

    fn pages(&mut self, instance: &Instance) {
        let words = "answering at http://";
        instance.await_log(words);
        let log = instance.stderr();
        let (_, rest) = log.split_once(words).expect("awaited");
        let at: String = rest
            .chars()
            .take_while(|c| c.is_ascii_digit() || ".:".contains(*c))
            .collect();
        for page in [
            "healthz", "readyz", "leader", "status", "metrics", "nothing",
        ] {
            let mut stream = TcpStream::connect(&at).expect("it answers");
            stream.set_read_timeout(Some(WAIT_LIMIT)).expect("a limit");
            write!(stream, "GET /{page} HTTP/1.1\r\nHost: here\r\n\r\n").expect("it reads");
            let mut text = String::new();
            stream.read_to_string(&mut text).expect("it answers");
            assert!(text.starts_with("HTTP/1.1 "), "{text}");
            self.found(&format!("GET /{page}"), text);
        }
    }

    fn everything(mut self) {
        let (status, events) = (self.scene.path("status.json"), self.scene.path("events"));
        // The hooks have the command's environment: their output is judged with its.
        let mut holder = Self::verb(&self.scene, &self.env, "run")
            .args(["--identity", "web1", "--lease", "30s", "--log", "json"])
            .args([
                "--on-acquire",
                "env >&2; true",
                "--on-lost",
                "env >&2; true",
            ])
            .args(["--once-key", "v1"])
            .args(["--listen", "127.0.0.1:0"])
            .arg("--status-file")
            .arg(&status)
            .arg("--event-log")
            .arg(&events)
            .shell("trap 'exit 0' TERM; while :; do sleep 0.05; done")
            .start();
        holder.await_log("in control");
        let mut standby = Self::verb(&self.scene, &self.env, "elect")
            .args(["--identity", "web2", "--lease", "15s", "--poll", "500ms"])
            .arg("--event-log")
            .arg(&events)
            .start();
        standby.await_log("standing by");
        let mut watch = Self::verb(&self.scene, &self.env, "watch").start();
        await_for(
            "watch to say something",
            || (!watch.stdout().is_empty()).then_some(()),
            || watch.stderr(),
        );
        self.pages(&holder);
        let bearers = self.processes();
        assert!(bearers > 0, "this test would not see a secret in /proc");
        // Trouble of each kind, followed by a renewal.
        for fate in [Fate::Refuse(403, "AuthenticationFailed"), Fate::LoseReply] {
            self.proxy.next(Call::Renew, fate);
        }
        let refused = holder.stderr().matches("renewed: good for").count();
        holder.await_log_times("renewed: good for", refused + 1);
        for verb in ["status", "list", "doctor"] {
            let finished = Self::verb(&self.scene, &self.env, verb).finish();
            self.ended(verb, finished);
        }
        let record = self.blob.look().expect("the lock");
        self.found("the record", format!("{record:?}"));
        self.file(&status);
        let broken = Self::verb(&self.scene, &self.env, "break")
            .arg("-y")
            .finish();
        assert_eq!(broken.ended, Ended::Code(0), "{broken:?}");
        self.ended("break", broken);
        holder.signal(Signal::SIGTERM);
        holder.wait();
        standby.signal(Signal::SIGTERM);
        standby.wait();
        watch.signal(Signal::SIGTERM);
        watch.wait();
        let done = Self::verb(&self.scene, &self.env, "run")
            .args(["--once-key", "v2", "-v"])
            .shell("true")
            .finish();
        assert_eq!(done.ended, Ended::Code(0), "{done:?}");
        self.ended("run --once", done);
        let reset = Self::verb(&self.scene, &self.env, "reset")
            .args(["--all", "--yes"])
            .finish();
        assert_eq!(reset.ended, Ended::Code(0), "{reset:?}");
        self.ended("reset", reset);
        self.proxy
            .next(Call::Look, Fate::Refuse(403, "AuthenticationFailed"));
        let refused = Self::verb(&self.scene, &self.env, "status").finish();
        assert_eq!(refused.ended, Ended::Code(77), "{refused:?}");
        self.ended("status, refused", refused);
        let timeline = self.scene.verb("timeline").arg(&events).finish();
        assert_eq!(timeline.ended, Ended::Code(0), "{timeline:?}");
        self.ended("timeline", timeline);
        self.file(&events);
        for (name, instance) in [("run", &holder), ("elect", &standby), ("watch", &watch)] {
            let (out, err) = (instance.stdout(), instance.stderr());
            self.found(&format!("{name}, stdout"), out);
            self.found(&format!("{name}, stderr"), err);
        }
        self.judge();
    }

    fn judge(&self) {
        let whole: String = self.haystack.iter().map(|(_, text)| &**text).collect();
        // The log level was the highest, through the trouble, and to the end.
        for words in [
            "renewed: good for",
            "\"level\":\"debug\"",
            "403",
            "released",
        ] {
            assert!(whole.contains(words), "nothing says {words:?}: {whole}");
        }
        for (place, text) in &self.haystack {
            for needle in self.needles.iter().map(String::as_str).chain([
                "SharedKey devstore",
                "AccountKey=",
                "sig=",
            ]) {
                // Hooks print their environment, which has what the test passed.
                let lines = text.lines().filter(|line| {
                    !self
                        .env
                        .iter()
                        .any(|(name, value)| **line == format!("{name}={value}"))
                });
                for line in lines {
                    assert!(!line.contains(needle), "{needle:?} in {place}: {line}");
                }
            }
        }
        assert!(self.haystack.len() > 20, "{}", self.haystack.len());
    }
}

#[test]
fn an_account_s_key_is_shown_nowhere() {
    Kind::new("key", key(), |_, url| {
        vec![
            ("TRAFFICCOP_BLOB", url.to_owned()),
            ("AZURE_STORAGE_ACCOUNT", ACCOUNT.to_owned()),
            ("AZURE_STORAGE_KEY", KEY.to_owned()),
        ]
    })
    .everything();
}

#[test]
fn a_connection_string_is_shown_nowhere() {
    Kind::new("string", key(), |port, _| {
        vec![
            ("TRAFFICCOP_BLOB", "secrets-string/one".to_owned()),
            (STRING, connection_string(port)),
        ]
    })
    .everything();
}

#[test]
fn a_sas_is_shown_nowhere() {
    Kind::new("sas", signature(), |_, url| {
        vec![
            ("TRAFFICCOP_BLOB", url.to_owned()),
            ("AZURE_STORAGE_SAS_TOKEN", sas().to_owned()),
        ]
    })
    .everything();
}

#[test]
fn a_sas_in_the_lock_s_url_is_shown_nowhere() {
    Kind::new("url", signature(), |_, url| {
        vec![("TRAFFICCOP_BLOB", format!("{url}?{}", sas()))]
    })
    .everything();
}
