//! Pauses of the machine: to kill processes in time, some process must run then, and their end must
//! be noticed.
//!
//! A lease of 15 s leaves 0.7 s for that. An instance on a slower machine reports that it may have
//! overlapped, and is right. So that report alone is no failure of a test then, and a row of the
//! fault suite is played again. Overlaps in the journal count in any event: a process that writes
//! is not just slow to end. The fault suite, whose rows have so little time, excuses those only if
//! running processes were paused, too.

use std::sync::{Mutex, Once, PoisonError};
use std::time::Duration;

use trafficcop::Instant;

/// A timer this late uses up half of a margin.
const LONG: Duration = Duration::from_millis(350);
const EVERY: Duration = Duration::from_millis(50);

#[derive(Clone, Copy)]
struct Standstill {
    end: Instant,
    late: Duration,
    /// A mere sleep was late, too: no process ran.
    whole: bool,
}

static SEEN: Mutex<Vec<Standstill>> = Mutex::new(Vec::new());

pub(crate) fn watch() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| drop(std::thread::spawn(look_on)));
}

fn look_on() {
    let mut due = Instant::now() + EVERY;
    loop {
        std::thread::sleep(EVERY);
        let whole = Instant::now().since(due) >= LONG;
        // It waits like the end of a killed process: while the kernel moves others between cgroups,
        // no process begins or ends.
        let _ = std::thread::spawn(|| {}).join();
        let now = Instant::now();
        let late = now.since(due);
        if late >= LONG {
            let seen = SEEN.lock();
            seen.unwrap_or_else(PoisonError::into_inner)
                .push(Standstill {
                    end: now,
                    late,
                    whole,
                });
        }
        due = now + EVERY;
    }
}

/// Returns the longest pause since then.
pub(crate) fn since(begin: Instant) -> Option<Duration> {
    longest(|seen| seen.end >= begin)
}

/// Returns the longest pause since then in which no process ran.
pub(crate) fn of_all_since(begin: Instant) -> Option<Duration> {
    longest(|seen| seen.end >= begin && seen.whole)
}

fn longest(wanted: impl Fn(&Standstill) -> bool) -> Option<Duration> {
    let seen = SEEN.lock().unwrap_or_else(PoisonError::into_inner);
    let wanted = seen.iter().filter(|seen| wanted(seen));
    wanted.map(|seen| seen.late).max()
}
