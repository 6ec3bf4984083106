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

pub use account::{Account, AccountError, BLOB, QUEUE, Service};
pub use account_builder::{ACCOUNT, KEY, SAS, STRING};
pub use address::{below, is_label, shown, typed_url};
pub use credential::{Auth, AuthOptions, Credential, LIBRARY_METHODS};
pub use error::{Operation, ServiceError, of_the_service};
pub use server::{addresses, connect, tls_failure, tls_refusal};
pub use service_bus::{ServiceBus, ServiceBusOptions};
pub use service_clock::ServiceClock;
#[cfg(feature = "entra")]
pub use token_cache::TokenCache;
pub use transport::{before, for_probes, header, kernel_errno, limited, root_cause, unhurried};
pub use variables::withheld;
