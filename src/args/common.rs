//! Flags of more than one verb: the lock, waiting for it, credentials, and an instance's name and outputs.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use super::Rows;
use super::values::{
    AUTO, Checked, checked, doorbell, duration, identity, lease, number, page_blob, path, poll,
    signal, vm_name,
};
use crate::azure::Auth;
use crate::core::IfLost;
use crate::doorbell::DoorbellAddress;
use crate::guardian::{Contain, StopTo};
use crate::report::Format;

// A standby that looks at four with each poll must see all of them.
const SLOTS: std::ops::RangeInclusive<u32> = 1..=1000;

/// The lock, waiting for it, and the time that it lasts: what everybody has who competes.
#[derive(Clone, Debug, Args)]
pub struct Common {
    /// A lease on this Azure blob
    ///
    /// Blob and container are created if they are missing and never deleted; other metadata is kept.
    /// Credentials come from the environment: AZURE_STORAGE_CONNECTION_STRING, or AZURE_STORAGE_ACCOUNT
    /// with AZURE_STORAGE_KEY or AZURE_STORAGE_SAS_TOKEN, or the variables for Entra ID (see --auth).
    #[arg(
        long,
        value_name = "CONTAINER/NAME|URL",
        help_heading = "The lock (exactly one)"
    )]
    pub blob: Option<String>,

    /// This file: on a local disk or a shared drive
    ///
    /// The file is created if it is missing and never deleted. All instances must name the same file. On
    /// this machine's own disk the lock is the kernel's. On a drive that machines share (NFS, SMB, any file
    /// system not known to be local; see --shared) it is a lease, kept in the directory PATH.versions.
    #[arg(long, value_name = "PATH", value_parser = path(), help_heading = "The lock (exactly one)")]
    pub file: Option<PathBuf>,

    /// This entry of any store, by a helper program
    ///
    /// HELPER is a path, or a name: trafficcop-store-HELPER in PATH or in /usr/share/trafficcop/stores. It reads and
    /// writes the entry NAME with compare-and-swap; trafficcop-store(7) has its contract.
    #[arg(
        long,
        value_name = "HELPER:NAME",
        help_heading = "The lock (exactly one)"
    )]
    pub store: Option<String>,

    /// Give up at once (exit 75) if another instance has the lock
    #[arg(short = 'n', long, help_heading = "Waiting for control")]
    pub no_wait: bool,

    /// Give up (exit 75) after D [default: never]
    #[arg(short = 'w', long, value_name = "D", help_heading = "Waiting for control", value_parser = checked(duration))]
    pub wait: Option<Checked<Duration>>,

    /// Compete only while CMD, run by 'sh -c', exits 0
    ///
    /// CMD runs every --poll while this instance waits for control. While CMD fails, this instance takes no control,
    /// and gives the reason in the log, the status and /readyz. With -n, and at the end of -w, the exit status is then
    /// 75. A task that is done (--once) counts as done on such a machine, too. --if never stops a holder. CMD has 5
    /// seconds (--poll, if that is longer) and no stdin, and its output goes to stderr. Processes that hang or stay
    /// behind are killed.
    #[arg(
        long = "if",
        value_name = "CMD",
        hide_short_help = true,
        help_heading = "Waiting for control"
    )]
    pub only_if: Option<OsString>,

    /// Give up (exit 69) if the store has not answered at all within D [default: 30s]
    ///
    /// Applies to the first contact only: once the store has answered, trafficcop retries without end, with
    /// a reminder in the log each minute. With --no-wait the limit is 5s at most.
    #[arg(long, value_name = "D", hide_short_help = true, help_heading = "Waiting for control",
        value_parser = checked(duration))]
    pub connect_timeout: Option<Checked<Duration>>,

    /// Exit with 77 after the store has refused the credential for D [default: 5m]
    ///
    /// Applies while standing by, to a credential that worked before: a key that was rotated, a SAS that
    /// expired, a role that was removed. A restart reads the new credential. From the first refusal on
    /// /readyz answers 503, and the status names the cause. Any other answer, or none, starts the time
    /// anew.
    #[arg(long, value_name = "D", hide_short_help = true, help_heading = "Waiting for control",
        value_parser = checked(duration))]
    pub auth_patience: Option<Checked<Duration>>,

    /// Exit with N instead of 75
    ///
    /// Applies when control was not obtained (-n, -w): 0 keeps cron quiet on the machines that have nothing
    /// to do.
    #[arg(short = 'E', long, value_name = "N", help_heading = "Waiting for control",
        value_parser = checked(number(0..=u8::MAX)), hide_short_help = true)]
    pub conflict_exit_code: Option<Checked<u8>>,

    /// Number of holders at the same time [default: 1]
    ///
    /// The slots are separate locks: NAME.0 to NAME.N-1, or PATH.0 and so on. All instances must name the
    /// same N (1 to 1000). A standby begins at a random slot and tries up to four with each poll (with -n
    /// all of them). The command finds the number of its slot in TRAFFICCOP_SLOT.
    #[arg(long, value_name = "N", hide_short_help = true, help_heading = "The lock (exactly one)",
        value_parser = checked(number(SLOTS)))]
    pub slots: Option<Checked<u32>>,

    /// How often a standby checks the lock [default: 2s]
    ///
    /// ±20 %. For --blob, --store, --slots and shared drives; on a local file the kernel wakes the standby. While
    /// the holder drains, a standby checks eight times as often, between four times a second and every 2s.
    /// With more than 80 standbys on a blob, add a second for every 40: 12s for 500.
    #[arg(long, value_name = "D", help_heading = "Waiting for control", value_parser = checked(poll),
        hide_short_help = true)]
    pub poll: Option<Checked<Duration>>,

    /// Tell standbys of a hand-over immediately, by TCP
    ///
    /// Standbys keep a TCP connection to the holder, which notifies them. The next command then starts within
    /// milliseconds of the release. A standby of a blob polls only every 12s while it hears the holder. The holder
    /// listens at ADDR (auto, or no value: the address from which this machine reaches the store; any free port) and
    /// writes the address into the lock's record. Standbys connect to it only if it is a private address. A
    /// notification only makes a standby check earlier: the store decides who has control, and without one standbys
    /// poll as usual. The connection carries no secret and is not encrypted. For --blob, --store and shared drives; on
    /// a local file the kernel wakes the standby.
    // Without `require_equals` it would take the command for its address.
    #[arg(long, value_name = "ADDR[:PORT]", num_args = 0..=1, require_equals = true, default_missing_value = AUTO,
        help_heading = "Waiting for control", value_parser = checked(doorbell), hide_short_help = true)]
    pub doorbell: Option<Checked<DoorbellAddress>>,

    /// Time that a silent holder keeps the lock [default: 60s]
    ///
    /// 15s to 60s for --blob, 10s to 60s for --store and on a shared drive; it does nothing on a local disk.
    /// If the holder's machine or container died, a standby takes over after this time. If only the command
    /// or trafficcop died, it takes over after about --poll. The holder renews the lease every third of it.
    #[arg(long, value_name = "D", help_heading = "Waiting for control", value_parser = checked(lease))]
    pub lease: Option<Checked<Duration>>,

    /// Time from the stop signal to SIGKILL if the lease cannot be renewed [default: 10s with a lease of 60s]
    ///
    /// Part of the lease, so that the command is gone before another instance can have control. The default
    /// grows with the lease: 3s with 15s, 5s with 30s.
    #[arg(long, value_name = "D", hide_short_help = true, help_heading = "Time", value_parser = checked(duration))]
    pub grace_on_loss: Option<Checked<Duration>>,

    /// Time from SIGKILL to the end of the lease [default: 2s with a lease of 60s]
    ///
    /// The default grows with the lease: 1s with 30s and less.
    #[arg(long, value_name = "D", hide_short_help = true, help_heading = "Time", value_parser = checked(duration))]
    pub margin: Option<Checked<Duration>>,

    /// Action after control was lost
    ///
    /// If the guardian dies or falls silent, trafficcop always ends: it kills the process tree, gives the
    /// lock back and exits with 70, because a new guardian cannot be started.
    #[arg(long, value_name = "WHAT", value_enum, default_value_t = IfLost::Compete, hide_short_help = true,
        help_heading = "The command")]
    pub if_lost: IfLost,

    /// With --blob: use Azurite on this machine
    ///
    /// The well-known account of the storage emulator.
    #[arg(long, help_heading = "The lock (exactly one)", hide_short_help = true)]
    pub emulator: bool,

    /// Credential of this instance.
    #[command(flatten)]
    pub access: Access,

    /// Create neither container nor blob; refuse if one is missing
    #[arg(long, hide_short_help = true, help_heading = "With --blob")]
    pub no_create: bool,

    /// Create a page blob of SIZE bytes (K, M, G, T; without SIZE 512), not an empty block blob
    ///
    /// SIZE is a multiple of 512. An empty page blob costs nothing.
    // Without `require_equals` it would take the command for its size.
    #[arg(long, value_name = "SIZE", hide_short_help = true, num_args = 0..=1, require_equals = true,
        default_missing_value = "512", help_heading = "With --blob", value_parser = checked(page_blob))]
    pub page_blob: Option<Checked<u64>>,

    /// Treat the file as on a drive that machines share, whatever file system it is on
    ///
    /// trafficcop knows NFS and SMB by itself, and treats any file system that is not known to be local as
    /// shared. On the file server's own disk, trafficcop also honours a shared lock that other machines made.
    #[arg(long, hide_short_help = true, help_heading = "With --file")]
    pub shared: bool,

    /// Promise that if two machines make the same directory here, exactly one succeeds
    ///
    /// For a shared drive that is not on trafficcop's list of file systems (NFS, SMB, CephFS, ...), for
    /// example a network object store mounted by FUSE. trafficcop refuses such a drive otherwise (exit 69).
    /// If two machines that make the same directory are both told that they made it, two commands run.
    /// 'trafficcop doctor' on two machines at the same time tests it.
    #[arg(long, hide_short_help = true, help_heading = "With --file")]
    pub mkdir_is_exclusive: bool,

    /// Name of the instance, its log and its outputs.
    #[command(flatten)]
    pub operations: Operations,
}

