//! What every room needs and no room owns.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks, whatever became of whoever held it before: what our mutexes guard is whole between any two
/// statements.
pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
