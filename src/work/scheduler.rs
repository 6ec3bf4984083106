//! Decides what the worker does next: take messages, wait, or leave. Pure.

use std::fmt;
use std::time::Duration;

use crate::clock::Instant;
use crate::core::retry::{Backoff, Jitter};
use crate::core::stop::{Stop, StopRequests};
use crate::units;

// Each look at a storage queue costs money; after minutes without a message half a minute does not matter.
const WAITS: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(30));
// Silence that makes a waiting queue empty: a message takes a round trip and more.
const EMPTY_AFTER: Duration = Duration::from_secs(2);
const LISTEN: Duration = Duration::from_secs(60);
pub(super) const BATCH: usize = 32;
// One refusal may be temporary; five in a row, with growing pauses, mean a missing right.
const STUCK: u32 = 5;
// Time before a number of messages that came too late is requested again.
const LEARNT: Duration = Duration::from_secs(600);
// Outage of the queue after which --idle-exit gives up.
const OUT_OF_REACH: Duration = Duration::from_secs(30);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SchedulerConfig {
    pub(super) concurrency: usize,
    pub(super) max_messages: Option<u64>,
    pub(super) idle_exit: Option<Duration>,
    pub(super) grace: Duration,
    pub(super) auth_patience: Duration,
    pub(super) batch: usize,
    /// A request waits for messages, and can be replaced.
    pub(super) waits: bool,
}

/// Overrides every other reason: a process may still be alive.
const OVERLAP: Why = Why::GuardianLost { overlap: true };

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Why {
    Stopped(i32),
    Idle,
    Enough,
    NotStarted {
        errno: i32,
    },
    GuardianLost {
        overlap: bool,
    },
    NoHandover {
        why: String,
    },
    CannotTake {
        why: String,
        denied: bool,
    },
    /// Settlements failed several times in a row.
    CannotSettle {
        why: String,
    },
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Why::Stopped(signal) => {
                let name = units::signal_name(*signal);
                write!(f, "a stop was requested by {name}")
            }
            Why::Idle => f.write_str("there was no message for --idle-exit"),
            Why::Enough => f.write_str("--max-messages is reached"),
            Why::NotStarted { errno } => {
                let why = std::io::Error::from_raw_os_error(*errno);
                write!(f, "the command cannot be started: {why}")
            }
            Why::GuardianLost { overlap: false } => f.write_str("a guardian died or fell silent"),
            Why::GuardianLost { overlap: true } => {
                f.write_str("a process of a command cannot be killed")
            }
            Why::NoHandover { why } => write!(f, "messages cannot be handed over here: {why}"),
            Why::CannotTake { why, denied: true } | Why::CannotSettle { why } => f.write_str(why),
            Why::CannotTake { why, denied: false } => {
                write!(f, "messages cannot be taken: {why}")
            }
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Requests at most so many, in place of the previous request.
    Take(usize),
    Wait(Instant),
    Leave(Why),
}

#[derive(Clone, Copy, Debug)]
struct TakeRequest {
    most: usize,
    at: Instant,
}

#[derive(Debug)]
pub(super) struct Scheduler {
    terms: SchedulerConfig,
    jitter: Jitter,
    running: usize,
    taking: Option<TakeRequest>,
    counted: u64,
    /// Session messages that may still start: a session starts several before it is done.
    may_begin: Option<u64>,
    look_at: Instant,
    waits: Backoff,
    /// The last message came, or was settled.
    busy_at: Instant,
    empty: bool,
    failing: Option<(Instant, String)>,
    answered: bool,
    refused_since: Option<Instant>,
    leaving: Option<(Why, Instant)>,
    stop: StopRequests,
    ended: bool,
    refusals: u32,
    refused_at: Instant,
    /// Fewer after a batch that did not come in time.
    most: usize,
    /// Size of that batch, and when it failed.
    too_many: Option<(usize, Instant)>,
}

impl Scheduler {
    pub(super) fn new(terms: SchedulerConfig, seed: u64, now: Instant) -> Scheduler {
        Scheduler {
            terms,
            jitter: Jitter::new(seed),
            running: 0,
            taking: None,
            counted: 0,
            may_begin: None,
            look_at: now,
            waits: WAITS,
            busy_at: now,
            empty: false,
            failing: None,
            answered: false,
            refused_since: None,
            leaving: None,
            stop: StopRequests::default(),
            ended: false,
            refusals: 0,
            refused_at: Instant::ZERO,
            most: terms.batch,
            too_many: None,
        }
    }

