//! [`Happened`]: an observation with all that is told of it, made once for all observers.
//!
//! Logs, status file, metrics and service manager are folds over it. A new notice needs one row in [`of_notice`], and
//! a new event of the workload one in [`of_workload`].

use tracing::Level;
pub(crate) use trafficcop_timeline::record::EventKind;
use trafficcop_timeline::record::Record;

use super::text::{
    HELD_LONG_ENOUGH, RESTARTS_SPENT, behind, failing_health, hook_failed, is_asked, left, not_fit,
    reason,
};
use crate::clock::Instant;
use crate::core::{Cause, Exit, Failed, HealthEvent, Notice, Outcome, Ring, Unfit, WorkloadEvent};
use crate::driver::Observation;
use crate::units::signal_name;

/// State while `--if` refuses this machine.
pub(crate) const UNFIT: &str = "unfit";
/// State while the store refuses a credential that it accepted before.
pub(crate) const REFUSED: &str = "refused";

/// Observer that must neither wait nor decide anything.
pub(crate) trait Fold: Send {
    fn take(&mut self, happened: &Happened<'_>);
}

#[derive(Clone, Debug)]
pub(crate) struct Happened<'a> {
    pub(crate) now: Instant,
    pub(crate) observation: &'a Observation<'a>,
    pub(crate) row: Row,
}

impl<'a> Happened<'a> {
    pub(crate) fn new(now: Instant, observation: &'a Observation<'a>) -> Happened<'a> {
        Happened {
            now,
            observation,
            row: Row::of(now, observation),
        }
    }
}

/// Place of a notice in the tenures of its instance: the lines of a tenure have its token.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Place {
    /// Neither begins nor ends a tenure.
    #[default]
    Within,
    First,
    Last,
    /// Follows the end of a tenure, which may not have been reported.
    Outside,
}

/// Words and values that observers tell. The default tells nothing.
#[derive(Clone, Debug, Default)]
pub(crate) struct Row {
    /// Line of the event log, without the properties of the instance.
    pub(crate) record: Option<Record>,
    /// Line of the log; of a notice also the service manager's status.
    pub(crate) line: Option<(Level, String)>,
    pub(crate) place: Place,
    /// New state in the status file.
    pub(crate) state: Option<&'static str>,
    /// New cause in the status file.
    pub(crate) cause: Option<String>,
}

impl Row {
    fn of(now: Instant, observation: &Observation<'_>) -> Row {
        match *observation {
            Observation::Begins => Row::default().state("standby"),
            Observation::Notice { notice, .. } => of_notice(now, notice),
            Observation::Workload(event) => of_workload(now, event),
            // Only rings that hand over control; the log has the others.
            Observation::Rang(Ring::Draining) => {
                Row::new(now, EventKind::Rang).because("it drains")
            }
            Observation::Rang(Ring::Released) => {
                Row::new(now, EventKind::Rang).because("it has released")
            }
            Observation::Starts {
                kill_at, expires, ..
            } => Row::new(now, EventKind::Starting).deadline(kill_at, expires),
            Observation::Extended { kill_at, expires } => {
                Row::new(now, EventKind::Renewed).deadline(kill_at, expires)
            }
            Observation::Done {
                cause,
                overlap,
                exit,
            } => Row::new(now, EventKind::Done)
                .because(cause)
                .with(|record| {
                    record.overlap = overlap.then_some(true);
                    record.exit = Some(exit);
                })
                .state("done")
                .why(cause),
            Observation::Rang(Ring::Greeted { .. } | Ring::Closed | Ring::Silent)
            | Observation::Acquired(_)
            | Observation::Renewed { .. }
            | Observation::Drains { .. }
            | Observation::Stops => Row::default(),
        }
    }

    fn new(at: Instant, event: EventKind) -> Row {
        let record = Record {
            event,
            boottime_ns: at.as_nanos(),
            ..Record::default()
        };
        Row {
            record: Some(record),
            ..Row::default()
        }
    }

    fn with(mut self, more: impl FnOnce(&mut Record)) -> Row {
        if let Some(record) = &mut self.record {
            more(record);
        }
        self
    }

    fn line(mut self, level: Level, text: impl Into<String>) -> Row {
        self.line = Some((level, text.into()));
        self
    }

    fn place(mut self, place: Place) -> Row {
        self.place = place;
        self
    }

    fn state(mut self, state: &'static str) -> Row {
        self.state = Some(state);
        self
    }

    /// Gives the event log a cause.
    fn because(self, cause: &str) -> Row {
        self.with(|record| record.cause = Some(cause.to_owned()))
    }

    /// Gives the status file a cause, and the event log, too, if that has none.
    fn why(mut self, cause: &str) -> Row {
        self.cause = Some(cause.to_owned());
        self.with(|record| {
            record.cause.get_or_insert_with(|| cause.to_owned());
        })
    }

