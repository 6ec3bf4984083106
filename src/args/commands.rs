//! Flags and help of the commands that show locks and change them.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use super::values::{AUTO, Checked, checked, doorbell, duration, path, poll};
use super::{Access, FOR_THE_STORE, Rows, in_short, with_examples};
use crate::doorbell::DoorbellAddress;

/// Which lock.
#[derive(Clone, Debug, Args)]
pub struct TheLock {
    /// A lease on this Azure blob
    ///
    /// Credentials come from the environment, as for run.
    #[arg(
        long,
        value_name = "CONTAINER/NAME|URL",
        help_heading = "The lock (exactly one)"
    )]
    pub blob: Option<String>,

    /// A lock on this file (break: on a shared drive only)
    #[arg(long, value_name = "PATH", help_heading = "The lock (exactly one)", value_parser = path())]
    pub file: Option<PathBuf>,

    /// A lock in this entry of a helper's store
    #[arg(
        long,
        value_name = "HELPER:NAME",
        help_heading = "The lock (exactly one)"
    )]
    pub store: Option<String>,

    /// With --blob: use Azurite on this machine
    ///
    /// The well-known account of the storage emulator.
    #[arg(long, help_heading = "The lock (exactly one)")]
    pub emulator: bool,

    /// Credential of this instance.
    #[command(flatten)]
    pub access: Access,
}

/// Flags of `trafficcop status`.
#[derive(Clone, Debug, Args)]
#[command(after_help = in_short(STATUS_EXAMPLES), after_long_help = after_status(),
    override_usage = "trafficcop status --blob NAME|--file PATH|--store NAME [OPTIONS]")]
pub struct Status {
    /// Which lock.
    #[command(flatten)]
    pub lock: TheLock,

    /// Answer as one JSON object, for slots as an array of them
    #[arg(long)]
    pub json: bool,
}

/// Flags of `trafficcop list`.
#[derive(Clone, Debug, Args)]
#[command(after_help = in_short(LIST_EXAMPLES), after_long_help = after_list(),
    override_usage = "trafficcop list --blob CONTAINER|--file DIR|--store PREFIX [OPTIONS]")]
pub struct List {
    /// The locks in this Azure container
    ///
    /// With a PREFIX those whose names begin with it.
    #[arg(
        long,
        value_name = "CONTAINER[/PREFIX]|URL",
        help_heading = "Where (exactly one)"
    )]
    pub blob: Option<String>,

    /// The locks in this directory
    ///
    /// Or those whose paths begin with PATH.
    #[arg(long, value_name = "DIRECTORY|PATH", value_parser = path(), help_heading = "Where (exactly one)")]
    pub file: Option<PathBuf>,

    /// The entries of a helper's store whose names begin with PREFIX
    #[arg(
        long,
        value_name = "HELPER:PREFIX",
        help_heading = "Where (exactly one)"
    )]
    pub store: Option<String>,

    /// With --blob: use Azurite on this machine
    ///
    /// The well-known account of the storage emulator.
    #[arg(long, help_heading = "Where (exactly one)")]
    pub emulator: bool,

    /// Credential of this instance.
    #[command(flatten)]
    pub access: Access,

    /// Answer as a JSON array of the objects of status
    #[arg(long)]
    pub json: bool,
}

/// Flags of `trafficcop watch`.
#[derive(Clone, Debug, Args)]
#[command(after_help = in_short(WATCH_EXAMPLES), after_long_help = after_watch(),
    override_usage = "trafficcop watch --blob NAME|--file PATH|--store NAME [OPTIONS]")]
pub struct Watch {
    /// Which lock.
    #[command(flatten)]
    pub lock: TheLock,

    /// How often to check the lock [default: 2s]
    ///
    /// ±20 %; 100ms to 1h.
    #[arg(long, value_name = "D", value_parser = checked(poll))]
    pub poll: Option<Checked<Duration>>,

    /// Write one JSON object a line
    #[arg(long)]
    pub json: bool,
}

/// End another's lease.
#[derive(Clone, Debug, Args)]
#[command(after_help = in_short(BREAK_EXAMPLES),
    override_usage = "trafficcop break --blob NAME|--file PATH|--store NAME [OPTIONS]",
    after_long_help = with_examples(BREAK_EXAMPLES, &[("Exit status", BREAK_STATUS)]))]
pub struct Break {
    /// Which lock.
    #[command(flatten)]
    pub lock: TheLock,

