//! The service's cost of many standbys, and how soon one takes over.

use std::time::Duration;

use super::clock::{MILLI, SECOND, Time, nanos};
use super::crowd::{Crowd, Plan};
use super::service::TARGET;

const MINUTE: Time = 60 * SECOND;
/// Look, acquire and sign, there and back.
const ROUND_TRIPS: Duration = Duration::from_millis(40);
const DEFAULT: Duration = Duration::from_secs(2);
/// Standbys for which the default poll is made, as docs/azure.md says.
const AT_THE_DEFAULT: usize = 80;

fn plan(standbys: usize, poll: Duration) -> Plan {
    Plan {
        standbys,
        poll,
        drain: Duration::from_secs(30),
        started_within: Duration::from_secs(1),
        throttles: None,
        doorbell: false,
        seed: 1,
    }
}

/// Returns numbers of standbys with their polls: the default, and docs/azure.md's advice for more,
/// a second for every 40.
fn as_the_book_says() -> [(usize, Duration); 3] {
    [
        (AT_THE_DEFAULT, DEFAULT),
        (200, Duration::from_secs(5)),
        (500, Duration::from_secs(12)),
    ]
}

/// Returns `share` per cent of a blob's target in this time.
fn per_cent(share: usize, time: Time) -> usize {
    let seconds = usize::try_from(time / SECOND).expect("a short time");
    TARGET * share * seconds / 100
}

/// Checks that any ten seconds stay below a tenth of the target. Standbys do not co-ordinate, so in
/// an hour one second has two thirds more than the average.
fn is_calm(crowd: &Crowd, from: Time, to: Time) {
    let ten = crowd.service.busiest(from, to, 10 * SECOND);
    assert!(ten < per_cent(10, 10 * SECOND), "{ten} in ten seconds");
    let one = crowd.service.busiest(from, to, SECOND);
    assert!(one < per_cent(16, SECOND), "{one} in a second");
}

/// Returns the mean number of requests a second.
fn mean(crowd: &Crowd, from: Time, to: Time) -> f64 {
    crowd.service.asked(from, to) as f64 / ((to - from) / SECOND) as f64
}

#[test]
fn crowd_of_recommended_size_stays_below_a_tenth_of_the_target() {
    for (standbys, poll) in as_the_book_says() {
        for seed in 1..=3 {
            let mut crowd = Crowd::new(Plan {
                seed,
                ..plan(standbys, poll)
            });
            crowd.run_until(20 * MINUTE);
            assert_eq!(crowd.standing_by(), standbys);
            // Every instance looks once, the first acquires, and a few look again already.
            let start = SECOND + 100 * MILLI;
            let first = crowd.service.asked(0, start);
            let most = standbys * 3 / 2 + 10;
            assert!((standbys..most).contains(&first), "{first} at the start");
            is_calm(&crowd, start, crowd.now());
            let rate = mean(&crowd, start, crowd.now());
            let expected = standbys as f64 / poll.as_secs_f64();
            assert!((rate / expected - 1.0).abs() < 0.03, "{rate} a second");
        }
    }
}

#[test]
fn a_single_standby_costs_one_request_with_each_poll() {
    let mut crowd = Crowd::new(plan(1, DEFAULT));
    crowd.run_until(MINUTE);
    let from = crowd.now();
    crowd.run_until(from + 60 * MINUTE);
    let hour = crowd.service.asked(from, crowd.now());
    assert!((1950..2010).contains(&hour), "with the holder's: {hour}");
}

#[test]
fn crowd_of_recommended_size_stays_below_the_target_during_a_drain() {
    for (standbys, poll) in as_the_book_says() {
        let mut crowd = Crowd::new(plan(standbys, poll));
        crowd.run_until(MINUTE);
        for _ in 0..2 {
            let asked = crowd.now();
            let gap = crowd.hand_over();
            assert!(gap < Duration::from_millis(200), "{gap:?}");
            let control = crowd.now();
            let busiest = crowd.service.busiest(asked, control + SECOND, SECOND);
            assert!(busiest < TARGET, "{busiest} in a second");
            assert!(busiest > 300, "they looked eight times as often: {busiest}");
            // The standbys become as calm again as they were.
            crowd.run_until(control + MINUTE);
            is_calm(&crowd, control + 2 * SECOND, crowd.now());
        }
    }
}

