//! The lock of one message, and its settlement.
//!
//! # The token is enough
//! The lock's token renews the lock and settles the message through `$management`, the queue's management node,
//! which answers on every connection: a cut connection costs nothing. Only [`Settlement::Release`] needs the link
//! that delivered the message. Without it the message is abandoned, which counts as an attempt.
//!
//! # When a settlement was not answered
//! The caller repeats it while the lock lasts. If the service then knows no such lock (410), an earlier attempt
//! was carried out, or the lock was lost before. These cannot be told apart, so the result stays "not confirmed": never
//! "failed", and never "done".

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use time::OffsetDateTime;

use super::amqp::Connection;
use super::error::BusError;
use super::shared::SharedConnection;
use super::wire::{LockToken, Ticket};
use trafficcop_azure::queue::{Closed, Lock, NEVER, Settlement, turn};
use trafficcop_core::Failure;
use trafficcop_core::clock::Instant;
use trafficcop_core::util::lock;

// Shortest and longest lock that a queue can have.
const SHORTEST: Duration = Duration::from_secs(5);
const LONGEST: Duration = Duration::from_secs(300);
// For an answer's travel time, and the difference that NTP leaves between clocks.
const TOLERANCE: Duration = Duration::from_secs(1);
// Latest time of the first renewal: a lock of 30 s is renewed in time even if a clock is off by 10 s.
pub(super) const FIRST_RENEWAL: Duration = Duration::from_secs(20);
// A slower request is as good as lost: a lock can be as short as this.
pub(super) const REQUEST: Duration = Duration::from_secs(5);
// Time for which later locks are assumed to last no longer than one that ended early. Not for ever: the service
// loses locks now and then. A wrong clock soon shows again.
const LIMITED_FOR: Duration = Duration::from_secs(3600);

pub(super) struct Held {
    shared: Arc<SharedConnection>,
    token: LockToken,
    ticket: Ticket,
    state: tokio::sync::Mutex<MessageLockState>,
    /// See [`LockDuration::reported`].
    lasts: Mutex<Option<Duration>>,
}

struct MessageLockState {
    /// Time from which the newest confirmed lock counts, and its assumed length.
    t0: Instant,
    length: Duration,
    /// Settlement that may have been carried out.
    settling: Option<Settlement>,
    closed: Option<Closed>,
}

impl Held {
    pub(super) fn new(
        shared: Arc<SharedConnection>,
        token: LockToken,
        ticket: Ticket,
        t0: Instant,
        length: Duration,
    ) -> Held {
        let state = MessageLockState {
            t0,
            length,
            settling: None,
            closed: None,
        };
        Held {
            shared,
            token,
            ticket,
            state: tokio::sync::Mutex::new(state),
            lasts: Mutex::new(None),
        }
    }

    async fn connection(
        &self,
        what: &str,
        give_up_at: Instant,
    ) -> Result<Arc<Connection>, Failure> {
        let connection = self.shared.connection(None, give_up_at).await;
        connection.map_err(|error| error.doubt(what))
    }

    /// Returns the next connection, if this one has ended; else, or if none comes in time, the error.
    async fn after(
        &self,
        connection: &Arc<Connection>,
        error: BusError,
        give_up_at: Instant,
    ) -> Result<Arc<Connection>, BusError> {
        // A living connection would give the same answer again.
        if !connection.has_ended() {
            return Err(error);
        }
        let next = self.shared.connection(Some(connection), give_up_at);
        next.await.map_err(|_| error)
    }

