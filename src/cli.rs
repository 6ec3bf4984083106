//! What can be typed: the clap types and their help, nothing else. `main` parses with it, `plan`
//! makes sense of it. Values stay as they were typed, so that what is wrong with one is said in
//! one line and in one place, by the plan. It must never decide anything.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::path::PathBuf;

use clap::builder::{BoolishValueParser, OsStringValueParser, TypedValueParser};
use clap::{ArgAction, Args, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};

use crate::exit;

mod check;
mod habits;
mod telling;
mod timeline;

pub use check::{CHECK_EXAMPLES, CHECK_STATUS, Check};
pub use habits::{Habits, Restart};
pub use telling::Telling;
pub use timeline::{TIMELINE_EXAMPLES, TIMELINE_STATUS, Timeline};

/// How wide help may be.
const WIDTH: usize = 100;

/// Run a command on exactly one of many machines, and never on two.
///
/// Many machines start trafficcop with the same lock; on exactly one of them the command runs. The
/// others stand by and take over when it ends, is stopped, crashes or is cut off. No process of the
/// command's tree lives at a moment when another instance could already have been given control.
#[derive(Debug, Parser)]
#[command(
    name = "trafficcop",
    version,
    max_term_width = WIDTH,
    subcommand_required = true
)]
#[command(
    disable_help_subcommand = true,
    after_help = "See 'trafficcop run --help' for the flags, examples and exit statuses."
)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub verb: Verb,
}

/// What trafficcop can do.
#[derive(Debug, Subcommand)]
pub enum Verb {
    /// Run a command while, and only while, we hold the lock
    ///
    /// Waits for the lock, runs COMMAND, gives the lock back. If control is lost the command is stopped
    /// (SIGTERM, a grace, SIGKILL to its whole tree) before anybody else can have been given control.
    ///
    /// Durations are written 10s, 1m30s, 500ms or 2h; a bare number is seconds. Every flag can also be
    /// set by an environment variable, --grace-on-loss by TRAFFICCOP_GRACE_ON_LOSS, say; the command
    /// line wins, and an empty variable counts as unset.
    Run(Box<Run>),

    /// Ask, from inside a command, whether it is still in control
    ///
    /// For scripts that trafficcop runs: exits 0 if the command is in control, 1 if it is not. It
    /// asks no store and no other process, only a file of eight bytes that the guardian keeps (see
    /// TRAFFICCOP_CONTROL), so it can be asked as often as you like.
    Check(Check),

    /// Show who held control when, from event logs
    ///
    /// Merges what any number of instances have written with --event-log, and prints for each lock
    /// who held control when, when nobody did, and whether two did at the same time (exit status 1).
    /// Half a line at the end of a log, a clock that was set, and an instance that was killed before it
    /// could say how it ended are told and do no harm.
    Timeline(Timeline),
}

