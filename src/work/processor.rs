//! One message at a time, from the moment it was taken until it is settled.
//!
//! Run by the worker's loop, as many at once as there are slots, each with a guardian of its own
//! that serves one command after another. What the end of a command means is said by the table
//! ([`super::settle`]); when its command ends for want of a lock, by the core.

use std::future::pending;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use futures::stream::{FuturesUnordered, StreamExt as _};
use tokio::sync::watch;

use super::hand_over::{hand_over, removed};
use super::lease::MessageLease;
use super::message_io;
use super::observer::WorkerObserver;
use super::session::SessionState;
use super::settle::{Decision, Outcome, Rules};
use super::workload::{MessageWorkload, Progress};
use crate::clock::Instant;
use crate::config::Sessions;
use crate::core::{
    self, AUTH_PATIENCE, Budget, Cause, Ending, Exit, Failure, HoldPolicy, IfLost, Tenure,
    WorkloadEvent,
};
use crate::driver::drive;
use crate::guardian::{GuardianHandle, StopTo};
use crate::queue::{Message, Settlement};
use crate::report::MessageRow;
use crate::signals::Signals;
use crate::units;

/// What all slots go by.
pub(super) struct ProcessorContext {
    pub(super) queue: String,
    pub(super) rules: Rules,
    /// After how much of its time a lock is renewed, in per cent.
    pub(super) renew_at: u32,
    pub(super) stop_signal: i32,
    pub(super) stop_to: StopTo,
    pub(super) kill_after: Duration,
    /// Where directories are made, if there are to be any.
    pub(super) base: Option<PathBuf>,
    /// Messages are handed over in such; if not, on stdin.
    pub(super) in_directories: bool,
    /// How sessions are taken, if messages come in such.
    pub(super) sessions: Option<Sessions>,
    /// How many of their messages may still be begun, where that is limited.
    pub(super) may_begin: Option<AtomicU64>,
    pub(super) observer: WorkerObserver,
    /// The queue itself keeps a message away that is to be tried again.
    pub(super) delays: bool,
    /// Turns true when the worker takes no more messages.
    pub(super) leaving: watch::Receiver<bool>,
    /// Turns true when everything is to end at once.
    pub(super) hurry: watch::Receiver<bool>,
}

/// A guardian, and what its present message listens to.
pub(super) struct MessageProcessor {
    pub(super) number: usize,
    pub(super) handle: GuardianHandle,
    pub(super) signals: Signals,
    /// The guardian died while it had nothing to guard.
    pub(super) lost: bool,
}

/// How a message was done with, as far as the worker has to know.
pub(super) struct Done {
    pub(super) ran: bool,
    pub(super) exit: Option<Exit>,
    /// Its command did what it was to do, whatever became of the message.
    pub(super) succeeded: bool,
    pub(super) outcome: Outcome,
    /// The command cannot be started, for this error number.
    pub(super) errno: Option<i32>,
    /// It could not be handed over to a command.
    pub(super) no_handover: Option<String>,
    /// There is no guardian any more.
    pub(super) lost: bool,
    pub(super) overlap: bool,
    /// Whether it could be settled, where the worker must not go on without that.
    pub(super) put_aside: Option<Result<(), String>>,
    /// When it was asked for.
    pub(super) taken: Instant,
    /// How many messages of its session were begun before it.
    pub(super) earlier: u64,
    /// Since when its session has had none.
    pub(super) idle_since: Option<Instant>,
}

impl MessageProcessor {
    /// Works on this message until it is done with; when we are `leaving` it is given back.
    pub(super) async fn work(
        mut self,
        message: Message,
        context: Arc<ProcessorContext>,
        leaving: bool,
    ) -> (MessageProcessor, Done) {
        let done = match message.lock.session() {
            Some(session) => self.work_session(session, message, &context, leaving).await,
            None => {
                let held = context.lease(&message);
                self.one(message, held, None, &context, leaving).await
            }
        };
        (self, done)
    }

    /// One message, until it is settled; when we are `leaving` it is given back.
    pub(super) async fn one(
        &mut self,
        message: Message,
        held: Arc<MessageLease>,
        state: Option<&SessionState>,
        context: &ProcessorContext,
        leaving: bool,
    ) -> Done {
        let not_run = match &message.body {
            // It was on its way when the stop came: begun now, it would cost its whole grace.
            _ if leaving => Some(Decision::release("WorkerStopped")),
            Err(why) => {
                let detail = why.detail.clone();
                Some(context.rules.put_aside(message.attempt, why.reason, detail))
            }
            Ok(_) => context.rules.before_running(message.attempt),
        };
        match not_run {
            Some(decision) => self.settle(&message, &held, decision, context).await,
            None => self.run(message, held, state, context).await,
        }
    }

