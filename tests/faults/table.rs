//! The table: which fault meets which lock, which command and which containment, and what may
//! come of it.
//!
//! Pure. What a row may do is said here and nowhere else; a row of the promise may do nothing.

/// What is done to the holder, its store or its lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// SIGKILL to the supervisor.
    KillSupervisor,
    /// SIGKILL to the guardian.
    KillGuardian,
    /// SIGKILL to both.
    KillBoth,
    /// SIGSTOP to the supervisor, until its deadline has passed; then SIGCONT.
    StopSupervisor,
    /// SIGSTOP to the guardian, for good.
    StopGuardian,
    /// SIGSTOP to both, until the deadline has passed; then SIGCONT.
    StopBoth,
    /// SIGSTOP, then SIGKILL to the supervisor.
    StopThenKillSupervisor,
    /// SIGSTOP to the guardian, SIGKILL to the supervisor; then SIGCONT to the guardian.
    StopGuardianKillSupervisor,
    /// The store hangs until another is in control.
    Freeze,
    /// Connections are reset until another is in control.
    Cut,
    /// Every answer comes too late until another is in control.
    Delay,
    /// The store answers 503 until another is in control.
    Busy,
    /// The answer to a renewal is late, then the store hangs until another is in control.
    LateThenFreeze,
    /// One renewal hangs for a while.
    BriefFreeze,
    /// Connections are reset until that was noticed.
    BriefCut,
    /// Answers are late.
    BriefDelay,
    /// The store answers 503 until that was noticed.
    BriefBusy,
    /// The answer to the acquire is lost.
    LoseAcquire,
    /// The answer to a renewal is lost.
    LoseRenew,
    /// The answer to the release is lost.
    LoseRelease,
    /// An operator breaks the lease at the end of its time.
    BreakAtItsEnd,
    /// An operator breaks the lease with a period that is longer than its time.
    BreakWithPeriod,
    /// An operator breaks the lease at once.
    BreakNow,
    /// The blob is deleted.
    Delete,
    /// Another file is moved over the lock file.
    Replace,
    /// The lock file is unlinked.
    Unlink,
    /// Another file is moved over the lock file, and another instance comes.
    ReplaceAndCome,
    /// SIGSTOP to the command, which is watched.
    Hang,
}

use Fault::{
    BreakAtItsEnd, BreakNow, BreakWithPeriod, BriefBusy, BriefCut, BriefDelay, BriefFreeze, Busy,
    Cut, Delay, Delete, Freeze, Hang, KillBoth, KillGuardian, KillSupervisor, LateThenFreeze,
    LoseAcquire, LoseRelease, LoseRenew, Replace, ReplaceAndCome, StopBoth, StopGuardian,
    StopGuardianKillSupervisor, StopSupervisor, StopThenKillSupervisor, Unlink,
};

/// What befalls processes: every lock, every command, every containment.
pub(crate) const OF_PROCESSES: [Fault; 8] = [
    KillSupervisor,
    KillGuardian,
    KillBoth,
    StopSupervisor,
    StopGuardian,
    StopBoth,
    StopThenKillSupervisor,
    StopGuardianKillSupervisor,
];
/// What befalls a store so that control is lost: every command, every containment.
const OF_THE_STORE: [Fault; 9] = [
    LateThenFreeze,
    Freeze,
    Cut,
    Delay,
    Busy,
    BreakAtItsEnd,
    BreakWithPeriod,
    BreakNow,
    Delete,
];
/// What befalls a store and must cost nothing.
const HARMLESS: [Fault; 7] = [
    BriefFreeze,
    BriefCut,
    BriefDelay,
    BriefBusy,
    LoseAcquire,
    LoseRenew,
    LoseRelease,
];
/// What befalls a lock file.
const OF_THE_FILE: [Fault; 3] = [Replace, Unlink, ReplaceAndCome];

/// What is competed for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lock {
    /// A local file: no deadline.
    File,
    /// A file as on a drive that machines share: a lease on a chain of versions.
    Shared,
    /// A lease on a blob.
    Blob,
}

/// What the command is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    /// One process.
    Plain,
    /// A process and its child, who note a SIGTERM and stay.
    Stubborn,
    /// A process, and a daemon: forked twice, in its own session, all descriptors closed.
    Daemon,
    /// A process, and others in sessions of their own that come and go.
    Forking,
}

/// What keeps it together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Contain {
    None,
    Cgroup,
    Pidns,
}

pub(crate) const LOCKS: [Lock; 3] = [Lock::File, Lock::Shared, Lock::Blob];
pub(crate) const SHAPES: [Shape; 4] =
    [Shape::Plain, Shape::Stubborn, Shape::Daemon, Shape::Forking];
