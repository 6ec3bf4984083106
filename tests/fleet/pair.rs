//! One instance: a supervisor, which is the shipped driver over a shipped store; a guardian, which is the
//! shipped loop on a machine of the tests' own; and the command's tree.

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
use trafficcop_lease::shared_file::Drive as Mounted;

use super::clock::Time;
use super::handle::Handle;
use super::kernel::Kernel;
use super::operator::Memory;
use super::store::Id;
use super::supervisor::driver;
use super::wire::{Network, Texts};

/// What a drain gets that no deadline gives a grace to.
const GRACE: Duration = Duration::from_secs(10);

/// The lock as it is named.
pub(crate) enum Lock {
    Blob,
    File(PathBuf),
    /// With what does not outlast the boot of its machine.
    Shared {
        path: PathBuf,
        runtime: PathBuf,
        mount: Arc<Box<dyn Mounted>>,
        memory: Arc<Memory>,
    },
}

/// A process, as signals leave it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Life {
    Runs,
    /// Until somebody continues it.
    Stopped(Time),
    Dead,
}

/// The shipped driver under way.
pub(crate) type Drive = Pin<Box<dyn Future<Output = ()>>>;

/// The command's processes: a main process, and perhaps a daemon in a session of its own.
#[derive(Clone, Debug)]
pub(crate) struct Tree {
    /// The main process's; the daemon's is the next.
    pub(crate) pid: i32,
    pub(crate) generation: u64,
    pub(crate) lease: Id,
    pub(crate) token: u64,
    pub(crate) born: Time,
    /// The descriptor that the processes have of the lock.
    pub(crate) lock: Option<Rc<OwnedFd>>,
    pub(crate) main: bool,
    pub(crate) main_reaped: bool,
    pub(crate) exit: Exit,
    pub(crate) executed: bool,
    /// It lives, or is still to be reaped.
    pub(crate) has_daemon: bool,
    pub(crate) daemon: bool,
    pub(crate) daemon_reaped: bool,
    pub(crate) deaf: bool,
    pub(crate) deaf_daemon: bool,
    pub(crate) termed: bool,
    pub(crate) daemon_termed: bool,
    pub(crate) killed: bool,
    pub(crate) daemon_killed: bool,
    /// The lease stopped protecting it while it lived, and that was excused.
    pub(crate) excused: bool,
    /// Another tree was started while it lived.
    pub(crate) overlapped: bool,
}

impl Tree {
    pub(crate) fn lives(&self) -> bool {
        self.main || self.daemon
    }

    /// Its parents have taken note of all that has ended.
    pub(crate) fn is_reaped(&self) -> bool {
        self.main_reaped && (!self.has_daemon || self.daemon_reaped)
    }
}

/// That the lease is lost, as the supervisor heard of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Told {
    pub(crate) at: Time,
    /// Until when it was promised to keep others out (true time).
    pub(crate) until: Time,
}

pub(crate) struct Pair {
    pub(crate) machine: usize,
    // --- the supervisor ---
    pub(crate) supervisor: Life,
    pub(crate) continued: Time,
    pub(crate) clock: Rc<SimulatedClock>,
    pub(crate) network: Arc<Network>,
    /// Until it has ended, or died.
    pub(crate) drive: Option<Drive>,
    pub(crate) signals: VecDeque<SignalEvent>,
    pub(crate) to_signals: UnboundedSender<SignalEvent>,
    pub(crate) ending: Option<Ending>,
    pub(crate) handle: Handle,
    /// When the guardian's deadlines were told last (true time): the answer had come by then, and not before.
    pub(crate) told_at: Time,
    pub(crate) armed: Time,
    /// The kernel has woken those who wait for a lock.
    pub(crate) lock_may_be_free: bool,
    // --- the socket between them ---
    pub(crate) to_guardian: VecDeque<(Vec<u8>, Option<OwnedFd>)>,
    // --- the guardian ---
    pub(crate) guardian: Life,
    pub(crate) guardian_stopped: Time,
    pub(crate) guardian_continued: Time,
    /// Until it is dead.
    pub(crate) event_loop: Option<EventLoop<Kernel>>,
    pub(crate) kernel: Kernel,
    pub(crate) wait: Wait,
    /// When it waits no longer, whatever there is.
    pub(crate) waits_until: Time,
    pub(crate) guardian_clock: Rc<SimulatedClock>,
    pub(crate) guardian_network: Arc<Network>,
    /// Where it finds how to give a lock on a shared drive back.
    pub(crate) memory: Arc<Memory>,
    pub(crate) on_orphaned: Option<Pin<Box<dyn Future<Output = ()>>>>,
    pub(crate) guardian_armed: Time,
    // --- the command ---
    pub(crate) tree: Option<Tree>,
    // --- what the judge wants to know ---
    pub(crate) stop_asked: bool,
    /// It was told that its machine is cordoned, at this moment, and not yet that it is not.
    pub(crate) cordoned: Option<Time>,
    /// The last thing it was told, or is about to be, is that its machine is cordoned.
    pub(crate) cordon_sent: bool,
    /// It was told so since it had control last.
    pub(crate) cordon_heard: bool,
    pub(crate) cordon_heard_at: Option<Time>,
    /// What its condition said last, if it has one.
    pub(crate) is_fit: Option<bool>,
    pub(crate) guardian_hurt: bool,
    pub(crate) told_lost: Vec<Told>,
    pub(crate) owes_a_word: bool,
    /// Since when it ran beside another.
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
        // The word that it is there is for whoever forks it.
        kernel.facts().to_supervisor.clear();
        let (clock, guardian_clock) = (Rc::<SimulatedClock>::default(), Rc::default());
        let mut on_drive = Arc::default();
        if let Lock::Shared { mount, memory, .. } = lock {
            on_drive = Arc::clone(memory);
            clock.carry(Arc::clone(mount) as _);
            SimulatedClock::carry(&guardian_clock, Arc::clone(mount) as _);
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

    /// The supervisor lives and has not finished.
    pub(crate) fn competes(&self) -> bool {
        self.supervisor != Life::Dead && self.ending.is_none()
    }

    /// The tree lives, and somebody is there to stop it: a daemon that both have left behind by dying
    /// at once is nobody's.
    pub(crate) fn is_guarded(&self) -> bool {
        self.tree_lives() && (self.competes() || self.guardian != Life::Dead)
    }

    /// The tree lives.
    pub(crate) fn tree_lives(&self) -> bool {
        self.tree.as_ref().is_some_and(Tree::lives)
    }
}
