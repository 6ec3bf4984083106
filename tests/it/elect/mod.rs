//! `trafficcop elect`: a reader is told which instance is in control.
//!
//! It stamps each line that it has read with CLOCK_BOOTTIME; the stamps are judged like commands'
//! journals.

mod ending;
mod following;
mod hangs;
mod readers;
mod words;

use std::io::{BufRead, BufReader, PipeReader, Read};
use std::sync::{Arc, Mutex};

use nix::sys::signal::Signal;
use trafficcop::Instant;

use crate::support::await_for;
use crate::support::azurite::connection_string;
use crate::support::instance::{Ended, Instance, Run};
use crate::support::scene::Scene;

const SECOND: u64 = 1_000_000_000;
const PIPE: Ended = Ended::Died(Signal::SIGPIPE);
const TERM: Ended = Ended::Died(Signal::SIGTERM);
const KILL: Ended = Ended::Died(Signal::SIGKILL);

#[derive(Clone, Default)]
struct Heard(Arc<Mutex<Hearing>>);

type Hearing = (Vec<(u64, String)>, Option<u64>);

impl Heard {
    fn lines(&self) -> Vec<(u64, String)> {
        self.0.lock().unwrap().0.clone()
    }

    fn texts(&self) -> Vec<String> {
        self.lines().into_iter().map(|(_, text)| text).collect()
    }

    fn end(&self) -> Option<u64> {
        self.0.lock().unwrap().1
    }

    fn await_line(&self, wanted: &str) -> u64 {
        await_for(
            &format!("the line {wanted:?}"),
            || Some(self.lines().into_iter().find(|line| line.1 == wanted)?.0),
            || format!("{:#?}", self.lines()),
        )
    }

    /// Returns the spans in which the reader believed to be in control, with tokens.
    fn tenures(&self) -> Vec<(u64, u64, u64)> {
        let mut found = Vec::new();
        let mut since = None;
        for (at, text) in self.lines() {
            if let Some((begin, token)) = since.take() {
                found.push((begin, at, token));
            }
            if let Some(token) = text.strip_prefix("holder ") {
                since = Some((at, token.parse().expect("a token")));
            }
        }
        if let Some((begin, token)) = since {
            found.push((begin, self.end().unwrap_or(u64::MAX), token));
        }
        found
    }
}

fn listen(reader: PipeReader) -> Heard {
    let heard = Heard::default();
    let theirs = heard.clone();
    std::thread::spawn(move || {
        for line in BufReader::new(reader).lines() {
            let line = line.expect("text");
            let at = Instant::now().as_nanos();
            theirs.0.lock().unwrap().0.push((at, line));
        }
        theirs.0.lock().unwrap().1 = Some(Instant::now().as_nanos());
    });
    heard
}

struct Pair {
    name: String,
    instance: Instance,
    heard: Heard,
}

impl Pair {
    fn start(name: &str, run: Run<'_>) -> Pair {
        let (reader, writer) = std::io::pipe().unwrap();
        let instance = run.args(["--identity", name]).stdout(writer).start();
        Pair {
            name: name.into(),
            instance,
            heard: listen(reader),
        }
    }
}

/// Starts an instance whose output the test reads or leaves.
fn unread(run: Run<'_>) -> (Instance, PipeReader) {
    let (reader, writer) = std::io::pipe().unwrap();
    (run.stdout(writer).start(), reader)
}

fn first_line(reader: &mut PipeReader) -> String {
    let mut line = Vec::new();
    let mut byte = [0];
    while line.last() != Some(&b'\n') {
        assert_eq!(reader.read(&mut byte).unwrap(), 1, "{line:?}");
        line.push(byte[0]);
    }
    String::from_utf8(line).unwrap().trim_end().to_owned()
}

fn on_file(scene: &Scene) -> Run<'_> {
    scene.elect().arg("--file").arg(scene.lock())
}

fn on_blob<'a>(scene: &'a Scene, port: u16, blob: &str) -> Run<'a> {
    scene
        .elect()
        .env("AZURE_STORAGE_CONNECTION_STRING", connection_string(port))
        .args(["--lease", "15s", "--poll", "500ms", "--blob", blob])
}

/// Checks that no two readers believed to be in control at once, and tokens grow.
fn judge(pairs: &[Pair]) {
    let mut all: Vec<(u64, u64, u64, &str)> = Vec::new();
    for pair in pairs {
        let tenures = pair.heard.tenures();
        all.extend(tenures.iter().map(|t| (t.0, t.1, t.2, &*pair.name)));
    }
    all.sort_unstable();
    for both in all.windows(2) {
        assert!(both[0].1 < both[1].0, "an overlap: {all:#?}");
        assert!(
            both[0].2 < both[1].2,
            "a token that does not grow: {all:#?}"
        );
    }
}
