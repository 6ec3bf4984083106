//! The stage of a row: instances, a proxy, and functions that wait for events.
//!
//! It looks every 25 ms and reads only what is new in the journal: dozens of rows play at the same
//! time, and looking must not slow the machine down.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use trafficcop::Instant;

use super::support::azurite::{azurite, connection_string};
use super::support::blob::Blob;
use super::support::instance::{Ended, Instance};
use super::support::journal::{Line, What};
use super::support::processes::{self, Process};
use super::support::proxy::{Call, Proxy, Seen};
use super::support::scene::Scene;
use super::table::{Contain, Lock, Shape};

/// Two leases that run out, and a minute and a half.
const ROW_LIMIT: Duration = Duration::from_secs(120);
/// Limit of a wait once every instance has ended, so that hardly anything can happen.
const NOBODY: Duration = Duration::from_secs(20);
const LOOK_INTERVAL: Duration = Duration::from_millis(25);

static PLAYED: AtomicU64 = AtomicU64::new(0);

struct Reader {
    file: Option<File>,
    rest: String,
    lines: Vec<Line>,
}

pub(crate) struct Stage {
    pub(crate) scene: Scene,
    pub(crate) lock: Lock,
    pub(crate) contain: Contain,
    pub(crate) lease: &'static str,
    pub(crate) blob: Blob,
    pub(crate) instances: BTreeMap<String, Instance>,
    pub(crate) proxies: BTreeMap<String, Proxy>,
    /// More than 1 if a slow store kept an earlier tenure from writing its record.
    pub(crate) first: u64,
    shapes: BTreeMap<String, Shape>,
    /// Commands are expected to send heartbeats, and do.
    pub(crate) watched: bool,
    reader: Reader,
}

impl Stage {
    pub(crate) fn new(place: &str, lock: Lock, contain: Contain, lease: &'static str) -> Stage {
        // A blob of its own, also when it is played again.
        let played = PLAYED.fetch_add(1, Ordering::Relaxed);
        Stage {
            scene: Scene::new(),
            lock,
            contain,
            lease,
            blob: Blob::named(&format!("faults/{place}-{played}")),
            instances: BTreeMap::new(),
            proxies: BTreeMap::new(),
            first: 1,
            shapes: BTreeMap::new(),
            watched: false,
            reader: Reader {
                file: None,
                rest: String::new(),
                lines: Vec::new(),
            },
        }
    }

    /// Puts a proxy in front of the instance that will have this name.
    pub(crate) fn put_proxy(&mut self, name: &str) -> &Proxy {
        let proxy = Proxy::before(azurite().port);
        self.proxies.entry(name.to_owned()).or_insert(proxy)
    }

    pub(crate) fn proxy(&self, name: &str) -> &Proxy {
        &self.proxies[name]
    }

    /// Starts an instance whose command runs until [`Stage::let_end`].
    pub(crate) fn start(&mut self, name: &str, shape: Shape) {
        let done = self.scene.path("done");
        let mut words = vec!["--until", done.to_str().expect("text"), "--every", "20"];
        words.extend(shape.command().0);
        let mut run = self.scene.run();
        run = match self.lock {
            Lock::File => run.arg("--file").arg(self.scene.lock()),
            Lock::Shared => run
                .arg("--file")
                .arg(self.scene.lock())
                .args(["--shared", "--lease", self.lease, "--poll", "1s"]),
            Lock::Store => {
                let helper = match std::env::var("FAULTS_STORE") {
                    Ok(helper) => helper,
                    Err(_) => self.scene.helper().display().to_string(),
                };
                // A real store keeps entries from one row, and from one run, to the next.
                let entry = self.scene.directory().file_name().unwrap_or_default();
                let store = format!("{helper}:{}", entry.display().to_string().replace('.', ""));
                run.env("STORE", self.scene.directory())
                    .args(["--store", &store, "--lease", self.lease, "--poll", "1s"])
            }
            Lock::Blob => {
                let proxy = self.proxies.get(name);
                let port = proxy.map_or_else(|| azurite().port, |proxy| proxy.port);
                let account = connection_string(port);
                run.env("AZURE_STORAGE_CONNECTION_STRING", account)
                    .args(["--blob", &self.blob.name])
                    .args(["--lease", self.lease, "--poll", "1s"])
            }
        };
        let options = ["--identity", name, "--contain", self.contain.word()];
        let mut run = run.args(options).args(["--grace", "500ms"]);
        if self.watched {
            words.push("--watchdog");
            run = run.args(["--watchdog", "5s", "--cooldown", "3s"]);
        }
        let instance = run.journalist(name, &words).start();
        self.instances.insert(name.to_owned(), instance);
        self.shapes.insert(name.to_owned(), shape);
    }

