//! What can be typed after `trafficcop run`, and its help.

use std::ffi::OsString;
use std::time::Duration;

use clap::builder::{BoolishValueParser, OsStringValueParser};
use clap::{ArgAction, Args, ValueEnum};

use super::values::{
    Checked, checked, count, duration, is_https, once_key, once_per, positive, signal, watchdog,
};
use super::{Common, FOR_THE_STORE, Rows, ScheduledEvents, in_short, with_examples};
use crate::core::OnFailure;
use crate::exit;
use crate::guardian::{Contain, StopTo};
use crate::notify::Ready;

/// What can be said of a run.
#[derive(Clone, Debug, Args)]
#[command(after_help = in_short(EXAMPLES), after_long_help = after_long_help(), override_usage = "trafficcop run --blob CONTAINER/NAME [OPTIONS] -- COMMAND [ARG]...\n       trafficcop run --file PATH [OPTIONS] -- COMMAND [ARG]...")]
pub struct Run {
    /// The lock, waiting for it, and being operated.
    #[command(flatten)]
    pub common: Common,

    /// From the stop signal to SIGKILL [default: 30s]
    ///
    /// When a stop was requested. May be longer than the lease, which is renewed meanwhile. Also what
    /// processes get that the command left behind.
    #[arg(long, value_name = "D", env = "TRAFFICCOP_GRACE", help_heading = "Time", value_parser = checked(duration))]
    pub grace: Option<Checked<Duration>>,

    /// Signal that asks the command to end [default: TERM]
    ///
    /// A name or a number, whichever signal stopped trafficcop. With none no process gets a signal: the command asks
    /// 'trafficcop check', and what is left at the end of the grace is killed.
    #[arg(long, value_name = "SIG", env = "TRAFFICCOP_STOP_SIGNAL", hide_short_help = true, help_heading = "The command", value_parser = checked(signal))]
    pub stop_signal: Option<Checked<i32>>,

    /// Processes that get the stop signal [default: group]
    ///
    /// With main only the command's main process gets it, and ends the rest itself. SIGKILL at the end of the grace
    /// goes to all processes of the command either way. On a terminal the kernel sends Ctrl-C to the whole
    /// foreground group.
    #[arg(long, value_name = "WHO", env = "TRAFFICCOP_STOP_TO", value_enum, default_value_t = StopTo::Group, hide_short_help = true, help_heading = "The command")]
    pub stop_to: StopTo,

    /// What keeps the command's processes together
    ///
    /// A mode asked for by name and not to be had is refused, never degraded; the log says which
    /// one is in force.
    #[arg(long, value_name = "MODE", env = "TRAFFICCOP_CONTAIN", value_enum, default_value_t = Contain::Auto, hide_short_help = true, help_heading = "The command")]
    pub contain: Contain,

    /// Keep our credentials from the command, its hooks and checks
    ///
    /// Without it they inherit our environment, and with it what we prove ourselves by. The variables
    /// that hold the credentials listed below are then not in theirs, nor those of --blob and --queue where
    /// the URL has a SAS; it makes no difference to a lock on a file. A machine's managed identity cannot be kept
    /// from anybody on it, and who may look into our process (the same user, without a sandbox) can read them all
    /// the same.
    #[arg(long, env = "TRAFFICCOP_NO_CREDENTIALS", hide_short_help = true, help_heading = "The command", value_parser = BoolishValueParser::new())]
    pub no_credentials: bool,

    /// Restarts, and handing control round.
    #[command(flatten)]
    pub hold_policy: HoldPolicy,

    /// A task that is to be done once.
    #[command(flatten)]
    pub once: Once,

    /// Whether the command works.
    #[command(flatten)]
    pub health: Health,

    /// What runs besides the command.
    #[command(flatten)]
    pub roles: Roles,

    /// What the platform announces.
    #[command(flatten)]
    pub scheduled_events: ScheduledEvents,

    /// When systemd is told that the service is ready (Type=notify)
    ///
    /// Without NOTIFY_SOCKET in the environment nobody is told anything. With it, systemd also learns
    /// what we do (STATUS), that supervisor and guardian are alive (WATCHDOG, if WatchdogSec is set),
    /// that we stop, and that a drain takes longer than TimeoutStopSec; and the command finds a socket
    /// of ours in NOTIFY_SOCKET: its STATUS is shown after our own.
    #[arg(long, value_name = "WHEN", env = "TRAFFICCOP_READY", value_enum, default_value_t = Ready::Standby, hide_short_help = true, help_heading = "Being operated")]
    pub ready: Ready,

    /// Being asked over HTTP.
    #[command(flatten)]
    pub listen: super::Listen,

