//! Azure for the stores and queues: accounts, credentials, signatures, the transport, and the service's errors.
//!
//! No secret gets into a log line, an error or a `Debug` output. Errors name variables and parts, never values.

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

/// Version of the storage services' REST API: the oldest with all that trafficcop uses, for old emulators.
// It brought names in listings that XML cannot hold.
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

pub use address::{is_label, shown, typed_url};
pub use error::of_the_service;
pub use service_clock::ServiceClock;
pub use transport::{for_probes, kernel_errno, root_cause};
pub use transport::{header, limited, unhurried};
pub use variables::withheld;
