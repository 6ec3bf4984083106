//! The guardian's loop: poll, look at the clock, at the children, at the socket; do what
//! [`Watch`] says.
//!
//! Entered by [`super::guardian`] in the forked child. While a command runs it does not allocate
//! (but for a will larger than the one before), and it never waits for anything but `poll`.

use std::ffi::OsString;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::panic::AssertUnwindSafe;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{MsgFlags, send};

use super::cage::Cage;
use super::control::ControlFile;
use super::spawn::{self, Image, Inheritance};
use super::tree::{self, Change, Children};
use super::watch::{Event, Step, Steps, Watch};
use super::wire::{self, Demand, FRAME, Report};
use super::{Setup, guardian};
use crate::clock::Instant;

mod senses;
mod socket;

use senses::Senses;

/// How many frames wait for a supervisor that does not read. A command's life makes ten.
const UNSENT: usize = 64;
/// Room for what arrives, and for a will, that is there from the beginning.
const ROOM: usize = 16 << 10;
/// How many children outside the main process's group are remembered as told to end.
const TOLD: usize = 256;
/// How long the longest wait for the next look at what is going away is, in ms.
const LONGEST_LOOK: u8 = 100;

/// The command's main process. It stays un-reaped until everything else is gone: so long, its id
/// and its group's can belong to nobody else.
struct Main {
    pid: i32,
    ended: bool,
    reaped: bool,
    /// Open until it is known whether the exec succeeded.
    verdict: Option<OwnedFd>,
}

pub(super) struct Vigil {
    setup: Setup,
    inheritance: Inheritance,
    cage: Cage,
    control: ControlFile,
    senses: Senses,
    list: Children,
    watch: Watch,
    main: Option<Main>,
    lock: Option<OwnedFd>,
    will: Vec<u8>,
    armed: Instant,
    received: Vec<u8>,
    /// A descriptor that arrived before the frame that tells what it is was complete.
    passed: Option<OwnedFd>,
    rights: Vec<u8>,
    unsent: [u8; UNSENT * FRAME],
    unsent_len: usize,
    told: [i32; TOLD],
    told_len: usize,
    /// The supervisor's end is closed; nothing is read or written any more.
    deaf: bool,
    /// How long the next look at a tree that is being killed may wait, in ms.
    patience: u8,
    over: bool,
}

impl Vigil {
    /// Sets everything up and tells the supervisor so.
    pub(super) fn begin(
        setup: Setup,
        inheritance: Inheritance,
        cage: Cage,
        control: ControlFile,
        socket: UnixStream,
    ) -> Vigil {
        let senses = match Senses::open(socket) {
            Ok(senses) => senses,
            Err((socket, errno)) => {
                let frame = Report::Unready {
                    errno: errno as i32,
                }
                .encode();
                let _ = send(socket.as_raw_fd(), &frame, MsgFlags::MSG_NOSIGNAL);
                panic!("no guardian without timers and signals: {errno}");
            }
        };
        let mut vigil = Vigil {
            watch: Watch::with_grace(setup.grace),
            setup,
            inheritance,
            cage,
            control,
            senses,
            list: Children::of_this_thread(),
            main: None,
            lock: None,
            will: Vec::with_capacity(ROOM),
            armed: Instant::FOREVER,
            received: Vec::with_capacity(ROOM),
            passed: None,
            rights: nix::cmsg_space!([std::os::fd::RawFd; 1]),
            unsent: [0; UNSENT * FRAME],
            unsent_len: 0,
            told: [0; TOLD],
            told_len: 0,
            deaf: false,
            patience: 1,
            over: false,
        };
        vigil.senses.arm_wall();
        vigil.tell(Report::Ready);
        vigil
    }

    /// Lives until the supervisor wants it no more, or is dead and everything is done.
    pub(super) fn keep(mut self) {
        while !self.over {
            self.arm_deadline();
            let ready = self.wait();
            // The timer goes before everything, and children before the socket: what has happened
            // cannot be undone by a frame that lay there meanwhile.
            self.happened(Event::Ticked);
            if ready.wall && self.senses.wall_clock_jumped() {
                self.tell(Report::ClockJumped);
            }
            if ready.children || self.main.is_some() {
                let _ = self.senses.children.read_signal();
                self.look_after_children();
            }
            if ready.socket && !self.deaf {
                self.read_socket();
            }
            self.flush();
        }
        self.control.retire();
    }

