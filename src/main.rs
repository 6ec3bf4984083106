//! The program `trafficcop`: all of it is in the library, where the tests see it too.

#![no_main]

use std::ffi::{c_char, c_int};

use trafficcop::internals;
use trafficcop_guardian as guardian;

/// What the C library calls, without Rust's own start between: see [`trafficcop_guardian::begin`].
#[unsafe(no_mangle)]
extern "C" fn main(count: c_int, words: *const *const c_char) -> c_int {
    // SAFETY: they come from the C library as they are, and nothing was started yet.
    let words = unsafe { guardian::begin(count, words) };
    // Apart from `main`, whose frame alone may be more than the stack has.
    match internals::check_stack() {
        Ok(()) => internals::main(words).go(),
        Err(refused) => refused.go(),
    }
}