    /// The command and its arguments, run as they are, without a shell
    ///
    /// Its first 256 bytes are shown to whoever can read the lock's record: put no secrets there.
    // Not required here: `config` says in one line what is missing. No `allow_hyphen_values`: it
    // would take a mistyped flag for the command.
    // Without a heading it is shown before all flags.
    #[arg(value_name = "COMMAND", help_heading = None::<&'static str>, trailing_var_arg = true, action = ArgAction::Append)]
    pub command: Vec<OsString>,
}

/// Restarts, and handing control round.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Restarts and handing control round")]
pub struct HoldPolicy {
    /// Start a command again that ended [default: never]
    ///
    /// While control is kept, after a back-off of 1 second that doubles up to 30, and begins anew when the
    /// command was up for a minute. The lock is kept and renewed meanwhile. A command that cannot be run
    /// (126, 127) is not started again.
    #[arg(
        long,
        value_name = "WHEN",
        env = "TRAFFICCOP_RESTART",
        help_heading = "The command"
    )]
    pub restart: Option<Restart>,

    /// Hand control over instead of restarting more often than this within --restart-window [default: 5]
    ///
    /// The lock is given back and not competed for during --cooldown, so that a machine on which the
    /// command cannot work passes it on.
    #[arg(long, value_name = "N", env = "TRAFFICCOP_RESTART_LIMIT", hide_short_help = true, value_parser = checked(count("restarts, like 5", "allows no restart at all: take --restart never, or a limit of 1 or more")))]
    pub restart_limit: Option<Checked<u32>>,

    /// The time in which --restart-limit counts [default: 5m]
    #[arg(long, value_name = "D", env = "TRAFFICCOP_RESTART_WINDOW", hide_short_help = true, value_parser = checked(duration))]
    pub restart_window: Option<Checked<Duration>>,

    /// Hand control over after this time: stop the command, give the lock back, compete again
    ///
    /// Counted from when control was obtained. The command gets --grace to end, and how it ends is not
    /// an end of ours. On a blob not less than --lease.
    #[arg(long, value_name = "D", env = "TRAFFICCOP_MAX_HOLD", hide_short_help = true, value_parser = checked(duration))]
    pub max_hold: Option<Checked<Duration>>,

    /// Keep the lock this long although the command has ended by itself
    ///
    /// Counted from when control was obtained. For cron: a machine whose clock is late finds the lock
    /// taken, and does not run the command once more. The exit status is the command's.
    #[arg(long, value_name = "D", env = "TRAFFICCOP_MIN_HOLD", hide_short_help = true, value_parser = checked(positive(" keeps nothing: leave it out, or say how long")))]
    pub min_hold: Option<Checked<Duration>>,

    /// How long to cool down (not to compete) after control was handed over [default: twice --poll; 500ms
    /// on a local file; after a command that hung, a lease]
    ///
    /// At least --poll and a fifth of it, so that the others have looked meanwhile (100ms on a local file).
    #[arg(long, value_name = "D", env = "TRAFFICCOP_COOLDOWN", hide_short_help = true, value_parser = checked(duration))]
    pub cooldown: Option<Checked<Duration>>,
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

/// A task that is to be done once.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "A task that is to be done once")]
pub struct Once {
    /// Run the command once for all machines, and never again
    ///
    /// Whoever comes later, or waited meanwhile, exits 0 without running it. The first to get control runs
    /// the command. When it exits 0 that is recorded with the lock, and then the lock is given back; the
    /// others wait for that record. A run that fails, crashes or is stopped is no success, and the next
    /// candidate runs the command: at least once until it is recorded, never two at a time. If a success
    /// cannot be recorded the exit status is 70.
    #[arg(long, env = "TRAFFICCOP_ONCE", value_parser = BoolishValueParser::new())]
    pub once: bool,

    /// The task's name: it is run once for each [default: once]
    ///
    /// Implies --once. The results of 32 keys are kept with a lock (fewer if they are long: 3840 bytes);
    /// then the one that was run the longest ago is forgotten.
    #[arg(long, value_name = "K", env = "TRAFFICCOP_ONCE_KEY", value_parser = checked(once_key))]
    pub once_key: Option<Checked<String>>,

    /// Run it once in each period of D (1h, 1d), by the store's clock
    ///
    /// Implies --once. Periods are aligned to UTC (1h: the full hour, 1d: midnight, 7d: Thursday).
    /// The time is that of the storage service or the file server, so the machines' own clocks may be
    /// wrong. A run belongs to the period in which it began; whoever came in that period is served by it.
    /// All instances must name the same D.
    #[arg(long, value_name = "D", env = "TRAFFICCOP_ONCE_PER", value_parser = checked(once_per))]
    pub once_per: Option<Checked<Duration>>,

