//! The machine that a guardian runs on.
//!
//! The descriptors are opened once: setting a timer needs neither memory nor a descriptor. The only decisions
//! are how often to try a fork, and to begin no command whose lock has died with the supervisor.

use std::cell::Cell;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::panic::AssertUnwindSafe;
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::socket::{MsgFlags, send};
use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};

use super::super::containment::Containment;
use super::super::control::ControlFile;
use super::super::spawn::{self, ExecImage, PassedFds, SpawnContext, spawn};
use super::super::state::ControlState;
use super::super::tree::{self, Change, Children};
use super::super::wire::{self, Event};
use super::super::{Partner, Setup, fork, raw};
use super::{Ready, System, Wait};
use trafficcop_core::Deadlines;
use trafficcop_core::clock::Instant;

/// Time to kill the partner's tree, in ms: more than a tree that can be killed takes.
const PARTNER: u16 = 15_000;
/// Pauses between forks, while the machine has no process to spare.
const PAUSES: [Duration; 4] = [
    Duration::from_millis(20),
    Duration::from_millis(40),
    Duration::from_millis(80),
    Duration::from_millis(160),
];

const WAITED: Duration = Duration::from_millis(1);
/// Allowed shorter waits in a row: more than a command's start and end make.
const RUSH: u8 = 200;

pub(crate) struct Kernel {
    setup: Setup,
    context: SpawnContext,
    containment: Containment,
    control: ControlFile,
    fds: PollFds,
    list: Children,
    rights: Vec<u8>,
    image: Option<ExecImage>,
    /// Open until the result of the exec is known.
    exec_result: Option<OwnedFd>,
    rush: Cell<u8>,
}

impl Kernel {
    /// Sets everything up, or reports that there is no guardian.
    pub(crate) fn open(
        closed: nix::Result<()>,
        setup: Setup,
        context: SpawnContext,
        containment: Containment,
        control: ControlFile,
        socket: UnixStream,
    ) -> Option<Kernel> {
        let fds = match closed.and_then(|()| PollFds::timers()) {
            Ok((children, deadline, wall)) => PollFds {
                socket,
                children,
                deadline,
                wall,
            },
            Err(errno) => {
                let frame = Event::Unready {
                    errno: errno as i32,
                }
                .encode();
                let _ = send(socket.as_raw_fd(), &frame, MsgFlags::MSG_NOSIGNAL);
                return None;
            }
        };
        fds.arm_wall();
        Some(Kernel {
            setup,
            context,
            containment,
            control,
            fds,
            list: Children::of_this_thread(),
            rights: nix::cmsg_space!([std::os::fd::RawFd; 1]),
            image: None,
            exec_result: None,
            rush: Cell::new(0),
        })
    }

