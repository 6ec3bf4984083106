//! Flags and help of `trafficcop work`.

use std::ffi::OsString;
use std::time::Duration;

use clap::{Arg, ArgAction, Args, ValueEnum, ValueHint};

#[cfg(feature = "service-bus")]
use super::values::variable_name;
use super::values::{
    Checked, ExitStatuses, body_size, checked, concurrency, duration, exit_statuses, not_empty,
    number, positive, renew_at, retry_delay,
};
use super::{Access, FOR_THE_QUEUE, Operations, Rows, Stopping, in_short, with_examples};
use crate::queue::storage::Encoding;

#[cfg(feature = "service-bus")]
const USAGE: &str = "trafficcop work --queue NAME|URL [OPTIONS] -- COMMAND [ARG]...\n       \
    trafficcop work --service-bus NAME|URL [OPTIONS] -- COMMAND [ARG]...";
#[cfg(not(feature = "service-bus"))]
const USAGE: &str = "trafficcop work --queue NAME|URL [OPTIONS] -- COMMAND [ARG]...";

/// Flags of `trafficcop work`.
#[derive(Clone, Debug, Args)]
#[command(after_help = in_short(WORK_EXAMPLES), after_long_help = after_work(), override_usage = USAGE)]
#[command(mut_args(of_a_worker))]
pub struct Work {
    /// An Azure storage queue
    ///
    /// Credentials come from the environment, as for --blob of 'trafficcop run'; see --auth.
    #[arg(long, value_name = "NAME|URL", help_heading = "The queue",
        value_parser = checked(not_empty("name a queue, or a URL")))]
    pub queue: Option<Checked<String>>,

    /// A queue on Azure Service Bus.
    #[cfg(feature = "service-bus")]
    #[command(flatten)]
    pub bus: ServiceBus,

    /// Create the queue if it is missing (--queue only)
    #[arg(long, help_heading = "The queue")]
    pub create: bool,

    /// Use Azurite, the emulator, on this machine
    ///
    /// The well-known account of the storage emulator.
    #[arg(long, help_heading = "The queue")]
    pub emulator: bool,

    /// Where dead-lettered messages go [default: QUEUE-poison]
    ///
    /// A queue of the same account, created when it is first needed: people look there at messages that
    /// could not be handled. trafficcop puts the message there unchanged, without an expiry time, before it
    /// deletes it here.
    #[arg(long, value_name = "NAME", hide_short_help = true, help_heading = "The queue",
        value_parser = checked(not_empty("name a queue, or leave it out")))]
    pub poison_queue: Option<Checked<String>>,

    /// Credential of this worker.
    #[command(flatten)]
    pub access: Access,

    /// Encoding of messages in a storage queue [default: text, with a warning]
    ///
    /// By default trafficcop passes each message on as it was sent, and warns about the first that may be
    /// base64.
    #[arg(
        long,
        value_name = "HOW",
        hide_short_help = true,
        value_enum,
        help_heading = "The queue"
    )]
    pub encoding: Option<Encoding>,

    /// The longest body; longer ones are dead-lettered [default: 100M]
    ///
    /// In bytes, or with K or M. A storage queue itself takes 64 KiB at most, Service Bus 256 KiB or, with
    /// its premium tier, 100 MiB.
    #[arg(long, value_name = "SIZE", hide_short_help = true, help_heading = "The queue",
        value_parser = checked(body_size))]
    pub max_body: Option<Checked<u64>>,

    /// Number of messages to work on at once [default: 1]
    ///
    /// Each has a command of its own. trafficcop takes no more than it can start at once.
    #[arg(short = 'j', long, value_name = "N", help_heading = "Taking messages", value_parser = checked(concurrency))]
    pub concurrency: Option<Checked<usize>>,

    /// Take one message, and exit with its command's status
    #[arg(long, help_heading = "Taking messages")]
    pub once: bool,

    /// Exit 0 after N messages [default: no limit]
    ///
    /// A message counts when its command was started.
    #[arg(long, value_name = "N", help_heading = "Taking messages", value_parser = checked(number(1..=u64::MAX)))]
    pub max_messages: Option<Checked<u64>>,

    /// Exit 0 after D without a message [default: no limit]
    ///
    /// For jobs that are started because there are messages (KEDA, Container Apps jobs, cron). trafficcop
    /// always checks the queue once (on Service Bus for 2s): 0s takes the messages that are there.
    #[arg(long, value_name = "D", help_heading = "Taking messages", value_parser = checked(duration))]
    pub idle_exit: Option<Checked<Duration>>,

    /// Exit with 77 after the queue has refused the credential for D [default: 5m]
    ///
    /// Applies while no message is worked on, to a credential that worked before: a key that was rotated, a
    /// SAS that expired, a role that was removed. A restart reads the new credential. From the first
    /// refusal on /readyz answers 503, and the status names the cause. Any other answer, or none, starts
    /// the time anew.
    #[arg(long, value_name = "D", hide_short_help = true, help_heading = "Taking messages",
        value_parser = checked(duration))]
    pub auth_patience: Option<Checked<Duration>>,

    /// Way in which the command gets its message
    #[arg(long, value_name = "HOW", value_enum, default_value_t = Hand::Stdin, help_heading = "The command")]
    pub message: Hand,

    /// The longest a command may run [default: no limit]
    ///
    /// trafficcop stops a command that runs longer; its message has then failed.
    #[arg(long, value_name = "D", help_heading = "The command",
        value_parser = checked(positive(": no command could do anything: leave it out for no limit")))]
    pub timeout: Option<Checked<Duration>>,

    /// Its end.
    #[command(flatten)]
    pub stopping: Stopping,

    /// Keep trafficcop's credentials from the command that handles messages
    ///
    /// Without this flag it inherits the whole environment. With it, the credentials listed below are
    /// removed from it, and so are the variables of --queue and --blob if the URL has a SAS. A machine's
    /// managed identity stays available to every process on it. A process that may inspect trafficcop (the
    /// same user, without a sandbox) can still read the credentials.
    #[arg(long, hide_short_help = true, help_heading = "The command")]
    pub no_credentials: bool,

    /// Delete each message before its command starts
    ///
    /// For work that must never be done twice and may be lost, such as sending mail. The command starts after the
    /// queue has confirmed that the message is deleted (on Service Bus: completed), and no worker can be given it
    /// again. Without that confirmation it does not start. From then on the message exists in this worker alone:
    /// it is lost if the worker or its machine dies, and if the command fails, is stopped or cannot be started.
    #[arg(long, help_heading = "Messages that fail")]
    pub at_most_once: bool,

    /// Attempts before a message is dead-lettered [default: 5; on Service Bus the queue's own]
    ///
    /// The queue counts, so an attempt counts even if worker and machine died in it. A queue on Service Bus
    /// has its own number (MaxDeliveryCount, 10 by default), which is the default there. With a smaller N,
    /// trafficcop dead-letters a message with the reason why it failed.
    #[arg(long, value_name = "N", help_heading = "Messages that fail",
        value_parser = checked(number(1..=1_000_000_u32)))]
    pub max_attempts: Option<Checked<u32>>,

    /// The pause before a retry [default: 10s..5m]
    ///
    /// A failed message becomes visible again after D, doubling up to MAX. A single duration does not grow.
    /// Service Bus cannot hide a message: there the worker keeps it locked for that time, as one of the
    /// messages it works on.
    #[arg(long, value_name = "D[..MAX]", help_heading = "Messages that fail", value_parser = checked(retry_delay))]
    pub retry_delay: Option<Checked<(Duration, Duration)>>,

    /// Exit statuses of final failures [default: 65]
    ///
    /// They dead-letter a message at once: use them for a message that will never succeed. A list, with
    /// ranges; an empty list is written 'none'.
    #[arg(long, value_name = "LIST", help_heading = "Messages that fail", value_parser = checked(exit_statuses))]
    pub dead_letter_exit: Option<Checked<ExitStatuses>>,

    /// Exit statuses that always retry, even if --dead-letter-exit includes them in a range [default: 75]
    ///
    /// With '--dead-letter-exit 1-255' all failures but these are final.
    #[arg(long, value_name = "LIST", hide_short_help = true, help_heading = "Messages that fail",
        value_parser = checked(exit_statuses))]
    pub retry_exit: Option<Checked<ExitStatuses>>,

    /// Time for which this worker locks a message [default: 60s; on Service Bus the queue's own]
    ///
    /// 2s to 7d; renewed while its command runs, however long that is. After a worker died with its
    /// machine, its message comes again when this time is over. On Service Bus it is a property of the
    /// queue (5s to 5m), which trafficcop reads from the messages; set it here if the clock of this machine
    /// is wrong.
    #[arg(long, value_name = "D", help_heading = "Time", value_parser = checked(duration))]
    pub lock_time: Option<Checked<Duration>>,

    /// When to renew a lock, in per cent of its time [default: 70%]
    ///
    /// 10% to 90%. Earlier if there would be no room for two attempts (4s, or a quarter of a lock of less
    /// than 16s) before the command has to be stopped.
    #[arg(long, value_name = "PERCENT", hide_short_help = true, help_heading = "Time",
        value_parser = checked(renew_at))]
    pub renew_at: Option<Checked<u32>>,

    /// Time that commands may go on after a stop request, before the stop signal [default: 30s]
    ///
    /// Their messages' locks are renewed meanwhile, and no more messages are taken. A command that has not
    /// ended by then is stopped, and its message is given back at once.
    #[arg(long, value_name = "D", help_heading = "Time", value_parser = checked(duration))]
    pub grace: Option<Checked<Duration>>,

    /// Time from the stop signal to SIGKILL [default: 10s]
    ///
    /// Applies after --timeout, after --grace, and to processes that a command left behind. If a lock could
    /// not be renewed it is a sixth of --lock-time, 10s at most.
    #[arg(long, value_name = "D", hide_short_help = true, help_heading = "Time", value_parser = checked(duration))]
    pub kill_after: Option<Checked<Duration>>,

    /// Name of the worker, its log and its outputs.
    #[command(flatten)]
    pub operations: Operations,

    /// Being asked over HTTP.
    #[command(flatten)]
    pub listen: super::Listen,

    /// The command and its arguments, run for each message
    ///
    /// They run as they are, without a shell.
    // As in `run`.
    #[arg(value_name = "COMMAND", help_heading = None::<&'static str>, trailing_var_arg = true,
        value_hint = ValueHint::CommandWithArguments, action = ArgAction::Append)]
    pub command: Vec<OsString>,
}

