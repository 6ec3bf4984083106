//! [`ConnectionTask`] keeps the one connection of a queue: makes it, gives credit, takes in what comes,
//! renews the token, and makes it anew when it has ended.
//!
//! One task, begun by the queue. It decides nothing about messages: what it cannot hand out it gives
//! back as it was.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};

use super::amqp::{Connection, Connector, Intake};
use super::error::{BUSY, BusError};
use super::lock::{FIRST_RENEWAL, Held, REQUEST, wall};
use super::shared::{Prefetch, SharedConnection, Taken};
use super::wire::Delivery;
use super::{CbsToken, CbsTokens};
use trafficcop_azure::before;
use trafficcop_azure::queue::{Lock as _, Message, Settlement};
use trafficcop_core::Failure;
use trafficcop_core::clock::Instant;

// For TCP, TLS, SASL, the token and five links: on a slow line a dozen round trips.
const CONNECT: Duration = Duration::from_secs(15);
// Between attempts to connect, at first and at most; what waits for a connection shortens it.
const PAUSE: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(30);
// A connection that lasted for so long was a good one.
const GOOD: Duration = Duration::from_secs(10);
// From one attempt to give a message back to the next, at first.
const REPEAT: Duration = Duration::from_millis(250);
// tokio's timers stand still while the machine sleeps, so the clock is looked at this often.
const LOOK: Duration = Duration::from_secs(10);

/// What the queue asks for.
pub(super) enum Instruction {
    /// Take no more, and give back what was not handed out.
    Stop(Instant, oneshot::Sender<()>),
    /// End it all.
    Close(Instant, oneshot::Sender<()>),
}

/// The task that keeps the connection.
pub(super) struct ConnectionTask {
    pub(super) connector: Connector,
    pub(super) tokens: Arc<dyn CbsTokens>,
    pub(super) audience: String,
    pub(super) shared: Arc<SharedConnection>,
    pub(super) prefetch: Arc<Prefetch>,
    pub(super) instructions: mpsc::Receiver<Instruction>,
}

impl ConnectionTask {
    /// Until the queue is closed, or dropped.
    pub(super) async fn run(mut self) {
        let mut pause = Duration::ZERO;
        loop {
            let began = Instant::now();
            let connected = tokio::select! {
                // A stop does not wait for a connection that may never come. The attempt that it
                // drops is made anew.
                biased;
                instruction = self.instructions.recv() => {
                    if self.without_connection(instruction) {
                        return;
                    }
                    continue;
                }
                connected = connect(&self.connector, &*self.tokens, &self.audience) => connected,
            };
            let error = match connected {
                Ok((connection, intake, token)) => {
                    // A new link has none.
                    self.prefetch.forget_credit();
                    self.shared.up(Arc::clone(&connection));
                    let Some(error) = self.serve(connection, intake, token).await else {
                        return;
                    };
                    tracing::debug!("the connection has ended: {}", error.why());
                    self.shared.down(error.clone());
                    // One that breaks at once again and again is no better than none.
                    if Instant::now().since(began) >= GOOD {
                        pause = Duration::ZERO;
                    }
                    error
                }
                Err(error) => {
                    tracing::debug!("cannot connect: {}", error.why());
                    self.shared.failed(error.clone());
                    // Only after a failure: one that broke is made anew at once, because locks run
                    // out meanwhile.
                    pause = pause.max(PAUSE);
                    error
                }
            };
            if self.rest(pause, error.is_busy()).await {
                return;
            }
            pause = (pause * 2).clamp(PAUSE, PAUSE_MAX);
        }
    }

