//! Flags and help of `trafficcop run`.

use std::ffi::OsString;
use std::time::Duration;

use clap::{ArgAction, Args, ValueEnum, ValueHint};

use super::values::{Checked, checked, count, duration, once_key, once_per, positive, watchdog};
use super::{Common, FOR_THE_STORE, Rows, ScheduledEvents, Stopping, in_short, with_examples};
use crate::core::OnFailure;
use crate::exit;
use crate::notify::Ready;

/// Flags of `trafficcop run`.
#[derive(Clone, Debug, Args)]
#[command(after_help = in_short(EXAMPLES) + EXIT_STATUS, after_long_help = after_long_help(),
    override_usage = "trafficcop run --file PATH|--blob NAME|--store NAME [OPTIONS] -- COMMAND")]
pub struct Run {
    /// The lock, waiting for it, and being operated.
    #[command(flatten)]
    pub common: Common,

    /// Time from the stop signal to SIGKILL [default: 30s]
    ///
    /// Applies when a stop was requested. It may be longer than the lease, which trafficcop keeps renewing.
    /// Processes that the command left behind get the same time.
    #[arg(long, value_name = "D", help_heading = "The command", value_parser = checked(duration))]
    pub grace: Option<Checked<Duration>>,

    /// Its end.
    #[command(flatten)]
    pub stopping: Stopping,

    /// Keep trafficcop's credentials from the command, its hooks and checks
    ///
    /// Without this flag they inherit the whole environment. With it, the credentials listed below are
    /// removed from it, and so are the variables of --blob and --queue if the URL has a SAS. It makes no
    /// difference to a lock on a file. A machine's managed identity stays available to every process on it.
    /// A process that may inspect trafficcop (the same user, without a sandbox) can still read the
    /// credentials.
    #[arg(long, hide_short_help = true, help_heading = "The command")]
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

    /// Programs besides the command.
    #[command(flatten)]
    pub roles: Roles,

    /// Events that the platform announces.
    #[command(flatten)]
    pub scheduled_events: ScheduledEvents,

    /// When systemd is told that the service is ready (Type=notify)
    ///
    /// Only with NOTIFY_SOCKET in the environment. trafficcop then also tells systemd its status, that
    /// supervisor and guardian are alive (WATCHDOG, if WatchdogSec is set), that it stops, and that a drain
    /// takes longer than TimeoutStopSec. The command finds a socket of trafficcop's in NOTIFY_SOCKET:
    /// systemd shows its STATUS after that of trafficcop.
    #[arg(long, value_name = "WHEN", value_enum, default_value_t = Ready::Standby, hide_short_help = true,
        help_heading = "Being operated")]
    pub ready: Ready,

    /// Being asked over HTTP.
    #[command(flatten)]
    pub listen: super::Listen,

    /// The command and its arguments, run as they are, without a shell
    ///
    /// Its first 256 bytes are visible to everyone who can read the lock's record: put no secrets there.
    // Not required: `config` reports a missing command in one line. `allow_hyphen_values` would take a mistyped
    // flag for the command.
    #[arg(value_name = "COMMAND", help_heading = None::<&'static str>, trailing_var_arg = true,
        value_hint = ValueHint::CommandWithArguments, action = ArgAction::Append)]
    pub command: Vec<OsString>,
}

/// Restarts, and handing control round.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Restarts and handing control round")]
pub struct HoldPolicy {
    /// Restart the command when it ends [default: never]
    ///
    /// The lock is kept and renewed meanwhile. The delay is 1 second and doubles up to 30; it is 1 second
    /// again once the command was up for a minute. A command that cannot be run (126, 127) is not
    /// restarted.
    #[arg(long, value_name = "WHEN", help_heading = "The command")]
    pub restart: Option<Restart>,