    /// Renews the lock; returns its length. If the connection ends, repeats the request on the next one at once:
    /// that does no harm, and a short lock would end before the caller's next renewal.
    pub(super) async fn relock(&self, give_up_at: Instant) -> Result<Duration, Failure> {
        const WHAT: &str = "the lock is not renewed";
        let mut state = turn(&self.state, give_up_at).await?;
        if let Some(closed) = &state.closed {
            return Err(closed.failure());
        }
        let mut connection = self.connection(WHAT, give_up_at).await?;
        loop {
            let (t0, sent) = (Instant::now(), wall());
            match connection.renew(self.token, give_up_at).await {
                Ok(until) => {
                    let lock_duration = &self.shared.lock_duration;
                    state.t0 = t0;
                    // If the answer does not say when the lock ends, the length stays.
                    if until.is_some() {
                        state.length = lock_duration.of(until, wall(), t0);
                    }
                    // [`Lock::lasts`] counts from before the request.
                    *lock(&self.lasts) = lock_duration.reported(until, sent);
                    return Ok(state.length);
                }
                Err(error) if error.is_lost() => {
                    // An open settlement may itself have ended the lock.
                    if state.settling.is_none() {
                        let lock_duration = &self.shared.lock_duration;
                        lock_duration.ended_early(state.t0, state.length, Instant::now());
                    }
                    return Err(lose(&mut state, &error));
                }
                Err(error) => {
                    let next = self.after(&connection, error, give_up_at).await;
                    connection = next.map_err(|error| error.doubt(WHAT))?;
                }
            }
        }
    }

    async fn ask(
        &self,
        connection: &Connection,
        how: &Settlement,
        give_up_at: Instant,
    ) -> Result<(), BusError> {
        let on_link = self.shared.link_settle || matches!(how, Settlement::Release);
        if on_link && connection.delivered(self.ticket) {
            return connection.dispose(self.ticket, how, give_up_at).await;
        }
        let by_token = match how {
            // A retry counts as an attempt, but without it the message would stay locked.
            Settlement::Release => &Settlement::Retry(Duration::ZERO),
            _ => how,
        };
        connection.settle(self.token, by_token, give_up_at).await?;
        // Only after the answer, since `forget` also settles the message on its link. Without `forget`, the AMQP
        // library keeps 270 bytes for each message until the connection ends.
        connection.forget(self.ticket, how);
        Ok(())
    }
}

pub(super) fn unconfirmed(why: &str) -> Failure {
    Failure::Transient {
        why: format!(
            "{why}: the previous settlement was not answered, and it is not known whether it was carried out"
        ),
        // The service has forgotten the token.
        retry_after: Some(NEVER),
    }
}

/// Closes a message whose lock the service does not know. It is not settled on its link either: a service that is
/// wrong could carry that out.
fn lose(state: &mut MessageLockState, error: &BusError) -> Failure {
    let failure = if state.settling.is_some() {
        unconfirmed(&error.why())
    } else {
        Failure::Lost {
            until: None,
            why: error.why(),
        }
    };
    state.closed = Some(Closed::Failed(failure.clone()));
    failure
}

/// This machine's wall clock, in milliseconds since 1970, only to compare it with the service's.
pub(super) fn wall() -> i64 {
    let nanos = OffsetDateTime::now_utc().unix_timestamp_nanos();
    i64::try_from(nanos / 1_000_000).unwrap_or(0)
}

#[async_trait]
impl Lock for Held {
    async fn renew(&self, give_up_at: Instant) -> Result<(), Failure> {
        self.relock(give_up_at).await.map(drop)
    }

    fn lasts(&self) -> Option<Duration> {
        *lock(&self.lasts)
    }

    async fn settle(&self, settlement: &Settlement, give_up_at: Instant) -> Result<(), Failure> {
        const WHAT: &str = "the message is not settled";
        let mut state = turn(&self.state, give_up_at).await?;
        if let Some(closed) = &state.closed {
            return closed.settled_as(settlement);
        }
        let mut connection = self.connection(WHAT, give_up_at).await?;
        loop {
            // Before sending: this call can be dropped at any await.
            let earlier = state.settling.replace(settlement.clone());
            let error = match self.ask(&connection, settlement, give_up_at).await {
                Ok(()) => {
                    state.closed = Some(Closed::Settled(settlement.clone()));
                    return Ok(());
                }
                Err(error) => error,
            };
            if !error.is_unclear() {
                state.settling = earlier;
            }
            if error.is_lost() {
                return Err(lose(&mut state, &error));
            }
            // Repeat only an unsent settlement. The caller decides whether to repeat any other one, since it knows how
            // much time the lock has left.
            let next = match &error {
                BusError::Unsent(_) => self.after(&connection, error, give_up_at).await,
                _ => Err(error),
            };
            connection = next.map_err(|error| error.doubt(WHAT))?;
        }
    }
}

