//! What the stores on Azure share: accounts and their credentials, signatures, the transport, and
//! what the service's errors mean.
//!
//! Called by the stores alone, but for [`scheduled_events`]. Nothing here knows a lease or a process,
//! and nothing here lets a secret into a log line, an error or a `Debug` output.

mod account;
mod account_builder;
mod address;
mod credential;
#[cfg(feature = "entra")]
mod entra;
mod error;
#[cfg(feature = "entra")]
mod identity_http;
#[cfg(feature = "entra")]
mod program_credential;
mod proxy;
pub mod scheduled_events;
mod server;
#[cfg(feature = "service-bus")]
mod service_bus;
mod service_clock;
mod shared_key;
#[cfg(feature = "entra")]
mod token_cache;
mod transport;

/// The version of the storage services' interface that is spoken: the oldest that has what is used, so that
/// an emulator or a service on premises that is some years old knows it.
// It brought names in listings that XML cannot have; all else is older.
pub(crate) const API_VERSION: &str = "2021-02-12";

pub use account::{Account, AccountError};
pub(crate) use account::{BLOB, QUEUE, Service};
pub(crate) use account_builder::{ACCOUNT, KEY, SAS, STRING};
pub use credential::{Auth, AuthOptions, CREDENTIALS};
pub(crate) use credential::{Credential, GIVEN};
pub use error::{Operation, ServiceError};
#[cfg(feature = "cli")]
pub(crate) use server::tls_failure;
#[cfg(feature = "service-bus")]
pub(crate) use server::{addresses, connect, tls_refusal};
#[cfg(feature = "service-bus")]
pub(crate) use service_bus::ServiceBus;
#[cfg(feature = "service-bus")]
pub use service_bus::ServiceBusOptions;
#[cfg(all(feature = "service-bus", feature = "entra"))]
pub(crate) use token_cache::TokenCache;
pub use transport::before;

pub(crate) use address::{is_label, shown, split_url};
pub(crate) use error::of_the_service;
pub(crate) use service_clock::ServiceClock;
#[cfg(feature = "cli")]
pub(crate) use transport::{for_probes, kernel_errno, root_cause};
pub(crate) use transport::{header, limited, unhurried};
