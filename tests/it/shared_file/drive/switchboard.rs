//! Fates of one client's requests.
//!
//! A process can be killed while its request hangs, as on NFS and SMB: a request of a dying process
//! is answered. The kernel's FUSE does not do that, so a thread looks for dying processes.

use std::ffi::{OsStr, OsString};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nix::libc;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Op {
    Lookup,
    Getattr,
    Setattr,
    Mkdir,
    Rmdir,
    Unlink,
    Rename,
    Open,
    Create,
    Read,
    Write,
    Flush,
    Fsync,
    Opendir,
    Readdir,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Fate {
    /// Not executed until it is released.
    Hang,
    /// Like `Hang`, but the process cannot be killed: a disk or a driver does not return.
    Stick,
    /// Executed, but not answered until it is released.
    Mute,
    /// Not executed; answered with this error.
    Fail(i32),
    /// Executed, but answered with this error.
    Lose(i32),
}

/// A fate for some requests, and how many of them.
struct Rule {
    ops: Vec<Op>,
    name: Option<OsString>,
    fate: Fate,
    left: usize,
}

/// Hung until the channel ends it, well or with an error.
struct Hung {
    thread: u32,
    spared: bool,
    end: Box<dyn FnOnce(Option<i32>) + Send>,
}

#[derive(Default)]
struct Board {
    rules: Vec<Rule>,
    hung: Vec<Hung>,
    count: usize,
}

#[derive(Clone, Default)]
pub(crate) struct Switchboard(Arc<Mutex<Board>>);

pub(crate) const ALWAYS: usize = usize::MAX;

impl Switchboard {
    fn board(&self) -> MutexGuard<'_, Board> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Applies a fate to the next `times` requests of these kinds (any if none), and of this name.
    pub(crate) fn set(&self, ops: &[Op], name: Option<&str>, fate: Fate, times: usize) {
        self.board().rules.push(Rule {
            ops: ops.to_vec(),
            name: name.map(OsString::from),
            fate,
            left: times,
        });
    }

    /// Ends all faults, and continues requests that hang.
    pub(crate) fn heal(&self) {
        let hung = {
            let mut board = self.board();
            board.rules.clear();
            std::mem::take(&mut board.hung)
        };
        for one in hung {
            (one.end)(None);
        }
    }

    pub(crate) fn caught(&self) -> usize {
        self.board().count
    }

    pub(super) fn serve<T: Send + 'static>(
        &self,
        (op, name, thread): (Op, Option<&OsStr>, u32),
        execute: impl FnOnce() -> Result<T, i32> + Send + 'static,
        answer: impl FnOnce(Result<T, i32>) + Send + 'static,
    ) {
        let mut board = self.board();
        let rule = board.rules.iter_mut().find(|rule| {
            rule.left > 0
                && (rule.ops.is_empty() || rule.ops.contains(&op))
                && rule
                    .name
                    .as_deref()
                    .is_none_or(|wanted| Some(wanted) == name)
        });
        let fate = rule.map(|rule| {
            rule.left -= usize::from(rule.left != ALWAYS);
            rule.fate
        });
        board.count += usize::from(fate.is_some());
        let end: Box<dyn FnOnce(Option<i32>) + Send> = match fate {
            None => {
                drop(board);
                return answer(execute());
            }
            Some(Fate::Fail(errno)) => {
                drop(board);
                return answer(Err(errno));
            }
            Some(Fate::Lose(errno)) => {
                drop(board);
                let _ = execute();
                return answer(Err(errno));
            }
            Some(Fate::Hang | Fate::Stick) => Box::new(move |killed| match killed {
                Some(errno) => answer(Err(errno)),
                None => answer(execute()),
            }),
            Some(Fate::Mute) => {
                drop(board);
                let done = execute();
                board = self.board();
                Box::new(move |killed| answer(killed.map_or(done, Err)))
            }
        };
        let spared = !matches!(fate, Some(Fate::Stick));
        board.hung.push(Hung {
            thread,
            spared,
            end,
        });
    }

    /// Answers the requests of dying processes, until the client ends.
    pub(super) fn spare_the_dying(&self) {
        let board = Arc::downgrade(&self.0);
        std::thread::spawn(move || {
            while let Some(board) = board.upgrade() {
                let switchboard = Switchboard(board);
                let threads: Vec<u32> = {
                    let board = switchboard.board();
                    let spared = board.hung.iter().filter(|hung| hung.spared);
                    spared.map(|hung| hung.thread).collect()
                };
                let dying: Vec<u32> = threads.into_iter().filter(|one| is_dying(*one)).collect();
                let ends: Vec<Hung> = {
                    let mut board = switchboard.board();
                    let ended = |hung: &mut Hung| hung.spared && dying.contains(&hung.thread);
                    board.hung.extract_if(.., ended).collect()
                };
                for one in ends {
                    (one.end)(Some(libc::EINTR));
                }
                drop(switchboard);
                std::thread::sleep(Duration::from_millis(10));
            }
        });
    }
}

/// Whether SIGKILL is pending, or the thread exits.
fn is_dying(thread: u32) -> bool {
    const KILL: u64 = 1 << (libc::SIGKILL - 1);
    const EXITING: u64 = 4;
    let Ok(status) = std::fs::read_to_string(format!("/proc/{thread}/status")) else {
        return true;
    };
    let pending = |line: &str| {
        let set = line
            .strip_prefix("SigPnd:")
            .or_else(|| line.strip_prefix("ShdPnd:"));
        let set = set.and_then(|set| u64::from_str_radix(set.trim(), 16).ok());
        set.is_some_and(|set| set & KILL != 0)
    };
    let stat = std::fs::read_to_string(format!("/proc/{thread}/stat")).unwrap_or_default();
    let flags = stat.rfind(')').and_then(|at| {
        stat[at + 1..]
            .split_whitespace()
            .nth(6)?
            .parse::<u64>()
            .ok()
    });
    status.lines().any(pending) || flags.is_none_or(|flags| flags & EXITING != 0)
}