/// A queue on Azure Service Bus.
#[cfg(feature = "service-bus")]
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "The queue")]
pub struct ServiceBus {
    /// An Azure Service Bus queue or subscription
    ///
    /// QUEUE or TOPIC/Subscriptions/NAME, in the namespace of AZURE_SERVICEBUS_CONNECTION_STRING; or with
    /// NAMESPACE/ before it, or as sb://HOST/QUEUE, with Entra ID. A NAMESPACE without a dot is one of
    /// Azure's public cloud. Instead of --queue.
    #[arg(long, value_name = "NAME|URL",
        value_parser = checked(not_empty("name a queue, or a subscription as TOPIC/Subscriptions/NAME")))]
    pub service_bus: Option<Checked<String>>,

    /// Work on the dead-letter queue of --service-bus
    ///
    /// A message there cannot be dead-lettered: if it fails it stays, and comes again after --retry-delay.
    #[arg(long)]
    pub dead_letter_queue: bool,

    /// The environment variable with the connection string [default: AZURE_SERVICEBUS_CONNECTION_STRING]
    ///
    /// The string itself is never an argument: every user of the machine could read it.
    #[arg(long, value_name = "NAME", hide_short_help = true, value_parser = checked(variable_name))]
    pub connection_string_env: Option<Checked<String>>,

    /// Take sessions, and the messages of each in order (--service-bus only)
    ///
    /// For a queue or subscription that requires sessions. trafficcop locks the next session that has
    /// messages, and runs the command for one message of it after another, never for two at once on any
    /// machine. -j is the number of sessions at once. A message that fails is tried again before the next
    /// one, after --retry-delay; on its last attempt it is dead-lettered, and the next one follows.
    #[arg(long)]
    pub sessions: bool,

    /// Give a session up after D without a message [default: 10s]
    #[arg(long, value_name = "D", hide_short_help = true, help_heading = "Sessions", value_parser = checked(duration))]
    pub session_idle: Option<Checked<Duration>>,

    /// Give a session up after N messages [default: no limit]
    ///
    /// A session that always has messages then does not keep the others waiting.
    #[arg(long, value_name = "N", hide_short_help = true, help_heading = "Sessions",
        value_parser = checked(number(1..=u64::MAX)))]
    pub session_messages: Option<Checked<u64>>,

    /// Time that the first command of a session waits [default: 2s]
    ///
    /// The service gives a session to another worker as soon as the connection of its worker is gone. That
    /// worker then has 1s to kill its command, whatever its own delay is. 2s to 5m. Workers may have
    /// different delays: a longer one only adds safety. The queue's lock time, or more, is enough for a
    /// worker that hears nothing at all.
    #[arg(long, value_name = "D", hide_short_help = true, help_heading = "Sessions", value_parser = checked(duration))]
    pub lock_delay: Option<Checked<Duration>>,

    /// Settle on the link that brought the message, not by its lock token
    #[arg(long, hide = true)]
    pub link_settle: bool,
}

