//! The validated configuration: what was typed, made sense of. A [`Config`] cannot be inconsistent;
//! what does not fit is a [`UsageError`] of one line that names the value, why, and what to do.
//!
//! Called by `main` before anything is forked, opened or connected. How one value is typed is for its
//! parser in `args`; here the settings are related to each other, and to the machine. It only looks
//! (at the paths it was given); it must never create, print or exit.
//!
//! | file | purpose |
//! |---|---|
//! | `run`, `elect`, `work` | what each verb that drives something goes by |
//! | `lock` | the lock that was named, with every kind of it in one place |
//! | `policy` | restarts, handing control round, tasks that are done once |
//! | `outputs` | the files and sockets that we write to or answer on |
//! | `look` | looks at paths whose drive may not answer |
//! | `health` | whether the command works |
//! | `azure` | credentials, and what is announced for this machine |
//! | `command` | that there is a command |
//! | `quote` | commands as they could be typed |

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