    pub(crate) fn wait(&self, wait: Wait) -> Ready {
        let timeout = wait.millis.map_or(PollTimeout::NONE, PollTimeout::from);
        let fds = &self.fds;
        let mut interest = PollFlags::POLLIN;
        if wait.room {
            interest |= PollFlags::POLLOUT;
        }
        // Fill an unneeded place with a descriptor that is polled anyway.
        let socket = if wait.socket {
            PollFd::new(fds.socket.as_fd(), interest)
        } else {
            PollFd::new(fds.children.as_fd(), PollFlags::POLLIN)
        };
        let exec_result = self.exec_result.as_ref().filter(|_| wait.exec);
        let exec_result = exec_result.map_or(fds.children.as_fd(), AsFd::as_fd);
        let mut fds = [
            PollFd::new(fds.deadline.as_fd(), PollFlags::POLLIN),
            PollFd::new(fds.wall.as_fd(), PollFlags::POLLIN),
            PollFd::new(fds.children.as_fd(), PollFlags::POLLIN),
            socket,
            PollFd::new(exec_result, PollFlags::POLLIN),
        ];
        let begun = Instant::now();
        let polled = poll(&mut fds, timeout);
        let waited = Instant::now().since(begun) >= WAITED;
        self.pace(polled.is_ok(), waited);
        match polled {
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

    /// Rests when poll(2) cannot wait, or reports what cannot be cleared (say, a timer that cannot be set).
    fn pace(&self, can_wait: bool, waited: bool) {
        let rush = match waited {
            true => 0,
            false => self.rush.get().saturating_add(1),
        };
        self.rush.set(rush);
        if !can_wait || rush > RUSH {
            std::thread::sleep(raw::PAUSE);
        }
    }

    pub(crate) fn retire(mut self) {
        self.control.retire();
    }
}

impl System for Kernel {
    fn arm(&mut self, next: Instant) {
        self.fds.arm(next);
    }

    fn wall_clock_jumped(&mut self) -> bool {
        self.fds.wall_clock_jumped()
    }

    fn send(&mut self, bytes: &[u8]) -> nix::Result<usize> {
        let flags = MsgFlags::MSG_NOSIGNAL | MsgFlags::MSG_DONTWAIT;
        send(self.fds.socket.as_raw_fd(), bytes, flags)
    }

    fn receive(&mut self, buffer: &mut [u8]) -> nix::Result<(usize, Option<OwnedFd>)> {
        fork::receive(self.fds.socket.as_raw_fd(), buffer, &mut self.rights)
    }

    fn take_child_signal(&mut self) {
        let _ = self.fds.children.read_signal();
    }

    fn each_child(&self, visit: impl FnMut(i32)) {
        self.list.each(visit);
    }

    fn look_at(&self, pid: i32) -> Option<Change> {
        tree::look_at(pid)
    }

    fn any_ended(&self) -> Option<i32> {
        tree::any_ended()
    }

    fn reap(&self, pid: i32) -> bool {
        let reaped = tree::reap(pid);
        if reaped {
            // Progress without a rest: a rest would lose against a storm of forks.
            self.rush.set(0);
        }
        reaped
    }

    fn is_child(&self, pid: i32) -> bool {
        tree::is_child(pid)
    }

    fn is_childless(&self) -> bool {
        tree::is_childless()
    }

    fn is_in_group(&self, pid: i32, leader: i32) -> bool {
        tree::is_in_group(pid, leader)
    }

    fn is_stopped(&self, pid: i32) -> bool {
        tree::is_stopped(pid)
    }

    fn signal(&self, pid: i32, signal: i32) {
        tree::signal(pid, signal);
    }

    fn signal_group(&self, leader: i32, signal: i32) {
        tree::signal_group(leader, signal);
    }

    fn resume_group(&self, leader: i32) {
        if !tree::resume_stopped(|pid| tree::is_in_group(pid, leader)) {
            // Better one signal too many than a wasted grace.
            tree::signal_group(leader, libc::SIGCONT);
        }
    }

    fn sweep(&mut self) -> Result<(), Errno> {
        // The partner under the same lease has swept; later leftovers must not delay a check.
        if let Some(Partner::Ends(_)) = self.setup.partner {
            return Ok(());
        }
        self.containment.sweep()
    }

    fn extend(&mut self, kill_at: Instant) {
        self.containment.extend(kill_at);
    }

    fn term_hidden(&mut self) {
        self.containment.term_rest();
    }

    fn kill_contained(&mut self) {
        self.containment.kill();
    }

    fn is_helper(&self, pid: i32) -> bool {
        self.containment.is_helper(pid) || self.context.foreground.witness.is(pid)
    }

    fn hides_some(&self) -> bool {
        self.containment.hides_some()
    }

    fn close(&mut self) {
        self.containment.close();
    }

    fn is_empty(&self) -> bool {
        self.containment.is_empty()
    }

    fn abandon(&mut self) {
        self.containment.abandon();
    }

    fn prepare(&mut self, program: u8, changes: &[u8]) -> Result<(), Errno> {
        let program = self.setup.programs.get(usize::from(program));
        let program = program.ok_or(Errno::EINVAL)?;
        let mut changes = wire::variables(changes);
        let withheld = self.setup.withheld.iter();
        changes.extend(withheld.map(|name| (name.clone(), None)));
        self.image = Some(ExecImage::prepare(program, changes, self.context.sockets)?);
        Ok(())
    }

    fn fork(
        &mut self,
        deadlines: Deadlines,
        lock: Option<BorrowedFd<'_>>,
        input: Option<BorrowedFd<'_>>,
    ) -> Result<i32, Errno> {
        let mut image = self.image.take().ok_or(Errno::EINVAL)?;
        let handed = PassedFds { lock, input };
        let mut pauses = PAUSES.iter();
        let mut is_open = false;
        let child = loop {
            let mut begin = || {
                if !is_open {
                    self.containment.open(deadlines.kill_at, lock)?;
                    is_open = true;
                    if image.in_front {
                        self.context.foreground.lend();
                    }
                }
                // All of this takes time: a lock that died meanwhile may soon be another instance's.
                let hangs_up = || {
                    let socket = self.fds.socket.as_fd();
                    raw::poll([socket], PollFlags::empty(), PollTimeout::ZERO)
                };
                if self.setup.orphan_grace.is_some() && hangs_up() {
                    return Err(Errno::ETIME);
                }
                // Before the fork: afterwards the child could not tell a new parent from the old one.
                let me = nix::unistd::getpid().as_raw();
                spawn(me, &mut image, &self.context, handed, &self.containment)
            };
            match begin() {
                // Other processes may end in a moment.
                Err(Errno::EAGAIN) => match pauses.next() {
                    Some(pause) if Instant::now() + *pause < deadlines.first() => {
                        std::thread::sleep(*pause);
                    }
                    _ => return Err(Errno::EAGAIN),
                },
                spawned => break spawned?,
            }
        };
        self.exec_result = Some(child.exec_result);
        if image.in_front {
            self.context.foreground.is_lent_to(child.pid);
        }
        Ok(child.pid)
    }

    fn exec_result(&mut self) -> Option<Result<(), i32>> {
        let result = spawn::exec_result(self.exec_result.as_ref()?.as_fd())?;
        self.exec_result = None;
        Some(result)
    }

    fn yields(&self) -> bool {
        self.setup.tells_others
    }

    fn show_control(&self, control: ControlState) {
        self.control.set(control);
    }

    fn lend_terminal_again(&mut self, group: i32) {
        self.context.foreground.lend_again(group);
    }

    fn take_terminal_back(&mut self, group: i32) {
        self.context.foreground.take_back(group);
    }

    fn look_at_witness(&mut self) {
        self.context.foreground.witness.look(Instant::now());
    }

    fn typed(&mut self) -> Option<i32> {
        let now = Instant::now();
        // A command that handles it and outlasts the grace ends for another reason.
        let grace = self.setup.left_behind.unwrap_or(self.setup.grace);
        let typed = self.context.foreground.witness.end(now);
        typed.and_then(|(signal, at)| (now <= at + grace).then_some(signal))
    }

    fn take_precedence(&mut self) {
        fork::take_precedence(&mut self.context);
    }

    fn give_up_precedence(&mut self) {
        fork::give_up_precedence();
    }

    fn release(&mut self, release_info: &[u8]) {
        if let Some(Partner::Awaits(end)) = &self.setup.partner
            && !raw::poll([end.as_fd()], PollFlags::POLLIN, PARTNER.into())
        {
            // Its tree cannot be killed: let the lease run out.
            return;
        }
        let on_orphaned = self.setup.on_orphaned;
        let _ = std::panic::catch_unwind(AssertUnwindSafe(|| on_orphaned(release_info)));
    }
}

struct PollFds {
    socket: UnixStream,
    children: SignalFd,
    deadline: TimerFd,
    /// Cancelled when the wall clock is set.
    wall: TimerFd,
}

impl PollFds {
    fn timers() -> nix::Result<(SignalFd, TimerFd, TimerFd)> {
        nix::sys::prctl::set_child_subreaper(true)?;
        let flags = TimerFlags::TFD_CLOEXEC | TimerFlags::TFD_NONBLOCK;
        let children = SignalFd::with_flags(
            &SigSet::from(Signal::SIGCHLD),
            SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK,
        )?;
        Ok((
            children,
            TimerFd::new(ClockId::CLOCK_BOOTTIME, flags)?,
            TimerFd::new(ClockId::CLOCK_REALTIME, flags)?,
        ))
    }

    fn arm(&self, next: Instant) {
        // Fails only for wrong numbers; the pings still wake the loop.
        let _ = if next == Instant::FOREVER {
            self.deadline.unset()
        } else {
            // Zero would mean "never"; a passed instant fires at once.
            let next = Duration::from_nanos(next.as_nanos().max(1));
            self.deadline.set(
                Expiration::OneShot(TimeSpec::from(next)),
                TimerSetTimeFlags::TFD_TIMER_ABSTIME,
            )
        };
    }

    fn arm_wall(&self) {
        // Far away: only the cancelling matters.
        let _ = self.wall.set(
            Expiration::OneShot(TimeSpec::new(i64::from(u32::MAX) * 2, 0)),
            TimerSetTimeFlags::TFD_TIMER_ABSTIME | TimerSetTimeFlags::TFD_TIMER_CANCEL_ON_SET,
        );
    }

    fn wall_clock_jumped(&self) -> bool {
        let mut count = [0; 8];
        let jumped = nix::unistd::read(self.wall.as_fd(), &mut count) == Err(Errno::ECANCELED);
        if jumped {
            self.arm_wall();
        }
        jumped
    }
}
