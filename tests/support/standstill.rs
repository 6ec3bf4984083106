//! Whether the machine let us run, and processes begin and end: what is to be killed at a moment is killed by
//! somebody who runs then, and is seen to be gone when it has ended.
//!
//! A lease of 15 s leaves 0.7 s for that; an instance whose machine takes more says that it may have run beside
//! another, and is right. So that word alone is no failure of a test then, and a row of the fault suite that fails
//! is played again. What the journal shows counts as ever.

use std::sync::{Mutex, Once, PoisonError};
use std::time::Duration;

use trafficcop::Instant;

/// A timer that is so late leaves half of what a margin is for.
const LONG: Duration = Duration::from_millis(350);
const EVERY: Duration = Duration::from_millis(50);

/// The end of each time that it stood still, and how long that was.
static SEEN: Mutex<Vec<(Instant, Duration)>> = Mutex::new(Vec::new());

/// Looks on from here, for as long as this process lives.
pub(crate) fn watch() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| drop(std::thread::spawn(look_on)));
}

fn look_on() {
    let mut due = Instant::now() + EVERY;
    loop {
        std::thread::sleep(EVERY);
        // Its start and its end wait where the end of a killed process does: while the kernel moves others
        // between cgroups, nobody begins or ends.
        let _ = std::thread::spawn(|| {}).join();
        let now = Instant::now();
        let late = now.since(due);
        if late >= LONG {
            let seen = SEEN.lock();
            seen.unwrap_or_else(PoisonError::into_inner)
                .push((now, late));
        }
        due = now + EVERY;
    }
}

/// The longest since then.
pub(crate) fn since(begin: Instant) -> Option<Duration> {
    let seen = SEEN.lock().unwrap_or_else(PoisonError::into_inner);
    let later = seen.iter().filter(|(end, _)| *end >= begin);
    later.map(|(_, late)| *late).max()
}
