//! The guardian's loop: poll, look at the clock, at the children, at the socket; do what
//! [`GuardianState`] says.
//!
//! Entered by [`super::fork`] in the forked child. While a command runs it does not allocate
//! (but for release info larger than the one before), and it never waits for anything but `poll`.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::panic::AssertUnwindSafe;
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{MsgFlags, send};

use super::containment::Containment;
use super::control::ControlFile;
use super::spawn::{self, ExecImage, PassedFds, SpawnContext};
use super::state::{GuardianState, Input, Step, Steps};
use super::tree::Children;
use super::wire::{self, Event, FRAME, Request};
use super::{Partner, Setup, WorkloadEvent, fork, raw};
use crate::clock::Instant;
use crate::core::Deadlines;

mod ipc;
mod reaper;

use ipc::PollFds;

/// How many frames wait for a supervisor that does not read. A command's life makes ten.
const UNSENT: usize = 64;
/// Room for what arrives, and for release info, that is there from the beginning.
const ROOM: usize = 16 << 10;
/// How many children outside the main process's group are remembered as told to end.
const TOLD: usize = 256;
/// How long a new guardian waits for a first command before it makes itself at home, in ms.
const SETTLE: u8 = 20;
/// How long another guardian's tree may take to be killed, in ms: longer than a tree that can be.
const PARTNER: u16 = 15_000;
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
    exec_result: Option<OwnedFd>,
}

