//! Finding, signalling, killing and reaping the processes of a tree.
//!
//! Called by [`super::event_loop`] for the command's tree, and by [`super::handle`] when the
//! guardian has died and the orphans have come to the supervisor. Both are child subreapers, so
//! whatever loses its parent inside the tree becomes a direct child.
//!
//! Only direct children that have not been reaped are ever signalled, by id or as members of the
//! group whose leader has not been reaped: such an id cannot have been given to another process.
//! (SIGCONT to what is stopped is sent by descriptor, which cannot become another's either.)
//! What /proc shows helps to find them and proves nothing: it may be another PID namespace's, and
//! its lists are no snapshots. That none is left is said by waitid(2) alone.
//! Nothing here may allocate where the kernel has `/proc/<pid>/task/<tid>/children`: the guardian
//! has to work when there is no memory left.

use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::fs::FileExt;
use std::path::Path;

use nix::errno::Errno;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{Pid, getpgid};

use super::raw::{self, Whose};
use trafficcop_core::Exit;

/// What a child did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// It ended, and is still to be reaped.
    Ended(Exit),
    /// It was stopped.
    Stopped,
}

/// Sends `signal` to one process. The caller knows that it has not been reaped.
pub(super) fn signal(pid: i32, signal: i32) {
    debug_assert!(pid > 1, "a process, not a group and not everybody");
    raw::kill(pid, signal);
}

/// Sends `signal` to the process group. The caller knows that its leader has not been reaped.
pub(super) fn signal_group(leader: i32, signal: i32) {
    debug_assert!(leader > 1, "a group, not this one and not all");
    raw::kill(-leader, signal);
}

/// Continues every process that is stopped and that `concerns` names: one that runs would only be
/// told of a signal that nobody sent, and before the one that was. Tells whether it could look.
///
/// Whoever is to be continued may be anybody's child, so it is held by a descriptor before it is
/// looked at: what was seen was seen of the one that is signalled. Allocates nothing.
pub(super) fn resume_stopped(mut concerns: impl FnMut(i32) -> bool) -> bool {
    let mut able = true;
    let listed = each_process(|pid| {
        if able && concerns(pid) && is_stopped(pid) {
            able = match raw::pidfd_open(pid) {
                Ok(process) => {
                    // Once more, now that the descriptor holds it: the id may have become another's
                    // before that.
                    if concerns(pid) && is_stopped(pid) {
                        // It may have ended meanwhile.
                        let _ = raw::pidfd_signal(process.as_fd(), libc::SIGCONT);
                    }
                    true
                }
                // It has ended, which is no reason to give up; a kernel without pidfds is one.
                Err(why) => why.raw_os_error() == Some(libc::ESRCH),
            };
        }
    });
    listed && able
}

/// Whether a process is stopped at this moment, as a shell or `kill -STOP` stops it.
pub(super) fn is_stopped(pid: i32) -> bool {
    stat_of(pid, |state, _| state == b'T').unwrap_or(false)
}

/// Whether `ancestor` is among the ancestors of `pid`.
pub(super) fn descends_from(mut pid: i32, ancestor: i32) -> bool {
    while pid > 1 {
        match parent_of(pid) {
            Some(parent) if parent == ancestor => return true,
            Some(parent) => pid = parent,
            None => return false,
        }
    }
    false
}

/// The state and the parent of a process. Allocates nothing.
fn stat_of<T>(pid: i32, tell: impl FnOnce(u8, i32) -> T) -> Option<T> {
    let mut path = [0_u8; 32];
    let mut rest = &mut path[..];
    write!(rest, "/proc/{pid}/stat").ok()?;
    let room = rest.len();
    let length = path.len() - room;
    let file = File::open(std::str::from_utf8(&path[..length]).ok()?).ok()?;
    let mut text = [0_u8; 512];
    let length = file.read_at(&mut text, 0).ok()?;
    // The name in parentheses may hold anything, parentheses and blanks included.
    let end = text[..length].iter().rposition(|byte| *byte == b')')?;
    let mut words = std::str::from_utf8(&text[end + 1..length])
        .ok()?
        .split_ascii_whitespace();
    let state = *words.next()?.as_bytes().first()?;
    Some(tell(state, words.next()?.parse().ok()?))
}