    /// Settles a message without running anything.
    async fn settle(
        &mut self,
        message: &Message,
        held: &MessageLease,
        decision: Decision,
        context: &ProcessorContext,
    ) -> Done {
        if let Some(delay) = context.keeps_away(decision.settlement.as_ref()) {
            let budget = context.budget(message);
            let leaving = context.leaving.clone();
            self.meanwhile(held.retry_after(delay, &budget, leaving))
                .await;
        } else if let Some(settlement) = &decision.settlement {
            // Its result is kept.
            let _ = self.meanwhile(held.settle(settlement)).await;
        }
        let whose = Whose::of(message);
        self.done(&whose, held, decision, None, context)
    }

    async fn run(
        &mut self,
        message: Message,
        held: Arc<MessageLease>,
        state: Option<&SessionState>,
        context: &ProcessorContext,
    ) -> Done {
        let whose = Whose::of(&message);
        let (id, attempt) = (whose.id.clone(), whose.attempt);
        let budget = context.budget(&message);
        let env = message_io::environment(&context.queue, &message, context.rules.max_attempts);
        // The guardian has to be answered meanwhile: a disk can take longer than its patience.
        let message_io = match self.meanwhile(hand_over(message, state, context)).await {
            Ok(message_io) => message_io,
            Err(why) => {
                let is_leaving = *context.leaving.borrow();
                let decision = Decision::release(match is_leaving {
                    // It was on its way when the stop came, as in `one`.
                    true => "WorkerStopped",
                    false => {
                        tracing::error!(
                            "message {id}: cannot be handed over: {why}; giving it back"
                        );
                        "NoHandover"
                    }
                });
                let _ = self.meanwhile(held.settle(&Settlement::Release)).await;
                return Done {
                    no_handover: (!is_leaving).then(|| why.to_string()),
                    ..self.done(&whose, &held, decision, None, context)
                };
            }
        };
        if context.rules.at_most_once
            && let Some(decision) = self.settle_first(&whose.id, &held, context).await
        {
            if message_io.is_on_disk() {
                self.meanwhile(removed(message_io)).await;
            }
            return self.done(&whose, &held, decision, None, context);
        }
        // Its time began with the request that took it: what the disk has used is not added.
        let tenure = Tenure::new(context.tenure(budget), Instant::now());
        let mut message_observer =
            context
                .observer
                .message_observer(&id, whose.session.as_deref(), self.number);
        let mut workload = MessageWorkload {
            handle: &mut self.handle,
            hurry: context.hurry.clone(),
            context,
            held: Arc::clone(&held),
            attempt,
            env,
            message_io,
            notify_socket: context.observer.notify_socket(self.number),
            progress: Progress::default(),
        };
        let ending = drive(
            tenure,
            Arc::clone(&held) as _,
            &mut workload,
            &mut self.signals,
            &mut message_observer,
            None,
        )
        .await;
        let MessageWorkload {
            progress,
            message_io,
            ..
        } = workload;
        // Nothing was given back: that is said by the ending.
        let mut decision = progress.decision.clone().unwrap_or_else(|| {
            if progress.stuck {
                return Decision::nothing("CannotBeKilled");
            }
            if progress.lost {
                return Decision::nothing("LockLost");
            }
            context.rules.decide(&super::settle::Run {
                attempt,
                cause: Some(&ending.cause),
                exit: ending.exit,
                timed_out: progress.timed_out,
            })
        });
        if context.rules.at_most_once {
            decision = decision.completed_before();
        }
        // We stood still, and its lock's time was over before it could be settled: the queue knows whether it
        // is ours all the same. What is to be kept away is settled below.
        if progress.decision.is_none()
            && ending.cause == Cause::CommandEnded
            && held.result().is_none()
            && context.keeps_away(decision.settlement.as_ref()).is_none()
            && let Some(settlement) = &decision.settlement
        {
            // Its result is kept.
            let _ = self.meanwhile(held.settle(settlement)).await;
        }
        // Not before: files can take their time, the message is settled by now, and a session's state is
        // stored from one of them.
        if message_io.is_on_disk() {
            self.meanwhile(removed(message_io)).await;
        }
        // It was settled in another way than was decided.
        if let Some(instead) = state.and_then(SessionState::instead) {
            decision = instead;
        }
        if let Some(delay) = context.keeps_away(decision.settlement.as_ref())
            && held.result().is_none()
        {
            if !delay.is_zero() && !*context.leaving.borrow() {
                let span = units::show(delay);
                let id = crate::report::plain(&id);
                tracing::info!("message {id}: it failed; kept for {span}, then it may come again");
            }
            let leaving = context.leaving.clone();
            self.meanwhile(held.retry_after(delay, &budget, leaving))
                .await;
        }
        self.done(&whose, &held, decision, Some((&progress, &ending)), context)
    }

