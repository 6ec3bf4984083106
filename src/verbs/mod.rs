//! The verbs that look at locks and intervene: one file a verb.
//!
//! Called by main with what was typed; each returns how to leave. They look through the inspectors
//! of the stores and never compete: none of them makes a [`crate::lease::Store`]. Only `break`
//! and `reset` change a lock, and only `doctor` writes, to things of its own.
//!
//! | file | purpose |
//! |---|---|
//! | `status`, `list`, `watch`, `breaking`, `reset`, `doctor`, `completions` | one verb each |
//! | `place` | from what was typed to something that can be looked at |
//! | `told` | what was seen, for people and as JSON |

mod breaking;
mod completions;
mod doctor;
mod list;
mod place;
mod reset;
mod status;
mod told;
mod watch;

pub use breaking::break_lease;
pub use completions::completions;
pub use doctor::{doctor, find_locked};
pub use list::list;
pub use reset::reset;
pub use status::status;
pub use watch::watch;
