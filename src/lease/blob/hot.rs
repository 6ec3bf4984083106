//! The sibling `NAME.standby` of a lock: a blob whose lease says which of the standbys is the hot
//! one, that is, looks at the lock often, so that the others need not.
//!
//! Asked by [`Blob`](super::Blob) when it found the lock held by another, never on the way to
//! control. What to ask, and what follows from it, is decided by [`Roster`]. What must never happen
//! here: anything of the promise depends on it; a blob is leased that is not marked as a sibling,
//! because it may be somebody's lock; a lease id is proposed again after a release of it was sent.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use azure_core::Uuid;

use super::wire::{LeaseState, Wire};
use super::{Blob, Config, connect, is_taken, is_there, notes};
use crate::azure::ServiceError;
use crate::clock::Instant;
use crate::core::Duty;
use crate::core::duty::{Heard, Move, Question, Roster, TERM};

/// What comes behind the lock's name.
const SUFFIX: &str = ".standby";

/// How long one look at the lock may take longer because of the sibling.
const LIMIT: Duration = Duration::from_secs(1);

/// The sibling as one instance sees it. Nothing is sent, nor a client made, before it is asked.
pub(super) struct Sibling {
    lock: String,
    /// The lock's, but for the target.
    config: Config,
    wire: OnceLock<Option<Arc<Wire>>>,
    state: Mutex<State>,
}

struct State {
    roster: Roster,
    /// The lease id that is proposed, until it is given back.
    id: Option<String>,
    /// That there is none was told.
    told: bool,
}

impl Blob {
    /// Has the standbys of this lock share the looking: one of them, the hot standby, looks at
    /// every poll, the others at every [`WARM_POLL`](crate::core::duty::WARM_POLL). It is whoever has
    /// a lease on the blob `NAME.standby` in the same container, which is made if it is missing and
    /// blobs may be made here. Where that cannot be (a name that is too long, a credential for one
    /// blob), and as soon as the service refuses, each looks for itself.
    #[must_use]
    pub fn with_hot_standby(mut self) -> Blob {
        let config = &self.config;
        let beside = config.target.with_suffix(SUFFIX).ok();
        let allowed = !config.account.is_for_one_blob();
        self.sibling = beside.filter(|_| allowed).map(|beside| Sibling {
            lock: config.target.name().to_owned(),
            config: Config {
                target: beside,
                ..config.clone()
            },
            wire: OnceLock::new(),
            state: Mutex::new(State {
                roster: Roster::new(config.create),
                id: None,
                told: false,
            }),
        });
        self
    }
}

impl Sibling {
    /// Which part of the looking is ours, now that the lock was seen to be another's.
    pub(super) async fn duty(&self, draining: bool, give_up_at: Instant) -> Duty {
        let limit = give_up_at.min(Instant::now() + LIMIT);
        let mut step = self.state().roster.begin(Instant::now(), draining);
        loop {
            let question = match step {
                Move::Settled(duty) => return duty,
                Move::Ask(question) => question,
            };
            let heard = match self.wire() {
                Some(wire) => self.ask(&wire, question, limit).await,
                None => Heard::Refused,
            };
            step = self.state().roster.heard(Instant::now(), heard);
        }
    }

    async fn ask(&self, wire: &Wire, question: Question, limit: Instant) -> Heard {
        let trouble = match question {
            Question::Look => match wire.look(None, limit).await {
                Ok(view) if !notes::is_sibling(&view.notes) => {
                    self.tell_off("it bears no trafficcop_standby_of");
                    return Heard::Refused;
                }
                Ok(view) if view.lease == LeaseState::Free => return Heard::Free,
                Ok(_) => return Heard::Taken,
                Err(trouble) => trouble,
            },
            Question::Create => {
                let metadata = notes::of_sibling(&self.lock);
                let page_blob = self.config.page_blob;
                match wire.create_blob(page_blob, Some(metadata), limit).await {
                    Ok(_) => return Heard::Made,
                    Err(trouble) => trouble,
                }
            }
            Question::Acquire => {
                // The shortest lease there is: 15 s.
                let seconds = i32::try_from(TERM.as_secs()).unwrap_or(15);
                match wire.acquire(&self.id(), seconds, limit).await {
                    Ok(_) => return Heard::Obtained,
                    Err(trouble) => trouble,
                }
            }
        };
        let heard = meaning(&trouble, question);
        if heard == Heard::Refused || heard == Heard::Missing && !self.config.create {
            self.tell_off(&trouble.why());
        }
        heard
    }

    /// Gives its lease back, if it may be ours, without anybody waiting for that.
    pub(super) fn give_back(&self) {
        if let Some((wire, id)) = self.retire() {
            let limit = Instant::now() + LIMIT;
            tokio::spawn(async move { wire.release(&id, limit).await });
        }
    }

    /// The same, waited for until then.
    pub(super) async fn leave(&self, give_up_at: Instant) {
        if let Some((wire, id)) = self.retire() {
            // Unsaid, it runs out.
            let _ = wire.release(&id, give_up_at).await;
        }
    }

    fn retire(&self) -> Option<(Arc<Wire>, String)> {
        let (ours, id) = {
            let mut state = self.state();
            (state.roster.retire(Instant::now()), state.id.take())
        };
        Some((self.wire()?, id.filter(|_| ours)?))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn id(&self) -> String {
        let mut state = self.state();
        let new = || Uuid::new_v4().hyphenated().to_string();
        state.id.get_or_insert_with(new).clone()
    }

    fn wire(&self) -> Option<Arc<Wire>> {
        let wire = self.wire.get_or_init(|| {
            let connected = connect(&self.config.target, &self.config.account);
            connected.ok().map(|(_, wire)| Arc::new(wire))
        });
        wire.clone()
    }

    fn tell_off(&self, why: &str) {
        if !std::mem::replace(&mut self.state().told, true) {
            tracing::debug!(
                "no hot standby by {}, each looks for itself: {why}",
                self.config.target.title()
            );
        }
    }
}

/// What trouble with the sibling means for the looking.
fn meaning(trouble: &ServiceError, question: Question) -> Heard {
    match trouble.code() {
        Some("BlobNotFound") => return Heard::Missing,
        // Gone with the lock: what becomes of that is not decided here.
        Some("ContainerNotFound" | "ContainerBeingDeleted") => return Heard::Silence,
        _ => {}
    }
    if is_taken(trouble) {
        return Heard::Taken;
    }
    // Another was faster, and what it made is looked at before it is leased.
    if question == Question::Create && is_there(trouble) {
        return Heard::There;
    }
    // 401 is what a token that has just ended gets.
    let passing = matches!(
        trouble,
        ServiceError::Answer {
            status: 401 | 408 | 412 | 429,
            ..
        }
    );
    if trouble.is_refusal() && !passing {
        Heard::Refused
    } else {
        Heard::Silence
    }
}
