//! Keeps the one connection: makes it, gives credit, takes in what comes, renews the token, and makes
//! it anew when it has ended.
//!
//! One task, begun by the queue. It decides nothing about messages: what it cannot hand out it gives
//! back as it was.

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};

use super::engine::{Connection, Delivery, Engine, Intake, Service};
use super::error::{BUSY, BusError};
use super::lock::{Held, Shared, wall};
use super::prefetch::{Prefetch, Taken};
use super::tokens::{CbsToken, CbsTokens};
use crate::azure::before;
use crate::clock::Instant;
use crate::core::Failure;
use crate::queue::{Lock as _, Settlement};

/// How long one attempt to connect may take.
const CONNECT: Duration = Duration::from_secs(15);
/// How long a request of our own may take.
const REQUEST: Duration = Duration::from_secs(5);
/// The pauses between attempts to connect, at first and at most.
const PAUSE: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(30);
/// A connection that lasted for so long was a good one.
const GOOD: Duration = Duration::from_secs(10);
/// From one attempt to give a message back to the next, at first.
const REPEAT: Duration = Duration::from_millis(250);
/// tokio's timers stand still while the machine sleeps, so the clock is looked at this often.
const LOOK: Duration = Duration::from_secs(10);

/// What the queue asks for.
pub(super) enum Instruction {
    /// Take no more, and give back what was not handed out.
    Stop(Instant, oneshot::Sender<()>),
    /// CloseSignal it all.
    Close(Instant, oneshot::Sender<()>),
}

/// See the module's text.
pub(super) struct ConnectionTask {
    pub(super) engine: Box<dyn Engine>,
    pub(super) tokens: Arc<dyn CbsTokens>,
    pub(super) audience: String,
    pub(super) shared: Arc<Shared>,
    pub(super) prefetch: Arc<Prefetch>,
    pub(super) orders: mpsc::Receiver<Instruction>,
}

/// How a connection ended.
enum Ended {
    Closed,
    Broken(BusError),
}

/// What wakes the connection task while there is a connection.
enum Woke {
    Ordered(Option<Instruction>),
    Ended(BusError),
    Came(Result<Delivery, BusError>),
    Authorised(Result<CbsToken, BusError>),
    Looked,
}

impl ConnectionTask {
    /// Until the queue is closed, or dropped.
    pub(super) async fn run(mut self) {
        let mut pause = Duration::ZERO;
        loop {
            let began = Instant::now();
            let connected = tokio::select! {
                biased;
                order = self.orders.recv() => match order {
                    Some(Instruction::Stop(until, done)) => {
                        self.stop(until, done);
                        continue;
                    }
                    Some(Instruction::Close(_, done)) => {
                        // Whoever asked may have gone.
                        let _ = done.send(());
                        return;
                    }
                    None => return,
                },
                connected = connect(&*self.engine, &*self.tokens, &self.audience) => connected,
            };
            let fault = match connected {
                Ok((connection, token)) => {
                    self.prefetch.forget_credit();
                    self.shared
                        .shared_connection
                        .up(Arc::clone(&connection.service));
                    match self.serve(connection, token).await {
                        Ended::Closed => return,
                        Ended::Broken(fault) => {
                            tracing::debug!("the connection has ended: {}", fault.why());
                            self.shared.shared_connection.down(fault.clone());
                            if Instant::now().since(began) >= GOOD {
                                pause = Duration::ZERO;
                            }
                            fault
                        }
                    }
                }
                Err(fault) => {
                    tracing::debug!("cannot connect: {}", fault.why());
                    self.shared.shared_connection.failed(fault.clone());
                    pause = pause.max(PAUSE);
                    fault
                }
            };
            if self.rest(pause, fault.is_busy()).await {
                return;
            }
            pause = (pause * 2).clamp(PAUSE, PAUSE_MAX);
        }
    }

