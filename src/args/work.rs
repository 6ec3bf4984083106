//! What can be typed after `trafficcop work`, and its help. It must never decide anything.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::builder::BoolishValueParser;
use clap::{ArgAction, Args, ValueEnum};

use super::common::path;
use super::{Access, Contain, FOR_THE_STORE, Log, Telling, with_examples};

#[cfg(feature = "service-bus")]
const USAGE: &str = "trafficcop work --queue|--service-bus NAME|URL [OPTIONS] -- COMMAND [ARG]...";
#[cfg(not(feature = "service-bus"))]
const USAGE: &str = "trafficcop work --queue NAME|URL [OPTIONS] -- COMMAND [ARG]...";

/// What can be said of work.
#[derive(Clone, Debug, Args)]
#[command(after_long_help = after_work(), override_usage = USAGE)]
pub struct Work {
    /// The queue: an Azure storage queue, by its name or its URL
    ///
    /// Credentials come from the environment, as for --blob of 'trafficcop run'; see --auth.
    #[arg(
        long,
        value_name = "NAME|URL",
        env = "TRAFFICCOP_QUEUE",
        help_heading = "The queue"
    )]
    pub queue: Option<String>,

    /// A queue on Azure Service Bus.
    #[cfg(feature = "service-bus")]
    #[command(flatten)]
    pub bus: super::ServiceBus,

    /// Create the queue if it is missing
    #[arg(long, env = "TRAFFICCOP_CREATE", help_heading = "The queue", value_parser = BoolishValueParser::new())]
    pub create: bool,

    /// Use the well-known account of Azurite, the storage emulator, on this machine
    #[arg(long, env = "TRAFFICCOP_EMULATOR", help_heading = "The queue", value_parser = BoolishValueParser::new())]
    pub emulator: bool,

    /// Where messages are put aside [default: QUEUE-poison]
    ///
    /// A queue of the same account, created when it is first needed. A message is put there as it was,
    /// without an end of its life, before it goes away from here.
    #[arg(
        long,
        value_name = "NAME",
        env = "TRAFFICCOP_POISON_QUEUE",
        help_heading = "The queue"
    )]
    pub poison_queue: Option<String>,

    /// How we prove who we are.
    #[command(flatten)]
    pub access: Access,

    /// How messages were encoded by their sender
    #[arg(
        long,
        value_name = "HOW",
        env = "TRAFFICCOP_ENCODING",
        value_enum,
        default_value_t,
        help_heading = "The queue"
    )]
    pub encoding: Encoding,

    /// The longest body; longer ones are put aside [default: 100M]
    ///
    /// In bytes, or with K or M. A storage queue itself takes 64 KiB at most, Service Bus 256 KiB or, with
    /// its premium tier, 100 MiB.
    #[arg(
        long,
        value_name = "SIZE",
        env = "TRAFFICCOP_MAX_BODY",
        help_heading = "The queue"
    )]
    pub max_body: Option<String>,

    /// How many messages are worked on at once [default: 1]
    ///
    /// Each has a command of its own. No more are taken than can be begun at once.
    #[arg(
        short = 'j',
        long,
        value_name = "N",
        env = "TRAFFICCOP_CONCURRENCY",
        help_heading = "Taking messages"
    )]
    pub concurrency: Option<String>,

    /// Take one message, and exit with its command's status
    #[arg(long, env = "TRAFFICCOP_ONCE", help_heading = "Taking messages", value_parser = BoolishValueParser::new())]
    pub once: bool,

    /// Exit 0 after N messages
    ///
    /// Those are counted whose command was started.
    #[arg(
        long,
        value_name = "N",
        env = "TRAFFICCOP_MAX_MESSAGES",
        help_heading = "Taking messages"
    )]
    pub max_messages: Option<String>,

    /// Exit 0 when there was no message for this time
    ///
    /// For jobs that are started because there are messages (KEDA, Container Apps jobs, cron). The queue
    /// is looked at once in any case (on Service Bus for 2s): 0s takes what there is.
    #[arg(
        long,
        value_name = "D",
        env = "TRAFFICCOP_IDLE_EXIT",
        help_heading = "Taking messages"
    )]
    pub idle_exit: Option<String>,

    /// How the command gets its message
    #[arg(
        long,
        value_name = "HOW",
        env = "TRAFFICCOP_MESSAGE",
        value_enum,
        default_value_t,
        help_heading = "The command"
    )]
    pub message: Hand,

    /// The longest a command may run; then it is stopped, and has failed [default: no limit]
    #[arg(
        long,
        value_name = "D",
        env = "TRAFFICCOP_TIMEOUT",
        help_heading = "The command"
    )]
    pub timeout: Option<String>,

    /// What the command is sent first when it is to end: a name or a number [default: TERM]
    #[arg(
        long,
        value_name = "SIG",
        env = "TRAFFICCOP_STOP_SIGNAL",
        help_heading = "The command"
    )]
    pub stop_signal: Option<String>,

    /// What keeps the command's processes together
    ///
    /// A mode asked for by name and not to be had is refused, never degraded.
    #[arg(
        long,
        value_name = "MODE",
        env = "TRAFFICCOP_CONTAIN",
        value_enum,
        default_value_t,
        help_heading = "The command"
    )]
    pub contain: Contain,

    /// Keep our credentials from the command that handles messages
    ///
    /// Without it that inherits our environment, and with it what we prove ourselves by. The variables
    /// that hold the credentials listed below are then not in its own.
    /// Who may look into our process (the same user, without a sandbox) can read them all the same.
    #[arg(long, env = "TRAFFICCOP_NO_CREDENTIALS", help_heading = "The command", value_parser = BoolishValueParser::new())]
    pub no_credentials: bool,

    /// How often a message is tried before it is put aside [default: 5]
    ///
    /// The queue counts, so an attempt counts too if worker and machine died in it. A queue on Service
    /// Bus has a number of its own (MaxDeliveryCount, 10 unless it was set), which is the default there;
    /// a smaller one said here is what puts a message aside with the reason why it failed.
    #[arg(
        long,
        value_name = "N",
        env = "TRAFFICCOP_MAX_ATTEMPTS",
        help_heading = "Messages that fail"
    )]
    pub max_attempts: Option<String>,

    /// How long a message that failed stays away, doubling up to MAX [default: 10s..5m]
    ///
    /// A single duration does not grow. A queue on Service Bus cannot keep a message away: there the
    /// worker keeps it locked for so long, and a slot with it.
    #[arg(
        long,
        value_name = "D[..MAX]",
        env = "TRAFFICCOP_RETRY_DELAY",
        help_heading = "Messages that fail"
    )]
    pub retry_delay: Option<String>,

    /// Exit statuses that put a message aside at once: a list, with ranges [default: 65]
    ///
    /// For what no repetition can cure. An empty list is written 'none'.
    #[arg(
        long,
        value_name = "LIST",
        env = "TRAFFICCOP_DEAD_LETTER_EXIT",
        help_heading = "Messages that fail"
    )]
    pub dead_letter_exit: Option<String>,

    /// Exit statuses that never do so, though --dead-letter-exit names them in a range [default: 75]
    ///
    /// With '--dead-letter-exit 1-255' all failures but these are final.
    #[arg(
        long,
        value_name = "LIST",
        env = "TRAFFICCOP_RETRY_EXIT",
        help_heading = "Messages that fail"
    )]
    pub retry_exit: Option<String>,

    /// How long a message is locked for us [default: 60s]
    ///
    /// 2s to 7d; renewed for as long as its command runs, however long that is. This is what it takes
    /// until a message comes again whose worker died with its machine. On Service Bus it is a property
    /// of the queue (5s to 5m), which is known by its messages; say it here if the clock of this machine
    /// cannot be trusted.
    #[arg(
        long,
        value_name = "D",
        env = "TRAFFICCOP_LOCK_TIME",
        help_heading = "Time"
    )]
    pub lock_time: Option<String>,

    /// After how much of its time a lock is renewed, in per cent [default: 70%]
    ///
    /// 10% to 90%. Earlier where there would be no room for two attempts (4s, or a quarter of a lock
    /// of less than 16s) before the command has to be stopped.
    #[arg(
        long,
        value_name = "PERCENT",
        env = "TRAFFICCOP_RENEW_AT",
        help_heading = "Time"
    )]
    pub renew_at: Option<String>,

    /// How long commands may go on after a stop was requested [default: 30s]
    ///
    /// Their messages' locks are renewed meanwhile, and no more messages are taken. What has not ended
    /// by then is stopped, and its message given back at once.
    #[arg(
        long,
        value_name = "D",
        env = "TRAFFICCOP_GRACE",
        help_heading = "Time"
    )]
    pub grace: Option<String>,

    /// From the stop signal to SIGKILL [default: 10s]
    ///
    /// After --timeout, after --grace, and for processes that a command left behind. Where a lock could
    /// not be renewed it is a sixth of --lock-time, 10s at most.
    #[arg(
        long,
        value_name = "D",
        env = "TRAFFICCOP_KILL_AFTER",
        help_heading = "Time"
    )]
    pub kill_after: Option<String>,

    /// How this worker is called in the log [default: HOST-PID]
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

    /// Being asked over HTTP.
    #[command(flatten)]
    pub listen: super::Listen,

    /// The command and its arguments, run as they are, without a shell, once for each message
    // Not required here, and no `allow_hyphen_values`: see `run`.
    #[arg(value_name = "COMMAND", trailing_var_arg = true, action = ArgAction::Append)]
    pub command: Vec<OsString>,
}

