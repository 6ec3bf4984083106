//! Health in the lock's record.

use super::super::*;

const GOOD: HealthEvent = HealthEvent::Answered { again: false };
const HUNG: HealthEvent = HealthEvent::Hung(Hung::Triggered);

fn failed(number: u32) -> HealthEvent {
    HealthEvent::Failed {
        how: ProbeFailure::TimedOut,
        number,
        of: 3,
    }
}

fn words(event: &HealthEvent) -> Option<String> {
    Some(match event {
        HealthEvent::Answered { .. } => String::new(),
        HealthEvent::Failed { number, .. } => format!("failing {number}"),
        HealthEvent::Hung(_) => "hung".to_owned(),
        HealthEvent::NotAsked { .. } | HealthEvent::GuardianLost => return None,
    })
}

fn at(seconds: u64) -> Instant {
    Instant::ZERO + Duration::from_secs(seconds)
}

fn record() -> HealthRecord {
    HealthRecord::new(Duration::from_secs(10), words)
}

#[test]
fn change_is_written_once_and_the_next_one_a_check_interval_later() {
    let mut record = record();
    record.hears(&GOOD);
    assert_eq!(record.due(), Instant::FOREVER, "nothing is wrong");
    record.hears(&failed(1));
    assert_eq!(record.write(at(20)), Some("failing 1".to_owned()));
    record.hears(&failed(2));
    assert_eq!(record.write(at(30)), None, "written already");
    record.hears(&failed(3));
    record.hears(&GOOD);
    record.hears(&HUNG);
    assert_eq!(record.due(), at(30), "ten seconds after the last");
    assert_eq!(record.write(at(29)), None);
    assert_eq!(record.write(at(31)), Some("hung".to_owned()));
    record.hears(&HealthEvent::GuardianLost);
    assert_eq!(record.due(), Instant::FOREVER, "nothing new is known");
    record.started();
    assert_eq!(record.write(at(41)), Some(String::new()));
}

#[test]
fn failure_that_was_over_before_it_could_be_written_is_not_written() {
    let mut record = record();
    record.hears(&failed(1));
    assert!(record.write(at(20)).is_some());
    record.hears(&GOOD);
    assert_eq!(record.due(), at(30));
    record.hears(&failed(1));
    assert_eq!(record.due(), Instant::FOREVER);
}

#[test]
fn lost_write_is_repeated_even_if_all_is_well_again() {
    let mut record = record();
    record.hears(&failed(1));
    assert!(record.write(at(20)).is_some());
    record.was_lost();
    assert_eq!(record.write(at(25)), None, "not at once");
    record.hears(&GOOD);
    // The lost write may have been stored.
    assert_eq!(record.write(at(30)), Some(String::new()));
    assert_eq!(record.due(), Instant::FOREVER);
}

#[test]
fn announced_health_is_not_written_again_and_a_new_tenure_owes_nothing() {
    let mut record = record();
    record.hears(&HUNG);
    assert_eq!(record.announce(), "hung");
    assert_eq!(record.due(), Instant::FOREVER);
    record.was_lost();
    record.begins();
    assert_eq!(record.due(), Instant::FOREVER);
    record.hears(&failed(1));
    assert_eq!(record.due(), Instant::ZERO, "at once");
}
