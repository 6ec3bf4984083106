//! `trafficcop work`: opens the queue, forks a guardian for each slot, and takes messages until it
//! is done.
//!
//! Called by main with a validated plan, while the process has one thread. What to do next is
//! decided by [`Desk`], what becomes of a message by [`super::settle`].

use std::future::{Future, pending};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use futures::stream::{FuturesUnordered, StreamExt as _};
use nix::errno::Errno;
use tokio::sync::{mpsc, watch};

use super::desk::{Desk, Next, Stop, Terms, Why};
use super::ending::{said, words};
use super::handover;
use super::notary::{DRAINING, Notary};
use super::open::open;
use super::preparing::{news_of, prepare};
use super::settle::Rules;
use super::slot::{Done, Shop, Slot};
use crate::clock::Instant;
use crate::core::Failure;
use crate::core::budget::ATTEMPT;
use crate::exit::ExitAction;
use crate::guardian::{self, Guardian, Program, Setup, StopAsked, WorkloadEvent};
use crate::plan::{self, UsageError};
use crate::queue::{Message, Queue};
use crate::report;
use crate::run::no_guardian;
use crate::runtime::runtime;
#[cfg(feature = "http")]
use crate::serve;
use crate::signals::{SignalEvent, Signals};

/// How long it may take to say farewell to a queue.
const CLOSING: Duration = Duration::from_secs(2);
/// The longest sleep between two looks at the clock: the runtime's stands still while the machine
/// sleeps.
const LONGEST_SLEEP: Duration = Duration::from_secs(60);

/// Works on the messages of `plan`'s queue.
///
/// To be called while the process has one thread: the guardians are forked in here.
///
/// # Errors
/// What kept us from starting at all: a [`UsageError`], what the queue said, or the machine.
pub fn work(plan: plan::Work) -> anyhow::Result<ExitAction> {
    let path = std::env::var_os("PATH");
    if let Some(program) = plan.command.first()
        && let Err(errno) = guardian::resolve(program, path.as_deref())
    {
        let why = Why::NotStarted {
            errno: errno as i32,
        };
        return Ok(said(&why, &plan, None));
    }
    #[cfg(feature = "http")]
    let listener = plan
        .listen
        .as_ref()
        .map(serve::Listener::bind)
        .transpose()?;
    let queue = open(&plan)?;
    let base = if plan.in_directories {
        let base = handover::base(std::env::var_os("TMPDIR")).map_err(UsageError::new)?;
        handover::sweep(&base);
        Some(base)
    } else {
        None
    };
    let guardians = fork(&plan)?;
    report::context(report::Context {
        lock: queue.name().to_owned(),
        identity: plan.identity.clone(),
        command: plan::quoted(&plan.command),
    });
    let Some(first) = guardians.first() else {
        return Err(UsageError::new("-j 0: nothing could ever be done: take 1 or more").into());
    };
    let contain = first.containment().to_string();
    tracing::info!(
        contain,
        "{} takes messages from {}, {} at once, containment {contain}",
        plan.identity,
        queue.name(),
        plan.concurrency
    );
    let notary = Notary::new(&plan, queue.name(), first);
    #[cfg(feature = "http")]
    if let Some(listener) = listener {
        notary.serve(server(listener, &*queue, &guardians)?);
    }
    let shop = Shop {
        queue: queue.name().to_owned(),
        rules: rules(&plan),
        renew_at: plan.renew_at,
        stop_signal: plan.stop_signal,
        kill_after: plan.kill_after,
        base,
        notary,
        delays: queue.delays(),
        leaving: watch::channel(false).1,
    };
    let runtime = runtime()?;
    let leave = runtime.block_on(begin(&plan, queue, shop, guardians));
    // A call that hangs must not keep us here.
    runtime.shutdown_background();
    leave
}

fn fork(plan: &plan::Work) -> anyhow::Result<Vec<Guardian>> {
    let fork = |_| {
        let guardian = guardian::fork(Setup {
            programs: vec![Program::handler(plan.command.clone())],
            contain: plan.contain,
            grace: plan.kill_after,
            on_orphaned: |_| {},
            withheld: plan.withheld.clone(),
        });
        guardian.map_err(no_guardian)
    };
    (0..plan.concurrency).map(fork).collect()
}

fn rules(plan: &plan::Work) -> Rules {
    Rules {
        max_attempts: plan.max_attempts,
        puts_aside: plan.source.puts_aside(),
        retry_delay: plan.retry_delay.0,
        retry_delay_max: plan.retry_delay.1,
        dead_letter_exit: plan.dead_letter_exit.clone(),
        retry_exit: plan.retry_exit.clone(),
        timeout: plan.timeout,
    }
}

/// Begins to answer over HTTP.
#[cfg(feature = "http")]
fn server(
    listener: serve::Listener,
    queue: &dyn Queue,
    guardians: &[Guardian],
) -> anyhow::Result<serve::Server> {
    use anyhow::Context as _;
    let missing = "--listen: there is no control file";
    let first = guardians.first().context(missing)?;
    let control = first.view().context(missing)?;
    let health_check = guardians.iter().map(Guardian::health_check).collect();
    let shared_status = serve::SharedStatus::of_worker(queue.name(), control, health_check);
    serve::Server::start(listener, shared_status).context("--listen: cannot start the server")
}