    /// Hand control over instead of restarting more often than N times within --restart-window [default: 5]
    ///
    /// This instance gives the lock back and does not compete during --cooldown, so that a machine on which
    /// the command cannot work passes it on.
    #[arg(long, value_name = "N", hide_short_help = true,
        value_parser = checked(count("restarts, like 5", "allows no restart at all: take --restart never, \
            or a limit of 1 or more")))]
    pub restart_limit: Option<Checked<u32>>,

    /// The time in which --restart-limit counts [default: 5m]
    #[arg(long, value_name = "D", hide_short_help = true, value_parser = checked(duration))]
    pub restart_window: Option<Checked<Duration>>,

    /// Hand control over after D: stop the command, give the lock back, compete again [default: no limit]
    ///
    /// The time starts when control is obtained. The command gets --grace to end; its exit status does not
    /// end trafficcop. On a blob not less than --lease.
    #[arg(long, value_name = "D", hide_short_help = true, value_parser = checked(duration))]
    pub max_hold: Option<Checked<Duration>>,

    /// Keep the lock for D even if the command ends earlier [default: none]
    ///
    /// The time starts when control is obtained. It is for cron with local clocks: a machine whose clock is
    /// late finds the lock taken, and does not run the command again. The exit status is the command's.
    #[arg(long, value_name = "D", hide_short_help = true,
        value_parser = checked(positive(" keeps nothing: leave it out, or say how long")))]
    pub min_hold: Option<Checked<Duration>>,

    /// Time without competing after a hand-over (cool-down) [default: twice --poll; 500ms on a local
    /// file; after a command that hung, a lease]
    ///
    /// At least 1.2 times --poll, so that the other instances have polled meanwhile (100ms on a
    /// local file).
    #[arg(long, value_name = "D", hide_short_help = true, value_parser = checked(duration))]
    pub cooldown: Option<Checked<Duration>>,
}

/// When a command is started again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Restart {
    /// Exit when it exits
    Never,
    /// After a status other than 0, or a signal
    OnFailure,
    /// Whenever it ends
    Always,
}

/// A task that is to be done once.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "A task that is to be done once")]
pub struct Once {
    /// Run the command until it has succeeded once, on any machine; then on none
    ///
    /// The first instance to get control runs the command. When it exits 0, trafficcop records that with
    /// the lock and gives the lock back. An instance that waited meanwhile, or starts later, reads the
    /// record and exits 0 without running the command. If a run fails, crashes or is stopped, the next
    /// candidate runs the command: at least once until it is recorded, never two at a time. If a success
    /// cannot be recorded, the exit status is 70.
    #[arg(long, hide_short_help = true)]
    pub once: bool,

    /// Key of the task; each key runs once [default: 'once']
    ///
    /// Implies --once. The lock keeps the results of 32 keys (fewer if they are long: 3840 bytes); then it
    /// forgets the oldest result.
    #[arg(long, value_name = "K", value_parser = checked(once_key))]
    pub once_key: Option<Checked<String>>,

    /// Run once in each period of D (1h, 1d) of the store's clock
    ///
    /// Implies --once. Periods are aligned to UTC (1h: the full hour, 1d: midnight, 7d: Thursday): start
    /// the job well before or after the hour at which two periods meet. The storage service or the file
    /// server tells the time, so the machines' own clocks may be wrong. A run belongs to the period in
    /// which it began, and serves every instance that came in that period. All instances must name the same
    /// D.
    #[arg(long, value_name = "D", value_parser = checked(once_per))]
    pub once_per: Option<Checked<Duration>>,

    /// Meaning of a failed run [default: retry]
    #[arg(long, value_name = "WHAT", hide_short_help = true)]
    pub once_on_failure: Option<OnFailure>,

    /// Number of failed runs, of all candidates together, after which the task has failed for good
    /// [default: no limit]
    ///
    /// Counted with the lock, for each key and period. A run that was stopped, or whose machine crashed,
    /// does not count.
    #[arg(long, value_name = "N", hide_short_help = true,
        value_parser = checked(count("runs, like 3", "allows no run at all: take 1 or more")))]
    pub once_attempts: Option<Checked<u32>>,
}

