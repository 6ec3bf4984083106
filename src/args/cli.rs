//! The command line's definition, and how it is parsed.

use std::cell::Cell;
use std::ffi::OsString;
use std::fmt::Write as _;

use clap::builder::{BoolishValueParser, StyledStr};
use clap::error::ErrorKind;
use clap::{ArgAction, ArgMatches, Args as _, CommandFactory, FromArgMatches, Parser, Subcommand};

use super::{
    Announce, Break, Check, Completions, Doctor, EXAMPLES, Elect, FOR_THE_COMMAND, FOR_THE_MESSAGE,
    FindLocked, List, Man, Reset, Run, Status, Timeline, WORK_EXAMPLES, Watch, Work, elect,
    relations::{Given, without_variables},
};

/// Greatest width of help, in columns.
const WIDTH: usize = 100;
/// Width that every terminal has, in columns.
const NARROW: usize = 80;

/// Run a command on many machines, on at most one at a time.
///
/// Many machines start trafficcop with the same lock; the command runs on at most one of them at a
/// time. The others stand by and take over when the holder ends, is stopped, crashes or is cut off. No
/// process of the command's tree lives at a moment when another instance could already have been given
/// control.
#[derive(Debug, Parser)]
#[command(
    name = "trafficcop",
    version,
    max_term_width = WIDTH,
    subcommand_required = true,
    // `parse` answers it.
    disable_help_subcommand = true,
    subcommand_value_name = "COMMAND",
    subcommand_help_heading = "Commands"
)]
#[command(after_help = after_help())]
pub struct Cli {
    /// Command that was typed.
    #[command(subcommand)]
    pub verb: Verb,
}

/// Commands of trafficcop.
#[derive(Debug, Subcommand)]
pub enum Verb {
    /// Run a command while, and only while, this instance holds the lock
    ///
    /// Waits for the lock, runs COMMAND, gives the lock back. If control is lost, trafficcop stops the
    /// command (SIGTERM, a grace period, SIGKILL to its whole process tree) before another instance can
    /// have been given control. trafficcop is two processes: the supervisor, and the guardian, which stops
    /// the command if the supervisor dies.
    ///
    /// Durations are written 500ms, 10s, 1m30s, 2h or 1d; a bare number is seconds.
    Run(Box<Run>),

    /// Run a command for each message of a queue
    ///
    /// Takes a message, runs COMMAND with its exact body on stdin, keeps the message locked while COMMAND
    /// runs, and settles it by the command's exit status: done, retried, or dead-lettered. If the lock is
    /// lost, trafficcop kills the command before another instance can have been given the message.
    ///
    /// A message can come more than once, for example when a worker died before it could settle it. A
    /// command that must not do a thing twice remembers TRAFFICCOP_MESSAGE_ID. Durations are written 500ms,
    /// 10s, 1m30s, 2h or 1d; a bare number is seconds.
    Work(Box<Work>),

    /// Report on stdout who is in control, instead of running a command
    ///
    /// Competes as 'run' does, and prints one line for each change: 'holder TOKEN' while this instance has
    /// control, 'standby HOLDER' while it does not ('unknown' if the holder is not known). A script or a
    /// program reads these lines through a pipe, and itself starts and stops its part.
    ///
    /// trafficcop prints 'standby' while no other instance can have control yet. The reader then has
    /// --grace-on-loss to stop if the lease cannot be renewed, and --grace if a stop was requested or
    /// control is handed over. 'standby' is also printed if trafficcop is killed or stopped. The end of the
    /// output means 'standby'.
    ///
    /// A line 'holder' was true when it was written. trafficcop does not stop the reader: a reader that
    /// must not overlap checks before each step whether there is still time (--control-file), or uses the
    /// fencing token. When the reader closes the pipe, the lock is given back at once.
    Elect(Box<Elect>),

    /// Tell the reader of `elect` (what its guardian starts).
    #[command(hide = true)]
    Announce(Announce),

    /// Ask, from inside a command, whether it may begin another piece of work
    ///
    /// For scripts that trafficcop runs: exits 0 while the command is in control and nothing has asked
    /// it to stop, and 1 otherwise. The answer is 1 before the first signal of a stop is sent.
    ///
    /// A piece that was allowed and that fits into the smaller of --grace and --remaining is never cut short,
    /// but for the loss of the lease, a second stop signal, or the guardian's death. For that the signal
    /// must not end the piece: run the command with --stop-to main, or let the piece ignore the signal.
    ///
    /// It asks no store and no other process, only a small file that the guardian keeps (see
    /// TRAFFICCOP_CONTROL), so it can be asked as often as you like.
    Check(Check),

