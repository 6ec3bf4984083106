//! The share of the simulation: directories, records and the hint, with all their history, because
//! a client may be shown any earlier state of what it only reads. Making is judged by the present.

use std::time::Duration;

use trafficcop::internals::core::observed::{Claim, Version};

use super::clock::{SECOND, Time};

/// What a process asks the share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Request {
    Hint,
    Exists(Version),
    HasRecord(Version),
    Read(Version),
    List,
    Make(Version),
    /// Makes a directory inside a version: that it is there is the answer in either case.
    MakeInside(Version),
    Remove(Version),
    Record(Version, Claim),
    WriteHint(Version, Claim),
}

/// The share's answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    /// The hint, if it could be read.
    Hint(Option<(Version, Claim)>),
    Yes(bool),
    Claim(Option<Claim>),
    /// The versions that are there, and when they were made by the server's clock.
    List(Vec<(Version, Time)>),
    Made,
    Exists,
    Missing,
    Done,
    /// An error of the mount's: executed or not.
    Error,
}

/// One life of a version: a directory that was made, and perhaps removed again.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Life {
    pub(crate) made: Time,
    removed: Time,
    /// Which process made it.
    pub(crate) maker: usize,
    record: Option<(Time, Claim)>,
}

impl Life {
    fn is_there(&self, at: Time) -> bool {
        self.made <= at && at < self.removed
    }
}

/// Whoever makes a version that no process of the fleet makes: an operator.
pub(crate) const OPERATOR: usize = usize::MAX;

/// See the module's text.
#[derive(Default)]
pub(crate) struct Share {
    /// By version.
    lives: Vec<Vec<Life>>,
    hints: Vec<(Time, Version, Claim)>,
    /// How often the server was restarted.
    pub(crate) epoch: u64,
    /// Until then it opens nothing.
    pub(crate) grace_until: Time,
    /// The greatest version that was ever made.
    pub(crate) greatest: Version,
    /// How often a version was made that is less than that.
    pub(crate) ancient: u64,
}

impl Share {
    /// A share on which a lock is used for the first time. The version that is nobody's has come
    /// with the directory it lies in, in one piece, or there is none.
    pub(crate) fn new(installed: bool) -> Share {
        let mut share = Share::default();
        if installed {
            share.make(0, 0, OPERATOR);
        }
        share
    }

    fn of(&self, version: Version) -> &[Life] {
        let at = usize::try_from(version).expect("short schedules");
        self.lives.get(at).map_or(&[], Vec::as_slice)
    }

    fn at(&self, version: Version, at: Time) -> Option<&Life> {
        self.of(version).iter().find(|life| life.is_there(at))
    }

    fn last(&mut self, version: Version) -> Option<&mut Life> {
        let at = usize::try_from(version).expect("short schedules");
        let life = self.lives.get_mut(at)?.last_mut()?;
        (life.removed == Time::MAX).then_some(life)
    }

    /// The version that is there now, and who made it.
    pub(crate) fn maker(&self, version: Version) -> Option<usize> {
        self.at(version, Time::MAX - 1).map(|life| life.maker)
    }

    /// How long the version that is there now is held by its record, as an operator reads it.
    pub(crate) fn lease_of(&self, version: Version) -> Option<Duration> {
        let life = self.at(version, Time::MAX - 1)?;
        life.record.map(|(_, claim)| claim.lease)
    }

    /// Whether this version was made by another than this process, and is there.
    pub(crate) fn is_made_by_another(&self, version: Version, process: usize) -> bool {
        self.maker(version).is_some_and(|maker| maker != process)
    }

    /// Makes a version; of two, one is told that it exists.
    pub(crate) fn make(&mut self, now: Time, version: Version, maker: usize) -> Reply {
        if self.last(version).is_some() {
            return Reply::Exists;
        }
        let at = usize::try_from(version).expect("short schedules");
        if self.lives.len() <= at {
            self.lives.resize_with(at + 1, Vec::new);
        }
        self.lives[at].push(Life {
            made: now,
            removed: Time::MAX,
            maker,
            record: None,
        });
        self.ancient += u64::from(version < self.greatest);
        self.greatest = self.greatest.max(version);
        Reply::Made
    }

    /// Writes the record of a version, once.
    pub(crate) fn record(&mut self, now: Time, version: Version, claim: Claim) -> Reply {
        let Some(life) = self.last(version) else {
            return Reply::Missing;
        };
        if life.record.is_some() {
            return Reply::Exists;
        }
        life.record = Some((now, claim));
        Reply::Done
    }

    /// Does what is asked. What is only read is read as of `view`.
    pub(crate) fn handle(
        &mut self,
        now: Time,
        view: Time,
        process: usize,
        request: Request,
    ) -> Reply {
        match request {
            Request::Hint => {
                let hints = self.hints.iter().rev();
                let mut hints = hints.filter(|(at, ..)| *at <= view);
                Reply::Hint(hints.next().map(|(_, version, claim)| (*version, *claim)))
            }
            Request::Exists(version) => Reply::Yes(self.at(version, view).is_some()),
            Request::HasRecord(version) => {
                let life = self.at(version, view);
                Reply::Yes(life.is_some_and(|life| life.record.is_some_and(|(at, _)| at <= view)))
            }
            Request::Read(version) => {
                let record = self.at(version, view).and_then(|life| life.record);
                Reply::Claim(record.filter(|(at, _)| *at <= view).map(|(_, claim)| claim))
            }
            Request::List => Reply::List(
                (0..=self.greatest)
                    .filter_map(|version| Some((version, self.at(version, view)?.made)))
                    .collect(),
            ),
            Request::Make(version) => self.make(now, version, process),
            Request::MakeInside(version) => match self.last(version) {
                Some(_) => Reply::Made,
                None => Reply::Missing,
            },
            Request::Remove(version) => match self.last(version) {
                Some(life) => {
                    life.removed = now;
                    Reply::Done
                }
                None => Reply::Missing,
            },
            Request::Record(version, claim) => self.record(now, version, claim),
            Request::WriteHint(version, claim) => {
                self.hints.push((now, version, claim));
                Reply::Done
            }
        }
    }

    /// Whether a server that was just restarted lets this wait.
    pub(crate) fn waits_for_grace(request: Request) -> bool {
        match request {
            Request::Hint
            | Request::Read(_)
            | Request::Remove(_)
            | Request::Record(..)
            | Request::WriteHint(..) => true,
            Request::Exists(_)
            | Request::HasRecord(_)
            | Request::List
            | Request::Make(_)
            | Request::MakeInside(_) => false,
        }
    }
}

/// How long a restarted server opens nothing.
pub(crate) const GRACE: Time = 41 * SECOND;
