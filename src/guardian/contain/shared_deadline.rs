//! Two numbers in memory that the processes round a PID namespace share: the deadline that guardian and
//! init go by, and the main process's id, which outlives the guardian here.
//!
//! Used by the PID namespace alone. It knows nothing of what the numbers mean.

use std::io;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};

use nix::sys::mman::{MapFlags, ProtFlags, mmap_anonymous, munmap};

use crate::clock::Instant;

/// How they lie in memory; all zero is a value.
#[repr(C)]
struct Layout {
    at: AtomicU64,
    pid: AtomicI32,
}

/// Memory that guardian, init and lock_holder share.
#[derive(Debug)]
pub(super) struct SharedDeadline(NonNull<Layout>);

impl SharedDeadline {
    const LENGTH: std::num::NonZeroUsize = std::num::NonZeroUsize::new(4096).unwrap();

    pub(super) fn new(at: Instant) -> io::Result<SharedDeadline> {
        // SAFETY: new memory, at an address of the kernel's choice.
        let page = unsafe {
            mmap_anonymous(
                None,
                SharedDeadline::LENGTH,
                ProtFlags::PROT_READ | ProtFlags::PROT_WRITE,
                MapFlags::MAP_SHARED,
            )
        }?;
        let page = SharedDeadline(page.cast());
        page.cell().store(at.as_nanos(), Ordering::Release);
        Ok(page)
    }

    fn layout(&self) -> &Layout {
        // SAFETY: mapped, aligned, and zero is a value; all processes only use it as atomics.
        unsafe { self.0.as_ref() }
    }

    pub(super) fn cell(&self) -> &AtomicU64 {
        &self.layout().at
    }

    /// 0 until somebody was born.
    pub(super) fn pid(&self) -> &AtomicI32 {
        &self.layout().pid
    }
}

// SAFETY: the mapping belongs to no thread.
unsafe impl Send for SharedDeadline {}
// SAFETY: it is only used as an atomic.
unsafe impl Sync for SharedDeadline {}

impl Drop for SharedDeadline {
    fn drop(&mut self) {
        // SAFETY: mapped by us with this length, and nobody borrows it any more.
        let _ = unsafe { munmap(self.0.cast(), SharedDeadline::LENGTH.get()) };
    }
}
