//! The table: which fault meets which lock, command and containment, and what the outcome may be.
//!
//! Pure. Only this file says which rows may overlap or leave survivors; a row of the promise may do
//! neither.

/// A fault of the holder, its store or its lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    KillSupervisor,
    KillGuardian,
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
    /// Every answer is late until another is in control.
    Delay,
    /// The store answers 503 until another is in control.
    Busy,
    /// The answer to a renewal is late, then the store hangs until another is in control.
    LateThenFreeze,
    /// One renewal hangs for a while.
    BriefFreeze,
    /// Connections are reset until the instance has noticed.
    BriefCut,
    /// Answers are late.
    BriefDelay,
    /// The store answers 503 until the instance has noticed.
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

/// Faults of processes: every lock, every command, every containment.
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
/// Faults of a store that cost control: every command, every containment.
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
/// Faults of a store that must cost nothing.
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
    /// A file as on a drive that machines share: a lease on a chain of versions.
    Shared,
    Blob,
    /// An entry of a helper's store; `FAULTS_STORE` names another helper than the one with files.
    Store,
}

/// A kind of command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    Plain,
    /// A process and its child, which both note a SIGTERM and stay.
    Stubborn,
    /// A process, and a daemon: forked twice, in its own session, all descriptors closed.
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
    /// Returns the journalist's options, and the roles that must have recorded themselves.
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

/// Effect of a fault on the command that was running.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    /// None; the command runs until it ends by itself.
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
    /// Number of competing instances: two or three.
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

    /// Whether no local process can exclude an overlap here, as the guarantees list it.
    pub(crate) fn may_overlap(&self) -> bool {
        let on_its_own = self.contain == Contain::Pidns;
        match self.fault {
            BreakNow | Delete | ReplaceAndCome => true,
            // Every process that has not closed the lock file's descriptor holds the lock.
            KillBoth => match self.shape {
                Shape::Plain => false,
                Shape::Daemon => !on_its_own,
                Shape::Stubborn | Shape::Forking => !on_its_own && self.lock != Lock::File,
            },
            StopBoth => !on_its_own && self.lock != Lock::File,
            _ => false,
        }
    }

    /// Whether no process is left to kill the rest of the command's tree.
    pub(crate) fn may_survive(&self) -> bool {
        self.fault == KillBoth && self.shape != Shape::Plain && self.contain != Contain::Pidns
    }

    /// Whether the promise covers the row.
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
        // A newcomer to a shared lock finds its versions, and stands by.
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