/// Assumed length of a lock.
///
/// The service reports the end of a lock by its own wall clock, never its length. `--lock-time` sets the length.
/// Without it, the length is the reported end minus this machine's time, if a queue can have that length (5 s to
/// 5 min). Otherwise one of the clocks is wrong, and the shortest length is assumed. A smaller error of a clock shows
/// at the first renewal, after 20 s at the latest: the lock has already ended. For an hour, the following locks are
/// assumed to last no longer than that one did.
///
/// The lengths decide when to renew. A lock's deadline is counted elsewhere, from the time before a request.
#[derive(Debug)]
pub(super) struct LockDuration {
    lock_time: Option<Duration>,
    /// Limit of the assumed length: how long a lock lasted that ended early, and when this was noticed.
    limit: Mutex<Option<(Duration, Instant)>>,
    warned: AtomicBool,
}

impl LockDuration {
    pub(super) fn new(lock_time: Option<Duration>) -> LockDuration {
        LockDuration {
            lock_time,
            limit: Mutex::new(None),
            warned: AtomicBool::new(false),
        }
    }

    pub(super) fn at_first(&self) -> Duration {
        self.lock_time.unwrap_or(SHORTEST)
    }

    /// Returns the length from `now` (this machine's clock) of a lock that ends at `until` (the service's), both
    /// in milliseconds since 1970. `at`, on CLOCK_BOOTTIME, is the same moment or one shortly before.
    pub(super) fn of(&self, until: Option<i64>, now: i64, at: Instant) -> Duration {
        if let Some(lock_time) = self.lock_time {
            return lock_time;
        }
        let length = self.reported(until, now).unwrap_or_else(|| {
            if let Some(until) = until {
                self.warn(until.saturating_sub(now));
            }
            // A guess that is too short costs renewals; one that is too long lets a second worker start.
            SHORTEST
        });
        let limit = self.limit(at);
        limit.map_or(length, |limit| length.min(limit))
    }

    /// Returns the length by the service's report, unless the user set one or no queue can have it.
    pub(super) fn reported(&self, until: Option<i64>, now: i64) -> Option<Duration> {
        if self.lock_time.is_some() {
            return None;
        }
        plausible(until?.saturating_sub(now))
    }

    fn limit(&self, at: Instant) -> Option<Duration> {
        let (limit, since) = (*lock(&self.limit))?;
        (at.since(since) < LIMITED_FOR).then_some(limit)
    }

    /// Notes that a lock from `t0`, with the length `believed`, had ended at `at`.
    pub(super) fn ended_early(&self, t0: Instant, believed: Duration, at: Instant) {
        let after = at.since(t0);
        // The user's value stays: the lock may have been lost in another way.
        if self.lock_time.is_some() || after >= believed {
            return;
        }
        // No queue has a shorter lock, even if this one ended sooner.
        let after = after.max(SHORTEST);
        let known = self.limit(at);
        let limit = known.map_or(after, |limit| limit.min(after));
        *lock(&self.limit) = Some((limit, at));
        if known != Some(limit) {
            tracing::warn!(
                "a lock that was to last {} s had ended after {} s: assuming for an hour that locks last {} s: check \
                 this machine's clock, or set --lock-time",
                believed.as_secs(),
                at.since(t0).as_secs(),
                limit.as_secs()
            );
        }
    }