    /// Waits before the next attempt to connect. Whether it is all over.
    async fn rest(&mut self, pause: Duration, busy: bool) -> bool {
        // Those whom a broken service cut off at the same moment must not come back at the same moment.
        let jitter = |of: Duration| of.mul_f64(0.5 + fastrand::f64() / 2.0);
        let began = Instant::now();
        let (mut soonest, mut until) = (began + jitter(pause.min(PAUSE)), began + jitter(pause));
        if busy {
            // A service that says that it is busy is not hurried by locks either: it would say so
            // again.
            soonest = soonest.max(began + BUSY);
            until = until.max(soonest);
        }
        loop {
            let now = Instant::now();
            if now >= until {
                return false;
            }
            tokio::select! {
                biased;
                instruction = self.instructions.recv() => if self.without_connection(instruction) {
                    return true;
                },
                // A lock cannot wait for long.
                () = self.shared.hurry.notified() => until = until.min(soonest),
                () = tokio::time::sleep(until.since(now).min(LOOK)) => {}
            }
        }
    }

    /// Does what can be done while there is no connection. Whether it is all over.
    fn without_connection(&self, instruction: Option<Instruction>) -> bool {
        match instruction {
            // What came by the last connection may still be here: it goes back by the next, if
            // there is one in time.
            Some(Instruction::Stop(by, done)) => {
                self.stop(by, done);
                false
            }
            Some(Instruction::Close(_, done)) => {
                // Whoever asked may have gone.
                let _ = done.send(());
                true
            }
            None => true,
        }
    }

    /// Does what there is to do, until the connection has ended: why; `None`: it was closed by us.
    async fn serve(
        &mut self,
        connection: Arc<Connection>,
        mut intake: Option<Intake>,
        token: CbsToken,
    ) -> Option<BusError> {
        let mut renew_at = renewal(&token, Instant::ZERO);
        let mut until = token.good_until;
        let mut authorising = None;
        loop {
            // Here, and not in an arm below: whatever woke us may have freed a slot or made a lock
            // old.
            if let Some(intake) = &mut intake
                && let Some((count, total)) = self.prefetch.missing()
            {
                // Before it is given: a lock can begin as soon as the service has it.
                let at = Instant::now();
                if let Err(error) = intake.let_come(total).await {
                    return Some(error);
                }
                self.prefetch.gave(count, at);
            }
            for taken in self.prefetch.old() {
                self.refresh(taken);
            }
            for taken in self.prefetch.surplus() {
                self.give_back(taken, Instant::now() + REQUEST);
            }
            let now = Instant::now();
            // Beside everything else: a token that takes its time must not keep messages from coming.
            if authorising.is_none() && now >= renew_at {
                authorising = Some(Box::pin(reauthorise(
                    Arc::clone(&self.tokens),
                    self.audience.clone(),
                    Arc::clone(&connection),
                )));
            }
            // What is under way wakes us by its end.
            let rest = match &authorising {
                Some(_) => LOOK,
                None => renew_at.since(now).min(LOOK),
            };
            let authorised = async { Some(authorising.as_mut()?.await) };
            let came = async { Some(intake.as_mut()?.next().await) };
            tokio::select! {
                biased;
                instruction = self.instructions.recv() => match instruction {
                    Some(Instruction::Stop(by, done)) => {
                        // First what is here: nothing else is sure.
                        let here = self.prefetch.close();
                        here.into_iter().for_each(|taken| self.give_back(taken, by));
                        if let Some(intake) = &mut intake {
                            self.drain(intake, by, &connection).await;
                        }
                        self.stop(by, done);
                    }
                    Some(Instruction::Close(by, done)) => {
                        drop(intake);
                        connection.close(by).await;
                        let _ = done.send(());
                        return None;
                    }
                    None => return None,
                },
                error = connection.ended() => return Some(error),
                Some(came) = came => match came {
                    Ok(delivery) => self.came(delivery, &connection),
                    Err(error) => return Some(error),
                },
                Some(authorised) = authorised => {
                    authorising = None;
                    match authorised {
                        // The old one is good until the service has taken the new one: nothing is
                        // cut in between.
                        Ok(token) => {
                            renew_at = renewal(&token, until);
                            until = token.good_until;
                        }
                        Err(error) => renew_at = self.unrenewed(&error, until),
                    }
                }
                () = self.prefetch.changed.notified() => {}
                () = tokio::time::sleep(rest) => {}
            }
        }
    }

