//! One instance: a supervisor (the shipped driver over a shipped store), a guardian (the shipped
//! loop on a simulated machine), and the command's tree.

use std::collections::VecDeque;
use std::future::Future;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use trafficcop::Instant;
use trafficcop::internals::signals::{SignalEvent, Signals};
use trafficcop_core::clock::SimulatedClock;
use trafficcop_core::{Ending, Exit, Tenure};
use trafficcop_guardian::{EventLoop, Wait};
use trafficcop_lease::helper::Calls;
use trafficcop_lease::shared_file::Drive as Mounted;

use super::clock::Time;
use super::handle::Handle;
use super::kernel::Kernel;
use super::operator::Memory;
use super::store::Id;
use super::supervisor::driver;
use super::wire::{Network, Texts};

const GRACE: Duration = Duration::from_secs(10);

pub(crate) enum Lock {
    Blob,
    File(PathBuf),
    /// Includes the memory that does not outlast a boot of the machine.
    Shared {
        path: PathBuf,
        runtime: PathBuf,
        mount: Arc<Box<dyn Mounted>>,
        memory: Arc<Memory>,
    },
    /// The same of a helper's store.
    Store {
        runtime: PathBuf,
        calls: Arc<Box<dyn Calls>>,
        memory: Arc<Memory>,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Life {
    Runs,
    /// Stopped until this SIGCONT.
    Stopped(Time),
    Dead,
}

pub(crate) type Drive = Pin<Box<dyn Future<Output = ()>>>;

/// A main process, and perhaps a daemon in a session of its own.
#[derive(Clone, Debug)]
pub(crate) struct Tree {
    /// Pid of the main process; the daemon has the next.
    pub(crate) pid: i32,
    pub(crate) generation: u64,
    pub(crate) lease: Id,
    pub(crate) token: u64,
    pub(crate) born: Time,
    /// Copy of the lock's descriptor.
    pub(crate) lock: Option<Rc<OwnedFd>>,
    pub(crate) main: bool,
    pub(crate) main_reaped: bool,
    pub(crate) exit: Exit,
    pub(crate) executed: bool,
    /// Whether the daemon lives, or was not reaped.
    pub(crate) has_daemon: bool,
    pub(crate) daemon: bool,
    pub(crate) daemon_reaped: bool,
    pub(crate) deaf: bool,
    pub(crate) deaf_daemon: bool,
    pub(crate) termed: bool,
    pub(crate) daemon_termed: bool,
    pub(crate) killed: bool,
    pub(crate) daemon_killed: bool,
    /// The lease stopped protecting it while it lived, with an excuse.
    pub(crate) excused: bool,
    /// Another tree was started while it lived.
    pub(crate) overlapped: bool,
}

impl Tree {
    pub(crate) fn lives(&self) -> bool {
        self.main || self.daemon
    }

    /// Whether all its processes that ended were reaped.
    pub(crate) fn is_reaped(&self) -> bool {
        self.main_reaped && (!self.has_daemon || self.daemon_reaped)
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Told {
    pub(crate) at: Time,
    /// Time until which the answer promised to keep others out (true time).
    pub(crate) until: Time,
}

pub(crate) struct Pair {
    pub(crate) machine: usize,
    pub(crate) supervisor: Life,
    pub(crate) continued: Time,
    pub(crate) clock: Rc<SimulatedClock>,
    pub(crate) network: Arc<Network>,
    pub(crate) drive: Option<Drive>,
    pub(crate) signals: VecDeque<SignalEvent>,
    pub(crate) to_signals: UnboundedSender<SignalEvent>,
    pub(crate) ending: Option<Ending>,
    pub(crate) handle: Handle,
    /// Time at which the guardian last got deadlines (true time): the store's answer came just
    /// then.
    pub(crate) told_at: Time,
    pub(crate) armed: Time,
    /// The kernel has woken the lock's waiters.
    pub(crate) lock_may_be_free: bool,
    pub(crate) to_guardian: VecDeque<(Vec<u8>, Option<OwnedFd>)>,
    pub(crate) guardian: Life,
    pub(crate) guardian_stopped: Time,
    pub(crate) guardian_continued: Time,
    pub(crate) event_loop: Option<EventLoop<Kernel>>,
    pub(crate) kernel: Kernel,
    pub(crate) wait: Wait,
    /// Time at which its wait ends even without an event.
    pub(crate) waits_until: Time,
    pub(crate) guardian_clock: Rc<SimulatedClock>,
    pub(crate) guardian_network: Arc<Network>,
    /// Memory that says how to release a lock on a shared drive, or in a store.
    pub(crate) memory: Arc<Memory>,
    pub(crate) on_orphaned: Option<Pin<Box<dyn Future<Output = ()>>>>,
    pub(crate) guardian_armed: Time,
    pub(crate) tree: Option<Tree>,
    // For the judge.
    pub(crate) stop_asked: bool,
    /// Time at which it heard of a cordon that has not been lifted.
    pub(crate) cordoned: Option<Time>,
    /// The latest news sent to it is a cordon.
    pub(crate) cordon_sent: bool,
    /// Whether it has heard of a cordon since it last got control.
    pub(crate) cordon_heard: bool,
    pub(crate) cordon_heard_at: Option<Time>,
    /// Last answer of its condition.
    pub(crate) is_fit: Option<bool>,
    pub(crate) guardian_hurt: bool,
    pub(crate) told_lost: Vec<Told>,
    pub(crate) owes_a_word: bool,
    /// Time at which its overlap with another began.
    pub(crate) overlapped_at: Time,
    pub(crate) overlapped_lease: Option<Id>,
    pub(crate) said_overlap: bool,
    pub(crate) had_control: bool,
    pub(crate) told_term_at: Instant,
    pub(crate) second: u64,
    pub(crate) rounds: u32,
    pub(crate) guardian_second: u64,
    pub(crate) turns: u32,
}

impl Pair {
    pub(crate) fn new(
        machine: usize,
        p: usize,
        tenure: Tenure,
        lease: Duration,
        contained: bool,
        lock: &Lock,
        texts: &Arc<Mutex<Texts>>,
    ) -> Pair {
        let (network, handle) = (Network::new(Arc::clone(texts)), Handle::new());
        let (to_signals, signals) = unbounded_channel();
        let signals = Signals::relayed(signals);
        let kernel = Kernel::new(contained);
        let mut event_loop = EventLoop::begin(kernel.clone(), GRACE);
        let wait = event_loop.next_wait();
        // The guardian's first word is for the process that forks it.
        kernel.facts().to_supervisor.clear();
        let (clock, guardian_clock) = (Rc::<SimulatedClock>::default(), Rc::default());
        let mut on_drive = Arc::default();
        if let Lock::Shared { mount, memory, .. } = lock {
            on_drive = Arc::clone(memory);
            clock.carry(Arc::clone(mount) as _);
            SimulatedClock::carry(&guardian_clock, Arc::clone(mount) as _);
        }
        if let Lock::Store { calls, memory, .. } = lock {
            on_drive = Arc::clone(memory);
            clock.carry(Arc::clone(calls) as _);
            SimulatedClock::carry(&guardian_clock, Arc::clone(calls) as _);
        }
        Pair {
            machine,
            supervisor: Life::Runs,
            continued: 0,
            clock,
            drive: Some(driver(p, tenure, lease, &network, lock, &handle, signals)),
            memory: on_drive,
            network,
            signals: VecDeque::new(),
            to_signals,
            ending: None,
            handle,
            told_at: 0,
            armed: Time::MAX,
            lock_may_be_free: false,
            to_guardian: VecDeque::new(),
            guardian: Life::Runs,
            guardian_stopped: 0,
            guardian_continued: 0,
            event_loop: Some(event_loop),
            kernel,
            wait,
            waits_until: 0,
            guardian_clock,
            guardian_network: Network::new(Arc::clone(texts)),
            on_orphaned: None,
            guardian_armed: Time::MAX,
            tree: None,
            stop_asked: false,
            cordoned: None,
            cordon_sent: false,
            cordon_heard: false,
            cordon_heard_at: None,
            is_fit: None,
            guardian_hurt: false,
            told_lost: Vec::new(),
            owes_a_word: false,
            overlapped_at: 0,
            overlapped_lease: None,
            said_overlap: false,
            had_control: false,
            told_term_at: Instant::ZERO,
            second: 0,
            rounds: 0,
            guardian_second: 0,
            turns: 0,
        }
    }

    pub(crate) fn competes(&self) -> bool {
        self.supervisor != Life::Dead && self.ending.is_none()
    }

    /// Whether the tree lives and a supervisor or a guardian can stop it. A daemon that outlives
    /// both has neither.
    pub(crate) fn is_guarded(&self) -> bool {
        self.tree_lives() && (self.competes() || self.guardian != Life::Dead)
    }

    pub(crate) fn tree_lives(&self) -> bool {
        self.tree.as_ref().is_some_and(Tree::lives)
    }
}
