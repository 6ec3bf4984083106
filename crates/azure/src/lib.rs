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
pub mod queue;
pub mod scheduled_events;
mod server;
mod service_bus;
mod service_clock;
mod shared_key;
#[cfg(feature = "entra")]
mod token_cache;
mod transport;
mod variables;

/// The version of the storage services' interface that is spoken: the oldest that has what is used, so that
/// an emulator or a service on premises that is some years old knows it.
// It brought names in listings that XML cannot have; all else is older.
pub const API_VERSION: &str = "2021-02-12";

pub use account::{Account, AccountError};
pub use account::{BLOB, QUEUE, Service};
pub use account_builder::{ACCOUNT, KEY, SAS, STRING};
pub use credential::{Auth, AuthOptions};
pub use credential::{Credential, GIVEN};
pub use error::{Operation, ServiceError};
pub use server::tls_failure;
pub use server::{addresses, connect, tls_refusal};
pub use service_bus::ServiceBus;
pub use service_bus::ServiceBusOptions;
#[cfg(feature = "entra")]
pub use token_cache::TokenCache;
pub use transport::before;

pub use address::{is_label, shown, split_url};
pub use error::of_the_service;
pub use service_clock::ServiceClock;
pub use transport::{for_probes, kernel_errno, root_cause};
pub use transport::{header, limited, unhurried};
pub use variables::withheld;