    /// The token was not renewed, and is good `until` then: when that is tried again.
    fn unrenewed(&self, error: &BusError, until: Instant) -> Instant {
        let now = Instant::now();
        let left = until.since(now);
        tracing::warn!(
            "the token for {} is not renewed: {}; it is good for {} s, trying again",
            self.audience,
            error.why(),
            left.as_secs()
        );
        // Several attempts fit into what is left, and the last of them is no hot loop.
        let pause = (left / 4).clamp(PAUSE, PAUSE_MAX);
        now + if error.is_busy() {
            pause.max(BUSY)
        } else {
            pause
        }
    }

    /// A message came.
    fn came(&self, delivery: Delivery, connection: &Connection) {
        // Without credit it should not be here: how old its lock is cannot be said.
        let t0 = self.prefetch.came().unwrap_or(Instant::ZERO);
        let Some(lock) = delivery.lock else {
            tracing::warn!(
                "message {}: it has no lock token: giving it back",
                delivery.id
            );
            return connection.forget(delivery.ticket, &Settlement::Release);
        };
        let lock_duration = &self.shared.lock_duration;
        let lock_time = lock_duration.of(delivery.locked_until, wall(), Instant::now());
        let shared = Arc::clone(&self.shared);
        let held = Arc::new(Held::new(shared, lock, delivery.ticket, t0, lock_time));
        let taken = Taken {
            message: Message {
                id: delivery.id,
                attempt: delivery.attempt,
                t0,
                lock_time,
                first_renewal: Some(FIRST_RENEWAL),
                body: delivery.body,
                about: delivery.about,
                lock: Arc::clone(&held) as _,
            },
            held,
            renewed: false,
        };
        let now = Instant::now();
        if let Some(taken) = self.prefetch.put(taken, now) {
            self.give_back(taken, now + REQUEST);
        }
    }

    /// Renews the lock of a message that came too long ago to count on it.
    fn refresh(&self, mut taken: Taken) {
        let prefetch = Arc::clone(&self.prefetch);
        tokio::spawn(async move {
            let t0 = Instant::now();
            // An answer after half of it would leave the lock as old as before.
            let give_up_at = t0 + REQUEST.min(taken.message.lock_time / 2);
            match taken.held.relock(give_up_at).await {
                Ok(lock_time) => {
                    taken.message.t0 = t0;
                    taken.message.lock_time = lock_time;
                    taken.renewed = true;
                    let Some(taken) = prefetch.renewed(taken, Instant::now()) else {
                        return;
                    };
                    release(&taken, Instant::now() + REQUEST).await;
                }
                Err(Failure::Lost { why, .. }) => {
                    tracing::debug!(
                        "message {}: lost before its command started: {why}",
                        taken.message.id
                    );
                }
                // Nothing is begun under a doubtful lock: it goes back while that may still be
                // ours.
                Err(_) => release(&taken, Instant::now() + REQUEST).await,
            }
            prefetch.done();
        });
    }

    fn give_back(&self, taken: Taken, give_up_at: Instant) {
        let prefetch = Arc::clone(&self.prefetch);
        // Before the task begins: a stop that looks in between would find nobody busy, and not
        // wait.
        prefetch.begin();
        tokio::spawn(async move {
            release(&taken, give_up_at).await;
            prefetch.done();
        });
    }

    /// Lets nothing come any more on this connection, and gives back what comes until then. It takes
    /// no more than half of the time: what came wants to be settled as well.
    async fn drain(&self, intake: &mut Intake, until: Instant, connection: &Connection) {
        let now = Instant::now();
        let give_up_at = now + until.since(now) / 2;
        let left = self.prefetch.credit();
        let came = |delivery| self.came(delivery, connection);
        if let Err(error) = intake.drain(left, give_up_at, came).await {
            tracing::debug!("not drained: {}", error.why());
        }
    }