    /// Waits before the next attempt to connect. Whether it is all over.
    async fn rest(&mut self, pause: Duration, busy: bool) -> bool {
        let jitter = |of: Duration| of.mul_f64(0.5 + fastrand::f64() / 2.0);
        let began = Instant::now();
        let (mut soonest, mut until) = (began + jitter(pause.min(PAUSE)), began + jitter(pause));
        if busy {
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
                order = self.orders.recv() => match order {
                    Some(Instruction::Stop(by, done)) => self.stop(by, done),
                    Some(Instruction::Close(_, done)) => {
                        let _ = done.send(());
                        return true;
                    }
                    None => return true,
                },
                // A lock cannot wait for long.
                () = self.shared.shared_connection.hurry.notified() => until = until.min(soonest),
                () = tokio::time::sleep(until.since(now).min(LOOK)) => {}
            }
        }
    }

    /// Does what there is to do, until the connection has ended.
    async fn serve(&mut self, connection: Connection, token: CbsToken) -> Ended {
        let Connection {
            service,
            mut intake,
        } = connection;
        let mut renew_at = renewal(&token);
        let mut until = token.good_until;
        let mut authorising = None;
        loop {
            if let Some((count, total)) = self.prefetch.missing() {
                let at = Instant::now();
                if let Err(fault) = intake.let_come(total).await {
                    return Ended::Broken(fault);
                }
                self.prefetch.gave(count, at);
            }
            self.prefetch
                .old()
                .into_iter()
                .for_each(|taken| self.refresh(taken));
            for taken in self.prefetch.surplus() {
                self.give_back(taken, Instant::now() + REQUEST);
            }
            let now = Instant::now();
            if authorising.is_none() && now >= renew_at {
                authorising = Some(Box::pin(reauthorise(
                    Arc::clone(&self.tokens),
                    self.audience.clone(),
                    Arc::clone(&service),
                )));
            }
            let authorised = async {
                match &mut authorising {
                    Some(authorising) => authorising.await,
                    None => pending().await,
                }
            };
            let woke = tokio::select! {
                biased;
                order = self.orders.recv() => Woke::Ordered(order),
                fault = service.ended() => Woke::Ended(fault),
                came = intake.next() => Woke::Came(came),
                authorised = authorised => Woke::Authorised(authorised),
                () = self.prefetch.changed.notified() => Woke::Looked,
                () = tokio::time::sleep(renew_at.since(now).min(LOOK)) => Woke::Looked,
            };
            match woke {
                Woke::Ordered(Some(Instruction::Stop(by, done))) => {
                    // First what is here: nothing else is sure.
                    let here = self.prefetch.close();
                    here.into_iter().for_each(|taken| self.give_back(taken, by));
                    self.drain(&mut *intake, by, &*service).await;
                    self.stop(by, done);
                }
                Woke::Ordered(Some(Instruction::Close(by, done))) => {
                    drop(intake);
                    service.close(by).await;
                    let _ = done.send(());
                    return Ended::Closed;
                }
                Woke::Ordered(None) => return Ended::Closed,
                Woke::Ended(fault) | Woke::Came(Err(fault)) => return Ended::Broken(fault),
                Woke::Came(Ok(delivery)) => self.came(delivery, &*service),
                Woke::Authorised(Ok(token)) => {
                    authorising = None;
                    renew_at = renewal(&token);
                    until = token.good_until;
                }
                Woke::Authorised(Err(fault)) => {
                    authorising = None;
                    let now = Instant::now();
                    let left = until.since(now);
                    tracing::warn!(
                        "the token for {} is not renewed: {}; it is good for {} s, trying again",
                        self.audience,
                        fault.why(),
                        left.as_secs()
                    );
                    let pause = (left / 4).clamp(PAUSE, PAUSE_MAX);
                    renew_at = now
                        + if fault.is_busy() {
                            pause.max(BUSY)
                        } else {
                            pause
                        };
                }
                Woke::Looked => {}
            }
        }
    }

    /// A message came.
    fn came(&self, delivery: Delivery, service: &dyn Service) {
        // Without credit it should not be here: how old its lock is cannot be said.
        let t0 = self.prefetch.came().unwrap_or(Instant::ZERO);
        let Some(taken) = self.taken(delivery, t0, service) else {
            return;
        };
        let now = Instant::now();
        if let Some(taken) = self.prefetch.put(taken, now) {
            self.give_back(taken, now + REQUEST);
        }
    }

    fn taken(&self, delivery: Delivery, t0: Instant, service: &dyn Service) -> Option<Taken> {
        let Some(lock) = delivery.lock else {
            tracing::warn!(
                "message {}: it has no lock token: giving it back",
                delivery.id
            );
            service.forget(delivery.ticket, &Settlement::Release);
            return None;
        };
        let lock_time = self.shared.lock_duration.of(delivery.locked_until, wall());
        let shared = Arc::clone(&self.shared);
        Some(Taken {
            id: delivery.id,
            attempt: delivery.attempt,
            body: delivery.body,
            about: delivery.about,
            held: Arc::new(Held::new(shared, lock, delivery.ticket, t0, lock_time)),
            t0,
            lock_time,
            renewed: false,
        })
    }

    /// Renews the lock of a message that came too long ago to count on it.
    fn refresh(&self, mut taken: Taken) {
        let prefetch = Arc::clone(&self.prefetch);
        tokio::spawn(async move {
            let t0 = Instant::now();
            let give_up_at = t0 + REQUEST.min(taken.lock_time / 2);
            match taken.held.relock(give_up_at).await {
                Ok(lock_time) => {
                    taken.t0 = t0;
                    taken.lock_time = lock_time;
                    taken.renewed = true;
                    let Some(taken) = prefetch.renewed(taken, Instant::now()) else {
                        return;
                    };
                    release(&taken, Instant::now() + REQUEST).await;
                }
                Err(Failure::Lost { why, .. }) => {
                    tracing::debug!("message {}: lost before it was begun: {why}", taken.id);
                }
                Err(_) => release(&taken, Instant::now() + REQUEST).await,
            }
            prefetch.done();
        });
    }

    fn give_back(&self, taken: Taken, give_up_at: Instant) {
        let prefetch = Arc::clone(&self.prefetch);
        prefetch.begin();
        tokio::spawn(async move {
            release(&taken, give_up_at).await;
            prefetch.done();
        });
    }

    /// Lets nothing come any more on this connection, and gives back what comes until then. It takes
    /// no more than half of the time: what came wants to be settled as well.
    async fn drain(&self, intake: &mut dyn Intake, until: Instant, service: &dyn Service) {
        let now = Instant::now();
        let give_up_at = now + until.since(now) / 2;
        let left = self.prefetch.credit();
        let mut came = |delivery| self.came(delivery, service);
        if let Err(fault) = intake.drain(left, give_up_at, &mut came).await {
            tracing::debug!("not drained: {}", fault.why());
        }
    }

    /// Gives back what is here, and says so when that is done.
    fn stop(&self, until: Instant, done: oneshot::Sender<()>) {
        for taken in self.prefetch.close() {
            self.give_back(taken, until);
        }
        let prefetch = Arc::clone(&self.prefetch);
        tokio::spawn(async move {
            prefetch.settled().await;
            // Whoever asked may have gone.
            let _ = done.send(());
        });
    }
}

