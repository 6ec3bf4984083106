//! `trafficcop work`: opens the queue, forks the guardians, and takes messages.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures::future::join_all;
use futures::stream::{FuturesUnordered, StreamExt as _};
use nix::errno::Errno;
use tokio::sync::{mpsc, watch};

use super::observer::{DRAINING, WorkerObserver};
use super::open::{directories, open, prepare};
use super::processor::{Done, MessageProcessor, ProcessorContext, idle_event};
use super::scheduler::{BATCH, Next, Scheduler, SchedulerConfig, Why};
use super::settle::{Outcome, Rules};
use crate::clock::Instant;
use crate::config::{self, Sessions, UsageError};
use crate::core::budget::ATTEMPT;
use crate::core::stop::Stop;
use crate::core::{Cause, Ending, Exit, Failure, WorkloadEvent};
use crate::exit::ExitAction;
use crate::guardian::{self, Guardian, Program, Setup, StopAsked};
use crate::queue::{Message, Queue};
use crate::report;
use crate::run::{no_guardian, not_runnable, refuse_unusable_script};
use crate::runtime::runtime;
use crate::serve;
use crate::signals::{SignalEvent, Signals};
use crate::status::REFUSED;

const CLOSING: Duration = Duration::from_secs(2);
const CLOCK_INTERVAL: Duration = Duration::from_secs(60);

/// Works on the messages of `config`'s queue. Call it while the process has one thread: it forks the
/// guardians.
///
/// # Errors
/// If the worker cannot start.
pub fn work(config: config::Work) -> anyhow::Result<ExitAction> {
    if let Some(errno) = not_runnable(&config.command) {
        // Not with the first message, which would be taken in vain.
        let why = Why::NotStarted {
            errno: errno as i32,
        };
        return Ok(said(&why, &config, None));
    }
    refuse_unusable_script(&config.command)?;
    // First: a worker whose --listen fails must not take messages.
    let listener = config
        .listen
        .as_ref()
        .map(serve::Listener::bind)
        .transpose()?;
    // Sends nothing: a connection may start a thread, and there must be none at the fork.
    let queue = open(&config)?;
    let sessions = config.source.sessions();
    let base = directories(&config)?;
    let guardians = fork_all(&config)?;
    report::context(report::Context {
        lock: queue.name().to_owned(),
        identity: config.identity.clone(),
        command: config::quoted(&config.command),
    });
    let Some(first) = guardians.first() else {
        return Err(UsageError::new("-j 0: no command could ever run: take 1 or more").into());
    };
    let contain = first.containment().to_string();
    tracing::info!(
        contain,
        "{} takes messages from {} once it answers, {} at the same time, containment {contain}",
        config.identity,
        queue.name(),
        config.concurrency
    );
    let observer = WorkerObserver::new(&config, queue.name(), first);
    if let Some(listener) = listener {
        observer.serve(server(listener, &*queue, &guardians)?);
    }
    // The first stop ends the taking, the second one everything.
    let (leaving, hurry) = (watch::Sender::new(false), watch::Sender::new(false));
    let context = ProcessorContext {
        queue: queue.name().to_owned(),
        rules: Rules::of(&config),
        renew_at: config.renew_at,
        stop_signal: config.stop_signal,
        stop_to: config.stop_to,
        kill_after: config.kill_after,
        base,
        in_directories: config.in_directories,
        sessions,
        may_begin: sessions.and(config.max_messages).map(AtomicU64::new),
        observer,
        delays: queue.delays(),
        leaving: leaving.subscribe(),
        hurry: hurry.subscribe(),
    };
    runtime()?.block_on(begin(&config, queue, context, guardians, leaving, hurry))
}

