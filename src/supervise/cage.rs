//! What keeps the command's tree together beyond descent: the one place where the kinds of
//! containment differ.
//!
//! Called by [`super::guardian`] (prepare), [`super::vigil`] (open, fork, kill, empty) and
//! [`super::attendant`] (kill, empty, when the guardian is dead). A kind that was asked for by
//! name is had or refused, never replaced by a lesser one.

use std::os::fd::{AsRawFd, BorrowedFd, RawFd};

use nix::errno::Errno;

use super::contain::{Cgroup, Forked, Pidns, keeper};
use super::{Contain, Refusal, tree};
use crate::clock::Instant;

/// The containment that is in force.
#[derive(Debug)]
pub(super) enum Cage {
    /// Descent only: subreaper and walk.
    None,
    /// One for the guardian's whole life; removed when it is dropped and empty.
    Cgroup(Cgroup),
    /// One for each command, known to the guardian only.
    Pidns(Option<Space>),
}

/// A namespace in use.
#[derive(Debug)]
pub(super) struct Space {
    namespace: Pidns,
    /// The process that holds the lock until the namespace is empty.
    keeper: Option<i32>,
    kill_at: Instant,
    /// The rest has been told to end.
    told: bool,
}

fn refusal(asked: &'static str) -> impl Fn(String) -> Refusal {
    move |why| Refusal::Contain { asked, why }
}

impl Cage {
    /// What to fork a guardian with, and whether that has yet to stand its trial: see
    /// [`Cage::stands_its_trial`].
    pub(super) fn hoped_for(asked: Contain) -> Result<(Cage, bool), Refusal> {
        match asked {
            Contain::Auto | Contain::Cgroup => match Cgroup::fresh() {
                Ok(cgroup) => Ok((Cage::Cgroup(cgroup), true)),
                Err(_) if asked == Contain::Auto => Ok((Cage::None, false)),
                // It says what is missing.
                Err(_) => Ok((Cage::tried(asked)?, false)),
            },
            Contain::None | Contain::Pidns => Ok((Cage::tried(asked)?, false)),
        }
    }

    /// Makes what was asked for, and has tried that it works; until the end of that our children are
    /// not all our own.
    pub(super) fn tried(asked: Contain) -> Result<Cage, Refusal> {
        match asked {
            Contain::None => Ok(Cage::None),
            Contain::Auto | Contain::Cgroup => Ok(Cgroup::prepare(asked == Contain::Cgroup)
                .map_err(refusal("cgroup"))?
                .map_or(Cage::None, Cage::Cgroup)),
            Contain::Pidns => {
                Pidns::available(true).map_err(refusal("pidns"))?;
                Ok(Cage::Pidns(None))
            }
        }
    }

    /// Whether it works, as far as one quick look can say so; where it says no, [`Cage::tried`] finds
    /// out more.
    pub(super) fn stands_its_trial(&self) -> bool {
        match self {
            Cage::None | Cage::Pidns(_) => true,
            Cage::Cgroup(cgroup) => cgroup.was_seen_from_inside(),
        }
    }

    /// Which kind this is.
    pub(super) fn kind(&self) -> Contain {
        match self {
            Cage::None => Contain::None,
            Cage::Cgroup(_) => Contain::Cgroup,
            Cage::Pidns(_) => Contain::Pidns,
        }
    }

    /// Before a command has control: ends what instances that have died meanwhile left beside us. While
    /// something of that cannot be killed, nothing is started.
    pub(super) fn sweep(&self) -> Result<(), Errno> {
        match self {
            Cage::None | Cage::Pidns(_) => Ok(()),
            Cage::Cgroup(cgroup) if cgroup.sweep_beside() => Ok(()),
            Cage::Cgroup(_) => Err(Errno::EBUSY),
        }
    }

    /// Makes it ready for one command.
    pub(super) fn open(
        &mut self,
        kill_at: Instant,
        lock: Option<BorrowedFd<'_>>,
    ) -> Result<(), Errno> {
        let Cage::Pidns(space) = self else {
            return Ok(());
        };
        let namespace = Pidns::open(kill_at).map_err(|e| errno(&e))?;
        let keeper = lock.map(|lock| keeper::start(lock, &namespace)).transpose();
        *space = Some(Space {
            namespace,
            keeper: *keeper.as_ref().unwrap_or(&None),
            kill_at,
            told: false,
        });
        keeper.map(drop).map_err(|e| {
            self.abandon();
            errno(&e)
        })
    }

    /// No command was started in it after all.
    pub(super) fn abandon(&mut self) {
        if let Cage::Pidns(space) = self
            && let Some(space) = space.take()
        {
            // Nothing is in it, so it ends at once, and its keeper with it.
            space.namespace.kill();
            for pid in [Some(space.namespace.init()), space.keeper]
                .into_iter()
                .flatten()
            {
                let _ = nix::sys::wait::waitpid(nix::unistd::Pid::from_raw(pid), None);
            }
        }
    }

