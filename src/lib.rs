//! Run a command, or a part of a program, on exactly one of many machines, and never on two.
//!
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
//! The face of the library is what is named at this level: [`TrafficCop`] and its [`Guard`] for a
//! program that competes for control, [`MessageLock`] for one that processes the messages of a queue,
//! [`Deadline`] for one that `trafficcop run` has started; [`LeaseStore`] is what a lock of your own
//! implements. What is in the modules may change with any version. Without the feature `cli`, which
//! is on by default, the command line is not compiled in, nor what only it needs.
//!
//! # The promise
//! No process of the command's tree is alive at a moment when another instance could already have
//! been given control. The command is never stopped without need.
//!
//! # The way through the house
//! ```text
//! argv ─ cli ─▶ plan ─▶ run ─▶ hold(store, guardian) ─▶ Ending ─▶ exit
//!
//! signals ────────┐                        ┌─▶ lease (blob | file) ── reply ─▶ event
//! lease replies ──┼─▶ hold ─▶ core.step ─▶ │
//! tree events ────┤     (pure)   actions   └─▶ guardian ══ frames ══ guardian ── command's tree
//! clock ──────────┘                                                     └ own timer, end of file, child exit
//! ```
//! - [`core`] decides. It is pure: time comes in as a value, and what is to be done comes out.
//! - [`lease`] speaks to a store: one trait, one file per store. [`azure`] is what the stores on
//!   Azure share.
//! - [`guardian`] owns processes: the guardian, the command's tree, containment, the terminal.
//! - [`drive`] is the one place where a lease and a process meet. It owns no policy.
//! - [`notify`] tells a service manager (systemd) how we are, and passes on what the command says.
//! - `serve` answers over HTTP (`--listen`), from a thread of its own.
//! - [`deadline`] is the same question asked from inside a command; [`check`] asks it for scripts.
//! - [`elect`] drives the driver with nothing but a process that tells a reader of control:
//!   [`announce`].
//! - [`verbs`] look at locks, and intervene: status, list, watch, break, reset, doctor.
//! - [`work`] drives the driver once for each message of a [`queue`]: its lock is the lease.
//! - [`roles`] decides what one guardian runs after another: standby command, hook, command.
//! - [`run`] drives the driver for the command line; [`plan`] is the validated configuration, `cli` what
//!   was typed, [`exit`] how we end, [`report`] everything a person reads.
//! - [`embed`] drives the driver for a program that competes itself; [`host`] finds who and where we
//!   are, for it and for the command line.
//! - `procfs` reads files of /proc at once, for what happens before a command starts.
//! - [`events`] is the log for those who ask afterwards, [`timeline`] answers them.

#[cfg(feature = "cli")]
pub mod args;
pub mod azure;
#[cfg(any(feature = "cli", feature = "entra"))]
#[cfg_attr(
    not(feature = "cli"),
    expect(dead_code, reason = "a token is only asked for in a thread of its own")
)]
mod background_writer;
#[cfg(feature = "cli")]
pub mod check;
pub mod clock;
#[cfg(feature = "cli")]
pub mod commands;
#[cfg(feature = "cli")]
pub mod config;
pub mod core;
pub mod deadline;
pub mod driver;
#[cfg(feature = "cli")]
pub mod elect;
pub mod embed;
#[cfg(feature = "cli")]
pub mod events;
#[cfg(feature = "cli")]
pub mod exit;
pub mod guardian;
#[cfg(feature = "cli")]
pub mod hooks;
pub mod host;
pub mod lease;
#[cfg(feature = "cli")]
pub mod notify;
mod procfs;
pub mod queue;
#[cfg(feature = "cli")]
pub mod report;
#[cfg(feature = "cli")]
pub mod run;
mod runtime;
#[cfg(feature = "http")]
pub mod serve;
pub mod signals;
#[cfg(feature = "cli")]
pub mod status;
#[cfg(feature = "cli")]
pub mod timeline;
#[cfg(feature = "cli")]
pub mod units;
pub mod work;

pub use crate::core::{Budget, BudgetError, Cause, Ending, Failure, Grant, HolderInfo};
pub use clock::Instant;
pub use deadline::{Deadline, DeadlineError};
pub use embed::{Builder, Control, Error, Guard, Lost, MessageLock, TrafficCop};
pub use lease::{LeaseStore, StoreInfo};
