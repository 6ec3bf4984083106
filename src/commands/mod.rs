//! The verbs that look at locks and intervene: one file a verb.
//!
//! Called by main with what was typed; each returns how to leave. They look through the inspectors
//! of the stores and never compete: none of them makes a [`crate::lease::LeaseStore`]. Only `break`
//! and `reset` change a lock, and only `doctor` writes, to things of its own.
//!
//! | file | purpose |
//! |---|---|
//! | `status`, `list`, `watch`, `breaking`, `reset`, `doctor`, `completions` | one verb each |
//! | `target` | from what was typed to something that can be looked at |
//! | `view` | what was seen, for people and as JSON |

mod break_lease;
mod completions;
mod doctor;
mod list;
mod lock_target;
mod lock_view;
mod reset;
mod status;
mod watch;

pub use break_lease::break_lease;
pub use completions::completions;
pub use doctor::{doctor, find_locked};
pub use list::list;
pub use reset::reset;
pub use status::status;
pub use watch::watch;