    /// What a failed run means [default: retry]
    #[arg(
        long,
        value_name = "WHAT",
        env = "TRAFFICCOP_ONCE_ON_FAILURE",
        hide_short_help = true
    )]
    pub once_on_failure: Option<OnFailure>,

    /// So many failed runs, of all candidates together, are a failure for good [default: no limit]
    ///
    /// Counted with the lock, for each key and period. A run that was stopped, or whose machine crashed, does
    /// not count.
    #[arg(long, value_name = "N", env = "TRAFFICCOP_ONCE_ATTEMPTS", hide_short_help = true, value_parser = checked(count("runs, like 3", "allows no run at all: take 1 or more")))]
    pub once_attempts: Option<Checked<u32>>,
}

/// Whether the command works: one that does not is stopped as if it had failed.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "A command that hangs")]
pub struct Health {
    /// It hangs if it does not say WATCHDOG=1 every D
    ///
    /// The command, on the socket in its NOTIFY_SOCKET, as sd_notify(3) has it (systemd-notify WATCHDOG=1), also without
    /// systemd; WATCHDOG_USEC and WATCHDOG_PID tell it so, and it had better speak twice in that time. The clock starts with
    /// its first READY=1 or WATCHDOG=1; --watchdog-start limits the time before.
    /// WATCHDOG=trigger means that it hangs, and WATCHDOG_USEC= changes D. A command that hangs is stopped
    /// (--stop-signal, --grace, SIGKILL); then --restart decides as for a failure, or control is handed over, and
    /// this instance cools down: for --cooldown, or as long as a lease lasts (10s on a local file).
    #[arg(long, value_name = "D", env = "TRAFFICCOP_WATCHDOG", help_heading = "The command", value_parser = checked(watchdog))]
    pub watchdog: Option<Checked<Duration>>,

    /// It hangs if its first READY=1 or WATCHDOG=1 takes longer than D [default: 90s]
    ///
    /// Counted from its start, with --watchdog only. EXTEND_TIMEOUT_USEC= on its NOTIFY_SOCKET gives it at least that
    /// much time from then on, as often as it says so.
    #[arg(long, value_name = "D", env = "TRAFFICCOP_WATCHDOG_START", hide_short_help = true, value_parser = checked(watchdog))]
    pub watchdog_start: Option<Checked<Duration>>,

    /// What it is asked by.
    #[command(flatten)]
    pub checks: HealthChecks,
}

/// Who is asked whether the command, or the reader, works, and how often.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "A command that hangs")]
pub struct HealthChecks {
    /// It hangs if this fails: a 'sh -c', or a GET
    ///
    /// The command must exit 0, or GET of the URL (http or https, on this machine or at a private address) be
    /// answered with 2xx (a redirect counts as a failure, and is not followed); after --health-failures failures
    /// in a row it hangs. The check runs while the command runs, under the lease's deadline like
    /// it, with the same environment; what it prints is thrown away, and what it leaves behind is killed.
    /// What follows is as with --watchdog, which can be had as well.
    #[arg(long, value_name = "CMD|URL", env = "TRAFFICCOP_HEALTH", help_heading = "The command", value_parser = OsStringValueParser::new())]
    pub health: Option<OsString>,

    /// From the beginning of one --health to that of the next [default: 10s]
    #[arg(long, value_name = "D", env = "TRAFFICCOP_HEALTH_EVERY", hide_short_help = true, value_parser = checked(positive(" is no interval: take a second or more")))]
    pub health_every: Option<Checked<Duration>>,

    /// How long one --health may take; then it is killed, and has failed [default: 5s, or --health-every if that is shorter]
    #[arg(long, value_name = "D", env = "TRAFFICCOP_HEALTH_TIMEOUT", hide_short_help = true, value_parser = checked(positive(" leaves it no time: take a second or more")))]
    pub health_timeout: Option<Checked<Duration>>,

    /// So many of --health that fail in a row mean that the command hangs [default: 3]
    #[arg(long, value_name = "N", env = "TRAFFICCOP_HEALTH_FAILURES", hide_short_help = true, value_parser = checked(count("failures, like 3", "would stop a command that works: take 1 or more")))]
    pub health_failures: Option<Checked<u32>>,

    /// From the command's start to the first --health [default: 0s]
    #[arg(long, value_name = "D", env = "TRAFFICCOP_HEALTH_DELAY", hide_short_help = true, value_parser = checked(duration))]
    pub health_delay: Option<Checked<Duration>>,
}

impl HealthChecks {
    /// Whether a server is asked by https.
    pub(crate) fn is_by_https(&self) -> bool {
        self.health.as_deref().is_some_and(is_https)
    }
}

