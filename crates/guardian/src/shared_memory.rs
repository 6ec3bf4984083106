//! Memory that processes share: mapped pages ([`Mapping`]), and bytes for forked processes ([`SharedBytes`]).
//!
//! The guardian reads the bytes after the supervisor's death. They are kept twice, and a number tells which
//! copy counts: a killed writer leaves the earlier one.

use std::fs::File;
use std::io;
use std::num::NonZeroUsize;
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicI32, AtomicU8, AtomicU64, Ordering};

use nix::sys::mman::{MapFlags, MmapAdvise, ProtFlags, madvise, mmap, mmap_anonymous, munmap};

use trafficcop_core::util::SharedMemory;

/// Type that may lie in memory that other processes write to at any time.
///
/// # Safety
/// The type consists of atomics only, zero is a value of each, and a page's alignment is enough.
pub(super) unsafe trait Shared: Sized {
    const LENGTH: NonZeroUsize = NonZeroUsize::new(size_of::<Self>()).unwrap();
}

// SAFETY: all of its fields are.
unsafe impl Shared for SharedControl {}
// SAFETY: all of its fields are.
unsafe impl Shared for SharedDeadline {}
// SAFETY: all of its fields are.
unsafe impl Shared for Copies {}

/// A `T` in pages of its own, shared with forked processes.
#[derive(Debug)]
pub(super) struct Mapping<T: Shared>(NonNull<T>);

// SAFETY: the mapping belongs to no thread, and is only used through atomics.
unsafe impl<T: Shared> Send for Mapping<T> {}
// SAFETY: as above.
unsafe impl<T: Shared> Sync for Mapping<T> {}

impl<T: Shared> Mapping<T> {
    pub(super) fn new() -> nix::Result<Mapping<T>> {
        let access = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: new memory, at an address of the kernel's choice.
        let memory = unsafe { mmap_anonymous(None, T::LENGTH, access, MapFlags::MAP_SHARED) }?;
        Ok(Mapping(memory.cast()))
    }

    /// Maps a file that is at least as long.
    pub(super) fn of(file: &File, access: ProtFlags) -> nix::Result<Mapping<T>> {
        // SAFETY: at an address of the kernel's choice. A file that is shorter, against the callers' promise,
        // leads to a SIGBUS and nothing worse.
        let memory = unsafe { mmap(None, T::LENGTH, access, MapFlags::MAP_SHARED, file, 0) }?;
        Ok(Mapping(memory.cast()))
    }

    /// Leaves it out of core files, if possible.
    fn keep_secret(&self) {
        // SAFETY: this value's own mapping, and advice that changes nothing in it.
        let _ = unsafe { madvise(self.0.cast(), T::LENGTH.get(), MmapAdvise::MADV_DONTDUMP) };
    }
}

impl<T: Shared> Deref for Mapping<T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: page-aligned, and mapped while the value lives; a `T` may change at any time (see `Shared`).
        unsafe { self.0.as_ref() }
    }
}

impl<T: Shared> Drop for Mapping<T> {
    fn drop(&mut self) {
        // SAFETY: mapped by this type with this length, and nothing borrows it any more.
        let _ = unsafe { munmap(self.0.cast(), T::LENGTH.get()) };
    }
}

/// Words of a control file. A missing second word is zero, like the rest of the page.
#[derive(Debug)]
#[repr(C)]
pub(super) struct SharedControl {
    pub(super) until: AtomicU64,
    pub(super) drain: AtomicU64,
}

#[derive(Debug)]
pub(super) struct SharedDeadline {
    pub(super) kill_at: AtomicU64,
    /// Main process as seen outside; 0 before its birth.
    pub(super) main: AtomicI32,
}

/// Room for a token of Entra ID with hundreds of groups.
const ROOM: usize = 32 * 1024;

/// The bytes, twice; all zero is "nothing".
#[derive(Debug)]
struct Copies {
    lengths: [AtomicU64; 2],
    /// Index of the copy that counts.
    present: AtomicU64,
    halves: [[AtomicU8; ROOM]; 2],
}

/// Bytes for the processes that this one has forked.
#[derive(Debug)]
pub struct SharedBytes(Mapping<Copies>);

impl SharedBytes {
    ///
    /// # Errors
    /// If the kernel has no memory to share.
    pub fn new() -> io::Result<SharedBytes> {
        let copies = Mapping::<Copies>::new()?;
        // A token must not end up in a core file.
        copies.keep_secret();
        Ok(SharedBytes(copies))
    }
}

impl SharedMemory for SharedBytes {
    /// Replaces the bytes, with nothing if they are too many. One writer at a time.
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

    /// Returns the bytes. Only while no other process writes.
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
    fn last_complete_bytes_are_returned() {
        let shared = SharedBytes::new().expect("memory");
        assert_eq!(shared.take(), None);
        for text in ["first", "the second, longer", "3"] {
            shared.put(text.as_bytes());
            assert_eq!(shared.take().as_deref(), Some(text.as_bytes()));
        }
        // Killed in the middle of the next.
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
