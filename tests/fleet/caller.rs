//! The helper of one process, whose calls reach the store through the weather of the schedule. When
//! a caller gives up or dies, its call may still arrive.

use std::os::unix::process::ExitStatusExt as _;
use std::process::ExitStatus;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use trafficcop::Instant;
use trafficcop_core::Failure;
use trafficcop_core::clock::pause;
use trafficcop_lease::SharedMemory;
use trafficcop_lease::helper::{Calls, Finished};

use super::adversary::{Act, Deed, Weather};
use super::clock::{MILLI, SECOND, Time};
use super::drive::OPERATOR;
use super::operator::Memory;
use super::shelf::{Call, Sent, Shelf};

const FAILED: i32 = 1;

/// Delays of a call's arrivals, and for an answer the way back.
struct Way {
    arrivals: Vec<(Time, Option<Time>)>,
    /// Delay after which the helper fails.
    fails: Option<Time>,
}

/// Helper of one process.
pub(crate) struct Caller {
    pub(crate) shelf: Arc<Mutex<Shelf>>,
    pub(crate) acts: Vec<Act>,
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

    fn way(&self, shelf: &mut Shelf) -> Way {
        let (now, rng) = (shelf.now, &mut shelf.rng);
        let (mut there, mut back) = (rng.u64(1..25) * MILLI, rng.u64(1..25) * MILLI);
        let weathers = self.acts.iter().filter_map(|act| match act.deed {
            Deed::Net(whom, weather, span)
                if whom.is_none_or(|whom| whom == self.machine)
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

    fn send(&self, call: &Call) -> u64 {
        let shelf = &mut *self.shelf();
        let way = self.way(shelf);
        shelf.numbers += 1;
        let (now, number) = (shelf.now, shelf.numbers);
        let fails = way.fails.map(|after| (now + after, (FAILED, Vec::new())));
        shelf.waiting.insert(number, fails);
        let arrivals = way.arrivals.into_iter().map(|(after, back)| Sent {
            at: now + after,
            number,
            machine: self.machine,
            by: self.process,
            call: call.clone(),
            back,
        });
        shelf.sent.extend(arrivals);
        number
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
        let number = self.send(&call);
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