/// Calls `visit` with the id of every process that /proc shows; tells whether it shows any.
/// Allocates nothing.
pub(super) fn each_process(mut visit: impl FnMut(i32)) -> bool {
    /// Where a `linux_dirent64` has its length, and where its name begins.
    const LENGTH: usize = 16;
    const NAME: usize = 19;
    let Ok(directory) = File::open("/proc") else {
        return false;
    };
    // On the stack, and not by `read_dir`: that allocates for each entry.
    let mut entries = [0_u8; 4096];
    let mut any = false;
    loop {
        let mut rest = match raw::getdents(directory.as_fd(), &mut entries) {
            Ok(read @ 1..) => &entries[..read],
            Ok(0) | Err(_) => return any,
        };
        while let Some(length) = rest.get(LENGTH..LENGTH + 2) {
            let length = usize::from(u16::from_ne_bytes([length[0], length[1]]));
            let Some(entry) = rest.get(..length).filter(|entry| entry.len() > NAME) else {
                return any;
            };
            let name = entry[NAME..].split(|byte| *byte == 0).next();
            let name = name.and_then(|name| std::str::from_utf8(name).ok());
            if let Some(pid) = name.and_then(|name| name.parse().ok()) {
                any = true;
                visit(pid);
            }
            rest = &rest[length..];
        }
    }
}

/// Whether `pid` is in the process group of `leader`.
pub(super) fn is_in_group(pid: i32, leader: i32) -> bool {
    getpgid(Some(Pid::from_raw(pid))) == Ok(Pid::from_raw(leader))
}

/// What has become of the child `pid`. An end is seen again and again until [`reap`]; a stop is
/// seen once. `None`: nothing new.
pub(super) fn look_at(pid: i32) -> Option<Change> {
    let told = |what| raw::waitid(Whose::Child(pid), what).ok().flatten();
    if let Some((_, exit)) = told(libc::WEXITED) {
        return Some(Change::Ended(exit));
    }
    told(libc::WSTOPPED).map(|_| Change::Stopped)
}

/// A child that ended and is still to be reaped, whichever.
pub(super) fn any_ended() -> Option<i32> {
    let ended = raw::waitid(Whose::Any, libc::WEXITED).ok()?;
    ended.map(|(pid, _)| pid)
}

/// Reaps the child if it has ended; tells whether it is gone (or was no child of ours).
pub(super) fn reap(pid: i32) -> bool {
    match waitpid(Pid::from_raw(pid), Some(WaitPidFlag::WNOHANG)) {
        Ok(WaitStatus::StillAlive) => false,
        // What has no name for nix is a signal that ended it: it was reaped.
        Ok(_) | Err(Errno::ECHILD | Errno::EINVAL) => true,
        Err(_) => false,
    }
}

/// Whether /proc shows the PID namespace that we live in; if not, what it calls us. A process that was
/// put into a new namespace still sees the /proc of the old one until somebody mounts another: the ids
/// there are other processes' in here.
///
/// # Errors
/// The name it has for us, or why there is none.
pub(super) fn proc_is_ours() -> Result<(), String> {
    match std::fs::read_link("/proc/self") {
        Ok(name) if name.as_os_str() == &*std::process::id().to_string() => Ok(()),
        Ok(name) => Err(name.display().to_string()),
        Err(error) => Err(format!("nothing ({error})")),
    }
}

/// Returns the kind of namespace ("pid", "time") that child processes enter and this process is not in, if any.
///
/// Kernels that do not say (PID before Linux 4.12, time before 5.6) count as having none. Since Linux 6.3 a process
/// enters its children's time namespace by execve.
pub(super) fn namespace_of_children_alone(ns: &Path) -> Option<&'static str> {
    ["pid", "time"].into_iter().find(|kind| {
        let theirs = ns.join(format!("{kind}_for_children"));
        match (
            std::fs::read_link(ns.join(kind)),
            std::fs::read_link(&theirs),
        ) {
            (Ok(ours), Ok(theirs)) => ours != theirs,
            // One in which nothing was started yet has no name.
            (Ok(_), Err(_)) => std::fs::symlink_metadata(theirs).is_ok(),
            (Err(_), _) => false,
        }
    })
}

