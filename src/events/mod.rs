//! The event log: every change of state of an instance as one line of JSON, for those who ask
//! afterwards who held control when.
//!
//! [`record`] is what a line says, and the one list of its fields and words; [`writer`] puts lines
//! into a file without ever holding anybody up; [`event_log`] makes them of what the core and the
//! guardian say. Used by `run`; [`crate::timeline`] reads what was written.

mod event_log;
pub mod record;
mod writer;

pub use event_log::{EventLog, Instance};
pub use record::{EventKind, Record};
