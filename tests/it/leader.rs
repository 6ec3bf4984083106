//! A program of twenty lines elects a leader with the library.

use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

const WAIT_LIMIT: Duration = Duration::from_secs(90);

/// Returns the example, which `cargo test` builds with the tests. The test does not build it: cargo
/// within cargo has another environment, and rebuilds half of the dependencies.
fn leader() -> PathBuf {
    let test = std::env::current_exe().expect("a path of our own");
    let profile = test.ancestors().nth(2).expect("a directory of the build");
    let example = profile.join("examples/leader");
    let told =
        "not built: 'cargo test' does it, and for this test alone 'cargo build --example leader'";
    assert!(example.exists(), "{}: {told}", example.display());
    example
}

/// A process of the example, and its lines. Dropping it kills it.
struct Instance {
    child: Child,
    lines: Receiver<String>,
}

impl Instance {
    fn start(lock: &std::path::Path) -> Instance {
        let mut child = Command::new(leader())
            .arg(lock)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the example can be started");
        let stdout = child.stdout.take().expect("a pipe");
        let (line, lines) = channel();
        std::thread::spawn(move || {
            for read in BufReader::new(stdout).lines().map_while(Result::ok) {
                let _nobody_reads = line.send(read);
            }
        });
        Instance { child, lines }
    }

    fn leads(&self) -> u64 {
        let line = self.lines.recv_timeout(WAIT_LIMIT).expect("a line in time");
        let begin = format!("{} leads, token ", self.child.id());
        let token = line.strip_prefix(&begin).map(str::parse);
        token.unwrap_or_else(|| panic!("{line}")).expect("a number")
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        let _ended = self.child.kill();
        let _reaped = self.child.wait();
    }
}

#[test]
fn one_of_two_processes_leads_and_the_other_after_its_death() {
    let directory = tempfile::tempdir().expect("a directory");
    let lock = directory.path().join("leader.lock");
    let first = Instance::start(&lock);
    let token = first.leads();
    let second = Instance::start(&lock);
    let early = second.lines.recv_timeout(Duration::from_secs(1));
    assert!(early.is_err(), "two lead: {early:?}");
    drop(first);
    assert!(second.leads() > token);
}
