//! What can be typed of being a service of systemd's: flags of `run`, with their help.

use clap::{Args, ValueEnum};

/// The flags.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Being operated")]
pub struct Notify {
    /// When systemd is told that the service is ready (Type=notify)
    ///
    /// Without NOTIFY_SOCKET in the environment nobody is told anything. With it, systemd also learns
    /// what we do (STATUS), that supervisor and guardian are alive (WATCHDOG, if WatchdogSec is set),
    /// that we stop, and that a drain takes longer than TimeoutStopSec; and the command finds a socket
    /// of ours in NOTIFY_SOCKET: its STATUS is shown after our own.
    #[arg(
        long,
        value_name = "WHEN",
        env = "TRAFFICCOP_READY",
        value_enum,
        default_value_t
    )]
    pub ready: Ready,
}

/// When a service is ready.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Ready {
    /// Standing by, or in control: an instance that waits is a sound one
    #[default]
    Standby,
    /// In control, and the command was started (give the unit TimeoutStartSec=infinity)
    Held,
    /// The command itself says READY=1 (the same)
    Command,
}
