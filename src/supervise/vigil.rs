//! The guardian's loop: poll, look at the clock, at the children, at the socket; do what
//! [`Watch`] says.
//!
//! Entered by [`super::guardian`] in the forked child. While a command runs it does not allocate
//! (but for a will larger than the one before), and it never waits for anything but `poll`.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::panic::AssertUnwindSafe;
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{MsgFlags, send};

use super::cage::Cage;
use super::control::ControlFile;
use super::spawn::{self, Handed, Image, Inheritance};
use super::tree::Children;
use super::watch::{Event, Step, Steps, Watch};
use super::wire::{self, Demand, FRAME, Report};
use super::{Setup, guardian};
use crate::clock::Instant;

mod children;
mod senses;
mod socket;

use senses::Senses;

/// How many frames wait for a supervisor that does not read. A command's life makes ten.
const UNSENT: usize = 64;
/// Room for what arrives, and for a will, that is there from the beginning.
const ROOM: usize = 16 << 10;
/// How many children outside the main process's group are remembered as told to end.
const TOLD: usize = 256;
/// How long a new guardian waits for a first command before it makes itself at home, in ms.
const SETTLE: u8 = 20;
/// How long the longest wait for the next look at what is going away is, in ms.
const LONGEST_LOOK: u8 = 100;

/// How long to wait before another attempt to fork, where the machine has no process to spare now.
const PAUSES: [Duration; 4] = [
    Duration::from_millis(20),
    Duration::from_millis(40),
    Duration::from_millis(80),
    Duration::from_millis(160),
];

/// The command's main process. It stays un-reaped until everything else is gone: so long, its id
/// and its group's can belong to nobody else.
struct Main {
    pid: i32,
    /// It may have the terminal.
    in_front: bool,
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
    /// It is in control until its deadline.
    in_control: bool,
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
    /// It has whatever the system grants for being on time.
    settled: bool,
    over: bool,
}

impl Vigil {
    /// Sets everything up and tells the supervisor so; or that there is no guardian, without timers
    /// and signals.
    pub(super) fn begin(
        setup: Setup,
        inheritance: Inheritance,
        cage: Cage,
        control: ControlFile,
        socket: UnixStream,
    ) -> Option<Vigil> {
        let senses = match Senses::open(socket) {
            Ok(senses) => senses,
            Err((socket, errno)) => {
                let frame = Report::Unready {
                    errno: errno as i32,
                }
                .encode();
                let _ = send(socket.as_raw_fd(), &frame, MsgFlags::MSG_NOSIGNAL);
                return None;
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
            in_control: false,
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
            settled: false,
            over: false,
        };
        vigil.senses.arm_wall();
        vigil.tell(Report::Ready);
        Some(vigil)
    }

    /// Lives until the supervisor wants it no more, or is dead and everything is done.
    pub(super) fn keep(mut self) {
        while !self.over {
            self.arm_deadline();
            let ready = self.wait();
            // Not before a command that is to start at once, but before a wait that may be long.
            if !self.settled && (ready.nothing || self.main.is_some()) {
                self.settled = true;
                guardian::take_precedence(&mut self.inheritance);
            }
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
        let yielded = self.control.yields() && self.watch.is_draining();
        self.show_control(if yielded {
            Instant::ZERO
        } else {
            self.watch.control()
        });
        self.perform(&steps);
    }

    fn show_control(&self, until: Instant) {
        let until = if self.in_control {
            until
        } else {
            Instant::ZERO
        };
        self.control.set(until);
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
        } else if self.settled {
            PollTimeout::NONE
        } else {
            PollTimeout::from(if self.main.is_some() { 0 } else { SETTLE })
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
            Ok(count) => {
                let any = |fd: &PollFd<'_>| fd.any().unwrap_or(true);
                Ready {
                    nothing: count == 0,
                    wall: any(&fds[1]),
                    children: any(&fds[2]) || any(&fds[4]),
                    socket: any(&fds[3]),
                }
            }
            // No memory, or interrupted: look at everything.
            Err(_) => Ready {
                nothing: false,
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
                if let Some(main) = self.main.as_ref().filter(|main| main.in_front) {
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
            program,
            in_control,
            term_at,
            kill_at,
            stop_signal,
            env,
            will,
            lock,
            input,
        } = demand
        else {
            return;
        };
        if !self.watch.is_idle() {
            // The attendant knows better than to ask.
            return;
        }
        let will_at = payload + env as usize;
        let changes = wire::variables(&self.received[payload..will_at]);
        self.will.clear();
        self.will
            .extend_from_slice(&self.received[will_at..will_at + will as usize]);
        let handed = match (self.passed.take(), lock, input) {
            (_, false, false) => Ok((None, None)),
            (Some(passed), true, _) => Ok((Some(passed), None)),
            (Some(passed), false, true) => Ok((None, Some(passed))),
            // It was sent, and we could not have it. A lock that nobody keeps, or a message that is
            // not there, is worse than a command that is not started.
            (None, ..) => Err(Errno::EMFILE),
        };
        self.in_control = in_control;
        // The command may ask at once.
        self.show_control(kill_at);
        let forked = handed.and_then(|(lock, input)| {
            self.fork_command(program, (term_at, kill_at), changes, lock, input)
        });
        match forked {
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
        program: u8,
        (term_at, kill_at): (Instant, Instant),
        changes: Vec<wire::Change>,
        lock: Option<OwnedFd>,
        input: Option<OwnedFd>,
    ) -> Result<i32, Errno> {
        if self.in_control {
            self.cage.sweep()?;
        }
        let programs = &self.setup.programs;
        let program = programs.get(usize::from(program)).ok_or(Errno::EINVAL)?;
        let mut changes = changes;
        let withheld = self.setup.withheld.iter();
        changes.extend(withheld.map(|name| (name.clone(), None)));
        let mut image = Image::prepare(program, changes, self.inheritance.sockets)?;
        self.lock = lock;
        // Looked at last: what is only to be ended again is not begun.
        if Instant::now() >= term_at.min(kill_at) {
            return Err(Errno::ETIME);
        }
        let lock = self.lock.as_ref().map(AsFd::as_fd);
        self.cage.open(kill_at, lock)?;
        if program.in_front {
            self.inheritance.foreground.lend();
        }
        let handed = Handed {
            lock,
            input: input.as_ref().map(AsFd::as_fd),
        };
        let mut pauses = PAUSES.iter();
        let newborn = loop {
            match spawn::spawn(&mut image, &self.inheritance, handed, &self.cage) {
                // Somebody else's processes may be gone in a moment. Nothing of ours runs meanwhile.
                Err(Errno::EAGAIN) => match pauses.next() {
                    Some(pause) if Instant::now() + *pause < term_at.min(kill_at) => {
                        std::thread::sleep(*pause);
                    }
                    _ => return Err(Errno::EAGAIN),
                },
                spawned => break spawned?,
            }
        };
        self.main = Some(Main {
            pid: newborn.pid,
            in_front: program.in_front,
            ended: false,
            reaped: false,
            verdict: Some(newborn.verdict),
        });
        self.told_len = 0;
        self.patience = 1;
        Ok(newborn.pid)
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
    /// There was nothing for as long as it waited.
    nothing: bool,
    wall: bool,
    children: bool,
    socket: bool,
}