    /// Forks; the child is in a namespace from its birth, but not always in a cgroup: see `join`.
    ///
    /// # Safety
    /// The process has one thread, or the child makes only async-signal-safe calls.
    pub(super) unsafe fn fork(&self) -> Result<Forked, Errno> {
        match self {
            Cage::Pidns(Some(space)) => {
                // SAFETY: passed on to the caller.
                unsafe { space.namespace.fork() }.map_err(|e| errno(&e))
            }
            Cage::Pidns(None) => Err(Errno::ESRCH),
            Cage::Cgroup(cgroup) if cgroup.bears() => {
                // SAFETY: passed on to the caller.
                unsafe { cgroup.fork() }.map_err(|e| errno(&e))
            }
            // SAFETY: passed on to the caller.
            Cage::None | Cage::Cgroup(_) => match unsafe { libc::fork() } {
                -1 => Err(Errno::last()),
                0 => Ok(Forked::Child),
                pid => Ok(Forked::Parent(pid)),
            },
        }
    }

    /// What `getppid` says in a child of process `parent`.
    pub(super) fn parent_seen(&self, parent: i32) -> i32 {
        match self {
            Cage::None | Cage::Cgroup(_) => parent,
            // There is none in the namespace; the fork has looked whether the guardian lives.
            Cage::Pidns(_) => 0,
        }
    }

    /// A descriptor that a new process writes "0" to, to be inside, if it was not born there.
    pub(super) fn join(&self) -> Option<RawFd> {
        match self {
            Cage::Cgroup(cgroup) if !cgroup.bears() => Some(cgroup.join().as_raw_fd()),
            Cage::None | Cage::Cgroup(_) | Cage::Pidns(_) => None,
        }
    }

    /// What is inside may live until this moment.
    pub(super) fn extend(&mut self, kill_at: Instant) {
        if let Cage::Pidns(Some(space)) = self {
            space.namespace.extend(kill_at);
            if kill_at < space.kill_at {
                // Init sleeps until the later one: no signal to anybody, but it looks again.
                let _ = space.namespace.signal_all(0);
            }
            space.kill_at = kill_at;
        }
    }

    /// Tells to end, once, what does not come to the guardian when it loses its parent.
    pub(super) fn term_rest(&mut self) {
        if let Cage::Pidns(Some(space)) = self
            && !space.told
        {
            space.told = true;
            // What cannot be told is killed at the end of the grace.
            let _ = space.namespace.signal_all(libc::SIGTERM);
            let init = space.namespace.init();
            if !tree::resume_stopped(|pid| tree::descends_from(pid, init)) {
                let _ = space.namespace.signal_all(libc::SIGCONT);
            }
        }
    }

    /// Kills everything inside at once, if this kind can.
    pub(super) fn kill(&self) {
        match self {
            Cage::None | Cage::Pidns(None) => {}
            Cage::Cgroup(cgroup) => {
                // It can only fail because the cgroup is gone, and then it is empty; the walk
                // over the children follows anyway.
                let _ = cgroup.kill();
            }
            Cage::Pidns(Some(space)) => space.namespace.kill(),
        }
    }

    /// Whether this child is a servant of ours, and no part of the command's tree.
    pub(super) fn is_servant(&self, pid: i32) -> bool {
        matches!(self, Cage::Pidns(Some(space))
            if pid == space.namespace.init() || Some(pid) == space.keeper)
    }

    /// Whether this child ends by itself when everything else has ended, and not before.
    pub(super) fn is_keeper(&self, pid: i32) -> bool {
        matches!(self, Cage::Pidns(Some(space)) if Some(pid) == space.keeper)
    }

    /// For the supervisor, which does not know the keepers of a dead guardian: those among these.
    pub(super) fn keepers(&self, children: &[i32]) -> Vec<i32> {
        let is_keeper = |pid: &i32| {
            std::fs::read(format!("/proc/{pid}/comm"))
                .is_ok_and(|name| name.strip_suffix(b"\n") == Some(keeper::NAME.to_bytes()))
        };
        match self {
            Cage::None | Cage::Cgroup(_) => Vec::new(),
            Cage::Pidns(_) => children.iter().copied().filter(is_keeper).collect(),
        }
    }

    /// Whether something is inside that is no child of ours and will not become one.
    pub(super) fn hides_some(&self) -> bool {
        matches!(self, Cage::Pidns(Some(space)) if !space.namespace.is_empty())
    }

    /// The main process was reaped and nothing else is known: lets the servants go.
    pub(super) fn close(&self) {
        match self {
            Cage::None | Cage::Cgroup(_) | Cage::Pidns(None) => {}
            Cage::Pidns(Some(space)) => space.namespace.kill(),
        }
    }

    /// Whether nothing is inside, as far as this kind can tell.
    pub(super) fn is_empty(&self) -> bool {
        match self {
            Cage::None | Cage::Pidns(None) => true,
            Cage::Cgroup(cgroup) => cgroup.is_empty(),
            Cage::Pidns(Some(space)) => space.namespace.is_over(),
        }
    }

    /// Descriptors that the guardian needs although they are close-on-exec.
    pub(super) fn keep(&self) -> Vec<RawFd> {
        match self {
            Cage::None | Cage::Pidns(_) => Vec::new(),
            Cage::Cgroup(cgroup) => cgroup.descriptors().to_vec(),
        }
    }
}

fn errno(error: &std::io::Error) -> Errno {
    error.raw_os_error().map_or(Errno::EIO, Errno::from_raw)
}
