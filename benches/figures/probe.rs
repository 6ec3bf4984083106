//! The command that the figures are measured with: it tells the monotonic clock the moment it runs.
//!
//! Compiled by `programs` on first use, statically and without Rust's start-up, so that what is
//! measured is the tool and not the command. It is not part of the benchmark's own binary.
//!
//! - `probe` tells the time and ends.
//! - `probe hold` tells it, waits for the end of its stdin, tells it again and ends.
//! - `probe beat` is the same, but tells it every millisecond: also who is killed has said until when it lived.
//! - `probe until FIFO` tells it, waits until somebody has opened FIFO for writing and closed it, tells
//!   it again and ends: for tools that give their command no stdin.
//! - `probe linger FIFO` is the same, deaf to SIGTERM.
//! - `probe mark FIFO` writes a byte to FIFO, keeps it open for writing, and waits for a signal.
//! - `probe tree FIFO` becomes three processes (itself, a child, a daemon of its own session) that
//!   ignore SIGTERM, keep FIFO open for writing, and each write one byte there when they are ready.
#![no_main]

use std::ffi::{CStr, c_char, c_int, c_long, c_short, c_ulong, c_void};

#[repr(C)]
struct TimeSpec {
    seconds: i64,
    nanos: c_long,
}

#[repr(C)]
struct Poll {
    fd: c_int,
    events: c_short,
    happened: c_short,
}

const MONOTONIC: c_int = 1;
const READ_ONLY: c_int = 0;
const WRITE_ONLY: c_int = 1;
const TERM: c_int = 15;
const IGNORE: usize = 1;
const READABLE: c_short = 1;

unsafe extern "C" {
    fn clock_gettime(clock: c_int, time: *mut TimeSpec) -> c_int;
    fn write(fd: c_int, from: *const c_void, length: usize) -> isize;
    fn read(fd: c_int, to: *mut c_void, length: usize) -> isize;
    fn poll(fds: *mut Poll, count: c_ulong, millis: c_int) -> c_int;
    fn open(path: *const c_char, flags: c_int, ...) -> c_int;
    fn fork() -> c_int;
    fn setsid() -> c_int;
    fn signal(number: c_int, handler: usize) -> usize;
    fn pause() -> c_int;
    fn _exit(status: c_int) -> !;
}

/// Writes the time, in nanoseconds, to stdout.
fn tell() {
    let mut now = TimeSpec { seconds: 0, nanos: 0 };
    // SAFETY: pointers to values of our own, with their lengths.
    unsafe {
        clock_gettime(MONOTONIC, &raw mut now);
        let nanos = (now.seconds * 1_000_000_000 + now.nanos).to_le_bytes();
        write(1, nanos.as_ptr().cast(), nanos.len());
    }
}

fn hold() {
    tell();
    let mut byte = 0_u8;
    // SAFETY: a buffer of one byte.
    while unsafe { read(0, (&raw mut byte).cast(), 1) } > 0 {}
    tell();
}

fn beat() {
    tell();
    let mut stdin = Poll { fd: 0, events: READABLE, happened: 0 };
    // SAFETY: one value of our own.
    while unsafe { poll(&raw mut stdin, 1, 1) } == 0 {
        tell();
    }
    tell();
}

fn until(fifo: *const c_char) {
    tell();
    let mut byte = 0_u8;
    // SAFETY: a path that ends with NUL, and a buffer of one byte.
    unsafe {
        let fifo = open(fifo, READ_ONLY);
        while read(fifo, (&raw mut byte).cast(), 1) > 0 {}
    }
    tell();
}

fn mark(fifo: *const c_char) -> ! {
    // SAFETY: a path that ends with NUL, and a buffer of one byte.
    unsafe {
        let fifo = open(fifo, WRITE_ONLY);
        write(fifo, c"+".as_ptr().cast(), 1);
        loop {
            pause();
        }
    }
}

fn tree(fifo: *const c_char) -> ! {
    // SAFETY: one thread, numbers, and a path that ends with NUL; the children never return.
    unsafe {
        signal(TERM, IGNORE);
        let fifo = open(fifo, WRITE_ONLY);
        if fork() == 0 && fork() == 0 {
            setsid();
        }
        write(fifo, c"+".as_ptr().cast(), 1);
        loop {
            pause();
        }
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn main(count: c_int, words: *const *const c_char) -> c_int {
    // SAFETY: the kernel hands over `count` strings.
    let word = |at: c_int| (at < count).then(|| unsafe { CStr::from_ptr(*words.add(at as usize)) });
    match word(1).map(CStr::to_bytes) {
        None => tell(),
        Some(b"hold") => hold(),
        Some(b"beat") => beat(),
        Some(mode) => match (mode, word(2).map(CStr::as_ptr)) {
            (b"tree", Some(fifo)) => tree(fifo),
            (b"mark", Some(fifo)) => mark(fifo),
            (b"until", Some(fifo)) => until(fifo),
            (b"linger", Some(fifo)) => {
                // SAFETY: takes numbers.
                unsafe { signal(TERM, IGNORE) };
                until(fifo);
            }
            _ => return 2,
        },
    }
    // SAFETY: takes a number.
    unsafe { _exit(0) }
}