/// How messages were encoded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Encoding {
    /// As base64 where that is evident, else as text
    #[default]
    Auto,
    /// As base64; others are put aside
    Base64,
    /// Not at all
    Text,
}

/// How the command gets its message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Hand {
    /// On its stdin, every byte as it was sent
    #[default]
    Stdin,
    /// In a private directory, TRAFFICCOP_MESSAGE_DIR, with body and message.json
    File,
}

/// What the command finds in its environment.
pub const FOR_THE_MESSAGE: &[(&str, &str)] = &[
    ("TRAFFICCOP_MESSAGE_QUEUE", "the queue's address"),
    (
        "TRAFFICCOP_MESSAGE_ID",
        "the message's id, the same at every attempt: what a command that must not do anything twice remembers",
    ),
    (
        "TRAFFICCOP_MESSAGE_ATTEMPT",
        "which attempt this is, from 1; it grows with every run, as a fencing token does",
    ),
    (
        "TRAFFICCOP_MESSAGE_MAX_ATTEMPTS",
        "how many there are (--max-attempts), where we count them",
    ),
    (
        "TRAFFICCOP_MESSAGE_ENQUEUED_AT",
        "when it was put into the queue, by the service's clock (RFC 3339, UTC)",
    ),
    (
        "TRAFFICCOP_MESSAGE_LOCKED_UNTIL",
        "until when the service had locked it when it was taken; it is renewed, so ask TRAFFICCOP_CONTROL",
    ),
    (
        "TRAFFICCOP_MESSAGE_CONTENT_TYPE",
        "the type of its content, where the queue knows one",
    ),
    (
        "TRAFFICCOP_MESSAGE_PROPERTIES",
        "further properties, as a JSON object, if it is not longer than 32 KiB",
    ),
    (
        "TRAFFICCOP_MESSAGE_DIR, TRAFFICCOP_MESSAGE_FILE",
        "with --message file: the directory, and the body in it",
    ),
    (
        "TRAFFICCOP_CONTROL",
        "a file of eight bytes that tells until when the message is ours: see trafficcop-run(1). 'trafficcop check' reads it",
    ),
    (
        "NOTIFY_SOCKET",
        "where we were started with one: a socket of ours, on which the command tells systemd its STATUS. WATCHDOG_USEC and WATCHDOG_PID are not passed on",
    ),
];