    /// Gives the event log the line as the cause.
    fn explained(self) -> Row {
        let text = self.line.as_ref().map(|(_, text)| text.clone());
        self.with(|record| record.cause = text)
    }

    fn deadline(self, deadline: Instant, expires: Instant) -> Row {
        let nanos = |end: Instant| (end != Instant::FOREVER).then_some(end.as_nanos());
        self.with(|record| {
            record.deadline_ns = nanos(deadline);
            record.expires_ns = record.deadline_ns.and(nanos(expires));
        })
    }

    pub(crate) fn event(&self) -> Option<EventKind> {
        self.record.as_ref().map(|record| record.event)
    }

    pub(crate) fn word(&self) -> Option<&'static str> {
        self.event().map(EventKind::word)
    }
}

const INFO: Level = Level::INFO;
const WARN: Level = Level::WARN;
const ERROR: Level = Level::ERROR;

fn warn_if(is_news: bool) -> Level {
    if is_news { WARN } else { INFO }
}

/// Tells whether the condition itself said no, which is normal.
fn is_answer(unfit: Unfit) -> bool {
    matches!(
        unfit,
        Unfit::Failed(Failed::Exited(Exit::Code(_))) | Unfit::ProgramRefused
    )
}

/// Makes a match of rows: event, level and text, and calls of methods of [`Row`].
macro_rules! rows {
    ($now:ident, $notice:ident; $($pattern:pat => $event:ident, $level:expr, ($($text:tt)*)
        $(, $more:ident($($value:tt)*))*;)*) => {
        match $notice {
            $($pattern => {
                let row = Row::new($now, EventKind::$event).line($level, format!($($text)*));
                row$(.$more($($value)*))*
            })*
        }
    };
}

pub(super) fn of_notice(now: Instant, notice: &Notice) -> Row {
    use Place::{First, Last, Outside};
    let span = |until: &Instant| left(until.since(now));
    rows! { now, notice;
        Notice::StandingBy(info) => Standby, warn_if(info.foreign.is_some()), ("standing by{}", behind(info)),
            place(Outside), state("standby"),
            with(|record| (record.holder, record.token) = (info.holder.clone(), info.token));
        Notice::InControl { token } => Holding, INFO, ("in control, token {token}"),
            place(First), state("holding"), with(|record| record.token = Some(*token));
        Notice::Doubt { why, term_at: Some(at) } => Doubt, WARN,
            ("cannot renew the lease: {why}; retrying, the command is stopped in {} if nothing changes", span(at)),
            because(why);
        Notice::Doubt { why, term_at: None } => Doubt, WARN, ("cannot reach the lock: {why}; retrying"), because(why);
        Notice::Refused { why, leaves_at } => Doubt, WARN,
            ("the store refuses this instance's credential: {why}; retrying, exit in {} if nothing changes",
            span(leaves_at)), state(REFUSED), why(why);
        Notice::Recovered => Recovered, INFO, ("the store answers again"), state("standby");
        // A requested drain, or one after a normal end, is no reason for a warning.
        Notice::Draining(Cause::CommandEnded) => Draining, INFO, ("stopping what the command left behind"),
            state("draining"), why(&super::cause(&Cause::CommandEnded));
        Notice::Draining(cause @ Cause::Stopped(signal)) => Draining, INFO,
            ("stopping the command: {} received", signal_name(*signal)), state("draining"), why(&super::cause(cause));
        Notice::Draining(cause) => Draining, warn_if(!is_asked(cause)),
            ("stopping the command: {}", reason(cause, "")), state("draining"), why(&super::cause(cause));
        Notice::CommandEnded(Exit::Code(0)) => CommandEnded, INFO, ("the command ended"),
            state("draining"), with(|record| record.command_exit = Some(0));
        Notice::CommandEnded(exit @ Exit::Code(code)) => CommandEnded, INFO, ("the command exited with status {code}"),
            state("draining"), with(|record| record.command_exit = Some(exit.as_status()));
        // The user's Ctrl-C reaches the command first.
        Notice::CommandEnded(exit @ Exit::Signal(signal)) => CommandEnded, warn_if(*signal != libc::SIGINT),
            ("the command was killed by {}", signal_name(*signal)),
            state("draining"), with(|record| record.command_exit = Some(exit.as_status()));
        Notice::LeftBehind => LeftBehind, WARN, ("the command left processes behind: stopping them");
        Notice::BackingOff { until, number } => Resting, INFO,
            ("the command is started again in {} (restart {number}); the lock is kept", span(until)),
            state("resting"), explained();
        Notice::Keeping { until } => Resting, INFO, ("keeping the lock for {} (--min-hold)", span(until)),
            state("resting"), explained();
        Notice::Pausing { until } => Resting, INFO,
            ("keeping the lock for {}, then the next candidate tries", span(until)), state("resting"), explained();
        Notice::Restarting => Restarting, INFO, ("starting the command again"), state("holding");
        Notice::RestartsSpent => HandingOver, WARN, ("{RESTARTS_SPENT}: handing control over"),
            explained(), why(RESTARTS_SPENT);
        Notice::HookFailed(how) => HandingOver, WARN, ("{}: handing control over", hook_failed(*how)),
            explained(), why(&hook_failed(*how));
        Notice::HoldOver => HandingOver, INFO, ("{HELD_LONG_ENOUGH}"), explained(), why(HELD_LONG_ENOUGH);
        Notice::CoolingDown { until } => CoolingDown, INFO,
            ("cooling down for {} before competing again", span(until)), state("cooling down"), explained();
        Notice::Cordoned { why } => Cordoned, INFO, ("cordoned: {why}"), place(Outside), state("cordoned"), why(why);
        Notice::Uncordoned => Competing, INFO,
            ("nothing is announced for this machine any more: competing again"), place(Outside), state("standby");
        Notice::Unfit(unfit) => Unfit, warn_if(!is_answer(*unfit)),
            ("not fit to take control: {}", not_fit(*unfit)), place(Outside), state(UNFIT), why(&not_fit(*unfit));
        Notice::Fit => Competing, INFO, ("fit to take control: competing again"), place(Outside), state("standby");
        Notice::Recorded { outcome: Outcome { exit: Exit::Code(0), .. }, .. } => Recorded, INFO,
            ("recorded that the task is done"), explained();
        Notice::Recorded { outcome: Outcome { over: false, .. }, attempt } => Recorded, WARN,
            ("attempt {attempt} failed"), explained();
        Notice::Recorded { attempt, .. } => Recorded, WARN,
            ("attempt {attempt} failed; no instance will try again"), explained();
        Notice::Unrecorded { why } => NotRecorded, WARN,
            ("cannot record the command's result: {why}; retrying"), state("recording"), explained();
        Notice::NotDone => NotRecorded, WARN,
            ("the command was stopped, so the task is not done: it can run again"), explained();
        Notice::Overlapped => Overlap, ERROR,
            ("the command may have run at the same time as another holder's: check what both have written"),
            state("released"), with(|record| record.overlap = Some(true));
        Notice::Released => Released, INFO, ("gave the lock back"), place(Last), state("released");
        Notice::FoundLost { why } => Lost, WARN,
            ("another instance had the lease when it was given back: {why}"),
            place(Last), state("released"), because(why);
        Notice::LeftToRunOut { why } => LeftToRunOut, WARN,
            ("the lease is not given back and will expire: {why}"), place(Last), state("released"), because(why);
    }
}

