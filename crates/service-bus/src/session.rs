//! A session that this worker holds. It must never count as held once the service may have given it to another
//! instance.
//!
//! # The lock lives on the link
//! As soon as the link of a session ends, the service gives the session to the next caller. So there is no
//! coming back: without its link a session is lost at once ([`Lock::lost`]).
//!
//! # Order
//! There is credit for one message at a time, and only after the previous one was settled. A message that was
//! given back is the next to come. If another one comes instead, the service is asked whether it is still there
//! (otherwise it was dead-lettered). If so, the other one goes back.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::{mpsc, oneshot, watch};

use super::amqp::Connection;
use super::error::BusError;
use super::frame_scanner::DeliveryState;
use super::lock::{FIRST_RENEWAL, REQUEST, unconfirmed, wall};
use super::session_link::{Reader, SessionLink, Want};
use super::shared::SharedConnection;
use super::stream::OF_SESSION;
use super::wire::{self, Delivery, LockToken};
use trafficcop_azure::before;
use trafficcop_azure::queue::{Closed, Lock, Message, Session, Settlement, turn};
use trafficcop_core::Failure;
use trafficcop_core::clock::Instant;
use trafficcop_core::retry::Backoff;
use trafficcop_core::util::lock;

// Longest wait for a session, and so the longest time to notice that the other end is dead.
const SESSION_TIMEOUT: Duration = Duration::from_secs(60);
const PAUSES: Backoff = Backoff::new(Duration::from_millis(250), Duration::from_secs(4));
// Time that the first message may be under way: the service gave the session because it has one.
const FIRST_MESSAGE: Duration = Duration::from_secs(5);

static LINKS: AtomicU64 = AtomicU64::new(0);

pub(super) type Accepted = (Arc<Connection>, SessionLink, Instant);

/// Accepts the next session that has messages; `None` if there was none in time.
pub(super) async fn accept(
    connection: Arc<Connection>,
    give_up_at: Instant,
) -> Result<Option<Accepted>, BusError> {
    let patience = give_up_at.since(Instant::now()).min(SESSION_TIMEOUT);
    let number = LINKS.fetch_add(1, Ordering::Relaxed);
    let name = format!("{}{OF_SESSION}{number}", connection.name);
    let link = connection.accept(name, patience).await?;
    Ok(link.map(|link| (connection, link, Instant::now())))
}

/// Returns the first message of an accepted session; `None` if another instance has it now, or it is empty.
pub(super) async fn take(
    (connection, link, taken): Accepted,
    shared: &Arc<SharedConnection>,
    max_body: usize,
) -> Option<Message> {
    let (wants, to_do) = mpsc::unbounded_channel();
    let (deliveries, came) = mpsc::unbounded_channel();
    let ended = watch::Sender::new(None);
    let held = Arc::new_cyclic(|me| HeldSession {
        me: me.clone(),
        id: link.id.clone(),
        link: link.name.clone(),
        taken,
        connection: Arc::clone(&connection),
        shared: Arc::clone(shared),
        wants,
        came: tokio::sync::Mutex::new(came),
        ended: ended.subscribe(),
        renewing: tokio::sync::Mutex::new(()),
        term: Mutex::new((Instant::ZERO, shared.lock_duration.at_first())),
        lasts: Mutex::new(None),
        given_back: Mutex::new(None),
    });
    let reader = Reader::new(link, connection, max_body, deliveries);
    tokio::spawn(reader.run(to_do, ended));
    // The service locked it at an unknown moment. So lock it anew, and count from here.
    let now = Instant::now();
    let first = async {
        held.renew(now + REQUEST).await?;
        held.next(Instant::now() + FIRST_MESSAGE).await
    };
    match first.await {
        Ok(Some(message)) => return Some(message),
        Ok(None) => tracing::debug!("session {}: there is nothing in it", held.id),
        Err(failure) => tracing::debug!("session {}: not started: {failure}", held.id),
    }
    held.close(Instant::now() + REQUEST).await;
    None
}

pub(super) struct HeldSession {
    me: std::sync::Weak<HeldSession>,
    id: String,
    link: String,
    taken: Instant,
    connection: Arc<Connection>,
    shared: Arc<SharedConnection>,
    wants: mpsc::UnboundedSender<Want>,
    came: tokio::sync::Mutex<mpsc::UnboundedReceiver<Delivery>>,
    ended: watch::Receiver<Option<String>>,
    renewing: tokio::sync::Mutex<()>,
    term: Mutex<(Instant, Duration)>,
    lasts: Mutex<Option<Duration>>,
    /// Number of the message that was given back last, and has not come again.
    given_back: Mutex<Option<i64>>,
}

impl HeldSession {
    /// Returns why it is lost. Also checks the connection, which can end before its reader knows.
    fn is_lost(&self) -> Option<Failure> {
        let why = self.ended.borrow().clone();
        let cut = || "its connection has ended".to_owned();
        let why = why.or_else(|| self.connection.has_ended().then(cut))?;
        Some(self.lost_by(&why))
    }