/// Whether the command works: one that does not is stopped as if it had failed.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "A command that hangs")]
pub struct Health {
    /// Treat the command as hung unless it sends WATCHDOG=1 every D
    ///
    /// The command sends it to its NOTIFY_SOCKET, as in sd_notify(3) (systemd-notify WATCHDOG=1), with or without
    /// systemd. trafficcop sets WATCHDOG_USEC and WATCHDOG_PID for it. It should send about twice in D. The clock
    /// starts with its first READY=1 or WATCHDOG=1; --watchdog-start limits the time before. WATCHDOG=trigger means
    /// that it hangs, and WATCHDOG_USEC= changes D. trafficcop stops a command that hangs (--stop-signal, --grace,
    /// SIGKILL). Then --restart decides as for a failure, or control is handed over, and this instance cools down: for
    /// --cooldown, or as long as a lease lasts (10s on a local file).
    #[arg(long, value_name = "D", help_heading = "The command", value_parser = checked(watchdog),
        hide_short_help = true)]
    pub watchdog: Option<Checked<Duration>>,

    /// Treat the command as hung if its first READY=1 or WATCHDOG=1 takes longer than D [default: 90s]
    ///
    /// Counted from its start, with --watchdog only. Each EXTEND_TIMEOUT_USEC= on its NOTIFY_SOCKET gives
    /// it at least that much time from then on.
    #[arg(long, value_name = "D", hide_short_help = true, value_parser = checked(watchdog))]
    pub watchdog_start: Option<Checked<Duration>>,

    /// Checks of the command.
    #[command(flatten)]
    pub checks: HealthChecks,
}

/// Checks of the command or the reader, and their pace.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "A command that hangs")]
pub struct HealthChecks {
    /// Treat the command as hung after --health-failures failures of 'sh -c CMD' or GET URL
    ///
    /// CMD must exit 0; GET of URL (http or https, on this machine or at a private address) must answer 2xx. A
    /// redirect counts as a failure and is not followed. Only failures in a row count. The check runs while the
    /// command runs, under the lease's deadline, with the same environment. Its output is discarded, and processes
    /// that it leaves behind are killed. The consequences are those of --watchdog; both can be used together.
    #[arg(
        long,
        value_name = "CMD|URL",
        hide_short_help = true,
        help_heading = "The command"
    )]
    pub health: Option<OsString>,

    /// Interval from the start of one --health to that of the next [default: 10s]
    #[arg(long, value_name = "D", hide_short_help = true,
        value_parser = checked(positive(" is no interval: take a second or more")))]
    pub health_every: Option<Checked<Duration>>,

    /// Time after which one --health is killed and has failed [default: 5s, or --health-every if that is
    /// shorter]
    #[arg(long, value_name = "D", hide_short_help = true,
        value_parser = checked(positive(" leaves it no time: take a second or more")))]
    pub health_timeout: Option<Checked<Duration>>,

    /// Number of consecutive --health failures before the command counts as hung [default: 3]
    #[arg(long, value_name = "N", hide_short_help = true,
        value_parser = checked(count("failures, like 3", "would stop a command that works: take 1 or more")))]
    pub health_failures: Option<Checked<u32>>,

    /// Time from the command's start to the first --health [default: 0s]
    #[arg(long, value_name = "D", hide_short_help = true, value_parser = checked(duration))]
    pub health_delay: Option<Checked<Duration>>,
}

/// Programs besides the command, each run by `sh -c`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Args)]
#[command(next_help_heading = "Roles and hooks")]
pub struct Roles {
    /// Run CMD by 'sh -c' on each instance not in control
    ///
    /// trafficcop stops it (SIGTERM, --grace, SIGKILL to its whole process tree) before the command starts,
    /// and starts it again when control has ended and the command's process tree is gone. It is killed
    /// earlier if it would outlast the lease. If it fails, it is started again after 1 second, doubling up
    /// to 30; if it exits 0, its work is done until the next time. Its exit status is never trafficcop's.
    /// With -n it runs only after control was obtained and handed over.
    #[arg(long, value_name = "CMD", hide_short_help = true)]
    pub standby: Option<OsString>,

    /// Run CMD by 'sh -c' before the command starts
    ///
    /// It runs once control was obtained, under the lease's deadline like the command, after the standby
    /// command is gone. If it fails, the command is not started and control is handed over: this instance
    /// gives the lock back and does not compete during --cooldown; with -n it ends (exit status 69).
    /// Processes that CMD leaves behind are stopped before the command starts.
    #[arg(long, value_name = "CMD", hide_short_help = true)]
    pub on_acquire: Option<OsString>,