    /// End the lease after N seconds (0 to 60), or at its own end if that is earlier [default: at its own end]
    ///
    /// Without it the lease ends when its time is over: by then the holder has noticed and has stopped its
    /// command. With 0, another instance can have control at once, while the holder's command runs until
    /// the holder's next renewal. On a shared drive N is 0, or 10 to 60.
    #[arg(long, value_name = "N")]
    pub period: Option<String>,

    /// Do not ask for confirmation
    #[arg(short, long)]
    pub yes: bool,
}

/// Would it work here?
#[derive(Clone, Debug, Args)]
#[command(after_help = in_short(DOCTOR_EXAMPLES), after_long_help = after_doctor(),
    override_usage = "trafficcop doctor --blob NAME|--file PATH|--store NAME [OPTIONS]")]
pub struct Doctor {
    /// Which lock.
    #[command(flatten)]
    pub lock: TheLock,

    /// Judge round trips by this lease, as for run [default: 60s]
    #[arg(long, value_name = "D", value_parser = checked(duration))]
    pub lease: Option<Checked<Duration>>,

    /// Test the doorbell of this machine and of the holder
    #[arg(long, value_name = "ADDR[:PORT]", num_args = 0..=1, require_equals = true, default_missing_value = AUTO,
        value_parser = checked(doorbell))]
    pub doorbell: Option<Checked<DoorbellAddress>>,

    /// Judge a shared drive as for a run with this flag
    #[arg(long, hide_short_help = true)]
    pub mkdir_is_exclusive: bool,

    /// Answer as one JSON object
    #[arg(long)]
    pub json: bool,
}

/// The second process of doctor: whether it finds the file locked.
#[derive(Clone, Debug, Args)]
pub struct FindLocked {
    /// The file.
    #[arg(value_parser = path())]
    pub path: PathBuf,
}

// The rows of several man pages must agree.
const UNAVAILABLE: &str =
    "the store is out of reach or refuses to work, or the answer cannot be written";
const DENIED: &str = "not authorised, or no permission";

/// Every exit status of `trafficcop status`.
pub const STATUS_STATUS: Rows<'_> = rows! {
    "0" => "an instance has the lock",
    "1" => "it is free",
    "64" => "bad usage",
    "69" => UNAVAILABLE,
    "77" => DENIED,
};

/// Fields of `trafficcop status --json`, of each element of `list --json`, and of each line of `watch --json`.
pub const STATUS_JSON: Rows<'_> = rows! {
    "name" => "a short name: CONTAINER/NAME, or the path",
    "lock" => "the lock's address: what the command finds in TRAFFICCOP_LOCK",
    "state" => "held, draining (held by an instance that is stopping its command), breaking (the \
        lease was broken and still keeps others out), free, or missing (free, and no such \
        blob or file yet); for watch also unknown",
    "held" => "true or false: whether other instances are kept out; null if that is unknown",
    "holder" => "the identity of the holder or, if the lock is free, of the last one; null, like the \
        next ones, if there is no record",
    "host" => "the machine",
    "pid" => "the supervisor's process id there",
    "command" => "the beginning of the command, as it could be typed",
    "since" => "when the tenure began, by the holder's clock (RFC 3339, UTC)",
    "seconds" => "for how long, by this machine's clock; null if the lock is free",
    "token" => "the fencing token of the present or last tenure",
    "health" => "failing or hung, if the holder knows that of its command (run --watchdog, --health): \
        some seconds late, on a shared drive up to a third of the lease; else null",
    "health_cause" => "the reason; else null",
    "once" => "tasks that are done once (run --once): an array of objects of the next seven fields, \
        empty if there are none",
    "once[].key" => "the task's name (--once-key)",
    "once[].period" => "the beginning of the period that was run last (RFC 3339, UTC); null \
        without --once-per",
    "once[].exit" => "the recorded exit status: 0 if it is done, else it has failed for good; null, like \
        the next two, if there is none",
    "once[].by" => "the identity of the instance that ran it",
    "once[].at" => "when that was recorded (RFC 3339, UTC)",
    "once[].token" => "the fencing token of the last run",
    "once[].failed" => "how many runs have failed since, in this period",
    "problem" => "what is wrong with the record or the place; else null",
};

/// Fields that `watch --json` adds.
pub const WATCH_JSON: Rows<'_> = rows! {
    "time" => "when it was seen, by this machine's clock",
    "why" => "why the state is unknown; else null",
};