/// Name of an instance, its log and its outputs.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Being operated")]
pub struct Operations {
    /// Name of this instance in the log and in the lock's record [default: HOST-PID]
    #[arg(long, value_name = "S", hide_short_help = true, value_parser = checked(identity))]
    pub identity: Option<Checked<String>>,

    /// Keep a JSON file with the present state
    ///
    /// trafficcop replaces the file at every change.
    #[arg(long, value_name = "F", value_parser = path(), hide_short_help = true)]
    pub status_file: Option<PathBuf>,

    /// The log on stderr
    #[arg(long, value_name = "FORMAT", value_enum, default_value_t = Format::Text, hide_short_help = true)]
    pub log: Format,

    /// Append every change of state to this file
    ///
    /// Each is a line of JSON. Any number of instances may share the file. 'trafficcop timeline' reads it and shows
    /// who had each lock when; trafficcop-formats(5) describes a line. A file that cannot be written costs a warning,
    /// never control.
    #[arg(long, value_name = "F", value_parser = path(), hide_short_help = true)]
    pub event_log: Option<PathBuf>,

    /// Log each renewal and each attempt
    #[arg(short, long, hide_short_help = true)]
    pub verbose: bool,

    /// Log only warnings and errors
    #[arg(short, long)]
    pub quiet: bool,
}

