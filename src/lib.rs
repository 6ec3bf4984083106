//! Runs a command, or a part of a program, on one of many machines at a time.
//!
//! # For users of the library
//! A program on tokio (features `macros`, `rt-multi-thread`, `signal`, `time`) that waits for control, works, and
//! gives control back:
//! ```no_run
//! #[tokio::main(flavor = "current_thread")]
//! async fn main() -> Result<(), trafficcop::Error> {
//!     let cop = trafficcop::TrafficCop::file("/tmp/one.lock")?.start().await?;
//!     let guard = cop.acquired().await?;
//!     println!("in control, token {}", guard.token());
//!     drop(guard);
//!     cop.stop().await?;
//!     Ok(())
//! }
//! ```
//! Work that is dropped when control is lost, and begins again with the next control:
//! ```no_run
//! # async fn rebuild_the_index(_token: u64) {}
//! # async fn example() -> Result<(), trafficcop::Error> {
//! use trafficcop::TrafficCop;
//!
//! let cop = TrafficCop::blob("locks/index")?.start().await?; // or ::file("/mnt/share/index.lock")?
//! loop {
//!     let guard = cop.acquired().await?;
//!     match guard.run(rebuild_the_index(guard.token())).await {
//!         Ok(()) => break,
//!         Err(lost) => eprintln!("{lost}"), // It was dropped where it waited: compete again.
//!     }
//! }
//! cop.stop().await?;
//! # Ok(())
//! # }
//! ```
//! Messages of a storage queue, each with a lock that renews itself:
//! ```no_run
//! # async fn ship(_order: &[u8]) {}
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let orders = trafficcop::Worker::queue("orders")?.start().await?;
//! loop {
//!     let order = orders.next().await?;
//!     match order.run(ship(order.body())).await {
//!         Ok(()) => order.complete().await?,
//!         Err(lost) => eprintln!("{lost}"), // Another worker may have it now.
//!     }
//! }
//! # }
//! ```
//! | if you want to | use |
//! |---|---|
//! | compete for control | [`TrafficCop`] and its [`Guard`] |
//! | set the lease, a name, a watchdog or a doorbell | [`Builder`] |
//! | process the messages of a [`queue`] | [`Worker`] and [`MessageLock`] |
//! | name an account that is not in the environment | [`Connection`] |
//! | ask inside a command of `trafficcop run` whether it is in control | [`Deadline`] |
//! | bring a lock of your own | [`LeaseStore`] |
//!
//! `default-features = false` leaves out the command line (`cli`), Entra ID (`entra`) and Service Bus
//! (`service-bus`). `features = ["entra"]` brings Entra ID back; without it there are keys and SAS only.
//!
//! # For contributors: where do I put a …
//! | new thing | place |
//! |---|---|
//! | flag | its struct in `src/args`; its rows in `src/args/relations.rs`; its meaning in `src/config` |
//! | store | a folder in `crates/lease/src` and a variant in `src/config/lock.rs`; or a helper, without a line here |
//! | rule of the core | `crates/core/src/tenure`, with a row in its golden table |
//! | notice | `core/src/event.rs`; rows in `src/report/happened.rs` and `timeline/src/record.rs`; a scene |
//! | metric | `src/serve/metrics.rs`, and a row in `docs/reference.md` |
//! | field of the status file | `src/status.rs`, and the observers of `run` and `work` that fill it |
//! | message to a user | beside the code that fails; `tests/it/documents/messages.rs` lists them all |
//! | test | beside the code; in `tests/it` if it needs the program |
//!
//! # The promise
//! No process of the command's tree is alive when another instance could already have been given control.
//! trafficcop never stops the command without need.
//!
//! # The way from the command line to the command
//! ```text
//! argv ─▶ cli ─▶ args ─▶ config ─▶ run ─▶ drive(store, workload) ─▶ Ending ─▶ exit
//!
//! signals ────────┐                         ┌─▶ lease (blob | file | shared file) ── reply ─▶ event
//! lease replies ──┼─▶ driver ─ core.step ─▶ │
//! tree events ────┤      (pure)   actions   └─▶ workload ══ requests, events ══ guardian ── command
//! clock ──────────┘                                                             └ timer, end of file
//! ```
//! | module | what it is |
//! |---|---|
//! | `core` | decides; pure: it gets the time as a value and returns actions |
//! | `driver` | connects a lease and a process; decides nothing |
//! | `doorbell` | tells standbys that control changes |
//! | `lease` | the stores: one trait, and a folder for each |
//! | `guardian` | processes: the guardian, the command's tree, its containment, the terminal |
//! | `run`, `elect`, `work` | workloads of the driver: a command, a reader of control, a command for each message |
//! | `hooks` | the order of standby command, `--on-acquire` and command |
//! | `cli`, `args`, `config` | the command line, and the checked settings that it results in |
//! | `commands`, `timeline` | the verbs that look at locks, control and event logs |
//! | `report`, `status`, `events`, `notify`, `serve` | reports to people, files, systemd and HTTP |
//! | `embed`, `deadline` | the library's interface, and the deadline as a command sees it |
//!
//! # Glossary
//! | word | meaning |
//! |---|---|
//! | lease | control of a lock for a time that its store counts, to be renewed; a local file's lock has no end |
//! | holder, standby | the instance that has the lease; one that waits for it |
//! | tenure | from one instance's acquiring of the lease to its end; numbered by the fencing token |
//! | fencing token | a number that grows with every tenure, for resources that can refuse an older one |
//! | renew, t0 | prolong the lease; the moment before the request was sent, from which it counts |
//! | margin, grace | time kept for clocks that drift; time from stop signal to SIGKILL (`work`: before the signal) |
//! | `term_at`, `kill_at` | when the command is asked to end, and when it is killed, if no renewal succeeds |
//! | drain | the command's tree is asked to end, and killed after the grace; then the lease is given back |
//! | doubt, lost | the store has not answered since some time; it said that the lease is not ours |
//! | supervisor, guardian | the process that was started; its child, which has the command's tree and outlives it |
//! | containment | what keeps a tree together beyond descent: a cgroup, a PID namespace, or nothing |
//! | workload, observer | what a driver runs while it has control; who is told what happens |
//! | `release_info`, orphaned | what the guardian needs to give the lease back; its supervisor is dead |
//! | cordoned, cooling down | not competing: this machine is about to be disturbed, or others have a turn |
//! | unfit, condition | not competing because the condition (`--if`) said no of this machine |
//! | hung, check | of a command that runs and does not work; what asks it whether it does (`--health`) |
//! | slot | one of N locks under one name (`--slots`), whose number its holder's command has |
//! | period | the hour or day, by the store's clock, in which a task is to be done once (`--once-per`) |
//! | dead-lettered | of a message: moved to the poison queue or the dead-letter queue, for people |
//! | session, lock delay | messages of one key, in order, under one lock; wait of a worker that took a session over |
//! | record, version | what a holder leaves beside its lock for standbys; one step of a shared drive's lock |
//! | task log | the results of tasks that are to be done once (`--once`), kept with the record |

