//! Small helpers that ask the kernel for something. Decisions never use them.

pub mod background_writer;
pub mod lasting;
pub mod procfs;
pub mod runtime;
