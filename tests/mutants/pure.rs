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

// The switch.
/// Whether this mutant is played.
#[doc(hidden)]
pub fn mutant(id: u32) -> bool {
    static PLAYED: std::sync::LazyLock<u32> = std::sync::LazyLock::new(|| {
        let id = std::env::var("MUTANT").ok();
        id.and_then(|id| id.parse().ok()).unwrap_or(0)
    });
    *PLAYED == id
}
