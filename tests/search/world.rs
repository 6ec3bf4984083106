//! One state of the search: two instances, the service, and the faults that are left.

use super::interned::{MARGIN, NEVER, News, Reply};

/// An id of a lease; 0: none.
pub(crate) type Id = u8;

/// A process, as signals leave it.
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

/// Where a call to the service is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Stage {
    /// Not sent yet: what the tree has to say comes first.
    Ordered,
    /// On its way there, or lost.
    Sent,
    /// On its way back, or lost.
    Done(Reply),
    /// In our socket.
    Answered(Reply),
}

/// What a supervisor has asked the service, and waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Call {
    pub(crate) kind: Kind,
    pub(crate) id: Id,
    pub(crate) stage: Stage,
    pub(crate) sent: u8,
    pub(crate) give_up: u8,
    /// That it takes its time is counted as a fault already.
    pub(crate) is_slow: bool,
    /// A release of what was ours for certain, and was not asked for before.
    pub(crate) is_sure: bool,
}

/// A request nobody waits for any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Stray {
    pub(crate) kind: Kind,
    pub(crate) id: Id,
    pub(crate) sent: u8,
}

/// A frame for the guardian.
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

/// What a process does, as far as others can see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Deed {
    /// An id that nobody knew is to be leased: it is asked for next.
    Proposes(Id),
    /// A supervisor asks the service.
    Asks(Kind, Id),
    /// ... tells its guardian.
    Orders(Request),
    /// A guardian tells its supervisor.
    Says(News),
    /// ... signals the command's group.
    Signals,
    /// ... signals what is left of the command.
    SignalsTheRest,
    /// ... sends SIGKILL to all of it.
    Kills,
    /// ... gives back the lease that its dead supervisor has left.
    GivesBack(Id),
    /// A supervisor takes its guardian for dead: kills it, and what it guards.
    GivesUp,
    /// A supervisor has come to its end.
    Ends,
}

/// How the supervisor is to its guardian.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Attendance {
    Well,
    Lost,
    Over,
}

/// The command: a main process, and one that has a session of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Tree {
    pub(crate) lease: Id,
    pub(crate) main: bool,
    pub(crate) daemon: bool,
    /// What was asked to end may.
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
    /// While a command that was ordered has not been heard of: from when on silence counts, if its deadline
    /// is not before.
    pub(crate) starting: u8,
    /// When the command is to be asked to end, by what its workload was told last.
    pub(crate) term: u8,
    pub(crate) inbox: Vec<News>,
    // Its store.
    pub(crate) proposed: Id,
    /// What was asked for under that may have been granted.
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
    // What is on the wire.
    pub(crate) strays: Vec<Stray>,
    /// What the wall clock of its machine is ahead of the service's.
    pub(crate) ahead: u8,
    // What the judge wants to know.
    /// Slow calls since the lease was confirmed.
    pub(crate) slow: u8,
    /// Stopped, or bereft of one of its processes, since then; or asked to stop.
    pub(crate) is_excused: bool,
    /// That this command is to end was judged.
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

    /// Both of its processes run.
    pub(crate) fn is_whole(&self) -> bool {
        self.supervisor == Life::Runs && self.guardian == Life::Runs
    }

    /// Neither does.
    pub(crate) fn is_helpless(&self) -> bool {
        self.supervisor != Life::Runs && self.guardian != Life::Runs
    }

    /// A guardian that has something to guard answers within a second.
    pub(crate) fn is_silent(&self) -> bool {
        self.guardian == Life::Stopped && self.supervisor == Life::Runs && self.busy
    }

    /// A start is still to be waited for. From when it is to be killed, a tick after it is to be asked to end, it
    /// is not.
    pub(crate) fn is_patient(&self, tick: u8) -> bool {
        self.starting != 0 && tick < self.starting.min(self.term + 1)
    }

    /// Its command runs, and nobody has asked it to end.
    pub(crate) fn works(&self) -> bool {
        self.tree
            .is_some_and(|tree| tree.main && !tree.asked && !tree.dies)
    }

    /// Its guardian is dead: it is the supervisor, or nobody, that sees that nothing is left.
    pub(crate) fn is_bereft(&mut self) {
        self.guardian = Life::Dead;
        self.requests.clear();
        self.tree = self.tree.filter(|tree| tree.main || tree.daemon);
    }

    /// The call is given up; its request may still be on its way.
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

    /// Nothing of its command is there, or will be.
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

/// What must never be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Broken {
    Nothing,
    /// A command lives, and the service keeps nobody else out for it.
    Overlap,
    /// A command was stopped that could have gone on.
    NeedlessStop,
    /// Nobody runs though the last fault was long ago.
    NobodyRuns,
    /// The lease was given back beside a living command.
    ReleasedEarly,
    /// A tenure has no greater token than the one before it.
    TokenGoesBack,
    /// A second command was started beside the first.
    StartsBeside,
    /// A supervisor ends while its command lives.
    EndsEarly,
    /// It never comes to rest.
    Loops,
}

/// All of it, to be changed.
#[derive(Clone, Debug)]
pub(crate) struct World {
    pub(crate) tick: u8,
    /// When the last fault was, or ended.
    pub(crate) quiet: u8,
    pub(crate) faults: u8,
    /// The lease at the service: whose, and until when; 0: nobody's, or it has run out.
    pub(crate) lease: Id,
    pub(crate) until: u8,
    /// The fencing token at the service, and that of the last command that was started.
    pub(crate) token: u8,
    pub(crate) started: u8,
    pub(crate) broken: Broken,
    pub(crate) processes: [Process; 2],
}

impl World {
    /// An id that nobody knows.
    pub(crate) fn fresh_id(&self) -> Id {
        let is_known =
            |id: &Id| self.lease == *id || self.processes.iter().any(|process| process.knows(*id));
        (1..)
            .find(|id| !is_known(id))
            .expect("fewer ids than there are")
    }

    /// The first of all that went wrong.
    pub(crate) fn breaks(&mut self, what: Broken) {
        if self.broken == Broken::Nothing {
            self.broken = what;
        }
    }

    /// Nobody else can have been given the lock: for whoever has a command.
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

    /// A command is asked to end, or killed: could it have gone on?
    pub(crate) fn judge_need(&mut self, p: usize) {
        let process = &mut self.processes[p];
        // Once: what is asked to end by its supervisor is signalled by its guardian later.
        let is_judged = std::mem::replace(&mut process.is_judged, true);
        // One call that is not answered is what the budget is for.
        let could = !is_judged
            && process.works()
            && process.slow <= 1
            && !process.is_excused
            && process.supervisor != Life::Dead;
        if could {
            self.breaks(Broken::NeedlessStop);
        }
    }

    /// Neither process of an instance can act from the moment its command is to be killed: what no
    /// local process can do anything about.
    pub(crate) fn is_beyond_us(&self) -> bool {
        self.processes.iter().any(|process| {
            process.tree.is_some_and(|tree| !tree.dies)
                && process.is_helpless()
                && self.tick + MARGIN >= self.until
        })
    }
}
