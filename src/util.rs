//! What every room needs and no room owns.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Memory that this process shares with those that are forked from it. What it bears stands there
/// whole, whenever its writer dies.
pub trait SharedMemory: Send + Sync {
    /// Replaces what it bears; by nothing, where that is too long.
    fn put(&self, bytes: &[u8]);
    /// What it bears, if anything was put there. Only while nobody puts.
    fn take(&self) -> Option<Vec<u8>>;
}

/// Locks, whatever became of whoever held it before: what our mutexes guard is whole between any two
/// statements.
pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