async fn begin(
    plan: &plan::Work,
    queue: Arc<dyn Queue>,
    mut shop: Shop,
    guardians: Vec<Guardian>,
) -> anyhow::Result<ExitAction> {
    let mut signals = Signals::listen()?;
    let (hurry, hurried) = watch::channel(false);
    let leaving;
    (leaving, shop.leaving) = watch::channel(false);
    let notary = shop.notary.clone();
    notary.begin(guardians.iter().map(Guardian::health_check).collect());
    let mut posts = Vec::new();
    let mut idle = Vec::new();
    for (number, guardian) in guardians.into_iter().enumerate() {
        let (post, relay) = mpsc::unbounded_channel();
        posts.push(post);
        idle.push(Slot {
            number,
            handle: guardian.attend().map_err(no_guardian)?,
            signals: Signals::relayed(relay),
            hurry: hurried.clone(),
            lost: false,
        });
    }
    let prepared = prepare(&*queue, &mut signals, &mut idle, &notary).await;
    let leave = match prepared {
        Ok(None) => {
            let terms = Terms {
                concurrency: plan.concurrency,
                max_messages: plan.max_messages,
                idle_exit: plan.idle_exit,
                grace: plan.grace,
                waits: queue.waits(),
            };
            let mut worker = Worker {
                desk: Desk::new(terms, plan.seed, Instant::now()),
                queue: Arc::clone(&queue),
                shop: Arc::new(shop),
                idle,
                running: FuturesUnordered::new(),
                posts,
                hurry,
                leaving,
                doubt: false,
                last: None,
            };
            let why = worker.run(&mut signals).await;
            notary.stops();
            queue.close(Instant::now() + CLOSING).await;
            join_all(worker.idle.into_iter().map(|slot| slot.handle.dismiss())).await;
            let leave = said(&why, plan, worker.last.as_ref());
            notary.finish(&words(&why), leave);
            leave
        }
        Ok(Some(signal)) => {
            notary.stops();
            queue.close(Instant::now() + CLOSING).await;
            join_all(idle.into_iter().map(|slot| slot.handle.dismiss())).await;
            let why = Why::Stopped(signal);
            let leave = said(&why, plan, None);
            notary.finish(&words(&why), leave);
            leave
        }
        Err(missing) => {
            notary.stops();
            queue.close(Instant::now() + CLOSING).await;
            join_all(idle.into_iter().map(|slot| slot.handle.dismiss())).await;
            let cause = missing.to_string();
            let error = anyhow::Error::from(missing);
            report::failure(&error);
            let leave = ExitAction::of_error(&error);
            notary.finish(&cause, leave);
            leave
        }
    };
    Ok(leave)
}

type Job = Pin<Box<dyn Future<Output = (Slot, Done)>>>;
type Stopping = Pin<Box<dyn Future<Output = ()>>>;
type Taking = Pin<Box<dyn Future<Output = Result<Vec<Message>, Failure>>>>;

/// Everything the loop has in its hands.
struct Worker {
    desk: Desk,
    queue: Arc<dyn Queue>,
    shop: Arc<Shop>,
    idle: Vec<Slot>,
    running: FuturesUnordered<Job>,
    /// By which each slot's message hears of signals.
    posts: Vec<mpsc::UnboundedSender<SignalEvent>>,
    hurry: watch::Sender<bool>,
    leaving: watch::Sender<bool>,
    /// The queue did not answer as hoped, and that was told.
    doubt: bool,
    /// The last message whose command was started.
    last: Option<Done>,
}

impl Worker {
    async fn run(&mut self, signals: &mut Signals) -> Why {
        let mut taking: Option<Taking> = None;
        let mut stopping: Option<Stopping> = None;
        let mut stopped = false;
        if self.idle.iter().any(|slot| slot.lost) {
            self.heard(&WorkloadEvent::Lost);
        }
        loop {
            let now = Instant::now();
            if self.queue.waits() && (self.desk.is_leaving() || !self.desk.is_taking()) {
                taking = None;
            }
            if self.desk.is_leaving() && stopping.is_none() && !stopped {
                self.leaving.send_replace(true);
                stopping = Some(self.stop_the_queue());
            }
            if let Some(signal) = self.desk.ends(now) {
                tracing::info!("the grace is over: stopping what still runs");
                self.tell(&SignalEvent::Stop(signal));
            }
            let until = match self.desk.next(now) {
                Next::ExitAction(why) => {
                    drop(taking.take());
                    if !stopped {
                        let stop = stopping.take();
                        stop.unwrap_or_else(|| self.stop_the_queue()).await;
                    }
                    return why;
                }
                Next::Take(most) => {
                    self.desk.takes(now, most);
                    let queue = Arc::clone(&self.queue);
                    let until = match queue.waits() {
                        true => self.desk.listens_until(now),
                        false => now + ATTEMPT.min(queue.lock_time() / 2),
                    };
                    // The one before goes first.
                    drop(taking.take());
                    taking = Some(Box::pin(async move { queue.take(most, until).await }));
                    continue;
                }
                Next::Wait(until) => until,
            };
            self.show();
            let taken = async {
                match &mut taking {
                    Some(taking) => taking.await,
                    None => pending().await,
                }
            };
            let stop = async {
                match &mut stopping {
                    Some(stopping) => stopping.await,
                    None => pending().await,
                }
            };
            tokio::select! {
                biased;
                asked = signals.next() => self.asked(asked),
                Some((slot, done)) = self.running.next(), if !self.running.is_empty() => {
                    self.done(slot, done);
                }
                taken = taken => {
                    taking = None;
                    self.taken(taken);
                }
                () = stop => {
                    stopping = None;
                    stopped = true;
                    if self.queue.waits() {
                        self.desk.withdrawn();
                    }
                }
                event = news_of(&mut self.idle) => self.heard(&event),
                () = tokio::time::sleep(until.since(now).min(LONGEST_SLEEP)) => {}
            }
        }
    }