/// What can be said of a run.
#[derive(Clone, Debug, Args)]
#[command(after_long_help = after_long_help(), override_usage = "trafficcop run --blob CONTAINER/NAME [OPTIONS] -- COMMAND [ARG]...\n       trafficcop run --file PATH [OPTIONS] -- COMMAND [ARG]...")]
pub struct Run {
    /// The lock: a lease on this Azure blob (CONTAINER/NAME or its URL)
    ///
    /// Blob and container are created if they are missing and never deleted; metadata of others is
    /// kept. Credentials come from the environment: AZURE_STORAGE_CONNECTION_STRING, or
    /// AZURE_STORAGE_ACCOUNT with AZURE_STORAGE_KEY or AZURE_STORAGE_SAS_TOKEN.
    #[arg(
        long,
        value_name = "CONTAINER/NAME|URL",
        env = "TRAFFICCOP_BLOB",
        help_heading = "The lock (exactly one)"
    )]
    pub blob: Option<String>,

    /// The lock: an exclusive lock on this file, on a local disk or a shared drive
    ///
    /// The file is created if it is missing and never deleted. All instances must name the same
    /// file. On a network drive a heartbeat through the locked descriptor notices a lost lock.
    #[arg(
        long,
        value_name = "PATH",
        env = "TRAFFICCOP_FILE",
        value_parser = path(),
        help_heading = "The lock (exactly one)"
    )]
    pub file: Option<PathBuf>,

    /// Give up at once (exit 75) if another has control
    #[arg(short = 'n', long, env = "TRAFFICCOP_NO_WAIT", help_heading = "Waiting for control", value_parser = BoolishValueParser::new())]
    pub no_wait: bool,

    /// Give up (exit 75) if control was not obtained within this time [default: wait for ever]
    #[arg(
        short = 'w',
        long,
        value_name = "D",
        env = "TRAFFICCOP_WAIT",
        help_heading = "Waiting for control"
    )]
    pub wait: Option<String>,

    /// Exit with N instead of 75 when control was not obtained
    ///
    /// 0 keeps cron quiet on the machines that have nothing to do.
    #[arg(
        short = 'E',
        long,
        value_name = "N",
        env = "TRAFFICCOP_CONFLICT_EXIT_CODE",
        help_heading = "Waiting for control"
    )]
    pub conflict_exit_code: Option<String>,

    /// Let at most N instances have control at the same time [default: 1]
    ///
    /// The slots are locks of their own: NAME.0 to NAME.N-1, or PATH.0 and so on. All instances must
    /// name the same N (1 to 1000). A standby begins at a random slot and looks at up to four with
    /// each poll (with -n at all of them), on a file too. The command finds the number of its slot in TRAFFICCOP_SLOT.
    #[arg(
        long,
        value_name = "N",
        env = "TRAFFICCOP_SLOTS",
        help_heading = "The lock (exactly one)"
    )]
    pub slots: Option<String>,

    /// How often a standby looks at the lock (±20 %) [default: 2s]
    ///
    /// For --blob, --slots and network drives; a file's lock wakes its waiter by itself otherwise. While the holder drains, a standby
    /// looks four times a second.
    #[arg(
        long,
        value_name = "D",
        env = "TRAFFICCOP_POLL",
        help_heading = "Waiting for control"
    )]
    pub poll: Option<String>,

    /// How long the store keeps the lock for a holder it does not hear of [default: 60s]
    ///
    /// 15s to 60s for --blob. This is what a fail-over costs after the death of a whole machine;
    /// the death of the command or of trafficcop alone costs nothing of it. It is renewed every
    /// third of it. On a network drive it must be shorter than the file server's own lease
    /// (90 seconds on Linux unless configured).
    #[arg(
        long,
        value_name = "D",
        env = "TRAFFICCOP_LEASE",
        help_heading = "Time"
    )]
    pub lease: Option<String>,

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

    /// From the stop signal to SIGKILL when the lease could not be renewed
    ///
    /// It is taken out of the lease, so that the command is gone before others can have control.
    /// By default it grows with the lease: 10s of 60s, 5s of 30s, 3s of 15s.
    #[arg(
        long,
        value_name = "D",
        env = "TRAFFICCOP_GRACE_ON_LOSS",
        help_heading = "Time"
    )]
    pub grace_on_loss: Option<String>,

    /// Between SIGKILL and the end of the lease
    ///
    /// By default it grows with the lease: 2s of 60s, 1s of 30s and less.
    #[arg(
        long,
        value_name = "D",
        env = "TRAFFICCOP_MARGIN",
        help_heading = "Time"
    )]
    pub margin: Option<String>,

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

    /// What to do after control was lost
    ///
    /// A guardian that died or fell silent is the end whatever is said here: the tree is killed, the lock
    /// given back, the exit status 70. A new guardian cannot be made.
    #[arg(
        long,
        value_name = "WHAT",
        env = "TRAFFICCOP_IF_LOST",
        value_enum,
        default_value_t,
        help_heading = "The command"
    )]
    pub if_lost: IfLost,

    /// Restarts, and handing control round.
    #[command(flatten)]
    pub habits: Habits,

    /// Use the well-known account of Azurite, the storage emulator, on this machine
    #[arg(long, env = "TRAFFICCOP_EMULATOR", help_heading = "With --blob", value_parser = BoolishValueParser::new())]
    pub emulator: bool,

    /// Create neither container nor blob; refuse if one is missing
    #[arg(long, env = "TRAFFICCOP_NO_CREATE", help_heading = "With --blob", value_parser = BoolishValueParser::new())]
    pub no_create: bool,

    /// Create a page blob of SIZE bytes (K, M, G, T) instead of an empty block blob
    ///
    /// A multiple of 512; 512 if no size is given. An empty page blob costs nothing.
    #[arg(long, value_name = "SIZE", env = "TRAFFICCOP_PAGE_BLOB", num_args = 0..=1, require_equals = true, default_missing_value = "512", help_heading = "With --blob")]
    pub page_blob: Option<String>,

    /// Prove again and again that the file's lock is still ours [default: auto]
    ///
    /// auto does so on network drives, where a lock can be lost without a word.
    #[arg(
        long,
        value_name = "WHEN",
        env = "TRAFFICCOP_HEARTBEAT",
        value_enum,
        help_heading = "With --file"
    )]
    pub heartbeat: Option<Heartbeat>,

    /// How this instance is called in the log and in the lock's record [default: HOST-PID]
    #[arg(
        long,
        value_name = "S",
        env = "TRAFFICCOP_IDENTITY",
        help_heading = "Being operated"
    )]
    pub identity: Option<String>,

    /// Keep a JSON file with the present state, replaced at every change
    #[arg(
        long,
        value_name = "F",
        env = "TRAFFICCOP_STATUS_FILE",
        value_parser = path(),
        help_heading = "Being operated"
    )]
    pub status_file: Option<PathBuf>,

    /// How the log on stderr is written
    #[arg(
        long,
        value_name = "FORMAT",
        env = "TRAFFICCOP_LOG",
        value_enum,
        default_value_t,
        help_heading = "Being operated"
    )]
    pub log: Log,

    /// The event log, and how much the log says.
    #[command(flatten)]
    pub telling: Telling,

    /// Log only warnings and errors
    #[arg(short, long, env = "TRAFFICCOP_QUIET", help_heading = "Being operated", value_parser = BoolishValueParser::new())]
    pub quiet: bool,

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

