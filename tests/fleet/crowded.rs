//! What many standbys cost the service, and how soon one of them takes over.

use std::time::Duration;

use super::clock::{MILLI, SECOND, Time, nanos};
use super::crowd::{Crowd, Plan};
use super::service::TARGET;

const MINUTE: Time = 60 * SECOND;
/// Look, acquire, sign; to and fro.
const ROUND_TRIPS: Duration = Duration::from_millis(40);

fn plan(standbys: usize, poll: Duration) -> Plan {
    Plan {
        standbys,
        poll,
        drain: Duration::from_secs(30),
        started_within: Duration::from_secs(1),
        throttles: None,
        seed: 1,
    }
}

/// `share` per cent of what a blob is meant to take, in this time.
fn per_cent(share: usize, time: Time) -> usize {
    let seconds = usize::try_from(time / SECOND).expect("a short time");
    TARGET * share * seconds / 100
}

/// Below a tenth in any ten seconds. Nobody co-ordinates them, so in an hour there is a second with
/// two thirds more than on average; none is much busier.
fn is_calm(crowd: &Crowd, from: Time, to: Time) {
    let ten = crowd.service.busiest(from, to, 10 * SECOND);
    assert!(ten < per_cent(10, 10 * SECOND), "{ten} in ten seconds");
    let one = crowd.service.busiest(from, to, SECOND);
    assert!(one < per_cent(16, SECOND), "{one} in a second");
}

#[test]
fn five_hundred_standbys_are_below_a_tenth_of_the_target_from_the_first_second_on() {
    for seed in 1..=3 {
        let mut crowd = Crowd::new(Plan {
            seed,
            ..plan(500, Duration::from_secs(12))
        });
        crowd.run_until(20 * MINUTE);
        assert_eq!(crowd.standing_by(), 500);
        // All of them look once, whoever is first acquires, and a few look again already.
        let start = SECOND + 100 * MILLI;
        let first = crowd.service.asked(0, start);
        assert!((500..560).contains(&first), "{first} at the start");
        is_calm(&crowd, start, crowd.now());
        let mean = crowd.service.asked(start, crowd.now()) as f64
            / ((crowd.now() - start) / SECOND) as f64;
        assert!((41.0..42.5).contains(&mean), "{mean} a second");
    }
}

#[test]
fn five_hundred_standbys_behind_a_draining_holder_are_below_the_target() {
    let mut crowd = Crowd::new(plan(500, Duration::from_secs(12)));
    crowd.run_until(MINUTE);
    for _ in 0..2 {
        let asked = crowd.now();
        let gap = crowd.hand_over();
        assert!(gap < Duration::from_millis(200), "{gap:?}");
        let control = crowd.now();
        let busiest = crowd.service.busiest(asked, control + SECOND, SECOND);
        assert!(busiest < TARGET, "{busiest} in a second");
        assert!(busiest > 300, "they were in the lane: {busiest}");
        // They leave the lane as calm as they came.
        crowd.run_until(control + MINUTE);
        is_calm(&crowd, control + 2 * SECOND, crowd.now());
    }
}

#[test]
fn a_hand_over_takes_no_longer_than_the_lane_and_a_crash_than_a_poll() {
    for (standbys, poll, lane) in [
        (1, 2000, 250),
        (1, 12_000, 1500),
        (1, 500, 250),
        (5, 12_000, 1500),
    ] {
        let poll = Duration::from_millis(poll);
        let mut crowd = Crowd::new(plan(standbys, poll));
        let mut longest = Duration::ZERO;
        for _ in 0..30 {
            crowd.settle();
            let gap = crowd.hand_over();
            assert!(
                gap <= Duration::from_millis(lane) * 6 / 5 + ROUND_TRIPS,
                "{standbys} at {poll:?}: {gap:?}"
            );
            longest = longest.max(gap);
            for lost in [Crowd::crash, Crowd::power_off] {
                crowd.settle();
                let gap = lost(&mut crowd);
                assert!(
                    gap <= poll * 6 / 5 + ROUND_TRIPS,
                    "{standbys} at {poll:?}: {gap:?}"
                );
            }
        }
        assert!(
            standbys > 1 || longest > Duration::from_millis(lane) / 2,
            "{longest:?}"
        );
    }
}

/// What a service says of when to come back to those whom it refuses.
const WISHES: [Option<Duration>; 2] = [None, Some(Duration::from_secs(5))];

#[test]
fn twice_as_many_as_the_service_takes_at_once_all_come_to_stand_by() {
    for wish in WISHES {
        let mut crowd = Crowd::new(Plan {
            started_within: Duration::from_millis(100),
            throttles: Some(wish),
            ..plan(1000, Duration::from_secs(24))
        });
        crowd.run_until(25 * SECOND);
        let refused = crowd.service.refused();
        assert!(refused > 0, "more than it takes");
        assert_eq!((crowd.standing_by(), crowd.gave_up()), (1000, 0));
        crowd.run_until(5 * MINUTE);
        assert_eq!(
            crowd.service.refused(),
            refused,
            "from then on there is room"
        );
    }
}

#[test]
fn a_lane_that_is_too_fast_for_the_service_empties_itself_and_control_changes_all_the_same() {
    for wish in WISHES {
        let mut crowd = Crowd::new(Plan {
            throttles: Some(wish),
            ..plan(500, Duration::from_secs(2))
        });
        crowd.run_until(MINUTE);
        assert_eq!(crowd.service.refused(), 0, "half of what it takes");
        for _ in 0..3 {
            let gap = crowd.hand_over();
            assert!(gap < Duration::from_secs(10), "{gap:?}");
            crowd.run_until(crowd.now() + MINUTE);
        }
        // Who is refused looks no sooner than with its next poll: of 2000/s that the lane would
        // be, a third is left.
        let refused = crowd.service.refused();
        let drains =
            3 * usize::try_from(nanos(plan(0, Duration::ZERO).drain) / SECOND).expect("few");
        assert!(
            (1..250 * drains).contains(&refused),
            "{refused} in {drains} s"
        );
        assert_eq!((crowd.standing_by(), crowd.gave_up()), (500, 0));
    }
}