    /// Tells the queue that no more messages are wanted.
    fn stop_the_queue(&self) -> Stopping {
        let queue = Arc::clone(&self.queue);
        Box::pin(async move { queue.stop(Instant::now() + ATTEMPT).await })
    }

    fn show(&self) {
        let state = match self.desk.running() {
            _ if self.desk.is_leaving() => DRAINING,
            0 => "waiting",
            _ => "working",
        };
        self.shop.notary.enter(state, self.desk.running());
    }

    fn tell(&self, asked: &SignalEvent) {
        for post in &self.posts {
            // A slot that is gone hears nothing.
            let _ = post.send(asked.clone());
        }
    }

    fn asked(&mut self, asked: SignalEvent) {
        match asked {
            SignalEvent::Stop(signal) => match self.desk.asked_to_stop(Instant::now(), signal) {
                Stop::Finish => {
                    let running = self.desk.running();
                    tracing::info!("asked to stop: taking no more messages, finishing {running}");
                }
                Stop::AtOnce => {
                    tracing::info!("asked to stop at once");
                    self.desk.has_ended();
                    self.hurry.send_replace(true);
                    self.tell(&SignalEvent::Stop(signal));
                }
                Stop::Again => {}
            },
            SignalEvent::Pass(_) => self.tell(&asked),
            // Nobody here listens to the platform.
            SignalEvent::Cordon(_) => {}
            // The commands go on under their deadlines.
            SignalEvent::Pause => {
                if let Err(why) = guardian::stop_ourselves(StopAsked::of_a_signal()) {
                    tracing::warn!("cannot stop: {why}");
                }
            }
        }
    }

    /// Of a guardian that has nothing to guard: without it we are not sound, and no message may
    /// come to it.
    fn heard(&mut self, event: &WorkloadEvent) {
        if *event == WorkloadEvent::Lost {
            tracing::error!("a guardian died or fell silent: taking no more messages");
            let why = Why::GuardianLost { overlap: false };
            self.desk.leave(Instant::now(), why);
        }
    }

    fn taken(&mut self, taken: Result<Vec<Message>, Failure>) {
        let now = Instant::now();
        let messages = match taken {
            Ok(messages) => messages,
            Err(failure) => {
                let denied = match failure {
                    Failure::Fatal { denied, .. } => Some(denied),
                    _ => None,
                };
                self.desk.took_nothing(now, failure.to_string(), denied);
                if !std::mem::replace(&mut self.doubt, true) && !self.desk.is_leaving() {
                    tracing::warn!("cannot take messages: {failure}; retrying");
                }
                self.shop
                    .notary
                    .doubts(Some(format!("cannot take messages: {failure}")));
                return;
            }
        };
        if std::mem::take(&mut self.doubt) {
            tracing::info!("the queue answers again");
            self.shop.notary.doubts(None);
        }
        let mut count = 0;
        for message in messages {
            let Some(slot) = self.idle.pop() else {
                // More than was asked for: it comes again when its lock has run out.
                continue;
            };
            count += 1;
            let shop = Arc::clone(&self.shop);
            self.running.push(if self.desk.is_leaving() {
                Box::pin(slot.give_back(message, shop))
            } else {
                Box::pin(slot.work(message, shop))
            });
        }
        self.desk.took(now, count);
    }

    fn done(&mut self, slot: Slot, done: Done) {
        let now = Instant::now();
        self.idle.push(slot);
        self.desk.done(now, done.ran);
        if let Some(result) = &done.put_aside {
            self.desk.put_aside(now, result.clone());
        }
        if done.lost {
            let overlap = done.overlap;
            self.desk.leave(now, Why::GuardianLost { overlap });
        }
        if let Some(why) = &done.no_handover {
            let why = why.clone();
            self.desk.leave(now, Why::NoHandover { why });
        }
        // The deadline had passed when it was to be started: that is nobody's fault.
        if let Some(errno) = done.errno.filter(|errno| *errno != Errno::ETIME as i32) {
            self.desk.leave(now, Why::NotStarted { errno });
        }
        if done.ran {
            self.last = Some(done);
        }
    }
}
