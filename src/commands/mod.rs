//! The subcommands that look at locks and intervene.
//!
//! Called by main with what was typed; each returns how to leave. They look through the inspectors
//! of the stores and never compete: none of them makes a [`crate::lease::LeaseStore`]. Only `break`
//! and `reset` change a lock, and only `doctor` writes, to things of its own.
//!
//! | file | purpose |
//! |---|---|
//! | `look` | `status`, `list`, `watch` and `completions` |
//! | `intervene` | `break` and `reset` |
//! | `doctor` | `doctor`, with what it asks of a blob and of a file |
//! | `man` | `man`, which asks nothing |
//! | `lock_target` | from what was typed to something that can be looked at |
//! | `lock_view` | what was seen, for people and as JSON |

mod doctor;
mod intervene;
mod lock_target;
mod lock_view;
mod look;
mod man;

pub(crate) use doctor::{doctor, find_locked};
pub(crate) use intervene::{break_lease, reset};
pub(crate) use look::{completions, list, status, watch};
pub(crate) use man::man;
