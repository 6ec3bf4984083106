//! What can be typed of restarts and of handing control round: flags of `run`, with their help.

use clap::{Args, ValueEnum};

/// The flags.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Restarts and handing control round")]
pub struct HoldPolicy {
    /// Start a command that ended by itself again, while control is kept [default: never]
    ///
    /// After a back-off of 1 second that doubles up to 30, and begins anew when the command was up for a
    /// minute. The lock is kept and renewed meanwhile. A command that cannot be run (126, 127) is not
    /// started again.
    #[arg(long, value_name = "WHEN", env = "TRAFFICCOP_RESTART", value_enum)]
    pub restart: Option<Restart>,

    /// Hand control over instead of restarting more often than this within --restart-window [default: 5]
    ///
    /// The lock is given back and not competed for during --cooldown, so that a machine on which the
    /// command cannot work passes it on.
    #[arg(long, value_name = "N", env = "TRAFFICCOP_RESTART_LIMIT")]
    pub restart_limit: Option<String>,

    /// The time in which --restart-limit counts [default: 5m]
    #[arg(long, value_name = "D", env = "TRAFFICCOP_RESTART_WINDOW")]
    pub restart_window: Option<String>,

    /// Hand control over after this time: stop the command, give the lock back, compete again
    ///
    /// Counted from when control was obtained. The command gets --grace to end, and how it ends is not
    /// an end of ours. On a blob not less than --lease.
    #[arg(long, value_name = "D", env = "TRAFFICCOP_MAX_HOLD")]
    pub max_hold: Option<String>,

    /// Keep the lock this long although the command has ended by itself
    ///
    /// Counted from when control was obtained. For cron: a machine whose clock is late finds the lock
    /// taken, and does not run the command once more. The exit status is the command's.
    #[arg(long, value_name = "D", env = "TRAFFICCOP_MIN_HOLD")]
    pub min_hold: Option<String>,

    /// How long to cool down (not to compete) after control was handed over [default: twice --poll; 500ms on a local file]
    #[arg(long, value_name = "D", env = "TRAFFICCOP_COOLDOWN")]
    pub cooldown: Option<String>,
}

/// When a command is started again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Restart {
    /// Its end is ours
    Never,
    /// After a status other than 0, or a signal
    OnFailure,
    /// After every end
    Always,
}
