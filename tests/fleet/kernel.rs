//! The machine as a simulated guardian sees it: processes, a socket and a timer, which do not
//! change during a turn of the shipped loop. The loop's deeds are recorded for the world.

use std::cell::{RefCell, RefMut};
use std::collections::VecDeque;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::rc::Rc;

use nix::errno::Errno;
use trafficcop::Instant;
use trafficcop_core::{Deadlines, Exit};
use trafficcop_guardian::{Change, ControlState, Ready, System, Wait};

use super::clock::Time;
use super::pair::Tree;

pub(crate) enum Act {
    Forked { token: u64 },
    Group(i32),
    One(i32, i32),
    KilledContained,
    Shown(Instant),
    Released(Vec<u8>),
}

pub(crate) struct Facts {
    pub(crate) to_guardian: VecDeque<(Vec<u8>, Option<OwnedFd>)>,
    pub(crate) hung_up: bool,
    pub(crate) wall_jumped: bool,
    pub(crate) child_signal: bool,
    /// Whether the main process was stopped since the last look; the world never does that.
    pub(crate) stopped: bool,
    /// Whether the socket is full because the supervisor does not read.
    pub(crate) is_full: bool,
    pub(crate) tree: Option<Tree>,
    /// The list of its children is no atomic snapshot: it misses one this time.
    pub(crate) misses: bool,
    /// Orphans of the tree stay within reach of one signal.
    pub(crate) contained: bool,
    pub(crate) armed: Instant,
    pub(crate) to_supervisor: Vec<u8>,
    pub(crate) acts: Vec<Act>,
    pids: i32,
    /// Token of the next process's tenure.
    prepared: u64,
    pub(crate) shown: ControlState,
}

#[derive(Clone)]
pub(crate) struct Kernel(Rc<RefCell<Facts>>);

impl Kernel {
    pub(crate) fn new(contained: bool) -> Kernel {
        Kernel(Rc::new(RefCell::new(Facts {
            to_guardian: VecDeque::new(),
            hung_up: false,
            wall_jumped: false,
            child_signal: false,
            stopped: false,
            is_full: false,
            tree: None,
            misses: false,
            contained,
            armed: Instant::FOREVER,
            to_supervisor: Vec::new(),
            acts: Vec::new(),
            pids: 100,
            prepared: 0,
            shown: ControlState::NONE,
        })))
    }

    pub(crate) fn facts(&self) -> RefMut<'_, Facts> {
        self.0.borrow_mut()
    }

    /// Returns what poll(2) would report at `now`, which is `time`; nothing while it would wait.
    /// The wait ends at `until`.
    pub(crate) fn poll(&self, wait: Wait, now: Instant, time: Time, until: Time) -> Option<Ready> {
        let facts = self.facts();
        let executed = wait.exec && facts.tree.as_ref().is_some_and(|tree| tree.executed);
        let ready = Ready {
            nothing: false,
            wall: facts.wall_jumped,
            children: facts.child_signal || executed,
            socket: wait.socket && (!facts.to_guardian.is_empty() || facts.hung_up),
        };
        if ready.wall || ready.children || ready.socket || now >= facts.armed {
            return Some(ready);
        }
        let nothing = time >= until;
        nothing.then_some(Ready { nothing, ..ready })
    }

    fn act(&self, act: Act) {
        self.facts().acts.push(act);
    }

    /// Returns the main process until it is reaped, and an orphaned daemon.
    fn children(&self) -> [Option<i32>; 2] {
        let facts = self.facts();
        let Some(tree) = &facts.tree else {
            return [None; 2];
        };
        let daemon = tree.has_daemon && !tree.daemon_reaped && !tree.main;
        [
            (!tree.main_reaped).then_some(tree.pid),
            daemon.then_some(tree.pid + 1),
        ]
    }
}

impl System for Kernel {
    fn arm(&mut self, next: Instant) {
        self.facts().armed = next;
    }

    fn wall_clock_jumped(&mut self) -> bool {
        std::mem::take(&mut self.facts().wall_jumped)
    }