    fn lost_by(&self, why: &str) -> Failure {
        Failure::Lost {
            until: None,
            why: format!("the lock of session {} is gone: {why}", self.id),
        }
    }

    fn failure(&self, what: &str, error: &BusError) -> Failure {
        if error.is_lost() {
            return self.lost_by(&error.why());
        }
        self.is_lost().unwrap_or_else(|| error.doubt(what))
    }

    async fn ended(&self) -> Failure {
        let mut ended = self.ended.clone();
        let why = ended.wait_for(Option::is_some).await;
        let why = why.ok().and_then(|why| why.clone());
        self.lost_by(&why.unwrap_or_else(|| "its link is closed".to_owned()))
    }

    async fn renew(&self, give_up_at: Instant) -> Result<(), Failure> {
        let _turn = turn(&self.renewing, give_up_at).await?;
        if let Some(lost) = self.is_lost() {
            return Err(lost);
        }
        let (t0, sent) = (Instant::now(), wall());
        let renewing = self
            .connection
            .renew_session(&self.link, &self.id, give_up_at);
        match renewing.await {
            Ok(until) => {
                let lock_duration = &self.shared.lock_duration;
                let mut term = lock(&self.term);
                term.0 = t0;
                if until.is_some() {
                    term.1 = lock_duration.of(until, wall(), t0);
                }
                *lock(&self.lasts) = lock_duration.reported(until, sent);
                // If the link ended meanwhile, `lost` and the next call report that.
                Ok(())
            }
            Err(error) => {
                if error.is_lost() {
                    let (t0, length) = self.locked();
                    let lock_duration = &self.shared.lock_duration;
                    lock_duration.ended_early(t0, length, Instant::now());
                }
                Err(self.failure("the session's lock is not renewed", &error))
            }
        }
    }

    /// Settles a message on the link: without the link its token is useless.
    async fn dispose(
        &self,
        delivery: u32,
        how: &Settlement,
        give_up_at: Instant,
    ) -> Result<(), BusError> {
        // Before sending: the answer may come first.
        let mut expected = self.connection.state.expect_on(&self.link, delivery);
        let gone = || BusError::Unsent("the link is closed".into());
        let asked = self.wants.send(Want::Settle(how.clone()));
        asked.map_err(|_| gone())?;
        let said = async {
            tokio::select! {
                biased;
                said = expected.answer() => said.ok_or_else(gone),
                lost = self.ended() => Err(BusError::Unanswered(lost.to_string())),
            }
        };
        match before(give_up_at, said).await {
            Some(Ok(DeliveryState::Done)) => Ok(()),
            Some(Ok(DeliveryState::Refused(condition, text))) => {
                Err(BusError::refused(&condition, Some(&text)))
            }
            Some(Err(error)) => Err(error),
            None => Err(BusError::Unanswered("no answer to the disposition".into())),
        }
    }

    async fn settle(
        &self,
        lock: LockToken,
        how: &Settlement,
        give_up_at: Instant,
    ) -> Result<(), BusError> {
        let request = wire::settlement(lock, how, Some(&self.id))?;
        let asked = self.connection.ask(&self.link, request, give_up_at);
        asked.await.map(drop)
    }

    /// Whether it is this message's turn: no earlier one, which was given back, is still there.
    async fn is_next(&self, number: Option<i64>, give_up_at: Instant) -> Result<bool, Failure> {
        let given_back = *lock(&self.given_back);
        if let (Some(given_back), Some(number)) = (given_back, number)
            && number > given_back
        {
            let (link, id) = (&self.link, &self.id);
            let peeked = self
                .connection
                .peek_session(link, id, given_back, give_up_at);
            let peeked = peeked.await.map_err(|error| {
                self.failure(
                    "no answer to whether the message before it is there",
                    &error,
                )
            })?;
            // Otherwise the service has dead-lettered it by its own count.
            if peeked == Some(given_back) {
                return Ok(false);
            }
        }
        *lock(&self.given_back) = None;
        Ok(true)
    }

    async fn delivery(&self, give_up_at: Instant) -> Result<Option<Delivery>, Failure> {
        let mut came = turn(&self.came, give_up_at).await?;
        let _ = self.wants.send(Want::Message);
        tokio::select! {
            biased;
            lost = self.ended() => Err(lost),
            delivery = before(give_up_at, came.recv()) => match delivery {
                Some(Some(delivery)) => Ok(Some(delivery)),
                Some(None) => Err(self.ended().await),
                None => Ok(None),
            },
        }
    }
}

#[async_trait]
impl Session for HeldSession {
    fn id(&self) -> &str {
        &self.id
    }

    fn taken(&self) -> Instant {
        self.taken
    }

    fn locked(&self) -> (Instant, Duration) {
        *lock(&self.term)
    }

