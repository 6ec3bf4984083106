//! A number in memory that two processes share, for the deadline that guardian and init go by.
//!
//! Used by the PID namespace alone. It knows nothing of what the number means.

use std::io;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use nix::sys::mman::{MapFlags, ProtFlags, mmap_anonymous, munmap};

use crate::clock::Instant;

/// One number in memory that guardian and init share.
#[derive(Debug)]
pub(super) struct Page(NonNull<AtomicU64>);

impl Page {
    const LENGTH: std::num::NonZeroUsize = std::num::NonZeroUsize::new(4096).unwrap();

    pub(super) fn new(at: Instant) -> io::Result<Page> {
        // SAFETY: new memory, at an address of the kernel's choice.
        let page = unsafe {
            mmap_anonymous(
                None,
                Page::LENGTH,
                ProtFlags::PROT_READ | ProtFlags::PROT_WRITE,
                MapFlags::MAP_SHARED,
            )
        }?;
        let page = Page(page.cast());
        page.cell().store(at.as_nanos(), Ordering::Release);
        Ok(page)
    }

    pub(super) fn cell(&self) -> &AtomicU64 {
        // SAFETY: mapped, aligned, and zero is a value; both processes only use it as an atomic.
        unsafe { self.0.as_ref() }
    }
}

// SAFETY: the mapping belongs to no thread.
unsafe impl Send for Page {}
// SAFETY: it is only used as an atomic.
unsafe impl Sync for Page {}

impl Drop for Page {
    fn drop(&mut self) {
        // SAFETY: mapped by us with this length, and nobody borrows it any more.
        let _ = unsafe { munmap(self.0.cast(), Page::LENGTH.get()) };
    }
}
