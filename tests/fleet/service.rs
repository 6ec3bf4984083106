//! The service as a crowd sees it: the model of a leased blob, which counts requests and can refuse
//! too many.

use std::time::Duration;

use trafficcop::Instant;

use super::clock::{SECOND, Time};
use super::store::{Reply, Request, Store};

/// Requests a second for one blob.
pub(crate) const TARGET: usize = 500;

/// Returns the reading of every machine's clock at this time.
pub(crate) fn at(time: Time) -> Instant {
    Instant::from_nanos(1_000 * SECOND + time)
}

pub(crate) struct Service {
    store: Store,
    /// Requests above [`TARGET`] are refused, with this Retry-After.
    throttles: Option<Option<Duration>>,
    /// Requests that it would accept at once, as of a moment.
    room: (f64, Time),
    arrived: Vec<Time>,
    refused: usize,
    /// Time at which the lock last became free.
    freed: Time,
}

impl Service {
    pub(crate) fn new(lease: Duration, throttles: Option<Option<Duration>>) -> Service {
        Service {
            store: Store::new(lease, false),
            throttles,
            room: (TARGET as f64, 0),
            arrived: Vec::new(),
            refused: 0,
            freed: 0,
        }
    }

    /// Handles a request. Requests come in the order of their times.
    pub(crate) fn handle(&mut self, now: Time, request: Request) -> Reply {
        self.arrived.push(now);
        if let Some(retry_after) = self.throttles
            && !self.has_room(now)
        {
            self.refused += 1;
            return Reply::Error {
                status: 503,
                retry_after,
            };
        }
        let kept = self.store.protects(at(now)).is_some();
        let reply = self.store.handle(at(now), request);
        if kept && self.store.protects(at(now)).is_none() {
            self.freed = now;
        }
        reply
    }

    fn has_room(&mut self, now: Time) -> bool {
        let target = TARGET as f64;
        let gone = (now - self.room.1) as f64 / SECOND as f64;
        let room = (self.room.0 + gone * target).min(target);
        let fits = room >= 1.0;
        self.room = (if fits { room - 1.0 } else { room }, now);
        fits
    }

    /// Notes that the holder will not send requests any more: the lock becomes free when the lease
    /// ends.
    pub(crate) fn is_left_to_run_out(&mut self) {
        let ends = self.store.ends().expect("the lock has a holder");
        self.freed = ends.as_nanos() - at(0).as_nanos();
    }

    pub(crate) fn until_free(&self) -> Time {
        self.freed
    }

    pub(crate) fn asked(&self, from: Time, to: Time) -> usize {
        self.between(from, to).len()
    }

    /// Returns the largest number of requests within any stretch of this length.
    pub(crate) fn busiest(&self, from: Time, to: Time, stretch: Time) -> usize {
        let times = self.between(from, to);
        let mut last = 0;
        let stretches = times.iter().enumerate().map(|(first, begin)| {
            while times.get(last).is_some_and(|at| at - begin < stretch) {
                last += 1;
            }
            last - first
        });
        stretches.max().unwrap_or(0)
    }

    fn between(&self, from: Time, to: Time) -> &[Time] {
        let before = |time| self.arrived.partition_point(|at| *at < time);
        &self.arrived[before(from)..before(to)]
    }

    pub(crate) fn refused(&self) -> usize {
        self.refused
    }
}