/// Every exit status of `trafficcop list`.
pub const LIST_STATUS: Rows<'_> = rows! {
    "0" => "done, even if there are none",
    "64" => "bad usage",
    "69" => UNAVAILABLE,
    "77" => DENIED,
};

/// Every exit status of `trafficcop watch`.
pub const WATCH_STATUS: Rows<'_> = rows! {
    "128+n" => "ended by signal n: 130 by Ctrl-C, 141 because its reader closed the pipe",
    "64" => "bad usage",
    "69" => "the first look was refused, or what was seen cannot be written",
    "77" => DENIED,
};

/// Every exit status of `trafficcop break`.
pub const BREAK_STATUS: Rows<'_> = rows! {
    "0" => "the lease is broken, at once or at the announced time",
    "1" => "nothing was broken: the lock is free, changed hands meanwhile, or the answer was no",
    "64" => "bad usage; a lock on a local file, which only its holder can end; or no terminal to \
        ask on and no --yes",
    "69" => "the store is out of reach or refuses: it is not known whether the lease was broken",
    "77" => DENIED,
};

/// Every exit status of `trafficcop doctor`.
pub const DOCTOR_STATUS: Rows<'_> = rows! {
    "0" => "it would work, perhaps with warnings",
    "1" => "something failed, and would fail run",
    "64" => "bad usage",
    "69" => "the answer cannot be written",
};

/// The fields of `trafficcop doctor --json`.
pub const DOCTOR_JSON: Rows<'_> = rows! {
    "lock" => "the lock as it was named",
    "verdict" => "the worst of all checks: ok, warn or fail",
    "checks" => "the checks in their order, each an object of the next four",
    "checks[].check" => "its name, which does not change",
    "checks[].verdict" => "ok, warn or fail",
    "checks[].found" => "what was found",
    "checks[].advice" => "what to do, or null",
};

/// Commands to copy for `trafficcop status`.
pub const STATUS_EXAMPLES: Rows<'_> = rows! {
    "Who runs the importer:" => "trafficcop status --blob locks/importer",
    "The machine that has it:" =>
        "trafficcop status --blob locks/importer --json | jq -r 'select(.held).host'",
};

/// Commands to copy for `trafficcop list`.
pub const LIST_EXAMPLES: Rows<'_> = rows! {
    "All locks of a container:" => "trafficcop list --blob locks",
    "The slots of 'run --slots N --file /mnt/share/transcode.lock':" =>
        "trafficcop list --file /mnt/share/transcode.lock",
};

/// Commands to copy for `trafficcop watch`.
pub const WATCH_EXAMPLES: Rows<'_> = rows! {
    "See a hand-over as it happens:" => "trafficcop watch --poll 500ms --blob locks/importer",
    "Wait until a lock is free:" => "trafficcop watch --json --blob locks/importer | grep -m1 '\"held\":false'",
};

/// Commands to copy for `trafficcop break`.
pub const BREAK_EXAMPLES: Rows<'_> = rows! {
    "Make the holder stop and hand over by the end of its lease:" =>
        "trafficcop break --blob locks/importer",
    "The holder's machine is known to be dead, so do not wait for the end of its lease:" =>
        "trafficcop break --period 0 --yes --blob locks/importer",
};

/// Commands to copy for `trafficcop doctor`.
pub const DOCTOR_EXAMPLES: Rows<'_> = rows! {
    "Before the first run on a machine:" => "trafficcop doctor --blob locks/importer --lease 30s",
    "On a shared drive:" => "trafficcop doctor --file /mnt/share/importer.lock",
};

fn after_status() -> String {
    with_examples(
        STATUS_EXAMPLES,
        &[
            ("JSON", STATUS_JSON),
            ("Credentials", FOR_THE_STORE),
            ("Exit status", STATUS_STATUS),
        ],
    )
}

fn after_list() -> String {
    with_examples(
        LIST_EXAMPLES,
        &[
            ("Each element of the JSON array", STATUS_JSON),
            ("Exit status", LIST_STATUS),
        ],
    )
}

fn after_watch() -> String {
    with_examples(
        WATCH_EXAMPLES,
        &[
            ("Each line of JSON", STATUS_JSON),
            ("and", WATCH_JSON),
            ("Exit status", WATCH_STATUS),
        ],
    )
}

fn after_doctor() -> String {
    with_examples(
        DOCTOR_EXAMPLES,
        &[("JSON", DOCTOR_JSON), ("Exit status", DOCTOR_STATUS)],
    )
}
