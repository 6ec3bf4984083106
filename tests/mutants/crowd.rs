//! The fleet's crowds, which need only the core.

#[path = "fleet/clock.rs"]
mod clock;
#[path = "fleet/crowd.rs"]
mod crowd;
#[path = "fleet/crowded.rs"]
mod crowded;
#[path = "fleet/service.rs"]
mod service;
#[path = "fleet/store.rs"]
mod store;
