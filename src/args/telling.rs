//! What can be typed of the log and of the event log: flags of `run`, with their help.

use std::path::PathBuf;

use clap::Args;
use clap::builder::BoolishValueParser;

use super::common::path;

/// The flags.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Being operated")]
pub struct Telling {
    /// Append every change of state to this file, as a line of JSON
    ///
    /// Any number of instances may share it. 'trafficcop timeline' shows who held control when from
    /// it; trafficcop-formats(5) says what stands in a line. A file that cannot be written costs
    /// a warning, never control.
    #[arg(
        long,
        value_name = "F",
        env = "TRAFFICCOP_EVENT_LOG",
        value_parser = path()
    )]
    pub event_log: Option<PathBuf>,

    /// Log each renewal of the lease, too, and what is tried on the way
    #[arg(short, long, env = "TRAFFICCOP_VERBOSE", value_parser = BoolishValueParser::new())]
    pub verbose: bool,
}