/// The environment variables of a queue on Service Bus.
#[cfg(feature = "service-bus")]
pub const FOR_SERVICE_BUS: Rows<'_> = rows! {
    "AZURE_SERVICEBUS_CONNECTION_STRING" => "for --service-bus: a connection string as the portal \
        shows it, with the right to listen; UseDevelopmentEmulator=true means Microsoft's \
        emulator. It is reached directly, by no proxy",
};

// `mut_arg` would put it behind all others in what shells complete.
fn of_a_worker(arg: Arg) -> Arg {
    match arg.get_id().as_str() {
        "identity" => arg.help("Name of this worker in the log [default: HOST-PID]"),
        "auth" | "ca_file" => arg.help_heading("The queue"),
        _ => arg,
    }
}

/// Way in which the command gets its message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Hand {
    /// On its stdin, every byte as it was sent
    #[default]
    Stdin,
    /// In a private directory, TRAFFICCOP_MESSAGE_DIR, with body and message.json
    File,
}

/// Variables in the command's environment.
pub const FOR_THE_MESSAGE: Rows<'_> = rows! {
    "TRAFFICCOP_MESSAGE_QUEUE" => "the queue's address",
    "TRAFFICCOP_MESSAGE_ID" => "the message's id, the same at every attempt: a command that must not do a thing \
        twice remembers it",
    "TRAFFICCOP_MESSAGE_ATTEMPT" =>
        "the number of this attempt, from 1. On a storage queue it grows with every run, as a \
        fencing token does; on Service Bus not when a message was given back, or its \
        session's connection broke",
    "TRAFFICCOP_MESSAGE_MAX_ATTEMPTS" => "how many there are (--max-attempts), if trafficcop counts them",
    "TRAFFICCOP_MESSAGE_ENQUEUED_AT" =>
        "when it was put into the queue, by the service's clock (RFC 3339, UTC)",
    "TRAFFICCOP_MESSAGE_LOCKED_UNTIL" =>
        "the end of the message's lock when it was taken, by the service's clock; trafficcop \
        renews it, so read TRAFFICCOP_CONTROL instead",
    "TRAFFICCOP_MESSAGE_ENCODING" =>
        "on a storage queue, how the body was read: text (as it was sent) or base64 (decoded) \
        (--encoding)",
    "TRAFFICCOP_MESSAGE_CONTENT_TYPE" => "the type of its content, if the queue knows one",
    "TRAFFICCOP_MESSAGE_PROPERTIES" =>
        "further properties, as a JSON object, if it is not longer than 32 KiB",
    "TRAFFICCOP_MESSAGE_DIR, TRAFFICCOP_MESSAGE_FILE" =>
        "with --message file: the directory, and the body in it",
    #[cfg(feature = "service-bus")]
    "TRAFFICCOP_SESSION_ID" => "with --sessions: the session's name",
    #[cfg(feature = "service-bus")]
    "TRAFFICCOP_SESSION_STATE_FILE" =>
        "with --sessions: a file with the session's state, empty if it has none. What the \
        command writes into it, up to 256 KiB, is stored before its message is completed; \
        after a failure it is not kept",
    "TRAFFICCOP_CONTROL" => "a file with the time until which this worker has the message, and that of a stop: see \
        trafficcop-run(1). 'trafficcop check' reads it",
    "NOTIFY_SOCKET" => "if trafficcop was started with one: a socket of trafficcop's, on which the command \
        tells systemd its STATUS. WATCHDOG_USEC and WATCHDOG_PID are not passed on",
};

