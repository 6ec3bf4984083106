//! Flags and help of the commands that need no store, and of `reset`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use clap_complete::{Shell, generate};

use super::values::{Checked, checked, duration, path};
use super::{Rows, TheLock, definition, in_short, with_examples};

/// Forget what is done.
#[derive(Clone, Debug, Args)]
#[command(after_help = in_short(RESET_EXAMPLES),
    override_usage = "trafficcop reset --blob NAME|--file PATH|--store NAME [OPTIONS]",
    after_long_help = with_examples(RESET_EXAMPLES, &[("Exit status", RESET_STATUS)]))]
pub struct Reset {
    /// Which lock.
    #[command(flatten)]
    pub lock: TheLock,

    /// The task to forget [default: the only one there is]
    ///
    /// With and without periods (--once-per).
    #[arg(long, value_name = "K")]
    pub once_key: Option<String>,

    /// Forget all tasks of this lock, and results that cannot be read
    #[arg(long)]
    pub all: bool,

    /// Forget it although the lock is held; on a blob this breaks the lease and stops the holder's command
    ///
    /// On a local file the holder goes on undisturbed; on a shared drive trafficcop refuses. On a blob no
    /// other instance can write while the lease is held, so trafficcop breaks the lease, as 'trafficcop
    /// break' does. The holder stops its command within its lease, and that run counts as not done.
    #[arg(long)]
    pub force: bool,

    /// Do not ask for confirmation
    #[arg(short, long)]
    pub yes: bool,
}

/// Every exit status of `trafficcop reset`.
pub const RESET_STATUS: Rows<'_> = rows! {
    "0" => "the result is forgotten",
    "1" => "nothing was forgotten: there is no such result, an instance has the lock, the record \
        changed meanwhile, or the answer was no",
    "64" => "bad usage; several tasks and neither --once-key nor --all; or no terminal to ask on \
        and no --yes",
    "69" => "the store is out of reach or refuses: it is not known whether the result was \
        forgotten",
    "77" => "not authorised, or no permission",
};

/// Commands to copy for `trafficcop reset`.
pub const RESET_EXAMPLES: Rows<'_> = rows! {
    "Have the migration run once more:" => "trafficcop reset --blob locks/migrate --once-key v7",
    "From a script, everything that was done under this lock:" =>
        "trafficcop reset --all --yes --file /mnt/share/nightly.lock",
};

/// Flags of `trafficcop check`.
#[derive(Clone, Debug, Args)]
#[command(after_help = in_short(CHECK_EXAMPLES),
    after_long_help = with_examples(CHECK_EXAMPLES, &[("Exit status", CHECK_STATUS)]))]
pub struct Check {
    /// Ask only whether the command is in control, even if it is being stopped
    ///
    /// The command is in control until it has ended or its lease is in doubt. A requested stop and a
    /// hand-over do not change that.
    #[arg(long)]
    pub control: bool,

    /// Print the whole seconds until trafficcop may send SIGKILL
    ///
    /// Before a stop it is the time until the lease's deadline, 18446744073 if the lock has none. Then it does
    /// not include --grace, and goes up with each renewal. Once a stop has begun it is the rest of the grace,
    /// or the time until the lease's deadline if that is earlier. The flag does not change the exit status.
    #[arg(long)]
    pub remaining: bool,

    /// Wait up to D: exit 1 as soon as the answer is no, else 0 after D
    ///
    /// It exits within a tenth of a second after a stop was requested or control was lost.
    #[arg(long, value_name = "D", value_parser = checked(duration))]
    pub wait: Option<Checked<Duration>>,
}

/// Every exit status of `trafficcop check` and what it means.
pub const CHECK_STATUS: Rows<'_> = rows! {
    "0" => "the command may begin another piece of work; with --control: it is in control",
    "1" => "it may not: a stop, a hand-over or another drain has begun, or control is lost; with \
        --control: control is lost or in doubt",
    "64" => "asked outside of a command, or bad usage",
    "69" => "the control file cannot be read",
};

/// Commands to copy for `trafficcop check`.
pub const CHECK_EXAMPLES: Rows<'_> = rows! {
    "A worker that finishes the piece in hand (with --grace 30s --stop-to main):" =>
        "while trafficcop check --wait 5s; do ./next-piece; done; echo safe",
    "Begin a step only if there is time for it:" =>
        "left=$(trafficcop check --remaining) && [ \"$left\" -ge 20 ] && ./step-of-20-seconds",
    "See whether a clean-up still fits into what is left of the grace:" =>
        "[ \"$(trafficcop check --remaining)\" -ge 5 ] && ./clean-up",
};

/// Flags of `trafficcop timeline`.
#[derive(Clone, Debug, Args)]
#[command(after_help = in_short(TIMELINE_EXAMPLES),
    after_long_help = with_examples(TIMELINE_EXAMPLES, &[("Exit status", TIMELINE_STATUS)]))]
pub struct Timeline {
    /// The event logs, in any order; - for stdin
    #[arg(value_name = "FILE", value_parser = path())]
    pub files: Vec<PathBuf>,

    /// Print JSON instead of a table
    #[arg(long)]
    pub json: bool,

    /// Also draw it, as an SVG in this file
    #[arg(long, value_name = "OUT", value_parser = path())]
    pub svg: Option<PathBuf>,