#[test]
fn a_hand_over_takes_no_longer_than_an_eighth_of_a_poll_and_a_crash_than_a_poll() {
    for (standbys, poll, fast) in [
        (1, 2000, 250),
        (5, 2000, 250),
        (50, 2000, 250),
        (1, 500, 250),
        (1, 12_000, 1500),
        (5, 12_000, 1500),
    ] {
        let poll = Duration::from_millis(poll);
        let fast = Duration::from_millis(fast);
        let mut crowd = Crowd::new(plan(standbys, poll));
        let mut longest = Duration::ZERO;
        for _ in 0..30 {
            crowd.settle();
            let gap = crowd.hand_over();
            assert!(
                gap <= fast * 6 / 5 + ROUND_TRIPS,
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
        assert!(standbys > 1 || longest > fast / 2, "{longest:?}");
    }
}

/// Retry-After of a refusal.
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
fn too_large_crowd_is_throttled_in_a_drain_and_control_still_changes() {
    for wish in WISHES {
        let mut crowd = Crowd::new(Plan {
            throttles: Some(wish),
            ..plan(500, DEFAULT)
        });
        crowd.run_until(MINUTE);
        assert_eq!(crowd.service.refused(), 0, "half of what it takes");
        for _ in 0..3 {
            let gap = crowd.hand_over();
            assert!(gap < Duration::from_secs(10), "{gap:?}");
            crowd.run_until(crowd.now() + MINUTE);
        }
        // A refused standby does not look before its next poll: a third of the 2000/s is left.
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

fn with_a_bell(standbys: usize) -> Crowd {
    Crowd::new(Plan {
        doorbell: true,
        ..plan(standbys, DEFAULT)
    })
}

#[test]
fn standbys_with_a_doorbell_cost_little_and_take_over_at_once() {
    for standbys in [1, 5, 50, 500] {
        let mut crowd = with_a_bell(standbys);
        crowd.run_until(MINUTE);
        let (mut handed_over, mut crashed) = (Duration::ZERO, Duration::ZERO);
        for _ in 0..20 {
            let from = crowd.now();
            crowd.run_until(from + MINUTE);
            let ten = crowd
                .service
                .busiest(from + 15 * SECOND, crowd.now(), 10 * SECOND);
            assert!(
                ten < per_cent(10, 10 * SECOND),
                "{standbys}: {ten} in ten seconds"
            );
            let from = crowd.now();
            handed_over = handed_over.max(crowd.hand_over());
            crowd.run_until(crowd.now() + 15 * SECOND);
            let tenth = crowd.service.busiest(from, crowd.now(), 100 * MILLI);
            assert!(tenth <= 60, "{standbys}: {tenth} in 100 ms");
            let from = crowd.now();
            crashed = crashed.max(crowd.crash());
            crowd.run_until(crowd.now() + 15 * SECOND);
            let tenth = crowd.service.busiest(from, crowd.now(), 100 * MILLI);
            assert!(tenth <= 60, "{standbys}: {tenth} in 100 ms after a crash");
        }
        assert!(handed_over <= ROUND_TRIPS, "{standbys}: {handed_over:?}");
        assert!(
            crashed <= Duration::from_millis(200),
            "{standbys}: {crashed:?}"
        );
    }
}

#[test]
fn a_holder_that_lost_its_power_is_followed_as_ever_although_its_bell_had_lived() {
    for standbys in [1, 50] {
        let mut crowd = with_a_bell(standbys);
        for _ in 0..10 {
            crowd.run_until(crowd.now() + MINUTE);
            let gap = crowd.power_off();
            assert!(gap <= DEFAULT * 6 / 5 + ROUND_TRIPS, "{standbys}: {gap:?}");
        }
    }
}
