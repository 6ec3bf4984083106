//! The flags that more than one verb has: the lock, waiting for it, credentials, what an instance
//! goes by and tells.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use clap::builder::{BoolishValueParser, OsStringValueParser};

use super::Rows;
use super::values::{
    AUTO, Checked, checked, doorbell, duration, endpoint, exit_status, identity, lease, not_empty,
    page_blob, path, poll, slots, vm_name, wait,
};
use crate::azure::Auth;
use crate::azure::scheduled_events::Endpoint;
use crate::core::IfLost;
use crate::doorbell::DoorbellAddress;
use crate::report::Format;

/// The lock, waiting for it, and the time that it lasts: what everybody has who competes.
#[derive(Clone, Debug, Args)]
pub struct Common {
    /// A lease on this Azure blob
    ///
    /// Blob and container are created if they are missing and never deleted; metadata of others is
    /// kept. Credentials come from the environment: AZURE_STORAGE_CONNECTION_STRING, or
    /// AZURE_STORAGE_ACCOUNT with AZURE_STORAGE_KEY or AZURE_STORAGE_SAS_TOKEN, or what Entra ID
    /// needs (see --auth).
    #[arg(long, value_name = "CONTAINER/NAME|URL", env = "TRAFFICCOP_BLOB", help_heading = "The lock (exactly one)", value_parser = checked(not_empty("name a CONTAINER/NAME or a URL")))]
    pub blob: Option<Checked<String>>,

    /// This file: on a local disk or a shared drive
    ///
    /// The file is created if it is missing and never deleted. All instances must name the same
    /// file. On this machine's own disk it is the kernel's lock; on a drive that machines share (NFS,
    /// SMB, whatever is not known to be local; see --shared) it is a lease, kept in the directory
    /// PATH.versions.
    #[arg(long, value_name = "PATH", env = "TRAFFICCOP_FILE", value_parser = path(), help_heading = "The lock (exactly one)")]
    pub file: Option<PathBuf>,

    /// Give up at once (exit 75) if another has it
    #[arg(short = 'n', long, env = "TRAFFICCOP_NO_WAIT", help_heading = "Waiting for control", value_parser = BoolishValueParser::new())]
    pub no_wait: bool,

    /// Give up (exit 75) after D [default: never]
    #[arg(short = 'w', long, value_name = "D", env = "TRAFFICCOP_WAIT", help_heading = "Waiting for control", value_parser = checked(wait))]
    pub wait: Option<(String, Checked<Duration>)>,

    /// Compete only while this, run by 'sh -c', exits 0
    ///
    /// Asked while waiting for control, every --poll; an answer counts until the next one. A machine that
    /// is not fit takes no control, and says why in the log, the status and /readyz; with -n, and at the
    /// end of -w, that is a reason not to obtain it (exit 75). A task that is done (--once) is done for it
    /// as well. It says nothing of who is in control: a holder is never stopped by it. It has 5 seconds
    /// (--poll, if that is longer) and no stdin, its output goes to stderr, and nothing of it outlives its
    /// answer: what hangs or is left behind is killed.
    #[arg(long = "if", value_name = "CMD", env = "TRAFFICCOP_IF", hide_short_help = true, help_heading = "Waiting for control", value_parser = OsStringValueParser::new())]
    pub only_if: Option<OsString>,

    /// Give up (exit 69) if the store has not answered at all within this time [default: 30s]
    ///
    /// Of the first contact only: a store that answered once is asked for ever, with a reminder in the
    /// log each minute. With --no-wait it is 5s at most, all in all.
    #[arg(long, value_name = "D", env = "TRAFFICCOP_CONNECT_TIMEOUT", hide_short_help = true, help_heading = "Waiting for control", value_parser = checked(duration))]
    pub connect_timeout: Option<Checked<Duration>>,

    /// Exit with 77 after the store has refused the credential for this long [default: 5m]
    ///
    /// Counts while standing by, for a credential that was accepted before: a key that was rotated, a SAS
    /// that ended, a role that was taken away. A restart reads the new one. From the first refusal on
    /// /readyz is 503, and the status names the cause. Any other answer, or none, begins the count anew.
    #[arg(long, value_name = "D", env = "TRAFFICCOP_AUTH_PATIENCE", hide_short_help = true, help_heading = "Waiting for control", value_parser = checked(duration))]
    pub auth_patience: Option<Checked<Duration>>,

    /// Exit with N instead of 75
    ///
    /// When control was not obtained (-n, -w; without them it is waited for): 0 keeps cron quiet on the
    /// machines that have nothing to do.
    #[arg(short = 'E', long, value_name = "N", env = "TRAFFICCOP_CONFLICT_EXIT_CODE", help_heading = "Waiting for control", value_parser = checked(exit_status))]
    pub conflict_exit_code: Option<Checked<u8>>,

