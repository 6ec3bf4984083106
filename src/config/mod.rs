//! The validated configuration: a [`Config`] cannot be inconsistent. A refusal is a [`UsageError`] of one line:
//! the value, the reason and the remedy.
//!
//! Called by `main` before anything is forked, opened or connected. `args` parses each value; here they are
//! checked against each other and the machine. It must never create, print or exit.

macro_rules! refuse {
    ($($line:tt)*) => {
        return Err(UsageError::new(format!($($line)*)))
    };
}

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
pub(crate) use azure::options;
pub(crate) use command::refuse_a_word_before;
pub(crate) use elect::Telling;
pub(crate) use health::Ask;
pub(crate) use lock::Lock;
pub(crate) use outputs::ANOTHER_S_LINK;
pub(crate) use quote::quoted;
pub(crate) use run::Config;
pub(crate) use run::{BLOB_LEASE, DEFAULT_POLL, budget};
#[cfg(feature = "service-bus")]
pub(crate) use work::ServiceBus;
pub(crate) use work::{Sessions, Source, Storage, Work};
