//! What the stores on Azure share: accounts and their credentials, signatures, the transport, and
//! what the service's errors mean.
//!
//! Called by the stores alone, but for [`scheduled_events`]. Nothing here knows a lease or a process, and nothing here lets a
//! secret into a log line, an error or a `Debug` output.

mod account;
mod account_error;
mod address;
mod ambient;
#[cfg(feature = "entra")]
mod asking;
mod choice;
mod credential;
#[cfg(feature = "entra")]
mod entra;
mod errors;
mod found;
mod limit;
mod names;
mod runtime;
pub mod scheduled_events;
#[cfg(feature = "service-bus")]
mod service_bus;
mod service_clock;
mod shared_key;
#[cfg(feature = "entra")]
mod tokens;
mod transport;
mod trust;

pub use account::Account;
pub use account_error::AccountError;
pub use ambient::CREDENTIALS;
pub use choice::{Auth, Wishes};
pub use errors::{Operation, Trouble};
pub use limit::before;
#[cfg(feature = "service-bus")]
pub(crate) use names::addresses;
#[cfg(all(feature = "service-bus", feature = "entra"))]
pub use service_bus::BusTokens;
#[cfg(feature = "service-bus")]
pub use service_bus::{Asked, BusCredential, ServiceBus};
#[cfg(feature = "entra")]
pub use tokens::Vault;

pub(crate) use address::split_url;
pub(crate) use limit::{limited, unhurried};
pub(crate) use service_clock::ServiceClock;
