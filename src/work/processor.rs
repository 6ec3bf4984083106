//! Processes one message at a time, until it is settled.

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

pub(super) struct ProcessorContext {
    pub(super) queue: String,
    pub(super) rules: Rules,
    /// Per cent of the lock time.
    pub(super) renew_at: u32,
    pub(super) stop_signal: i32,
    pub(super) stop_to: StopTo,
    pub(super) kill_after: Duration,
    pub(super) base: Option<PathBuf>,
    pub(super) in_directories: bool,
    pub(super) sessions: Option<Sessions>,
    pub(super) may_begin: Option<AtomicU64>,
    pub(super) observer: WorkerObserver,
    /// The queue itself can delay a message.
    pub(super) delays: bool,
    pub(super) leaving: watch::Receiver<bool>,
    pub(super) hurry: watch::Receiver<bool>,
}

pub(super) struct MessageProcessor {
    pub(super) number: usize,
    pub(super) handle: GuardianHandle,
    pub(super) signals: Signals,
    pub(super) lost: bool,
}

pub(super) struct Done {
    pub(super) ran: bool,
    pub(super) exit: Option<Exit>,
    pub(super) succeeded: bool,
    pub(super) outcome: Outcome,
    pub(super) errno: Option<i32>,
    pub(super) no_handover: Option<String>,
    pub(super) lost: bool,
    pub(super) overlap: bool,
    /// Result of a settlement without which the worker must stop.
    pub(super) put_aside: Option<Result<(), String>>,
    pub(super) taken: Instant,
    /// Messages started before it in its session.
    pub(super) earlier: u64,
    /// Since then its session has had no message.
    pub(super) idle_since: Option<Instant>,
}

impl MessageProcessor {
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

    /// Processes one message; gives it back if the worker is `leaving`.
    pub(super) async fn one(
        &mut self,
        message: Message,
        held: Arc<MessageLease>,
        state: Option<&SessionState>,
        context: &ProcessorContext,
        leaving: bool,
    ) -> Done {
        let not_run = match &message.body {
            // Started after the stop, it would use up the grace.
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
            let _ = self.meanwhile(held.settle(settlement)).await;
        }
        let info = MessageInfo::of(message);
        self.done(&info, held, decision, None, context)
    }

