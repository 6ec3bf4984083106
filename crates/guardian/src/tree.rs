//! Finding, signalling, killing and reaping the processes of a tree.
//!
//! The guardian uses this for the command's tree, the supervisor for a dead guardian's. Both are child
//! subreapers: orphans of the tree become direct children.
//!
//! Signals go only to direct children that have not been reaped, by id or by the group of such a leader: no
//! other process can have that id. (SIGCONT to a stopped process goes by descriptor, which is as safe.) /proc
//! helps to find processes and proves nothing: it may be another PID namespace's, and its lists are no
//! snapshots. Only waitid(2) proves that none is left. With `/proc/<pid>/task/<tid>/children`, only
//! functions marked "Allocates" do so: the guardian has to work without free memory.

use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::fs::FileExt;
use std::path::Path;

use nix::errno::Errno;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{Pid, getpgid};

use super::raw::{self, WaitTarget};
use trafficcop_core::Exit;

/// Change in a child's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// The child is not reaped.
    Ended(Exit),
    /// The child is stopped.
    Stopped,
}

pub(super) fn signal(pid: i32, signal: i32) {
    debug_assert!(pid > 1, "a process, not a group and not everybody");
    raw::kill(pid, signal);
}

pub(super) fn signal_group(leader: i32, signal: i32) {
    debug_assert!(leader > 1, "a group, not this one and not all");
    raw::kill(-leader, signal);
}

/// Continues the stopped processes that `concerns` accepts; a running one would get a needless SIGCONT. Returns
/// whether it could look.
///
/// A process may not be a child, so a descriptor holds it during the look.
pub(super) fn resume_stopped(mut concerns: impl FnMut(i32) -> bool) -> bool {
    let mut able = true;
    let listed = each_process(|pid| {
        if able && concerns(pid) && is_stopped(pid) {
            able = match raw::pidfd_open(pid) {
                Ok(process) => {
                    // Before the descriptor, another process may have got the id.
                    if concerns(pid) && is_stopped(pid) {
                        let _ = raw::pidfd_signal(process.as_fd(), libc::SIGCONT);
                    }
                    true
                }
                // ESRCH: it has ended. Without pidfds, give up.
                Err(why) => why.raw_os_error() == Some(libc::ESRCH),
            };
        }
    });
    listed && able
}

pub(super) fn is_stopped(pid: i32) -> bool {
    stat_of(pid, |state, _| state == b'T').unwrap_or(false)
}

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

fn stat_of<T>(pid: i32, tell: impl FnOnce(u8, i32) -> T) -> Option<T> {
    let mut path = [0_u8; 32];
    let mut rest = &mut path[..];
    write!(rest, "/proc/{pid}/stat").ok()?;
    let room = rest.len();
    let length = path.len() - room;
    let file = File::open(std::str::from_utf8(&path[..length]).ok()?).ok()?;
    let mut text = [0_u8; 512];
    let length = file.read_at(&mut text, 0).ok()?;
    // The name in parentheses may hold parentheses and blanks.
    let end = text[..length].iter().rposition(|byte| *byte == b')')?;
    let mut words = std::str::from_utf8(&text[end + 1..length])
        .ok()?
        .split_ascii_whitespace();
    let state = *words.next()?.as_bytes().first()?;
    Some(tell(state, words.next()?.parse().ok()?))
}

