//! A wrong clock: preloaded into an instance, this library shifts `CLOCK_REALTIME` by `WRONG_BY`
//! seconds, and no other clock, least of all one that leases are measured by.
//!
//! Not a module: compiled separately (`programs.rs`) as a shared library.

use std::ffi::{c_char, c_int, c_long};

const SYS_CLOCK_GETTIME: c_long = if cfg!(target_arch = "aarch64") { 113 } else { 228 };
const CLOCK_REALTIME: c_int = 0;
const CLOCK_REALTIME_COARSE: c_int = 5;

/// Seconds and a fraction.
#[repr(C)]
pub struct Timespec {
    seconds: i64,
    nanos: i64,
}

unsafe extern "C" {
    fn syscall(number: c_long, ...) -> c_long;
    fn getenv(name: *const c_char) -> *const c_char;
    fn atoll(text: *const c_char) -> i64;
}

/// Replaces the C library's function.
///
/// # Safety
/// As the C library's: `to` points to a place for the answer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn clock_gettime(clock: c_int, to: *mut Timespec) -> c_int {
    // SAFETY: the caller's own arguments, passed on.
    let told = unsafe { syscall(SYS_CLOCK_GETTIME, clock, to) };
    if told == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE) {
        // SAFETY: the kernel has just written there; the variable is a string or missing.
        unsafe {
            let by = getenv(c"WRONG_BY".as_ptr());
            if !by.is_null() {
                (*to).seconds += atoll(by);
            }
        }
    }
    c_int::try_from(told).unwrap_or(-1)
}
