//! The verbs that look at locks and intervene.
//!
//! Called by main with what was typed; each returns how to leave. They look through the inspectors
//! of the stores and never compete: none of them makes a [`crate::lease::LeaseStore`]. Only `break`
//! and `reset` change a lock, and only `doctor` writes, to things of its own.
//!
//! | file | purpose |
//! |---|---|
//! | `break_lease`, `reset`, `doctor`, `completions` | one verb each |
//! | `look` | `status`, `list` and `watch` |
//! | `lock_target` | from what was typed to something that can be looked at |
//! | `lock_view` | what was seen, for people and as JSON |

mod break_lease;
mod completions;
mod doctor;
mod lock_target;
mod lock_view;
mod look;
mod reset;

pub(crate) use break_lease::break_lease;
pub(crate) use completions::completions;
pub(crate) use doctor::{doctor, find_locked};
pub(crate) use look::{list, status, watch};
pub(crate) use reset::reset;