    async fn next(&self, give_up_at: Instant) -> Result<Option<Message>, Failure> {
        let mut pauses = PAUSES;
        let (delivery, number) = loop {
            let Some(delivery) = self.delivery(give_up_at).await? else {
                return Ok(None);
            };
            let number = delivery.about.properties.get("SequenceNumber");
            let number = number.and_then(|number| number.parse().ok());
            let by = Instant::now() + REQUEST;
            if self.is_next(number, by).await? {
                break (delivery, number);
            }
            // It came too early: give it back, until the earlier one is here again.
            let (ticket, release) = (delivery.ticket.delivery, &Settlement::Release);
            let released = self.dispose(ticket, release, by).await;
            released.map_err(|error| self.failure("a message is not given back", &error))?;
            tokio::time::sleep(pauses.next_pause()).await;
        };
        let (t0, lock_time) = self.locked();
        let Some(session) = self.me.upgrade() else {
            return Err(self.lost_by("it is not needed any more"));
        };
        Ok(Some(Message {
            id: delivery.id,
            attempt: delivery.attempt,
            t0,
            lock_time,
            first_renewal: Some(FIRST_RENEWAL),
            body: delivery.body,
            about: delivery.about,
            lock: Arc::new(HeldMessage {
                session,
                delivery: delivery.ticket.delivery,
                lock: delivery.lock,
                number,
                state: tokio::sync::Mutex::default(),
            }),
        }))
    }

    async fn state(&self, give_up_at: Instant) -> Result<Vec<u8>, Failure> {
        let asked = self
            .connection
            .session_state(&self.link, &self.id, give_up_at);
        let state = asked.await;
        let state =
            state.map_err(|error| self.failure("the session's state is not read", &error))?;
        Ok(state.unwrap_or_default())
    }

    async fn set_state(&self, state: &[u8], give_up_at: Instant) -> Result<(), Failure> {
        if let Some(lost) = self.is_lost() {
            return Err(lost);
        }
        let (link, id) = (&self.link, &self.id);
        let stored = self
            .connection
            .set_session_state(link, id, state, give_up_at);
        stored.await.map_err(|error| {
            let what = "the session's state is not stored";
            match self.failure(what, &error) {
                // It is probably too large.
                Failure::Transient { why, .. } if error.is_refused_for_good() => {
                    Failure::Fatal { why, denied: false }
                }
                failure => failure,
            }
        })
    }

    async fn close(&self, give_up_at: Instant) {
        let (done, waiting) = oneshot::channel();
        if self.wants.send(Want::Close(give_up_at, done)).is_ok() {
            before(give_up_at, waiting).await;
        }
    }
}

struct HeldMessage {
    session: Arc<HeldSession>,
    delivery: u32,
    lock: Option<LockToken>,
    number: Option<i64>,
    state: tokio::sync::Mutex<MessageState>,
}

#[derive(Default)]
struct MessageState {
    settling: bool,
    /// Whether the service has refused it on the link: its last answer there.
    refused: bool,
    closed: Option<Closed>,
}

#[async_trait]
impl Lock for HeldMessage {
    async fn renew(&self, give_up_at: Instant) -> Result<(), Failure> {
        // Even for a settled message: it is the session that is locked.
        self.session.renew(give_up_at).await
    }

    fn lasts(&self) -> Option<Duration> {
        *lock(&self.session.lasts)
    }

    async fn settle(&self, settlement: &Settlement, give_up_at: Instant) -> Result<(), Failure> {
        let mut state = turn(&self.state, give_up_at).await?;
        if let Some(closed) = &state.closed {
            return closed.settled_as(settlement);
        }
        let session = &self.session;
        if *settlement != Settlement::Release {
            let lost = session.is_lost();
            let by_token = self.lock.filter(|_| state.refused);
            let settling = async {
                match by_token {
                    Some(lock) => session.settle(lock, settlement, give_up_at).await,
                    None => session.dispose(self.delivery, settlement, give_up_at).await,
                }
            };
            let settled = match lost {
                Some(lost) => Err(lost),
                None => settling.await.map_err(|error| {
                    state.settling |= error.is_unclear();
                    state.refused |= matches!(error, BusError::Refused { .. });
                    session.failure("the message is not settled", &error)
                }),
            };
            if let Err(failure) = settled {
                return Err(match failure {
                    Failure::Lost { why, .. } if state.settling => {
                        let failure = unconfirmed(&why);
                        state.closed = Some(Closed::Failed(failure.clone()));
                        failure
                    }
                    failure => failure,
                });
            }
            if let Settlement::Retry(_) = settlement {
                *lock(&session.given_back) = self.number;
            }
        }
        // The end of the link is the release: so the attempt does not count.
        state.closed = Some(Closed::Settled(settlement.clone()));
        Ok(())
    }

    async fn lost(&self) -> Failure {
        self.session.ended().await
    }

    fn session(&self) -> Option<Arc<dyn Session>> {
        Some(Arc::clone(&self.session) as _)
    }
}