    /// Completes the message before its command, and returns the decision where the command must not start.
    ///
    /// The command runs at most once, because a message is completed at most once: its receipt, or lock token,
    /// is this worker's alone, and the queue takes it only while no other worker was given the message. So what
    /// is in doubt is asked again, and what stays in doubt starts nothing: then the message may be lost.
    async fn settle_first(
        &mut self,
        id: &str,
        held: &MessageLease,
        context: &ProcessorContext,
    ) -> Option<Decision> {
        // It can still be given back.
        if *context.leaving.borrow() {
            let _ = self.meanwhile(held.settle(&Settlement::Release)).await;
            return Some(Decision::release("WorkerStopped"));
        }
        let result = self.meanwhile(held.settle(&Settlement::Complete)).await;
        let decision = Decision::not_started(&result, held.is_gone());
        if decision.is_none() {
            let id = crate::report::plain(id);
            tracing::info!(
                message_id = &*id,
                "message {id}: gone from the queue; starting its command, for the first and last time"
            );
        }
        decision
    }

    /// Waits for this. Meanwhile somebody has to answer whether the guardian is well.
    pub(super) async fn meanwhile<T>(&mut self, what: impl Future<Output = T>) -> T {
        let mut what = pin!(what);
        loop {
            tokio::select! {
                biased;
                done = &mut what => return done,
                event = self.handle.next_event() => self.lost |= event == WorkloadEvent::Lost,
            }
        }
    }

    /// Tells people, and the worker.
    fn done(
        &self,
        whose: &Whose,
        held: &MessageLease,
        decision: Decision,
        ran: Option<(&Progress, &Ending)>,
        context: &ProcessorContext,
    ) -> Done {
        let result = held.result();
        let asked = decision.settlement.is_some();
        // What was decided is a wish; what the queue said of it is what became of the message.
        let outcome = match outcome(decision.outcome, asked, result.as_ref()) {
            Outcome::Completed | Outcome::Retried | Outcome::Released if held.is_gone() => {
                Outcome::Expired
            }
            outcome => outcome,
        };
        let detail = match (&result, &decision.settlement) {
            (Some(Err(why)), _) => Some(why.to_string()),
            (_, Some(Settlement::DeadLetter { detail, .. })) => Some(detail.clone()),
            _ => None,
        };
        let progress = ran.map(|(progress, _)| progress);
        let ending = ran.map(|(_, ending)| ending);
        let exit = progress.and_then(|progress| progress.exit);
        let overlap = ending.is_some_and(|ending| ending.overlap);
        context.observer.message(&MessageRow {
            id: crate::report::plain(&whose.id),
            session: whose.session.as_deref().map(crate::report::plain),
            attempt: whose.attempt,
            outcome: outcome.word(),
            reason: decision.reason.map(str::to_owned),
            detail: detail.as_deref().map(crate::report::plain),
            exit: exit.map(Exit::as_status),
            duration: progress.and_then(Progress::duration),
            renewals: held.renewals(),
            overlap,
        });
        let cannot = match decision.settlement {
            Some(Settlement::DeadLetter { .. }) => Some("messages cannot be dead-lettered"),
            // Each message that is taken while that is so may be lost, or comes too often.
            Some(Settlement::Complete) | None if context.rules.at_most_once => {
                Some("messages cannot be settled before their commands start")
            }
            _ => None,
        };
        let put_aside = match (cannot, &result) {
            // Another worker has it, and will see to it.
            (Some(_), Some(Ok(()) | Err(Failure::Lost { .. }))) => Some(Ok(())),
            (Some(cannot), Some(Err(why))) => Some(Err(format!("{cannot}: {why}"))),
            _ => None,
        };
        let cause = ending.map(|ending| &ending.cause);
        Done {
            ran: progress.is_some_and(Progress::ran),
            exit,
            succeeded: decision.outcome == Outcome::Completed,
            outcome,
            errno: progress.and_then(|progress| progress.errno),
            no_handover: None,
            // One that cannot be killed keeps its guardian: no message may come to it any more.
            lost: self.lost
                || matches!(cause, Some(Cause::GuardianLost))
                || progress.is_some_and(|progress| progress.stuck),
            overlap,
            put_aside,
            taken: whose.taken,
            earlier: 0,
            idle_since: None,
        }
    }
}

