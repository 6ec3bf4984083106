//! Memory that processes share: pages that are mapped once ([`Mapping`]), and bytes that this process
//! leaves to those it has forked ([`SharedBytes`]).
//!
//! The bytes are made by the drivers before the guardian is forked; written by the supervisor, read by the
//! guardian after the supervisor's death. It knows nothing of what they mean. They stand
//! twice, and which of the two counts is one number: whoever is killed while it writes leaves what
//! was there before.

use std::fs::File;
use std::io;
use std::num::NonZeroUsize;
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicI32, AtomicU8, AtomicU64, Ordering};

use nix::sys::mman::{MapFlags, MmapAdvise, ProtFlags, madvise, mmap, mmap_anonymous, munmap};

use trafficcop_core::util::SharedMemory;

/// What may lie in memory that others write to at any time.
///
/// # Safety
/// It consists of atomics only, zero is a value of each, and it fits into a page's alignment.
pub(super) unsafe trait Shared: Sized {
    const LENGTH: NonZeroUsize = NonZeroUsize::new(size_of::<Self>()).unwrap();
}

// SAFETY: all of its fields are.
unsafe impl Shared for SharedControl {}
// SAFETY: all of its fields are.
unsafe impl Shared for SharedDeadline {}
// SAFETY: all of its fields are.
unsafe impl Shared for Copies {}

/// A `T` in pages of its own, which whoever is forked from us shares.
#[derive(Debug)]
pub(super) struct Mapping<T: Shared>(NonNull<T>);

// SAFETY: the mapping belongs to no thread, and is only used through atomics.
unsafe impl<T: Shared> Send for Mapping<T> {}
// SAFETY: as above.
unsafe impl<T: Shared> Sync for Mapping<T> {}

impl<T: Shared> Mapping<T> {
    /// Of new memory, all zero.
    pub(super) fn new() -> nix::Result<Mapping<T>> {
        let access = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: new memory, at an address of the kernel's choice.
        let memory = unsafe { mmap_anonymous(None, T::LENGTH, access, MapFlags::MAP_SHARED) }?;
        Ok(Mapping(memory.cast()))
    }

    /// Of a file, which is at least as long.
    pub(super) fn of(file: &File, access: ProtFlags) -> nix::Result<Mapping<T>> {
        // SAFETY: a new mapping at an address of the kernel's choice. Were the file shorter in spite of
        // its callers, it would be a SIGBUS and nothing worse.
        let memory = unsafe { mmap(None, T::LENGTH, access, MapFlags::MAP_SHARED, file, 0) }?;
        Ok(Mapping(memory.cast()))
    }

    /// Leaves it out of core files. Where that cannot be said, it is as the rest of our memory is.
    fn keep_secret(&self) {
        // SAFETY: our own mapping, and advice that changes nothing in it.
        let _ = unsafe { madvise(self.0.cast(), T::LENGTH.get(), MmapAdvise::MADV_DONTDUMP) };
    }
}

impl<T: Shared> Deref for Mapping<T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: mapped for as long as the value lives, and page-aligned; what a `T` is made of can be
        // changed by others at any time (see `Shared`).
        unsafe { self.0.as_ref() }
    }
}

impl<T: Shared> Drop for Mapping<T> {
    fn drop(&mut self) {
        // SAFETY: mapped by us with this length, and nobody borrows it any more.
        let _ = unsafe { munmap(self.0.cast(), T::LENGTH.get()) };
    }
}

/// The words of a control file. A file of the first word alone has zero for the second: the rest of a page
/// behind the end of its file is mapped as zeros.
#[derive(Debug)]
#[repr(C)]
pub(super) struct SharedControl {
    /// Until when the command may believe in its control.
    pub(super) until: AtomicU64,
    /// When the grace of a drain ends.
    pub(super) drain: AtomicU64,
}

/// What the processes round a PID namespace share.
#[derive(Debug)]
pub(super) struct SharedDeadline {
    /// What guardian and init go by.
    pub(super) kill_at: AtomicU64,
    /// The main process as it is seen outside, which outlives the guardian here; 0 until it was born.
    pub(super) main: AtomicI32,
}

/// Room for one of the two: a token of Entra ID with hundreds of groups in it.
const ROOM: usize = 32 * 1024;

/// The bytes, twice; all zero is "nothing".
#[derive(Debug)]
struct Copies {
    /// Lengths of the two.
    lengths: [AtomicU64; 2],
    /// Which of the two counts.
    present: AtomicU64,
    halves: [[AtomicU8; ROOM]; 2],
}

/// Bytes that this process leaves to those it has forked.
#[derive(Debug)]
pub struct SharedBytes(Mapping<Copies>);

impl SharedBytes {
    /// With nothing in it.
    ///
    /// # Errors
    /// Where the kernel has no memory to share.
    pub fn new() -> io::Result<SharedBytes> {
        let copies = Mapping::<Copies>::new()?;
        // A token is: it has no place in a core file.
        copies.keep_secret();
        Ok(SharedBytes(copies))
    }
}

impl SharedMemory for SharedBytes {
    /// Leaves these bytes instead of those before; nothing, where they are too many. One writer at
    /// a time.
    fn put(&self, bytes: &[u8]) {
        let layout = &*self.0;
        let at = usize::from(layout.present.load(Ordering::Acquire) == 0);
        let bytes = if bytes.len() > ROOM { &[] } else { bytes };
        for (cell, byte) in layout.halves[at].iter().zip(bytes) {
            cell.store(*byte, Ordering::Relaxed);
        }
        layout.lengths[at].store(bytes.len() as u64, Ordering::Relaxed);
        layout.present.store(at as u64, Ordering::Release);
    }

    /// What was left, if anything was. Only while nobody writes.
    fn take(&self) -> Option<Vec<u8>> {
        let layout = &*self.0;
        let at = usize::from(layout.present.load(Ordering::Acquire) != 0);
        let length = layout.lengths[at].load(Ordering::Relaxed);
        let length = usize::try_from(length)
            .ok()
            .filter(|length| *length <= ROOM)?;
        let cells = &layout.halves[at][..length];
        let bytes: Vec<u8> = cells
            .iter()
            .map(|cell| cell.load(Ordering::Relaxed))
            .collect();
        (!bytes.is_empty()).then_some(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_that_was_left_whole_is_what_is_there() {
        let shared = SharedBytes::new().expect("memory");
        assert_eq!(shared.take(), None);
        for text in ["first", "the second, longer", "3"] {
            shared.put(text.as_bytes());
            assert_eq!(shared.take().as_deref(), Some(text.as_bytes()));
        }
        // Killed in the middle of the next: the present one stands.
        let other = usize::from(shared.0.present.load(Ordering::Acquire) == 0);
        shared.0.halves[other][0].store(b'x', Ordering::Relaxed);
        assert_eq!(shared.take().as_deref(), Some(&b"3"[..]));
        let room = vec![7; ROOM];
        shared.put(&room);
        assert_eq!(shared.take(), Some(room));
        shared.put(&vec![7; ROOM + 1]);
        assert_eq!(shared.take(), None);
    }
}
