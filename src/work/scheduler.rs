//! What the worker does next: take so many messages, wait, or leave. Pure: time comes in as a value.
//!
//! Called by the driver's loop. It knows how many slots are free and what was asked of us, and
//! nothing of queues, commands or locks.

use std::fmt;
use std::time::Duration;

use crate::clock::Instant;
use crate::core::retry::{Backoff, Jitter};
use crate::core::stop::{Stop, StopRequests};
use crate::units;

// Each look at a storage queue is paid for, and a message is not late for half a minute where none
// came for minutes: so the pause doubles from the least to the most (with ±20 %).
const WAITS: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(30));
// A queue that waits for messages has to be silent for a while before that counts as empty: the
// first one is under way for a round trip and more.
const LOOK: Duration = Duration::from_secs(2);
const LISTEN: Duration = Duration::from_secs(60);
/// How many messages a queue gives at once.
pub(super) const BATCH: usize = 32;
// One refusal can be a moment's; five, with growing pauses between them, are a right that is
// missing.
const STUCK: u32 = 5;
// For so long as many messages as did not come in time are not asked for again.
const LEARNT: Duration = Duration::from_secs(600);
// For how long a queue may fail to answer a worker that is to leave when there is no message.
const OUT_OF_REACH: Duration = Duration::from_secs(30);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SchedulerConfig {
    /// How many messages at once; at least 1.
    pub(super) concurrency: usize,
    /// After how many messages it leaves.
    pub(super) max_messages: Option<u64>,
    /// After how long without a message it leaves.
    pub(super) idle_exit: Option<Duration>,
    /// How long messages may go on after a stop was asked for.
    pub(super) grace: Duration,
    /// How long the queue may refuse the credential that it accepted before until it leaves.
    pub(super) auth_patience: Duration,
    /// How many messages a request can bring at most.
    pub(super) batch: usize,
    /// A request to take waits for messages by itself, and can be withdrawn for another.
    pub(super) waits: bool,
}

/// What cannot be excluded, and outlasts every other reason.
const OVERLAP: Why = Why::GuardianLost { overlap: true };

/// Why the worker leaves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Why {
    /// It was asked to, by this signal.
    Stopped(i32),
    /// There was no message for long enough.
    Idle,
    /// It has had as many messages as it was to have.
    Enough,
    /// The command cannot be started.
    NotStarted {
        /// The error number of the kernel.
        errno: i32,
    },
    /// A guardian died, or could not kill what it guarded (then `overlap`).
    GuardianLost {
        /// Something may live on.
        overlap: bool,
    },
    /// Messages could not be handed over to a command, on this machine.
    NoHandover {
        /// What the file system said.
        why: String,
    },
    /// The queue lets us take none, or does not answer when we are to leave because there is none.
    CannotTake {
        /// What the queue said last.
        why: String,
        /// We may not.
        denied: bool,
    },
    /// Messages could not be put aside, or not settled before their commands, several times in a row.
    CannotSettle {
        /// What the queue said last.
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
            // They say themselves what cannot be done.
            Why::CannotTake { why, denied: true } | Why::CannotSettle { why } => f.write_str(why),
            Why::CannotTake { why, denied: false } => {
                write!(f, "messages cannot be taken: {why}")
            }
        }
    }
}

/// What is to be done now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Ask for at most so many messages, instead of what was asked for before.
    Take(usize),
    /// Come back at this moment, if nothing happens before.
    Wait(Instant),
    /// Leave: nothing is held any more.
    Leave(Why),
}

#[derive(Clone, Copy, Debug)]
struct TakeRequest {
    most: usize,
    at: Instant,
}