    pub(super) fn next(&mut self, now: Instant) -> Next {
        // A request under way may bring a message.
        let quiet = self.running == 0 && self.taking.is_none();
        if let Some((why, since)) = &self.leaving {
            if quiet {
                return Next::Leave(why.clone());
            }
            // Without commands there is nothing to end.
            return Next::Wait(if self.ended || self.running == 0 {
                Instant::FOREVER
            } else {
                *since + self.terms.grace
            });
        }
        let left = self.left();
        if quiet && left == Some(0) {
            return Next::Leave(Why::Enough);
        }
        let mut idle_at = match self.terms.idle_exit {
            Some(span) if quiet => self.busy_at + span,
            _ => Instant::FOREVER,
        };
        if now >= idle_at {
            // Only after an answer: a worker started for one message has to ask for it.
            match &self.failing {
                None if self.empty => return Next::Leave(Why::Idle),
                Some((since, why)) if now >= *since + OUT_OF_REACH => {
                    let (why, denied) = (why.clone(), false);
                    return Next::Leave(Why::CannotTake { why, denied });
                }
                _ => idle_at = Instant::FOREVER,
            }
        }
        // No more than `free`: the lock of a message that is not started expires.
        let free = self.terms.concurrency - self.running;
        let wanted = free
            .min(self.most)
            .min(left.map_or(BATCH, |left| usize::try_from(left).unwrap_or(BATCH)));
        // Two could bring too many. A waiting one is replaced only for more.
        if let Some(asked) = self.taking
            && (!self.terms.waits || wanted <= asked.most)
        {
            return Next::Wait(Instant::FOREVER);
        }
        if wanted == 0 {
            return Next::Wait(Instant::FOREVER);
        }
        if now >= self.look_at {
            return Next::Take(wanted);
        }
        Next::Wait(self.look_at.min(idle_at))
    }

    /// Returns how long a waiting queue should listen: not beyond --idle-exit, nor so briefly that silence
    /// means nothing.
    pub(super) fn listens_until(&self, now: Instant) -> Instant {
        let idle_at = match self.terms.idle_exit {
            Some(span) => self.busy_at + span,
            None => Instant::FOREVER,
        };
        idle_at.min(now + LISTEN).max(now + EMPTY_AFTER)
    }

    fn left(&self) -> Option<u64> {
        let running = self.running as u64;
        let most = self.terms.max_messages?;
        let left = most.saturating_sub(self.counted).saturating_sub(running);
        Some(self.may_begin.map_or(left, |may_begin| left.min(may_begin)))
    }

    pub(super) fn may_begin(&mut self, left: u64) {
        self.may_begin = Some(left);
        if self.terms.waits && self.left() == Some(0) {
            self.taking = None;
        }
    }

    pub(super) fn takes(&mut self, now: Instant, most: usize) {
        self.taking = Some(TakeRequest { most, at: now });
    }

    pub(super) fn is_refused(&self) -> bool {
        self.refused_since.is_some()
    }

    pub(super) fn is_taking(&self) -> bool {
        self.taking.is_some()
    }

    pub(super) fn withdrawn(&mut self) {
        self.taking = None;
    }

    pub(super) fn took(&mut self, now: Instant, count: usize) {
        let asked = self.taking.take();
        self.running += count;
        // The queue has waited already: ask again without a pause.
        let waited =
            asked.is_some_and(|asked| self.terms.waits && now.since(asked.at) >= EMPTY_AFTER / 2);
        self.answered = true;
        self.failing = None;
        self.refused_since = None;
        self.empty = count == 0;
        if count > 0 {
            self.busy_at = now;
        }
        // Grow slowly: a late message loses an attempt. A number that failed recently is not retried.
        if count >= self.most {
            let cap = match self.too_many {
                Some((many, at)) if now.since(at) < LEARNT => many - 1,
                _ => self.terms.batch,
            };
            self.most = (self.most + 1).min(cap);
        }
        if count > 0 || waited {
            self.waits = WAITS;
            self.look_at = now;
        } else {
            self.look_later(now);
        }
    }

