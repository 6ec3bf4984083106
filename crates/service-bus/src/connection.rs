//! Task that keeps the one connection of a queue. It decides nothing about messages: those that it cannot hand
//! out go back unchanged.

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

// TCP, TLS, SASL, the token and five links: a dozen round trips on a slow line.
const CONNECT: Duration = Duration::from_secs(15);
// Pause between attempts to connect, at first and at most; a waiting caller shortens it.
const PAUSE: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(30);
const GOOD: Duration = Duration::from_secs(10);
// First pause between attempts to give a message back.
const REPEAT: Duration = Duration::from_millis(250);
// tokio's timers stop while the machine sleeps.
const CLOCK_INTERVAL: Duration = Duration::from_secs(10);

pub(super) enum Instruction {
    Stop(Instant, oneshot::Sender<()>),
    Close(Instant, oneshot::Sender<()>),
}

pub(super) struct ConnectionTask {
    pub(super) connector: Connector,
    pub(super) tokens: Arc<dyn CbsTokens>,
    pub(super) audience: String,
    pub(super) shared: Arc<SharedConnection>,
    pub(super) prefetch: Arc<Prefetch>,
    pub(super) instructions: mpsc::Receiver<Instruction>,
}

impl ConnectionTask {
    pub(super) async fn run(mut self) {
        let mut pause = Duration::ZERO;
        loop {
            let began = Instant::now();
            let connected = tokio::select! {
                // A stop does not wait for a connection that may never come.
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
                    // A new link has no credit.
                    self.prefetch.forget_credit();
                    self.shared.up(Arc::clone(&connection));
                    let Some(error) = self.serve(connection, intake, token).await else {
                        return;
                    };
                    tracing::debug!("the connection has ended: {}", error.why());
                    self.shared.down(error.clone());
                    // A connection that breaks at once again and again is no better than none.
                    if Instant::now().since(began) >= GOOD {
                        pause = Duration::ZERO;
                    }
                    error
                }
                Err(error) => {
                    tracing::debug!("cannot connect: {}", error.why());
                    self.shared.failed(error.clone());
                    // After a break reconnect at once: locks run out meanwhile.
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

    /// Waits before the next attempt. Returns whether the task is to end.
    async fn rest(&mut self, pause: Duration, busy: bool) -> bool {
        // Clients that a broken service cut off together must not come back together.
        let jitter = |of: Duration| of.mul_f64(0.5 + fastrand::f64() / 2.0);
        let began = Instant::now();
        let (mut soonest, mut until) = (began + jitter(pause.min(PAUSE)), began + jitter(pause));
        if busy {
            // A busy service would refuse again.
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
                () = self.shared.hurry.notified() => until = until.min(soonest),
                () = tokio::time::sleep(until.since(now).min(CLOCK_INTERVAL)) => {}
            }
        }
    }

    /// Follows an instruction without a connection. Returns whether the task is to end.
    fn without_connection(&self, instruction: Option<Instruction>) -> bool {
        match instruction {
            // The next connection gives back what is still here, if it comes in time.
            Some(Instruction::Stop(by, done)) => {
                self.stop(by, done);
                false
            }
            Some(Instruction::Close(_, done)) => {
                let _ = done.send(());
                true
            }
            None => true,
        }
    }

    /// Serves the connection until it has ended, and returns why; `None`: the queue closed it.
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
            // Here, not in an arm below: any event may have freed a slot or made a lock old.
            if let Some(intake) = &mut intake
                && let Some((count, total)) = self.prefetch.missing()
            {
                // First: a lock can begin as soon as the service has the credit.
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
            // In parallel: a slow token must not keep messages from coming.
            if authorising.is_none() && now >= renew_at {
                authorising = Some(Box::pin(reauthorise(
                    Arc::clone(&self.tokens),
                    self.audience.clone(),
                    Arc::clone(&connection),
                )));
            }
            let rest = match &authorising {
                Some(_) => CLOCK_INTERVAL,
                None => renew_at.since(now).min(CLOCK_INTERVAL),
            };
            let authorised = async { Some(authorising.as_mut()?.await) };
            let came = async { Some(intake.as_mut()?.next().await) };
            tokio::select! {
                biased;
                instruction = self.instructions.recv() => match instruction {
                    Some(Instruction::Stop(by, done)) => {
                        // First give back what is here: nothing else is certain.
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
                        Ok(token) => {
                            // Until the service has taken the new token, the old one is valid.
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

    /// Reports a failed renewal of the token, valid `until` then; returns the time of the next attempt.
    fn unrenewed(&self, error: &BusError, until: Instant) -> Instant {
        let now = Instant::now();
        let left = until.since(now);
        tracing::warn!(
            "the token for {} is not renewed: {}; it is good for {} s, trying again",
            self.audience,
            error.why(),
            left.as_secs()
        );
        // Several attempts fit into the rest, without a hot loop at its end.
        let pause = (left / 4).clamp(PAUSE, PAUSE_MAX);
        now + if error.is_busy() {
            pause.max(BUSY)
        } else {
            pause
        }
    }

    fn came(&self, delivery: Delivery, connection: &Connection) {
        // Without credit the age of its lock is unknown.
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

    fn refresh(&self, mut taken: Taken) {
        let prefetch = Arc::clone(&self.prefetch);
        tokio::spawn(async move {
            let t0 = Instant::now();
            // A later answer would leave the lock as old as before.
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
                // Nothing begins under a doubtful lock.
                Err(_) => release(&taken, Instant::now() + REQUEST).await,
            }
            prefetch.done();
        });
    }

    fn give_back(&self, taken: Taken, give_up_at: Instant) {
        let prefetch = Arc::clone(&self.prefetch);
        // Before the task begins: a stop in between must wait.
        prefetch.begin();
        tokio::spawn(async move {
            release(&taken, give_up_at).await;
            prefetch.done();
        });
    }

    /// Stops messages, and gives back those that still come. Takes at most half of the time: those have to be
    /// settled, too.
    async fn drain(&self, intake: &mut Intake, until: Instant, connection: &Connection) {
        let now = Instant::now();
        let give_up_at = now + until.since(now) / 2;
        let left = self.prefetch.credit();
        let came = |delivery| self.came(delivery, connection);
        if let Err(error) = intake.drain(left, give_up_at, came).await {
            tracing::debug!("not drained: {}", error.why());
        }
    }

    fn stop(&self, until: Instant, done: oneshot::Sender<()>) {
        for taken in self.prefetch.close() {
            self.give_back(taken, until);
        }
        // In a task: the calling loop sends what is given back.
        let prefetch = Arc::clone(&self.prefetch);
        tokio::spawn(async move {
            prefetch.settled().await;
            let _ = done.send(());
        });
    }
}

/// Gives a message back unchanged; if that fails, it comes again when its lock has run out.
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

/// Reports a refused token to its maker, which would otherwise offer it again.
fn tell_of_refusal(tokens: &dyn CbsTokens, token: &CbsToken, error: &BusError) {
    // Only `$cbs` gives a status here: a refused link lacks a right.
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

fn untokened(failure: &Failure) -> BusError {
    let why = failure.to_string();
    match failure {
        Failure::Fatal { denied: true, .. } => {
            // In the service's words: then one rule leads to exit status 77.
            BusError::refused("amqp:unauthorized-access", Some(&why))
        }
        Failure::Fatal { denied: false, .. } => BusError::Unusable(why),
        _ => BusError::Unsent(why),
    }
}

/// Returns the time to renew a token, whose predecessor is valid `until` then: after 80 % of what is left.
fn renewal(token: &CbsToken, until: Instant) -> Instant {
    let now = Instant::now();
    // A ready-made signature never changes. If it has ended by this machine's clock, and not by the service's,
    // it would be sent again and again.
    let least = match token.good_until.since(until.max(now)) {
        gained if gained < PAUSE => PAUSE_MAX,
        _ => PAUSE,
    };
    // The service cuts the link when the token has ended.
    now + token.good_until.since(now).mul_f64(0.8).max(least)
}