pub(crate) const CONTAINS: [Contain; 3] = [Contain::None, Contain::Cgroup, Contain::Pidns];

impl Contain {
    pub(crate) fn word(self) -> &'static str {
        match self {
            Contain::None => "none",
            Contain::Cgroup => "cgroup",
            Contain::Pidns => "pidns",
        }
    }
}

impl Shape {
    /// The journalist's options, and the roles that must have recorded themselves.
    pub(crate) fn command(self) -> (&'static [&'static str], &'static [&'static str]) {
        match self {
            Shape::Plain => (&[], &[""]),
            Shape::Stubborn => (&["--term", "3600000:9", "--children", "1"], &["", "/child"]),
            Shape::Daemon => (&["--daemon"], &["", "/daemon"]),
            Shape::Forking => (
                &["--term", "ignore", "--storm", "3", "--storm-every", "20"],
                &["", "/storm"],
            ),
        }
    }
}

/// What becomes of the command that was running when the fault came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    /// Nothing: it runs until it ends by itself.
    Untouched,
    /// It is stopped, and there is another tenure.
    Lost,
}

/// One row of the table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Row {
    pub(crate) number: usize,
    pub(crate) fault: Fault,
    pub(crate) lock: Lock,
    pub(crate) shape: Shape,
    pub(crate) contain: Contain,
    /// How many compete: two or three.
    pub(crate) instances: usize,
}

impl Row {
    pub(crate) fn name(&self) -> String {
        format!(
            "{:?}/{:?}/{:?}/{}/{}",
            self.fault,
            self.lock,
            self.shape,
            self.contain.word(),
            self.instances
        )
    }

    pub(crate) fn effect(&self) -> Effect {
        let has_deadline = self.lock != Lock::File;
        match self.fault {
            StopSupervisor | StopBoth if !has_deadline => Effect::Untouched,
            // The truth of a shared lock is in its versions, not in the file at its path.
            Replace | Unlink | ReplaceAndCome => Effect::Untouched,
            fault if HARMLESS.contains(&fault) => Effect::Untouched,
            _ => Effect::Lost,
        }
    }

    /// Whether nothing local can exclude an overlap here, as the guarantees' list says.
    pub(crate) fn may_overlap(&self) -> bool {
        let on_its_own = self.contain == Contain::Pidns;
        match self.fault {
            BreakNow | Delete | ReplaceAndCome => true,
            // The lock file's descriptor is shared by all who have not closed it.
            KillBoth => match self.shape {
                Shape::Plain => false,
                Shape::Daemon => !on_its_own,
                Shape::Stubborn | Shape::Forking => !on_its_own && self.lock != Lock::File,
            },
            StopBoth => !on_its_own && self.lock != Lock::File,
            _ => false,
        }
    }

    /// Whether nobody is left to kill what the command left behind.
    pub(crate) fn may_survive(&self) -> bool {
        self.fault == KillBoth && self.shape != Shape::Plain && self.contain != Contain::Pidns
    }

    /// Whether the promise covers the row.
    pub(crate) fn is_of_the_promise(&self) -> bool {
        !self.may_overlap() && !self.may_survive()
    }

    /// The lease, where the lock has one: the shortest, but for faults that the retries have to
    /// outlast, which get more room for that.
    pub(crate) fn lease(&self) -> &'static str {
        match self.lock {
            Lock::File | Lock::Shared => "12s",
            Lock::Blob if HARMLESS.contains(&self.fault) => "30s",
            Lock::Blob => "15s",
        }
    }
}

/// All rows, the longest first.
pub(crate) fn rows() -> Vec<Row> {
    let mut kinds: Vec<(Fault, Lock)> = Vec::new();
    for fault in OF_THE_STORE.into_iter().chain(HARMLESS) {
        kinds.push((fault, Lock::Blob));
    }
    for lock in [Lock::Blob, Lock::Shared, Lock::File] {
        kinds.extend(OF_PROCESSES.map(|fault| (fault, lock)));
    }
    kinds.extend(LOCKS.map(|lock| (Hang, lock)));
    for fault in OF_THE_FILE {
        // Whoever comes to a shared lock finds its versions, and stands by.
        if fault != ReplaceAndCome {
            kinds.push((fault, Lock::Shared));
        }
        kinds.push((fault, Lock::File));
    }
    let mut rows = Vec::new();
    for (fault, lock) in kinds {
        for shape in SHAPES {
            for contain in CONTAINS {
                let number = rows.len();
                rows.push(Row {
                    number,
                    fault,
                    lock,
                    shape,
                    contain,
                    instances: 2 + number % 2,
                });
            }
        }
    }
    rows
}
