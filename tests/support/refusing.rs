//! A machine that refuses: preloaded into an instance, it fails a call of the C library for as long
//! as a file with the call's name is in the directory `REFUSING`.
//!
//! Not a module: compiled by itself (`programs.rs`) as a shared library. The calls: `pthread_create`
//! and `fork` (EAGAIN: no more of them may be had), `epoll_wait` (EBADF: what never happens, and what
//! the runtime panics for).

use std::ffi::{CStr, c_char, c_int, c_void};

const EAGAIN: c_int = 11;
const EBADF: c_int = 9;
const F_OK: c_int = 0;
const RTLD_NEXT: *mut c_void = -1_isize as *mut c_void;

unsafe extern "C" {
    fn getenv(name: *const c_char) -> *const c_char;
    fn access(path: *const c_char, mode: c_int) -> c_int;
    fn snprintf(to: *mut c_char, room: usize, format: *const c_char, ...) -> c_int;
    fn dlsym(library: *mut c_void, name: *const c_char) -> *mut c_void;
    fn __errno_location() -> *mut c_int;
}

fn is_refused(name: &CStr) -> bool {
    // SAFETY: the strings end with NUL, the buffer is as large as is said, and errno is left as it
    // was: whoever is not refused must not see that he was looked at.
    unsafe {
        let directory = getenv(c"REFUSING".as_ptr());
        if directory.is_null() {
            return false;
        }
        let errno = *__errno_location();
        let mut path = [0 as c_char; 4096];
        snprintf(
            path.as_mut_ptr(),
            path.len(),
            c"%s/%s".as_ptr(),
            directory,
            name.as_ptr(),
        );
        let refused = access(path.as_ptr(), F_OK) == 0;
        *__errno_location() = errno;
        refused
    }
}

/// What the caller would have reached without us.
fn next(name: &CStr) -> *mut c_void {
    // SAFETY: a name that ends with NUL. What is preloaded stands before the C library, which has it.
    unsafe { dlsym(RTLD_NEXT, name.as_ptr()) }
}

fn fail(errno: c_int) -> c_int {
    // SAFETY: the C library's own place for it.
    unsafe { *__errno_location() = errno };
    -1
}

type Create = unsafe extern "C" fn(*mut c_void, *const c_void, *const c_void, *mut c_void) -> c_int;

/// Stands in for the C library's.
///
/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_create(
    thread: *mut c_void,
    attributes: *const c_void,
    start: *const c_void,
    argument: *mut c_void,
) -> c_int {
    if is_refused(c"pthread_create") {
        return EAGAIN;
    }
    // SAFETY: the C library's function of this name, and the caller's own arguments.
    unsafe {
        let next: Create = std::mem::transmute(next(c"pthread_create"));
        next(thread, attributes, start, argument)
    }
}

/// Stands in for the C library's.
///
/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fork() -> c_int {
    if is_refused(c"fork") {
        return fail(EAGAIN);
    }
    // SAFETY: the C library's function of this name.
    unsafe {
        let next: unsafe extern "C" fn() -> c_int = std::mem::transmute(next(c"fork"));
        next()
    }
}

type Wait = unsafe extern "C" fn(c_int, *mut c_void, c_int, c_int) -> c_int;

/// Stands in for the C library's.
///
/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn epoll_wait(
    set: c_int,
    events: *mut c_void,
    room: c_int,
    timeout: c_int,
) -> c_int {
    // SAFETY: the C library's function of this name, and the caller's own arguments.
    let told = unsafe {
        let next: Wait = std::mem::transmute(next(c"epoll_wait"));
        next(set, events, room, timeout)
    };
    if is_refused(c"epoll_wait") {
        return fail(EBADF);
    }
    told
}
