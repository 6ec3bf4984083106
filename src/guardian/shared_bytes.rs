//! Bytes that this process leaves to those it has forked: memory that they share, and nobody else.
//!
//! Made by the drivers before the guardian is forked; written by the supervisor, read by the
//! guardian after the supervisor's death. It knows nothing of what the bytes mean. They stand
//! twice, and which of the two counts is one number: whoever is killed while it writes leaves what
//! was there before.

use std::io;
use std::num::NonZeroUsize;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use nix::sys::mman::{MapFlags, MmapAdvise, ProtFlags, madvise, mmap_anonymous, munmap};

use crate::util::SharedMemory;

/// Room for one of the two: a token of Entra ID with hundreds of groups in it.
const ROOM: usize = 32 * 1024;

/// How it lies in memory; all zero is "nothing".
#[repr(C)]
struct Layout {
    /// Lengths of the two; the upper half of the word is unused.
    lengths: [AtomicU64; 2],
    /// Which of the two counts.
    present: AtomicU64,
    halves: [[AtomicU8; ROOM]; 2],
}

const LENGTH: NonZeroUsize = NonZeroUsize::new(size_of::<Layout>()).unwrap();

/// See the module's text.
#[derive(Debug)]
pub struct SharedBytes(NonNull<Layout>);

// SAFETY: the mapping belongs to no thread.
unsafe impl Send for SharedBytes {}
// SAFETY: it is only used through atomics.
unsafe impl Sync for SharedBytes {}

impl SharedBytes {
    /// With nothing in it.
    ///
    /// # Errors
    /// Where the kernel has no memory to share.
    pub fn new() -> io::Result<SharedBytes> {
        let access = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: new memory, at an address of the kernel's choice.
        let memory = unsafe { mmap_anonymous(None, LENGTH, access, MapFlags::MAP_SHARED) }?;
        // What is left is a secret: it has no place in a core file. Where that cannot be said, it
        // is as the rest of our memory is.
        // SAFETY: the mapping made above, and advice that changes nothing in it.
        let _ = unsafe { madvise(memory, LENGTH.get(), MmapAdvise::MADV_DONTDUMP) };
        Ok(SharedBytes(memory.cast()))
    }

    fn layout(&self) -> &Layout {
        // SAFETY: mapped for as long as the value lives, page-aligned, zeroed by the kernel, which
        // is a value of every atomic; all processes only use it as atomics.
        unsafe { self.0.as_ref() }
    }
}

impl SharedMemory for SharedBytes {
    /// Leaves these bytes instead of those before; nothing, where they are too many. One writer at
    /// a time.
    fn put(&self, bytes: &[u8]) {
        let layout = self.layout();
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
        let layout = self.layout();
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

impl Drop for SharedBytes {
    fn drop(&mut self) {
        // SAFETY: mapped by us with this length, and nobody borrows it any more.
        let _ = unsafe { munmap(self.0.cast(), LENGTH.get()) };
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
        let other = usize::from(shared.layout().present.load(Ordering::Acquire) == 0);
        shared.layout().halves[other][0].store(b'x', Ordering::Relaxed);
        assert_eq!(shared.take().as_deref(), Some(&b"3"[..]));
        let room = vec![7; ROOM];
        shared.put(&room);
        assert_eq!(shared.take(), Some(room));
        shared.put(&vec![7; ROOM + 1]);
        assert_eq!(shared.take(), None);
    }
}