/// What to do after control was lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum IfLost {
    /// Stand by again
    #[default]
    Compete,
    /// Exit 70 (or 71 if an overlap cannot be excluded)
    Exit,
}

/// When a file's lock is proved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Heartbeat {
    /// On network drives
    Auto,
    /// Always
    On,
    /// Never
    Off,
}

/// How the log is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Log {
    /// One plain line for each change of state
    #[default]
    Text,
    /// One JSON object a line
    Json,
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
        "TRAFFICCOP_CONTROL",
        "a file of eight bytes that tells until when the command is in control: nanoseconds of CLOCK_BOOTTIME as a native-endian unsigned number, 0 when it is not, the greatest number when the lock has no deadline. Empty if no file could be made. 'trafficcop check' reads it",
    ),
];

/// Where credentials for --blob come from.
pub const FOR_THE_STORE: &[(&str, &str)] = &[
    (
        "AZURE_STORAGE_CONNECTION_STRING",
        "a connection string as the portal shows it; UseDevelopmentStorage=true means Azurite",
    ),
    (
        "AZURE_STORAGE_ACCOUNT",
        "the account's name, with one of the next two",
    ),
    ("AZURE_STORAGE_KEY", "the account's key"),
    (
        "AZURE_STORAGE_SAS_TOKEN",
        "a shared access signature (read, write, create and, for a missing container, create container)",
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

/// clap's own parser has its say about an empty path; the plan's is the better one.
fn path() -> impl TypedValueParser<Value = PathBuf> {
    OsStringValueParser::new().map(PathBuf::from)
}

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

/// Two columns of text: a name and its meaning.
type Rows<'a> = &'a [(&'a str, &'a str)];

fn with_examples(examples: Rows<'_>, lists: &[(&str, Rows<'_>)]) -> String {
    let mut text = String::from("Examples:\n");
    for (what, command) in examples {
        let _ = write!(text, "  {what}\n      {command}\n");
    }
    for (title, rows) in lists {
        let width = rows.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
        let _ = writeln!(text, "\n{title}:");
        for (name, meaning) in *rows {
            // clap wraps long lines, but knows nothing of columns.
            let mut line = format!("  {name:width$} ");
            for word in meaning.split(' ') {
                if line.len() + 1 + word.len() > WIDTH {
                    let _ = writeln!(text, "{line}");
                    line = " ".repeat(width + 3);
                }
                line.push(' ');
                line.push_str(word);
            }
            let _ = writeln!(text, "{line}");
        }
    }
    text
}