    /// How many may have it at once [default: 1]
    ///
    /// The slots are locks of their own: NAME.0 to NAME.N-1, or PATH.0 and so on. All instances must
    /// name the same N (1 to 1000). A standby begins at a random slot and looks at up to four with
    /// each poll (with -n at all of them), on a file too. The command finds the number of its slot in
    /// TRAFFICCOP_SLOT.
    #[arg(long, value_name = "N", env = "TRAFFICCOP_SLOTS", help_heading = "The lock (exactly one)", value_parser = checked(slots))]
    pub slots: Option<Checked<u32>>,

    /// How often a standby looks [default: 2s]
    ///
    /// ±20 %. For --blob, --slots and shared drives; a local file's lock wakes its waiter by itself
    /// otherwise. While the holder drains, a standby looks eight times as often, between four times a
    /// second and every 2s. With more than 80 standbys on a blob, give them a second for every 40: 12s for
    /// 500.
    #[arg(long, value_name = "D", env = "TRAFFICCOP_POLL", help_heading = "Waiting for control", value_parser = checked(poll))]
    pub poll: Option<Checked<Duration>>,

    /// Tell standbys of a hand-over at once, by TCP
    ///
    /// Rings for the standbys while in control, and listens to the holder while standing by. The next
    /// command then starts within milliseconds of the release, and a standby of a blob polls every 12s only
    /// while it hears the holder. The holder listens on TCP at ADDR (auto, or without a value, where this machine
    /// speaks to the store; a free port) and says so in the lock's record; standbys connect to it
    /// where it is a private address, and another is refused. It only moves a look forward: the store
    /// decides who has control, and without an answer standbys poll as ever. There is no secret in it and
    /// no encryption. For --blob and shared drives; a local file's lock wakes its waiter by itself.
    // Without `require_equals` it would take the command for its address.
    #[arg(long, value_name = "ADDR[:PORT]", env = "TRAFFICCOP_DOORBELL", num_args = 0..=1, require_equals = true, default_missing_value = AUTO, help_heading = "Waiting for control", value_parser = checked(doorbell))]
    pub doorbell: Option<Checked<DoorbellAddress>>,

    /// How long a silent holder keeps the lock [default: 60s]
    ///
    /// 15s to 60s for --blob, 10s to 60s on a shared drive; without a meaning on a local disk. This is what
    /// a fail-over costs after the death of a whole machine; the death of the command or of trafficcop
    /// alone costs nothing of it. It is renewed every third of it.
    #[arg(long, value_name = "D", env = "TRAFFICCOP_LEASE", help_heading = "Time", value_parser = checked(lease))]
    pub lease: Option<Checked<Duration>>,

    /// From the stop signal to SIGKILL when the lease could not be renewed
    ///
    /// It is taken out of the lease, so that the command is gone before others can have control.
    /// By default it grows with the lease: 10s of 60s, 5s of 30s, 3s of 15s.
    #[arg(long, value_name = "D", env = "TRAFFICCOP_GRACE_ON_LOSS", hide_short_help = true, help_heading = "Time", value_parser = checked(duration))]
    pub grace_on_loss: Option<Checked<Duration>>,

    /// Between SIGKILL and the end of the lease
    ///
    /// By default it grows with the lease: 2s of 60s, 1s of 30s and less.
    #[arg(long, value_name = "D", env = "TRAFFICCOP_MARGIN", hide_short_help = true, help_heading = "Time", value_parser = checked(duration))]
    pub margin: Option<Checked<Duration>>,

    /// What to do after control was lost
    ///
    /// A guardian that died or fell silent is the end whatever is said here: the tree is killed, the lock
    /// given back, the exit status 70. A new guardian cannot be made.
    #[arg(long, value_name = "WHAT", env = "TRAFFICCOP_IF_LOST", value_enum, default_value_t = IfLost::Compete, hide_short_help = true, help_heading = "The command")]
    pub if_lost: IfLost,

    /// With --blob: use Azurite on this machine
    ///
    /// The well-known account of the storage emulator.
    #[arg(long, env = "TRAFFICCOP_EMULATOR", help_heading = "The lock (exactly one)", value_parser = BoolishValueParser::new())]
    pub emulator: bool,

    /// How we prove who we are.
    #[command(flatten)]
    pub access: Access,

    /// Create neither container nor blob; refuse if one is missing
    #[arg(long, env = "TRAFFICCOP_NO_CREATE", hide_short_help = true, help_heading = "With --blob", value_parser = BoolishValueParser::new())]
    pub no_create: bool,

