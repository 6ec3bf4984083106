//! Containment, which keeps the command's tree together beyond subreaper and walk. Its kinds differ only here.
//!
//! - [`Cgroup`]: the kernel kills it as one when supervisor or guardian ask for it.
//! - [`Pidns`]: the kernel kills this PID namespace when its init dies, with the guardian or at the deadline.
//!
//! The guardian always stays the parent of the main process. A kind that was requested by name is provided or
//! refused, never replaced by a weaker one. Nothing here decides when to kill.

use std::os::fd::{BorrowedFd, RawFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use nix::errno::Errno;

pub use self::cgroup::Cgroup;
pub use self::pidns::Pidns;
pub use super::raw::Forked;
use super::{Contain, SetupError, raw, tree};
use trafficcop_core::clock::Instant;

mod cgroup;
pub mod lock_holder;
mod pidns;

#[derive(Debug)]
pub(super) enum Containment {
    None,
    Cgroup(Cgroup),
    Pidns(Option<Space>),
}

#[derive(Debug)]
pub(super) struct Space {
    namespace: Pidns,
    lock_holder: Option<i32>,
    kill_at: Instant,
    /// Whether the rest has got its SIGTERM.
    told: bool,
    /// Time of the order to init to kill the rest, in nanoseconds; 0: not yet.
    asked: AtomicU64,
}

/// Time for init to be scheduled and kill the others; waves of kills come within a millisecond. A lease leaves
/// much more for the end of the tree.
const INIT_KILL_GRACE: Duration = Duration::from_millis(20);

fn refusal(asked: &'static str) -> impl Fn(String) -> SetupError {
    move |why| SetupError::Contain { asked, why }
}

impl Containment {
    /// A cgroup is still untried.
    pub(super) fn prepare(asked: Contain) -> Result<Containment, SetupError> {
        match asked {
            Contain::None => Ok(Containment::None),
            Contain::Auto => Ok(Cgroup::prepare().map_or(Containment::None, Containment::Cgroup)),
            Contain::Cgroup => Cgroup::prepare()
                .map(Containment::Cgroup)
                .map_err(refusal("cgroup")),
            Contain::Pidns => Pidns::available()
                .map(|()| Containment::Pidns(None))
                .map_err(refusal("pidns")),
        }
    }

    /// Tries the containment while its guardian gets ready, and replaces it on failure. Returns whether it is
    /// still as the guardian knows it.
    pub(super) fn try_out(&mut self, asked: Contain) -> Result<bool, SetupError> {
        match self {
            Containment::Cgroup(cgroup) if cgroup.bears() => match cgroup.try_out() {
                Ok(as_it_was) => Ok(as_it_was),
                Err(why) if asked == Contain::Cgroup => Err(refusal("cgroup")(why)),
                Err(_) => {
                    *self = Containment::None;
                    Ok(false)
                }
            },
            Containment::None | Containment::Cgroup(_) | Containment::Pidns(_) => Ok(true),
        }
    }

    pub(super) fn kind(&self) -> Contain {
        match self {
            Containment::None => Contain::None,
            Containment::Cgroup(_) => Contain::Cgroup,
            Containment::Pidns(_) => Contain::Pidns,
        }
    }

    /// Ends what dead instances left. If some of it cannot be killed, nothing may start.
    pub(super) fn sweep(&self) -> Result<(), Errno> {
        match self {
            Containment::None | Containment::Pidns(_) => Ok(()),
            Containment::Cgroup(cgroup) if cgroup.sweep_beside() => Ok(()),
            Containment::Cgroup(_) => Err(Errno::EBUSY),
        }
    }

    pub(super) fn open(
        &mut self,
        kill_at: Instant,
        lock: Option<BorrowedFd<'_>>,
    ) -> Result<(), Errno> {
        let Containment::Pidns(space) = self else {
            return Ok(());
        };
        let namespace = Pidns::open(kill_at).map_err(|e| errno(&e))?;
        let lock_holder = lock
            .map(|lock| lock_holder::start(lock, &namespace))
            .transpose();
        *space = Some(Space {
            namespace,
            lock_holder: *lock_holder.as_ref().unwrap_or(&None),
            kill_at,
            told: false,
            asked: AtomicU64::new(0),
        });
        lock_holder.map(drop).map_err(|e| {
            self.abandon();
            errno(&e)
        })
    }

    /// Cleans up an empty one, or after a start that failed.
    pub(super) fn abandon(&mut self) {
        match self {
            Containment::None | Containment::Pidns(None) => {}
            Containment::Cgroup(cgroup) => cgroup.clear(),
            Containment::Pidns(space) => {
                let Some(space) = space.take() else { return };
                // Init ends at once, and its lock holder with it.
                space.namespace.kill();
                for pid in [Some(space.namespace.init()), space.lock_holder]
                    .into_iter()
                    .flatten()
                {
                    let _ = nix::sys::wait::waitpid(nix::unistd::Pid::from_raw(pid), None);
                }
            }
        }
    }

    /// The child is born in a namespace, but not always in a cgroup: see `join`.
    ///
    /// # Safety
    /// The process has one thread, or the child makes only async-signal-safe calls.
    pub(super) unsafe fn fork(&self) -> Result<Forked, Errno> {
        match self {
            Containment::Pidns(Some(space)) => {
                // SAFETY: passed on to the caller.
                unsafe { space.namespace.fork() }.map_err(|e| errno(&e))
            }
            Containment::Pidns(None) => Err(Errno::ESRCH),
            Containment::Cgroup(cgroup) if cgroup.bears() => {
                // SAFETY: passed on to the caller.
                unsafe { cgroup.fork() }.map_err(|e| errno(&e))
            }
            Containment::None | Containment::Cgroup(_) => {
                // SAFETY: passed on to the caller.
                unsafe { raw::fork() }.map_err(|e| errno(&e))
            }
        }
    }

    pub(super) fn parent_seen(&self, parent: i32) -> i32 {
        match self {
            Containment::None | Containment::Cgroup(_) => parent,
            Containment::Pidns(_) => 0,
        }
    }

    /// Descriptor to write "0" to, for a child born outside.
    pub(super) fn join(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Containment::Cgroup(cgroup) if !cgroup.bears() => Some(cgroup.join()),
            Containment::None | Containment::Cgroup(_) | Containment::Pidns(_) => None,
        }
    }

    pub(super) fn extend(&mut self, kill_at: Instant) {
        if let Containment::Pidns(Some(space)) = self {
            space.namespace.extend(kill_at);
            if kill_at < space.kill_at {
                // Init sleeps until the later deadline: signal 0 reaches no process, but wakes it.
                let _ = space.namespace.signal_all(0);
            }
            space.kill_at = kill_at;
        }
    }

    /// Signals orphans that the guardian does not adopt, once.
    pub(super) fn term_rest(&mut self) {
        if let Containment::Pidns(Some(space)) = self
            && !space.told
        {
            space.told = true;
            let _ = space.namespace.signal_all(libc::SIGTERM);
            let init = space.namespace.init();
            if !tree::resume_stopped(|pid| tree::descends_from(pid, init)) {
                let _ = space.namespace.signal_all(libc::SIGCONT);
            }
        }
    }

    pub(super) fn kill(&self) {
        match self {
            Containment::None | Containment::Pidns(None) => {}
            Containment::Cgroup(cgroup) => {
                // Fails only if the cgroup is gone and so empty.
                let _ = cgroup.kill();
            }
            Containment::Pidns(Some(space)) => {
                // Let init kill the others: the kernel does so only when init has died, and an exit can take
                // its time (none completes while processes move between cgroups). A later wave kills init.
                let now = Instant::now();
                let order = Ordering::Relaxed;
                let asks = space
                    .asked
                    .compare_exchange(0, now.as_nanos(), order, order);
                match asks {
                    Ok(_) if space.namespace.signal_all(libc::SIGKILL).is_ok() => {}
                    Err(asked) if now < Instant::from_nanos(asked) + INIT_KILL_GRACE => {}
                    _ => space.namespace.kill(),
                }
            }
        }
    }

    pub(super) fn is_helper(&self, pid: i32) -> bool {
        matches!(self, Containment::Pidns(Some(space))
            if pid == space.namespace.init() || Some(pid) == space.lock_holder)
    }

    /// Finds lock holders among these children: a supervisor does not know a dead guardian's.
    pub(super) fn lock_holders(&self, children: &[i32]) -> Vec<i32> {
        let is_lock_holder = |pid: &i32| {
            std::fs::read(format!("/proc/{pid}/comm"))
                .is_ok_and(|name| name.strip_suffix(b"\n") == Some(lock_holder::NAME.to_bytes()))
        };
        match self {
            Containment::None | Containment::Cgroup(_) => Vec::new(),
            Containment::Pidns(_) => children.iter().copied().filter(is_lock_holder).collect(),
        }
    }

    pub(super) fn hides_some(&self) -> bool {
        matches!(self, Containment::Pidns(Some(space)) if !space.namespace.is_empty())
    }

    /// Ends the helpers, when nothing else is left.
    pub(super) fn close(&self) {
        match self {
            Containment::None | Containment::Cgroup(_) | Containment::Pidns(None) => {}
            Containment::Pidns(Some(space)) => space.namespace.kill(),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        match self {
            Containment::None | Containment::Pidns(None) => true,
            Containment::Cgroup(cgroup) => cgroup.is_empty(),
            Containment::Pidns(Some(space)) => space.namespace.is_over(),
        }
    }

    /// Close-on-exec descriptors that the guardian needs.
    pub(super) fn keep(&self) -> Vec<RawFd> {
        match self {
            Containment::None | Containment::Pidns(_) => Vec::new(),
            Containment::Cgroup(cgroup) => cgroup.descriptors().to_vec(),
        }
    }
}

/// A helper must not keep a pipe open. `kept` is ascending.
fn close_all_but(kept: &[RawFd]) -> nix::Result<()> {
    debug_assert!(kept.is_sorted());
    let mut from = 0_u32;
    for &fd in kept {
        let fd = fd.unsigned_abs();
        if fd > from {
            raw::close_range(from, fd - 1)?;
        }
        from = fd + 1;
    }
    raw::close_range(from, u32::MAX)
}

fn errno(error: &std::io::Error) -> Errno {
    error.raw_os_error().map_or(Errno::EIO, Errno::from_raw)
}

#[cfg(test)]
mod tests {
    use nix::sys::wait::{WaitStatus, waitpid};
    use nix::unistd::Pid;

    use super::*;

    #[test]
    fn second_kill_leaves_init_time_to_kill_the_others() {
        if let Err(why) = Pidns::available() {
            println!("NOT TESTED: {why}");
            return;
        }
        loop {
            let mut contained = Containment::Pidns(None);
            contained.open(Instant::FOREVER, None).expect("a namespace");
            let begun = Instant::now();
            contained.kill();
            contained.kill();
            let in_time = Instant::now().since(begun) < INIT_KILL_GRACE;
            let Containment::Pidns(Some(space)) = &contained else {
                panic!("it is open");
            };
            let init = Pid::from_raw(space.namespace.init());
            let ended = waitpid(init, None);
            if in_time {
                assert_eq!(ended, Ok(WaitStatus::Exited(init, 0)));
                return;
            }
        }
    }
}