/// The command line's definition. The help names a flag's variable, never its value; a variable
/// that is empty counts as unset: `TRAFFICCOP_IDENTITY=` in a unit's file means "not set".
#[must_use]
pub fn definition() -> clap::Command {
    let set = |arg: clap::Arg| match arg.get_env().map(std::env::var_os) {
        Some(Some(value)) if value.is_empty() => arg.env(None::<&'static str>),
        Some(_) => arg.hide_env_values(true),
        None => arg,
    };
    Cli::command().mut_subcommand("run", |run| run.mut_args(set))
}

/// Parses a command line, the program's name first.
///
/// # Errors
/// What clap has to say: also the text of `--help` and `--version` (see
/// [`clap::Error::use_stderr`]).
pub fn parse(line: impl IntoIterator<Item = OsString>) -> Result<Cli, clap::Error> {
    let matches = definition().try_get_matches_from(line)?;
    Cli::from_arg_matches(&matches)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn typed(line: &str) -> Result<Run, clap::Error> {
        let words = line.split_whitespace().map(OsString::from);
        let line = [OsString::from("trafficcop"), "run".into()]
            .into_iter()
            .chain(words);
        parse(line).map(|cli| match cli.verb {
            Verb::Run(run) => *run,
            other => panic!("not a run: {other:?}"),
        })
    }

    #[test]
    fn the_definition_is_sound() {
        definition().debug_assert();
    }

    #[test]
    fn every_flag_has_its_variable() {
        let definition = definition();
        let run = definition.find_subcommand("run").unwrap();
        for arg in run.get_arguments() {
            let Some(long) = arg.get_long().filter(|long| *long != "help") else {
                continue;
            };
            let variable = format!("TRAFFICCOP_{}", long.to_uppercase().replace('-', "_"));
            assert_eq!(arg.get_env().unwrap().to_str(), Some(&*variable));
            assert!(
                arg.is_hide_env_values_set(),
                "{long} shows its variable's value"
            );
        }
    }

    #[test]
    fn the_command_s_flags_are_the_command_s() {
        for line in [
            "--file x -- job -n --file y -- z",
            "--file x job -n --file y -- z",
        ] {
            let run = typed(line).unwrap();
            assert_eq!(run.file.as_deref(), Some("x".as_ref()), "{line}");
            assert!(!run.no_wait, "{line}");
            assert_eq!(
                run.command,
                ["job", "-n", "--file", "y", "--", "z"],
                "{line}"
            );
        }
    }

    #[test]
    fn a_page_blob_s_size_never_swallows_the_command() {
        assert_eq!(
            typed("--page-blob job").unwrap().page_blob.as_deref(),
            Some("512")
        );
        assert_eq!(
            typed("--page-blob=1M job").unwrap().page_blob.as_deref(),
            Some("1M")
        );
        assert_eq!(typed("job").unwrap().page_blob, None);
    }

    #[test]
    fn nothing_required_is_asked_for_by_clap() {
        assert!(typed("").unwrap().command.is_empty());
        assert!(typed("--no-such-flag").is_err());
    }
}
