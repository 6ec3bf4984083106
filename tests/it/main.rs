//! The integration tests, each room of them a module: one binary that is linked once, one Azurite,
//! and one tail at the end instead of one for each room. `cargo test --test it -- run_blob::` plays one
//! room.
//!
//! A test here shares its process with hundreds of others. It may change nothing that belongs to the
//! process (limits, environment, working directory, signals), and count nothing that does.

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
// The pages are those of the whole program.
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
