//! What can be typed of roles and hooks: flags of `run`, with their help.

use std::ffi::OsString;

use clap::Args;
use clap::builder::OsStringValueParser;

/// The flags.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Roles and hooks")]
pub struct Roles {
    /// Run this by 'sh -c' on every instance that is not in control
    ///
    /// It is stopped (SIGTERM, --grace, SIGKILL to its whole tree) and gone before the command starts,
    /// and started again when control has ended and the command's tree is gone. It is killed earlier
    /// where its end would outlast the lease. If it fails it is started again after 1 second, doubling
    /// up to 30; if it exits 0 it has done its work until the next time. Its exit status is never ours.
    #[arg(long, value_name = "CMD", env = "TRAFFICCOP_STANDBY", value_parser = script())]
    pub standby: Option<OsString>,

    /// Run this by 'sh -c' once control was obtained, before the command starts
    ///
    /// It runs under the lease's deadline like the command, after the standby command is gone. If it
    /// fails, the command is not started and control is handed over: the lock is given back, and not
    /// competed for during --cooldown. What it leaves behind is stopped before the command starts.
    #[arg(long, value_name = "CMD", env = "TRAFFICCOP_ON_ACQUIRE", value_parser = script())]
    pub on_acquire: Option<OsString>,

    /// Run this by 'sh -c' after control has ended, for whatever reason
    ///
    /// Nothing waits for it but our own exit; it may run beside the next holder's command, or our own
    /// next one. What still runs after --grace (at least 1 second) is killed. TRAFFICCOP_CAUSE tells it
    /// why control ended.
    #[arg(long, value_name = "CMD", env = "TRAFFICCOP_ON_LOST", value_parser = script())]
    pub on_lost: Option<OsString>,
}

/// clap's own parser has its say about an empty value; the plan's is the better one.
fn script() -> OsStringValueParser {
    OsStringValueParser::new()
}
