//! Instants on a clock that counts suspend (CLOCK_BOOTTIME), the only clock that decisions use.
//!
//! `std::time::Instant` and tokio's timers stop while the machine sleeps, and wall clocks jump. A lease
//! does neither.

#[cfg(debug_assertions)]
mod simulated;

use std::fmt;
use std::io;
use std::ops::{Add, Sub};
use std::thread;
use std::time::Duration;

#[cfg(debug_assertions)]
pub use simulated::SimulatedClock;
#[cfg(debug_assertions)]
pub use simulated::carried;

/// Point in time, in nanoseconds since the boot, suspend included. Arithmetic saturates.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Instant(u64);

impl Instant {
    /// Moment of the boot.
    pub const ZERO: Instant = Instant(0);
    /// Deadline of something that has none.
    pub const FOREVER: Instant = Instant(u64::MAX);

    /// Reads the present moment.
    ///
    /// # Panics
    /// Without CLOCK_BOOTTIME (Linux before 2.6.39), where trafficcop cannot keep its promise.
    #[must_use]
    pub fn now() -> Instant {
        #[cfg(debug_assertions)]
        if let Some(now) = simulated::now() {
            return now;
        }
        let spec = nix::time::clock_gettime(nix::time::ClockId::CLOCK_BOOTTIME)
            .expect("CLOCK_BOOTTIME exists on every supported kernel");
        let seconds = u64::try_from(spec.tv_sec()).unwrap_or(0);
        let nanos = u64::try_from(spec.tv_nsec()).unwrap_or(0);
        Instant(seconds.saturating_mul(1_000_000_000).saturating_add(nanos))
    }

    /// Makes an instant from nanoseconds since the boot.
    #[must_use]
    pub const fn from_nanos(nanos: u64) -> Instant {
        Instant(nanos)
    }

    /// Returns the nanoseconds since the boot.
    #[must_use]
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Returns the time since `earlier`; zero if that is still to come.
    #[must_use]
    pub const fn since(self, earlier: Instant) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

/// Sleeps on a timer that stops while the machine is suspended: read the clock again afterwards.
pub async fn sleep(span: Duration) {
    #[cfg(debug_assertions)]
    if let Some(sleep) = simulated::sleep(span) {
        return sleep.await;
    }
    tokio::time::sleep(span).await;
}

/// Starts a thread that no code joins.
///
/// # Errors
/// If the system has no thread for it.
pub fn start_thread(name: &str, job: impl FnOnce() + Send + 'static) -> io::Result<()> {
    #[cfg(debug_assertions)]
    let Some(job) = simulated::start_thread(job) else {
        return Ok(());
    };
    thread::Builder::new()
        .name(name.to_owned())
        .spawn(job)
        .map(drop)
}

/// Starts a thread that waits in the kernel. A simulation calls `look` instead, which returns when to look
/// again at the latest.
///
/// # Errors
/// If the system has no thread for it.
pub fn start_waiting(
    name: &str,
    job: impl FnOnce() + Send + 'static,
    look: impl FnMut() -> Option<Instant> + 'static,
) -> io::Result<()> {
    #[cfg(debug_assertions)]
    if simulated::now().is_some() && simulated::start_waiting(look) {
        return Ok(());
    }
    #[cfg(not(debug_assertions))]
    drop(look);
    start_thread(name, job)
}

/// Blocks the calling thread, but not for the time of a suspend.
pub fn pause(span: Duration) {
    #[cfg(debug_assertions)]
    if simulated::pause(span) {
        return;
    }
    thread::sleep(span);
}

/// Tells whether this thread belongs to a simulation, and may only wait by [`pause`].
pub fn is_simulated() -> bool {
    #[cfg(debug_assertions)]
    return simulated::now().is_some();
    #[cfg(not(debug_assertions))]
    return false;
}

/// Request to a drive that may be far away. Only a simulation waits for its way.
pub struct Request(());

impl Request {
    /// Begins a request that is about to be sent.
    #[expect(clippy::new_without_default, reason = "it is sent where it is written")]
    pub fn new() -> Request {
        #[cfg(debug_assertions)]
        simulated::travel();
        Request(())
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        #[cfg(debug_assertions)]
        simulated::travel();
    }
}

impl Add<Duration> for Instant {
    type Output = Instant;
    fn add(self, span: Duration) -> Instant {
        Instant(
            self.0
                .saturating_add(u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)),
        )
    }
}

impl Sub<Duration> for Instant {
    type Output = Instant;
    fn sub(self, span: Duration) -> Instant {
        Instant(
            self.0
                .saturating_sub(u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)),
        )
    }
}

impl fmt::Debug for Instant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Instant::FOREVER {
            return f.write_str("forever");
        }
        write!(
            f,
            "{}.{:09}s",
            self.0 / 1_000_000_000,
            self.0 % 1_000_000_000
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arithmetic_saturates_at_both_ends() {
        assert_eq!(Instant::ZERO - Duration::from_secs(1), Instant::ZERO);
        assert_eq!(Instant::FOREVER + Duration::from_secs(1), Instant::FOREVER);
        assert_eq!(Instant::ZERO.since(Instant::FOREVER), Duration::ZERO);
    }

    #[test]
    fn now_never_goes_back() {
        let first = Instant::now();
        assert!(Instant::now() >= first && first > Instant::ZERO);
    }

    #[cfg(debug_assertions)]
    #[test]
    fn a_simulated_process_sleeps_by_its_own_clock_and_not_while_its_machine_is_suspended() {
        use std::future::Future as _;
        use std::task::{Context, Poll, Waker};

        let clock = std::rc::Rc::new(SimulatedClock::default());
        let mut nap = Box::pin(sleep(Duration::from_secs(10)));
        let mut look = |at: u64, suspended: u64| {
            let at = Instant::ZERO + Duration::from_secs(at);
            let suspended = Duration::from_secs(suspended);
            clock.enter(at, suspended, || {
                assert_eq!(Instant::now(), at);
                let mut context = Context::from_waker(Waker::noop());
                nap.as_mut().poll(&mut context) == Poll::Ready(())
            })
        };
        assert!(!look(100, 0));
        assert_eq!(clock.next(), Some(Instant::ZERO + Duration::from_secs(110)));
        assert!(!look(120, 15));
        assert_eq!(clock.next(), Some(Instant::ZERO + Duration::from_secs(125)));
        assert!(look(125, 15));
        drop(nap);
        assert_eq!(clock.next(), None);
        assert_ne!(Instant::now(), Instant::ZERO + Duration::from_secs(125));
    }
}
