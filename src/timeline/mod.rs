//! `trafficcop timeline`: who held control when, from the event logs of many instances.
//!
//! ```text
//! files ─ read ─▶ records ─ clocks ─▶ one time axis ─ tenures ─▶ judge ─▶ Timeline ─▶ text | JSON | SVG
//! ```
//! All but [`verb`] is pure: texts go in, a picture of them comes out, in whatever order they came.
//! It asks no clock, no store and no process, so it says the same of the same logs for ever.

mod clocks;
mod judge;
mod model;
mod read;
mod svg;
mod tenures;
mod text;
mod verb;

#[cfg(test)]
mod tests;

pub use judge::merge;
pub use model::{End, Gap, Lane, Lock, Overlap, Run, Tenure, Timeline};
pub use read::{Log, read};
pub use svg::svg;
pub use text::{FIELDS, json, text};
pub use verb::timeline;