/// Outcomes of a message.
pub const SETTLED: Rows<'_> = rows! {
    "exit 0" => "it is deleted (on Service Bus: completed)",
    "a status of --dead-letter-exit" => "it is dead-lettered: put into the poison queue (on \
        Service Bus: into the dead-letter queue, with reason and text)",
    "any other, a signal, --timeout" =>
        "it comes again after --retry-delay; on the last attempt it is dead-lettered",
    "its time to live ends, or its queue is deleted" =>
        "on a storage queue no worker can get it any more. The command may finish, and its exit status \
        counts: it can still dead-letter the message",
    "its lock is lost or in doubt" =>
        "the command is killed before another worker can have the message; nothing is settled",
    "stopped by trafficcop" => "when a stop was requested and --grace is over: given back, visible again at once (on \
        Service Bus the attempt does not count)",
    "--at-most-once" => "it is deleted before the command starts, and stays deleted however the command ends",
    "cannot be started" => "given back, and trafficcop exits 126 or 127 (69, if the machine has no process, \
        memory or descriptor to spare)",
};

/// Every exit status of `trafficcop work` and what it means.
pub const WORK_STATUS: Rows<'_> = rows! {
    "0" => "there was no message for --idle-exit, or there were --max-messages",
    "0-255" =>
        "with --once: the command's own exit status (or trafficcop dies of the command's signal)",
    "128+n" => "a stop was requested by signal n: the messages were finished or given back, then \
        trafficcop died of the same signal (as PID 1 it exits 128+n)",
    "64" => "bad usage, or settings that cannot hold; nothing was started",
    "66" => "there is no such queue",
    "69" => "the queue was out of reach at the beginning (with --idle-exit also later, for half a minute); \
        or messages could not be dead-lettered; or this machine had no guardian, process, memory or \
        descriptor to spare",
    "70" => "a guardian died or fell silent. With --once also: the lock was lost and the command stopped in \
        time; or it is not known whether the message was settled; or exit 0 did not count (--timeout ended \
        the command, or its session's state could not be stored)",
    "71" => "a process of a command cannot be killed. With --once also: the command may have run at \
        the same time as another one",
    "77" => "not authorised",
    "126" => "the command was found but cannot be run, or this machine cannot hand messages to it",
    "127" => "the command was not found",
};