pub(super) struct EventLoop {
    setup: Setup,
    context: SpawnContext,
    containment: Containment,
    control: ControlFile,
    fds: PollFds,
    list: Children,
    state: GuardianState,
    main: Option<Main>,
    /// It is in control until its deadline.
    in_control: bool,
    lock: Option<OwnedFd>,
    release_info: Vec<u8>,
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

impl EventLoop {
    /// Sets everything up and tells the supervisor so; or that there is no guardian, without timers
    /// and signals.
    pub(super) fn begin(
        setup: Setup,
        context: SpawnContext,
        containment: Containment,
        control: ControlFile,
        socket: UnixStream,
    ) -> Option<EventLoop> {
        let fds = match PollFds::open(socket) {
            Ok(fds) => fds,
            Err((socket, errno)) => {
                let frame = Event::Unready {
                    errno: errno as i32,
                }
                .encode();
                let _ = send(socket.as_raw_fd(), &frame, MsgFlags::MSG_NOSIGNAL);
                return None;
            }
        };
        let mut event_loop = EventLoop {
            state: GuardianState::with_grace(setup.grace),
            setup,
            context,
            containment,
            control,
            fds,
            list: Children::of_this_thread(),
            main: None,
            in_control: false,
            lock: None,
            release_info: Vec::with_capacity(ROOM),
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
        event_loop.fds.arm_wall();
        event_loop.tell(Event::Ready);
        Some(event_loop)
    }

    /// Lives until the supervisor wants it no more, or is dead and everything is done.
    pub(super) fn keep(mut self) {
        while !self.over {
            self.arm_deadline();
            let ready = self.wait();
            // Not before a command that is to start at once, but before a wait that may be long.
            if !self.settled && (ready.nothing || self.main.is_some()) {
                self.settled = true;
                fork::take_precedence(&mut self.context);
            }
            // The timer goes before everything, and children before the socket: what has happened
            // cannot be undone by a frame that lay there meanwhile.
            self.happened(Input::Ticked);
            if ready.wall && self.fds.wall_clock_jumped() {
                self.tell(Event::Workload(WorkloadEvent::ClockJumped));
            }
            if ready.children || self.main.is_some() {
                let _ = self.fds.children.read_signal();
                self.look_after_children();
            }
            if ready.socket && !self.deaf {
                self.read_socket();
            }
            self.flush();
        }
        self.control.retire();
    }

    fn happened(&mut self, event: Input) {
        let steps = self.state.step(Instant::now(), event);
        // Before anything is done about it: whoever is signalled finds the truth there.
        let yielded = self.control.yields() && self.state.is_draining();
        self.show_control(if yielded {
            Instant::ZERO
        } else {
            self.state.control()
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
                Step::Tell(event) => self.tell(Event::Workload(event)),
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
        let timeout = if self.state.is_killing() || reaped {
            // Orphans can arrive without a signal: look again, less and less often.
            self.patience = self.patience.saturating_mul(2).min(LONGEST_LOOK);
            PollTimeout::from(self.patience)
        } else if self.settled {
            PollTimeout::NONE
        } else {
            PollTimeout::from(if self.main.is_some() { 0 } else { SETTLE })
        };
        let fds = &self.fds;
        let mut interest = PollFlags::POLLIN;
        if self.unsent_len > 0 {
            interest |= PollFlags::POLLOUT;
        }
        // A place that is not needed is filled with one that is.
        let socket = if self.deaf {
            PollFd::new(fds.children.as_fd(), PollFlags::POLLIN)
        } else {
            PollFd::new(fds.socket.as_fd(), interest)
        };
        let exec_result = self
            .main
            .as_ref()
            .and_then(|main| main.exec_result.as_ref());
        let exec_result = exec_result.map_or(fds.children.as_fd(), AsFd::as_fd);
        let mut fds = [
            PollFd::new(fds.deadline.as_fd(), PollFlags::POLLIN),
            PollFd::new(fds.wall.as_fd(), PollFlags::POLLIN),
            PollFd::new(fds.children.as_fd(), PollFlags::POLLIN),
            socket,
            PollFd::new(exec_result, PollFlags::POLLIN),
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
        let next = self.state.next();
        if next != self.armed {
            self.armed = next;
            self.fds.arm(next);
        }
    }

    fn obey(&mut self, request: Request, payload: usize) {
        match request {
            Request::Start { .. } => self.start(request, payload),
            Request::Extend(deadlines) => {
                self.containment.extend(deadlines.kill_at);
                self.happened(Input::Extended(deadlines));
            }
            Request::Drain {
                signal,
                end_of_grace,
            } => self.happened(Input::DrainAsked {
                signal,
                end_of_grace,
            }),
            Request::Kill => self.happened(Input::KillAsked),
            Request::Signal(signal) => self.pass_on(signal),
            Request::Resume => {
                if let Some(main) = self.main.as_ref().filter(|main| main.in_front) {
                    self.context.foreground.lend_again(main.pid);
                }
                self.pass_on(libc::SIGCONT);
            }
            Request::SetReleaseInfo { release_info } => {
                self.release_info.clear();
                self.release_info
                    .extend_from_slice(&self.received[payload..payload + release_info as usize]);
            }
            Request::Ping(seq) => self.tell(Event::Pong(seq)),
            // Never away from a tree.
            Request::Dismiss => self.over = self.state.is_idle(),
        }
    }

    fn start(&mut self, request: Request, payload: usize) {
        let Request::Start {
            program,
            in_control,
            deadlines,
            stop_signal,
            env,
            release_info,
            lock,
            input,
        } = request
        else {
            return;
        };
        if !self.state.is_idle() {
            // The handle knows better than to ask.
            return;
        }
        let release_info_at = payload + env as usize;
        let changes = wire::variables(&self.received[payload..release_info_at]);
        self.release_info.clear();
        self.release_info.extend_from_slice(
            &self.received[release_info_at..release_info_at + release_info as usize],
        );
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
        self.show_control(deadlines.kill_at);
        let forked = handed
            .and_then(|(lock, input)| self.fork_command(program, deadlines, changes, lock, input));
        match forked {
            Ok(pid) => self.happened(Input::Forked {
                deadlines,
                stop_signal,
                pid,
            }),
            Err(errno) => {
                self.containment.abandon();
                self.lock = None;
                self.control.set(Instant::ZERO);
                let errno = errno as i32;
                self.tell(Event::Workload(WorkloadEvent::NotStarted { errno }));
            }
        }
    }

    fn fork_command(
        &mut self,
        program: u8,
        deadlines: Deadlines,
        changes: Vec<wire::Change>,
        lock: Option<OwnedFd>,
        input: Option<OwnedFd>,
    ) -> Result<i32, Errno> {
        if self.in_control {
            self.containment.sweep()?;
        }
        let programs = &self.setup.programs;
        let program = programs.get(usize::from(program)).ok_or(Errno::EINVAL)?;
        let mut changes = changes;
        let withheld = self.setup.withheld.iter();
        changes.extend(withheld.map(|name| (name.clone(), None)));
        let mut image = ExecImage::prepare(program, changes, self.context.sockets)?;
        self.lock = lock;
        // Looked at last: what is only to be ended again is not begun.
        if Instant::now() >= deadlines.first() {
            return Err(Errno::ETIME);
        }
        let lock = self.lock.as_ref().map(AsFd::as_fd);
        self.containment.open(deadlines.kill_at, lock)?;
        if program.in_front {
            self.context.foreground.lend();
        }
        let handed = PassedFds {
            lock,
            input: input.as_ref().map(AsFd::as_fd),
        };
        let mut pauses = PAUSES.iter();
        let child = loop {
            match spawn::spawn(&mut image, &self.context, handed, &self.containment) {
                // Somebody else's processes may be gone in a moment. Nothing of ours runs meanwhile.
                Err(Errno::EAGAIN) => match pauses.next() {
                    Some(pause) if Instant::now() + *pause < deadlines.first() => {
                        std::thread::sleep(*pause);
                    }
                    _ => return Err(Errno::EAGAIN),
                },
                spawned => break spawned?,
            }
        };
        self.main = Some(Main {
            pid: child.pid,
            in_front: program.in_front,
            ended: false,
            reaped: false,
            exec_result: Some(child.exec_result),
        });
        self.told_len = 0;
        self.patience = 1;
        Ok(child.pid)
    }

    /// The supervisor is dead and nothing of the tree lives: give its lease back.
    fn depart(&mut self) {
        self.over = true;
        if self.release_info.is_empty() {
            return;
        }
        fork::give_up_precedence();
        if let Some(Partner::Awaits(end)) = &self.setup.partner
            && !raw::poll([end.as_fd()], PollFlags::POLLIN, PARTNER.into())
        {
            // Something of it cannot be killed: the lease is left to run out.
            return;
        }
        let (on_orphaned, release_info) = (self.setup.on_orphaned, &self.release_info);
        let _ = std::panic::catch_unwind(AssertUnwindSafe(|| on_orphaned(release_info)));
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