    /// Gives back what is here, and says so when that is done.
    fn stop(&self, until: Instant, done: oneshot::Sender<()>) {
        for taken in self.prefetch.close() {
            self.give_back(taken, until);
        }
        // In a task of its own: what is given back goes out by the loop that called us.
        let prefetch = Arc::clone(&self.prefetch);
        tokio::spawn(async move {
            prefetch.settled().await;
            // Whoever asked may have gone.
            let _ = done.send(());
        });
    }
}

/// Gives a message back as it was, as well as that can be done: what is not comes again by itself when
/// its lock has run out, only later.
async fn release(taken: &Taken, give_up_at: Instant) {
    let mut pause = REPEAT;
    while let Err(failure) = taken.held.settle(&Settlement::Release, give_up_at).await {
        tracing::debug!("message {}: not given back: {failure}", taken.message.id);
        if !matches!(failure, Failure::Transient { .. }) || Instant::now() + pause >= give_up_at {
            return;
        }
        tokio::time::sleep(pause).await;
        pause *= 2;
    }
}

/// A token, and a connection with it.
async fn connect(
    connector: &Connector,
    tokens: &dyn CbsTokens,
    audience: &str,
) -> Result<(Arc<Connection>, Option<Intake>, CbsToken), BusError> {
    let token = token(tokens, audience).await?;
    let connecting = connector.connect(&token, Instant::now() + CONNECT);
    let connected = connecting.await;
    let (connection, intake) =
        connected.inspect_err(|error| tell_of_refusal(tokens, &token, error))?;
    Ok((connection, intake, token))
}

async fn reauthorise(
    tokens: Arc<dyn CbsTokens>,
    audience: String,
    connection: Arc<Connection>,
) -> Result<CbsToken, BusError> {
    let token = token(&*tokens, &audience).await?;
    let authorised = connection.authorise(&token, Instant::now() + REQUEST).await;
    authorised.inspect_err(|error| tell_of_refusal(&*tokens, &token, error))?;
    Ok(token)
}

/// Whoever made the token hears that it was not taken: kept, it would be offered again for most of its time.
fn tell_of_refusal(tokens: &dyn CbsTokens, token: &CbsToken, error: &BusError) {
    // A status is had by what is asked of `$cbs` alone here: of a link it is the right that is missing.
    if let BusError::Refused {
        status: Some(401), ..
    } = error
    {
        tokens.refused(token);
    }
}

async fn token(tokens: &dyn CbsTokens, audience: &str) -> Result<CbsToken, BusError> {
    let token = before(Instant::now() + CONNECT, tokens.token(audience)).await;
    let late = || Err(BusError::Unsent("there is no token in time".into()));
    token.map_or_else(late, |token| token.map_err(|failure| untokened(&failure)))
}

/// There is no token.
fn untokened(failure: &Failure) -> BusError {
    let why = failure.to_string();
    match failure {
        Failure::Fatal { denied: true, .. } => {
            // As the service itself would say it: one rule makes of both the exit status 77.
            BusError::refused("amqp:unauthorized-access", Some(&why))
        }
        Failure::Fatal { denied: false, .. } => BusError::Unusable(why),
        _ => BusError::Unsent(why),
    }
}

/// When a token is renewed that follows one that was good `until` then: after 80 % of what is left of it.
fn renewal(token: &CbsToken, until: Instant) -> Instant {
    let now = Instant::now();
    // A ready-made signature stays what it is, and may have ended by our clock and not by the service's:
    // said again at once it would be said without a pause.
    let least = match token.good_until.since(until.max(now)) {
        gained if gained < PAUSE => PAUSE_MAX,
        _ => PAUSE,
    };
    // What is left is for attempts that fail: the service cuts the link when the token has ended.
    now + token.good_until.since(now).mul_f64(0.8).max(least)
}
