//! A helper's store: one entry, whose tag changes with each write, and the calls on their way to
//! it. A call arrives on time even if its caller is stopped.

use std::collections::BTreeMap;

use fastrand::Rng;

use super::adversary::Schedule;
use super::clock::Time;
use super::drive::{Making, version_in};

const DONE: i32 = 0;
const REFUSED: i32 = 4;
const ABSENT: &str = "-";

/// Exit status, and stdout.
pub(crate) type Answer = (i32, Vec<u8>);

/// Version of the entry; its place in the history is its tag.
struct Write {
    at: Time,
    machine: usize,
    text: Vec<u8>,
}

#[derive(Clone)]
pub(crate) enum Call {
    Get,
    Put(String, Vec<u8>),
}

/// Call on its way.
pub(crate) struct Sent {
    pub(crate) at: Time,
    pub(crate) number: u64,
    pub(crate) machine: usize,
    pub(crate) by: usize,
    pub(crate) call: Call,
    /// Time of the answer's way back; `None`: it has no answer.
    pub(crate) back: Option<Time>,
}

pub(crate) struct Shelf {
    pub(crate) now: Time,
    pub(crate) rng: Rng,
    /// Greatest age of a machine's reads.
    staleness: Time,
    /// Views by machine: time as of which it reads, and until when.
    pub(crate) views: Vec<(Time, Time)>,
    /// Time until which texts read differ from what was written.
    pub(crate) torn_until: Time,
    writes: Vec<Write>,
    pub(crate) sent: Vec<Sent>,
    pub(crate) numbers: u64,
    /// Calls for whose answer a process waits; the answers that are back at this time.
    pub(crate) waiting: BTreeMap<u64, Option<(Time, Answer)>>,
    pub(crate) makings: Vec<Making>,
    pub(crate) counts: BTreeMap<&'static str, u64>,
    pub(crate) trace: Option<Vec<(Time, String)>>,
}

impl Shelf {
    pub(crate) fn new(schedule: &Schedule, tracing: bool) -> Shelf {
        Shelf {
            now: 0,
            rng: Rng::with_seed(schedule.seed),
            staleness: schedule.staleness,
            views: vec![(0, 0); schedule.ppm.len() + 1],
            torn_until: 0,
            writes: Vec::new(),
            sent: Vec::new(),
            numbers: 0,
            waiting: BTreeMap::new(),
            makings: Vec::new(),
            counts: BTreeMap::new(),
            trace: tracing.then(Vec::new),
        }
    }

    pub(crate) fn count(&mut self, what: &'static str) {
        *self.counts.entry(what).or_default() += 1;
    }

    pub(crate) fn go_on(&mut self, now: Time) {
        while let Some(at) = (0..self.sent.len())
            .filter(|at| self.sent[*at].at <= now)
            .min_by_key(|at| (self.sent[*at].at, self.sent[*at].number))
        {
            let sent = self.sent.swap_remove(at);
            self.now = self.now.max(sent.at);
            let waits = self.waiting.contains_key(&sent.number);
            let answer = match &sent.call {
                Call::Get => self.get(sent.machine),
                Call::Put(tag, text) => self.put(&sent, tag, text, !waits),
            };
            if let Some(back) = sent.back.filter(|_| waits) {
                let answer = Some((self.now + back, answer));
                self.waiting.insert(sent.number, answer);
            }
        }
        self.now = now;
    }

    fn get(&mut self, machine: usize) -> Answer {
        let (since, until) = self.views[machine];
        let view = match self.staleness {
            _ if self.now < until => since,
            0 => self.now,
            _ if self.rng.bool() => self.now,
            most => self.now.saturating_sub(self.rng.u64(0..most)),
        };
        // A machine sees its own writes except in a fault, and never again that there is no entry.
        let own = self.now >= until;
        let seen = |write: &Write| write.at <= view || own && write.machine == machine;
        let shown = self.writes.iter().rposition(seen).unwrap_or(0);
        let Some(write) = self.writes.get(shown) else {
            return (DONE, ABSENT.into());
        };
        let mut text = write.text.clone();
        if shown + 1 < self.writes.len() {
            self.count("old views");
        }
        if self.now < self.torn_until {
            // In some schedules every text is torn, and always alike: an unchanged one is watched.
            let half = text.len() / 2;
            let kept = [half, half, self.rng.usize(0..text.len() - 1), text.len()];
            let choices = if self.torn_until.is_multiple_of(2) {
                0..1
            } else {
                0..4
            };
            text.truncate(kept[self.rng.usize(choices)]);
            self.count("torn texts");
        }
        (DONE, [shown.to_string().as_bytes(), b"\n", &text].concat())
    }

    fn put(&mut self, sent: &Sent, tag: &str, text: &[u8], by_nobody: bool) -> Answer {
        let last = self.writes.len().checked_sub(1);
        let holds = last.map_or(ABSENT.to_owned(), |last| last.to_string());
        let by = sent.by;
        let said = if tag == holds { "done" } else { "refused" };
        if let Some(trace) = &mut self.trace {
            let version = version_in(text).unwrap_or(0);
            let nobody = if by_nobody { ", for nobody" } else { "" };
            let text = format!("store: put {version} ({tag}) of #{by} -> {said}{nobody}");
            trace.push((self.now, text));
        }
        if tag != holds {
            self.count("tags that did not hold");
            return (REFUSED, Vec::new());
        }
        if by_nobody {
            self.count("writes that arrived when no process waited for them");
        }
        let of_last = self.writes.last().map(|write| &write.text);
        self.makings.push(Making {
            version: version_in(text).expect("a record"),
            at: self.now,
            by,
            era: 0,
            after_release: of_last.is_none_or(|text| says_released(text)),
            releases: says_released(text),
            after_nothing: false,
            goes_on_from_nothing: false,
            by_nobody,
        });
        self.writes.push(Write {
            at: self.now,
            machine: sent.machine,
            text: text.to_vec(),
        });
        (DONE, Vec::new())
    }
}

fn says_released(text: &[u8]) -> bool {
    String::from_utf8_lossy(text).contains("\"state\":\"released\"")
}
