//! Decides what the worker does next: take messages, wait, or leave. Pure: time comes in as a value.
//!
//! Called by the worker's loop. It knows nothing of queues, commands or locks.

use std::fmt;
use std::time::Duration;

use crate::clock::Instant;
use crate::core::retry::{Backoff, Jitter};
use crate::core::stop::{Stop, StopRequests};
use crate::units;

// Each look at a storage queue costs money, and after minutes without a message half a minute does not
// matter.
const WAITS: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(30));
// A waiting queue must be silent for a while before it counts as empty: a message takes a round trip and
// more.
const EMPTY_AFTER: Duration = Duration::from_secs(2);
const LISTEN: Duration = Duration::from_secs(60);
pub(super) const BATCH: usize = 32;
// One refusal may be temporary; five in a row, with growing pauses, mean a missing right.
const STUCK: u32 = 5;
// Time before a number of messages that did not come in time is requested again.
const LEARNT: Duration = Duration::from_secs(600);
// How long a queue may fail to answer before --idle-exit gives up.
const OUT_OF_REACH: Duration = Duration::from_secs(30);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SchedulerConfig {
    pub(super) concurrency: usize,
    pub(super) max_messages: Option<u64>,
    pub(super) idle_exit: Option<Duration>,
    pub(super) grace: Duration,
    /// Longest refusal of a credential that the queue accepted before.
    pub(super) auth_patience: Duration,
    pub(super) batch: usize,
    /// Whether a request waits for messages by itself, and can be replaced by another.
    pub(super) waits: bool,
}