    fn warn(&self, apparent_length: i64) {
        if !self.warned.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                "the clock differs from the service's: a message seems to be locked for {} s, but a queue's \
                 locks last 5 s to 5 min; assuming that they last {} s: set the clock, or set --lock-time",
                apparent_length / 1000,
                SHORTEST.as_secs()
            );
        }
    }
}

fn plausible(left: i64) -> Option<Duration> {
    let left = Duration::from_millis(u64::try_from(left).ok()?);
    (left >= SHORTEST - TOLERANCE && left <= LONGEST + TOLERANCE).then(|| left.min(LONGEST))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: i64 = 1_900_000_000_000;

    const START: Instant = Instant::from_nanos(1);

    fn seconds(lock_duration: &LockDuration, left: i64) -> u64 {
        seconds_at(lock_duration, left, START)
    }

    fn seconds_at(lock_duration: &LockDuration, left: i64, at: Instant) -> u64 {
        let until = Some(NOW + left * 1000);
        lock_duration.of(until, NOW, at).as_secs()
    }

    fn ended(lock_duration: &LockDuration, after: Duration, believed: u64) {
        lock_duration.ended_early(START, Duration::from_secs(believed), START + after);
    }

    #[test]
    fn only_a_possible_lock_length_is_used() {
        let lock_duration = LockDuration::new(None);
        for (left, length) in [(5, 5), (30, 30), (300, 300), (301, 300), (4, 4)] {
            assert_eq!(seconds(&lock_duration, left), length, "{left}");
            assert!(!lock_duration.warned.load(Ordering::Relaxed));
        }
        for left in [3, 0, -3600, 302, 3630, i64::MIN / 2000] {
            lock_duration.warned.store(false, Ordering::Relaxed);
            assert_eq!(seconds(&lock_duration, left), 5, "{left}");
            assert!(lock_duration.warned.load(Ordering::Relaxed));
        }
        assert_eq!(lock_duration.of(None, NOW, START), SHORTEST);
        let farthest = lock_duration.of(Some(i64::MAX), i64::MIN, START);
        assert_eq!(farthest, SHORTEST);
    }

    #[test]
    fn lock_time_of_the_user_overrides_the_clock() {
        let lock_duration = LockDuration::new(Some(Duration::from_secs(42)));
        for left in [5, 30, 3630, -3600] {
            assert_eq!(seconds(&lock_duration, left), 42);
        }
        ended(&lock_duration, Duration::from_secs(7), 42);
        assert_eq!(seconds(&lock_duration, 30), 42);
        assert!(!lock_duration.warned.load(Ordering::Relaxed));
    }

    #[test]
    fn lock_that_ended_early_shortens_later_ones() {
        let lock_duration = LockDuration::new(None);
        ended(&lock_duration, Duration::from_secs(40), 40);
        assert_eq!(seconds(&lock_duration, 40), 40);
        ended(&lock_duration, Duration::from_secs(21), 40);
        assert_eq!(seconds(&lock_duration, 40), 21);
        ended(&lock_duration, Duration::from_millis(10), 40);
        assert_eq!(seconds(&lock_duration, 40), 5);
        assert_eq!(seconds(&lock_duration, 4), 4);
    }

    #[test]
    fn early_end_is_forgotten_after_an_hour() {
        let lock_duration = LockDuration::new(None);
        let second = Duration::from_secs(1);
        ended(&lock_duration, second * 21, 40);
        let forgotten = START + second * 21 + LIMITED_FOR;
        assert_eq!(seconds_at(&lock_duration, 40, forgotten - second), 21);
        assert_eq!(seconds_at(&lock_duration, 40, forgotten), 40);
        let ends = forgotten + second * 30;
        lock_duration.ended_early(forgotten, second * 40, ends);
        assert_eq!(
            seconds_at(&lock_duration, 40, ends + LIMITED_FOR - second),
            30
        );
        assert_eq!(seconds_at(&lock_duration, 40, ends + LIMITED_FOR), 40);
    }
}
