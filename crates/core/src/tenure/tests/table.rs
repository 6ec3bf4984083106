//! The whole machine as one table: for every state and every kind of event, the actions and the next state.

use std::fmt::Write as _;

use super::*;

/// Before any deadline.
const NOW: Instant = Instant::from_nanos(BEGIN.as_nanos() + 150_000_000);

type Enter = fn() -> Tenure;

fn standby() -> Tenure {
    let mut tenure = acquiring(rules());
    tenure.step(BEGIN, refused(held()));
    tenure
}

fn cordoned_standby() -> Tenure {
    let mut tenure = standby();
    tenure.step(BEGIN, cordoned());
    tenure
}

fn asked_standby() -> Tenure {
    let mut tenure = Tenure::new(once(), BEGIN).only_if(Some(secs(2)));
    tenure.step(BEGIN, Event::Ticked);
    tenure
}

fn looking() -> Tenure {
    let mut tenure = asked_standby();
    tenure.step(
        BEGIN,
        Event::Workload(WorkloadEvent::Condition(Err(Unfit::ProgramRefused))),
    );
    tenure
}

fn unfit_standby() -> Tenure {
    let mut tenure = looking();
    tenure.step(BEGIN, Event::Looked(Ok(())));
    tenure
}

fn confirming() -> Tenure {
    let mut tenure = acquiring(rules());
    tenure.step(BEGIN, grant(BEGIN - secs(31)));
    tenure
}

/// The start of the command is not confirmed yet.
fn starting() -> Tenure {
    let mut tenure = acquiring(rules());
    tenure.step(BEGIN, grant(BEGIN));
    tenure
}

fn killing() -> Tenure {
    let mut tenure = draining(rules());
    tenure.step(BEGIN + ms(120), Event::StopAsked(TERM));
    tenure
}

fn backing_off() -> Tenure {
    let mut tenure = holding(restarting());
    fails(&mut tenure, BEGIN + ms(100));
    tenure
}

fn keeping_the_lease() -> Tenure {
    let mut tenure = holding(keeping());
    ends(&mut tenure, BEGIN + ms(100), Exit::Code(0));
    tenure
}

fn recording() -> Tenure {
    let mut tenure = holding(once());
    ends(&mut tenure, BEGIN + ms(100), Exit::Code(0));
    tenure
}

fn pausing() -> Tenure {
    let mut tenure = holding(once());
    fails(&mut tenure, BEGIN + ms(100));
    tenure.step(BEGIN + ms(110), Event::Recorded(Ok(())));
    tenure
}

fn done() -> Tenure {
    let mut tenure = releasing(rules());
    tenure.step(BEGIN, Event::Released(Ok(())));
    tenure
}

