//! The program `trafficcop`. All of its code is in the library, where the tests see it too.

#![no_main]

use std::ffi::{c_char, c_int};

use trafficcop::internals;
use trafficcop_guardian as guardian;

/// Entry point for the C library, without Rust's own start-up: see [`trafficcop_guardian::begin`].
#[unsafe(no_mangle)]
extern "C" fn main(count: c_int, words: *const *const c_char) -> c_int {
    // SAFETY: the arguments come from the C library unchanged, and nothing was started yet.
    let words = unsafe { guardian::begin(count, words) };
    // The frame of `main` alone may need more than the stack has.
    match internals::check_stack() {
        Ok(()) => internals::main(words).go(),
        Err(refused) => refused.go(),
    }
}
