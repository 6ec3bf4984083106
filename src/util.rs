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

/// A struct whose fields are documented for users: makes the struct and `FIELDS`, what each field is
/// called and means, in their order. Those after the semicolon are left out where there is none.
#[cfg(feature = "cli")]
macro_rules! documented {
    ($(#[$meta:meta])* struct $name:ident {
        $($(#[$attr:meta])* $field:ident: $type:ty = $meaning:literal,)*
        $(; $($optional:ident: $inner:ty = $about:literal,)*)?
    }) => {
        $(#[$meta])*
        pub struct $name {
            $(#[doc = $meaning] $(#[$attr])* pub $field: $type,)*
            $($(#[doc = $about] #[serde(skip_serializing_if = "Option::is_none")]
            pub $optional: Option<$inner>,)*)?
        }

        /// The fields in their order, and what they mean.
        pub const FIELDS: &[(&str, &str)] = &[
            $((stringify!($field), $meaning),)*
            $($((stringify!($optional), $about),)*)?
        ];
    };
}
#[cfg(feature = "cli")]
pub(crate) use documented;
