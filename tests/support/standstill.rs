//! Whether the machine let us run, and processes begin and end: what is to be killed at a moment is killed by
//! somebody who runs then, and is seen to be gone when it has ended.
//!
//! A lease of 15 s leaves 0.7 s for that; an instance whose machine takes more says that it may have run beside
//! another, and is right. So that word alone is no failure of a test then, and a row of the fault suite that fails
//! is played again. What the journal shows counts as ever: who writes into it has not only no end, he runs. The fault
//! suite, whose rows are that short of time, excuses it only where not even what runs went on.

use std::sync::{Mutex, Once, PoisonError};
use std::time::Duration;

use trafficcop::Instant;

/// A timer that is so late leaves half of what a margin is for.
const LONG: Duration = Duration::from_millis(350);
const EVERY: Duration = Duration::from_millis(50);

/// A time when it stood still.
#[derive(Clone, Copy)]
struct Standstill {
    end: Instant,
    late: Duration,
    /// What only slept was late already: nobody ran.
    whole: bool,
}

static SEEN: Mutex<Vec<Standstill>> = Mutex::new(Vec::new());

/// Looks on from here, for as long as this process lives.
pub(crate) fn watch() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| drop(std::thread::spawn(look_on)));
}

fn look_on() {
    let mut due = Instant::now() + EVERY;
    loop {
        std::thread::sleep(EVERY);
        let whole = Instant::now().since(due) >= LONG;
        // Its start and its end wait where the end of a killed process does: while the kernel moves others
        // between cgroups, nobody begins or ends.
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

/// The longest since then.
pub(crate) fn since(begin: Instant) -> Option<Duration> {
    longest(|seen| seen.end >= begin)
}

/// The longest since then in which nobody ran.
pub(crate) fn of_all_since(begin: Instant) -> Option<Duration> {
    longest(|seen| seen.end >= begin && seen.whole)
}

fn longest(wanted: impl Fn(&Standstill) -> bool) -> Option<Duration> {
    let seen = SEEN.lock().unwrap_or_else(PoisonError::into_inner);
    let wanted = seen.iter().filter(|seen| wanted(seen));
    wanted.map(|seen| seen.late).max()
}
