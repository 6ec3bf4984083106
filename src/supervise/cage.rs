//! What keeps the command's tree together beyond descent: the one place where the kinds of
//! containment differ.
//!
//! Called by [`super::guardian`] (prepare), [`super::vigil`] (join, kill, empty) and
//! [`super::attendant`] (kill, empty, when the guardian is dead). A kind that was asked for by
//! name is had or refused, never replaced by a lesser one.

use std::os::fd::RawFd;

use super::{Contain, Refusal};

/// The containment that is in force.
#[derive(Debug)]
pub(super) enum Cage {
    /// Descent only: subreaper and walk.
    None,
}

impl Cage {
    /// Makes what was asked for, before the guardian is forked.
    pub(super) fn prepare(asked: Contain) -> Result<Cage, Refusal> {
        match asked {
            Contain::Auto | Contain::None => Ok(Cage::None),
            Contain::Cgroup => Err(Refusal::Contain {
                asked: "cgroup",
                why: "not available in this build".to_owned(),
            }),
            Contain::Pidns => Err(Refusal::Contain {
                asked: "pidns",
                why: "not available in this build".to_owned(),
            }),
        }
    }

    /// Which kind this is.
    pub(super) fn kind(&self) -> Contain {
        match self {
            Cage::None => Contain::None,
        }
    }

    /// A descriptor that a new process writes "0" to, to be inside.
    pub(super) fn join(&self) -> Option<RawFd> {
        match self {
            Cage::None => None,
        }
    }

    /// Kills everything inside at once, if this kind can.
    pub(super) fn kill(&self) {
        match self {
            Cage::None => {}
        }
    }

    /// Whether nothing is inside, as far as this kind can tell.
    pub(super) fn is_empty(&self) -> bool {
        match self {
            Cage::None => true,
        }
    }

    /// Descriptors that the guardian needs although they are close-on-exec.
    pub(super) fn keep(&self) -> Vec<RawFd> {
        self.join().into_iter().collect()
    }
}
