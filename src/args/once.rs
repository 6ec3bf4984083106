//! What can be typed of a task that is to be done once: flags of `run`, with their help.

use clap::builder::BoolishValueParser;
use clap::{Args, ValueEnum};

/// The flags.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "A task that is to be done once")]
pub struct Once {
    /// Run the command once for all: whoever comes later, or waited meanwhile, exits 0 without running it
    ///
    /// The first to get control runs the command. When it exits 0 that is recorded with the lock, and
    /// then the lock is given back; the others wait for that record. A run that fails, crashes or is
    /// stopped is no success, and the next candidate runs the command: at least once until it is
    /// recorded, never two at a time. If a success cannot be recorded the exit status is 70.
    #[arg(long, env = "TRAFFICCOP_ONCE", value_parser = BoolishValueParser::new())]
    pub once: bool,

    /// The name of the task: with each key the command runs once more [default: once]
    ///
    /// Implies --once. The results of 32 keys are kept with a lock (fewer if they are long: 3840 bytes);
    /// then the one that was run the longest ago is forgotten.
    #[arg(long, value_name = "K", env = "TRAFFICCOP_ONCE_KEY")]
    pub once_key: Option<String>,

    /// Run it once in every slot of this length, by the clock of the store
    ///
    /// Implies --once. Slots are aligned to UTC (1h: the full hour, 1d: midnight, 7d: Thursday). The time is
    /// that of the storage service or the file server, so the machines' own clocks may be wrong. A run
    /// belongs to the slot in which it began; whoever came in that slot is served by it.
    #[arg(long, value_name = "D", env = "TRAFFICCOP_ONCE_PER")]
    pub once_per: Option<String>,

    /// What a failed run means [default: retry]
    #[arg(
        long,
        value_name = "WHAT",
        env = "TRAFFICCOP_ONCE_ON_FAILURE",
        value_enum
    )]
    pub once_on_failure: Option<OnceOnFailure>,

    /// So many failed runs, of all candidates together, are a failure for good [default: no limit]
    ///
    /// Counted with the lock, for each key and slot. A run that was stopped, or whose machine crashed, does
    /// not count.
    #[arg(long, value_name = "N", env = "TRAFFICCOP_ONCE_ATTEMPTS")]
    pub once_attempts: Option<String>,
}

/// What a failed run means.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum OnceOnFailure {
    /// After a back-off of 1 to 30 seconds the next candidate runs the command
    Retry,
    /// The task has failed: that is recorded, and everybody exits with the command's status
    Stop,
}
