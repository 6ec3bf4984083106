//! A machine that refuses: preloaded into an instance, this library fails a call of the C library
//! while a file with the call's name is in the directory `REFUSING`. Two numbers in the file: how
//! many of a process's calls are granted first (its parent's count), and how many are refused then.
//!
//! Not a module: compiled separately (`programs.rs`) as a shared library. The calls:
//! `pthread_create` and `fork` (EAGAIN: no more available), `epoll_wait` (EBADF, which never
//! happens, and at which the runtime panics), `opendir` (EMFILE: of /proc/self/fd only),
//! `close_range` (EPERM), and, for guardians only, `poll` (ENOMEM) and `waitpid` (EPERM).

use std::ffi::{CStr, c_char, c_int, c_long, c_ulong, c_void};
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};

const EAGAIN: c_int = 11;
const EMFILE: c_int = 24;
const ENOMEM: c_int = 12;
const EPERM: c_int = 1;
const CLOSE_RANGE: c_long = 436;
const PR_GET_NAME: c_int = 16;
const EBADF: c_int = 9;
const RTLD_NEXT: *mut c_void = -1_isize as *mut c_void;

unsafe extern "C" {
    fn dlsym(library: *mut c_void, name: *const c_char) -> *mut c_void;
    fn __errno_location() -> *mut c_int;
    fn prctl(option: c_int, ...) -> c_int;
}

static FORKS: AtomicU32 = AtomicU32::new(0);

fn is_refused(name: &CStr) -> bool {
    is_refused_now(name, 0)
}

fn is_refused_now(name: &CStr, calls: u32) -> bool {
    // SAFETY: the C library's own place for it. It is left unchanged: a granted call must not
    // notice the check.
    let errno = unsafe { *__errno_location() };
    let refused = std::env::var_os("REFUSING").and_then(|directory| {
        let path = Path::new(&directory).join(name.to_str().ok()?);
        let text = std::fs::read_to_string(path).ok()?;
        let mut numbers = text.split_whitespace().map(|number| number.parse().ok());
        let granted = numbers.next().flatten().unwrap_or(0);
        let refused = numbers.next().flatten().unwrap_or(u32::MAX);
        Some(calls >= granted && calls - granted < refused)
    });
    // SAFETY: as above.
    unsafe { *__errno_location() = errno };
    refused.unwrap_or(false)
}

fn next(name: &CStr) -> *mut c_void {
    // SAFETY: a name that ends with NUL. A preloaded library comes before the C library.
    unsafe { dlsym(RTLD_NEXT, name.as_ptr()) }
}

fn fail(errno: c_int) -> c_int {
    // SAFETY: the C library's own place for it.
    unsafe { *__errno_location() = errno };
    -1
}

type Create = unsafe extern "C" fn(*mut c_void, *const c_void, *const c_void, *mut c_void) -> c_int;

/// Replaces the C library's function.
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

/// Replaces the C library's function.
///
/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fork() -> c_int {
    if is_refused_now(c"fork", FORKS.fetch_add(1, Ordering::SeqCst)) {
        return fail(EAGAIN);
    }
    // SAFETY: the C library's function of this name.
    unsafe {
        let next: unsafe extern "C" fn() -> c_int = std::mem::transmute(next(c"fork"));
        next()
    }
}

fn is_a_guardian() -> bool {
    let mut name = [0_u8; 16];
    // SAFETY: the kernel writes 16 bytes at most.
    unsafe { prctl(PR_GET_NAME, name.as_mut_ptr()) };
    name.starts_with(b"tc-guardian\0")
}

/// Replaces the C library's function.
///
/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn poll(set: *mut c_void, length: c_ulong, timeout: c_int) -> c_int {
    if is_a_guardian() && is_refused(c"poll") {
        return fail(ENOMEM);
    }
    // SAFETY: the C library's function of this name, and the caller's own arguments.
    unsafe {
        let next: unsafe extern "C" fn(*mut c_void, c_ulong, c_int) -> c_int =
            std::mem::transmute(next(c"poll"));
        next(set, length, timeout)
    }
}

/// Replaces the C library's function.
///
/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn waitpid(pid: c_int, status: *mut c_int, options: c_int) -> c_int {
    if is_a_guardian() && is_refused(c"waitpid") {
        return fail(EPERM);
    }
    // SAFETY: the C library's function of this name, and the caller's own arguments.
    unsafe {
        let next: unsafe extern "C" fn(c_int, *mut c_int, c_int) -> c_int =
            std::mem::transmute(next(c"waitpid"));
        next(pid, status, options)
    }
}

/// Replaces the C library's function.
///
/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn opendir(name: *const c_char) -> *mut c_void {
    // SAFETY: the caller's string.
    if unsafe { CStr::from_ptr(name) } == c"/proc/self/fd" && is_refused(c"opendir") {
        fail(EMFILE);
        return std::ptr::null_mut();
    }
    // SAFETY: the C library's function of this name, and the caller's own arguments.
    unsafe {
        let next: unsafe extern "C" fn(*const c_char) -> *mut c_void =
            std::mem::transmute(next(c"opendir"));
        next(name)
    }
}

/// Replaces the C library's function, with up to six arguments.
///
/// # Safety
///
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn syscall(
    number: c_long,
    a: c_long,
    b: c_long,
    c: c_long,
    d: c_long,
    e: c_long,
    f: c_long,
) -> c_long {
    if number == CLOSE_RANGE && is_refused(c"close_range") {
        return fail(EPERM).into();
    }
    type Call = unsafe extern "C" fn(c_long, ...) -> c_long;
    // SAFETY: the C library's function of this name, and the caller's own arguments.
    unsafe {
        let next: Call = std::mem::transmute(next(c"syscall"));
        next(number, a, b, c, d, e, f)
    }
}

type Wait = unsafe extern "C" fn(c_int, *mut c_void, c_int, c_int) -> c_int;

/// Replaces the C library's function.
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