    /// Create a page blob of SIZE bytes (K, M, G, T) instead of an empty block blob
    ///
    /// A multiple of 512; 512 if no size is given. An empty page blob costs nothing.
    // Without `require_equals` it would take the command for its size.
    #[arg(long, value_name = "SIZE", env = "TRAFFICCOP_PAGE_BLOB", hide_short_help = true, num_args = 0..=1, require_equals = true, default_missing_value = "512", help_heading = "With --blob", value_parser = checked(page_blob))]
    pub page_blob: Option<Checked<u64>>,

    /// Keep the lock as on a drive that machines share, whatever the file lies on
    ///
    /// It is not needed on NFS, SMB and others that are not known to be local, nor where the file
    /// says so itself: an instance on the server's own disk obeys that.
    #[arg(long, env = "TRAFFICCOP_SHARED", hide_short_help = true, help_heading = "With --file", value_parser = BoolishValueParser::new())]
    pub shared: bool,

    /// Promise that exactly one of two machines makes a directory on this drive
    ///
    /// For a shared drive that is not on trafficcop's list of file systems (NFS, SMB, CephFS, ...): a network
    /// object store that FUSE mounts, for instance. trafficcop refuses it otherwise (exit 69). If two machines
    /// that make the same directory are both told that they made it, two commands run. 'trafficcop doctor' on
    /// two machines at the same time tries it.
    #[arg(long, env = "TRAFFICCOP_MKDIR_IS_EXCLUSIVE", hide_short_help = true, help_heading = "With --file", value_parser = BoolishValueParser::new())]
    pub mkdir_is_exclusive: bool,

    /// What it goes by and what it tells.
    #[command(flatten)]
    pub operations: Operations,
}

/// What an instance goes by and what it tells, whatever it drives.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Being operated")]
pub struct Operations {
    /// How this instance is called in the log and in the lock's record [default: HOST-PID]
    #[arg(long, value_name = "S", env = "TRAFFICCOP_IDENTITY", hide_short_help = true, value_parser = checked(identity))]
    pub identity: Option<Checked<String>>,

    /// Keep a JSON file with the present state
    ///
    /// It is replaced at every change.
    #[arg(long, value_name = "F", env = "TRAFFICCOP_STATUS_FILE", value_parser = path())]
    pub status_file: Option<PathBuf>,

    /// The log on stderr
    #[arg(long, value_name = "FORMAT", env = "TRAFFICCOP_LOG", value_enum, default_value_t = Format::Text)]
    pub log: Format,

    /// Append every change of state to this file
    ///
    /// As a line of JSON. Any number of instances may share it. 'trafficcop timeline' shows who held
    /// control when from it; trafficcop-formats(5) says what stands in a line. A file that cannot be
    /// written costs a warning, never control.
    #[arg(long, value_name = "F", env = "TRAFFICCOP_EVENT_LOG", value_parser = path())]
    pub event_log: Option<PathBuf>,

    /// Log each renewal, and what is tried on the way
    #[arg(short, long, env = "TRAFFICCOP_VERBOSE", value_parser = BoolishValueParser::new())]
    pub verbose: bool,

    /// Log only warnings and errors
    #[arg(short, long, env = "TRAFFICCOP_QUIET", value_parser = BoolishValueParser::new())]
    pub quiet: bool,
}

/// How we prove who we are to an Azure service.
#[derive(Clone, Debug, Default, Args)]
pub struct Access {
    /// Which credential to use, of those in the environment
    ///
    /// auto takes the one that is there: an account key or a SAS; else a token of Entra ID by workload
    /// identity (AZURE_FEDERATED_TOKEN_FILE), by a client secret (AZURE_CLIENT_SECRET), by the
    /// machine's managed identity, or of the Azure CLI, in that order. Two that contradict each other
    /// are refused, and this flag says which. Tokens are renewed in the background, never while the
    /// lock is waiting for it.
    #[arg(long, value_name = "KIND", env = "TRAFFICCOP_AUTH", value_enum, default_value_t = Auth::Auto, hide_short_help = true, help_heading = "With --blob")]
    pub auth: Auth,

    /// Trust the certificates in this file (PEM) too, besides the system's
    ///
    /// For https to the storage, to Entra ID and to what --health asks, and for AMQP to Service Bus: through
    /// a proxy that looks inside, say. With --file it is for --health alone.
    #[arg(long, value_name = "PEM", env = "TRAFFICCOP_CA_FILE", hide_short_help = true, value_parser = path(), help_heading = "With --blob")]
    pub ca_file: Option<PathBuf>,
}