    fn happened(&mut self, event: Event) {
        let steps = self.watch.step(Instant::now(), event);
        // Before anything is done about it: whoever is signalled finds the truth there.
        self.control.set(self.watch.control());
        self.perform(&steps);
    }

    fn perform(&mut self, steps: &Steps) {
        for step in steps.iter() {
            match step {
                Step::Tell(report) => self.tell(report),
                Step::SignalGroup(signal) => self.signal_group(signal),
                Step::TermRest => self.term_rest(),
                Step::Kill => self.kill_and_reap(),
                Step::Depart => self.depart(),
            }
        }
    }

    /// Waits for something to happen.
    fn wait(&mut self) -> Ready {
        let reaped = self.main.as_ref().is_some_and(|main| main.reaped);
        let timeout = if self.watch.is_killing() || reaped {
            // Orphans can arrive without a signal: look again, less and less often.
            self.patience = self.patience.saturating_mul(2).min(LONGEST_LOOK);
            PollTimeout::from(self.patience)
        } else {
            PollTimeout::NONE
        };
        let senses = &self.senses;
        let mut interest = PollFlags::POLLIN;
        if self.unsent_len > 0 {
            interest |= PollFlags::POLLOUT;
        }
        // A place that is not needed is filled with one that is.
        let socket = if self.deaf {
            PollFd::new(senses.children.as_fd(), PollFlags::POLLIN)
        } else {
            PollFd::new(senses.socket.as_fd(), interest)
        };
        let verdict = self.main.as_ref().and_then(|main| main.verdict.as_ref());
        let verdict = verdict.map_or(senses.children.as_fd(), AsFd::as_fd);
        let mut fds = [
            PollFd::new(senses.deadline.as_fd(), PollFlags::POLLIN),
            PollFd::new(senses.wall.as_fd(), PollFlags::POLLIN),
            PollFd::new(senses.children.as_fd(), PollFlags::POLLIN),
            socket,
            PollFd::new(verdict, PollFlags::POLLIN),
        ];
        match poll(&mut fds, timeout) {
            Ok(_) => {
                let any = |fd: &PollFd<'_>| fd.any().unwrap_or(true);
                Ready {
                    wall: any(&fds[1]),
                    children: any(&fds[2]) || any(&fds[4]),
                    socket: any(&fds[3]),
                }
            }
            // No memory, or interrupted: look at everything.
            Err(_) => Ready {
                wall: true,
                children: true,
                socket: true,
            },
        }
    }

    fn arm_deadline(&mut self) {
        let next = self.watch.next();
        if next != self.armed {
            self.armed = next;
            self.senses.arm(next);
        }
    }

    fn obey(&mut self, demand: Demand, payload: usize) {
        match demand {
            Demand::Start { .. } => self.start(demand, payload),
            Demand::Extend { term_at, kill_at } => {
                self.cage.extend(kill_at);
                self.happened(Event::Extended { term_at, kill_at });
            }
            Demand::Drain {
                signal,
                end_of_grace,
            } => self.happened(Event::DrainAsked {
                signal,
                end_of_grace,
            }),
            Demand::Kill => self.happened(Event::KillAsked),
            Demand::Signal(signal) => self.pass_on(signal),
            Demand::Resume => {
                if let Some(main) = &self.main {
                    self.inheritance.foreground.lend_again(main.pid);
                }
                self.pass_on(libc::SIGCONT);
            }
            Demand::Entrust { will } => {
                self.will.clear();
                self.will
                    .extend_from_slice(&self.received[payload..payload + will as usize]);
            }
            Demand::Ping(seq) => self.tell(Report::Pong(seq)),
            // Never away from a tree.
            Demand::Dismiss => self.over = self.watch.is_idle(),
        }
    }

