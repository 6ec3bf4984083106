//! Limits how many rows start instances at a time, which takes the processor.

use std::sync::{Condvar, Mutex, PoisonError};

pub(crate) struct Gate {
    free: Mutex<usize>,
    left: Condvar,
}

/// Dropping it returns it.
pub(crate) struct Pass<'a>(&'a Gate);

impl Gate {
    pub(crate) fn of(passes: usize) -> Gate {
        Gate {
            free: Mutex::new(passes),
            left: Condvar::new(),
        }
    }

    pub(crate) fn enter(&self) -> Pass<'_> {
        let free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let free = self.left.wait_while(free, |free| *free == 0);
        *free.unwrap_or_else(PoisonError::into_inner) -= 1;
        Pass(self)
    }
}

impl Drop for Pass<'_> {
    fn drop(&mut self) {
        *self.0.free.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        self.0.left.notify_one();
    }
}
