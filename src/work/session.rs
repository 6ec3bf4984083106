//! Processes the messages of a session one after another.
//!
//! Between two messages the last one's lease renews the session's lock. No message may begin before the last
//! settlement is confirmed: after a doubt, the next worker begins with that message.

use std::fs::OpenOptions;
use std::io::{self, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::{oneshot, watch};

use super::lease::MessageLease;
use super::processor::{Done, MessageProcessor, ProcessorContext};
use super::settle::{Decision, Outcome};
use crate::azure::before;
use crate::background_writer;
use crate::clock::Instant;
use crate::core::budget::{ATTEMPT, RETRY};
use crate::core::{Budget, Failure};
use crate::queue::{Lock, Message, Session, Settlement};
use crate::report;
use crate::util::lock;

/// Largest state, in bytes: the limit of a standard namespace.
const LARGEST_STATE: usize = 256 << 10;
const ATTEMPTS: u32 = 3;

impl MessageProcessor {
    pub(super) async fn work_session(
        &mut self,
        session: Arc<dyn Session>,
        first: Message,
        context: &ProcessorContext,
        mut leaving: bool,
    ) -> Done {
        let id = report::plain(session.id());
        tracing::debug!("session {id}: taken");
        let (mut done, mut begun) = (Done::nothing(), 0);
        let mut next = Some(first);
        let mut state = None;
        let mut why = "it is lost";
        while let Some(message) = next.take() {
            let state = match &mut state {
                Some(state) => &*state,
                none => {
                    let lease = context.lease(&message);
                    let budget = context.budget(&message);
                    let begins = begin(&session, &lease, &budget, context);
                    match self.meanwhile(begins).await {
                        Ok(content) => &*none.insert(SessionState::new(&session, content)),
                        Err(_) if *context.leaving.borrow() => {
                            why = "a stop was requested";
                            break;
                        }
                        Err(failure) => {
                            tracing::warn!("session {id}: not started: {failure}");
                            break;
                        }
                    }
                }
            };
            leaving |= *context.leaving.borrow();
            let may_begin = context.may_begin.as_ref();
            let less = |left: u64| left.checked_sub(1);
            if may_begin.is_some_and(|left| {
                let taken = left.fetch_update(Ordering::AcqRel, Ordering::Acquire, less);
                taken.is_err()
            }) {
                why = "--max-messages is reached";
                break;
            }
            let message = state.with_lock(message);
            let budget = context.budget(&message);
            let lease = context.lease(&message);
            let (earlier, aside) = (begun, done.put_aside.take());
            done = self
                .one(message, Arc::clone(&lease), Some(state), context, leaving)
                .await;
            (done.earlier, begun) = (earlier, begun + u64::from(done.ran));
            // A dead-lettering counts, whatever came after it.
            done.put_aside = done.put_aside.or(aside);
            if !done.ran
                && let Some(left) = may_begin
            {
                left.fetch_add(1, Ordering::AcqRel);
            }
            why = match done.outcome {
                // Only what the queue has confirmed.
                Outcome::Completed | Outcome::Retried | Outcome::DeadLettered => "",
                Outcome::Released => "a message is given back with it",
                Outcome::Expired
                | Outcome::Failed
                | Outcome::Lost
                | Outcome::Unconfirmed
                | Outcome::Unsettled => "the result of a message is in doubt",
            };
            if done.lost {
                why = "its guardian is lost";
            } else if sessions_end(context, begun) {
                why = "--session-messages is reached";
            } else if may_begin.is_some_and(|left| left.load(Ordering::Acquire) == 0) {
                why = "--max-messages is reached";
            } else if *context.leaving.borrow() {
                why = "a stop was requested";
            }
            if !why.is_empty() {
                break;
            }
            let idle = context.sessions.map(|sessions| sessions.idle);
            let since = Instant::now();
            let until = since + idle.unwrap_or_default();
            let waiting = keeping(&lease, &budget, context, session.next(until));
            (next, why) = match self.meanwhile(waiting).await {
                Some(Ok(Some(message))) => (Some(message), "it is lost"),
                Some(Ok(None)) => {
                    done.idle_since = Some(since);
                    (None, "it has no more messages")
                }
                Some(Err(failure)) => {
                    tracing::warn!("session {id}: {failure}");
                    (None, "it is lost")
                }
                None => (None, "a stop was requested, or its lock is lost"),
            };
        }
        self.meanwhile(session.close(Instant::now() + ATTEMPT))
            .await;
        tracing::info!("session {id}: given up after {begun} messages: {why}");
        done.lost |= self.lost;
        done
    }
}

impl Done {
    fn nothing() -> Done {
        Done {
            ran: false,
            exit: None,
            succeeded: false,
            outcome: Outcome::Lost,
            errno: None,
            no_handover: None,
            lost: false,
            overlap: false,
            put_aside: None,
            taken: Instant::ZERO,
            earlier: 0,
            idle_since: None,
        }
    }
}

fn sessions_end(context: &ProcessorContext, begun: u64) -> bool {
    let most = context.sessions.and_then(|sessions| sessions.messages);
    most.is_some_and(|most| begun >= most)
}

/// Waits for --lock-delay, in which the previous worker learns of its loss, then reads the state.
async fn begin(
    session: &Arc<dyn Session>,
    lease: &MessageLease,
    budget: &Budget,
    context: &ProcessorContext,
) -> Result<Vec<u8>, Failure> {
    let delay = context.sessions.map(|sessions| sessions.lock_delay);
    let from = session.taken() + delay.unwrap_or_default();
    let ready = async {
        // Short: the runtime's clock stops while the machine sleeps.
        while let now = Instant::now()
            && now < from
        {
            tokio::time::sleep(from.since(now).min(Duration::from_secs(1))).await;
        }
        let mut attempt = 1;
        loop {
            match session.state(Instant::now() + ATTEMPT).await {
                Err(Failure::Transient { .. }) if attempt < ATTEMPTS => attempt += 1,
                answer => return answer,
            }
            tokio::time::sleep(RETRY).await;
        }
    };
    let stopped = Failure::Transient {
        why: "a stop was requested, or its lock is lost".to_owned(),
        retry_after: None,
    };
    keeping(lease, budget, context, ready)
        .await
        .unwrap_or(Err(stopped))
}

/// Waits and renews; `None` if the lock is lost or the worker leaves.
async fn keeping<T>(
    lease: &MessageLease,
    budget: &Budget,
    context: &ProcessorContext,
    what: impl Future<Output = T>,
) -> Option<T> {
    let mut leaving: watch::Receiver<bool> = context.leaving.clone();
    tokio::select! {
        biased;
        _ = leaving.wait_for(|leaving| *leaving) => None,
        _ = lease.lost() => None,
        _ = lease.renew_until(Instant::FOREVER, budget) => None,
        done = what => Some(done),
    }
}

/// State of a session whose lock this worker holds.
pub(super) struct SessionState(Arc<SharedSession>);

struct SharedSession {
    session: Arc<dyn Session>,
    state: Mutex<StateContent>,
}

/// Content of the file, and its size.
type Left = io::Result<(Vec<u8>, u64)>;

#[derive(Default)]
struct StateContent {
    content: Vec<u8>,
    path: Option<PathBuf>,
    reading: Option<oneshot::Receiver<Left>>,
    instead: Option<Decision>,
}

impl SessionState {
    fn new(session: &Arc<dyn Session>, content: Vec<u8>) -> SessionState {
        SessionState(Arc::new(SharedSession {
            session: Arc::clone(session),
            state: Mutex::new(StateContent {
                content,
                ..StateContent::default()
            }),
        }))
    }

    fn with_lock(&self, message: Message) -> Message {
        *lock(&self.0.state) = StateContent {
            content: self.content(),
            ..StateContent::default()
        };
        let lock = Arc::new(LockWithState {
            inner: Arc::clone(&message.lock),
            shared: Arc::clone(&self.0),
        });
        // The lock may have been renewed since the message came; only the session knows.
        let (t0, lock_time) = self.0.session.locked();
        Message {
            t0,
            lock_time,
            lock,
            ..message
        }
    }

    pub(super) fn content(&self) -> Vec<u8> {
        lock(&self.0.state).content.clone()
    }

    pub(super) fn lies_in(&self, path: PathBuf) {
        let mut state = lock(&self.0.state);
        (state.path, state.reading) = (Some(path), None);
    }

    pub(super) fn instead(&self) -> Option<Decision> {
        lock(&self.0.state).instead.clone()
    }
}

/// Lock that stores the session's state before it completes the message.
///
/// A failure between the two repeats the message, with a state that may include it. The opposite order would
/// lose the state.
struct LockWithState {
    inner: Arc<dyn Lock>,
    shared: Arc<SharedSession>,
}

impl LockWithState {
    /// Stores the command's file if it has changed; `Fatal` if that can never work.
    async fn store(&self, give_up_at: Instant) -> Result<(), Failure> {
        let Some(path) = lock(&self.shared.state).path.clone() else {
            return Ok(());
        };
        let most = LARGEST_STATE.max(lock(&self.shared.state).content.len());
        // Read a hanging disk once, not with a new thread at each attempt.
        let reading = lock(&self.shared.state).reading.take();
        let reading = match reading {
            Some(reading) => Ok(reading),
            None => background_writer::spawn_job("state", move || read(&path, most)),
        };
        let found = match reading {
            Ok(mut reading) => {
                let found = before(give_up_at, &mut reading).await;
                let Some(found) = found else {
                    lock(&self.shared.state).reading = Some(reading);
                    return Err(Failure::Transient {
                        why: "the session's state cannot be stored: its disk does not answer"
                            .to_owned(),
                        retry_after: None,
                    });
                };
                found.unwrap_or_else(|why| Err(io::Error::other(why)))
            }
            Err((_no_thread, read)) => read(),
        };
        let (found, size) = found.map_err(|why| not_stored(&why))?;
        if found == lock(&self.shared.state).content {
            return Ok(());
        }
        if found.len() > LARGEST_STATE {
            return Err(not_stored(&io::Error::other(format!(
                "it has {size} bytes, and no more than 256 KiB are kept: store it elsewhere, and here a reference to it"
            ))));
        }
        self.shared.session.set_state(&found, give_up_at).await?;
        lock(&self.shared.state).content = found;
        Ok(())
    }
}

/// Describes the failure: a temporary refusal by the machine must not dead-letter the message.
fn not_stored(why: &io::Error) -> Failure {
    let of_the_moment = matches!(
        why.raw_os_error(),
        Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM | libc::EIO | libc::ESTALE)
    );
    let why = format!("the session's state cannot be stored: {why}");
    match of_the_moment {
        true => Failure::Transient {
            why,
            retry_after: None,
        },
        false => Failure::Fatal { why, denied: false },
    }
}

