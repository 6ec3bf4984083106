//! One supervisor with its guardian, as the judge sees it.

use std::collections::VecDeque;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tempfile::TempDir;
use trafficcop::Instant;
use trafficcop_guardian::Contain;

use super::proc::{self, LONG, Watched};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Who {
    pub(crate) nobody: bool,
    pub(crate) contain: Contain,
}

#[derive(Default)]
pub(crate) struct Props {
    /// Orphans get a parent in the same session.
    pub(crate) nursery: bool,
    /// Gives it a session of its own: its children's new parent, such as a child subreaper above
    /// the tests, is in another one.
    pub(crate) own_session: bool,
    /// Words before the supervisor's own: `nice -n 5`, `sh -c ...`.
    pub(crate) through: Vec<&'static str>,
    pub(crate) env: Vec<(&'static str, &'static str)>,
    pub(crate) stdin: Option<fs::File>,
}

pub(crate) struct Scene {
    pub(crate) dir: TempDir,
    pub(crate) supervisor: Child,
    pub(crate) guardian: Watched,
    pub(crate) second: Option<Watched>,
    supervisor_pid: i32,
    contain: Contain,
    control: BufReader<UnixStream>,
    kin: Vec<Watched>,
    heard: VecDeque<String>,
    undone: usize,
}

impl Scene {
    /// Runs this binary as its command; `@` is the scene's directory.
    pub(crate) fn acting(who: Who, words: &[&str]) -> Scene {
        Scene::acting_with(who, words, Props::default())
    }

    pub(crate) fn acting_with(who: Who, words: &[&str], props: Props) -> Scene {
        let me = std::env::current_exe().unwrap();
        let mut command = vec![me.to_str().unwrap(), "--act"];
        command.extend_from_slice(words);
        Scene::new(who, &command, props)
    }

