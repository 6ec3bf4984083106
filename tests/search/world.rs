//! One state of the search: two instances, the service, and the remaining faults.

use super::interned::{MARGIN, NEVER, News, Reply};

/// Id of a lease; 0: none.
pub(crate) type Id = u8;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Life {
    Runs,
    Stopped,
    Dead,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Kind {
    Acquire,
    Renew,
    Release,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Stage {
    /// The tree's events come first.
    Ordered,
    Sent,
    /// On its way back, or lost.
    Done(Reply),
    /// Waiting in the instance's socket.
    Answered(Reply),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Call {
    pub(crate) kind: Kind,
    pub(crate) id: Id,
    pub(crate) stage: Stage,
    pub(crate) sent: u8,
    pub(crate) give_up: u8,
    /// Whether its slowness was counted as a fault.
    pub(crate) is_slow: bool,
    /// The first release of a lease that was certainly granted.
    pub(crate) is_sure: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Stray {
    pub(crate) kind: Kind,
    pub(crate) id: Id,
    pub(crate) sent: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Request {
    Start {
        term: u8,
        kill: u8,
        id: Id,
        token: u8,
    },
    Extend {
        term: u8,
        kill: u8,
    },
    Drain {
        end: u8,
    },
    Kill,
    ForgetRelease,
}

/// A deed of a process that others can see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Deed {
    /// A new id is proposed for a lease: the next request uses it.
    Proposes(Id),
    Asks(Kind, Id),
    Orders(Request),
    Says(News),
    Signals,
    SignalsTheRest,
    /// SIGKILL to the whole tree.
    Kills,
    /// The guardian releases its dead supervisor's lease.
    GivesBack(Id),
    /// The supervisor kills its guardian, and the command.
    GivesUp,
    Ends,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Attendance {
    Well,
    Lost,
    Over,
}

/// A main process, and one in a session of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Tree {
    pub(crate) lease: Id,
    pub(crate) main: bool,
    pub(crate) daemon: bool,
    /// Whether it was asked to end, and so may.
    pub(crate) asked: bool,
    pub(crate) daemon_asked: bool,
    /// SIGKILL was sent: it may live to the end of this tick.
    pub(crate) dies: bool,
    pub(crate) told_exit: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Process {
    // The supervisor.
    pub(crate) supervisor: Life,
    pub(crate) core: u32,
    pub(crate) call: Option<Call>,
    pub(crate) withdrawn: u8,
    pub(crate) attendance: Attendance,
    pub(crate) busy: bool,
    /// Tick from which silence about an ordered start counts, if its deadline is not before.
    pub(crate) starting: u8,
    /// Tick of the command's SIGTERM, as its workload was told last.
    pub(crate) term: u8,
    pub(crate) inbox: Vec<News>,
    // Its store.
    pub(crate) proposed: Id,
    /// A request with the proposed id may have been granted.
    pub(crate) perhaps: bool,
    pub(crate) held: Id,
    pub(crate) spent: Id,
    // The guardian.
    pub(crate) guardian: Life,
    pub(crate) guardian_state: u16,
    pub(crate) requests: Vec<Request>,
    pub(crate) release: Id,
    pub(crate) is_orphaned: bool,
    pub(crate) tree: Option<Tree>,
    // On the wire.
    pub(crate) strays: Vec<Stray>,
    /// Ticks by which its wall clock is ahead of the service's.
    pub(crate) ahead: u8,
    // For the judge.
    /// Slow calls since the lease was confirmed.
    pub(crate) slow: u8,
    /// Whether it was stopped, lost a process or was asked to stop since then.
    pub(crate) is_excused: bool,
    /// The end of this command was judged.
    pub(crate) is_judged: bool,
}

impl Process {
    pub(crate) fn new(core: u32, ahead: u8) -> Process {
        Process {
            supervisor: Life::Runs,
            core,
            call: None,
            withdrawn: NEVER,
            attendance: Attendance::Well,
            busy: false,
            starting: 0,
            term: 0,
            inbox: Vec::new(),
            proposed: 0,
            perhaps: false,
            held: 0,
            spent: 0,
            guardian: Life::Runs,
            guardian_state: 0,
            requests: Vec::new(),
            release: 0,
            is_orphaned: false,
            tree: None,
            strays: Vec::new(),
            ahead,
            slow: 0,
            is_excused: false,
            is_judged: false,
        }
    }

    pub(crate) fn is_whole(&self) -> bool {
        self.supervisor == Life::Runs && self.guardian == Life::Runs
    }

    pub(crate) fn is_helpless(&self) -> bool {
        self.supervisor != Life::Runs && self.guardian != Life::Runs
    }

    /// Whether the supervisor misses its guardian, which should answer within a second while it has
    /// a command.
    pub(crate) fn is_silent(&self) -> bool {
        self.guardian == Life::Stopped && self.supervisor == Life::Runs && self.busy
    }

    /// Whether a start is still waited for, until its command would be killed: a tick after its
    /// SIGTERM.
    pub(crate) fn is_patient(&self, tick: u8) -> bool {
        self.starting != 0 && tick < self.starting.min(self.term + 1)
    }

    pub(crate) fn works(&self) -> bool {
        self.tree
            .is_some_and(|tree| tree.main && !tree.asked && !tree.dies)
    }

    /// Notes its guardian's death: only a living supervisor sees that the tree is empty.
    pub(crate) fn is_bereft(&mut self) {
        self.guardian = Life::Dead;
        self.requests.clear();
        self.tree = self.tree.filter(|tree| tree.main || tree.daemon);
    }

    pub(crate) fn drop_call(&mut self) {
        let Some(Call {
            kind,
            id,
            sent,
            stage,
            ..
        }) = self.call.take()
        else {
            return;
        };
        self.perhaps |= kind == Kind::Acquire && stage != Stage::Ordered;
        if stage == Stage::Sent {
            self.strays.push(Stray { kind, id, sent });
        }
    }

    /// Notes that no command is left or ordered.
    pub(crate) fn is_rid(&mut self) {
        (self.busy, self.starting, self.term) = (false, 0, 0);
    }

    fn knows(&self, id: Id) -> bool {
        [self.proposed, self.held, self.spent, self.release].contains(&id)
            || self.call.is_some_and(|call| call.id == id)
            || self.tree.is_some_and(|tree| tree.lease == id)
            || self.strays.iter().any(|stray| stray.id == id)
            || self.requests.iter().any(
                |request| matches!(request, Request::Start { id: theirs, .. } if *theirs == id),
            )
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Broken {
    Nothing,
    /// A command lives, and the service does not keep others out for it.
    Overlap,
    /// A command was stopped that could have continued.
    NeedlessStop,
    NobodyRuns,
    ReleasedEarly,
    /// Not greater than the last tenure's.
    TokenGoesBack,
    /// A second command beside a living one.
    StartsBeside,
    EndsEarly,
    /// A process does not come to rest.
    Loops,
}

#[derive(Clone, Debug)]
pub(crate) struct World {
    pub(crate) tick: u8,
    /// Tick at which the last fault happened, or ended.
    pub(crate) quiet: u8,
    pub(crate) faults: u8,
    /// The lease at the service (0: none, or run out), and its end.
    pub(crate) lease: Id,
    pub(crate) until: u8,
    pub(crate) token: u8,
    pub(crate) started: u8,
    pub(crate) broken: Broken,
    pub(crate) processes: [Process; 2],
}

impl World {
    pub(crate) fn fresh_id(&self) -> Id {
        let is_known =
            |id: &Id| self.lease == *id || self.processes.iter().any(|process| process.knows(*id));
        (1..)
            .find(|id| !is_known(id))
            .expect("fewer ids than there are")
    }

    pub(crate) fn breaks(&mut self, what: Broken) {
        if self.broken == Broken::Nothing {
            self.broken = what;
        }
    }

    pub(crate) fn judge_overlap(&mut self) {
        let (lease, is_over) = (self.lease, self.until <= self.tick);
        let is_beside = |process: &Process| {
            let lives = process.tree.filter(|tree| tree.main || tree.daemon);
            lives.is_some_and(|tree| tree.lease != lease || is_over)
        };
        if self.processes.iter().any(is_beside) {
            self.breaks(Broken::Overlap);
        }
    }

    /// Judges whether a command that is stopped could have continued.
    pub(crate) fn judge_need(&mut self, p: usize) {
        let process = &mut self.processes[p];
        // Once: a supervisor's stop is followed by its guardian's signal.
        let is_judged = std::mem::replace(&mut process.is_judged, true);
        // The budget allows for one unanswered call.
        let could = !is_judged
            && process.works()
            && process.slow <= 1
            && !process.is_excused
            && process.supervisor != Life::Dead;
        if could {
            self.breaks(Broken::NeedlessStop);
        }
    }

    /// Whether neither process of an instance can act from when its command must be killed: no
    /// local process can help.
    pub(crate) fn is_beyond_us(&self) -> bool {
        self.processes.iter().any(|process| {
            process.tree.is_some_and(|tree| !tree.dies)
                && process.is_helpless()
                && self.tick + MARGIN >= self.until
        })
    }
}