fn fork_all(config: &config::Work) -> anyhow::Result<Vec<Guardian>> {
    let fork = |_| {
        let programs = vec![Program::handler(config.command.clone())];
        let setup = Setup {
            withheld: config.withheld.clone(),
            left_behind: Some(config.kill_after),
            orphan_grace: config.source.sessions().map(|_| Sessions::GRACE_ON_LOSS),
            // A message's lock expires by itself, and soon.
            ..Setup::new(programs, config.contain, config.kill_after)
        };
        guardian::fork(setup).map_err(no_guardian)
    };
    (0..config.concurrency).map(fork).collect()
}

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
    config: &config::Work,
    queue: Arc<dyn Queue>,
    context: ProcessorContext,
    guardians: Vec<Guardian>,
    leaving: watch::Sender<bool>,
    hurry: watch::Sender<bool>,
) -> anyhow::Result<ExitAction> {
    let (mut signals, _lasting) = (Signals::listen()?, crate::lasting::keep());
    let observer = context.observer.clone();
    observer.begin(guardians.iter().map(Guardian::health_check).collect());
    let (mut posts, mut idle) = (Vec::new(), Vec::new());
    for (number, guardian) in guardians.into_iter().enumerate() {
        let (post, relay) = mpsc::unbounded_channel();
        posts.push(post);
        idle.push(MessageProcessor {
            number,
            handle: guardian.attend().map_err(no_guardian)?,
            signals: Signals::relayed(relay),
            lost: false,
        });
    }
    let prepared = prepare(&*queue, &mut signals, &mut idle, &observer).await;
    let terms = SchedulerConfig {
        concurrency: config.concurrency,
        max_messages: config.max_messages,
        idle_exit: config.idle_exit,
        grace: config.grace,
        auth_patience: config.auth_patience,
        // One session a request: a replaced request would go to the end of the line.
        batch: match context.sessions {
            Some(_) => 1,
            None => BATCH,
        },
        waits: queue.waits(),
    };
    let mut worker = Worker {
        // Not before: it counts the time without a message.
        scheduler: Scheduler::new(terms, config.seed, Instant::now()),
        queue: Arc::clone(&queue),
        context: Arc::new(context),
        idle,
        running: FuturesUnordered::new(),
        posts,
        hurry,
        leaving,
        last: None,
    };
    let ended = match prepared {
        Ok(None) => Ok(worker.run(&mut signals).await),
        Ok(Some(signal)) => Ok(Why::Stopped(signal)),
        Err(missing) => Err(missing),
    };
    // Before anything slow: the service manager sees it at once.
    observer.stops();
    queue.close(Instant::now() + CLOSING).await;
    let idle = worker.idle.into_iter();
    join_all(idle.map(|processor| processor.handle.dismiss())).await;
    let (leave, cause) = match ended {
        Ok(why) => (said(&why, config, worker.last.as_ref()), why.to_string()),
        Err(missing) => {
            let cause = missing.to_string();
            let error = anyhow::Error::from(missing);
            report::failure(&error);
            (ExitAction::of_error(&error), cause)
        }
    };
    observer.finish(&cause, leave);
    Ok(leave)
}

fn said(why: &Why, config: &config::Work, last: Option<&Done>) -> ExitAction {
    // Only with --once does the worker exit as its command did.
    let last = last.filter(|_| config.once && *why == Why::Enough);
    // The conflict status (0) is for contended locks.
    let leave = ExitAction::of(&ending(why, last), 0);
    let exit = leave.status();
    let event = "done";
    match why {
        Why::Stopped(_) | Why::Idle | Why::Enough => tracing::info!(event, exit, "{why}"),
        Why::NotStarted { errno } => {
            let why = report::not_started(*errno, &config::quoted(&config.command));
            tracing::error!(event, exit, "{why}");
        }
        Why::GuardianLost { .. }
        | Why::NoHandover { .. }
        | Why::CannotTake { .. }
        | Why::CannotSettle { .. } => {
            tracing::error!(event, exit, "{why}");
        }
    }
    leave
}

/// Returns the end in terms of the core, which has the exit statuses. `last`: the message of --once.
fn ending(why: &Why, last: Option<&Done>) -> Ending {
    let cause = match why {
        Why::Stopped(signal) => Cause::Stopped(*signal),
        Why::Idle | Why::Enough => Cause::CommandEnded,
        Why::NotStarted { errno } => Cause::NotStarted { errno: *errno },
        Why::NoHandover { .. } => Cause::NotStarted {
            errno: libc::EACCES,
        },
        Why::GuardianLost { .. } => Cause::GuardianLost,
        Why::CannotTake { why, denied } => Cause::Store {
            why: why.clone(),
            denied: *denied,
        },
        Why::CannotSettle { why } => Cause::Store {
            why: why.clone(),
            denied: false,
        },
    };
    let exit = match last {
        None => (cause == Cause::CommandEnded).then_some(Exit::Code(0)),
        Some(last) => last.exit.filter(|exit| match last.outcome {
            // The work may be done again: its exit does not count.
            Outcome::Lost | Outcome::Unconfirmed | Outcome::Unsettled => false,
            // Exit 0 of a command that was told to end is no success.
            _ => last.succeeded || *exit != Exit::Code(0),
        }),
    };
    let overlap = last.is_some_and(|last| last.overlap);
    Ending {
        cause,
        exit,
        overlap: overlap || *why == Why::GuardianLost { overlap: true },
        released: true,
    }
}

