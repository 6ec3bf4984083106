//! A process forked ahead of the first order, which becomes the command when that comes: so the fork
//! is made beside the supervisor's way to the lock, and not after it.
//!
//! Called by the guardian's loop. Until its order it only waits: it has neither the lock nor the
//! environment of a tenure, and whoever is not given control lets it go. The order is given where a
//! command would be forked otherwise, so all that holds of a fork then holds of it. It must never
//! outlive the guardian, and never go on without an order.

use std::ffi::OsString;
use std::io::IoSlice;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use nix::errno::Errno;
use nix::poll::{PollFlags, PollTimeout};
use nix::sys::socket::{
    AddressFamily, ControlMessage, MsgFlags, SockFlag, SockType, sendmsg, socketpair,
};
use nix::unistd::{Pid, setpgid};

use super::{Child, ExecImage, PassedFds, SpawnContext, enter, give_up, replace, result_pipe};
use crate::guardian::containment::Containment;
use crate::guardian::raw::{self, Forked};
use crate::guardian::{Program, fork, tree, wire};

/// The longest environment that an order brings along; a command that gets more is forked.
const LONGEST: usize = 16 << 10;

/// The process while it waits.
pub(in crate::guardian) struct Ahead {
    child: Child,
    /// By which it is given its order; what it waits for ends with it.
    orders: OwnedFd,
}

impl Ahead {
    /// Forks it, inside of the containment. `supervisor` is what it must not keep open.
    ///
    /// # Errors
    /// What the system calls say; a containment that is made for each command has nobody ahead.
    pub(in crate::guardian) fn fork(
        program: &Program,
        withheld: &[OsString],
        context: &SpawnContext,
        containment: &Containment,
        supervisor: BorrowedFd<'_>,
    ) -> Result<Ahead, Errno> {
        // Taken before the fork: see `spawn`.
        let parent = containment.parent_seen(nix::unistd::getpid().as_raw());
        let join = containment.join();
        let (exec_result, tell) = result_pipe()?;
        let (orders, its) = socketpair(
            AddressFamily::Unix,
            SockType::SeqPacket,
            None,
            SockFlag::SOCK_CLOEXEC,
        )?;
        // SAFETY: the guardian has one thread, so the child's memory is consistent, the allocator's
        // included; the child never returns from here.
        match unsafe { containment.fork() }? {
            Forked::Child => {
                // While either is open somewhere, its other side does not learn that we are dead.
                raw::close(supervisor.as_raw_fd());
                drop(orders);
                enter(join, parent, tell.as_fd());
                wait(program, withheld, context, its.as_fd(), tell.as_fd())
            }
            Forked::Parent(pid) => {
                let _ = setpgid(Pid::from_raw(pid), Pid::from_raw(pid));
                Ok(Ahead {
                    child: Child { pid, exec_result },
                    orders,
                })
            }
        }
    }

    /// Orders it to become the command, with these changes to its environment (as they travel) and this
    /// lock. Waits for nothing.
    ///
    /// # Errors
    /// It has ended, or the order is too long for it; it is gone then.
    pub(in crate::guardian) fn go(
        self,
        changes: &[u8],
        lock: Option<BorrowedFd<'_>>,
    ) -> Result<Child, Errno> {
        let with_lock = [u8::from(lock.is_some())];
        let parts = [IoSlice::new(&with_lock), IoSlice::new(changes)];
        let lock: Option<[_; 1]> = lock.map(|lock| [lock.as_raw_fd()]);
        let rights = lock.as_ref().map(|lock| ControlMessage::ScmRights(lock));
        let flags = MsgFlags::MSG_NOSIGNAL | MsgFlags::MSG_DONTWAIT;
        let sent = if changes.len() > LONGEST {
            Err(Errno::EMSGSIZE)
        } else {
            // All of it or nothing: it is one packet.
            sendmsg::<()>(
                self.orders.as_raw_fd(),
                &parts,
                rights.as_slice(),
                flags,
                None,
            )
        };
        match sent {
            Ok(_) => Ok(self.child),
            Err(errno) => {
                self.dismiss();
                Err(errno)
            }
        }
    }

    /// Ends it. It is not killed with its containment: nobody could be born in that any more.
    pub(in crate::guardian) fn dismiss(self) {
        tree::signal(self.child.pid, libc::SIGKILL);
        raw::reap(self.child.pid);
    }
}

