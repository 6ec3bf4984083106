//! What can be typed after `trafficcop timeline`, and its help. It must never decide anything.

use std::path::PathBuf;

use clap::Args;

use super::common::path;
use super::with_examples;

/// What is read, and how it is shown.
#[derive(Clone, Debug, Args)]
#[command(after_long_help = after_timeline())]
pub struct Timeline {
    /// The event logs, in any order; - for stdin
    #[arg(value_name = "FILE", value_parser = path())]
    pub files: Vec<PathBuf>,

    /// Print JSON instead of a table
    #[arg(long)]
    pub json: bool,

    /// Draw it, too, as an SVG in this file
    #[arg(long, value_name = "OUT", value_parser = path())]
    pub svg: Option<PathBuf>,

    /// How far the wall clocks of two machines may be apart
    ///
    /// An overlap between two machines that is not longer is shown, but proves nothing and is not
    /// counted. On one machine clocks do not differ, and every overlap counts.
    #[arg(long, value_name = "D", default_value = "100ms")]
    pub skew: String,
}

/// Every exit status of `trafficcop timeline` and what it means.
pub const TIMELINE_STATUS: &[(&str, &str)] = &[
    ("0", "nobody had control beside another"),
    (
        "1",
        "two had control at the same time, or one says itself that it cannot exclude it",
    ),
    ("64", "bad usage"),
    (
        "69",
        "a file cannot be read or written, or there is no event in any of them",
    ),
];

/// Commands to copy for `trafficcop timeline`.
pub const TIMELINE_EXAMPLES: &[(&str, &str)] = &[
    (
        "Who held control when, from the logs of three machines, with a picture:",
        "trafficcop timeline --svg control.svg web1.events web2.events web3.events",
    ),
    (
        "The longest time that nobody had control, in seconds:",
        "trafficcop timeline --json *.events | jq '[.locks[].gaps[].seconds] | max'",
    ),
];

fn after_timeline() -> String {
    with_examples(TIMELINE_EXAMPLES, &[("Exit status", TIMELINE_STATUS)])
}