    /// Restarts instances that never reached the store: an emulator without processor time for half
    /// a lease is no row's subject.
    fn start_again(&mut self) {
        let strangers = self.instances.iter_mut().filter_map(|(name, one)| {
            let knew = |log: &str| log.contains("in control") || log.contains("standing by");
            let left = one.ended() == Some(Ended::Code(69)) && !knew(&one.stderr());
            left.then(|| name.clone())
        });
        for name in strangers.collect::<Vec<String>>() {
            self.start(&name, self.shapes[&name]);
        }
    }

    /// Lets every command end by itself, now and later.
    pub(crate) fn let_end(&self) {
        File::create(self.scene.path("done")).expect("a file in the scene");
    }

    pub(crate) fn until<T>(
        &mut self,
        what: &str,
        mut look: impl FnMut(&mut Stage) -> Option<T>,
    ) -> T {
        let begin = Instant::now();
        loop {
            if let Some(found) = look(self) {
                return found;
            }
            self.start_again();
            let waited = Instant::now().since(begin);
            let nobody =
                waited > NOBODY && self.instances.values_mut().all(|one| one.ended().is_some());
            if waited > ROW_LIMIT || nobody {
                panic!("waited in vain for {what}\n{}", self.story());
            }
            std::thread::sleep(LOOK_INTERVAL);
        }
    }

    pub(crate) fn story(&self) -> String {
        let mut text = String::new();
        for (name, instance) in &self.instances {
            text += &format!("-- {name} is {}\n", instance.pid());
        }
        for (name, proxy) in &self.proxies {
            text += &format!("-- proxy of {name}\n");
            for seen in proxy.log() {
                if seen.call != Call::Look {
                    let (at, status) = (seen.at as f64 / 1e9, seen.status);
                    text += &format!("{at:.3} {:?} {status:?} {}\n", seen.call, seen.delivered);
                }
            }
        }
        format!(
            "{text}{}-- now {:.3}\n{:?}",
            self.scene.journal,
            Instant::now().as_nanos() as f64 / 1e9,
            processes::marked(self.scene.directory())
        )
    }

    pub(crate) fn lines(&mut self) -> &[Line] {
        self.reader.read(self.scene.journal.path());
        &self.reader.lines
    }

    pub(crate) fn await_line(&mut self, what: &str, wanted: impl Fn(&Line) -> bool) -> Line {
        let mut from = 0;
        self.until(what, |stage| {
            let lines = stage.lines();
            let found = lines[from..].iter().find(|line| wanted(line)).cloned();
            from = lines.len();
            found
        })
    }

    /// Waits until every role of this first tenure has recorded itself.
    pub(crate) fn await_first(&mut self, name: &str, shape: Shape) {
        let start = self.await_line(&format!("the start of {name}"), |line| line.tag == name);
        self.first = start.token;
        self.await_tree(name, shape, start.token);
    }

    /// Waits until every role has recorded itself.
    pub(crate) fn await_tree(&mut self, name: &str, shape: Shape, token: u64) {
        for role in shape.command().1 {
            let tag = format!("{name}{role}");
            self.await_line(&format!("a beat of {tag}"), |line| {
                line.tag == tag && line.what == What::Beat && line.token == token
            });
        }
    }

    /// Waits until a process of the command has lived then or later.
    pub(crate) fn await_life(&mut self, name: &str, at: u64) {
        self.await_line(&format!("life of {name}"), |line| {
            line.tag == name && line.at > at
        });
    }

    /// Waits until a process of `a`'s tree has lived then or later, or another instance has
    /// control: a starting instance kills what it finds in a dead one's cgroup.
    pub(crate) fn await_life_or_tenure(&mut self, at: u64) {
        let first = self.first;
        self.await_line("life in the tree of a, or another tenure", |line| {
            (line.command() == "a" && line.at > at) || line.token > first
        });
    }

    /// Waits for a tenure with a greater token; returns its token and holder.
    pub(crate) fn await_tenure_after(&mut self, token: u64) -> (u64, String) {
        let line = self.await_line(&format!("a tenure after token {token}"), |line| {
            line.token > token && line.what == What::Beat && !line.tag.contains('/')
        });
        (line.token, line.tag)
    }