/// Credential for an Azure service.
#[derive(Clone, Debug, Default, Args)]
pub struct Access {
    /// Which credential in the environment to use
    ///
    /// auto takes the first that is set: an account key or a SAS; else a token of Entra ID by workload
    /// identity (AZURE_FEDERATED_TOKEN_FILE), by a client secret (AZURE_CLIENT_SECRET), by the machine's
    /// managed identity, or by the Azure CLI, in that order. Two that contradict each other are refused;
    /// this flag then chooses. Tokens are renewed in the background: a renewal of the lock never waits for
    /// one.
    #[arg(long, value_name = "KIND", value_enum, default_value_t = Auth::Auto, hide_short_help = true,
        help_heading = "With --blob")]
    pub auth: Auth,

    /// Trust the certificates in this file (PEM) in addition to the system's
    ///
    /// For https to the storage and to Entra ID, for --health of run and elect, and for AMQP of work to
    /// Service Bus. Use it for example behind a proxy that inspects TLS. With --file only --health uses it.
    #[arg(long, value_name = "PEM", hide_short_help = true, value_parser = path(), help_heading = "With --blob")]
    pub ca_file: Option<PathBuf>,
}

/// Being asked over HTTP.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Being operated")]
pub struct Listen {
    /// Serve health, status and metrics over HTTP
    ///
    /// ADDR is an address and a port, or unix:/PATH. /healthz answers 200 while supervisor and guardian are sound.
    /// /readyz answers 200 for holder, standby and worker, and 503 until the store or the queue has answered, while it
    /// refuses the credential, and while --if fails. /leader and /primary answer 200 only while the command runs and
    /// no other instance can have been given control, else 503; for a worker always 503. /status is JSON, as in the
    /// status file, and /metrics is for Prometheus. Methods: GET, HEAD and OPTIONS. Port 0 takes a free port, which
    /// the log names. A socket that was left behind is replaced.
    #[arg(long, value_name = "ADDR", hide_short_help = true)]
    pub listen: Option<String>,