/// Which message something is about, as it is told.
struct Whose {
    id: String,
    session: Option<String>,
    attempt: u32,
    taken: Instant,
}

impl Whose {
    fn of(message: &Message) -> Whose {
        let session = message.lock.session();
        Whose {
            id: message.id.clone(),
            session: session.map(|session| session.id().to_owned()),
            attempt: message.attempt,
            taken: message.t0,
        }
    }
}

impl ProcessorContext {
    /// For how long a message that is settled so is to be kept away by its lock, because its queue
    /// cannot do that.
    pub(super) fn keeps_away(&self, settlement: Option<&Settlement>) -> Option<Duration> {
        match settlement {
            Some(Settlement::Retry(delay)) if !self.delays => Some(*delay),
            _ => None,
        }
    }

    /// The lock of this message, as a lease.
    pub(super) fn lease(&self, message: &Message) -> Arc<MessageLease> {
        let held = MessageLease::new(message, &self.queue);
        Arc::new(held.hurried_by(self.hurry.clone()))
    }

    /// How the time of this message's lock is divided.
    pub(super) fn budget(&self, message: &Message) -> Budget {
        let budget = Budget::for_lock(message.lock_time, self.renew_at);
        let budget = budget.renewing_within(message.first_renewal);
        let grace_on_loss = match self.sessions {
            // A supervisor that dies takes the link along, and with that the session is free.
            Some(_) => budget.grace_on_loss.min(Sessions::GRACE_ON_LOSS),
            None => budget.grace_on_loss,
        };
        Budget {
            grace_on_loss,
            ..budget
        }
    }

    /// What the core goes by for one message.
    fn tenure(&self, budget: Budget) -> core::Rules {
        core::Rules {
            // Where no worker can be given the message again there is no deadline.
            budget: (!self.rules.at_most_once).then_some(budget),
            // A message that could not be begun in time is not waited for.
            poll: Some(Duration::from_millis(1)),
            wait: None,
            patience: Duration::ZERO,
            auth_patience: AUTH_PATIENCE,
            grace: self.kill_after,
            stop_signal: self.stop_signal,
            if_lost: IfLost::Exit,
            hold_policy: HoldPolicy::default(),
            once: None,
            on_terminal: false,
            seed: fastrand::u64(..),
        }
    }
}

/// What happens to the guardians of idle slots: somebody has to answer whether they are well.
pub(super) async fn idle_event(idle: &mut [MessageProcessor]) -> WorkloadEvent {
    let event = idle.iter_mut().map(|processor| async {
        let event = processor.handle.next_event().await;
        processor.lost |= event == WorkloadEvent::Lost;
        event
    });
    // With none idle it must wait for ever, and not end: an end would be an event.
    let mut event: FuturesUnordered<_> = event.collect();
    match event.next().await {
        Some(event) => event,
        None => pending().await,
    }
}

/// What became of a message that was to be settled so, by what the queue said.
fn outcome(wanted: Outcome, asked: bool, result: Option<&Result<(), Failure>>) -> Outcome {
    match result {
        Some(Ok(())) => wanted,
        Some(Err(Failure::Lost { .. } | Failure::Held(_))) => Outcome::Lost,
        Some(Err(Failure::Transient { .. })) => Outcome::Unconfirmed,
        Some(Err(Failure::Fatal { .. } | Failure::AlreadyDone(_))) => Outcome::Unsettled,
        // The queue was not asked, because the core knew better; or its answer was not waited for.
        None if wanted == Outcome::Lost => Outcome::Lost,
        None if asked => Outcome::Unconfirmed,
        None => wanted,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::work::scripted;

    #[test]
    fn what_the_queue_says_counts() {
        let of = |result: Option<Result<(), Failure>>| {
            outcome(Outcome::Completed, true, result.as_ref())
        };
        assert_eq!(of(Some(Ok(()))), Outcome::Completed);
        assert_eq!(of(Some(scripted::lost())), Outcome::Lost);
        assert_eq!(of(Some(scripted::transient())), Outcome::Unconfirmed);
        assert_eq!(of(Some(scripted::refused())), Outcome::Unsettled);
        assert_eq!(of(None), Outcome::Unconfirmed);
        assert_eq!(outcome(Outcome::Lost, false, None), Outcome::Lost);
    }
}