/// The child's part: waits for its order, and no longer than there is somebody to give it.
fn wait(
    program: &Program,
    withheld: &[OsString],
    context: &SpawnContext,
    orders: BorrowedFd<'_>,
    tell: BorrowedFd<'_>,
) -> ! {
    raw::poll([orders], PollFlags::POLLIN, PollTimeout::NONE);
    let mut order = [0; 1 + LONGEST];
    let mut rights = nix::cmsg_space!([std::os::fd::RawFd; 1]);
    let (length, lock) = match fork::receive(orders.as_raw_fd(), &mut order, &mut rights) {
        Ok(received) => received,
        Err(errno) => give_up(tell, errno),
    };
    let Some((with_lock, changes)) = order[..length].split_first() else {
        raw::exit(0)
    };
    // It was sent, and we could not have it: the limit of descriptors.
    if *with_lock == 1 && lock.is_none() {
        give_up(tell, Errno::EMFILE);
    }
    let mut changes = wire::variables(changes);
    changes.extend(withheld.iter().map(|name| (name.clone(), None)));
    let mut image = match ExecImage::prepare(program, changes, context.sockets) {
        Ok(image) => image,
        Err(errno) => give_up(tell, errno),
    };
    let handed = PassedFds {
        lock: lock.as_ref().map(AsFd::as_fd),
        input: None,
    };
    replace(&mut image, context, handed, tell)
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;

    use super::*;
    use crate::guardian::containment::Cgroup;

    /// One that runs this script, and an end of a socket that it must not keep open with its other end.
    fn forked(script: &str, containment: &Containment) -> Ahead {
        let (supervisor, _) = std::os::unix::net::UnixStream::pair().unwrap();
        let program = Program {
            in_front: true,
            ..Program::script(OsStr::new(script))
        };
        let withheld = [OsString::from("PATH")];
        Ahead::fork(
            &program,
            &withheld,
            &SpawnContext::capture(),
            containment,
            supervisor.as_fd(),
        )
        .unwrap()
    }

    fn status_of(child: &Child) -> i32 {
        let status = raw::reap(child.pid).expect("a child of ours");
        assert!(libc::WIFEXITED(status), "{status:x}");
        libc::WEXITSTATUS(status)
    }

    #[test]
    fn it_becomes_the_command_with_what_its_order_brings_along() {
        let (_from, to) = std::io::pipe().unwrap();
        let lock = format!("/proc/self/fd/{}", to.as_raw_fd());
        let lock = std::fs::read_link(lock).unwrap();
        // Under whatever number.
        let script = "tr '\\0' '\\n' </proc/$$/environ | grep -q ^PATH= && exit 4
            for fd in /proc/$$/fd/*; do
                [ \"$(readlink $fd)\" = \"$TC_LOCK\" ] && exit $TC_STATUS
            done; exit 3";
        let changes = format!("TC_LOCK={}\0TC_STATUS=7\0", lock.display());
        let go = |lock| {
            let ahead = forked(script, &Containment::None);
            status_of(&ahead.go(changes.as_bytes(), lock).unwrap())
        };
        assert_eq!(go(Some(to.as_fd())), 7);
        assert_eq!(go(None), 3, "nothing of ours is left open");
    }

    #[test]
    fn one_that_is_dismissed_was_never_the_command() {
        let directory = tempfile::tempdir().unwrap();
        let trace = directory.path().join("trace");
        let ahead = forked(&format!("> {}", trace.display()), &Containment::None);
        let pid = ahead.child.pid;
        ahead.dismiss();
        assert!(!tree::is_child(pid), "it is reaped");
        assert!(!trace.exists());
    }

    #[test]
    fn without_anybody_to_order_it_goes() {
        let Ahead { child, orders } = forked("exit 7", &Containment::None);
        // As it is when the guardian is dead, PR_SET_PDEATHSIG apart.
        drop(orders);
        assert_eq!(status_of(&child), 0);
    }

    #[test]
    fn one_that_was_killed_or_cannot_take_its_order_is_gone() {
        let ahead = forked("exit 7", &Containment::None);
        let pid = ahead.child.pid;
        tree::signal(pid, libc::SIGKILL);
        while tree::look_at(pid).is_none() {
            std::thread::yield_now();
        }
        assert_eq!(ahead.go(b"A=B\0", None).err(), Some(Errno::EPIPE));
        assert!(!tree::is_child(pid));

        let ahead = forked("exit 7", &Containment::None);
        let pid = ahead.child.pid;
        let long = vec![b'A'; LONGEST + 1];
        assert_eq!(ahead.go(&long, None).err(), Some(Errno::EMSGSIZE));
        assert!(!tree::is_child(pid));
    }

    #[test]
    fn it_waits_inside_its_containment_and_leaves_it_fit_for_the_next() {
        let Ok(cgroup) = Cgroup::prepare() else {
            println!("NOT TESTED: no cgroup to be had");
            return;
        };
        let containment = Containment::Cgroup(cgroup);
        let ahead = forked("exit 7", &containment);
        assert!(!containment.is_empty());
        ahead.dismiss();
        assert!(containment.is_empty());
        let ahead = forked("exit 7", &containment);
        assert!(!containment.is_empty());
        ahead.dismiss();
    }
}
