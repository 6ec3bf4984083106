//! What can be typed after `trafficcop completions`, its help, and the script itself: it is made from
//! the same definitions as the help. It must never write anything.

use clap::Args;
use clap_complete::{Shell, generate};

use super::{Rows, definition, with_examples};

/// Whose keys?
#[derive(Clone, Debug, Args)]
#[command(after_long_help = after_completions())]
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
        String::from_utf8_lossy(&script).into_owned()
    }
}

/// The definition without what nobody is to type.
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
pub const COMPLETIONS_STATUS: Rows<'_> = &[
    ("0", "written to stdout"),
    ("64", "bad usage, or a shell that is not known"),
    ("69", "stdout cannot be written"),
];

/// Commands to copy for `trafficcop completions`.
pub const COMPLETIONS_EXAMPLES: Rows<'_> = &[
    ("In this bash:", "source <(trafficcop completions bash)"),
    (
        "For every bash of this user:",
        "trafficcop completions bash > ~/.local/share/bash-completion/completions/trafficcop",
    ),
    (
        "For zsh, in a directory of its $fpath:",
        "trafficcop completions zsh > /usr/local/share/zsh/site-functions/_trafficcop",
    ),
    (
        "For fish:",
        "trafficcop completions fish > ~/.config/fish/completions/trafficcop.fish",
    ),
];

fn after_completions() -> String {
    with_examples(COMPLETIONS_EXAMPLES, &[("Exit status", COMPLETIONS_STATUS)])
}