type Job = Pin<Box<dyn Future<Output = (MessageProcessor, Done)>>>;
type Stopping = Pin<Box<dyn Future<Output = ()>>>;
type Taking = Pin<Box<dyn Future<Output = Result<Vec<Message>, Failure>>>>;

struct Worker {
    scheduler: Scheduler,
    queue: Arc<dyn Queue>,
    context: Arc<ProcessorContext>,
    idle: Vec<MessageProcessor>,
    running: FuturesUnordered<Job>,
    posts: Vec<mpsc::UnboundedSender<SignalEvent>>,
    hurry: watch::Sender<bool>,
    leaving: watch::Sender<bool>,
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
            if let Some(left) = &self.context.may_begin {
                self.scheduler.may_begin(left.load(Ordering::Acquire));
            }
            // An unwanted request locks messages in vain.
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
                Next::Leave(why) => {
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
                    drop(taking.take());
                    taking = Some(Box::pin(async move { queue.take(most, until).await }));
                    continue;
                }
                Next::Wait(until) => until,
            };
            self.show();
            let taken = async { Some(taking.as_mut()?.await) };
            let stop = async {
                stopping.as_mut()?.await;
                Some(())
            };
            tokio::select! {
                // Signals first; finished messages before new ones, which need a free processor.
                biased;
                asked = signals.next() => self.asked(asked),
                Some((processor, done)) = self.running.next(), if !self.running.is_empty() => {
                    self.done(processor, done);
                }
                Some(taken) = taken => {
                    taking = None;
                    self.taken(taken);
                }
                Some(()) = stop => {
                    stopping = None;
                    stopped = true;
                    if self.queue.waits() {
                        self.scheduler.withdrawn();
                    }
                }
                event = idle_event(&mut self.idle) => self.on_event(&event),
                () = tokio::time::sleep(until.since(now).min(CLOCK_INTERVAL)) => {}
            }
        }
    }

    fn stop_the_queue(&self) -> Stopping {
        let queue = Arc::clone(&self.queue);
        Box::pin(async move { queue.stop(Instant::now() + ATTEMPT).await })
    }

    fn show(&self) {
        let state = match self.scheduler.running() {
            _ if self.scheduler.is_leaving() => DRAINING,
            0 if self.scheduler.is_refused() => REFUSED,
            0 => "waiting",
            _ => "working",
        };
        self.context.observer.enter(state, self.scheduler.running());
    }

    fn tell(&self, asked: &SignalEvent) {
        for post in &self.posts {
            let _ = post.send(asked.clone());
        }
    }

    fn asked(&mut self, asked: SignalEvent) {
        match asked {
            SignalEvent::Stop(signal) => match self.scheduler.asked_to_stop(Instant::now(), signal)
            {
                Stop::Requested => {
                    let running = self.scheduler.running();
                    tracing::info!("asked to stop: taking no more messages, finishing {running}");
                }
                Stop::AtOnce => {
                    tracing::info!("asked to stop at once");
                    // The end of the grace must not send the signal again.
                    self.scheduler.has_ended();
                    self.hurry.send_replace(true);
                    self.tell(&SignalEvent::Stop(signal));
                }
                Stop::Again => {}
            },
            // For all: the signal does not tell which command it is for.
            SignalEvent::Pass(_) => self.tell(&asked),
            // `work` does not listen to the platform's announcements.
            SignalEvent::Cordon(_) | SignalEvent::CommandStopping => {}
            SignalEvent::Pause => {
                if let Err(why) = guardian::stop_ourselves(StopAsked::of_a_signal()) {
                    tracing::warn!("cannot stop: {why}");
                }
            }
        }
    }

    /// An idle guardian that is lost must not get a message.
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
                let is_deleted = self.queue.is_deleted();
                let denied = match failure {
                    Failure::Fatal { denied, .. } => Some(denied),
                    _ => None,
                };
                match is_deleted {
                    true => self.scheduler.took_from_deleted(now),
                    false => self
                        .scheduler
                        .took_nothing(now, failure.to_string(), denied),
                }
                let is_leaving = self.scheduler.is_leaving();
                let observer = &self.context.observer;
                observer.takes_nothing(&failure, is_deleted, is_leaving);
                return;
            }
        };
        self.context.observer.takes();
        let mut count = 0;
        for message in messages {
            let Some(processor) = self.idle.pop() else {
                // More than requested: it comes again when its lock has expired.
                continue;
            };
            count += 1;
            let (context, leaving) = (Arc::clone(&self.context), self.scheduler.is_leaving());
            self.running
                .push(Box::pin(processor.work(message, context, leaving)));
        }
        self.scheduler.took(now, count);
    }

    fn done(&mut self, processor: MessageProcessor, done: Done) {
        let now = Instant::now();
        self.idle.push(processor);
        self.scheduler
            .session_done(now, done.ran, done.earlier, done.idle_since);
        if let Some(result) = &done.put_aside {
            self.scheduler.put_aside(now, done.taken, result.clone());
        }
        if done.lost {
            let overlap = done.overlap;
            self.scheduler.leave(now, Why::GuardianLost { overlap });
        }
        if let Some(why) = &done.no_handover {
            let why = why.clone();
            self.scheduler.leave(now, Why::NoHandover { why });
        }
        // ETIME: the deadline had passed at the start: no fault of the command.
        if let Some(errno) = done.errno.filter(|errno| *errno != Errno::ETIME as i32) {
            self.scheduler.leave(now, Why::NotStarted { errno });
        }
        if done.ran {
            self.last = Some(done);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_end_has_its_status() {
        let leave = |why: &Why, last: Option<&Done>| ExitAction::of(&ending(why, last), 0);
        assert_eq!(leave(&Why::Enough, None), ExitAction::Status(0));
        let (code, killed) = (|status| Some(Exit::Code(status)), Some(Exit::Signal(9)));
        for (outcome, exit, overlap, left) in [
            (Outcome::Completed, code(0), false, ExitAction::Status(0)),
            (Outcome::Retried, code(3), false, ExitAction::Status(3)),
            (
                Outcome::DeadLettered,
                code(65),
                false,
                ExitAction::Status(65),
            ),
            (Outcome::Retried, killed, false, ExitAction::Signal(9)),
            (Outcome::Retried, code(0), false, ExitAction::Status(70)),
            (Outcome::Unconfirmed, code(0), false, ExitAction::Status(70)),
            (Outcome::Lost, killed, false, ExitAction::Status(70)),
            (Outcome::Lost, killed, true, ExitAction::Status(71)),
            (Outcome::Completed, None, false, ExitAction::Status(70)),
            (Outcome::Expired, code(0), false, ExitAction::Status(0)),
            (Outcome::Expired, code(3), false, ExitAction::Status(3)),
        ] {
            let done = Done {
                ran: true,
                exit,
                succeeded: exit == code(0) && outcome != Outcome::Retried,
                outcome,
                errno: None,
                no_handover: None,
                lost: false,
                overlap,
                put_aside: None,
                taken: Instant::ZERO,
                earlier: 0,
                idle_since: None,
            };
            assert_eq!(leave(&Why::Enough, Some(&done)), left);
        }
        let why = || "403".to_owned();
        let errno = |errno| Why::NotStarted { errno };
        let lost = |overlap| Why::GuardianLost { overlap };
        let cannot_take = |denied| Why::CannotTake { why: why(), denied };
        for (cause, left) in [
            (Why::Idle, ExitAction::Status(0)),
            (Why::Stopped(15), ExitAction::Signal(15)),
            (errno(libc::ENOENT), ExitAction::Status(127)),
            (errno(libc::EACCES), ExitAction::Status(126)),
            (errno(libc::EAGAIN), ExitAction::Status(69)),
            (lost(false), ExitAction::Status(70)),
            (lost(true), ExitAction::Status(71)),
            (Why::CannotSettle { why: why() }, ExitAction::Status(69)),
            (Why::NoHandover { why: why() }, ExitAction::Status(126)),
            (cannot_take(true), ExitAction::Status(77)),
            (cannot_take(false), ExitAction::Status(69)),
        ] {
            assert_eq!(leave(&cause, None), left, "{cause:?}");
        }
    }
}