/// Whether this process has no children at all, neither living nor to be reaped.
pub(super) fn is_childless() -> bool {
    raw::waitid(Whose::Any, libc::WEXITED).err() == Some(Errno::ECHILD)
}

/// Whether `pid` is a child of this process, be it living or to be reaped.
pub(super) fn is_child(pid: i32) -> bool {
    pid > 0 && raw::waitid(Whose::Child(pid), libc::WEXITED).is_ok()
}

/// The list of this thread's children, opened once so that it can be read when no descriptor is to
/// be had.
pub(super) struct Children {
    list: Option<File>,
    me: i32,
}

impl Children {
    /// For the calling process, which must have one thread.
    pub(super) fn of_this_thread() -> Children {
        Children {
            // Absent without CONFIG_PROC_CHILDREN; the walk over /proc does the same, slower.
            list: File::open("/proc/thread-self/children").ok(),
            me: i32::try_from(std::process::id()).unwrap_or(0),
        }
    }

    /// Calls `visit` with the id of every direct child, zombies included. The kernel's list is not
    /// a snapshot: a child can be missed while others come and go, and is seen the next time.
    pub(super) fn each(&self, visit: impl FnMut(i32)) {
        match &self.list {
            Some(list) => each_listed(list, visit),
            None => each_by_parent(self.me, visit),
        }
    }
}

/// Reads ids separated by blanks, without allocating.
fn each_listed(list: &File, mut visit: impl FnMut(i32)) {
    let mut buffer = [0_u8; 2048];
    let mut offset = 0;
    let mut number: i32 = 0;
    loop {
        let length = match list.read_at(&mut buffer, offset) {
            Ok(0) => break,
            Ok(length) => length,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(_) => break,
        };
        offset += length as u64;
        for byte in &buffer[..length] {
            if byte.is_ascii_digit() {
                number = number
                    .saturating_mul(10)
                    .saturating_add(i32::from(byte - b'0'));
            } else if number > 0 {
                visit(number);
                number = 0;
            }
        }
    }
    if number > 0 {
        visit(number);
    }
}

/// Looks through all of /proc for processes whose parent is `parent`.
fn each_by_parent(parent: i32, mut visit: impl FnMut(i32)) {
    each_process(|pid| {
        if parent_of(pid) == Some(parent) {
            visit(pid);
        }
    });
}

/// The parent of a process.
pub(super) fn parent_of(pid: i32) -> Option<i32> {
    stat_of(pid, |_, parent| parent)
}

/// The direct children of a process, which may have many threads; none where /proc is not ours.
/// Allocates: for the supervisor.
pub(super) fn children_of(pid: i32) -> Vec<i32> {
    let mut found = Vec::new();
    if proc_is_ours().is_err() {
        return found;
    }
    let mut listed = false;
    if let Ok(threads) = std::fs::read_dir(format!("/proc/{pid}/task")) {
        for thread in threads.flatten() {
            if let Ok(list) = File::open(thread.path().join("children")) {
                listed = true;
                each_listed(&list, |child| found.push(child));
            }
        }
    }
    if !listed {
        each_by_parent(pid, |child| found.push(child));
    }
    found
}

/// Kills and reaps every direct child of this process but those that `spare` names, over and over
/// while that makes headway: what loses its parent comes to us. Tells whether none is left, by the
/// kernel's word. Allocates: for the supervisor.
pub(super) fn sweep(spare: &[i32]) -> bool {
    let me = i32::try_from(std::process::id()).unwrap_or(0);
    // Bounded, so that a storm of forks cannot keep the supervisor from everything else.
    for _ in 0..64 {
        let mut reaped = false;
        let listed = children_of(me);
        for &child in &listed {
            // A list that is not about us names strangers.
            if spare.contains(&child) || !is_child(child) {
                continue;
            }
            signal(child, libc::SIGKILL);
            reaped |= reap(child);
        }
        // Whoever has ended needs no list to be found.
        let mut last = None;
        let fresh = |child: &i32, last| !spare.contains(child) && Some(*child) != last;
        while let Some(child) = any_ended().filter(|child| fresh(child, last)) {
            last = Some(child);
            reaped |= reap(child);
        }
        if !reaped {
            return none_but(spare, &listed);
        }
    }
    false
}

