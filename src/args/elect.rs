//! What can be typed after `trafficcop elect`, and its help; and what the process that tells its
//! reader is started with.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::BoolishValueParser;
use clap::{ArgAction, Args};

use super::run::HealthChecks;
use super::values::{Checked, checked, duration, path};
use super::{Common, FOR_THE_STORE, Rows, ScheduledEvents, in_short, with_examples};

/// What can be said of an election.
#[derive(Clone, Debug, Args)]
#[command(after_help = in_short(ELECT_EXAMPLES), after_long_help = after_elect(), override_usage = "trafficcop elect --blob CONTAINER/NAME [OPTIONS]\n       trafficcop elect --file PATH [OPTIONS]")]
pub struct Elect {
    /// The lock, waiting for it, and being operated.
    #[command(flatten)]
    pub common: Common,

    /// From the line 'standby' to the lock's release [default: 5s]
    ///
    /// When nothing is wrong: what the reader gets to stop when we were asked to, or when control is handed
    /// over; not less than its longest step. May be longer than the lease, which is renewed meanwhile. A
    /// reader that closes the pipe has stopped: then the lock is given back at once.
    #[arg(long, value_name = "D", env = "TRAFFICCOP_GRACE", help_heading = "Time", value_parser = checked(duration))]
    pub grace: Option<Checked<Duration>>,

    /// Print one JSON object a line
    #[arg(long, env = "TRAFFICCOP_JSON", help_heading = "The reader", value_parser = BoolishValueParser::new())]
    pub json: bool,

    /// Link the control file here, for 'trafficcop check'
    ///
    /// A symbolic link. The reader asks with TRAFFICCOP_CONTROL=F in the environment: 'trafficcop check'
    /// exits 0 while we are in control, and with --remaining prints for how long at least. The link is made
    /// before the first line is printed and removed at the end.
    #[arg(long, value_name = "F", env = "TRAFFICCOP_CONTROL_FILE", value_parser = path(), help_heading = "The reader")]
    pub control_file: Option<PathBuf>,

    /// Hand control over after this time, and compete again
    ///
    /// Counted from when control was obtained; --grace comes on top. On a blob not less than --lease.
    #[arg(long, value_name = "D", env = "TRAFFICCOP_MAX_HOLD", help_heading = "Handing control round", value_parser = checked(duration))]
    pub max_hold: Option<Checked<Duration>>,

    /// How long to cool down (not to compete) after control was handed over [default: twice --poll]
    ///
    /// Not less than it can take a standby to look again: --poll and a fifth of it. On a local file too,
    /// where the standbys of an election look as they do elsewhere.
    #[arg(long, value_name = "D", env = "TRAFFICCOP_COOLDOWN", help_heading = "Handing control round", value_parser = checked(duration))]
    pub cooldown: Option<Checked<Duration>>,

    /// Whether the reader works.
    #[command(flatten)]
    pub checks: HealthChecks,

    /// What the platform announces.
    #[command(flatten)]
    pub scheduled_events: ScheduledEvents,

    /// None: the plan says so better than clap.
    #[arg(value_name = "COMMAND", hide = true, trailing_var_arg = true, action = ArgAction::Append)]
    pub command: Vec<OsString>,
}

/// What the process that tells the reader is started with; the rest is in its environment.
#[derive(Clone, Debug, Args)]
pub struct Announce {
    /// As [`Elect::json`].
    #[arg(long)]
    pub json: bool,

    /// The descriptor to which it says how far it came.
    #[arg(long)]
    pub progress: i32,
}