    fn start(&mut self, demand: Demand, payload: usize) {
        let Demand::Start {
            term_at,
            kill_at,
            stop_signal,
            env,
            will,
            lock,
        } = demand
        else {
            return;
        };
        if !self.watch.is_idle() {
            // The attendant knows better than to ask.
            return;
        }
        let will_at = payload + env as usize;
        let additions = wire::variables(&self.received[payload..will_at]);
        self.will.clear();
        self.will
            .extend_from_slice(&self.received[will_at..will_at + will as usize]);
        let passed = self.passed.take().filter(|_| lock);
        // The command may ask at once.
        self.control.set(kill_at);
        match self.fork_command((term_at, kill_at), additions, passed) {
            Ok(pid) => self.happened(Event::Forked {
                term_at,
                kill_at,
                stop_signal,
                pid,
            }),
            Err(errno) => {
                self.cage.abandon();
                self.lock = None;
                self.control.set(Instant::ZERO);
                self.tell(Report::NotStarted {
                    errno: errno as i32,
                });
            }
        }
    }

    fn fork_command(
        &mut self,
        (term_at, kill_at): (Instant, Instant),
        additions: Vec<(OsString, OsString)>,
        lock: Option<OwnedFd>,
    ) -> Result<i32, Errno> {
        let mut image = Image::prepare(&self.setup.command, additions)?;
        self.lock = lock;
        // Looked at last: what is only to be ended again is not begun.
        if Instant::now() >= term_at.min(kill_at) {
            return Err(Errno::ETIME);
        }
        let lock = self.lock.as_ref().map(AsFd::as_fd);
        self.cage.open(kill_at, lock)?;
        self.inheritance.foreground.lend();
        let newborn = spawn::spawn(&mut image, &self.inheritance, lock, &self.cage)?;
        self.main = Some(Main {
            pid: newborn.pid,
            ended: false,
            reaped: false,
            verdict: Some(newborn.verdict),
        });
        self.told_len = 0;
        self.patience = 1;
        Ok(newborn.pid)
    }

    fn signal_group(&mut self, signal: i32) {
        if let Some(main) = &self.main
            && !main.reaped
        {
            tree::signal_group(main.pid, signal);
            // What is stopped could not act.
            tree::signal_group(main.pid, libc::SIGCONT);
        }
    }

    fn pass_on(&mut self, signal: i32) {
        let Some(main) = &self.main else { return };
        if main.reaped {
            return;
        }
        match signal {
            // A job is stopped and continued as a whole.
            libc::SIGTSTP | libc::SIGSTOP | libc::SIGCONT => tree::signal_group(main.pid, signal),
            _ => tree::signal(main.pid, signal),
        }
    }

    /// The direct children outside the group, each once: others follow as they lose their parents.
    fn term_rest(&mut self) {
        self.cage.term_rest();
        let cage = &self.cage;
        let Some(main) = &self.main else { return };
        let (leader, reaped) = (main.pid, main.reaped);
        let (told, told_len) = (&mut self.told, &mut self.told_len);
        self.list.each(|pid| {
            let has_had_it = cage.is_servant(pid)
                || told[..*told_len].contains(&pid)
                || (!reaped && (pid == leader || tree::is_in_group(pid, leader)));
            // Where there is no room to remember, only the end of the grace is left.
            if !has_had_it && *told_len < told.len() {
                told[*told_len] = pid;
                *told_len += 1;
                tree::signal(pid, libc::SIGTERM);
                tree::signal(pid, libc::SIGCONT);
            }
        });
    }

    /// Kills the whole tree, wave after wave, until it is empty or stops getting smaller.
    fn kill_and_reap(&mut self) {
        self.cage.kill();
        // Bounded, so that a storm of forks cannot keep us from everything else.
        for _ in 0..64 {
            let Some(main) = &self.main else { return };
            if !main.reaped {
                tree::signal_group(main.pid, libc::SIGKILL);
            }
            let zombie = (main.ended && !main.reaped).then_some(main.pid);
            let mut reaped = false;
            self.list.each(|pid| {
                if Some(pid) != zombie && !self.cage.is_keeper(pid) {
                    tree::signal(pid, libc::SIGKILL);
                }
            });
            self.reap(&mut reaped);
            if !reaped {
                return;
            }
            self.patience = 1;
        }
    }

