//! Stores of leases, and the record that a holder leaves for people.
//!
//! A store maps its service's answers to the five meanings of [`Failure`](trafficcop_core::Failure); it decides
//! nothing. It never knows a process, and `guardian` never knows a store.

pub mod blob;
mod blocking;
mod errors;
pub mod file;
pub mod helper;
pub mod inspect;
pub mod mount;
pub mod once;
pub mod record;
pub mod shared_file;
pub mod slots;
mod stamp;
mod store;
#[doc(hidden)]
pub mod version_record;

pub use stamp::runtime_directories;
pub use store::{
    Competitor, LeaseStore, LockInfo, MakeMemory, NamedLock, OpenError, OrphanRelease,
    RecordUpdate, StoreInfo, at_path, release_orphaned,
};
pub use trafficcop_core::util::SharedMemory;