/// Returns whether there is any process.
pub(super) fn each_process(mut visit: impl FnMut(i32)) -> bool {
    const LENGTH: usize = 16;
    const NAME: usize = 19;
    let Ok(directory) = File::open("/proc") else {
        return false;
    };
    // `read_dir` would allocate for each entry.
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

pub(super) fn is_in_group(pid: i32, leader: i32) -> bool {
    getpgid(Some(Pid::from_raw(pid))) == Ok(Pid::from_raw(leader))
}

/// Returns the child's change: an end until [`reap`], a stop once.
pub(super) fn look_at(pid: i32) -> Option<Change> {
    let told = |what| raw::waitid(WaitTarget::Child(pid), what).ok().flatten();
    if let Some((_, exit)) = told(libc::WEXITED) {
        return Some(Change::Ended(exit));
    }
    told(libc::WSTOPPED).map(|_| Change::Stopped)
}

pub(super) fn any_ended() -> Option<i32> {
    let ended = raw::waitid(WaitTarget::Any, libc::WEXITED).ok()?;
    ended.map(|(pid, _)| pid)
}

/// Returns whether the child is gone (or was no child).
pub(super) fn reap(pid: i32) -> bool {
    match waitpid(Pid::from_raw(pid), Some(WaitPidFlag::WNOHANG)) {
        Ok(WaitStatus::StillAlive) => false,
        // EINVAL: it was reaped, but nix has no name for its signal.
        Ok(_) | Err(Errno::ECHILD | Errno::EINVAL) => true,
        Err(_) => false,
    }
}

/// Checks that /proc shows the PID namespace of this process. In a new namespace the old /proc stays until
/// another is mounted.
///
/// The error is this process's name there, or why it has none.
pub(super) fn proc_is_ours() -> Result<(), String> {
    match std::fs::read_link("/proc/self") {
        Ok(name) if name.as_os_str() == &*std::process::id().to_string() => Ok(()),
        Ok(name) => Err(name.display().to_string()),
        Err(error) => Err(format!("nothing ({error})")),
    }
}

/// Returns the kind of namespace that children enter without this process.
///
/// Kernels that do not say (PID before Linux 4.12, time before 5.6) count as having none. Since Linux 6.3
/// execve enters the children's time namespace.
pub(super) fn namespace_of_children_alone(ns: &Path) -> Option<&'static str> {
    ["pid", "time"].into_iter().find(|kind| {
        let theirs = ns.join(format!("{kind}_for_children"));
        match (
            std::fs::read_link(ns.join(kind)),
            std::fs::read_link(&theirs),
        ) {
            (Ok(ours), Ok(theirs)) => ours != theirs,
            // Without a process it has no name yet.
            (Ok(_), Err(_)) => std::fs::symlink_metadata(theirs).is_ok(),
            (Err(_), _) => false,
        }
    })
}

pub(super) fn is_childless() -> bool {
    raw::waitid(WaitTarget::Any, libc::WEXITED).err() == Some(Errno::ECHILD)
}

pub(super) fn is_child(pid: i32) -> bool {
    pid > 0 && raw::waitid(WaitTarget::Child(pid), libc::WEXITED).is_ok()
}

/// This thread's children, in a file that is opened once: later no descriptor may be free.
pub(super) struct Children {
    list: Option<File>,
    me: i32,
}

impl Children {
    /// The calling process must have one thread.
    pub(super) fn of_this_thread() -> Children {
        Children {
            // Without CONFIG_PROC_CHILDREN the walk over /proc is slower.
            list: File::open("/proc/thread-self/children").ok(),
            me: i32::try_from(std::process::id()).unwrap_or(0),
        }
    }

    /// Visits direct children, zombies included. The kernel's list is no snapshot: it can miss one while others
    /// come and go.
    pub(super) fn each(&self, visit: impl FnMut(i32)) {
        match &self.list {
            Some(list) => each_listed(list, visit),
            None => each_by_parent(self.me, visit),
        }
    }
}

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

fn each_by_parent(parent: i32, mut visit: impl FnMut(i32)) {
    each_process(|pid| {
        if parent_of(pid) == Some(parent) {
            visit(pid);
        }
    });
}

pub(super) fn parent_of(pid: i32) -> Option<i32> {
    stat_of(pid, |_, parent| parent)
}

/// Direct children, of all threads; none if /proc is another namespace's. Allocates.
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

/// Kills and reaps direct children that are not in `spare`, while that makes progress: orphans of these follow.
/// Returns whether the kernel confirms that none is left. Allocates.
pub(super) fn sweep(spare: &[i32]) -> bool {
    let me = i32::try_from(std::process::id()).unwrap_or(0);
    // A storm of forks must not keep the supervisor from everything else.
    for _ in 0..64 {
        let mut reaped = false;
        let listed = children_of(me);
        for &child in &listed {
            // Another namespace's list names foreign processes.
            if spare.contains(&child) || !is_child(child) {
                continue;
            }
            signal(child, libc::SIGKILL);
            reaped |= reap(child);
        }
        // Finds ended children without a list.
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

/// Reaps ended children that are not in `spare`; returns them. Allocates.
pub(super) fn reap_ended(spare: &[i32]) -> Vec<i32> {
    let me = i32::try_from(std::process::id()).unwrap_or(0);
    let mut children = children_of(me);
    children.retain(|child| {
        let ended = || matches!(look_at(*child), Some(Change::Ended(_)));
        !spare.contains(child) && ended() && reap(*child)
    });
    children
}

/// Whether there are no children but `spare`. The kernel confirms only "no children"; otherwise a list that
/// names each spared child has to do.
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
    fn both_ways_to_find_children_agree() {
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
    fn list_without_the_known_children_proves_nothing() {
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        let (nobody, stranger) = (none_but(&[], &[]), none_but(&[], &[1, 2]));
        let other_list = none_but(&[pid], &[]) || none_but(&[pid], &[1, 2]);
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!nobody && !stranger, "there is a child that is not spared");
        assert!(!other_list, "the list lacks a known child");
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
