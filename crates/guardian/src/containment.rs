//! Containment, which keeps the command's tree together beyond subreaper and walk. Its kinds differ only here.
//!
//! - [`Cgroup`]: a cgroup of its own, which the kernel kills as one when supervisor or guardian ask for it.
//! - [`Pidns`]: a PID namespace of its own, which the kernel kills when its init dies; its init dies with the
//!   guardian or at the deadline. [`lock_holder`] holds a file's lock until the namespace is empty.
//!
//! With each of them the guardian stays the parent of the command's main process. A kind that was requested by
//! name is provided or refused, never replaced by a weaker one. Nothing here decides when to kill.

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
    /// Descent only: subreaper and walk.
    None,
    /// One for the guardian's whole life; removed when it is dropped and empty.
    Cgroup(Cgroup),
    /// One for each command, known to the guardian only.
    Pidns(Option<Space>),
}

#[derive(Debug)]
pub(super) struct Space {
    namespace: Pidns,
    /// Process that holds the lock until the namespace is empty.
    lock_holder: Option<i32>,
    kill_at: Instant,
    /// Whether the rest has got its signal to end.
    told: bool,
    /// Time of the order to init to kill the rest, in nanoseconds; 0: not yet.
    asked: AtomicU64,
}

/// Time for init to kill the others after the order: it has to be scheduled first, and waves of kills follow
/// each other in less than a millisecond. A small part of what a lease leaves for the end of the tree.
const INIT_KILL_GRACE: Duration = Duration::from_millis(20);

fn refusal(asked: &'static str) -> impl Fn(String) -> SetupError {
    move |why| SetupError::Contain { asked, why }
}

impl Containment {
    /// Makes the requested kind. A cgroup still has to be tried: see [`Containment::try_out`].
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

    /// Tries the containment while the guardian that was forked with it gets ready, and replaces it if it does
    /// not work. Returns whether it is unchanged, as that guardian knows it.
    pub(super) fn try_out(&mut self, asked: Contain) -> Result<bool, SetupError> {
        match self {
            // A cgroup without births inside comes from an earlier trial.
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

    /// Ends what dead instances left beside this one, before a command gets control. Fails while some of it
    /// cannot be killed; then nothing may start.
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

    /// Cleans up when it is empty, or the command was never started.
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

    /// Forks; the child is in a namespace from its birth, but not always in a cgroup: see `join`.
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
            // The parent is outside the namespace; the fork has checked that the guardian lives.
            Containment::Pidns(_) => 0,
        }
    }

    /// Returns a descriptor that a new process writes "0" to, to move inside, if it was not born there.
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
                // Init sleeps until the later deadline: signal 0 reaches no process, but makes init look again.
                let _ = space.namespace.signal_all(0);
            }
            space.kill_at = kill_at;
        }
    }

    /// Sends SIGTERM, once, to processes that the guardian does not adopt when they lose their parent.
    pub(super) fn term_rest(&mut self) {
        if let Containment::Pidns(Some(space)) = self
            && !space.told
        {
            space.told = true;
            // Without the signal they are killed at the end of the grace.
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
                // This only fails because the cgroup is gone and so empty; the walk over the children follows
                // anyway.
                let _ = cgroup.kill();
            }
            Containment::Pidns(Some(space)) => {
                // First let init kill the others itself. The kernel does so only when init has died, and they
                // would run on while an exit takes its time (no process can exit while some are moved between
                // cgroups). A later wave kills init itself.
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

    /// Returns the lock holders among these children, for a supervisor that does not know those of a dead
    /// guardian.
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

    /// Whether a process is inside that is no child of the guardian and will not become one.
    pub(super) fn hides_some(&self) -> bool {
        matches!(self, Containment::Pidns(Some(space)) if !space.namespace.is_empty())
    }

    /// Lets the helpers go, after the main process was reaped and nothing else is known.
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

    /// Returns descriptors that the guardian needs although they are close-on-exec.
    pub(super) fn keep(&self) -> Vec<RawFd> {
        match self {
            Containment::None | Containment::Pidns(_) => Vec::new(),
            Containment::Cgroup(cgroup) => cgroup.descriptors().to_vec(),
        }
    }
}

/// Closes every descriptor but these (ascending): a helper process must not keep a pipe of the guardian or of
/// the command open.
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

    /// At the deadline two waves come in one turn of the guardian's loop.
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
            // A busy machine may have delayed this test.
            if in_time {
                assert_eq!(ended, Ok(WaitStatus::Exited(init, 0)));
                return;
            }
        }
    }
}
