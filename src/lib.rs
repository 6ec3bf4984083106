//! Run a command, or a part of a program, on many machines, on at most one at a time.
//!
//! A program on tokio (with its features `macros` and `rt`) that waits for control, has it, and gives it back:
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
//! Work that is dropped when control is lost, and begun again with the next:
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
//!         Err(lost) => eprintln!("{lost}"),
//!     }
//! }
//! # }
//! ```
//! [`TrafficCop`] and its [`Guard`] are for a program that competes for control, [`Worker`] and [`MessageLock`]
//! for one that processes the messages of a [`queue`], [`Connection`] for an account that the environment does
//! not name, [`Deadline`] for one that `trafficcop run` has started;
//! [`LeaseStore`] is what a lock of your own implements. Without the feature `cli`, which is on by
//! default, the command line is not compiled in, nor what only it needs.
//!
//! # The promise
//! No process of the command's tree is alive at a moment when another instance could already have
//! been given control. The command is never stopped without need.
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
//! | `core` | decides; pure: time comes in as a value, what is to be done comes out |
//! | `driver` | the one place where a lease and a process meet; it owns no policy |
//! | `doorbell` | the holder tells its standbys of a change; it moves their looks and decides nothing |
//! | `lease` | the stores: one trait, one folder for each; `azure` is what two of them share |
//! | `guardian` | processes: the guardian, the command's tree, its containment, the terminal |
//! | `run`, `elect`, `work` | the drivers' workloads: a command, a reader of control, a command for each message of a `queue` |
//! | `hooks` | what one guardian runs after another: standby command, `--on-acquire`, command |
//! | `cli`, `args`, `config` | what was typed, and what it comes to once it is checked |
//! | `commands`, `timeline` | what looks at locks, at control, at event logs |
//! | `report`, `status`, `events`, `notify`, `serve` | who is told: people, files, systemd, HTTP |
//! | `embed`, `deadline` | the library's face, and the deadline as a command sees it |
//!
//! # Glossary
//! | word | meaning |
//! |---|---|
//! | lease | control of a lock for a time that its store counts, to be renewed; a local file's lock has no end |
//! | holder, standby | the instance that has the lease; one that waits for it |
//! | tenure | from one instance's acquiring of the lease to its end; numbered by the fencing token |
//! | fencing token | a number that grows with every tenure, for resources that can refuse an older one |
//! | renew, t0 | prolong the lease; the moment before the request was sent, from which it counts |
//! | margin, grace | the time kept for clocks that drift; the time a command gets from its stop signal to SIGKILL |
//! | `term_at`, `kill_at` | when the command is asked to end, and when it is killed, if no renewal succeeds |
//! | drain | the command's tree is asked to end, and killed after the grace; then the lease is given back |
//! | doubt, lost | the store has not answered since some time; it said that the lease is not ours |
//! | supervisor, guardian | the process that was started; its child, which has the command's tree and outlives it |
//! | containment | what keeps a tree together beyond descent: a cgroup, a PID namespace, or nothing |
//! | workload, observer | what a driver runs while it has control; who is told what happens |
//! | `release_info`, orphaned | what the guardian needs to give the lease back; its supervisor is dead |
//! | cordoned, cooling down | not competing because this machine is about to be disturbed, or to let others have a turn |
//! | unfit, condition | not competing because the condition (`--if`) said no of this machine |
//! | hung, check | of a command that runs and does not work; what asks it whether it does (`--health`) |
//! | slot | one of N locks under one name (`--slots`), whose number its holder's command has |
//! | period | the hour or day, by the store's clock, in which a task is to be done once (`--once-per`) |
//! | dead-lettered | of a message: put aside for people, in the poison queue or the dead-letter queue |
//! | session, lock delay | messages of one key, in order, under one lock; what a worker waits for that took a session over |
//! | record, version | what a holder leaves beside its lock for people and standbys; one step of a lock on a shared drive |
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

/// What the program `trafficcop` and the tests of this repository use. It changes with any version.
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

    /// What reads the bytes of others, for the fuzz targets (`tests/it/fuzzed`).
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