    fn send(&mut self, bytes: &[u8]) -> nix::Result<usize> {
        let mut facts = self.facts();
        if facts.hung_up {
            return Err(Errno::EPIPE);
        }
        if facts.is_full {
            return Err(Errno::EAGAIN);
        }
        facts.to_supervisor.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn receive(&mut self, buffer: &mut [u8]) -> nix::Result<(usize, Option<OwnedFd>)> {
        let mut facts = self.facts();
        let Some((bytes, descriptor)) = facts.to_guardian.front_mut() else {
            return match facts.hung_up {
                true => Ok((0, None)),
                false => Err(Errno::EAGAIN),
            };
        };
        let length = buffer.len().min(bytes.len());
        let descriptor = descriptor.take();
        for (place, byte) in buffer.iter_mut().zip(bytes.drain(..length)) {
            *place = byte;
        }
        if bytes.is_empty() {
            facts.to_guardian.pop_front();
        }
        Ok((length, descriptor))
    }

    fn take_child_signal(&mut self) {
        self.facts().child_signal = false;
    }

    fn each_child(&self, mut visit: impl FnMut(i32)) {
        let [main, daemon] = self.children();
        let daemon = daemon.filter(|_| !self.facts().misses);
        for pid in main.into_iter().chain(daemon) {
            visit(pid);
        }
    }

    fn look_at(&self, pid: i32) -> Option<Change> {
        let mut facts = self.facts();
        let stopped = std::mem::take(&mut facts.stopped);
        let tree = facts.tree.as_ref().filter(|tree| tree.pid == pid)?;
        let ended = !tree.main && !tree.main_reaped;
        let ended = ended.then_some(Change::Ended(tree.exit));
        ended.or(stopped.then_some(Change::Stopped))
    }

    fn any_ended(&self) -> Option<i32> {
        let [main, daemon] = self.children();
        let facts = self.facts();
        let tree = facts.tree.as_ref()?;
        main.filter(|_| !tree.main)
            .or(daemon.filter(|_| !tree.daemon))
    }

    fn reap(&self, pid: i32) -> bool {
        let mut facts = self.facts();
        let Some(tree) = &mut facts.tree else {
            return true;
        };
        if pid == tree.pid {
            tree.main_reaped |= !tree.main;
            tree.main_reaped
        } else {
            tree.daemon_reaped |= !tree.daemon;
            tree.daemon_reaped
        }
    }

    fn is_child(&self, pid: i32) -> bool {
        self.children().contains(&Some(pid))
    }

    fn is_childless(&self) -> bool {
        self.children() == [None; 2]
    }

    fn is_in_group(&self, pid: i32, leader: i32) -> bool {
        pid == leader
    }

    fn is_stopped(&self, _pid: i32) -> bool {
        false
    }

    fn signal(&self, pid: i32, signal: i32) {
        self.act(Act::One(pid, signal));
    }

    fn signal_group(&self, _leader: i32, signal: i32) {
        let ControlState { until, drain } = self.facts().shown;
        let told = until == Instant::ZERO || drain != Instant::ZERO;
        assert!(
            told || signal != libc::SIGTERM,
            "a stop that the control file does not tell"
        );
        self.act(Act::Group(signal));
    }

    fn resume_group(&self, _leader: i32) {}

    fn sweep(&mut self) -> Result<(), Errno> {
        Ok(())
    }

    fn extend(&mut self, _kill_at: Instant) {}

    fn term_hidden(&mut self) {}

    fn kill_contained(&mut self) {
        if self.facts().contained {
            self.act(Act::KilledContained);
        }
    }

    fn is_helper(&self, _pid: i32) -> bool {
        false
    }

    fn hides_some(&self) -> bool {
        false
    }

    fn close(&mut self) {}

    fn is_empty(&self) -> bool {
        let facts = self.facts();
        !facts.contained || !facts.tree.as_ref().is_some_and(Tree::lives)
    }

    fn abandon(&mut self) {}

    fn prepare(&mut self, _program: u8, changes: &[u8]) -> Result<(), Errno> {
        self.facts().prepared = token_of(changes);
        Ok(())
    }

    fn fork(
        &mut self,
        _deadlines: Deadlines,
        lock: Option<BorrowedFd<'_>>,
        _input: Option<BorrowedFd<'_>>,
    ) -> Result<i32, Errno> {
        let lock = lock.map(|lock| lock.try_clone_to_owned().expect("a descriptor"));
        let mut facts = self.facts();
        let token = facts.prepared;
        facts.pids += 2;
        let pid = facts.pids;
        facts.tree = Some(Tree {
            pid,
            generation: 0,
            lease: 0,
            token,
            born: 0,
            lock: lock.map(Rc::new),
            main: true,
            main_reaped: false,
            exit: Exit::Code(0),
            executed: false,
            // A daemon comes later.
            has_daemon: false,
            daemon: false,
            daemon_reaped: false,
            deaf: false,
            deaf_daemon: false,
            termed: false,
            daemon_termed: false,
            killed: false,
            daemon_killed: false,
            excused: false,
            overlapped: false,
        });
        facts.acts.push(Act::Forked { token });
        Ok(pid)
    }

    fn exec_result(&mut self) -> Option<Result<(), i32>> {
        let facts = self.facts();
        let tree = facts.tree.as_ref()?;
        // A process that has ended has reported its exec before.
        (tree.executed || !tree.main).then_some(Ok(()))
    }

    fn yields(&self) -> bool {
        false
    }

    fn show_control(&self, control: ControlState) {
        let mut facts = self.facts();
        if std::mem::replace(&mut facts.shown, control).until != control.until {
            facts.acts.push(Act::Shown(control.until));
        }
    }

    fn lend_terminal_again(&mut self, _group: i32) {}

    fn take_terminal_back(&mut self, _group: i32) {}

    fn take_precedence(&mut self) {}

    fn give_up_precedence(&mut self) {}

    fn release(&mut self, release_info: &[u8]) {
        self.act(Act::Released(release_info.to_vec()));
    }
}

fn token_of(changes: &[u8]) -> u64 {
    let mut set = changes.split(|byte| *byte == 0).filter_map(|set| {
        let value = str::from_utf8(set)
            .ok()?
            .strip_prefix("TRAFFICCOP_TOKEN=")?;
        value.parse().ok()
    });
    set.next().expect("a token")
}
