//! Containment and terminal, on the real kernel.
//!
//! A test that forks runs as a separate program (`#[ignore]`d tests named `role_…`, which the
//! others start). So the forking process has one thread, may change its user, and may be killed.
//! Whatever a machine refuses is printed.

mod cgroup;
mod keeper;
pub(crate) mod namespace;
mod role;
mod terminal;

const WAIT_LIMIT: u16 = 60_000;