fn of_workload(now: Instant, event: &WorkloadEvent) -> Row {
    match event {
        WorkloadEvent::Started { pid } => {
            Row::new(now, EventKind::CommandStarted).with(|record| record.command_pid = Some(*pid))
        }
        WorkloadEvent::NotStarted { errno } => Row::new(now, EventKind::NotStarted)
            .because(&super::cause(&Cause::NotStarted { errno: *errno })),
        // The guardian's time: this process may have been stopped since.
        WorkloadEvent::TreeEmpty { at } | WorkloadEvent::HookFailed { at, .. } => {
            Row::new(*at, EventKind::TreeEmpty)
        }
        WorkloadEvent::LeftBehind => of_notice(now, &Notice::LeftBehind),
        WorkloadEvent::Lost => Row::new(now, EventKind::GuardianLost),
        WorkloadEvent::TreeStuck => Row::new(now, EventKind::TreeStuck),
        WorkloadEvent::Health(health) => of_health(now, health),
        // The core reports the end. The standby command has nothing to do with control.
        WorkloadEvent::Standby(_)
        | WorkloadEvent::Condition(_)
        | WorkloadEvent::Exited(_)
        | WorkloadEvent::Stopped
        | WorkloadEvent::Acting
        | WorkloadEvent::ClockJumped => Row::default(),
    }
}

fn of_health(now: Instant, health: &HealthEvent) -> Row {
    let failing = failing_health(health).unwrap_or_default();
    let level = |number| if number == 1 { WARN } else { Level::DEBUG };
    match *health {
        HealthEvent::Answered { again: true } => {
            Row::new(now, EventKind::Healthy).line(INFO, "--health succeeds again")
        }
        // Otherwise each WATCHDOG=1 would be a line.
        HealthEvent::Answered { again: false } => Row::default(),
        HealthEvent::NotAsked { number, .. } => Row::default().line(level(number), failing),
        HealthEvent::Failed { number, .. } => Row::new(now, EventKind::Unhealthy)
            .because(&failing)
            .line(level(number), failing),
        HealthEvent::Hung(_) => Row::new(now, EventKind::Hung).because(&failing),
        HealthEvent::GuardianLost => Row::new(now, EventKind::GuardianLost).because(&failing),
    }
}
