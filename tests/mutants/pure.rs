//! The core, the clock and what the guardian decides, and nothing else of the crate.
#![allow(dead_code, unused_imports)]

mod clock;
mod core;
mod guardian {
    pub mod state;
}

pub use clock::Instant;

pub mod internals {
    pub mod core {
        pub use crate::core::*;
    }
    pub mod guardian {
        pub use crate::guardian::state;
    }
}