    /// Largest difference between the wall clocks of two machines
    ///
    /// A shorter overlap between two machines is shown, but proves nothing and is not counted. On one
    /// machine there is one clock, and every overlap counts.
    #[arg(long, value_name = "D", default_value = "100ms", value_parser = checked(duration))]
    pub skew: Checked<Duration>,
}

/// Every exit status of `trafficcop timeline` and what it means.
pub const TIMELINE_STATUS: Rows<'_> = rows! {
    "0" => "no two instances had control at the same time, and no rule was broken",
    "1" => "two had control at the same time, one reports that it cannot exclude that, or a rule \
        was broken",
    "64" => "bad usage",
    "69" => "a file cannot be read or written, or there is no event in any of them",
};

/// Commands to copy for `trafficcop timeline`.
pub const TIMELINE_EXAMPLES: Rows<'_> = rows! {
    "Who held control when, from the logs of three machines, with a picture:" =>
        "trafficcop timeline --svg control.svg web1.events web2.events web3.events",
    "The longest time without a holder, in seconds:" =>
        "trafficcop timeline --json *.events | jq '[.locks[].gaps[].seconds] | max'",
};

/// Shell that completions are for.
#[derive(Clone, Debug, Args)]
#[command(after_help = in_short(COMPLETIONS_EXAMPLES),
    after_long_help = with_examples(COMPLETIONS_EXAMPLES, &[("Exit status", COMPLETIONS_STATUS)]))]
pub struct Completions {
    /// The shell
    #[arg(value_enum)]
    pub shell: Shell,
}

impl Completions {
    /// The script for this shell.
    #[must_use]
    pub fn script(&self) -> String {
        let mut script = Vec::new();
        generate(self.shell, &mut shown(), "trafficcop", &mut script);
        let script = String::from_utf8_lossy(&script).into_owned();
        match self.shell {
            Shell::Bash => script.replacen("    cmd=\"\"\n", &format!("{BASH}    cmd=\"\"\n"), 1),
            Shell::Fish => script + FISH,
            _ => script,
        }
    }
}

/// Completes the words after `--` as a command line of its own, which clap's script does for zsh alone.
const BASH: &str = "    for (( i = 1; i < COMP_CWORD; i++ )); do
        if [[ ${COMP_WORDS[i]} == -- ]]; then
            if declare -F _command_offset >/dev/null; then
                _command_offset $(( i + 1 ))
            elif (( i + 1 == COMP_CWORD )); then
                COMPREPLY=( $(compgen -c -- \"${cur}\") )
            fi
            return 0
        fi
    done
";

/// Like [`BASH`].
const FISH: &str = "
function __fish_trafficcop_command
    set -l words (commandline -opc)
    set -l at (contains -i -- -- $words)
    or return
    set -l current (commandline -ct)
    if test $at -eq (count $words)
        __fish_complete_command
    else
        complete -C (string join -- ' ' $words[(math $at + 1)..-1] \"$current\")
    end
end
complete -c trafficcop -n 'contains -- -- (commandline -opc)' -a '(__fish_trafficcop_command)'
";

/// Returns the definition without hidden arguments.
fn shown() -> clap::Command {
    let whole = definition();
    let verbs = whole.get_subcommands();
    let verbs: Vec<_> = verbs.filter(|verb| !verb.is_hide_set()).cloned().collect();
    clap::Command::new("trafficcop")
        .version(env!("CARGO_PKG_VERSION"))
        .disable_help_subcommand(true)
        .subcommands(verbs)
}

/// Every exit status of `trafficcop completions`.
pub const COMPLETIONS_STATUS: Rows<'_> = rows! {
    "0" => "written to stdout",
    "64" => "bad usage, or a shell that is not known",
    "69" => "stdout cannot be written",
};

/// Commands to copy for `trafficcop completions`.
pub const COMPLETIONS_EXAMPLES: Rows<'_> = rows! {
    "In this bash:" => "source <(trafficcop completions bash)",
    "For every bash of this user:" =>
        "trafficcop completions bash > ~/.local/share/bash-completion/completions/trafficcop",
    "For zsh, in a directory of its $fpath:" =>
        "trafficcop completions zsh > /usr/local/share/zsh/site-functions/_trafficcop",
    "For fish:" => "trafficcop completions fish > ~/.config/fish/completions/trafficcop.fish",
};

/// Where to?
#[derive(Clone, Debug, Args)]
#[command(after_help = in_short(MAN_EXAMPLES),
    after_long_help = with_examples(MAN_EXAMPLES, &[("Exit status", MAN_STATUS)]))]
pub struct Man {
    /// A directory of manual pages; it gets man1, man5 and man7
    ///
    /// The default is this user's: $XDG_DATA_HOME/man, or ~/.local/share/man.
    #[arg(value_name = "DIR", value_parser = path())]
    pub dir: Option<PathBuf>,
}

/// Every exit status of `trafficcop man`.
pub const MAN_STATUS: Rows<'_> = rows! {
    "0" => "written",
    "64" => "bad usage, or no DIR where this user has no home directory",
    "69" => "a page cannot be written",
};

/// Commands to copy for `trafficcop man`.
pub const MAN_EXAMPLES: Rows<'_> = rows! {
    "For all users of this machine:" => "trafficcop man /usr/local/share/man",
    "For this user; it prints what there is to read:" => "trafficcop man",
};