fn columns() -> [(&'static str, Enter); 16] {
    [
        ("Standby", standby),
        ("Standby (cordoned)", cordoned_standby),
        ("Standby (asking)", asked_standby),
        ("Standby (looking)", looking),
        ("Standby (unfit)", unfit_standby),
        ("Acquiring", || acquiring(rules())),
        ("Confirming", confirming),
        ("Holding", starting),
        ("Draining", || draining(rules())),
        ("Killing", killing),
        ("Resting (back-off)", backing_off),
        ("Resting (kept)", keeping_the_lease),
        ("Recording", recording),
        ("Recording (back-off)", pausing),
        ("Releasing", || releasing(rules())),
        ("Done", done),
    ]
}

fn over() -> Failure {
    Failure::AlreadyDone(TaskResult {
        status: 0,
        holder: "web2".into(),
        at: "then".into(),
        token: 3,
    })
}

fn rows() -> Vec<(&'static str, Event)> {
    let released = |reply| Event::Released(reply);
    vec![
        ("ticked", Event::Ticked),
        ("clock jumped", Event::Workload(WorkloadEvent::ClockJumped)),
        ("freed", Event::Freed),
        ("acquired", grant(BEGIN)),
        ("acquire: held", refused(held())),
        ("acquire: lost", refused(lost())),
        ("acquire: transient", refused(transient())),
        ("acquire: fatal", refused(fatal())),
        ("acquire: over", refused(over())),
        ("looked", Event::Looked(Ok(()))),
        ("look: transient", Event::Looked(Err(transient()))),
        ("look: fatal", Event::Looked(Err(fatal()))),
        ("look: over", Event::Looked(Err(over()))),
        ("renewed", renewed(BEGIN)),
        ("renew: held", unrenewed(held())),
        ("renew: lost", unrenewed(lost())),
        ("renew: breaking", unrenewed(breaking(at(9)))),
        ("renew: transient", unrenewed(transient())),
        ("renew: fatal", unrenewed(fatal())),
        ("renew: over", unrenewed(over())),
        ("recorded", Event::Recorded(Ok(()))),
        ("record: held", Event::Recorded(Err(held()))),
        ("record: lost", Event::Recorded(Err(lost()))),
        ("record: transient", Event::Recorded(Err(transient()))),
        ("record: fatal", Event::Recorded(Err(fatal()))),
        ("record: over", Event::Recorded(Err(over()))),
        ("released", released(Ok(()))),
        ("release: held", released(Err(held()))),
        ("release: lost", released(Err(lost()))),
        ("release: transient", released(Err(transient()))),
        ("release: fatal", released(Err(fatal()))),
        ("release: over", released(Err(over()))),
        (
            "started",
            Event::Workload(WorkloadEvent::Started { pid: 1 }),
        ),
        (
            "not started",
            Event::Workload(WorkloadEvent::NotStarted { errno: 2 }),
        ),
        (
            "unprepared",
            Event::Workload(WorkloadEvent::HookFailed {
                at: NOW,
                how: Failed::Exited(Exit::Code(1)),
            }),
        ),
        (
            "exited",
            Event::Workload(WorkloadEvent::Exited(Exit::Code(0))),
        ),
        (
            "tree empty",
            Event::Workload(WorkloadEvent::TreeEmpty { at: NOW }),
        ),
        ("guardian acts", Event::Workload(WorkloadEvent::Acting)),
        ("guardian lost", Event::Workload(WorkloadEvent::Lost)),
        ("tree stuck", Event::Workload(WorkloadEvent::TreeStuck)),
        ("hung", hung()),
        (
            "guardian of probes lost",
            Event::Workload(WorkloadEvent::Health(HealthEvent::GuardianLost)),
        ),
        ("command stopping", Event::CommandStopping),
        ("stop asked", Event::StopAsked(TERM)),
        ("cordoned", cordoned()),
        ("uncordoned", Event::Uncordoned),
        ("fit", Event::Workload(WorkloadEvent::Condition(Ok(())))),
        (
            "unfit",
            Event::Workload(WorkloadEvent::Condition(Err(Unfit::ProgramRefused))),
        ),
    ]
}

fn name(action: &Action) -> &'static str {
    match action {
        Action::Acquire { .. } => "acquire",
        Action::Ask { .. } => "ask",
        Action::Look { .. } => "look",
        Action::Withdraw { .. } => "withdraw",
        Action::Renew { .. } => "renew",
        Action::Start(_) => "start",
        Action::Extend(_) => "extend",
        Action::Drain { .. } => "drain",
        Action::Kill => "kill",
        Action::Announce => "announce",
        Action::Record { .. } => "record",
        Action::Release { .. } => "release",
        Action::Abandon => "abandon",
        Action::Attend { .. } => "attend",
        Action::StandBy => "stand by",
        Action::TenureOver { .. } => "over",
        Action::Notify(_) => "say",
    }
}

fn cell(name_of_state: &str, enter: Enter, event: Event) -> String {
    let mut tenure = enter();
    let state = *tenure.state();
    let shown = format!("{state:?}");
    assert!(name_of_state.starts_with(&shown), "the wrong state");
    let actions = tenure.step(NOW, event);
    let mut cell = actions.iter().map(name).collect::<Vec<_>>().join(" ");
    if *tenure.state() != state {
        let _ = write!(cell, " > {:?}", tenure.state());
    }
    cell.trim().to_owned()
}

const TABLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/tenure/transitions.md");
const FENCE: &str = "```text\n";

#[test]
fn every_event_in_every_state_does_what_the_table_says() {
    let mut table = String::new();
    for (title, event) in rows() {
        let _ = writeln!(table, "{title}");
        for (state, enter) in columns() {
            let cell = cell(state, enter, event.clone());
            if !cell.is_empty() {
                let _ = writeln!(table, "    {state}: {cell}");
            }
        }
    }
    let asserted = std::fs::read_to_string(TABLE).expect("the table");
    let (head, _) = asserted.split_once(FENCE).expect("a table");
    let found = format!("{head}{FENCE}{}\n```\n", table.trim_end());
    if found != asserted {
        let now = format!("{TABLE}.new");
        std::fs::write(&now, &found).expect("written");
        let mut lines = found.lines().zip(asserted.lines());
        let differs = lines.find(|(now, before)| now != before);
        panic!("{differs:?}: read how {now} differs, and move it over the old table");
    }
}

/// Reports for people, or about the terminal, say nothing about the lease.
#[test]
fn reports_for_people_count_as_a_tick() {
    for (state, enter) in columns() {
        for event in [
            WorkloadEvent::Stopped,
            WorkloadEvent::LeftBehind,
            WorkloadEvent::Standby(Some(7)),
        ] {
            let told = cell(state, enter, Event::Workload(event));
            assert_eq!(
                told,
                cell(state, enter, Event::Ticked),
                "{state}: {event:?}"
            );
        }
    }
}
