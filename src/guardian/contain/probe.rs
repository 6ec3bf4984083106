//! The trial of a cgroup: a process of ours gets inside (by birth, or the way in), is counted, and is
//! gone.
//!
//! Called by [`super::Cgroup`]. Mostly one process that is born inside, looks, and ends at once will do.
//! Where it will not, another goes inside and waits to be killed, by its pid: see
//! [`super::Cgroup::bears`].

use std::os::fd::{AsFd, OwnedFd};

use nix::fcntl::OFlag;

use super::Cgroup;
use super::raw::{self, Forked, Quiet};

/// Says what to do about a cgroup that cannot be had.
const ADVICE: &str = "run as root, or below a delegated cgroup (systemd: Delegate=yes in the unit)";

/// A trial that is under way.
#[derive(Debug)]
pub(super) struct Probe {
    named: bool,
    /// Nobody is inside any more where all went well at once.
    entered: Result<(Option<Extra>, Cgroup), String>,
}

impl Probe {
    /// See [`Cgroup::prepare`].
    pub(super) fn begin(named: bool) -> Probe {
        Probe::of(Cgroup::fresh(), named)
    }

    /// The trial of this one; a refusal says what to do only if it was asked for by name.
    pub(super) fn of(made: Result<Cgroup, String>, named: bool) -> Probe {
        let entered = made.and_then(enter);
        Probe { named, entered }
    }

    /// What [`Cgroup::prepare`] says.
    pub(super) fn conclude(self) -> Result<Option<Cgroup>, String> {
        let done = self.entered.and_then(|(extra, cgroup)| match extra {
            None => Ok(cgroup),
            Some(extra) => worked(extra, cgroup),
        });
        match done {
            Ok(cgroup) => Ok(Some(cgroup)),
            Err(why) if self.named => Err(refused(&why)),
            Err(_) => Ok(None),
        }
    }
}

/// A process of ours gets inside.
fn enter(cgroup: Cgroup) -> Result<(Option<Extra>, Cgroup), String> {
    if cgroup.was_seen_from_inside() {
        return Ok((None, cgroup));
    }
    let extra = Extra::enter(&cgroup).or_else(|_| {
        cgroup.bear_no_more();
        Extra::enter(&cgroup)
    });
    match extra {
        Ok(extra) => Ok((Some(extra), cgroup)),
        Err(why) => Err(complaint(&cgroup, &why)),
    }
}

/// It was counted, and is gone.
fn worked(extra: Extra, cgroup: Cgroup) -> Result<Cgroup, String> {
    let done = extra.leave(&cgroup).or_else(|why| {
        if !cgroup.bear_no_more() {
            return Err(why);
        }
        Extra::enter(&cgroup)?.leave(&cgroup)
    });
    match done {
        Ok(()) => Ok(cgroup),
        Err(why) => Err(complaint(&cgroup, &why)),
    }
}

fn complaint(cgroup: &Cgroup, why: &str) -> String {
    format!("{}: {why}", cgroup.path().display())
}

fn refused(why: &str) -> String {
    format!("no cgroup to be had: {why}; {ADVICE}")
}

/// A process of ours that waits in a cgroup to be killed.
#[derive(Debug)]
struct Extra {
    pid: i32,
    /// Its end tells its death even where SIGCHLD is ignored.
    pipe: OwnedFd,
    counted: bool,
    ended: bool,
}

impl Extra {
    fn enter(cgroup: &Cgroup) -> Result<Extra, String> {
        let (pipe, ours) = nix::unistd::pipe2(OFlag::O_CLOEXEC).map_err(|e| e.desc().to_owned())?;
        let parent = std::process::id();
        let quiet = Quiet::begin();
        // SAFETY: the child only makes system calls.
        match unsafe { cgroup.fork() } {
            Err(e) => Err(format!("no process can be put into it: {e}")),
            Ok(Forked::Child) => {
                // Whoever dies before the end of the trial cannot kill it any more.
                // SAFETY: takes two numbers.
                unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
                if std::os::unix::process::parent_id() != parent {
                    raw::exit(0);
                }
                loop {
                    // SAFETY: always allowed.
                    unsafe { libc::pause() };
                }
            }
            Ok(Forked::Parent(pid)) => {
                drop((quiet, ours));
                let counted = !cgroup.is_empty();
                Ok(Extra {
                    pid,
                    pipe,
                    counted,
                    ended: false,
                })
            }
        }
    }

    fn leave(mut self, cgroup: &Cgroup) -> Result<(), String> {
        let lived = !raw::poll(self.pipe.as_fd(), libc::POLLIN, 0);
        let counted = self.counted;
        let died = self.end();
        if lived && counted && died && cgroup.is_empty() {
            return Ok(());
        }
        Err("it does not tell what lives in it".to_owned())
    }

    /// Whether it died.
    fn end(&mut self) -> bool {
        if std::mem::replace(&mut self.ended, true) {
            return true;
        }
        // SAFETY: our own child, not reaped yet.
        unsafe { libc::kill(self.pid, libc::SIGKILL) };
        let died = raw::poll(self.pipe.as_fd(), libc::POLLIN, 10_000);
        raw::reap(self.pid);
        died
    }
}

impl Drop for Extra {
    fn drop(&mut self) {
        self.end();
    }
}

#[cfg(test)]
mod tests {
    use std::mem::ManuallyDrop;

    use super::*;

    /// The quick trial is the one that is used where it can be, and it agrees with the slow one.
    #[test]
    #[cfg(target_arch = "x86_64")]
    fn one_look_from_inside_says_what_the_longer_trial_says() {
        let Ok(cgroup) = Cgroup::fresh() else {
            println!("NOT TESTED: no cgroup to be had");
            return;
        };
        let quick = cgroup.was_seen_from_inside();
        let slow = Extra::enter(&cgroup).and_then(|extra| extra.leave(&cgroup));
        assert_eq!(quick, slow.is_ok() && cgroup.bears());
        // Nobody is born in one that was killed: see `Cgroup::bears`. The look must not hang either.
        cgroup.kill().expect("it is there");
        assert!(!cgroup.was_seen_from_inside());
        assert!(cgroup.is_empty());
    }

    #[test]
    fn nobody_is_left_inside_by_one_who_died_in_the_trial() {
        let Ok(cgroup) = Cgroup::fresh() else {
            println!("NOT TESTED: no cgroup to be had");
            return;
        };
        // SAFETY: the child makes a process, which allocates nothing, and leaves.
        let pid = match unsafe { raw::fork() }.expect("forked") {
            Forked::Child => raw::exit(match Extra::enter(&cgroup).map(ManuallyDrop::new) {
                Ok(extra) => i32::from(!extra.counted),
                Err(_) => 1,
            }),
            Forked::Parent(pid) => pid,
        };
        assert_eq!(raw::reap(pid), Some(0), "it went inside");
        while !cgroup.is_empty() {
            if !raw::poll(cgroup.events(), libc::POLLPRI, 10_000) {
                let _ = cgroup.kill();
                panic!("it is still there");
            }
        }
    }
}
