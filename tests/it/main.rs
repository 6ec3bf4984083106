//! The integration tests, a module for each topic: one binary to link, and one Azurite. `cargo test
//! --test it -- run_blob::` runs one module. Read the names of the tests as a specification.
//!
//! A test shares its process with hundreds of others. So it may not change anything of the process
//! (limits, environment, working directory, signals), or count anything of it.

#[cfg(any(feature = "entra", feature = "service-bus"))]
mod authority;
#[expect(dead_code, reason = "each test binary uses a part of the support")]
#[path = "../support/mod.rs"]
mod support;

mod bad_input;
mod blob_store;
mod check;
mod contain;
mod demo;
// These describe the whole program.
#[cfg(all(feature = "entra", feature = "service-bus"))]
mod documents;
mod elect;
mod embedded;
#[cfg(feature = "entra")]
mod entra;
mod fencing;
mod file_store;
#[cfg(feature = "service-bus")]
mod fuzzed;
mod health;
mod helper_store;
mod layers;
mod leader;
mod listen;
mod run_blob;
mod run_file;
mod run_habits;
mod run_if;
mod run_once;
mod run_roles;
mod run_slots;
#[cfg(feature = "service-bus")]
mod service_bus;
#[cfg(feature = "service-bus")]
mod service_bus_queue;
mod shared_file;
mod storage_queue;
mod support_itself;
mod systemd;
mod terminal;
mod timeline;
mod verbs;
mod work;