/// Reads up to one byte more than `most`. A removed file is an empty state; without its directory the state
/// is unknown.
fn read(path: &Path, most: usize) -> Left {
    let mut options = OpenOptions::new();
    // It may be a link to another user's file by now, or a pipe without a writer.
    let options = options
        .read(true)
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK);
    let file = match options.open(path) {
        Ok(file) => file,
        Err(why)
            if why.kind() == io::ErrorKind::NotFound && path.parent().is_some_and(Path::exists) =>
        {
            return Ok((Vec::new(), 0));
        }
        Err(why) => return Err(why),
    };
    let about = file.metadata()?;
    if !about.is_file() {
        return Err(io::Error::other("it is not a file any more: write into it"));
    }
    let mut state = Vec::new();
    file.take(most as u64 + 1).read_to_end(&mut state)?;
    Ok((state, about.len()))
}

#[async_trait]
impl Lock for LockWithState {
    async fn renew(&self, give_up_at: Instant) -> Result<(), Failure> {
        self.inner.renew(give_up_at).await
    }

    async fn settle(&self, settlement: &Settlement, give_up_at: Instant) -> Result<(), Failure> {
        if *settlement != Settlement::Complete {
            return self.inner.settle(settlement, give_up_at).await;
        }
        let instead = lock(&self.shared.state).instead.clone();
        let instead = match instead {
            Some(instead) => Some(instead),
            None => match self.store(give_up_at).await {
                Ok(()) => None,
                Err(Failure::Fatal { why, .. }) => {
                    // Without its state the message would be half done.
                    Some(Decision::dead_letter("StateNotStored", why))
                }
                Err(failure) => return Err(failure),
            },
        };
        lock(&self.shared.state).instead.clone_from(&instead);
        let instead = instead.and_then(|instead| instead.settlement);
        self.inner
            .settle(instead.as_ref().unwrap_or(settlement), give_up_at)
            .await
    }

    fn lasts(&self) -> Option<Duration> {
        self.inner.lasts()
    }

    async fn lost(&self) -> Failure {
        self.inner.lost().await
    }

    fn session(&self) -> Option<Arc<dyn Session>> {
        self.inner.session()
    }
}

#[cfg(test)]
mod tests;