/// What runs besides the command, each by `sh -c`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Args)]
#[command(next_help_heading = "Roles and hooks")]
pub struct Roles {
    /// Run this by 'sh -c' on each instance not in control
    ///
    /// It is stopped (SIGTERM, --grace, SIGKILL to its whole tree) and gone before the command starts,
    /// and started again when control has ended and the command's tree is gone. It is killed earlier
    /// where its end would outlast the lease. If it fails it is started again after 1 second, doubling
    /// up to 30; if it exits 0 it has done its work until the next time. Its exit status is never ours.
    /// With -n it is run only after control was had and handed over.
    #[arg(long, value_name = "CMD", env = "TRAFFICCOP_STANDBY", value_parser = OsStringValueParser::new())]
    pub standby: Option<OsString>,

    /// Run this by 'sh -c' before the command starts
    ///
    /// Once control was obtained: it runs under the lease's deadline like the command, after the standby
    /// command is gone. If it fails, the command is not started and control is handed over: the lock is
    /// given back, and not competed for during --cooldown; with -n that is the end (exit status 69). What it
    /// leaves behind is stopped before the command starts.
    #[arg(long, value_name = "CMD", env = "TRAFFICCOP_ON_ACQUIRE", value_parser = OsStringValueParser::new())]
    pub on_acquire: Option<OsString>,

    /// Run this by 'sh -c' after control has ended
    ///
    /// For whatever reason. Nothing waits for it but our own exit; it may run beside the next holder's
    /// command, or our own next one. What still runs after --grace (at least 1 second) is killed.
    /// TRAFFICCOP_CAUSE tells it why control ended.
    #[arg(long, value_name = "CMD", env = "TRAFFICCOP_ON_LOST", value_parser = OsStringValueParser::new())]
    pub on_lost: Option<OsString>,
}

/// What the command finds in its environment.
pub const FOR_THE_COMMAND: Rows<'_> = rows! {
    "TRAFFICCOP_TOKEN" => "the fencing token: a number that grows with every tenure. Hand it to \
        what you write to, and let that refuse a smaller one than it has seen",
    "TRAFFICCOP_LOCK" => "the lock's address",
    "TRAFFICCOP_HOLDER" => "this instance's identity",
    "TRAFFICCOP_SLOT" => "the number of its slot, from 0 (see --slots)",
    "TRAFFICCOP_TASK" => "the key of the task (with --once, see --once-key)",
    "TRAFFICCOP_PERIOD" =>
        "the beginning of the period this run belongs to, as 2026-01-31T13:00:00Z (with --once-per)",
    "TRAFFICCOP_ROLE" =>
        "holder; standby for --standby, --on-lost and --if, so that one script can play both roles",
    "TRAFFICCOP_CAUSE" => "only for --on-lost: why control ended, in the words of the status file",
    "TRAFFICCOP_CONTROL" => "a file of two native-endian unsigned numbers of eight bytes, in nanoseconds \
        of CLOCK_BOOTTIME. The first tells until when the command is in control: 0 when it is \
        not, the greatest number when the lock has no deadline. The second tells when the grace of a \
        stop ends: 0 while no stop has begun. Empty if no file could be made. 'trafficcop check' reads it",
    "NOTIFY_SOCKET" => "where we were started with one: a socket of ours, on which the command \
        tells systemd that it is READY (with --ready command) and its STATUS; with --watchdog in any \
        case",
    "WATCHDOG_USEC" => "with --watchdog: how often, in microseconds, the command is to say WATCHDOG=1 \
        there. One that we were started with is not passed on",
    "WATCHDOG_PID" => "with --watchdog: the command's own process id",

    "LISTEN_PID" =>
        "where it was our process id: the command's own, so that the sockets in LISTEN_FDS are its",
};

/// Commands to copy, each with what it is for.
pub const EXAMPLES: Rows<'_> = rows! {
    "A nightly job in the crontab of ten machines that runs on one:" =>
        "trafficcop run -n -E 0 --min-hold 5m --blob locks/nightly -- /opt/nightly",
    "The same on a shared drive, once a day whatever the machines' clocks say:" =>
        "trafficcop run -q --once-key nightly --once-per 1d --once-attempts 3 --file \
        /mnt/share/nightly.lock -- /opt/nightly",
    "A start-up task of a whole fleet: one machine does it, the others wait until it is done:" =>
        "trafficcop run --once-key v7 --blob locks/migrate -- ./migrate",
    "A service that runs on one machine and moves when that one fails:" =>
        "trafficcop run --blob locks/importer --lease 30s -- ./importer --serve",
    "The same, and only on a machine whose disk is there when control moves:" =>
        "trafficcop run --blob locks/importer --if 'mountpoint -q /data' -- ./importer --serve",
    "Wait up to five minutes for control, and say so with status 75 if it was not to be had:" =>
        "trafficcop run -w 5m --file /mnt/share/deploy.lock -- ./deploy",
    "Try it here, with Azurite as the store:" =>
        "trafficcop run --emulator --blob locks/try -- sh -c 'echo token $TRAFFICCOP_TOKEN; sleep \
        60'",
};

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
