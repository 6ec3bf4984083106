//! The lock in any store, by a helper program: `HELPER get NAME` and `HELPER put NAME TAG`.
//!
//! The entry holds one text, the record of the last version, and every change of it is a compare-and-swap on the
//! tag that `get` printed. [`Observed`](trafficcop_core::Observed) says who may make the next version, as on a
//! shared drive. `docs/stores.md` has the helper's contract.
//!
//! | file | purpose |
//! |---|---|
//! | `call` | one call of the helper: a process with its group, limits and a deadline |
//! | `chain` | the steps of acquire, renew and release |
//! | `store` | the store and the named lock |
//! | `inspect` | looking, listing, breaking, forgetting results, and a race for `doctor` |
//! | `release` | what the guardian does after the supervisor's death |
//!
//! A helper never runs in the runtime's thread, and a write that happens after its deadline is harmless, because
//! its tag no longer holds.

mod call;
mod chain;
mod inspect;
mod release;
mod store;

pub use call::{Helper, find};
pub use inspect::race;
pub(super) use release::{execute as execute_release, is_meant as is_release};
pub use store::HelperLock;
