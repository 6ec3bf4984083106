//! Lock in any store, by a helper program: `HELPER get NAME` and `HELPER put NAME TAG`.
//!
//! The entry holds one text, the record of the last version. Every change is a compare-and-swap on the tag that
//! `get` printed, as [`Observed`](trafficcop_core::Observed) allows. `docs/stores.md` has the helper's
//! contract.
//!
//! A helper never runs in the runtime's thread. A write after its deadline is harmless: its tag no longer
//! holds.

mod call;
mod chain;
mod inspect;
mod release;
mod store;

#[cfg(debug_assertions)]
pub use call::Calls;
pub use call::{Finished, Helper, find};
pub use inspect::race;
pub use release::release_orphaned_by;
pub(super) use release::{execute as execute_release, is_meant as is_release};
pub use store::HelperLock;
