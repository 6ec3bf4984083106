//! What can be typed after `trafficcop check`, and its help. It must never decide anything.

use clap::Args;

use super::with_examples;

/// What can be asked.
#[derive(Clone, Debug, Args)]
#[command(after_long_help = after_check())]
pub struct Check {
    /// Print for how many whole seconds control is certain
    ///
    /// 0 if the command is not in control, 18446744073 if the lock lasts as long as the command. The
    /// lease is renewed long before, so the number goes up again; where it cannot be renewed the
    /// command is asked to stop --grace-on-loss earlier, and the number is 0 from then on.
    #[arg(long)]
    pub remaining: bool,
}

/// Every exit status of `trafficcop check` and what it means.
pub const CHECK_STATUS: &[(&str, &str)] = &[
    ("0", "the command is in control"),
    (
        "1",
        "it is not, or it has been asked to end because control is in doubt: stop what needs it",
    ),
    ("64", "asked outside of a command, or bad usage"),
    ("69", "the control file cannot be read"),
];

/// Commands to copy for `trafficcop check`.
pub const CHECK_EXAMPLES: &[(&str, &str)] = &[
    (
        "A script's loop that ends when control does:",
        "while trafficcop check; do ./next-piece; done",
    ),
    (
        "Begin a step only if there is time for it:",
        "[ \"$(trafficcop check --remaining)\" -ge 20 ] && ./step-of-20-seconds",
    ),
];

fn after_check() -> String {
    with_examples(CHECK_EXAMPLES, &[("Exit status", CHECK_STATUS)])
}
