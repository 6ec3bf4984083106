//! The validated configuration. A [`Config`] cannot be inconsistent. A setting that does not fit is a
//! [`UsageError`] of one line, with the value, the reason and the remedy.
//!
//! Called by `main` before anything is forked, opened or connected. The parsers in `args` check each value
//! alone; this module checks the settings against each other and against the machine. It only looks at the
//! paths that were given. It must never create, print or exit.
//!
//! | file | purpose |
//! |---|---|
//! | `run`, `elect`, `work` | the configuration of each verb that drives something |
//! | `lock` | the lock that was named, with every kind of lock in one place |
//! | `policy` | restarts, handing control round, tasks that run once |
//! | `outputs` | the files that trafficcop writes, and the sockets on which it answers |
//! | `look` | reads paths whose drive may not answer |
//! | `health` | the checks of whether the command works |
//! | `azure` | credentials, and Azure's notices for this machine |
//! | `command` | checks that there is a command |
//! | `quote` | commands in the form in which a user would type them |

mod azure;
mod command;
mod elect;
mod health;
mod lock;
mod look;
mod outputs;
mod policy;
mod quote;
mod run;
#[cfg(test)]
mod tests;
mod work;

pub(crate) use crate::args::Roles;
pub(crate) use crate::exit::UsageError;
pub(crate) use crate::host::Host;
pub(crate) use azure::{of_blobs_alone, options};
pub(crate) use command::refuse_a_word_before;
pub(crate) use elect::Telling;
pub(crate) use health::Ask;
pub(crate) use lock::{Lock, Named};
pub(crate) use outputs::ANOTHER_S_LINK;
pub(crate) use quote::quoted;
pub(crate) use run::Config;
pub(crate) use run::{BLOB_LEASE, DEFAULT_POLL, budget};
#[cfg(feature = "service-bus")]
pub(crate) use work::ServiceBus;
pub(crate) use work::{Sessions, Source, Storage, Work};