/// Reaps the children of this process that have ended, but for those that `spare` names, and tells which.
/// Allocates: for the supervisor.
pub(super) fn reap_ended(spare: &[i32]) -> Vec<i32> {
    let me = i32::try_from(std::process::id()).unwrap_or(0);
    let mut children = children_of(me);
    children.retain(|child| {
        let ended = || matches!(look_at(*child), Some(Change::Ended(_)));
        !spare.contains(child) && ended() && reap(*child)
    });
    children
}

/// Whether this process has no children but those that `spare` names. Where it has none at all, the
/// kernel says so. Where it has some of those, it says of each that is asked for whether it is a child,
/// and never that these are all: then the list has to do, and is believed if it names each of them.
fn none_but(spare: &[i32], listed: &[i32]) -> bool {
    if is_childless() {
        return true;
    }
    let unrelated_children: Vec<i32> = spare.iter().copied().filter(|pid| is_child(*pid)).collect();
    let known = |pid: &i32| unrelated_children.contains(pid);
    !unrelated_children.is_empty()
        && unrelated_children.iter().all(|pid| listed.contains(pid))
        && any_ended().is_none_or(|pid| known(&pid))
        && listed.iter().all(|pid| known(pid) || !is_child(*pid))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn a_namespace_that_only_children_enter_is_named() {
        let ns = tempfile::tempdir().unwrap();
        let link = |name: &str, to: &str| {
            let path = ns.path().join(name);
            let _ = std::fs::remove_file(&path);
            std::os::unix::fs::symlink(to, path).unwrap();
        };
        assert_eq!(
            namespace_of_children_alone(ns.path()),
            None,
            "an old kernel"
        );
        for kind in ["pid", "time"] {
            link(kind, "n:[1]");
            assert_eq!(namespace_of_children_alone(ns.path()), None);
            link(&format!("{kind}_for_children"), "n:[2]");
            assert_eq!(namespace_of_children_alone(ns.path()), Some(kind));
            link(&format!("{kind}_for_children"), "n:[1]");
        }
        assert_eq!(namespace_of_children_alone(ns.path()), None);
    }

    #[test]
    fn a_list_is_read_across_the_ends_of_the_buffer() {
        let path = tempfile::NamedTempFile::new().unwrap();
        let ids: Vec<i32> = (1000..3000).collect();
        let text: String = ids.iter().map(|id| format!("{id} ")).collect();
        std::fs::write(path.path(), text).unwrap();
        let mut seen = Vec::new();
        each_listed(&File::open(path.path()).unwrap(), |id| seen.push(id));
        assert_eq!(seen, ids);
    }

    #[test]
    fn the_two_ways_to_find_children_agree_on_ours() {
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        let me = i32::try_from(std::process::id()).unwrap();
        let mut by_parent = false;
        each_by_parent(me, |id| by_parent |= id == pid);
        let listed = children_of(me).contains(&pid);
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(by_parent && listed);
    }

    #[test]
    fn a_list_that_does_not_name_the_children_we_have_says_nothing() {
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        let (nobody, stranger) = (none_but(&[], &[]), none_but(&[], &[1, 2]));
        let other_list = none_but(&[pid], &[]) || none_but(&[pid], &[1, 2]);
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!nobody && !stranger, "there is a child that is not spared");
        assert!(!other_list, "it does not name the one we have");
        assert!(proc_is_ours().is_ok());
    }

    #[test]
    #[expect(clippy::zombie_processes, reason = "reaping it is what is tried here")]
    fn an_end_is_seen_until_it_is_reaped() {
        let child = Command::new("sh").args(["-c", "exit 7"]).spawn().unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        let until = trafficcop_core::clock::Instant::now() + std::time::Duration::from_secs(60);
        while look_at(pid).is_none() {
            assert!(trafficcop_core::clock::Instant::now() < until);
            std::thread::yield_now();
        }
        assert_eq!(look_at(pid), Some(Change::Ended(Exit::Code(7))));
        assert_eq!(look_at(pid), Some(Change::Ended(Exit::Code(7))));
        assert!(reap(pid));
        assert_eq!(look_at(pid), None);
    }
}
