//! Whether the machine let us run: what is to be killed at a moment is killed by somebody who runs then.
//!
//! A lease of the suite leaves 0.7 s for that; an instance whose machine takes more says that it may have run beside
//! another, and is right. So a row that fails while the whole machine stood still is played again.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use trafficcop::Instant;

/// A timer that is so late leaves half of what a margin is for.
const LONG: Duration = Duration::from_millis(350);
const EVERY: Duration = Duration::from_millis(50);

/// When it stood still: the end of each time, and how long that was.
pub(crate) struct Standstills(Mutex<Vec<(Instant, Duration)>>);

impl Standstills {
    pub(crate) const fn new() -> Standstills {
        Standstills(Mutex::new(Vec::new()))
    }

    /// Looks on from here, for as long as this process lives.
    pub(crate) fn watch(&'static self) {
        std::thread::spawn(move || {
            let mut due = Instant::now() + EVERY;
            loop {
                std::thread::sleep(EVERY);
                // Its start and its end wait where the end of a killed process does: while the kernel moves others
                // between cgroups, nobody begins or ends.
                let _ = std::thread::spawn(|| {}).join();
                let now = Instant::now();
                let late = now.since(due);
                if late >= LONG {
                    let seen = self.0.lock();
                    seen.unwrap_or_else(PoisonError::into_inner)
                        .push((now, late));
                }
                due = now + EVERY;
            }
        });
    }

    /// The longest since then.
    pub(crate) fn since(&self, begin: Instant) -> Option<Duration> {
        let seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let later = seen.iter().filter(|(end, _)| *end >= begin);
        later.map(|(_, late)| *late).max()
    }
}
