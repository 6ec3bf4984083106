//! A helper's store: one entry, whose tag changes with each write, and the calls on their way to
//! it through the weather of the schedule. A call arrives at its time even if its caller is
//! stopped; of callers that give up or die, only some had sent it.

use std::collections::BTreeMap;
use std::os::unix::process::ExitStatusExt as _;
use std::process::ExitStatus;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use fastrand::Rng;
use trafficcop::Instant;
use trafficcop_core::Failure;
use trafficcop_core::clock::pause;
use trafficcop_lease::SharedMemory;
use trafficcop_lease::helper::{Calls, Finished};

use super::adversary::{Act, Deed, Weather};
use super::clock::{MILLI, SECOND, Time};
use super::drive::{Making, OPERATOR, version_in};
use super::operator::Memory;

const DONE: i32 = 0;
const FAILED: i32 = 1;
const REFUSED: i32 = 4;
const ABSENT: &str = "-";

type Answer = (i32, Vec<u8>);

/// Version of the entry; its place in the history is its tag.
struct Write {
    at: Time,
    machine: usize,
    text: Vec<u8>,
}

#[derive(Clone)]
enum Call {
    Get,
    Put(String, Vec<u8>),
}

struct Sent {
    at: Time,
    number: u64,
    machine: usize,
    by: usize,
    call: Call,
    /// Time of the answer's way back; `None`: it has no answer.
    back: Option<Time>,
}

/// Delays of a call's arrivals, and for an answer the way back.
struct Way {
    arrivals: Vec<(Time, Option<Time>)>,
    /// Delay after which the helper fails.
    fails: Option<Time>,
}

pub(crate) struct Shelf {
    pub(crate) now: Time,
    rng: Rng,
    acts: Vec<Act>,
    /// Greatest age of a machine's reads.
    pub(crate) staleness: Time,
    /// Views by machine: time as of which it reads, and until when.
    pub(crate) views: Vec<(Time, Time)>,
    /// Time until which texts read differ from what was written.
    pub(crate) torn_until: Time,
    writes: Vec<Write>,
    sent: Vec<Sent>,
    numbers: u64,
    /// Calls for whose answer a process waits; the answers that are back at this time.
    waiting: BTreeMap<u64, Option<(Time, Answer)>>,
    pub(crate) makings: Vec<Making>,
    pub(crate) counts: BTreeMap<&'static str, u64>,
    pub(crate) trace: Option<Vec<(Time, String)>>,
}

