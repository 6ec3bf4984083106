//! The table: which fault meets which lock, command and containment, and what the outcome may be.
//!
//! Pure. Only this file says which rows may overlap or leave survivors; a row of the promise may do
//! neither.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    KillSupervisor,
    KillGuardian,
    KillBoth,
    /// SIGSTOP until its deadline has passed; then SIGCONT.
    StopSupervisor,
    /// SIGSTOP for good.
    StopGuardian,
    /// SIGSTOP to both until the deadline has passed; then SIGCONT.
    StopBoth,
    StopThenKillSupervisor,
    /// SIGSTOP to the guardian, SIGKILL to the supervisor; then SIGCONT to the guardian.
    StopGuardianKillSupervisor,
    /// Hangs until another is in control.
    Freeze,
    /// Resets connections until another is in control.
    Cut,
    /// Delays every answer until another is in control.
    Delay,
    /// Answers 503 until another is in control.
    Busy,
    /// The answer to a renewal is late, then the store hangs until another is in control.
    LateThenFreeze,
    /// One renewal hangs for a while.
    BriefFreeze,
    /// Resets connections until the instance has noticed.
    BriefCut,
    BriefDelay,
    /// Answers 503 until the instance has noticed.
    BriefBusy,
    LoseAcquire,
    LoseRenew,
    LoseRelease,
    /// Breaks the lease at the end of its time.
    BreakAtItsEnd,
    /// Breaks it with a period longer than its time.
    BreakWithPeriod,
    BreakNow,
    Delete,
    Replace,
    Unlink,
    /// Another file is moved over the lock file, and another instance comes.
    ReplaceAndCome,
    /// SIGSTOP to a watched command.
    Hang,
}

use Fault::{
    BreakAtItsEnd, BreakNow, BreakWithPeriod, BriefBusy, BriefCut, BriefDelay, BriefFreeze, Busy,
    Cut, Delay, Delete, Freeze, Hang, KillBoth, KillGuardian, KillSupervisor, LateThenFreeze,
    LoseAcquire, LoseRelease, LoseRenew, Replace, ReplaceAndCome, StopBoth, StopGuardian,
    StopGuardianKillSupervisor, StopSupervisor, StopThenKillSupervisor, Unlink,
};

/// Every lock, every command, every containment.
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
/// Faults that cost control: every command, every containment.
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
/// Faults that must cost nothing.
const HARMLESS: [Fault; 7] = [
    BriefFreeze,
    BriefCut,
    BriefDelay,
    BriefBusy,
    LoseAcquire,
    LoseRenew,
    LoseRelease,
];
const OF_THE_FILE: [Fault; 3] = [Replace, Unlink, ReplaceAndCome];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lock {
    /// A local file: no deadline.
    File,
    /// A lease on a chain of versions, as on a drive that machines share.
    Shared,
    Blob,
    /// An entry of a helper's store; `FAULTS_STORE` names another helper.
    Store,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    Plain,
    /// A process and its child, which note a SIGTERM and stay.
    Stubborn,
    /// A process, and a daemon in its own session without descriptors.
    Daemon,
    /// A process, and short-lived ones in sessions of their own.
    Forking,
}

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
    /// Returns the journalist's options, and the roles that must record themselves.
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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    /// Runs until it ends by itself.
    Untouched,
    /// Stopped; another tenure follows.
    Lost,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Row {
    pub(crate) number: usize,
    pub(crate) fault: Fault,
    pub(crate) lock: Lock,
    pub(crate) shape: Shape,
    pub(crate) contain: Contain,
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
            // The state of a shared lock is in its versions, not in the file at its path.
            Replace | Unlink | ReplaceAndCome => Effect::Untouched,
            fault if HARMLESS.contains(&fault) => Effect::Untouched,
            _ => Effect::Lost,
        }
    }

    /// Whether no local process can exclude an overlap, as the guarantees list it.
    pub(crate) fn may_overlap(&self) -> bool {
        let on_its_own = self.contain == Contain::Pidns;
        match self.fault {
            BreakNow | Delete | ReplaceAndCome => true,
            // Whatever has not closed the lock file's descriptor holds the lock.
            KillBoth => match self.shape {
                Shape::Plain => false,
                Shape::Daemon => !on_its_own,
                Shape::Stubborn | Shape::Forking => !on_its_own && self.lock != Lock::File,
            },
            StopBoth => !on_its_own && self.lock != Lock::File,
            _ => false,
        }
    }

    /// Whether no process is left to kill the rest of the tree.
    pub(crate) fn may_survive(&self) -> bool {
        self.fault == KillBoth && self.shape != Shape::Plain && self.contain != Contain::Pidns
    }

    pub(crate) fn is_of_the_promise(&self) -> bool {
        !self.may_overlap() && !self.may_survive()
    }

    /// Length of the lease, where the lock has one: the shortest, or longer for a fault that the
    /// retries must outlast.
    pub(crate) fn lease(&self) -> &'static str {
        match self.lock {
            Lock::File | Lock::Shared | Lock::Store => "12s",
            Lock::Blob if HARMLESS.contains(&self.fault) => "30s",
            Lock::Blob => "15s",
        }
    }
}

/// Returns all rows, the longest first.
pub(crate) fn rows() -> Vec<Row> {
    let mut kinds: Vec<(Fault, Lock)> = Vec::new();
    for fault in OF_THE_STORE.into_iter().chain(HARMLESS) {
        kinds.push((fault, Lock::Blob));
    }
    for lock in [Lock::Blob, Lock::Shared, Lock::File] {
        kinds.extend(OF_PROCESSES.map(|fault| (fault, lock)));
    }
    kinds.extend(OF_PROCESSES.map(|fault| (fault, Lock::Store)));
    kinds.extend(LOCKS.map(|lock| (Hang, lock)));
    for fault in OF_THE_FILE {
        // A newcomer finds a shared lock's versions, and stands by.
        if fault != ReplaceAndCome {
            kinds.push((fault, Lock::Shared));
        }
        kinds.push((fault, Lock::File));
    }
    let mut rows = Vec::new();
    for (fault, lock) in kinds {
        for shape in SHAPES {
            // Above the store nothing differs from a shared drive: one kind of command shows that.
            if lock == Lock::Store && shape != Shape::Stubborn {
                continue;
            }
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