    async fn run(
        &mut self,
        message: Message,
        held: Arc<MessageLease>,
        state: Option<&SessionState>,
        context: &ProcessorContext,
    ) -> Done {
        let info = MessageInfo::of(&message);
        let (id, attempt) = (info.id.clone(), info.attempt);
        let budget = context.budget(&message);
        let env = message_io::environment(&context.queue, &message, context.rules.max_attempts);
        let message_io = match self.meanwhile(hand_over(message, state, context)).await {
            Ok(message_io) => message_io,
            Err(why) => {
                let is_leaving = *context.leaving.borrow();
                let decision = Decision::release(match is_leaving {
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
                    ..self.done(&info, &held, decision, None, context)
                };
            }
        };
        if context.rules.at_most_once
            && let Some(decision) = self.settle_first(&info.id, &held, context).await
        {
            if message_io.has_directory() {
                self.meanwhile(removed(message_io)).await;
            }
            return self.done(&info, &held, decision, None, context);
        }
        // The lock counts from the take: the disk's time is not added.
        let tenure = Tenure::new(context.tenure(budget), Instant::now());
        let mut message_observer =
            context
                .observer
                .message_observer(&id, info.session.as_deref(), self.number);
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
        // The core gave nothing back: its ending tells why.
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
        // After a suspension only the queue knows whether the lock is held. Messages to keep away are settled
        // below.
        if progress.decision.is_none()
            && ending.cause == Cause::CommandEnded
            && held.result().is_none()
            && context.keeps_away(decision.settlement.as_ref()).is_none()
            && let Some(settlement) = &decision.settlement
        {
            let _ = self.meanwhile(held.settle(settlement)).await;
        }
        // Not earlier: a disk can be slow, and settling reads the session's state.
        if message_io.has_directory() {
            self.meanwhile(removed(message_io)).await;
        }
        // The state could not be stored.
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
        self.done(&info, &held, decision, Some((&progress, &ending)), context)
    }

    /// Completes the message before its command; returns a decision against the start.
    ///
    /// The command runs at most once. The queue accepts a completion only with this worker's receipt or lock
    /// token, while no other worker has the message. If a doubt remains, nothing starts, and the message may
    /// be lost.
    async fn settle_first(
        &mut self,
        id: &str,
        held: &MessageLease,
        context: &ProcessorContext,
    ) -> Option<Decision> {
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

    /// Waits, and answers the guardian's health checks meanwhile.
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

    fn done(
        &self,
        info: &MessageInfo,
        held: &MessageLease,
        decision: Decision,
        ran: Option<(&Progress, &Ending)>,
        context: &ProcessorContext,
    ) -> Done {
        let result = held.result();
        let asked = decision.settlement.is_some();
        // The queue's answer decides what happened.
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
            id: crate::report::plain(&info.id),
            session: info.session.as_deref().map(crate::report::plain),
            attempt: info.attempt,
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
            // Each further message would be lost, or run too often.
            Some(Settlement::Complete) | None if context.rules.at_most_once => {
                Some("messages cannot be settled before their commands start")
            }
            _ => None,
        };
        let put_aside = match (cannot, &result) {
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
            // A guardian that cannot kill must not get another message.
            lost: self.lost
                || matches!(cause, Some(Cause::GuardianLost))
                || progress.is_some_and(|progress| progress.stuck),
            overlap,
            put_aside,
            taken: info.taken,
            earlier: 0,
            idle_since: None,
        }
    }
}

struct MessageInfo {
    id: String,
    session: Option<String>,
    attempt: u32,
    taken: Instant,
}

impl MessageInfo {
    fn of(message: &Message) -> MessageInfo {
        let session = message.lock.session();
        MessageInfo {
            id: message.id.clone(),
            session: session.map(|session| session.id().to_owned()),
            attempt: message.attempt,
            taken: message.t0,
        }
    }
}

impl ProcessorContext {
    /// Returns how long the lock must keep a message away, because the queue cannot.
    pub(super) fn keeps_away(&self, settlement: Option<&Settlement>) -> Option<Duration> {
        match settlement {
            Some(Settlement::Retry(delay)) if !self.delays => Some(*delay),
            _ => None,
        }
    }

    pub(super) fn lease(&self, message: &Message) -> Arc<MessageLease> {
        let held = MessageLease::new(message, &self.queue);
        Arc::new(held.hurried_by(self.hurry.clone()))
    }

    pub(super) fn budget(&self, message: &Message) -> Budget {
        let budget = Budget::for_lock(message.lock_time, self.renew_at);
        let budget = budget.renewing_within(message.first_renewal);
        let grace_on_loss = match self.sessions {
            // A supervisor that dies closes its link, which frees the session.
            Some(_) => budget.grace_on_loss.min(Sessions::GRACE_ON_LOSS),
            None => budget.grace_on_loss,
        };
        Budget {
            grace_on_loss,
            ..budget
        }
    }

    fn tenure(&self, budget: Budget) -> core::Rules {
        core::Rules {
            // No worker can be given the message again, so there is no deadline.
            budget: (!self.rules.at_most_once).then_some(budget),
            // A message that could not be started in time is not waited for.
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

pub(super) async fn idle_event(idle: &mut [MessageProcessor]) -> WorkloadEvent {
    let event = idle.iter_mut().map(|processor| async {
        let event = processor.handle.next_event().await;
        processor.lost |= event == WorkloadEvent::Lost;
        event
    });
    // Without an idle processor it waits for ever: returning would be an event.
    let mut event: FuturesUnordered<_> = event.collect();
    match event.next().await {
        Some(event) => event,
        None => pending().await,
    }
}

fn outcome(wanted: Outcome, asked: bool, result: Option<&Result<(), Failure>>) -> Outcome {
    match result {
        Some(Ok(())) => wanted,
        Some(Err(Failure::Lost { .. } | Failure::Held(_))) => Outcome::Lost,
        Some(Err(Failure::Transient { .. })) => Outcome::Unconfirmed,
        Some(Err(Failure::Fatal { .. } | Failure::AlreadyDone(_))) => Outcome::Unsettled,
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
    fn outcome_follows_the_answer_of_the_queue() {
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