/// Commands to copy for `trafficcop work`.
pub const WORK_EXAMPLES: Rows<'_> = rows! {
    "Handle orders, four at a time, each for as long as it takes:" =>
        "trafficcop work --queue orders -j 4 -- ./handle-order",
    "A shell script as the handler: the message is on stdin, 65 dead-letters it:" =>
        "trafficcop work --queue orders -- sh -c 'order=$(jq -er .order) || exit 65; ./ship \"$order\"'",
    "A job that was started because there are messages, and ends when there are none:" =>
        "trafficcop work --queue orders --idle-exit 10s -- ./handle-order",
    "No command longer than ten minutes, and every failure final but 75:" =>
        "trafficcop work --queue orders --timeout 10m --dead-letter-exit 1-255 -- ./handle-order",
    #[cfg(feature = "service-bus")]
    "A queue on Service Bus, with the machine's managed identity:" =>
        "trafficcop work --service-bus contoso/orders --auth managed -- ./handle-order",
    #[cfg(feature = "service-bus")]
    "In order: the messages of a session one after another, ten sessions at once:" =>
        "trafficcop work --service-bus orders --sessions -j 10 -- ./handle-order",
    "Try it here, with Azurite as the store:" =>
        "trafficcop work --emulator --queue try --create -- sh -c 'echo \"$TRAFFICCOP_MESSAGE_ID: \
        $(cat)\"'",
};

fn after_work() -> String {
    with_examples(
        WORK_EXAMPLES,
        &[
            ("What becomes of a message, if the command", SETTLED),
            ("The command's environment", FOR_THE_MESSAGE),
            #[cfg(feature = "service-bus")]
            ("Credentials for Service Bus", FOR_SERVICE_BUS),
            ("Credentials", FOR_THE_QUEUE),
            ("Exit status", WORK_STATUS),
        ],
    )
}
