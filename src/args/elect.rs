//! Flags and help of `trafficcop elect`, and of the process that tells its reader.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgAction, Args};

use super::run::HealthChecks;
use super::values::{Checked, checked, duration, path};
use super::{Common, FOR_THE_STORE, Rows, ScheduledEvents, in_short, with_examples};

/// Flags of `trafficcop elect`.
#[derive(Clone, Debug, Args)]
#[command(after_help = in_short(ELECT_EXAMPLES), after_long_help = after_elect(),
    override_usage = "trafficcop elect --blob NAME|--file PATH|--store NAME [OPTIONS]")]
pub struct Elect {
    /// The lock, waiting for it, and being operated.
    #[command(flatten)]
    pub common: Common,

    /// Time from the line 'standby' to the lock's release [default: 5s]
    ///
    /// The reader's time to stop when a stop was requested or control is handed over; not less than its
    /// longest step. It may be longer than the lease, which trafficcop keeps renewing. A reader that closes
    /// the pipe has stopped: the lock is then given back at once.
    #[arg(long, value_name = "D", help_heading = "Time", value_parser = checked(duration))]
    pub grace: Option<Checked<Duration>>,

    /// Print one JSON object a line
    #[arg(long, help_heading = "The reader")]
    pub json: bool,

    /// Link the control file here, for 'trafficcop check'
    ///
    /// F becomes a symbolic link. With TRAFFICCOP_CONTROL=F in the reader's environment, 'trafficcop check'
    /// exits 0 while this instance is in control, and with --remaining prints for how long at least.
    /// trafficcop makes the link before it prints the first line and removes it at the end.
    #[arg(long, value_name = "F", value_parser = path(), help_heading = "The reader")]
    pub control_file: Option<PathBuf>,

    /// Hand control over after D, and compete again [default: no limit]
    ///
    /// The time starts when control is obtained; --grace comes on top. On a blob not less than --lease.
    #[arg(long, value_name = "D", help_heading = "Handing control round", value_parser = checked(duration))]
    pub max_hold: Option<Checked<Duration>>,

    /// Time without competing after a hand-over (cool-down) [default: twice --poll; after a reader that hung, a
    /// lease]
    ///
    /// At least 1.2 times --poll, so that each standby has polled meanwhile. That applies on a local file
    /// too, where the standbys of an election poll as well.
    #[arg(long, value_name = "D", help_heading = "Handing control round", value_parser = checked(duration))]
    pub cooldown: Option<Checked<Duration>>,

    /// Whether the reader works.
    #[command(flatten)]
    pub checks: HealthChecks,

    /// Events that the platform announces.
    #[command(flatten)]
    pub scheduled_events: ScheduledEvents,

    /// None: elect runs no command.
    #[arg(value_name = "COMMAND", hide = true, trailing_var_arg = true, action = ArgAction::Append)]
    pub command: Vec<OsString>,
}

/// Arguments of the process that tells the reader; the rest is in its environment.
#[derive(Clone, Debug, Args)]
pub struct Announce {
    /// Like [`Elect::json`].
    #[arg(long)]
    pub json: bool,

    /// The descriptor to which it says how far it came.
    #[arg(long)]
    pub progress: i32,
}

/// Help of `run` reworded for a reader: the ids of flags and their help, whose first
/// paragraph is the short one.
// The help of `run` speaks of a command: a reader is told, and not run.
const IN_ITS_WORDS: Rows<'_> = rows! {
    "slots" => "Number of holders at the same time [default: 1]\n\n\
        The slots are separate locks: NAME.0 to NAME.N-1, or PATH.0 and so on. All instances \
        must name the same N (1 to 1000). With --json the line tells the number of the slot.",
    "poll" => "How often a standby checks the lock [default: 2s]\n\n\
        ±20 %. On a file too, because the standby prints the holder. While the holder drains, a standby checks \
        eight times as often, between four times a second and every 2s. With more than 80 \
        standbys on a blob, add a second for every 40: 12s for 500.",
    "grace_on_loss" => "Time from the line 'standby' to the latest end of the reader, if the lease cannot be renewed \
        [default: 10s with a lease of 60s]\n\n\
        Part of the lease, so that the reader can have stopped before another instance can have control. \
        The default grows with the lease: 3s with 15s, 5s with 30s.",
    "margin" => "Time from the latest end of the reader to the end of the lease [default: 2s with a lease of \
        60s]\n\nThe default grows with the lease: 1s with 30s and less.",
    "scheduled_events" =>
        "Hand control over before this virtual machine is frozen, rebooted, redeployed or removed\n\n\
        Asks Azure's metadata service every 5 seconds for its Scheduled Events. On a notice for \
        this machine the reader gets --grace to stop (less, if the notice is shorter), and the lock is \
        given back. This instance competes again when the event is gone. With -n or -w control then \
        counts as not obtained (exit 75). Without a metadata service trafficcop logs that once, and \
        nothing else changes.",
    "ack_events" =>
        "Approve a scheduled event as soon as the reader's grace is over and the lock was given back\n\n\
        Azure then begins immediately, for all the machines that the event names, instead of waiting for its \
        time. Use it only where no other program on them needs that time.",
    "if_lost" => "What to do after control was lost",
    "health" => "Hand control over after --health-failures failures of GET URL\n\n\
        The URL (http or https, on this machine or at a private address) is requested while this \
        instance is in control, and must answer 2xx; a redirect is not followed. After --health-failures \
        failures in a row the reader counts as hung: trafficcop prints 'standby', and hands control over \
        after --grace. Then this instance does not compete for --cooldown, or as long as a lease lasts (10s \
        on a local file).",
    "health_delay" => "Time from the line 'holder' to the first --health [default: 0s]",
    "health_timeout" => "Time after which one --health has failed [default: 5s, or --health-every if that is \
        shorter]",
    "health_failures" => "Number of consecutive --health failures before the reader counts as hung [default: \
        3]",
};

