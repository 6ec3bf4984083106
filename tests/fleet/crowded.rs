//! What many standbys cost the service, and how soon one of them takes over.

use std::time::Duration;

use trafficcop::core::duty::{TERM as SIBLING_LEASE, WARM_POLL};

use super::clock::{MILLI, SECOND, Time, nanos};
use super::crowd::{Crowd, Plan};
use super::service::{Service, TARGET};

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
        refuses_sibling: false,
        seed: 1,
    }
}

/// `share` per cent of what a blob is meant to take, in this time.
fn per_cent(share: usize, time: Time) -> usize {
    let seconds = usize::try_from(time / SECOND).expect("a short time");
    TARGET * share * seconds / 100
}

const DEFAULT: Duration = Duration::from_secs(2);

/// Below a tenth in any ten seconds. Nobody co-ordinates them, so in an hour there is a second with
/// two thirds more than on average; none is much busier.
fn is_calm(service: &Service, from: Time, to: Time) {
    let ten = service.busiest(from, to, 10 * SECOND);
    assert!(ten < per_cent(10, 10 * SECOND), "{ten} in ten seconds");
    let one = service.busiest(from, to, SECOND);
    assert!(one < per_cent(16, SECOND), "{one} in a second");
}

/// Requests a second, on average.
fn mean(service: &Service, from: Time, to: Time) -> f64 {
    service.asked(from, to) as f64 / ((to - from) / SECOND) as f64
}

#[test]
fn five_hundred_standbys_are_below_a_tenth_of_the_target_from_the_first_second_on() {
    for seed in 1..=3 {
        let mut crowd = Crowd::new(Plan {
            seed,
            ..plan(500, DEFAULT)
        });
        crowd.run_until(20 * MINUTE);
        assert_eq!(crowd.standing_by(), 500);
        assert_eq!(crowd.hot_and_warm(), (1, 499));
        // All of them look once, at the lock and at its sibling, whoever is first acquires, and a
        // few look again already.
        let start = SECOND + 100 * MILLI;
        for service in [&crowd.service, &crowd.sibling] {
            let first = service.asked(0, start);
            assert!((500..570).contains(&first), "{first} at the start");
            is_calm(service, start, crowd.now());
        }
        let rate = mean(&crowd.service, start, crowd.now());
        assert!((41.5..43.0).contains(&rate), "{rate} a second");
        let rate = mean(&crowd.sibling, start, crowd.now());
        assert!((41.0..42.5).contains(&rate), "{rate} a second");
    }
}

#[test]
fn where_there_is_no_sibling_to_be_had_the_poll_alone_decides() {
    for (poll, refuses_sibling, rates) in [
        (Duration::from_secs(12), false, 41.0..42.5),
        (DEFAULT, true, 245.0..255.0),
    ] {
        let mut crowd = Crowd::new(Plan {
            refuses_sibling,
            ..plan(500, poll)
        });
        crowd.run_until(10 * MINUTE);
        assert_eq!(crowd.standing_by(), 500);
        assert_eq!(crowd.hot_and_warm(), (0, 0));
        let start = 2 * SECOND;
        let rate = mean(&crowd.service, start, crowd.now());
        assert!(rates.contains(&rate), "{rate} a second");
        // Who polls slowly does not even ask, and whoever was refused asks once.
        let asked = crowd.sibling.asked(0, crowd.now());
        assert_eq!(asked, if refuses_sibling { 500 } else { 0 });
        if !refuses_sibling {
            is_calm(&crowd.service, start, crowd.now());
        }
    }
}

#[test]
fn a_single_standby_is_hot_and_costs_one_request_more_with_every_third_look() {
    let mut crowd = Crowd::new(plan(1, DEFAULT));
    crowd.run_until(MINUTE);
    assert_eq!(crowd.hot_and_warm(), (1, 0));
    let from = crowd.now();
    crowd.run_until(from + 60 * MINUTE);
    let hour = crowd.service.asked(from, crowd.now());
    assert!((1950..2010).contains(&hour), "with the holder's: {hour}");
    let hour = crowd.sibling.asked(from, crowd.now());
    assert!((580..630).contains(&hour), "{hour}");
}

#[test]
fn five_hundred_standbys_behind_a_draining_holder_are_below_the_target() {
    for poll in [DEFAULT, Duration::from_secs(12)] {
        let mut crowd = Crowd::new(plan(500, poll));
        crowd.run_until(MINUTE);
        for _ in 0..2 {
            let asked = crowd.now();
            let gap = crowd.hand_over();
            assert!(gap < Duration::from_millis(200), "{gap:?}");
            let control = crowd.now();
            for service in [&crowd.service, &crowd.sibling] {
                let busiest = service.busiest(asked, control + SECOND, SECOND);
                assert!(busiest < TARGET, "{busiest} in a second");
            }
            let busiest = crowd.service.busiest(asked, control, SECOND);
            assert!(busiest > 300, "they were in the lane: {busiest}");
            let busiest = crowd.sibling.busiest(asked + 15 * SECOND, control, SECOND);
            assert!(busiest <= 1, "but not at the sibling: {busiest}");
            // They leave the lane as calm as they came.
            crowd.run_until(control + MINUTE);
            is_calm(&crowd.service, control + 2 * SECOND, crowd.now());
            is_calm(&crowd.sibling, control + 3 * SECOND, crowd.now());
        }
    }
}

#[test]
fn a_hand_over_takes_no_longer_than_the_lane_and_a_crash_than_a_poll() {
    for (standbys, poll, lane) in [
        (1, 2000, 100),
        (5, 2000, 100),
        (50, 2000, 100),
        (1, 500, 100),
        (1, 12_000, 1500),
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

/// Until somebody is hot, or an hour has passed: how long that took.
fn run_until_hot(crowd: &mut Crowd) -> Duration {
    let from = crowd.now();
    while crowd.hot_and_warm().0 == 0 && crowd.now() < from + 60 * MINUTE {
        crowd.run_until(crowd.now() + MILLI);
    }
    Duration::from_nanos(crowd.now() - from)
}

#[test]
fn another_is_hot_soon_and_until_then_a_warm_one_takes_over() {
    let most = WARM_POLL * 6 / 5;
    for standbys in [3, 5, 50] {
        let mut crowd = Crowd::new(plan(standbys, DEFAULT));
        let mut longest = Duration::ZERO;
        for _ in 0..20 {
            crowd.settle();
            assert_eq!(crowd.hot_and_warm(), (1, standbys - 1));
            crowd.hand_over();
            // Whoever was stopped is back a second later, and looks first.
            let gap = run_until_hot(&mut crowd);
            assert!(gap < Duration::from_secs(2), "{standbys}: {gap:?}");
            crowd.settle();
            let gap = crowd.crash_with_the_hot_standby();
            assert!(gap <= most + ROUND_TRIPS, "{standbys}: {gap:?}");
            longest = longest.max(gap);
            // The lease of the one that is gone runs out first.
            let gap = run_until_hot(&mut crowd);
            crowd.run_until(crowd.now() + MINUTE);
            assert!(gap < SIBLING_LEASE + most, "{standbys}: {gap:?}");
        }
        assert!(standbys > 3 || longest > DEFAULT * 2, "{longest:?}");
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
            refuses_sibling: true,
            ..plan(500, DEFAULT)
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