    /// Show who has a lock, and since when
    ///
    /// Reads only: it creates, acquires and disturbs nothing. The store (for a file, the kernel) tells
    /// whether the lock is held; the rest comes from the record that the holder left with the lock.
    Status(Status),

    /// List the locks of a container or a directory
    ///
    /// Shows the blobs and files that have a record of trafficcop, held or free. Changes nothing.
    List(List),

    /// Write a line for each change of a lock
    ///
    /// Polls as often as a standby does, so it can miss a change that lasts shorter than --poll; the
    /// fencing token shows that. Ends at Ctrl-C, or when its reader closes the pipe.
    Watch(Watch),

    /// Break another instance's lease
    ///
    /// Works on a blob and on a shared drive. Shows what will happen to the holder, and asks for
    /// confirmation. The holder learns of it with its next renewal, stops its command, and competes again
    /// (unless it runs with --if-lost exit). If the record changes while you decide, nothing is broken. The
    /// kernel keeps a lock on a local file: that cannot be broken.
    Break(Break),

    /// Forget that a task is done
    ///
    /// The next 'run --once' that gets control runs the task again. Shows what is known of the task, and
    /// asks for confirmation. The result is removed under the lock itself, and only while the lock is free,
    /// so a reset cannot come between a run and its result. The fencing token and the rest of the record
    /// stay as they are.
    Reset(Reset),

    /// Check that this machine has what run needs
    ///
    /// Each line is ok, warn or fail, with what to do or what follows. Tests that write use a blob or a file of their
    /// own beside the lock, NAME.trafficcop-doctor-RANDOM, and delete it afterwards. In a helper's store the entry
    /// NAME.trafficcop-doctor stays. The lock itself is only read.
    Doctor(Doctor),

    /// Say whether a file is locked (the second process of doctor)
    #[command(hide = true)]
    FindLocked(FindLocked),

    /// Show who held control when, from event logs
    ///
    /// Merges the files that any number of instances wrote with --event-log. For each lock it prints who
    /// held control when, and when no instance did. Exit status 1 means that two instances had control at
    /// the same time, or that one broke a rule which keeps two apart: the fencing token grows with every
    /// tenure, the command's deadline lies before the end of the lease, no process of the command outlives
    /// the lease, and the lease is given back only after the command's process tree is empty. An incomplete
    /// last line, a clock that was set, and an instance that was killed before it could log its end are
    /// reported and do no harm.
    Timeline(Timeline),

    /// Write a script that completes command lines in a shell
    ///
    /// Packages install these scripts; this command is for trafficcop built from source.
    Completions(Completions),

    /// Write the manual pages
    ///
    /// Packages install them; this command is for those who have only the binary. man finds 'man
    /// trafficcop-run' and the others if the directory is in its search path (manpath prints it), else with
    /// 'man -M DIR trafficcop-run'.
    Man(Man),
}

impl Verb {
    /// Returns whether variables set its flags. Not for commands that run inside a command, again and again, nor
    /// for those that trafficcop itself starts.
    #[must_use]
    pub fn reads_settings(&self) -> bool {
        !matches!(
            self,
            Verb::Announce(_) | Verb::Check(_) | Verb::FindLocked(_)
        )
    }
}

/// Two columns of text: a name and its meaning.
pub(super) type Rows<'a> = &'a [(&'a str, &'a str)];

thread_local! {
    /// Whether help will be shown; without it long texts need not be laid out.
    static BRIEF: Cell<bool> = const { Cell::new(false) };
}