    /// Notes a failed request. `denied`: for good, for want of a right or not.
    pub(super) fn took_nothing(&mut self, now: Instant, why: String, denied: Option<bool>) {
        let asked = self.taking.take();
        self.empty = false;
        self.look_later(now);
        // The network may be too slow: late messages are locked and lose an attempt. A waiting queue sends
        // them with the next request.
        if denied.is_none() && !self.terms.waits {
            let asked = asked.map_or(self.most, |asked| asked.most);
            // Only the first failure of an outage tells anything about the number.
            if asked > 1 && self.failing.is_none() {
                self.too_many = Some((asked, now));
            }
            self.most = (asked / 2).max(1);
        }
        let since = (denied == Some(true)).then(|| self.refused_since.unwrap_or(now));
        self.refused_since = since;
        let for_good = self.running == 0
            && since.is_some_and(|since| now.since(since) >= self.terms.auth_patience);
        match denied {
            // A queue that has answered once is the right one: a later refusal may be temporary.
            Some(denied) if !self.answered || for_good => {
                self.leave(now, Why::CannotTake { why, denied });
            }
            _ => {
                let since = self.failing.take().map_or(now, |(since, _)| since);
                self.failing = Some((since, why));
            }
        }
    }

    pub(super) fn took_from_deleted(&mut self, now: Instant) {
        self.taking = None;
        self.failing = None;
        self.empty = true;
        self.look_later(now);
    }

    fn look_later(&mut self, now: Instant) {
        self.look_at = now + self.jitter.spread(self.waits.next_pause());
    }

    pub(super) fn done(&mut self, now: Instant, ran: bool) {
        self.running = self.running.saturating_sub(1);
        // A message given back without a run does not count: `--once` has to try another.
        self.counted += u64::from(ran);
        self.busy_at = now;
        self.empty = false;
    }

    /// Notes the end of a session: `earlier` messages before this one, none `since`.
    pub(super) fn session_done(
        &mut self,
        now: Instant,
        ran: bool,
        earlier: u64,
        since: Option<Instant>,
    ) {
        let busy_at = self.busy_at;
        self.done(now, ran);
        self.counted += earlier;
        if let Some(since) = since {
            self.busy_at = busy_at.max(since);
        }
    }

    /// Notes a dead-lettering. A failure pauses the queue; after several in a row the worker leaves.
    pub(super) fn put_aside(&mut self, now: Instant, taken: Instant, result: Result<(), String>) {
        match result {
            Ok(()) => self.refusals = 0,
            Err(why) => {
                // Messages taken before the last failure belong to the same outage.
                if taken > self.refused_at {
                    self.refusals += 1;
                    self.refused_at = now;
                }
                self.look_later(now);
                if self.terms.waits {
                    self.taking = None;
                }
                if self.refusals >= STUCK {
                    self.leave(now, Why::CannotSettle { why });
                }
            }
        }
    }

    pub(super) fn leave(&mut self, now: Instant, why: Why) {
        // Later reasons are often its consequences, except a possible overlap.
        match &mut self.leaving {
            Some((first, _)) if why == OVERLAP => *first = why,
            Some(_) => {}
            none => *none = Some((why, now)),
        }
    }

    pub(super) fn asked_to_stop(&mut self, now: Instant, signal: i32) -> Stop {
        let stop = self.stop.asked(now, signal);
        let may_overlap = matches!(&self.leaving, Some((why, _)) if *why == OVERLAP);
        if stop == Stop::Requested && !may_overlap {
            // A stop request replaces the worker's own reason to leave.
            self.leaving = Some((Why::Stopped(signal), now));
        }
        stop
    }

    /// Returns, once, the signal that must end running commands.
    pub(super) fn ends(&mut self, now: Instant) -> Option<i32> {
        let (why, since) = self.leaving.as_ref()?;
        if self.ended || self.running == 0 || now < *since + self.terms.grace {
            return None;
        }
        self.ended = true;
        Some(match why {
            Why::Stopped(signal) => *signal,
            _ => libc::SIGTERM,
        })
    }

    pub(super) fn has_ended(&mut self) {
        self.ended = true;
    }

    pub(super) fn is_leaving(&self) -> bool {
        self.leaving.is_some()
    }

    pub(super) fn running(&self) -> usize {
        self.running
    }
}

#[cfg(test)]
mod tests;