/// Gives a message back as it was, as well as that can be done.
async fn release(taken: &Taken, give_up_at: Instant) {
    let mut pause = REPEAT;
    while let Err(failure) = taken.held.settle(&Settlement::Release, give_up_at).await {
        tracing::debug!("message {}: not given back: {failure}", taken.id);
        if !matches!(failure, Failure::Transient { .. }) || Instant::now() + pause >= give_up_at {
            return;
        }
        tokio::time::sleep(pause).await;
        pause *= 2;
    }
}

/// A token, and a connection with it.
async fn connect(
    engine: &dyn Engine,
    tokens: &dyn CbsTokens,
    audience: &str,
) -> Result<(Connection, CbsToken), BusError> {
    let token = token(tokens, audience).await?;
    let connection = engine.connect(&token, Instant::now() + CONNECT).await?;
    Ok((connection, token))
}

async fn reauthorise(
    tokens: Arc<dyn CbsTokens>,
    audience: String,
    service: Arc<dyn Service>,
) -> Result<CbsToken, BusError> {
    let token = token(&*tokens, &audience).await?;
    service.authorise(&token, Instant::now() + REQUEST).await?;
    Ok(token)
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
            BusError::refused("amqp:unauthorized-access", Some(&why))
        }
        Failure::Fatal { denied: false, .. } => BusError::HandOverReason(why),
        _ => BusError::Unsent(why),
    }
}

/// When a token is renewed: after 80 % of what is left of it.
fn renewal(token: &CbsToken) -> Instant {
    let now = Instant::now();
    now + token.good_until.since(now).mul_f64(0.8)
}