/// What becomes of a message.
pub const SETTLED: &[(&str, &str)] = &[
    ("exit 0", "it is deleted (on Service Bus: completed)"),
    (
        "a status of --dead-letter-exit",
        "it is put aside, into the poison queue (on Service Bus: dead-lettered, with reason and text)",
    ),
    (
        "any other, a signal, --timeout",
        "it comes again after --retry-delay; on the last attempt it is put aside",
    ),
    (
        "its lock is lost or in doubt",
        "the command is killed before another can have the message; nothing is settled",
    ),
    (
        "stopped by us",
        "when a stop was requested and --grace is over: given back, visible again at once (on Service Bus the attempt does not count)",
    ),
    (
        "cannot be started",
        "given back, and trafficcop exits 126 or 127",
    ),
];

/// Every exit status of `trafficcop work` and what it means.
pub const WORK_STATUS: &[(&str, &str)] = &[
    (
        "0",
        "there was no message for --idle-exit, or there were --max-messages",
    ),
    (
        "0-255",
        "with --once: the command's own exit status (or trafficcop dies of the command's signal)",
    ),
    (
        "128+n",
        "a stop was requested by signal n: the messages were finished or given back, then trafficcop died of the same signal (as PID 1 it exits 128+n)",
    ),
    (
        "64",
        "bad usage, or settings that cannot hold; nothing was started",
    ),
    ("66", "there is no such queue"),
    (
        "69",
        "the queue was out of reach at the beginning (with --idle-exit: for half a minute when it was to say whether there is another message), or messages could not be put aside",
    ),
    (
        "70",
        "a guardian died or fell silent; with --once: the lock was lost and the command stopped in time, or nobody can say whether the message was settled",
    ),
    (
        "71",
        "a process of a command cannot be killed; with --once: the command may have run beside another one",
    ),
    ("77", "not authorised"),
    (
        "126",
        "the command was found but cannot be run, or messages cannot be handed over to it on this machine",
    ),
    ("127", "the command was not found"),
];