/// Being asked over HTTP.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Being operated")]
pub struct Listen {
    /// Answer over HTTP: health, status and metrics
    ///
    /// ADDR is an address and a port, or unix:/PATH. /healthz (200 while supervisor and guardian are
    /// sound), /readyz (200 for holder and standby, 503 until the
    /// store has answered, where --if says no, and where the store
    /// refuses the credential), /leader or /primary (200 only
    /// while the command runs and nobody else can have been given control, else 503), /status (JSON, as in
    /// the status file) and /metrics (for Prometheus), by GET, HEAD and OPTIONS. Port 0 takes a free one,
    /// and the log says which. A socket that was left behind is replaced.
    #[arg(long, value_name = "ADDR", env = "TRAFFICCOP_LISTEN")]
    pub listen: Option<String>,

    /// Let --listen take an address that other machines can reach
    ///
    /// There is neither encryption nor a password: whoever can reach it can read the names of lock,
    /// holder and host, and nothing can be changed by it.
    #[arg(long, env = "TRAFFICCOP_LISTEN_ANY", hide_short_help = true, value_parser = BoolishValueParser::new())]
    pub listen_any: bool,
}

/// What the platform announces for this machine.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "On Azure's virtual machines")]
pub struct ScheduledEvents {
    /// Hand control over before this virtual machine is frozen, rebooted, redeployed or taken away
    ///
    /// Asks Azure's metadata service every 5 seconds for its Scheduled Events. On a notice for this
    /// machine the command gets --grace to end (less, if the notice is shorter), the lock is given back,
    /// and not competed for until the event is gone. With -n or -w that is a reason not to obtain control
    /// (exit 75). Where there is no metadata service that is said once, and nothing else changes.
    #[arg(long, env = "TRAFFICCOP_SCHEDULED_EVENTS", hide_short_help = true, value_parser = BoolishValueParser::new())]
    pub scheduled_events: bool,

    /// Approve such an event as soon as the command has ended and the lock was given back
    ///
    /// Azure then begins at once, for all the machines the event names, instead of waiting for its time:
    /// only where nothing else on them needs that time.
    #[arg(long, env = "TRAFFICCOP_ACK_EVENTS", hide_short_help = true, value_parser = BoolishValueParser::new())]
    pub ack_events: bool,

    /// What this machine is called in the events [default: what the metadata service says, else HOST]
    #[arg(long, value_name = "NAME", env = "TRAFFICCOP_VM_NAME", hide_short_help = true, value_parser = checked(vm_name))]
    pub vm_name: Option<Checked<String>>,

    /// Where the metadata service is; for tests.
    #[arg(long, value_name = "URL", env = "TRAFFICCOP_SCHEDULED_EVENTS_ENDPOINT", hide = true, value_parser = checked(endpoint))]
    pub scheduled_events_endpoint: Option<Checked<Endpoint>>,
}

/// Where credentials for a storage account come from; `$sas`: what is to be said of a SAS.
macro_rules! credentials {
    ($sas:expr) => {
        rows! {
            "AZURE_STORAGE_CONNECTION_STRING" =>
                "a connection string as the portal shows it; UseDevelopmentStorage=true means Azurite",
            "AZURE_STORAGE_ACCOUNT" => "the account's name, with one of the next two, or with Entra ID",
            "AZURE_STORAGE_KEY" => "the account's key",
            "AZURE_STORAGE_SAS_TOKEN" => $sas,
            "AZURE_STORAGE_ENDPOINT_SUFFIX" =>
                "the cloud of the account's address [default: core.windows.net]",
            "AZURE_TENANT_ID" => "for Entra ID: the tenant's id or domain",
            "AZURE_CLIENT_ID" => "for Entra ID: who asks; alone it names a user-assigned managed identity",
            "AZURE_FEDERATED_TOKEN_FILE" => "workload identity: the file that Kubernetes renews",
            "AZURE_CLIENT_SECRET" => "the client's secret",
            "AZURE_AUTHORITY_HOST" =>
                "who issues the tokens [default: by the cloud of the account's address]",
            "HTTPS_PROXY" => "the way to the outside, for https; plain http takes none",
            "NO_PROXY" => "what to reach without it",
            "SSL_CERT_FILE" => "the certificates of the authorities to trust, instead of the system's",
        }
    };
}

/// Where credentials for --blob come from.
pub const FOR_THE_STORE: Rows<'_> = credentials!(
    "a shared access signature (read, write, create and, for a missing container, create container)"
);

/// Where credentials for --queue come from.
pub const FOR_THE_QUEUE: Rows<'_> = credentials!(
    "a shared access signature (read, process, update and add: rpua; and c, create, for a missing queue)"
);