    pub(crate) fn new(who: Who, command: &[&str], props: Props) -> Scene {
        let dir = TempDir::new().unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o777)).unwrap();
        let control = dir.path().join("control");
        let listener = UnixListener::bind(&control).unwrap();
        fs::set_permissions(&control, fs::Permissions::from_mode(0o777)).unwrap();
        let me = std::env::current_exe().unwrap();
        let mut words: Vec<&str> = props.through;
        if props.nursery {
            words.extend([me.to_str().unwrap(), "--nursery"]);
        }
        words.extend([
            me.to_str().unwrap(),
            "--supervisor",
            control.to_str().unwrap(),
        ]);
        let mut start = Command::new(words[0]);
        start
            .args(&words[1..])
            .args(
                command
                    .iter()
                    .map(|word| word.replace('@', dir.path().to_str().unwrap())),
            )
            .envs(props.env)
            .current_dir(dir.path())
            .stdin(props.stdin.map_or_else(Stdio::null, Stdio::from));
        if props.own_session {
            let in_a_session = || nix::unistd::setsid().map(drop).map_err(Into::into);
            // SAFETY: setsid is a mere system call.
            unsafe { start.pre_exec(in_a_session) };
        } else {
            start.process_group(0);
        }
        start.env("CONTAIN", format!("{:?}", who.contain));
        if who.nobody {
            start.uid(65534).gid(65534);
        }
        let supervisor = start.spawn().unwrap();
        let (socket, _) = listener.accept().unwrap();
        socket.set_read_timeout(Some(LONG)).unwrap();
        let mut scene = Scene {
            dir,
            supervisor,
            guardian: Watched::of(0),
            second: None,
            supervisor_pid: 0,
            contain: who.contain,
            control: BufReader::new(socket),
            kin: Vec::new(),
            heard: VecDeque::new(),
            undone: 0,
        };
        let hello = scene.line();
        let pids: Vec<i32> = hello
            .split(' ')
            .skip(1)
            .map(|word| word.parse().unwrap())
            .collect();
        scene.guardian = Watched::of(pids[0]);
        scene.supervisor_pid = pids[2];
        scene.second = (pids[1] != 0).then(|| Watched::of(pids[1]));
        scene
    }

    pub(crate) fn path(&self, name: &str) -> String {
        self.dir.path().join(name).to_str().unwrap().to_owned()
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.control
            .read_line(&mut line)
            .expect("the supervisor answers");
        assert!(!line.is_empty(), "the supervisor has gone");
        line.trim_end().to_owned()
    }

    fn listen(&mut self) {
        let line = self.line();
        if line == "did" {
            self.undone -= 1;
        } else {
            self.heard.push_back(line);
        }
    }

    pub(crate) fn news(&mut self) -> String {
        loop {
            if let Some(news) = self.heard.pop_front() {
                return news;
            }
            self.listen();
        }
    }

    pub(crate) fn expect(&mut self, start: &str) -> String {
        let news = self.news();
        assert!(news.starts_with(start), "expected {start}, heard {news}");
        news
    }

    /// Returns all events up to the one that begins like this.
    pub(crate) fn news_until(&mut self, start: &str) -> Vec<String> {
        let mut heard = Vec::new();
        loop {
            let news = self.news();
            heard.push(news.clone());
            if news.starts_with(start) {
                return heard;
            }
        }
    }

    pub(crate) fn say(&mut self, line: &str) {
        self.undone += 1;
        self.control
            .get_mut()
            .write_all(format!("{line}\n").as_bytes())
            .unwrap();
    }

    /// Waits until the order is carried out.
    pub(crate) fn do_now(&mut self, line: &str) {
        self.say(line);
        while self.undone > 0 {
            self.listen();
        }
    }

    pub(crate) fn start(&mut self, deadlines: Deadlines) {
        self.start_with(deadlines, "-", "");
    }

    pub(crate) fn start_with(&mut self, deadlines: Deadlines, lock: &str, env: &str) {
        let (term_at, kill_at) = deadlines.words();
        self.say(&format!("start {term_at} {kill_at} {lock} {env}"));
    }

    /// Gives other deadlines. They count from when the whole tree exists, not from its start on a
    /// busy machine.
    pub(crate) fn give(&mut self, deadlines: Deadlines) {
        let (term_at, kill_at) = deadlines.words();
        self.do_now(&format!("extend {term_at} {kill_at}"));
    }

    /// Gives other deadlines, and waits until the guardian has obeyed a later order.
    pub(crate) fn give_for_sure(&mut self, deadlines: Deadlines) {
        self.give(deadlines);
        self.do_now(&format!("signal {}", libc::SIGTSTP));
        self.expect("Stopped");
        self.do_now("resume");
    }

    /// Waits until this many processes have recorded themselves.
    pub(crate) fn start_family(&mut self, deadlines: Deadlines, count: usize) {
        self.start(deadlines);
        self.expect("Started");
        self.meet(count);
    }

    pub(crate) fn meet(&mut self, count: usize) {
        let known = self.kin.len();
        let kin = proc::await_journal(&self.path("journal"), known + count);
        self.kin
            .extend(kin.into_iter().skip(known).map(Watched::new));
    }

    /// Sets release information that names the journal and a place to report to.
    pub(crate) fn set_release_info(&mut self) {
        let line = format!(
            "set_release_info {} {}",
            self.path("journal"),
            self.path("testament")
        );
        self.do_now(&line);
    }

    /// Checks that the release was done once, with an empty tree.
    pub(crate) fn assert_testament(&self) {
        self.guardian.death();
        let text = fs::read_to_string(self.path("testament")).unwrap_or_default();
        assert_eq!(text, "alive 0\n", "what the on_orphaned wrote");
    }

    pub(crate) fn supervisor_pid(&self) -> i32 {
        self.supervisor_pid
    }

    pub(crate) fn signal_supervisor(&self, signal: i32) {
        proc::kill(self.supervisor_pid(), signal);
        if signal == libc::SIGSTOP {
            await_stopped(self.supervisor_pid());
        }
    }

    pub(crate) fn signal_guardian(&self, signal: i32) {
        proc::kill(self.guardian.kin.pid, signal);
        if signal == libc::SIGSTOP {
            await_stopped(self.guardian.kin.pid);
        }
    }

    pub(crate) fn main(&self) -> &Watched {
        let main = self.kin.iter().find(|kin| kin.kin.role == "main");
        main.expect("a main process")
    }

    pub(crate) fn assert_all_alive(&self) {
        for kin in &self.kin {
            assert!(kin.is_alive(), "{:?} is dead before its time", kin.kin);
        }
    }

    /// Waits for a deadline while guardian and supervisor are stopped: in a namespace its init
    /// acts.
    pub(crate) fn await_deadline_of_stopped(&self, deadlines: Deadlines) {
        if self.contain == Contain::Pidns {
            let (first, _) = self.deaths();
            assert!(first >= deadlines.kill_at, "killed before the deadline");
        } else {
            sleep_until(deadlines.kill_at + Duration::from_millis(100));
            self.assert_all_alive();
        }
    }

    pub(crate) fn assert_some_alive(&self) {
        assert!(self.kin.iter().any(Watched::is_alive), "all are dead");
    }

    pub(crate) fn forget(&mut self) {
        for kin in &mut self.kin {
            assert!(!kin.is_alive());
            "gone".clone_into(&mut kin.kin.role);
        }
    }

    /// Waits for all ends; returns the first and the last.
    pub(crate) fn deaths(&self) -> (Instant, Instant) {
        assert!(!self.kin.is_empty(), "a process that dies");
        let deaths: Vec<Instant> = self.kin.iter().map(Watched::death).collect();
        (*deaths.iter().min().unwrap(), *deaths.iter().max().unwrap())
    }

    pub(crate) fn assert_all_dead(&self) {
        for kin in &self.kin {
            assert!(!kin.is_alive(), "{:?} lives", kin.kin);
        }
    }

    pub(crate) fn dismiss(mut self) {
        self.say("dismiss");
        while self.news() != "dismissed" {}
        assert!(self.supervisor.wait().unwrap().success());
        assert!(!self.guardian.is_alive());
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        let _ = self.supervisor.kill();
        let _ = self.supervisor.wait();
        let guardians = std::iter::once(&self.guardian).chain(&self.second);
        self.kin.iter().chain(guardians).for_each(Watched::kill);
    }
}

pub(crate) fn await_stopped(pid: i32) {
    proc::wait_for("a process to stop", || {
        matches!(proc::stat(pid), Some(('T', _))).then_some(())
    });
}

/// Milliseconds from now; `None`: never.
#[derive(Clone, Copy)]
pub(crate) struct Deadlines {
    pub(crate) term_at: Instant,
    pub(crate) kill_at: Instant,
}

impl Deadlines {
    pub(crate) fn none() -> Deadlines {
        Deadlines {
            term_at: Instant::FOREVER,
            kill_at: Instant::FOREVER,
        }
    }

    pub(crate) fn within(term: u64, kill: u64) -> Deadlines {
        let now = Instant::now();
        Deadlines {
            term_at: now + Duration::from_millis(term),
            kill_at: now + Duration::from_millis(kill),
        }
    }

    pub(crate) fn words(self) -> (String, String) {
        (word(self.term_at), word(self.kill_at))
    }
}

pub(crate) fn word(at: Instant) -> String {
    if at == Instant::FOREVER {
        "-".to_owned()
    } else {
        at.as_nanos().to_string()
    }
}

pub(crate) fn sleep_until(at: Instant) {
    std::thread::sleep(at.since(Instant::now()));
}
