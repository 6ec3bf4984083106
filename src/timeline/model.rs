//! What a timeline knows. Times are nanoseconds since 1970 on one axis for all machines; how they
//! got there is told by `clocks`.

/// A moment on the common axis: nanoseconds since 1970.
pub(super) type At = i64;

/// Everything the logs say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Timeline {
    /// The locks, by name.
    pub locks: Vec<Lock>,
    /// The first record's moment.
    pub from: At,
    /// The last record's moment.
    pub to: At,
    /// How many records there are.
    pub records: usize,
    /// What a reader of this should know: clocks that were set, lines that are missing.
    pub notes: Vec<String>,
}

/// One lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lock {
    /// Its address.
    pub name: String,
    /// The instances, by when they first appear.
    pub tracks: Vec<Lane>,
    /// The tenures, by when they began.
    pub tenures: Vec<Tenure>,
    /// When nobody was in control between two tenures.
    pub gaps: Vec<Gap>,
    /// When two were.
    pub overlaps: Vec<Overlap>,
}

/// One instance, through all its runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lane {
    /// Its identity.
    pub identity: String,
    /// Its machine.
    pub host: String,
    /// The stretches in which one of its processes is known to have been there.
    pub runs: Vec<Run>,
}

/// One process of an instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    /// The supervisor's process id.
    pub pid: u32,
    /// Its first record of this lock.
    pub from: At,
    /// Its last one.
    pub to: At,
    /// It said that it ended, with this exit status.
    pub exit: Option<i32>,
    /// It said that it ended.
    pub done: bool,
}

/// One stretch of control.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tenure {
    /// Whose: the number of the track.
    pub track: usize,
    /// The supervisor's process id.
    pub pid: u32,
    /// Which boot of which machine its times were taken on.
    pub boot: String,
    /// The fencing token.
    pub token: Option<u64>,
    /// When it said that it had control.
    pub from: At,
    /// Until when something of it is known to have lived, or may have for all that was said: the
    /// tree's end, or the last word of one that was not seen to end.
    pub lived: At,
    /// How it ended.
    pub end: End,
    /// Why.
    pub cause: Option<String>,
    /// The latest deadline it told.
    pub deadline: Option<At>,
    /// When its command's tree was being stopped.
    pub drains: Vec<(At, At)>,
    /// When the store did not answer it.
    pub doubts: Vec<(At, At)>,
    /// It said itself that it may have run beside another holder's.
    pub confessed: bool,
}

/// How a tenure ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// The lease was given back then.
    Released(At),
    /// It was lost, or left to run out; nothing of the command lived after this moment.
    Over(At),
    /// The logs do not say: the instance was killed, or its machine died, or it goes on.
    Unseen {
        /// Taken to have ended by then: at the deadline, or when the next one had control.
        /// `None`: nothing is known of it.
        by: Option<At>,
        /// What `by` is taken from.
        known_by: KnownBy,
    },
}

/// Why an end that was not seen is taken to be where it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KnownBy {
    /// The guardian ends the command at the deadline.
    Deadline,
    /// The next one was given control, which is given only when nothing of the last one lives.
    Next,
    /// The same process went on to something else.
    Itself,
    /// Nothing: it may go on.
    Nothing,
}

impl Tenure {
    /// When it was over, as far as that is known.
    #[must_use]
    pub fn to(&self) -> At {
        match self.end {
            End::Released(at) | End::Over(at) => at,
            End::Unseen { by, .. } => by.unwrap_or(self.lived),
        }
    }
}

/// Nobody was in control.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gap {
    /// After this tenure (by number).
    pub after: usize,
    /// From when.
    pub from: At,
    /// Until when.
    pub to: At,
    /// The end before it was not seen: it may have begun earlier than that, but not later.
    pub at_least: bool,
}

/// Two were in control.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Overlap {
    /// The tenures (by number), the earlier one first.
    pub of: (usize, usize),
    /// From when.
    pub from: At,
    /// Until when.
    pub to: At,
    /// On two machines, and not longer than their clocks may differ: it proves nothing.
    pub within_skew: bool,
}
