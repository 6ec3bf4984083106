//! Tests that mostly wait: leases of ten seconds and more, on a machine with two cores. All of them
//! begin with the first one, so many at a time, and each test takes what became of its own.

use std::any::Any;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Condvar, Mutex, OnceLock, PoisonError};

/// A test's body and its name.
pub(crate) type Body = (&'static str, fn());
type Result = std::result::Result<(), Box<dyn Any + Send>>;

/// How many run at once.
const AT_ONCE: usize = 10;

struct Pool {
    done: Mutex<(usize, BTreeMap<&'static str, Result>)>,
    changed: Condvar,
}

/// Runs a test, or takes what became of it.
pub(crate) fn run(name: &str, body: fn()) {
    // Somebody who names a test wants that one.
    let mut chosen = std::env::args().skip(1).filter(|arg| !arg.starts_with('-'));
    if chosen.next().is_some() {
        return body();
    }
    static POOL: OnceLock<Pool> = OnceLock::new();
    let mut first = false;
    let pool = POOL.get_or_init(|| {
        first = true;
        Pool {
            done: Mutex::default(),
            changed: Condvar::new(),
        }
    });
    if first {
        for _ in 0..AT_ONCE {
            std::thread::spawn(|| POOL.wait().work());
        }
    }
    let mut done = pool.done.lock().unwrap_or_else(PoisonError::into_inner);
    loop {
        match done.1.remove(name) {
            Some(Ok(())) => return,
            Some(Err(why)) => panic!("{}", words(why.as_ref())),
            None => {
                let waited = pool.changed.wait(done);
                done = waited.unwrap_or_else(PoisonError::into_inner);
            }
        }
    }
}

/// What it panicked with: it was printed where nobody looks.
fn words(why: &(dyn Any + Send)) -> &str {
    let text = why.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| why.downcast_ref::<&str>().copied())
        .unwrap_or("it panicked")
}

impl Pool {
    fn work(&self) {
        loop {
            let next = {
                let mut done = self.done.lock().unwrap_or_else(PoisonError::into_inner);
                done.0 += 1;
                done.0 - 1
            };
            let Some((name, body)) = super::LONG.iter().copied().flatten().nth(next) else {
                return;
            };
            // A thread of its own: what it mounts and starts is gone with it.
            let result = std::thread::spawn(move || catch_unwind(AssertUnwindSafe(body)));
            let result = result.join().and_then(|result| result);
            let mut done = self.done.lock().unwrap_or_else(PoisonError::into_inner);
            done.1.insert(name, result);
            self.changed.notify_all();
        }
    }
}

/// Makes tests of these functions that run as the pool has room. Their names are unique in this binary.
macro_rules! long_tests {
    ($($name:ident),* $(,)?) => {
        pub(crate) const LONG: &[$crate::long::Body] = &[$((stringify!($name), $name)),*];

        mod tests {
            $(#[test]
            fn $name() {
                $crate::long::run(stringify!($name), super::$name);
            })*
        }
    };
}
pub(crate) use long_tests;
