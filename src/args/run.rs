//! What can be typed after `trafficcop run`, and its help. It must never decide anything.

use std::ffi::OsString;

use clap::builder::BoolishValueParser;
use clap::{ArgAction, Args, ValueEnum};

use super::{Common, FOR_THE_STORE, HoldPolicy, Once, Roles, with_examples};
use crate::exit;

/// What can be said of a run.
#[derive(Clone, Debug, Args)]
#[command(after_long_help = after_long_help(), override_usage = "trafficcop run --blob CONTAINER/NAME [OPTIONS] -- COMMAND [ARG]...\n       trafficcop run --file PATH [OPTIONS] -- COMMAND [ARG]...")]
pub struct Run {
    /// The lock, waiting for it, and being operated.
    #[command(flatten)]
    pub common: Common,

    /// From the stop signal to SIGKILL when a stop was requested [default: 30s]
    ///
    /// May be longer than the lease, which is renewed meanwhile. Also what processes get that the
    /// command left behind.
    #[arg(
        long,
        value_name = "D",
        env = "TRAFFICCOP_GRACE",
        help_heading = "Time"
    )]
    pub grace: Option<String>,

    /// What the command is sent first when it is to end: a name or a number [default: TERM]
    ///
    /// Whichever of TERM, INT, HUP and QUIT asked us to stop.
    #[arg(
        long,
        value_name = "SIG",
        env = "TRAFFICCOP_STOP_SIGNAL",
        help_heading = "The command"
    )]
    pub stop_signal: Option<String>,

    /// What keeps the command's processes together
    ///
    /// A mode asked for by name and not to be had is refused, never degraded; the log says which
    /// one is in force.
    #[arg(
        long,
        value_name = "MODE",
        env = "TRAFFICCOP_CONTAIN",
        value_enum,
        default_value_t,
        help_heading = "The command"
    )]
    pub contain: Contain,

    /// Keep our credentials from the command, its hooks and handlers
    ///
    /// Without it they inherit our environment, and with it what we prove ourselves by. The variables
    /// that hold the credentials listed below are then not in theirs; it makes no difference to a lock on a file.
    /// Who may look into our process (the same user, without a sandbox) can read them all the same.
    #[arg(long, env = "TRAFFICCOP_NO_CREDENTIALS", help_heading = "The command", value_parser = BoolishValueParser::new())]
    pub no_credentials: bool,

    /// Restarts, and handing control round.
    #[command(flatten)]
    pub hold_policy: HoldPolicy,

    /// A task that is to be done once.
    #[command(flatten)]
    pub once: Once,

    /// What runs besides the command.
    #[command(flatten)]
    pub roles: Roles,

    /// What the platform announces.
    #[command(flatten)]
    pub scheduled_events: super::ScheduledEvents,

    /// Being a service of systemd's.
    #[command(flatten)]
    pub notify: super::Notify,

    /// Being asked over HTTP.
    #[command(flatten)]
    pub listen: super::Listen,

    /// The command and its arguments, run as they are, without a shell
    ///
    /// Its first 256 bytes are shown to whoever can read the lock's record: put no secrets there.
    // Not required here: the plan says in one line what is missing. No `allow_hyphen_values`: it
    // would take a mistyped flag for the command.
    #[arg(value_name = "COMMAND", trailing_var_arg = true, action = ArgAction::Append)]
    pub command: Vec<OsString>,
}

/// What keeps the tree together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Contain {
    /// A cgroup where one can be had, else as with none
    #[default]
    Auto,
    /// A cgroup of the command's own, killed at one stroke
    Cgroup,
    /// A PID namespace of its own: nothing of it outlives us or the deadline, even if supervisor and
    /// guardian are both killed or both stopped; the command can see it (process ids, /proc)
    Pidns,
    /// The process group and a walk over all descendants
    None,
}

/// What the command finds in its environment.
pub const FOR_THE_COMMAND: &[(&str, &str)] = &[
    (
        "TRAFFICCOP_TOKEN",
        "the fencing token: a number that grows with every tenure. Hand it to what you write to, and let that refuse a smaller one than it has seen",
    ),
    ("TRAFFICCOP_LOCK", "the lock's address"),
    ("TRAFFICCOP_HOLDER", "this instance's identity"),
    (
        "TRAFFICCOP_SLOT",
        "the number of its slot, from 0 (see --slots)",
    ),
    (
        "TRAFFICCOP_TASK",
        "the key of the task (with --once, see --once-key)",
    ),
    (
        "TRAFFICCOP_PERIOD",
        "the beginning of the slot this run belongs to, as 2026-01-31T13:00:00Z (with --once-per)",
    ),
    (
        "TRAFFICCOP_ROLE",
        "holder; standby for --standby and --on-lost, so that one script can play both roles",
    ),
    (
        "TRAFFICCOP_CAUSE",
        "only for --on-lost: why control ended, in the words of the status file",
    ),
    (
        "TRAFFICCOP_CONTROL",
        "a file of eight bytes that tells until when the command is in control: nanoseconds of CLOCK_BOOTTIME as a native-endian unsigned number, 0 when it is not, the greatest number when the lock has no deadline. Empty if no file could be made. 'trafficcop check' reads it",
    ),
    (
        "NOTIFY_SOCKET",
        "where we were started with one: a socket of ours, on which the command tells systemd that it is READY (with --ready command) and its STATUS. WATCHDOG_USEC and WATCHDOG_PID are not passed on",
    ),
    (
        "LISTEN_PID",
        "where it was our process id: the command's own, so that the sockets in LISTEN_FDS are its",
    ),
];

/// Commands to copy, each with what it is for.
pub const EXAMPLES: &[(&str, &str)] = &[
    (
        "A nightly job in the crontab of ten machines that runs on one:",
        "trafficcop run -n -E 0 --blob locks/nightly -- /usr/local/bin/nightly",
    ),
    (
        "The same on a shared drive:",
        "trafficcop run -n -E 0 --file /mnt/share/nightly.lock -- /usr/local/bin/nightly",
    ),
    (
        "A start-up task of a whole fleet: one machine does it, the others wait until it is done:",
        "trafficcop run --once-key v7 --blob locks/migrate -- ./migrate",
    ),
    (
        "A service that runs on one machine and moves when that one fails:",
        "trafficcop run --blob locks/importer --lease 30s -- ./importer --serve",
    ),
    (
        "Wait up to five minutes for control, and say so with status 75 if it was not to be had:",
        "trafficcop run -w 5m --file /mnt/share/deploy.lock -- ./deploy",
    ),
    (
        "Try it here, with Azurite as the store:",
        "trafficcop run --emulator --blob locks/try -- sh -c 'echo token $TRAFFICCOP_TOKEN; sleep 60'",
    ),
];

fn after_long_help() -> String {
    with_examples(
        EXAMPLES,
        &[
            ("The command's environment", FOR_THE_COMMAND),
            ("Credentials", FOR_THE_STORE),
            ("Exit status", exit::TABLE),
        ],
    )
}