/// Commands to copy for `trafficcop work`.
pub const WORK_EXAMPLES: &[(&str, &str)] = &[
    (
        "Handle orders, four at a time, each for as long as it takes:",
        "trafficcop work --queue orders -j 4 -- ./handle-order",
    ),
    (
        "A shell script as the handler: the message is on stdin, 65 puts it aside:",
        "trafficcop work --queue orders -- sh -c 'jq -e .order >/dev/null || exit 65; ./ship'",
    ),
    (
        "A job that was started because there are messages, and ends when there are none:",
        "trafficcop work --queue orders --idle-exit 10s -- ./handle-order",
    ),
    (
        "No command longer than ten minutes, and every failure final but 75:",
        "trafficcop work --queue orders --timeout 10m --dead-letter-exit 1-255 -- ./handle-order",
    ),
    #[cfg(feature = "service-bus")]
    (
        "A queue on Service Bus, with the machine's managed identity:",
        "trafficcop work --service-bus contoso/orders --auth managed -- ./handle-order",
    ),
    (
        "Try it here, with Azurite as the store:",
        "trafficcop work --emulator --queue try --create -- sh -c 'echo \"$TRAFFICCOP_MESSAGE_ID: $(cat)\"'",
    ),
];

fn after_work() -> String {
    with_examples(
        WORK_EXAMPLES,
        &[
            ("What becomes of a message, if the command", SETTLED),
            ("The command's environment", FOR_THE_MESSAGE),
            #[cfg(feature = "service-bus")]
            ("Credentials for Service Bus", super::FOR_SERVICE_BUS),
            ("Credentials", FOR_THE_STORE),
            ("Exit status", WORK_STATUS),
        ],
    )
}
