//! What becomes of the requests of one client: hung until they are let go, failed, executed without
//! an answer that says so.
//!
//! A request that hangs can be killed, as on NFS and SMB: who waits for it and is to die is
//! answered. The kernel's FUSE does not do that by itself, so the table of processes is looked at.

use std::ffi::{OsStr, OsString};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nix::libc;

/// What a client asks.
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

/// What becomes of it.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Fate {
    /// It is not executed before it is let go.
    Hang,
    /// The same, and who waits for it cannot be killed: as where a disk or a driver does not come back.
    Stick,
    /// It is executed, and not answered before it is let go.
    Mute,
    /// It is not executed, and this is the answer.
    Fail(i32),
    /// It is executed, and this is the answer.
    Lose(i32),
}

/// Which requests, and how many of them.
struct Rule {
    ops: Vec<Op>,
    name: Option<OsString>,
    fate: Fate,
    left: usize,
}

/// A request that hangs, and what ends it: as it should, or with this error.
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

/// The switchboard of one client.
#[derive(Clone, Default)]
pub(crate) struct Switchboard(Arc<Mutex<Board>>);

/// No end to how often.
pub(crate) const ALWAYS: usize = usize::MAX;

impl Switchboard {
    fn board(&self) -> MutexGuard<'_, Board> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next so many requests of these kinds (of all kinds, if none is named), of this name if
    /// one is given.
    pub(crate) fn set(&self, ops: &[Op], name: Option<&str>, fate: Fate, times: usize) {
        self.board().rules.push(Rule {
            ops: ops.to_vec(),
            name: name.map(OsString::from),
            fate,
            left: times,
        });
    }

    /// All goes well from now on, and what hung goes on.
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

    /// How many requests a rule has caught.
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

    /// Answers those who are to die, until the client is gone.
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

/// Whether a thread has a SIGKILL ahead of it, or is on its way out.
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
