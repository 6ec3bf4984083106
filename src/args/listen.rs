//! What can be typed of being asked over HTTP: flags of `run`, with their help.

use clap::Args;
use clap::builder::BoolishValueParser;

/// The flags.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Being operated")]
pub struct Listen {
    /// Answer over HTTP at ADDR: an address and a port, or unix:/PATH
    ///
    /// /healthz (200 while supervisor and guardian are sound), /readyz (200 for holder and standby), /leader or
    /// /primary (200 only while the command runs and nobody else can have been given control, else 503),
    /// /status (JSON, as in the status file) and /metrics (for Prometheus), by GET, HEAD and OPTIONS.
    /// Port 0 takes a free one, and the log says which. A socket that was left behind is replaced.
    #[arg(long, value_name = "ADDR", env = "TRAFFICCOP_LISTEN")]
    pub listen: Option<String>,

    /// Let --listen take an address that other machines can reach
    ///
    /// There is neither encryption nor a password: whoever can reach it can read the names of lock,
    /// holder and host, and nothing can be changed by it.
    #[arg(long, env = "TRAFFICCOP_LISTEN_ANY", value_parser = BoolishValueParser::new())]
    pub listen_any: bool,
}