/// Overrides every other reason: a process may still be alive.
const OVERLAP: Why = Why::GuardianLost { overlap: true };

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Why {
    Stopped(i32),
    /// There was no message for --idle-exit.
    Idle,
    Enough,
    NotStarted {
        errno: i32,
    },
    /// A guardian died, or could not kill its command (then `overlap`).
    GuardianLost {
        overlap: bool,
    },
    NoHandover {
        why: String,
    },
    /// The queue refuses to give messages, or did not answer for --idle-exit.
    CannotTake {
        why: String,
        denied: bool,
    },
    /// Messages could not be dead-lettered, or not settled before their commands, several times in a row.
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
            // These texts name the failed operation themselves.
            Why::CannotTake { why, denied: true } | Why::CannotSettle { why } => f.write_str(why),
            Why::CannotTake { why, denied: false } => {
                write!(f, "messages cannot be taken: {why}")
            }
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Request at most so many messages, in place of the previous request.
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
    /// Number of session messages that may still be started: a session starts several before it is done.
    may_begin: Option<u64>,
    look_at: Instant,
    waits: Backoff,
    /// When the last message came, or was settled.
    busy_at: Instant,
    /// The queue was empty at a look since then.
    empty: bool,
    /// Start of an outage of the queue, and its last error.
    failing: Option<(Instant, String)>,
    answered: bool,
    /// Start of the time in which the queue has only refused the credential.
    refused_since: Option<Instant>,
    /// Reason and time of a requested or decided stop.
    leaving: Option<(Why, Instant)>,
    stop: StopRequests,
    ended: bool,
    refusals: u32,
    refused_at: Instant,
    /// Largest number of messages to request: fewer after a batch that did not come in time.
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
        // A request under way may bring a message: do not leave before.
        let quiet = self.running == 0 && self.taking.is_none();
        if let Some((why, since)) = &self.leaving {
            if quiet {
                return Next::Leave(why.clone());
            }
            // Without running commands there is nothing to end; a request's messages are given back.
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
            // Only after a look that was answered: a worker started for one message has to ask for it.
            match &self.failing {
                None if self.empty => return Next::Leave(Why::Idle),
                Some((since, why)) if now >= *since + OUT_OF_REACH => {
                    let (why, denied) = (why.clone(), false);
                    return Next::Leave(Why::CannotTake { why, denied });
                }
                _ => idle_at = Instant::FOREVER,
            }
        }
        // Never more than there are free processors: a message that is not started has a lock that expires.
        let free = self.terms.concurrency - self.running;
        let wanted = free
            .min(self.most)
            .min(left.map_or(BATCH, |left| usize::try_from(left).unwrap_or(BATCH)));
        // One request at a time: two could bring too many. Replace a waiting one only if a new one can bring
        // more.
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

    /// Returns until when a waiting queue should wait for messages if it is asked now: long, but not beyond
    /// --idle-exit, and never so briefly that silence would mean nothing.
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

    /// Sets how many messages may still be started in sessions.
    pub(super) fn may_begin(&mut self, left: u64) {
        self.may_begin = Some(left);
        if self.terms.waits && self.left() == Some(0) {
            self.taking = None;
        }
    }

    pub(super) fn takes(&mut self, now: Instant, most: usize) {
        self.taking = Some(TakeRequest { most, at: now });
    }

    /// Returns whether the queue refuses the credential, though it accepted it before.
    pub(super) fn is_refused(&self) -> bool {
        self.refused_since.is_some()
    }

    pub(super) fn is_taking(&self) -> bool {
        self.taking.is_some()
    }

    pub(super) fn withdrawn(&mut self) {
        self.taking = None;
    }

    /// Notes that the request brought so many messages, which are processed from now on.
    pub(super) fn took(&mut self, now: Instant, count: usize) {
        let asked = self.taking.take();
        // They occupy processors: the next request asks for so many fewer.
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
        // Grow slowly: a message that comes too late loses an attempt. Do not retry a number that failed
        // recently.
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

    /// Notes that the request failed. `denied`: permanently, for want of a right or not; the worker leaves if
    /// the queue has never answered.
    pub(super) fn took_nothing(&mut self, now: Instant, why: String, denied: Option<bool>) {
        let asked = self.taking.take();
        self.empty = false;
        self.look_later(now);
        // The network may be too slow for so many, and late messages are locked and lose an attempt. From a
        // waiting queue they come with the next request.
        if denied.is_none() && !self.terms.waits {
            let asked = asked.map_or(self.most, |asked| asked.most);
            // In an outage the first failure alone tells, and as many had come before it.
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

    /// Notes that the queue was deleted, so it has no messages: look again as if it were empty.
    pub(super) fn took_from_deleted(&mut self, now: Instant) {
        self.taking = None;
        self.failing = None;
        self.empty = true;
        self.look_later(now);
    }

    fn look_later(&mut self, now: Instant) {
        self.look_at = now + self.jitter.spread(self.waits.next_pause());
    }

    /// Notes that a message was settled; `ran` if its command was started.
    pub(super) fn done(&mut self, now: Instant, ran: bool) {
        self.running = self.running.saturating_sub(1);
        // A message given back without a run does not count: `--once` has to try another.
        self.counted += u64::from(ran);
        self.busy_at = now;
        self.empty = false;
    }

    /// Notes that a session ended: it had started `earlier` messages before this one, and had none `since`
    /// then.
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

    /// Notes that a message requested at `taken` was dead-lettered, or (`Err`) could not be: then the queue
    /// gets a pause, and after several failures in a row the worker leaves.
    pub(super) fn put_aside(&mut self, now: Instant, taken: Instant, result: Result<(), String>) {
        match result {
            Ok(()) => self.refusals = 0,
            Err(why) => {
                // Failures of messages taken before the last failure belong to the same outage, however far
                // apart.
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

    /// Stops taking messages, for this reason; the first one counts.
    pub(super) fn leave(&mut self, now: Instant, why: Why) {
        // Later reasons are often consequences of it; but a possible overlap is always reported.
        match &mut self.leaving {
            Some((first, _)) if why == OVERLAP => *first = why,
            Some(_) => {}
            none => *none = Some((why, now)),
        }
    }

    /// Takes a stop request: the first one lets running commands finish.
    pub(super) fn asked_to_stop(&mut self, now: Instant, signal: i32) -> Stop {
        let stop = self.stop.asked(now, signal);
        let may_overlap = matches!(&self.leaving, Some((why, _)) if *why == OVERLAP);
        if stop == Stop::Requested && !may_overlap {
            // A stop request replaces the worker's own reason to leave.
            self.leaving = Some((Why::Stopped(signal), now));
        }
        stop
    }

    /// Returns, once, the signal by which running commands must be told to end now.
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
