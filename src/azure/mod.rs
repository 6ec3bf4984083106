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
mod names;
pub mod scheduled_events;
#[cfg(feature = "service-bus")]
mod service_bus;
mod shared_key;
mod tls;
#[cfg(feature = "entra")]
mod token_cache;
mod transport;

pub use account::{Account, AccountError};
#[cfg(feature = "service-bus")]
pub(crate) use credential::Credential;
pub use credential::{Auth, AuthOptions, CREDENTIALS};
pub use error::{Operation, ServiceError};
#[cfg(feature = "service-bus")]
pub(crate) use names::addresses;
#[cfg(feature = "service-bus")]
pub(crate) use service_bus::ServiceBus;
#[cfg(feature = "service-bus")]
pub use service_bus::ServiceBusOptions;
#[cfg(feature = "service-bus")]
pub(crate) use tls::explain as tls_refusal;
#[cfg(feature = "cli")]
pub(crate) use tls::failure as tls_failure;
#[cfg(all(feature = "service-bus", feature = "entra"))]
pub(crate) use token_cache::TokenCache;
pub use transport::before;

pub(crate) use address::{is_label, shown, split_url};
pub(crate) use shared_key::ServiceClock;
#[cfg(feature = "cli")]
pub(crate) use transport::{for_probes, root_cause};
pub(crate) use transport::{limited, unhurried};
