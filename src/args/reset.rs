//! What can be typed after `trafficcop reset`, and its help. It must never decide anything.

use clap::Args;
use clap::builder::BoolishValueParser;

use super::{Rows, TheLock, with_examples};

/// Forget what is done.
#[derive(Clone, Debug, Args)]
#[command(after_long_help = after_reset())]
pub struct Reset {
    #[command(flatten)]
    #[expect(missing_docs, reason = "it would be shown as help")]
    pub lock: TheLock,

    /// The task to forget, with and without slots of time (--once-per) [default: the only one there is]
    #[arg(long, value_name = "K", env = "TRAFFICCOP_ONCE_KEY")]
    pub once_key: Option<String>,

    /// Forget all tasks of this lock, and results that cannot be read
    #[arg(long, env = "TRAFFICCOP_ALL", value_parser = BoolishValueParser::new())]
    pub all: bool,

    /// Do it even if somebody has the lock
    ///
    /// On a file the holder goes on undisturbed. On a blob nobody can write beside the holder: its lease
    /// is broken, as 'trafficcop break' does it. The holder stops its command within its lease, and what
    /// it was running counts as not done.
    #[arg(long, env = "TRAFFICCOP_FORCE", value_parser = BoolishValueParser::new())]
    pub force: bool,

    /// Do not ask
    #[arg(short, long)]
    pub yes: bool,
}

/// Every exit status of `trafficcop reset`.
pub const RESET_STATUS: Rows<'_> = &[
    ("0", "it is forgotten"),
    (
        "1",
        "nothing was forgotten: there is no such result, somebody has the lock, it changed meanwhile, or the answer was no",
    ),
    (
        "64",
        "bad usage; several tasks and neither --once-key nor --all; or nobody to ask and no --yes",
    ),
    (
        "69",
        "the store is out of reach or refuses: it is not known whether it was forgotten",
    ),
    ("77", "not authorised, or no permission"),
];

/// Commands to copy for `trafficcop reset`.
pub const RESET_EXAMPLES: Rows<'_> = &[
    (
        "Have the migration run once more:",
        "trafficcop reset --blob locks/migrate --once-key v7",
    ),
    (
        "From a script, everything that was done under this lock:",
        "trafficcop reset --all --yes --file /mnt/share/nightly.lock",
    ),
];

fn after_reset() -> String {
    with_examples(RESET_EXAMPLES, &[("Exit status", RESET_STATUS)])
}
