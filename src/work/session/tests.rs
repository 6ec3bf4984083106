use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64};

use tokio::sync::{Notify, mpsc};

use super::*;
use crate::config::Sessions;
use crate::guardian::scripted::{Plays, Started, guardian};
use crate::signals::Signals;
use crate::work::scripted::{self, LOCK};

#[derive(Default)]
struct InMemory {
    /// Each with its next attempt.
    messages: Mutex<VecDeque<(&'static str, u32)>>,
    did: Mutex<Vec<String>>,
    state: Mutex<Vec<u8>>,
    /// `Ok` after the last.
    settlements: Mutex<VecDeque<Result<(), Failure>>>,
    states: Mutex<VecDeque<Result<(), Failure>>>,
    gone: Notify,
    /// The loss is reported when the next message is about to start.
    gone_by_the_next: AtomicBool,
    lock_time: Option<Duration>,
    /// A suspension of the worker when it next listens for a loss.
    standstill: Mutex<Duration>,
}

impl InMemory {
    fn of(messages: &[&'static str]) -> Arc<InMemory> {
        let messages = messages.iter().map(|id| (*id, 1)).collect();
        Arc::new(InMemory {
            messages: Mutex::new(messages),
            ..InMemory::default()
        })
    }

    fn does(&self, what: impl Into<String>) {
        lock(&self.did).push(what.into());
    }

    fn did(&self) -> Vec<String> {
        lock(&self.did).clone()
    }

    fn take(self: &Arc<Self>) -> Option<Message> {
        let (id, attempt) = lock(&self.messages).pop_front()?;
        Some(Message {
            lock: Arc::new(InSession {
                id,
                attempt,
                session: Arc::clone(self),
            }),
            ..scripted::message(id, attempt, b"body")
        })
    }
}

struct InSession {
    id: &'static str,
    attempt: u32,
    session: Arc<InMemory>,
}

#[async_trait]
impl Lock for InSession {
    async fn renew(&self, _: Instant) -> Result<(), Failure> {
        Ok(())
    }

    async fn settle(&self, settlement: &Settlement, _: Instant) -> Result<(), Failure> {
        let (id, session) = (self.id, &self.session);
        session.does(match settlement {
            Settlement::Complete => format!("{id} completed"),
            Settlement::Retry(_) => format!("{id} again"),
            Settlement::DeadLetter { reason, .. } => format!("{id} dead-lettered: {reason}"),
            Settlement::Release => format!("{id} released"),
        });
        lock(&session.settlements).pop_front().unwrap_or(Ok(()))?;
        if let Settlement::Retry(_) = settlement {
            lock(&session.messages).push_front((id, self.attempt + 1));
        }
        Ok(())
    }

    async fn lost(&self) -> Failure {
        let standstill = std::mem::take(&mut *lock(&self.session.standstill));
        std::thread::sleep(standstill);
        self.session.gone.notified().await;
        scripted::lost().expect_err("lost")
    }

    fn session(&self) -> Option<Arc<dyn Session>> {
        Some(Arc::new(InMemorySession(Arc::clone(&self.session))))
    }
}

struct InMemorySession(Arc<InMemory>);

#[async_trait]
impl Session for InMemorySession {
    fn id(&self) -> &str {
        "s-1"
    }

    fn taken(&self) -> Instant {
        Instant::ZERO
    }

    fn locked(&self) -> (Instant, Duration) {
        if self.0.gone_by_the_next.load(Ordering::Acquire) {
            self.0.gone.notify_one();
        }
        (Instant::now(), self.0.lock_time.unwrap_or(LOCK))
    }

    async fn next(&self, give_up_at: Instant) -> Result<Option<Message>, Failure> {
        let next = self.0.take();
        if next.is_none() {
            tokio::time::sleep(give_up_at.since(Instant::now())).await;
        }
        Ok(next)
    }

    async fn state(&self, _: Instant) -> Result<Vec<u8>, Failure> {
        Ok(lock(&self.0.state).clone())
    }

    async fn set_state(&self, state: &[u8], _: Instant) -> Result<(), Failure> {
        self.0
            .does(format!("state {}", String::from_utf8_lossy(state)));
        lock(&self.0.states).pop_front().unwrap_or(Ok(()))?;
        *lock(&self.0.state) = state.to_vec();
        Ok(())
    }