/// What `run` says of a command, said of a reader: the ids of flags and their help, whose first
/// paragraph is the short one.
// The same flags as those of `run`, which speak of a command: a reader is told, and not run.
const IN_ITS_WORDS: Rows<'_> = rows! {
    "slots" => "How many may have it at once [default: 1]\n\n\
        The slots are locks of their own: NAME.0 to NAME.N-1, or PATH.0 and so on. All instances \
        must name the same N (1 to 1000). With --json the line tells the number of the slot.",
    "poll" => "How often a standby looks [default: 2s]\n\n\
        ±20 %. On a file too, because it is to name the holder. While the holder drains, a standby looks \
        eight times as often, between four times a second and every 2s. With more than 80 \
        standbys on a blob, give them a second for every 40: 12s for 500.",
    "grace_on_loss" =>
        "From the line 'standby' to the last moment when the lease could not be renewed\n\n\
        It is taken out of the lease, so that the reader can have stopped before others can have \
        control. By default it grows with the lease: 10s of 60s, 5s of 30s, 3s of 15s.",
    "margin" => "Between that last moment and the end of the lease\n\n\
        By default it grows with the lease: 2s of 60s, 1s of 30s and less.",
    "scheduled_events" =>
        "Hand control over before this virtual machine is frozen, rebooted, redeployed or taken away\n\n\
        Asks Azure's metadata service every 5 seconds for its Scheduled Events. On a notice for \
        this machine the reader gets --grace to stop (less, if the notice is shorter), the lock is \
        given back, and not competed for until the event is gone. With -n or -w that is a reason \
        not to obtain control (exit 75). Where there is no metadata service that is said once, and \
        nothing else changes.",
    "ack_events" =>
        "Approve such an event as soon as the reader's grace is over and the lock was given back\n\n\
        Azure then begins at once, for all the machines the event names, instead of waiting for its \
        time: only where nothing else on them needs that time.",
    "if_lost" => "What to do after control was lost",
    "health" => "Hand control over if GET of this URL fails\n\n\
        While the reader is in control it is asked, http or https, on this machine or at a private address, and has to \
        answer with 2xx; a redirect is not followed. So many failures in a row as --health-failures says mean that it \
        hangs: 'standby' is printed, and control handed over after --grace. Then this instance does not compete for \
        --cooldown, or as long as a lease lasts (10s on a local file).",
    "health_delay" => "From the line 'holder' to the first --health [default: 0s]",
    "health_timeout" => "How long one --health may take; then it has failed [default: 5s, or --health-every if that is shorter]",
    "health_failures" =>
        "So many of --health that fail in a row mean that the reader hangs [default: 3]",
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

/// The fields of a line of `elect --json`. All are there in every line; what does not apply is
/// null.
pub const FIELDS: Rows<'_> = rows! {
    "role" => "\"holder\" or \"standby\": what we are",
    "token" => "the fencing token: ours as holder, else the holder's, if known",
    "holder" => "who is in control: our own identity as holder, null if unknown",
    "identity" => "who we are",
    "lock" => "the lock's address",
    "slot" => "the number of the slot, from 0 (see --slots)",
    "control" => "the control file, null if none could be made: with it in TRAFFICCOP_CONTROL \
        'trafficcop check' tells whether, and how long at least, we are in control",
    "time" => "when the line was made, by the wall clock (RFC 3339, UTC); for people",
};

/// Every exit status of `trafficcop elect` and what it means. It ends by itself only where one of
/// these says so.
pub const ELECT_STATUS: Rows<'_> = rows! {
    "141" => "the reader hung up: the lock was given back, then trafficcop died of SIGPIPE, as \
        every writer of a pipe does (128+13)",
    "128+n" => "a stop was requested by signal n: 'standby' was printed, the lock was given back, \
        then trafficcop died of the same signal (as PID 1 it exits 128+n)",
    "64" => "bad usage, or settings that cannot hold; nothing was started",
    "69" => "the store was out of reach, or refused to work, before control was obtained; or the \
        machine did (no process, memory or descriptor to spare, no guardian to be had)",
    "70" => "control was lost and the reader was told in time (--if-lost exit), or a process of \
        trafficcop that watches or tells died",
    "71" => "control was lost and an overlap with another holder cannot be excluded (--if-lost \
        exit, or at the end)",
    "74" => "stdout cannot be written, and not because the reader hung up",
    "75" => "control was not obtained (-n, -w); -E changes it",
    "77" => "not authorised, or no permission",
};

/// Commands to copy for `trafficcop elect`.
pub const ELECT_EXAMPLES: Rows<'_> = rows! {
    "Watch an election; start it in several terminals, and end one:" =>
        "trafficcop elect --file /tmp/election.lock",
    "Tell a program that can read lines (it ends when they do, and ends us by closing the pipe):" =>
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