#[cfg(feature = "cli")]
mod args;
#[cfg(feature = "cli")]
mod cli;
#[cfg(feature = "cli")]
mod commands;
#[cfg(feature = "cli")]
mod config;
mod deadline;
#[cfg_attr(
    not(feature = "cli"),
    expect(unreachable_pub, reason = "it is the flag's value that the tests see")
)]
mod doorbell;
#[cfg_attr(
    not(feature = "cli"),
    expect(
        dead_code,
        unreachable_pub,
        reason = "a program is told less than people are"
    )
)]
mod driver;
#[cfg(feature = "cli")]
mod elect;
mod embed;
#[cfg(feature = "cli")]
mod events;
#[cfg(feature = "cli")]
mod exit;
#[cfg(feature = "cli")]
mod hooks;
#[cfg_attr(
    not(feature = "cli"),
    expect(dead_code, unreachable_pub, reason = "a program is asked for less")
)]
mod host;
#[cfg(feature = "cli")]
mod notify;
#[cfg(feature = "cli")]
mod report;
#[cfg(feature = "cli")]
mod run;
#[cfg(feature = "cli")]
mod serve;
#[cfg_attr(
    not(feature = "cli"),
    expect(
        dead_code,
        unreachable_pub,
        reason = "a program keeps its signals to itself"
    )
)]
mod signals;
#[cfg(feature = "cli")]
mod status;
mod work;

use trafficcop_azure as azure;
#[cfg(feature = "cli")]
use trafficcop_core::machine::{background_writer, runtime};
use trafficcop_core::machine::{lasting, procfs};
#[cfg(feature = "cli")]
use trafficcop_core::units;
use trafficcop_core::{self as core, clock, util};
use trafficcop_guardian as guardian;
use trafficcop_lease as lease;

pub mod queue;

pub use crate::core::{
    Bell, Budget, BudgetError, Cause, Ending, Exit, Failed, Failure, Grant, HandOverReason,
    HolderInfo, Hung, Outcome, ProbeFailure, TaskResult, TlsFailure, Unfit,
};
pub use azure::{Account, AccountError, AuthOptions};
pub use clock::Instant;
pub use deadline::{Deadline, DeadlineError};
pub use embed::{
    AccountCredential, Builder, Connection, Control, Error, Guard, Lost, MessageLock, TrafficCop,
    Worker, WorkerBuilder,
};
pub use lease::{LeaseStore, OrphanRelease, RecordUpdate, StoreInfo};

/// Items for the program `trafficcop` and the tests, which change with any version.
#[doc(hidden)]
pub mod internals {
    #[cfg(feature = "cli")]
    pub use crate::cli::{check_stack, main};

    macro_rules! open {
        ($($(#[$when:meta])* $room:ident)*) => {$(
            $(#[$when])*
            pub mod $room {
                pub use crate::$room::*;
            }
        )*};
    }

    /// Parsers of untrusted bytes, for the fuzz targets (`tests/it/fuzzed`).
    pub mod parsers {
        pub use crate::doorbell::{greeting, rank_in, understand};
        #[cfg(feature = "service-bus")]
        pub use trafficcop_service_bus::frame_scanner::{FrameEvent, FrameScanner};
    }

    open! {
        #[cfg(feature = "cli")] args
        #[cfg(feature = "cli")] driver
        #[cfg(feature = "cli")] events
        #[cfg(feature = "cli")] exit
        #[cfg(feature = "cli")] report
        #[cfg(feature = "cli")] run
        #[cfg(feature = "cli")] signals
        #[cfg(feature = "cli")] status
        work
    }
}