    async fn close(&self, _: Instant) {
        self.0.does("closed");
    }
}

fn leaves(started: &Started, state: &str) {
    let path = started.variable("TRAFFICCOP_SESSION_STATE_FILE");
    std::fs::write(path, state).expect("its state's file");
}

/// Works on the session, each command by `plays`. `leave` turns true when the worker is to stop.
async fn works(
    session: &Arc<InMemory>,
    messages: Option<u64>,
    plays: impl FnMut(&Started, &watch::Sender<bool>) -> Plays + Send + 'static,
) -> Done {
    works_of(session, messages, None, plays).await
}

async fn works_of(
    session: &Arc<InMemory>,
    messages: Option<u64>,
    may_begin: Option<u64>,
    mut plays: impl FnMut(&Started, &watch::Sender<bool>) -> Plays + Send + 'static,
) -> Done {
    let (leave, leaving) = watch::channel(false);
    let (_hurry, hurry) = watch::channel(false);
    let (_signals, relayed) = mpsc::unbounded_channel();
    let directory = tempfile::tempdir().expect("a directory");
    let of = Arc::clone(session);
    let handle = guardian(move |started| {
        let id = started.variable("TRAFFICCOP_MESSAGE_ID");
        of.does(format!("run {}", id.to_string_lossy()));
        plays(started, &leave)
    });
    let mut processor = MessageProcessor {
        number: 0,
        handle,
        signals: Signals::relayed(relayed),
        lost: false,
    };
    let context = ProcessorContext {
        base: Some(directory.path().to_owned()),
        sessions: Some(Sessions {
            idle: Duration::from_millis(20),
            messages,
            lock_delay: Duration::from_millis(20),
        }),
        may_begin: may_begin.map(AtomicU64::new),
        ..scripted::context(leaving, hurry)
    };
    let first = session.take().expect("a message");
    let held = first.lock.session().expect("a session");
    processor.work_session(held, first, &context, false).await
}

#[test]
fn lost_session_leaves_its_command_one_second_whatever_the_own_lock_delay_is() {
    let (_leave, leaving) = watch::channel(false);
    let (_hurry, hurry) = watch::channel(false);
    let context = ProcessorContext {
        sessions: Some(Sessions {
            idle: Duration::from_secs(10),
            messages: None,
            lock_delay: Duration::from_secs(60),
        }),
        ..scripted::context(leaving, hurry)
    };
    let message = Message {
        lock_time: Duration::from_secs(60),
        ..scripted::of_session("m")
    };
    let grace = context.budget(&message).grace_on_loss;
    assert_eq!(grace, Duration::from_secs(1));
}

#[tokio::test]
async fn failed_message_is_retried_before_the_next_and_finally_dead_lettered() {
    let session = InMemory::of(&["a", "b", "c"]);
    let mut runs = 0;
    let done = works(&session, None, move |_, _| {
        runs += 1;
        // `a` fails once, `b` always.
        Plays::Exits(if [1, 3, 4].contains(&runs) { 3 } else { 0 })
    })
    .await;
    let did = [
        "run a",
        "a again",
        "run a",
        "a completed",
        "run b",
        "b again",
        "run b",
        "b dead-lettered: CommandFailed",
        "run c",
        "c completed",
        "closed",
    ];
    assert_eq!(session.did(), did);
    assert_eq!(done.outcome, Outcome::Completed);
    assert_eq!(done.put_aside, Some(Ok(())), "b was dead-lettered");
    assert!(done.idle_since.is_some(), "the session waited for another");
    assert_eq!(done.earlier, 4, "before the last");
}

#[tokio::test]
async fn idle_session_is_given_up() {
    let session = InMemory::of(&["a"]);
    let began = Instant::now();
    let done = works(&session, None, |_, _| Plays::Exits(0)).await;
    assert_eq!(session.did(), ["run a", "a completed", "closed"]);
    let since = done.idle_since.expect("it was idle");
    assert!(since >= began && Instant::now() >= since + Duration::from_millis(20));
}

#[tokio::test]
async fn session_ends_after_session_messages() {
    let session = InMemory::of(&["a", "b", "c"]);
    let done = works(&session, Some(2), |_, _| Plays::Exits(0)).await;
    let did = ["run a", "a completed", "run b", "b completed", "closed"];
    assert_eq!(session.did(), did);
    assert_eq!(lock(&session.messages).len(), 1, "c was not taken");
    assert!(done.idle_since.is_none() && done.earlier == 1);
}

/// The session must not wait for a message that cannot start.
#[tokio::test]
async fn session_ends_after_max_messages() {
    let session = InMemory::of(&["a", "b", "c"]);
    let done = works_of(&session, None, Some(2), |_, _| Plays::Exits(0)).await;
    let did = ["run a", "a completed", "run b", "b completed", "closed"];
    assert_eq!(session.did(), did);
    assert_eq!(lock(&session.messages).len(), 1, "c was not taken");
    assert!(done.ran && done.earlier == 1);
}

#[tokio::test]
async fn failed_run_counts_towards_session_messages() {
    let session = InMemory::of(&["a", "b"]);
    works(&session, Some(1), |_, _| Plays::Exits(3)).await;
    assert_eq!(session.did(), ["run a", "a again", "closed"]);
}

#[tokio::test]
async fn stop_finishes_only_the_current_message() {
    let session = InMemory::of(&["a", "b"]);
    let done = works(&session, None, |_, leave| {
        leave.send_replace(true);
        Plays::Exits(0)
    })
    .await;
    assert_eq!(session.did(), ["run a", "a completed", "closed"]);
    assert_eq!(done.outcome, Outcome::Completed);
}

#[tokio::test]
async fn lost_lock_kills_the_command_and_settles_and_stores_nothing() {
    let session = InMemory::of(&["a", "b"]);
    let of = Arc::clone(&session);
    let done = works(&session, None, move |started, _| {
        leaves(started, "half");
        of.gone.notify_one();
        Plays::Lasts
    })
    .await;
    assert_eq!(session.did(), ["run a", "closed"]);
    assert_eq!(done.outcome, Outcome::Lost);
    assert!(lock(&session.state).is_empty());
}

#[tokio::test]
async fn changed_state_is_stored_before_its_message_is_completed() {
    let session = InMemory::of(&["a", "b", "c"]);
    *lock(&session.state) = b"zero".to_vec();
    works(&session, None, |started, _| {
        let path = started.variable("TRAFFICCOP_SESSION_STATE_FILE");
        let found = std::fs::read_to_string(path).expect("its state");
        match found.as_str() {
            "zero" => leaves(started, "one"),
            // `b` leaves it unchanged, `c` removes it.
            "one" if started.variable("TRAFFICCOP_MESSAGE_ID") == "c" => {
                std::fs::remove_file(path).expect("its file");
            }
            "one" => {}
            other => panic!("{other}"),
        }
        Plays::Exits(0)
    })
    .await;
    let did = [
        "run a",
        "state one",
        "a completed",
        "run b",
        "b completed",
        "run c",
        "state ",
        "c completed",
        "closed",
    ];
    assert_eq!(session.did(), did);
}

#[tokio::test]
async fn state_of_a_failed_command_is_not_stored() {
    let session = InMemory::of(&["a"]);
    *lock(&session.state) = b"zero".to_vec();
    let mut runs = 0;
    works(&session, None, move |started, _| {
        let path = started.variable("TRAFFICCOP_SESSION_STATE_FILE");
        assert_eq!(std::fs::read(path).expect("its state"), b"zero");
        leaves(started, "half");
        runs += 1;
        Plays::Exits(if runs == 1 { 3 } else { 0 })
    })
    .await;
    let did = [
        "run a",
        "a again",
        "run a",
        "state half",
        "a completed",
        "closed",
    ];
    assert_eq!(session.did(), did);
}

#[tokio::test]
async fn message_is_not_completed_if_its_state_is_not_stored() {
    let session = InMemory::of(&["a", "b"]);
    lock(&session.states).push_back(scripted::lost());
    let done = works(&session, None, |started, _| {
        leaves(started, "new");
        Plays::Exits(0)
    })
    .await;
    assert_eq!(session.did(), ["run a", "state new", "closed"]);
    assert_eq!(done.outcome, Outcome::Lost);
}

#[tokio::test]
async fn unstorable_state_dead_letters_its_message() {
    let session = InMemory::of(&["a", "b"]);
    lock(&session.states).push_back(scripted::refused());
    works(&session, None, |started, _| {
        if started.variable("TRAFFICCOP_MESSAGE_ID") == "a" {
            leaves(started, "new");
        }
        Plays::Exits(0)
    })
    .await;
    let did = [
        "run a",
        "state new",
        "a dead-lettered: StateNotStored",
        "run b",
        "b completed",
        "closed",
    ];
    assert_eq!(session.did(), did);
    assert!(lock(&session.state).is_empty());
}

/// The state is stored first: in the opposite order it could be lost for good.
#[tokio::test]
async fn lost_settlement_ends_the_session_and_keeps_the_state() {
    let session = InMemory::of(&["a", "b"]);
    lock(&session.settlements).push_back(scripted::lost());
    let done = works(&session, None, |started, _| {
        leaves(started, "new");
        Plays::Exits(0)
    })
    .await;
    assert_eq!(
        session.did(),
        ["run a", "state new", "a completed", "closed"]
    );
    assert_eq!(done.outcome, Outcome::Lost);
    assert_eq!(*lock(&session.state), b"new");
}

#[tokio::test]
async fn session_lost_during_its_lock_delay_runs_nothing() {
    let session = InMemory::of(&["a"]);
    session.gone.notify_one();
    let done = works(&session, None, |_, _| Plays::Exits(0)).await;
    assert_eq!(session.did(), ["closed"]);
    assert!(!done.ran && done.idle_since.is_none());
}

/// Stored by another client where the namespace allows more.
#[tokio::test]
async fn unchanged_oversized_state_is_no_error() {
    let session = InMemory::of(&["a", "b"]);
    *lock(&session.state) = vec![b'x'; LARGEST_STATE + 10];
    works(&session, None, |started, _| {
        if started.variable("TRAFFICCOP_MESSAGE_ID") == "b" {
            leaves(started, &"y".repeat(LARGEST_STATE + 10));
        }
        Plays::Exits(0)
    })
    .await;
    let did = [
        "run a",
        "a completed",
        "run b",
        "b dead-lettered: StateNotStored",
        "closed",
    ];
    assert_eq!(session.did(), did);
}

#[test]
fn temporary_read_error_of_a_state_is_transient() {
    let of = |errno| not_stored(&io::Error::from_raw_os_error(errno));
    for errno in [
        libc::EMFILE,
        libc::ENFILE,
        libc::ENOMEM,
        libc::EIO,
        libc::ESTALE,
    ] {
        assert!(matches!(of(errno), Failure::Transient { .. }), "{errno}");
    }
    // The command caused these.
    for errno in [libc::ELOOP, libc::ENXIO, libc::EACCES] {
        assert!(matches!(of(errno), Failure::Fatal { .. }), "{errno}");
    }
}

/// The loss may be reported between two messages, or while the files are written.
#[tokio::test]
async fn message_of_a_lost_session_is_not_started() {
    let mut session = InMemory::of(&["a", "b"]);
    let of = Arc::get_mut(&mut session).expect("one owner");
    of.gone_by_the_next = AtomicBool::new(true);
    let done = works(&session, None, |_, _| Plays::Exits(0)).await;
    assert_eq!(session.did(), ["closed"]);
    assert_eq!(done.outcome, Outcome::Lost);
    assert!(!done.ran);
}

/// Suspends the worker from its first command's end until the lock's time is over; `said`: the queue's answer
/// to the state.
async fn stands_still(said: Option<Result<(), Failure>>) -> Vec<String> {
    let lock_time = Duration::from_secs(2);
    let mut session = InMemory::of(&["a"]);
    let of = Arc::get_mut(&mut session).expect("one owner");
    of.lock_time = Some(lock_time);
    lock(&of.states).extend(said);
    let of = Arc::clone(&session);
    works(&session, None, move |started, _| {
        leaves(started, "new");
        *lock(&of.standstill) = lock_time + Duration::from_millis(100);
        Plays::Exits(0)
    })
    .await;
    session.did()
}

#[tokio::test]
async fn late_settlement_stores_the_state() {
    let did = ["run a", "state new", "a completed", "closed"];
    assert_eq!(stands_still(None).await, did);
}

#[tokio::test]
async fn late_settlement_with_an_unstorable_state_dead_letters() {
    let did = [
        "run a",
        "state new",
        "a dead-lettered: StateNotStored",
        "closed",
    ];
    assert_eq!(stands_still(Some(scripted::refused())).await, did);
}

#[tokio::test]
async fn hanging_disk_is_read_once_and_not_waited_for() {
    let session = InMemory::of(&["a"]);
    let message = session.take().expect("a message");
    let state = SessionState::new(&message.lock.session().expect("a session"), Vec::new());
    let message = state.with_lock(message);
    state.lies_in(PathBuf::from("/never/asked"));
    let (tell, told) = oneshot::channel();
    lock(&state.0.state).reading = Some(told);
    let complete = Settlement::Complete;
    for _ in 0..2 {
        let soon = Instant::now() + Duration::from_millis(20);
        let said = message.lock.settle(&complete, soon).await;
        assert!(matches!(said, Err(Failure::Transient { .. })), "{said:?}");
    }
    assert!(session.did().is_empty());
    tell.send(Ok((b"new".to_vec(), 3)))
        .expect("it is waited for");
    let said = message.lock.settle(&complete, Instant::FOREVER).await;
    assert_eq!(said, Ok(()));
    assert_eq!(session.did(), ["state new", "a completed"]);
}

#[test]
fn removed_state_is_empty_and_a_removed_directory_is_an_error() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("state");
    let found = read(&path, LARGEST_STATE).expect("its directory is there");
    assert_eq!(found, (Vec::new(), 0));
    directory.close().expect("it is removed");
    assert!(read(&path, LARGEST_STATE).is_err());
}