/// What the worker does next, by what it has in hand and what was asked of it.
#[derive(Debug)]
pub(super) struct Scheduler {
    terms: SchedulerConfig,
    jitter: Jitter,
    /// Messages that are being worked on.
    running: usize,
    /// A request to take is under way.
    taking: Option<TakeRequest>,
    /// Messages whose commands were started.
    counted: u64,
    /// How many may still be begun in sessions, which have begun some before they are done with.
    may_begin: Option<u64>,
    /// When the queue is looked at next.
    look_at: Instant,
    /// The waits before the looks after that.
    waits: Backoff,
    /// When the last message came, or was done with.
    busy_at: Instant,
    /// Since then the queue was looked at, and said that it was empty.
    empty: bool,
    /// Since when it has not answered, and what was said last.
    failing: Option<(Instant, String)>,
    /// It has answered once.
    answered: bool,
    /// Since when it has refused our credential, and has said nothing else.
    refused_since: Option<Instant>,
    /// Since when a stop is asked for, or decided.
    leaving: Option<(Why, Instant)>,
    stop: StopRequests,
    /// What runs was told to end.
    ended: bool,
    /// How often in a row a message could not be put aside.
    refusals: u32,
    /// When the last of these was.
    refused_at: Instant,
    /// How many messages are asked for at most: fewer where so many have not come in time.
    most: usize,
    /// So many have not, since then.
    too_many: Option<(usize, Instant)>,
}

impl Scheduler {
    /// A scheduler where work begins at `now`.
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
        // What is being taken may bring a message: until then nobody leaves.
        let quiet = self.running == 0 && self.taking.is_none();
        if let Some((why, since)) = &self.leaving {
            if quiet {
                return Next::Leave(why.clone());
            }
            // Where nothing runs there is nothing to end: what is being taken is given back.
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
            // Never before a look that was answered: a worker that is started for one message has to
            // ask for it.
            match &self.failing {
                None if self.empty => return Next::Leave(Why::Idle),
                Some((since, why)) if now >= *since + OUT_OF_REACH => {
                    let (why, denied) = (why.clone(), false);
                    return Next::Leave(Why::CannotTake { why, denied });
                }
                _ => idle_at = Instant::FOREVER,
            }
        }
        // Never more than there are processors: what is taken and not begun has a lock that runs
        // out.
        let free = self.terms.concurrency - self.running;
        let wanted = free
            .min(self.most)
            .min(left.map_or(BATCH, |left| usize::try_from(left).unwrap_or(BATCH)));
        // One request at a time: two could bring more than there are processors. One that waits is
        // replaced, when more could come by another than it was sent for.
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

    /// Until when a queue that waits for messages is to wait for them, if it is asked now: as long as
    /// nothing else is to be done, and never for so short that its silence would say nothing.
    pub(super) fn listens_until(&self, now: Instant) -> Instant {
        let idle_at = match self.terms.idle_exit {
            Some(span) => self.busy_at + span,
            None => Instant::FOREVER,
        };
        idle_at.min(now + LISTEN).max(now + LOOK)
    }

    /// How many messages may still be begun.
    fn left(&self) -> Option<u64> {
        let running = self.running as u64;
        let most = self.terms.max_messages?;
        let left = most.saturating_sub(self.counted).saturating_sub(running);
        Some(self.may_begin.map_or(left, |may_begin| left.min(may_begin)))
    }

    /// So many messages may still be begun in sessions.
    pub(super) fn may_begin(&mut self, left: u64) {
        self.may_begin = Some(left);
        // What it would bring could only be given up again.
        if self.terms.waits && self.left() == Some(0) {
            self.taking = None;
        }
    }

    /// A request to take so many was sent.
    pub(super) fn takes(&mut self, now: Instant, most: usize) {
        self.taking = Some(TakeRequest { most, at: now });
    }

    /// Whether the queue refuses our credential, though it accepted it before.
    pub(super) fn is_refused(&self) -> bool {
        self.refused_since.is_some()
    }

    /// Whether a request to take is under way that is still wanted.
    pub(super) fn is_taking(&self) -> bool {
        self.taking.is_some()
    }

    /// The request to take was withdrawn, and brings nothing any more.
    pub(super) fn withdrawn(&mut self) {
        self.taking = None;
    }

