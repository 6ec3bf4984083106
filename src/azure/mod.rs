//! What the stores on Azure share: accounts and their credentials, signatures, the transport, and
//! what the service's errors mean.
//!
//! Called by the stores alone. Nothing here knows a lease or a process, and nothing here lets a
//! secret into a log line, an error or a `Debug` output.

mod account;
mod address;
mod errors;
mod limit;
mod service_clock;
mod shared_key;
mod transport;

pub use account::{Account, AccountError};
pub use errors::{Operation, Trouble};
pub use limit::before;

pub(crate) use address::split_url;
pub(crate) use limit::{limited, unhurried};
pub(crate) use service_clock::ServiceClock;
