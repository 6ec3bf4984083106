//! Containment and terminal, on the real kernel: cgroups, PID namespaces, the keeper of a lock, job
//! control on a pseudo-terminal.
//!
//! A test that forks by itself runs as a program of its own (`#[ignore]`d tests named `role_…`, which
//! the others start), so that the forking process has one thread, may change its user, and may be
//! killed. What a machine refuses is printed, never passed over.

mod cgroup;
mod keeper;
pub(crate) mod namespace;
mod role;
mod terminal;

/// Longer than anything here takes on the worst of machines.
const PATIENCE: u16 = 60_000;