pub(super) fn with_examples(examples: Rows<'_>, lists: &[(&str, Rows<'_>)]) -> String {
    // The layout costs a tenth of the instructions of a start (measured).
    if BRIEF.get() {
        return String::new();
    }
    let mut text = String::from("Examples:\n");
    for (what, command) in examples {
        let _ = write!(text, "  {what}\n      {command}\n");
    }
    for (title, rows) in lists {
        let width = rows.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
        let _ = writeln!(text, "\n{title}:");
        for (name, meaning) in *rows {
            // clap wraps long lines, but knows no columns.
            let mut line = format!("  {name:width$} ");
            for word in meaning.split(' ') {
                if line.len() + 1 + word.len() > NARROW {
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

/// Returns the part of `-h` below the flags: three examples that fit into a terminal's width.
pub(super) fn in_short(examples: Rows<'_>) -> String {
    if BRIEF.get() {
        return String::new();
    }
    let fits = |command: &&str| command.len() + 2 <= NARROW;
    let commands = examples.iter().map(|(_, command)| *command).filter(fits);
    let lines = commands.take(3).map(|command| format!("  {command}\n"));
    lines.fold(String::from("Examples:\n"), |text, line| text + &line)
}

fn after_help() -> String {
    let (_, once) = EXAMPLES[0];
    let (_, service) = EXAMPLES[3];
    let (_, queue) = WORK_EXAMPLES[0];
    format!(
        "Examples:
  A line in the crontab of ten machines; one of them runs it each day.
  Days meet at midnight UTC: start the job well before or after that hour.
    {once}
  A service that runs on one machine and moves when that machine fails:
    {service}
  A command for each message of a queue, four at a time:
    {queue}

'trafficcop COMMAND -h' shows the usual flags, 'trafficcop help COMMAND' all."
    )
}

/// Adds the help flag below the others, and tells how variables set flags.
fn with_its_help(verb: clap::Command) -> clap::Command {
    let flags = verb.get_arguments().filter(|arg| arg.get_long().is_some());
    let (with, without): (Vec<_>, Vec<_>) = flags.partition(|arg| arg.get_env().is_some());
    let without = without.iter().filter_map(|arg| arg.get_long());
    let without: Vec<String> = without.map(|long| format!("--{long}")).collect();
    let but = match without.is_empty() {
        true => String::new(),
        false => format!(" but {}", without.join(" and ")),
    };
    let variables = match with.is_empty() {
        true => String::new(),
        false => format!(
            "\nEvery --flag-name{but} has a variable, TRAFFICCOP_FLAG_NAME; a typed flag wins."
        ),
    };
    let is_span = |arg: &clap::Arg| arg.get_value_names().is_some_and(|names| names == ["D"]);
    let spans = match verb.get_arguments().any(is_span) {
        true => "\nD is a duration: 500ms, 10s, 1m30s, 2h or 1d; a bare number is seconds.",
        false => "",
    };
    let text = |help: Option<&StyledStr>| help.map(ToString::to_string).unwrap_or_default();
    let name = verb.get_name();
    let more = format!("\nAll flags and more examples: 'trafficcop {name} --help'");
    let short = text(verb.get_after_help()) + &variables + spans + &more;
    let long = text(verb.get_after_long_help()) + &variables;
    // Without a heading it would stand alone before all of them.
    let is_operated = verb.get_arguments().any(|arg| arg.get_id() == "quiet");
    let heading = is_operated.then_some("Being operated");
    verb.disable_help_flag(true)
        .arg(
            clap::Arg::new("help")
                .short('h')
                .long("help")
                .action(ArgAction::Help)
                .help("Print a summary; --help prints everything")
                .help_heading(heading),
        )
        .after_help(short)
        .after_long_help(long)
}

/// Returns the command line's definition.
#[must_use]
pub fn definition() -> clap::Command {
    Cli::command()
        // A script that adds "$@" to its own flags lets its caller override them.
        .args_override_self(true)
        .mut_subcommand("elect", elect::in_its_words)
        .mut_subcommands(|verb| with_its_help(with_its_variables(verb)).mut_args(not_empty))
}

/// Verbs without variables: a unit or a crontab sets nothing of these, or a command runs them again and again.
const WITHOUT_VARIABLES: [&str; 6] = [
    "announce",
    "check",
    "completions",
    "find-locked",
    "man",
    "timeline",
];

/// Flags without variables: ending another instance's tenure must be typed each time.
const TYPED_EACH_TIME: [&str; 2] = ["yes", "period"];

/// Gives every `--flag-name` its variable, `TRAFFICCOP_FLAG_NAME`.
fn with_its_variables(verb: clap::Command) -> clap::Command {
    if WITHOUT_VARIABLES.contains(&verb.get_name()) {
        return verb;
    }
    verb.mut_args(|arg| {
        let long = arg.get_long();
        let Some(long) = long.filter(|long| !TYPED_EACH_TIME.contains(long)) else {
            return arg;
        };
        let name = PREFIX.to_owned() + &long.to_uppercase().replace('-', "_");
        let arg = match arg.get_action() {
            ArgAction::SetTrue => arg.value_parser(BoolishValueParser::new()),
            _ => arg,
        };
        // clap wants a static name. A URL with a SAS is a secret, and help is pasted into tickets. The help names
        // variables once.
        let arg = arg.env(&*name.leak());
        arg.hide_env_values(true).hide_env(true)
    })
}

/// Treats an empty variable as unset: `TRAFFICCOP_IDENTITY=` in a unit's file means that.
fn not_empty(arg: clap::Arg) -> clap::Arg {
    match arg.get_env().and_then(std::env::var_os) {
        Some(value) if value.is_empty() => arg.env(None::<&'static str>),
        _ => arg,
    }
}

/// Parses a command line, the program's name first.
///
/// # Errors
/// Those of [`settled`].
pub fn parse(line: impl IntoIterator<Item = OsString>) -> Result<Cli, clap::Error> {
    let line = without_help(line.into_iter().collect());
    // Crontabs and units start `run` again and again, and the definitions of the other verbs are costly. Errors and
    // help need the whole definition.
    if line.get(1).is_some_and(|verb| verb == "run")
        && let Ok(matches) = settled(parsed_alone, &line[1..])
        && let Ok(run) = Run::from_arg_matches(&matches)
    {
        let verb = Verb::Run(Box::new(run));
        return Ok(Cli { verb });
    }
    Cli::from_arg_matches(&settled(definition, &line)?)
}

/// Returns the values of a line, after typed flags have beaten the variables that they exclude.
///
/// # Errors
/// Those of clap, also the text of `--help` and `--version` (see [`clap::Error::use_stderr`]). A contradiction is one
/// of the kind [`ErrorKind::ArgumentConflict`], whose text is the whole refusal.
pub fn settled(
    define: impl Fn() -> clap::Command,
    line: &[OsString],
) -> Result<ArgMatches, clap::Error> {
    let mut definition = define();
    let mut matches = definition.try_get_matches_from_mut(line)?;
    let beaten = Given::new(&definition, &matches).beaten();
    // Parsed again, because nothing can be removed from clap's matches. A copy kept for this case would cost every
    // start.
    if !beaten.is_empty() {
        matches = without_variables(define(), &beaten).try_get_matches_from(line)?;
    }
    match Given::new(&definition, &matches).refusal() {
        Some(refusal) => Err(clap::Error::raw(ErrorKind::ArgumentConflict, refusal)),
        None => Ok(matches),
    }
}

/// Turns `trafficcop help COMMAND` into `trafficcop COMMAND --help`.
fn without_help(mut line: Vec<OsString>) -> Vec<OsString> {
    if line.get(1).is_some_and(|word| word == "help") {
        line.retain(|word| !["help", "-h", "--help"].iter().any(|help| word == help));
        line.truncate(2);
        line.push("--help".into());
    }
    line
}

const PREFIX: &str = "TRAFFICCOP_";
/// Variable with the address of a metadata service's stand-in, for tests.
pub(crate) const EVENTS_ENDPOINT: &str = "TRAFFICCOP_SCHEDULED_EVENTS_ENDPOINT";

/// Returns the variables with trafficcop's prefix that are neither a setting nor set for a command. Their values
/// are not read.
pub fn unknown(variables: impl IntoIterator<Item = OsString>) -> Vec<String> {
    let told = FOR_THE_COMMAND.iter().chain(FOR_THE_MESSAGE);
    let told: Vec<&str> = told
        .flat_map(|(names, _)| names.split(", "))
        .chain([EVENTS_ENDPOINT])
        .collect();
    let mut unknown: Vec<String> = variables
        .into_iter()
        // trafficcop's variables are ASCII.
        .filter_map(|name| name.into_string().ok())
        .filter(|name| name.starts_with(PREFIX) && !told.contains(&&**name))
        .collect();
    let leave_out = |unknown: &mut Vec<String>, verb: &clap::Command| {
        unknown.retain(|name| {
            let is_it = |arg: &clap::Arg| arg.get_env().is_some_and(|env| env == &**name);
            !verb.get_arguments().any(is_it)
        });
    };
    // Most are of run. All definitions cost as much as everything else before the guardian.
    if !unknown.is_empty() {
        leave_out(&mut unknown, &run_alone());
    }
    if !unknown.is_empty() {
        for verb in Cli::command().get_subcommands() {
            leave_out(&mut unknown, &with_its_variables(verb.clone()));
        }
    }
    unknown.sort();
    unknown
}

fn run_alone() -> clap::Command {
    BRIEF.set(true);
    let definition = Run::augment_args(clap::Command::new("run"));
    BRIEF.set(false);
    with_its_variables(definition)
}

fn parsed_alone() -> clap::Command {
    run_alone().args_override_self(true).mut_args(not_empty)
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
    fn every_flag_has_its_variable_but_those_that_are_typed_each_time() {
        let definition = definition();
        let of = |verb: &str, flag: &str| {
            let mut flags = definition.find_subcommand(verb)?.get_arguments();
            let arg = flags.find(|arg| arg.get_long() == Some(flag))?;
            assert!(arg.is_hide_env_values_set() || arg.get_env().is_none());
            arg.get_env()?.to_str()
        };
        assert_eq!(of("run", "no-wait"), Some("TRAFFICCOP_NO_WAIT"));
        assert_eq!(of("run", "if"), Some("TRAFFICCOP_IF"));
        assert_eq!(of("reset", "once-key"), Some("TRAFFICCOP_ONCE_KEY"));
        for (verb, flag) in [
            ("reset", "yes"),
            ("break", "period"),
            ("run", "help"),
            ("check", "wait"),
            ("timeline", "skew"),
            ("announce", "json"),
        ] {
            assert_eq!(of(verb, flag), None, "{verb} --{flag}");
        }
    }

    #[test]
    fn variables_of_the_command_are_no_settings() {
        let definition = definition();
        let told = FOR_THE_COMMAND.iter().chain(FOR_THE_MESSAGE);
        for name in told.flat_map(|(names, _)| names.split(", ")) {
            for arg in definition
                .get_subcommands()
                .flat_map(clap::Command::get_arguments)
            {
                assert_ne!(arg.get_env(), Some(name.as_ref()), "{name}");
            }
        }
    }

    #[test]
    fn a_variable_that_nobody_reads_is_found() {
        let names = [
            "TRAFFICCOP_GRCE",
            "TRAFFICCOP_GRACE",
            "TRAFFICCOP_SHARED",
            "TRAFFICCOP_QUEUE",
            "TRAFFICCOP_TOKEN",
            "TRAFFICCOP_MESSAGE_DIR",
            "TRAFFICCOP_YES",
            "PATH",
        ];
        assert_eq!(
            unknown(names.map(OsString::from)),
            ["TRAFFICCOP_GRCE", "TRAFFICCOP_YES"]
        );
        assert!(unknown(["HOME".into(), "TRAFFICCOP_GRACE".into()]).is_empty());
    }

    #[test]
    fn last_of_a_repeated_flag_counts() {
        let run = typed("--file a -n --grace 5 --file b -n --grace 6 -- job --x --x").unwrap();
        assert_eq!(run.common.file.as_deref(), Some("b".as_ref()));
        assert_eq!(run.grace, Some(Ok(std::time::Duration::from_secs(6))));
        assert!(run.common.no_wait);
        assert_eq!(run.command, ["job", "--x", "--x"]);
        let line = ["trafficcop", "status", "--file", "a", "--file", "b"];
        let Verb::Status(status) = parse(line.map(OsString::from)).unwrap().verb else {
            panic!("it is status");
        };
        assert_eq!(status.lock.file.as_deref(), Some("b".as_ref()));
    }

    #[test]
    fn the_command_s_flags_are_the_command_s() {
        for line in [
            "--file x -- job -n --file y -- z",
            "--file x job -n --file y -- z",
        ] {
            let run = typed(line).unwrap();
            assert_eq!(run.common.file.as_deref(), Some("x".as_ref()), "{line}");
            assert!(!run.common.no_wait, "{line}");
            assert_eq!(
                run.command,
                ["job", "-n", "--file", "y", "--", "z"],
                "{line}"
            );
        }
    }

    #[test]
    fn a_page_blob_s_size_never_swallows_the_command() {
        let size = |line: &str| typed(line).unwrap().common.page_blob;
        assert_eq!(size("--page-blob job"), Some(Ok(512)));
        assert_eq!(size("--page-blob=1M job"), Some(Ok(1 << 20)));
        assert_eq!(size("job"), None);
    }

    #[test]
    fn no_argument_is_required_by_clap() {
        assert!(typed("").unwrap().command.is_empty());
        assert!(typed("--no-such-flag").is_err());
    }
}