    /// Let --listen take an address that other machines can reach
    ///
    /// There is no encryption and no password: everyone who can connect can read the names of lock, holder
    /// and host. Nothing can be changed through it.
    #[arg(long, hide_short_help = true)]
    pub listen_any: bool,
}

/// How a command is ended, and what keeps its processes together.
#[derive(Clone, Debug, Default, Args)]
pub struct Stopping {
    /// Signal that asks the command to end [default: TERM]
    ///
    /// A name or a number. The command gets this signal whatever signal trafficcop got. With none no process gets a
    /// signal: the command asks 'trafficcop check', and processes that are left at the end of the grace are killed.
    #[arg(long, value_name = "SIG", hide_short_help = true, help_heading = "The command",
        value_parser = checked(signal))]
    pub stop_signal: Option<Checked<i32>>,

    /// Processes that get the stop signal [default: group]
    ///
    /// With main only the command's main process gets it, and ends the rest itself. SIGKILL at the end of the grace
    /// goes to all processes of the command either way. On a terminal the kernel sends Ctrl-C to the whole
    /// foreground group. Hooks and the --standby command of run always get SIGTERM, in their whole group.
    #[arg(long, value_name = "WHO", value_enum, default_value_t = StopTo::Group, hide_default_value = true,
        hide_short_help = true, help_heading = "The command")]
    pub stop_to: StopTo,

    /// Containment of the command's processes
    ///
    /// If a mode named here is not available, trafficcop refuses to start; it never takes a weaker one. With -v
    /// the log of run names the mode in force.
    #[arg(long, value_name = "MODE", value_enum, default_value_t = Contain::Auto, hide_short_help = true,
        help_heading = "The command")]
    pub contain: Contain,
}

/// Events that the platform announces for this machine.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "On Azure's virtual machines")]
pub struct ScheduledEvents {
    /// Hand control over before this virtual machine is frozen, rebooted, redeployed or removed
    ///
    /// Asks Azure's metadata service every 5 seconds for its Scheduled Events. On a notice for this machine
    /// the command gets --grace to end (less, if the notice is shorter), and the lock is given back. This
    /// instance competes again when the event is gone. With -n or -w control then counts as not obtained
    /// (exit 75). Without a metadata service trafficcop logs that once, and nothing else changes.
    #[arg(long, hide_short_help = true)]
    pub scheduled_events: bool,

    /// Approve a scheduled event as soon as the command has ended and the lock was given back
    ///
    /// Azure then begins immediately, for all the machines that the event names, instead of waiting for its
    /// time. Use it only where no other program on them needs that time.
    #[arg(long, hide_short_help = true)]
    pub ack_events: bool,

    /// Name of this machine in the events [default: the metadata service's name for it, else HOST]
    #[arg(long, value_name = "NAME", hide_short_help = true, value_parser = checked(vm_name))]
    pub vm_name: Option<Checked<String>>,
}

/// Sources of credentials for a storage account; `$sas`: the text about a SAS.
macro_rules! credentials {
    ($sas:expr) => {
        rows! {
            "AZURE_STORAGE_CONNECTION_STRING" =>
                "a connection string as the portal shows it; UseDevelopmentStorage=true means Azurite",
            "AZURE_STORAGE_ACCOUNT" => "the account's name, with one of the next two, or with Entra ID",
            "AZURE_STORAGE_KEY" => "the account's key",
            "AZURE_STORAGE_SAS_TOKEN" => $sas,
            "AZURE_STORAGE_ENDPOINT_SUFFIX" =>
                "the suffix of the account's address [default: core.windows.net]",
            "AZURE_TENANT_ID" => "for Entra ID: the tenant's id or domain",
            "AZURE_CLIENT_ID" => "for Entra ID: the client's id; alone it names a user-assigned managed identity",
            "AZURE_FEDERATED_TOKEN_FILE" => "workload identity: the file that Kubernetes renews",
            "AZURE_CLIENT_SECRET" => "the client's secret",
            "AZURE_AUTHORITY_HOST" =>
                "the issuer of the tokens [default: by the cloud of the account's address]",
            "HTTPS_PROXY" => "the proxy for https; plain http takes none",
            "NO_PROXY" => "hosts to reach without it",
            "SSL_CERT_FILE" => "the certificates of the authorities to trust, instead of the system's",
        }
    };
}

/// Sources of credentials for --blob.
pub const FOR_THE_STORE: Rows<'_> = credentials!(
    "a shared access signature (read, write, create and, for a missing container, create container)"
);

/// Sources of credentials for --queue.
pub const FOR_THE_QUEUE: Rows<'_> = credentials!(
    "a shared access signature (read, process, update and add: rpua; and c, create, for a missing queue)"
);