    /// Run CMD by 'sh -c' after control has ended
    ///
    /// It runs whatever the reason; TRAFFICCOP_CAUSE names it. Only trafficcop's own exit waits for it: it
    /// may run at the same time as the next holder's command, or this instance's next one. It is killed
    /// after --grace (at least 1 second).
    #[arg(long, value_name = "CMD", hide_short_help = true)]
    pub on_lost: Option<OsString>,
}

/// Variables in the command's environment.
pub const FOR_THE_COMMAND: Rows<'_> = rows! {
    "TRAFFICCOP_TOKEN" => "the fencing token: a number that grows each time an instance gets control. Pass it to the \
        systems you write to, and let them refuse a smaller token than they have seen",
    "TRAFFICCOP_LOCK" => "the lock's address",
    "TRAFFICCOP_HOLDER" => "this instance's identity",
    "TRAFFICCOP_SLOT" => "the number of its slot, from 0 (see --slots)",
    "TRAFFICCOP_TASK" => "the key of the task (with --once, see --once-key)",
    "TRAFFICCOP_PERIOD" => "the beginning of the period of this run, as 2026-01-31T13:00:00Z (with --once-per)",
    "TRAFFICCOP_ROLE" =>
        "holder; standby for --standby, --on-lost and --if, so that one script can play both roles",
    "TRAFFICCOP_CAUSE" => "only for --on-lost: why control ended, as in the status file",
    "TRAFFICCOP_CONTROL" => "a file of two native-endian unsigned numbers of eight bytes, in nanoseconds \
        of CLOCK_BOOTTIME. The first is the time until which the command is in control: 0 when it is \
        not, the greatest number when the lock has no deadline. The second is the end of the grace of a \
        stop: 0 while no stop has begun. Empty if no file could be made. 'trafficcop check' reads it",
    "NOTIFY_SOCKET" => "if trafficcop was started with one, and always with --watchdog: a socket of \
        trafficcop's, on which the command tells systemd that it is READY (with --ready \
        command) and its STATUS",
    "WATCHDOG_USEC" => "with --watchdog: the time, in microseconds, within which the command sends \
        WATCHDOG=1 there. A value from trafficcop's own environment is not passed on",
    "WATCHDOG_PID" => "with --watchdog: the command's own process id",

    "LISTEN_PID" => "if it was trafficcop's process id: the command's own, so that the command owns the \
        sockets in LISTEN_FDS",
};

/// Commands to copy, each with what it is for.
pub const EXAMPLES: Rows<'_> = rows! {
    "A line in the crontab of ten machines; one of them runs it each day (days meet at midnight UTC: \
     start it well before or after that hour):" =>
        "trafficcop run -q --once-key nightly --once-per 1d --once-attempts 3 --blob locks/db -- backup",
    "The same on a shared drive:" =>
        "trafficcop run -q --once-key nightly --once-per 1d --once-attempts 3 --file \
        /mnt/share/locks/nightly.lock -- /opt/nightly",
    "A start-up task of many machines; one does it, the others wait until it is done:" =>
        "trafficcop run --once-key v7 --blob locks/migrate -- ./migrate",
    "A service that runs on one machine and moves when that machine fails:" =>
        "trafficcop run --blob locks/importer --lease 30s -- ./importer --serve",
    "The same, only on machines where the disk is mounted:" =>
        "trafficcop run --blob locks/importer --if 'mountpoint -q /data' -- ./importer \
        --serve",
    "Wait up to five minutes for control, then give up with status 75:" =>
        "trafficcop run -w 5m --file /mnt/share/deploy.lock -- ./deploy",
    "Try it here, with Azurite as the store:" =>
        "trafficcop run --emulator --blob locks/try -- sh -c 'echo token $TRAFFICCOP_TOKEN; sleep \
        60'",
};

/// Part of [`exit::TABLE`] that `-h` shows.
const EXIT_STATUS: &str = "
Exit status: the command's own, or 64 usage, 69 unavailable, 70 control lost,
71 overlap possible, 75 not obtained, 77 not authorised, 126 and 127 cannot run.";

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