pub(super) fn in_its_words(elect: clap::Command) -> clap::Command {
    let reword = |elect: clap::Command, (id, help): &(&'static str, &'static str)| {
        // clap shows the first paragraph for -h, and all of it for --help.
        let short = help.split("\n\n").next().unwrap_or_default();
        elect.mut_arg(id, |arg| arg.help(short).long_help(*help))
    };
    let elect = IN_ITS_WORDS.iter().fold(elect, reword);
    let elect = elect.mut_arg("if_lost", |arg| arg.help_heading("Handing control round"));
    let checks = [
        "health",
        "health_every",
        "health_delay",
        "health_timeout",
        "health_failures",
    ];
    let elect = checks.iter().fold(elect, |elect, id| {
        elect.mut_arg(id, |arg| arg.help_heading("The reader"))
    });
    elect.mut_arg("health", |arg| arg.value_name("URL"))
}

/// Fields of every line of `elect --json`. A field that does not apply is null.
pub const FIELDS: Rows<'_> = rows! {
    "role" => "\"holder\" or \"standby\": the role of this instance",
    "token" => "the fencing token: its own as holder, else the holder's, if known",
    "holder" => "the identity of the instance in control, null if unknown",
    "identity" => "the identity of this instance",
    "lock" => "the lock's address",
    "slot" => "the number of the slot, from 0 (see --slots)",
    "control" => "the control file, null if none could be made: with it in TRAFFICCOP_CONTROL \
        'trafficcop check' tells whether, and for how long at least, this instance is in \
        control",
    "time" => "when the line was made, by the wall clock (RFC 3339, UTC); for people",
};

/// Every exit status of `trafficcop elect`, and why it ends.
pub const ELECT_STATUS: Rows<'_> = rows! {
    "141" => "the reader closed the pipe: the lock was given back, then trafficcop died of \
        SIGPIPE, as every writer of a pipe does (128+13)",
    "128+n" => "a stop was requested by signal n: 'standby' was printed, the lock was given back, \
        then trafficcop died of the same signal (as PID 1 it exits 128+n)",
    "64" => "bad usage, or settings that cannot hold; nothing was started",
    "69" => "before control was obtained: the store was out of reach or refused to work; or this \
        machine had no guardian, process, memory or descriptor to spare",
    "70" => "control was lost and the reader was told in time (--if-lost exit); or trafficcop's guardian, \
        or its process that prints the lines, died",
    "71" => "control was lost and an overlap with another holder cannot be excluded (--if-lost \
        exit, or at the end)",
    "74" => "stdout cannot be written, although the reader has not closed the pipe",
    "75" => "control was not obtained (-n, -w); -E changes it",
    "77" => "not authorised, or no permission",
};

/// Commands to copy for `trafficcop elect`.
pub const ELECT_EXAMPLES: Rows<'_> = rows! {
    "Watch an election: start this in several terminals, and end one:" => "trafficcop elect --file /tmp/election.lock",
    "Pipe the roles into a program; each side ends when the other one closes the pipe:" =>
        "trafficcop elect --json --blob locks/scheduler --lease 30s | ./scheduler \
        --roles-from-stdin",
    "In a script, with a control file to ask before each step:" =>
        "trafficcop elect --file /mnt/share/turn.lock --control-file /run/turn.control | \
        CONTROL=/run/turn.control ./by-role.sh",
};

fn after_elect() -> String {
    with_examples(
        ELECT_EXAMPLES,
        &[
            ("The fields of --json", FIELDS),
            ("Credentials", FOR_THE_STORE),
            ("Exit status", ELECT_STATUS),
        ],
    )
}
