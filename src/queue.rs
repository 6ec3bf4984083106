//! Queues for [`MessageLock`](crate::MessageLock): messages that are taken, held and settled.

pub use trafficcop_azure::queue::*;
#[cfg(feature = "service-bus")]
pub use trafficcop_service_bus as service_bus;