    /// It came back with so many messages, which are being worked on from now.
    pub(super) fn took(&mut self, now: Instant, count: usize) {
        let asked = self.taking.take();
        // Their processors are taken: the next request asks for so many less.
        self.running += count;
        // It has waited for us: there is no need to wait before it is asked again.
        let waited = asked.is_some_and(|asked| self.terms.waits && now.since(asked.at) >= LOOK / 2);
        self.answered = true;
        self.failing = None;
        self.refused_since = None;
        self.empty = count == 0;
        if count > 0 {
            self.busy_at = now;
        }
        // Slowly: what comes too late has lost an attempt, and after the last one its message is put aside. And what
        // has been too many is not tried for a while.
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

    /// It failed: the queue is asked again as often as if it were empty. `denied`: it will always
    /// fail, and for want of a right or not; then we leave, if it has never answered.
    pub(super) fn took_nothing(&mut self, now: Instant, why: String, denied: Option<bool>) {
        let asked = self.taking.take();
        self.empty = false;
        self.look_later(now);
        // The line may be too slow for so many, and what did not come is locked, an attempt the poorer. What a
        // queue that waits has on its way comes with the next request.
        if denied.is_none() && !self.terms.waits {
            let asked = asked.map_or(self.most, |asked| asked.most);
            // Of an outage it is the first alone, which was as many as had come before.
            if asked > 1 && self.failing.is_none() {
                self.too_many = Some((asked, now));
            }
            self.most = (asked / 2).max(1);
        }
        let since = (denied == Some(true)).then(|| self.refused_since.unwrap_or(now));
        self.refused_since = since;
        // What still runs is not stopped for it.
        let for_good = self.running == 0
            && since.is_some_and(|since| now.since(since) >= self.terms.auth_patience);
        match denied {
            // A queue that has answered once is the right one: what it says later can pass.
            Some(denied) if !self.answered || for_good => {
                self.leave(now, Why::CannotTake { why, denied });
            }
            _ => {
                let since = self.failing.take().map_or(now, |(since, _)| since);
                self.failing = Some((since, why));
            }
        }
    }

    /// The queue was deleted, so it has no messages: it is asked again as often as if it were empty.
    pub(super) fn took_from_deleted(&mut self, now: Instant) {
        self.taking = None;
        self.failing = None;
        self.empty = true;
        self.look_later(now);
    }

    fn look_later(&mut self, now: Instant) {
        self.look_at = now + self.jitter.spread(self.waits.next_pause());
    }

    /// A message was done with; `ran` if its command was started.
    pub(super) fn done(&mut self, now: Instant, ran: bool) {
        self.running = self.running.saturating_sub(1);
        // One that was given back unread is no work done: `--once` has to try another.
        self.counted += u64::from(ran);
        self.busy_at = now;
        self.empty = false;
    }

    /// The same of a session, where so many messages were begun before this one, and since this moment it
    /// has had none.
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
            // Another session may have had one after that.
            self.busy_at = busy_at.max(since);
        }
    }

    /// A message that was `taken` then was put aside, or (`Err`) could not be: then the queue is left in peace for a
    /// while, and after several in a row we leave.
    pub(super) fn put_aside(&mut self, now: Instant, taken: Instant, result: Result<(), String>) {
        match result {
            Ok(()) => self.refusals = 0,
            Err(why) => {
                // Whatever was in hand at the last refusal is a part of that: one outage, however far apart they give up.
                if taken > self.refused_at {
                    self.refusals += 1;
                    self.refused_at = now;
                }
                // The next one would most likely be refused as well.
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

    /// No more is taken, for this reason; the first one counts.
    pub(super) fn leave(&mut self, now: Instant, why: Why) {
        // The later ones are often what comes of it; but what cannot be excluded is told, whatever came before.
        match &mut self.leaving {
            Some((first, _)) if why == OVERLAP => *first = why,
            Some(_) => {}
            none => *none = Some((why, now)),
        }
    }

    /// A person or a service manager asks for a stop: the first lets finish what runs.
    pub(super) fn asked_to_stop(&mut self, now: Instant, signal: i32) -> Stop {
        let stop = self.stop.asked(now, signal);
        let may_overlap = matches!(&self.leaving, Some((why, _)) if *why == OVERLAP);
        if stop == Stop::Requested && !may_overlap {
            // Whoever is asked to stop while leaving leaves as asked.
            self.leaving = Some((Why::Stopped(signal), now));
        }
        stop
    }

    /// By which signal what runs is to be told to end now; said once.
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

    /// What runs was told to end.
    pub(super) fn has_ended(&mut self) {
        self.ended = true;
    }

    /// Whether no more is taken.
    pub(super) fn is_leaving(&self) -> bool {
        self.leaving.is_some()
    }

    /// How many messages are being worked on.
    pub(super) fn running(&self) -> usize {
        self.running
    }
}

#[cfg(test)]
mod tests;
