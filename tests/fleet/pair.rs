//! One instance: a supervisor with the real tenure, a guardian with the real watch, and the
//! command's tree. The supervisor's loop is that of `src/driver.rs`, the guardian's that of
//! `src/guardian/event_loop.rs`: the same order of looks, in virtual time.

use std::cell::Cell;
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::time::Duration;

use trafficcop::Instant;
use trafficcop::internals::core::{Cordon, Ending, Exit, Failure, Grant, Rules, Tenure};
use trafficcop::internals::guardian::WorkloadEvent;
use trafficcop::internals::guardian::liveness::LivenessTimer;
use trafficcop::internals::guardian::state::GuardianState;

use super::adapter::Adapter;
use super::clock::Time;
use super::desk::Desk;
use super::store::Id;

/// A process, as signals leave it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Life {
    Runs,
    /// Until somebody continues it.
    Stopped(Time),
    Dead,
}

/// What comes to a supervisor from outside, by way of `Signals`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Word {
    Stop(i32),
    Cordon(Option<Cordon>),
}

/// The supervisor's side of the guardian (`GuardianHandle`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Attendance {
    Well,
    Lost,
    Over,
}

pub(crate) enum Answer {
    Acquired(Result<Grant, Failure>),
    Renewed {
        t0: Instant,
        reply: Result<(), Failure>,
    },
    Released(Result<(), Failure>),
    Announced,
}

pub(crate) type Call = Pin<Box<dyn Future<Output = Answer>>>;

/// The command's processes: a main process, and perhaps a daemon in a session of its own.
#[derive(Clone, Debug)]
pub(crate) struct Tree {
    pub(crate) generation: u64,
    pub(crate) lease: Id,
    pub(crate) token: u64,
    pub(crate) born: Time,
    pub(crate) main: bool,
    pub(crate) exit: Exit,
    pub(crate) told_executed: bool,
    pub(crate) told_exit: bool,
    pub(crate) daemon: bool,
    pub(crate) deaf: bool,
    pub(crate) deaf_daemon: bool,
    pub(crate) termed: bool,
    pub(crate) daemon_termed: bool,
    pub(crate) killed: bool,
    /// The lease stopped protecting it while it lived, and that was excused.
    pub(crate) excused: bool,
    /// Another tree was started while it lived.
    pub(crate) overlapped: bool,
}

impl Tree {
    pub(crate) fn lives(&self) -> bool {
        self.main || self.daemon
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
    pub(crate) tenure: Tenure,
    pub(crate) desk: Rc<Desk>,
    pub(crate) store: Rc<Adapter>,
    pub(crate) calls: Vec<Call>,
    pub(crate) acquiring: bool,
    pub(crate) withdrawn: Option<Instant>,
    pub(crate) signals: VecDeque<Word>,
    pub(crate) ending: Option<Ending>,
    pub(crate) attendance: Attendance,
    pub(crate) busy: bool,
    /// When the guardian kills on its own, as it was told last.
    pub(crate) kill_at: Instant,
    /// When it was told that (true time): the answer had come by then, and not before.
    pub(crate) told_at: Time,
    pub(crate) pulse: LivenessTimer,
    pub(crate) inbox: VecDeque<WorkloadEvent>,
    pub(crate) armed: Time,
    // --- the socket between them ---
    pub(crate) to_supervisor: Vec<u8>,
    pub(crate) to_guardian: Vec<u8>,
    // --- the guardian ---
    pub(crate) guardian: Life,
    pub(crate) guardian_continued: Time,
    pub(crate) watch: GuardianState,
    pub(crate) deaf: bool,
    pub(crate) release_info: Option<Id>,
    pub(crate) last_desk: Rc<Desk>,
    pub(crate) on_orphaned: Option<Pin<Box<dyn Future<Output = ()>>>>,
    pub(crate) wall_jumped: bool,
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
    pub(crate) steps: u32,
}

impl Pair {
    pub(crate) fn new(
        machine: usize,
        holder: usize,
        rules: Rules,
        now: Instant,
        lease: Duration,
        ids: Rc<Cell<Id>>,
    ) -> Pair {
        let desk = Rc::new(Desk::default());
        desk.now.set(now);
        Pair {
            machine,
            supervisor: Life::Runs,
            continued: 0,
            tenure: Tenure::new(rules, now),
            store: Rc::new(Adapter::new(Rc::clone(&desk), holder, lease, ids)),
            desk,
            calls: Vec::new(),
            acquiring: false,
            withdrawn: None,
            signals: VecDeque::new(),
            ending: None,
            attendance: Attendance::Well,
            busy: false,
            kill_at: Instant::FOREVER,
            told_at: 0,
            pulse: LivenessTimer::new(),
            inbox: VecDeque::new(),
            armed: Time::MAX,
            to_supervisor: Vec::new(),
            to_guardian: Vec::new(),
            guardian: Life::Runs,
            guardian_continued: 0,
            watch: GuardianState::new(),
            deaf: false,
            release_info: None,
            last_desk: Rc::new(Desk::default()),
            on_orphaned: None,
            wall_jumped: false,
            guardian_armed: Time::MAX,
            tree: None,
            stop_asked: false,
            cordoned: None,
            cordon_sent: false,
            cordon_heard: false,
            guardian_hurt: false,
            told_lost: Vec::new(),
            owes_a_word: false,
            overlapped_at: 0,
            overlapped_lease: None,
            said_overlap: false,
            had_control: false,
            told_term_at: Instant::ZERO,
            second: 0,
            steps: 0,
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
