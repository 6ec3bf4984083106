//! Small helpers that ask the kernel for something, for all crates. The decisions never use them.

pub mod background_writer;
pub mod lasting;
pub mod procfs;
pub mod runtime;