impl Shelf {
    pub(crate) fn new(machines: usize, acts: Vec<Act>, seed: u64) -> Shelf {
        Shelf {
            now: 0,
            rng: Rng::with_seed(seed),
            acts,
            staleness: 0,
            views: vec![(0, 0); machines + 1],
            torn_until: 0,
            writes: Vec::new(),
            sent: Vec::new(),
            numbers: 0,
            waiting: BTreeMap::new(),
            makings: Vec::new(),
            counts: BTreeMap::new(),
            trace: None,
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
            let choices = if self.torn_until % 2 == 0 { 0..1 } else { 0..4 };
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

    /// Returns the maker of the last version.
    pub(crate) fn maker(&self) -> Option<usize> {
        self.makings.last().map(|made| made.by)
    }

    fn way(&mut self, machine: usize) -> Way {
        let (now, rng) = (self.now, &mut self.rng);
        let (mut there, mut back) = (rng.u64(1..25) * MILLI, rng.u64(1..25) * MILLI);
        let weathers = self.acts.iter().filter_map(|act| match act.deed {
            Deed::Net(whom, weather, span)
                if whom.is_none_or(|whom| whom == machine)
                    && (act.at..act.at + span).contains(&now) =>
            {
                Some((weather, act.at + span - now))
            }
            _ => None,
        });
        let (mut weather, mut left) = (None, 0);
        for (one, rest) in weathers {
            let spared = rng.u8(0..5) == 0;
            match one {
                Weather::Slow(longest) => {
                    there += rng.u64(0..=longest);
                    back += rng.u64(0..=longest);
                }
                Weather::Straggles(longest) if rng.u8(0..4) == 0 => {
                    there += rng.u64(0..=longest);
                    back += rng.u64(0..=longest);
                }
                Weather::Straggles(_) => {}
                Weather::Cut | Weather::Frozen => (weather, left) = (Some(one), rest),
                _ if spared => {}
                _ => (weather, left) = (Some(one), rest),
            }
        }
        let answered = vec![(there, Some(back))];
        let error = there + back + rng.u64(0..5000) * MILLI;
        let perhaps = rng.bool().then_some(error);
        let (arrivals, fails) = match weather {
            None | Some(Weather::Slow(_) | Weather::Straggles(_)) => (answered, None),
            Some(Weather::Frozen) => {
                let thaws = there.max(left + rng.u64(0..3000) * MILLI);
                (vec![(thaws, Some(back))], None)
            }
            Some(Weather::Cut | Weather::LosesRequests) => (Vec::new(), perhaps),
            // A client that repeats a write is told that its tag does not hold.
            Some(Weather::LosesReplies) if rng.bool() => {
                let again = there + rng.u64(10..3000) * MILLI;
                (vec![(there, None), (again, Some(back))], None)
            }
            Some(Weather::LosesReplies) => (vec![(there, None)], perhaps),
            Some(Weather::Twice(longest)) => {
                let again = there + rng.u64(0..=longest);
                (vec![(there, Some(back)), (again, None)], None)
            }
            Some(Weather::DoesAndDenies) => (vec![(there, None)], Some(there + back)),
            Some(Weather::Answers(status, _)) => match rng.u8(0..3) {
                0 if status != 403 => (vec![(there, None)], Some(error)),
                1 if status != 403 => {
                    let later = there + rng.u64(0..20 * SECOND);
                    (vec![(later, None)], Some(error))
                }
                _ => (Vec::new(), Some(error)),
            },
        };
        Way { arrivals, fails }
    }

    fn send(&mut self, machine: usize, by: usize, call: &Call) -> u64 {
        let way = self.way(machine);
        self.numbers += 1;
        let (now, number) = (self.now, self.numbers);
        let fails = way.fails.map(|after| (now + after, (FAILED, Vec::new())));
        self.waiting.insert(number, fails);
        let arrivals = way.arrivals.into_iter().map(|(after, back)| Sent {
            at: now + after,
            number,
            machine,
            by,
            call: call.clone(),
            back,
        });
        self.sent.extend(arrivals);
        number
    }
}

fn says_released(text: &[u8]) -> bool {
    String::from_utf8_lossy(text).contains("\"state\":\"released\"")
}

/// Helper of one process.
pub(crate) struct Caller {
    pub(crate) shelf: Arc<Mutex<Shelf>>,
    pub(crate) machine: usize,
    pub(crate) process: usize,
    pub(crate) memory: Arc<Memory>,
}

/// A call whose caller waits, and may die meanwhile.
struct Waiting<'a>(&'a Caller, u64);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let mut shelf = self.0.shelf();
        let Some(answer) = shelf.waiting.remove(&self.1) else {
            return;
        };
        // It is killed, and may not have sent its request yet.
        let now = shelf.now;
        if answer.is_none_or(|(at, _)| at > now) && shelf.rng.bool() {
            shelf.sent.retain(|sent| sent.number != self.1);
        }
    }
}

impl Caller {
    fn shelf(&self) -> MutexGuard<'_, Shelf> {
        self.shelf.lock().expect("whole")
    }
}

impl SharedMemory for Caller {
    fn put(&self, bytes: &[u8]) {
        self.memory.put(bytes);
    }

    fn take(&self) -> Option<Vec<u8>> {
        self.memory.take()
    }
}

impl Calls for Caller {
    fn call(&self, words: &[&str], input: &[u8], give_up_at: Instant) -> Result<Finished, Failure> {
        let call = match words {
            ["get", _] => Call::Get,
            ["put", _, tag] => Call::Put((*tag).to_owned(), input.to_vec()),
            _ => panic!("the model knows no {words:?}"),
        };
        let number = self.shelf().send(self.machine, self.process, &call);
        let waiting = Waiting(self, number);
        loop {
            let left = give_up_at.since(Instant::now());
            if left.is_zero() {
                let why = "no answer in time".to_owned();
                return Err(Failure::Transient {
                    why,
                    retry_after: None,
                });
            }
            let next = {
                let mut shelf = self.shelf();
                let now = shelf.now;
                let answer = shelf.waiting.get(&number).cloned().flatten();
                if let Some((_, (status, stdout))) = answer.clone().filter(|(at, _)| *at <= now) {
                    if self.process >= OPERATOR {
                        shelf.count("calls of an operator");
                    }
                    drop(shelf);
                    drop(waiting);
                    return Ok(Finished {
                        status: ExitStatus::from_raw(status << 8),
                        stdout,
                        said: String::new(),
                    });
                }
                let arrives = shelf.sent.iter().filter(|sent| sent.number == number);
                let arrives = arrives.map(|sent| sent.at + MILLI / 10);
                let next = arrives.chain(answer.map(|(at, _)| at)).min();
                next.unwrap_or(Time::MAX)
                    .saturating_sub(now)
                    .max(MILLI / 10)
            };
            pause(left.min(Duration::from_nanos(next)));
        }
    }
}
