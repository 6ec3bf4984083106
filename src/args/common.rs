//! What can be typed of the lock, of waiting for it and of being operated: the flags that every way
//! of competing has, with their help.

use std::path::PathBuf;

use clap::builder::{BoolishValueParser, OsStringValueParser, TypedValueParser};
use clap::{Args, ValueEnum};

use super::{Access, Telling};

/// The flags.
#[derive(Clone, Debug, Args)]
pub struct Common {
    /// The lock: a lease on this Azure blob (CONTAINER/NAME or its URL)
    ///
    /// Blob and container are created if they are missing and never deleted; metadata of others is
    /// kept. Credentials come from the environment: AZURE_STORAGE_CONNECTION_STRING, or
    /// AZURE_STORAGE_ACCOUNT with AZURE_STORAGE_KEY or AZURE_STORAGE_SAS_TOKEN, or what Entra ID
    /// needs (see --auth).
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
    /// file. On this machine's own disk it is the kernel's lock; on a drive that machines share (NFS,
    /// SMB, whatever is not known to be local; see --shared) it is a lease, kept in the directory
    /// PATH.versions.
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

    /// Give up (exit 69) if the store has not answered at all within this time [default: 30s]
    ///
    /// Of the first contact only: a store that answered once is asked for ever, with a reminder in the
    /// log each minute. With --no-wait it is 5s at most, all in all.
    #[arg(
        long,
        value_name = "D",
        env = "TRAFFICCOP_CONNECT_TIMEOUT",
        help_heading = "Waiting for control"
    )]
    pub connect_timeout: Option<String>,

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
    /// For --blob, --slots and shared drives; a local file's lock wakes its waiter by itself otherwise.
    /// While the holder drains, a standby looks eight times as often, between four times a second
    /// and every 2s. With more than 80 standbys on a blob, give them a second for every 40: 12s for
    /// 500.
    #[arg(
        long,
        value_name = "D",
        env = "TRAFFICCOP_POLL",
        help_heading = "Waiting for control"
    )]
    pub poll: Option<String>,

    /// How long the store keeps the lock for a holder it does not hear of [default: 60s]
    ///
    /// 15s to 60s for --blob, 10s to 60s on a shared drive; without a meaning on a local disk. This is what a fail-over costs after the death of a whole machine;
    /// the death of the command or of trafficcop alone costs nothing of it. It is renewed every
    /// third of it.
    #[arg(
        long,
        value_name = "D",
        env = "TRAFFICCOP_LEASE",
        help_heading = "Time"
    )]
    pub lease: Option<String>,

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

    /// Use the well-known account of Azurite, the storage emulator, on this machine
    #[arg(long, env = "TRAFFICCOP_EMULATOR", help_heading = "With --blob", value_parser = BoolishValueParser::new())]
    pub emulator: bool,

    /// How we prove who we are.
    #[command(flatten)]
    pub access: Access,

    /// Create neither container nor blob; refuse if one is missing
    #[arg(long, env = "TRAFFICCOP_NO_CREATE", help_heading = "With --blob", value_parser = BoolishValueParser::new())]
    pub no_create: bool,

    /// Create a page blob of SIZE bytes (K, M, G, T) instead of an empty block blob
    ///
    /// A multiple of 512; 512 if no size is given. An empty page blob costs nothing.
    #[arg(long, value_name = "SIZE", env = "TRAFFICCOP_PAGE_BLOB", num_args = 0..=1, require_equals = true, default_missing_value = "512", help_heading = "With --blob")]
    pub page_blob: Option<String>,

    /// Keep the lock as on a drive that machines share, whatever the file lies on
    ///
    /// It is not needed on NFS, SMB and others that are not known to be local, nor where the file
    /// says so itself: an instance on the server's own disk obeys that.
    #[arg(long, env = "TRAFFICCOP_SHARED", help_heading = "With --file", value_parser = BoolishValueParser::new())]
    pub shared: bool,

    /// What is refused in words: a lock on a shared drive is a lease now, and needs no proof.
    #[arg(long, value_name = "WHEN", env = "TRAFFICCOP_HEARTBEAT", hide = true)]
    pub heartbeat: Option<String>,

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

/// How the log is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Log {
    /// One plain line for each change of state
    #[default]
    Text,
    /// One JSON object a line
    Json,
}

/// Where credentials for --blob come from.
pub const FOR_THE_STORE: &[(&str, &str)] = &[
    (
        "AZURE_STORAGE_CONNECTION_STRING",
        "a connection string as the portal shows it; UseDevelopmentStorage=true means Azurite",
    ),
    (
        "AZURE_STORAGE_ACCOUNT",
        "the account's name, with one of the next two, or with Entra ID",
    ),
    ("AZURE_STORAGE_KEY", "the account's key"),
    (
        "AZURE_STORAGE_SAS_TOKEN",
        "a shared access signature (read, write, create and, for a missing container, create container)",
    ),
    (
        "AZURE_STORAGE_ENDPOINT_SUFFIX",
        "the cloud of the account's address [default: core.windows.net]",
    ),
    ("AZURE_TENANT_ID", "for Entra ID: the tenant's id or domain"),
    (
        "AZURE_CLIENT_ID",
        "for Entra ID: who asks; alone it names a user-assigned managed identity",
    ),
    (
        "AZURE_FEDERATED_TOKEN_FILE",
        "workload identity: the file that Kubernetes renews",
    ),
    ("AZURE_CLIENT_SECRET", "the client's secret"),
    (
        "AZURE_AUTHORITY_HOST",
        "who issues the tokens [default: by the cloud of the account's address]",
    ),
    (
        "HTTPS_PROXY",
        "the way to the outside, for https; plain http stays on this machine",
    ),
    ("NO_PROXY", "what to reach without it"),
    (
        "SSL_CERT_FILE",
        "the certificates of the authorities to trust, instead of the system's",
    ),
];

/// clap's own parser has its say about an empty path; the plan's is the better one.
pub(super) fn path() -> impl TypedValueParser<Value = PathBuf> {
    OsStringValueParser::new().map(PathBuf::from)
}