    /// Takes in what has become of the children, and everything that follows from it.
    fn look_after_children(&mut self) {
        let mut reaped = false;
        if self.watch.is_killing() {
            self.kill_and_reap();
        } else {
            self.reap(&mut reaped);
        }
        if self.main.as_ref().is_some_and(|main| main.ended) {
            self.look_at_what_is_left();
        }
    }

    fn hear_verdict(&mut self) {
        let Some(main) = &mut self.main else { return };
        let Some(pipe) = &main.verdict else { return };
        let Some(verdict) = spawn::verdict(pipe.as_fd()) else {
            return;
        };
        main.verdict = None;
        self.happened(match verdict {
            Ok(()) => Event::Executed,
            Err(errno) => Event::NotExecuted { errno },
        });
    }

    /// Notes the end (or stop) of the main process and reaps all others that have ended.
    fn reap(&mut self, reaped: &mut bool) {
        if let Some(main) = &self.main
            && !main.ended
        {
            let pid = main.pid;
            let change = tree::look_at(pid);
            // After the look: a process that has ended has said before whether it could exec.
            self.hear_verdict();
            match change {
                None => {}
                Some(Change::Stopped) => {
                    self.inheritance.foreground.take_back();
                    self.tell(Report::Stopped);
                }
                Some(Change::Ended(exit)) => {
                    if let Some(main) = &mut self.main {
                        main.ended = true;
                    }
                    *reaped = true;
                    self.inheritance.foreground.take_back();
                    self.happened(Event::MainExited(exit));
                }
            }
        }
        let Some(main) = &self.main else { return };
        if main.ended && !main.reaped {
            // The un-reaped main process would be the answer to "any" for ever: ask for each.
            let leader = main.pid;
            self.list.each(|pid| {
                if pid != leader && tree::reap(pid) {
                    *reaped = true;
                }
            });
        } else {
            let leader = main.pid;
            while let Some(pid) = tree::any_ended() {
                if pid == leader && !main.reaped {
                    // It ended just now: seen at the next look, which its signal brings about.
                    break;
                }
                *reaped |= tree::reap(pid);
            }
        }
        if *reaped {
            self.forget_reaped();
        }
    }

    /// An id that was reaped may come again as another child's.
    fn forget_reaped(&mut self) {
        let mut kept = 0;
        for at in 0..self.told_len {
            let pid = self.told[at];
            if tree::is_child(pid) {
                self.told[kept] = pid;
                kept += 1;
            }
        }
        self.told_len = kept;
    }

    /// The main process has ended: is anything else there?
    fn look_at_what_is_left(&mut self) {
        let Some(main) = &mut self.main else { return };
        let mut others = self.cage.hides_some();
        let leader = main.pid;
        let cage = &self.cage;
        self.list
            .each(|pid| others |= pid != leader && !cage.is_servant(pid));
        if !others && !main.reaped {
            main.reaped = tree::reap(leader);
            self.patience = 1;
        }
        if others || !main.reaped {
            return self.happened(Event::OthersLive);
        }
        self.cage.close();
        // The kernel's list may have missed one; this answer is exact.
        if tree::is_childless() && self.cage.is_empty() {
            self.main = None;
            self.cage.abandon();
            // Before a word of it: whoever hears of it may want the lock.
            if !self.deaf {
                self.lock = None;
            }
            self.happened(Event::Emptied);
        } else if tree::is_childless() && self.patience >= LONGEST_LOOK {
            // Not a servant of ours on its way out, and not the kernel's count being late.
            self.happened(Event::OthersLive);
        }
    }

    /// The supervisor is dead and nothing of the tree lives: carry out its will.
    fn depart(&mut self) {
        self.over = true;
        if self.will.is_empty() {
            return;
        }
        guardian::give_up_precedence();
        let (afterlife, will) = (self.setup.afterlife, &self.will);
        let _ = std::panic::catch_unwind(AssertUnwindSafe(|| afterlife(will)));
    }
}

/// What poll said, as far as anybody asks.
struct Ready {
    wall: bool,
    children: bool,
    socket: bool,
}
