//! The stores: one trait, one file per store, and the record that a holder leaves for people.
//!
//! A store speaks to its service and maps what it hears to the five meanings of
//! [`Failure`]; it decides nothing. It never knows a process, and `guardian` never knows a store.

pub mod blob;
mod errors;
pub mod file;
pub mod inspect;
pub mod mount;
mod named;
pub mod once;
pub mod record;
#[cfg(debug_assertions)]
mod scripted;
pub mod shared_file;
pub mod slots;
mod store;

pub use crate::util::SharedMemory;
pub use named::{Competitor, MakeMemory, NamedLock, OpenError, at_path};
pub use store::{LeaseStore, OrphanRelease, RecordUpdate, StoreInfo, release_orphaned};
