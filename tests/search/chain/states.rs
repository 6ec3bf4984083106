//! States of the search, small enough to be compared quickly.

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Record {
    #[default]
    None,
    Held,
    Released,
}

/// A version: its process and that process's number, or [`OPERATOR`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Made {
    pub(crate) by: u8,
    pub(crate) number: u8,
    pub(crate) record: Record,
    /// Whether its break was announced in it, or tested for.
    pub(crate) said: bool,
}

pub(crate) const OPERATOR: u8 = 2;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Break {
    #[default]
    NotYet,
    /// Announced in this version.
    Said(u8),
    Made(u8),
    /// The record says that the lock is free; or a process had made the version.
    Over,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Run {
    #[default]
    Idle,
    Runs,
    /// Being killed, but alive.
    Dies,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Kind {
    #[default]
    None,
    Take,
    Renew,
    Release,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Stage {
    #[default]
    Sent,
    /// The answer is on its way.
    Made,
    Exists,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Call {
    pub(crate) kind: Kind,
    pub(crate) stage: Stage,
    pub(crate) version: u8,
    /// Just before the request; `began`: before the whole call.
    pub(crate) sent: u8,
    pub(crate) began: u8,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Process {
    pub(crate) memory: u16,
    pub(crate) number: u8,
    pub(crate) run: Run,
    pub(crate) t0: u8,
    pub(crate) tenure: bool,
    /// The supervisor is dead, the guardian lives.
    pub(crate) orphaned: bool,
    pub(crate) call: Call,
    /// Version in an abandoned request on its way; 0: none.
    pub(crate) late: u8,
    /// Version whose record is to be written; 0: none.
    pub(crate) writes: u8,
    pub(crate) writes_released: bool,
    /// Another may run, until it hears of that or its lease ends.
    pub(crate) broken: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ChainState {
    pub(crate) tick: u8,
    pub(crate) latest: u8,
    pub(crate) faults: u8,
    pub(crate) made: [Made; 6],
    pub(crate) processes: [Process; 2],
    pub(crate) operator: Break,
    /// A holder has made a version after another's.
    pub(crate) strayed: bool,
}

impl ChainState {
    pub(crate) fn tidied(mut self) -> ChainState {
        for process in &mut self.processes {
            if process.run == Run::Idle {
                process.t0 = 0;
                process.broken = false;
            }
            process.writes_released &= process.writes > 0;
        }
        self
    }

    pub(crate) fn key(&self) -> [u64; 3] {
        let mut share = u64::from(self.tick) << 3 | u64::from(self.latest);
        share = share << 4 | u64::from(self.faults);
        for made in self.made {
            let bits = u64::from(made.by) | u64::from(made.number) << 2 | (made.record as u64) << 4;
            share = share << 7 | bits | u64::from(made.said) << 6;
        }
        let operator = match self.operator {
            Break::NotYet => 0,
            Break::Over => 1,
            Break::Said(version) => 8 | u64::from(version),
            Break::Made(version) => 16 | u64::from(version),
        };
        share = share << 6 | operator << 1 | u64::from(self.strayed);
        let of = |p: &Process| {
            let mut key = u64::from(p.memory);
            for (bits, value) in [
                (2, u64::from(p.number)),
                (2, p.run as u64),
                (5, u64::from(p.t0)),
                (1, u64::from(p.tenure)),
                (1, u64::from(p.orphaned)),
                (2, p.call.kind as u64),
                (2, p.call.stage as u64),
                (3, u64::from(p.call.version)),
                (5, u64::from(p.call.sent)),
                (5, u64::from(p.call.began)),
                (3, u64::from(p.late)),
                (3, u64::from(p.writes)),
                (1, u64::from(p.writes_released)),
                (1, u64::from(p.broken)),
            ] {
                key = key << bits | value;
            }
            key
        };
        [share, of(&self.processes[0]), of(&self.processes[1])]
    }
}

pub(crate) fn make(state: &mut ChainState, p: usize, version: u8) -> Stage {
    if version <= state.latest {
        return Stage::Exists;
    }
    let (by, number) = (u8::try_from(p).expect("two"), state.processes[p].number);
    let process = &state.processes[p];
    let before = state.made[usize::from(version - 1)];
    state.strayed |= process.run == Run::Runs && (before.by, before.number) != (by, number);
    state.latest = version;
    state.made[usize::from(version)] = Made {
        by,
        number,
        ..Made::default()
    };
    Stage::Made
}

/// Makes an operator's version, which breaks the lease of the one before.
pub(crate) fn make_broken(state: &mut ChainState, version: u8) -> Stage {
    if version <= state.latest {
        return Stage::Exists;
    }
    let before = state.made[usize::from(version - 1)];
    for (p, process) in (0_u8..).zip(&mut state.processes) {
        let its = (before.by, before.number) == (p, process.number);
        process.broken |= its && process.run != Run::Idle;
    }
    state.latest = version;
    state.made[usize::from(version)] = Made {
        by: OPERATOR,
        ..Made::default()
    };
    Stage::Made
}

/// The claim of a version, readable (`read`) or not; `None` if its record was not written.
#[expect(
    clippy::option_option,
    reason = "there is none to read, and there is none that is read"
)]
pub(crate) fn claim(state: &ChainState, version: u8, read: bool) -> Option<Option<(u8, u8, bool)>> {
    let made = state.made[usize::from(version)];
    match (made.record, read) {
        (_, false) => Some(None),
        (Record::None, true) => None,
        (record, true) => Some(Some((made.by, made.number, record == Record::Released))),
    }
}
