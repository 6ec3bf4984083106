//! `trafficcop work`: opens the queue, forks a guardian for each processor, and takes messages until it
//! is done.
//!
//! Called by main with a validated plan, while the process has one thread. What to do next is
//! decided by [`Scheduler`], what becomes of a message by [`super::settle`].

use std::future::{Future, pending};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use futures::stream::{FuturesUnordered, StreamExt as _};
use nix::errno::Errno;
use tokio::sync::{mpsc, watch};

use super::exit_status::{said, words};
use super::message_io;
use super::observer::{DRAINING, WorkerObserver};
use super::open::open;
use super::preparing::{news_of, prepare};
use super::processor::{Done, MessageProcessor, ProcessorContext};
use super::scheduler::{Next, Scheduler, SchedulerConfig, Stop, Why};
use super::settle::Rules;
use crate::clock::Instant;
use crate::config::{self, UsageError};
use crate::core::Failure;
use crate::core::budget::ATTEMPT;
use crate::exit::ExitAction;
use crate::guardian::{self, Guardian, Program, Setup, StopAsked, WorkloadEvent};
use crate::queue::{Message, Queue};
use crate::report;
use crate::run::no_guardian;
use crate::runtime::runtime;
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
pub fn work(plan: config::Work) -> anyhow::Result<ExitAction> {
    let path = std::env::var_os("PATH");
    if let Some(program) = plan.command.first()
        && let Err(errno) = guardian::which(program, path.as_deref())
    {
        let why = Why::NotStarted {
            errno: errno as i32,
        };
        return Ok(said(&why, &plan, None));
    }
    let listener = plan
        .listen
        .as_ref()
        .map(serve::Listener::bind)
        .transpose()?;
    let queue = open(&plan)?;
    let base = if plan.in_directories {
        let base = message_io::base(std::env::var_os("TMPDIR")).map_err(UsageError::new)?;
        message_io::sweep(&base);
        Some(base)
    } else {
        None
    };
    let guardians = fork(&plan)?;
    report::context(report::Context {
        lock: queue.name().to_owned(),
        identity: plan.identity.clone(),
        command: config::quoted(&plan.command),
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
    let observer = WorkerObserver::new(&plan, queue.name(), first);
    if let Some(listener) = listener {
        observer.serve(server(listener, &*queue, &guardians)?);
    }
    let context = ProcessorContext {
        queue: queue.name().to_owned(),
        rules: rules(&plan),
        renew_at: plan.renew_at,
        stop_signal: plan.stop_signal,
        kill_after: plan.kill_after,
        base,
        observer,
        delays: queue.delays(),
        leaving: watch::channel(false).1,
    };
    let runtime = runtime()?;
    let leave = runtime.block_on(begin(&plan, queue, context, guardians));
    // A call that hangs must not keep us here.
    runtime.shutdown_background();
    leave
}

fn fork(plan: &config::Work) -> anyhow::Result<Vec<Guardian>> {
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

fn rules(plan: &config::Work) -> Rules {
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
    let shared_status = serve::SharedStatus::new(queue.name(), true, None, control, health_check);
    serve::Server::start(listener, shared_status).context("--listen: cannot start the server")
}

async fn begin(
    plan: &config::Work,
    queue: Arc<dyn Queue>,
    mut context: ProcessorContext,
    guardians: Vec<Guardian>,
) -> anyhow::Result<ExitAction> {
    let mut signals = Signals::listen()?;
    let (hurry, hurried) = watch::channel(false);
    let leaving;
    (leaving, context.leaving) = watch::channel(false);
    let observer = context.observer.clone();
    observer.begin(guardians.iter().map(Guardian::health_check).collect());
    let mut posts = Vec::new();
    let mut idle = Vec::new();
    for (number, guardian) in guardians.into_iter().enumerate() {
        let (post, relay) = mpsc::unbounded_channel();
        posts.push(post);
        idle.push(MessageProcessor {
            number,
            handle: guardian.attend().map_err(no_guardian)?,
            signals: Signals::relayed(relay),
            hurry: hurried.clone(),
            lost: false,
        });
    }
    let prepared = prepare(&*queue, &mut signals, &mut idle, &observer).await;
    let leave = match prepared {
        Ok(None) => {
            let terms = SchedulerConfig {
                concurrency: plan.concurrency,
                max_messages: plan.max_messages,
                idle_exit: plan.idle_exit,
                grace: plan.grace,
                waits: queue.waits(),
            };
            let mut worker = Worker {
                scheduler: Scheduler::new(terms, plan.seed, Instant::now()),
                queue: Arc::clone(&queue),
                context: Arc::new(context),
                idle,
                running: FuturesUnordered::new(),
                posts,
                hurry,
                leaving,
                doubt: false,
                last: None,
            };
            let why = worker.run(&mut signals).await;
            observer.stops();
            queue.close(Instant::now() + CLOSING).await;
            join_all(
                worker
                    .idle
                    .into_iter()
                    .map(|processor| processor.handle.dismiss()),
            )
            .await;
            let leave = said(&why, plan, worker.last.as_ref());
            observer.finish(&words(&why), leave);
            leave
        }
        Ok(Some(signal)) => {
            observer.stops();
            queue.close(Instant::now() + CLOSING).await;
            join_all(idle.into_iter().map(|processor| processor.handle.dismiss())).await;
            let why = Why::Stopped(signal);
            let leave = said(&why, plan, None);
            observer.finish(&words(&why), leave);
            leave
        }
        Err(missing) => {
            observer.stops();
            queue.close(Instant::now() + CLOSING).await;
            join_all(idle.into_iter().map(|processor| processor.handle.dismiss())).await;
            let cause = missing.to_string();
            let error = anyhow::Error::from(missing);
            report::failure(&error);
            let leave = ExitAction::of_error(&error);
            observer.finish(&cause, leave);
            leave
        }
    };
    Ok(leave)
}

type Job = Pin<Box<dyn Future<Output = (MessageProcessor, Done)>>>;
type Stopping = Pin<Box<dyn Future<Output = ()>>>;
type Taking = Pin<Box<dyn Future<Output = Result<Vec<Message>, Failure>>>>;

/// Everything the loop has in its hands.
struct Worker {
    scheduler: Scheduler,
    queue: Arc<dyn Queue>,
    context: Arc<ProcessorContext>,
    idle: Vec<MessageProcessor>,
    running: FuturesUnordered<Job>,
    /// By which each processor's message hears of signals.
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
        if self.idle.iter().any(|processor| processor.lost) {
            self.on_event(&WorkloadEvent::Lost);
        }
        loop {
            let now = Instant::now();
            if self.queue.waits() && (self.scheduler.is_leaving() || !self.scheduler.is_taking()) {
                taking = None;
            }
            if self.scheduler.is_leaving() && stopping.is_none() && !stopped {
                self.leaving.send_replace(true);
                stopping = Some(self.stop_the_queue());
            }
            if let Some(signal) = self.scheduler.ends(now) {
                tracing::info!("the grace is over: stopping what still runs");
                self.tell(&SignalEvent::Stop(signal));
            }
            let until = match self.scheduler.next(now) {
                Next::ExitAction(why) => {
                    drop(taking.take());
                    if !stopped {
                        let stop = stopping.take();
                        stop.unwrap_or_else(|| self.stop_the_queue()).await;
                    }
                    return why;
                }
                Next::Take(most) => {
                    self.scheduler.takes(now, most);
                    let queue = Arc::clone(&self.queue);
                    let until = match queue.waits() {
                        true => self.scheduler.listens_until(now),
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
                Some((processor, done)) = self.running.next(), if !self.running.is_empty() => {
                    self.done(processor, done);
                }
                taken = taken => {
                    taking = None;
                    self.taken(taken);
                }
                () = stop => {
                    stopping = None;
                    stopped = true;
                    if self.queue.waits() {
                        self.scheduler.withdrawn();
                    }
                }
                event = news_of(&mut self.idle) => self.on_event(&event),
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
        let state = match self.scheduler.running() {
            _ if self.scheduler.is_leaving() => DRAINING,
            0 => "waiting",
            _ => "working",
        };
        self.context.observer.enter(state, self.scheduler.running());
    }

    fn tell(&self, asked: &SignalEvent) {
        for post in &self.posts {
            // A processor that is gone hears nothing.
            let _ = post.send(asked.clone());
        }
    }

    fn asked(&mut self, asked: SignalEvent) {
        match asked {
            SignalEvent::Stop(signal) => match self.scheduler.asked_to_stop(Instant::now(), signal)
            {
                Stop::Finish => {
                    let running = self.scheduler.running();
                    tracing::info!("asked to stop: taking no more messages, finishing {running}");
                }
                Stop::AtOnce => {
                    tracing::info!("asked to stop at once");
                    self.scheduler.has_ended();
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
    fn on_event(&mut self, event: &WorkloadEvent) {
        if *event == WorkloadEvent::Lost {
            tracing::error!("a guardian died or fell silent: taking no more messages");
            let why = Why::GuardianLost { overlap: false };
            self.scheduler.leave(Instant::now(), why);
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
                self.scheduler
                    .took_nothing(now, failure.to_string(), denied);
                if !std::mem::replace(&mut self.doubt, true) && !self.scheduler.is_leaving() {
                    tracing::warn!("cannot take messages: {failure}; retrying");
                }
                self.context
                    .observer
                    .doubts(Some(format!("cannot take messages: {failure}")));
                return;
            }
        };
        if std::mem::take(&mut self.doubt) {
            tracing::info!("the queue answers again");
            self.context.observer.doubts(None);
        }
        let mut count = 0;
        for message in messages {
            let Some(processor) = self.idle.pop() else {
                // More than was asked for: it comes again when its lock has run out.
                continue;
            };
            count += 1;
            let context = Arc::clone(&self.context);
            self.running.push(if self.scheduler.is_leaving() {
                Box::pin(processor.give_back(message, context))
            } else {
                Box::pin(processor.work(message, context))
            });
        }
        self.scheduler.took(now, count);
    }

    fn done(&mut self, processor: MessageProcessor, done: Done) {
        let now = Instant::now();
        self.idle.push(processor);
        self.scheduler.done(now, done.ran);
        if let Some(result) = &done.put_aside {
            self.scheduler.put_aside(now, result.clone());
        }
        if done.lost {
            let overlap = done.overlap;
            self.scheduler.leave(now, Why::GuardianLost { overlap });
        }
        if let Some(why) = &done.no_handover {
            let why = why.clone();
            self.scheduler.leave(now, Why::NoHandover { why });
        }
        // The deadline had passed when it was to be started: that is nobody's fault.
        if let Some(errno) = done.errno.filter(|errno| *errno != Errno::ETIME as i32) {
            self.scheduler.leave(now, Why::NotStarted { errno });
        }
        if done.ran {
            self.last = Some(done);
        }
    }
}