    pub(crate) fn await_log(&mut self, name: &str, words: &str) {
        self.until(&format!("\"{words}\" in the log of {name}"), |stage| {
            stage.instances[name].stderr().contains(words).then_some(())
        });
    }

    pub(crate) fn supervisor(&self, name: &str) -> i32 {
        self.instances[name].pid()
    }

    /// Returns the guardian's pid, once it has set its process name.
    pub(crate) fn guardian(&mut self, name: &str) -> i32 {
        let supervisor = self.supervisor(name);
        self.until(&format!("the guardian of {name}"), |stage| {
            let all = processes::marked(stage.scene.directory());
            let named = |process: &&Process| {
                process.parent == supervisor && process.program == "tc-guardian"
            };
            all.iter().find(named).map(|process| process.pid)
        })
    }

    pub(crate) fn stop(&mut self, pid: i32) {
        signal(pid, Signal::SIGSTOP);
        self.until("a process to be stopped", |_| {
            let process = Process::read(pid);
            assert!(process.is_some(), "{pid} has gone away by itself");
            process.filter(|process| process.state == 'T').map(drop)
        });
    }

    pub(crate) fn tree_of(&self, name: &str) -> Vec<i32> {
        let holder = format!("TRAFFICCOP_HOLDER={name}");
        let mut all = processes::marked(self.scene.directory());
        all.retain(|process| {
            let environ = std::fs::read(format!("/proc/{}/environ", process.pid));
            environ.is_ok_and(|environ| {
                let mut variables = environ.split(|byte| *byte == 0);
                variables.any(|variable| variable == holder.as_bytes())
            })
        });
        all.into_iter().map(|process| process.pid).collect()
    }

    pub(crate) fn await_no_tree_of(&mut self, name: &str) {
        self.until(&format!("the tree of {name} to be gone"), |stage| {
            stage.tree_of(name).is_empty().then_some(())
        });
    }

    /// Kills the tree of a command that has no supervisor and guardian any more.
    pub(crate) fn sweep(&mut self, name: &str) {
        self.until(&format!("the tree of {name} to be swept away"), |stage| {
            let tree = stage.tree_of(name);
            for pid in &tree {
                signal(*pid, Signal::SIGKILL);
            }
            tree.is_empty().then_some(())
        });
    }

    pub(crate) fn await_supervisors(&mut self) {
        self.until("all instances to end", |stage| {
            let ended = stage
                .instances
                .values_mut()
                .all(|one| one.ended().is_some());
            ended.then_some(())
        });
    }

    pub(crate) fn await_end(&mut self) {
        self.await_supervisors();
        self.until("all guardians to end", |stage| {
            let all = processes::marked(stage.scene.directory());
            let ours = |process: &Process| process.is_ours() || process.program == "tc-guardian";
            (!all.iter().any(ours)).then_some(())
        });
    }

    /// Waits for a request that came after `since`.
    pub(crate) fn await_seen(
        &mut self,
        name: &str,
        what: &str,
        wanted: impl Fn(&Seen) -> bool,
    ) -> Seen {
        self.until(what, |stage| {
            stage.proxies[name]
                .log()
                .into_iter()
                .find(|seen| wanted(seen))
        })
    }

    /// Returns the last acquire or renewal whose grant reached this instance.
    pub(crate) fn last_grant(&self, name: &str) -> Option<Seen> {
        let mut log = self.proxies.get(name)?.log();
        log.retain(|seen| {
            matches!(seen.call, Call::Acquire | Call::Renew)
                && seen.delivered
                && seen.status.is_some_and(|status| status < 300)
        });
        log.pop()
    }
}

/// Sends a signal to a process that may have ended.
pub(crate) fn signal(pid: i32, number: Signal) {
    let _ = kill(Pid::from_raw(pid), number);
}

impl Reader {
    fn read(&mut self, path: &std::path::Path) {
        if self.file.is_none() {
            self.file = File::open(path).ok();
        }
        let Some(file) = &mut self.file else { return };
        let mut fresh = Vec::new();
        file.read_to_end(&mut fresh)
            .expect("the journal can be read");
        self.rest += std::str::from_utf8(&fresh).expect("text");
        let Some(end) = self.rest.rfind('\n') else {
            return;
        };
        self.lines.extend(self.rest[..end].lines().map(Line::parse));
        self.rest.drain(..=end);
    }
}
