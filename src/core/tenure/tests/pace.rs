//! How often a standby looks: its poll, the fast lane behind a draining holder, and how those that
//! wait from one moment on are kept from looking together.

use super::*;
use crate::core::Duty;

/// The shortest and the longest wait of standbys with this poll that saw the first and then the second.
fn waits(poll: Duration, first: &Sight, second: &Sight) -> (Duration, Duration) {
    let waits = (0..500).map(|seed| {
        let mut tenure = acquiring(Rules {
            poll: Some(poll),
            seed,
            ..rules()
        });
        tenure.step(BEGIN, refused(Failure::Held(first.clone())));
        let now = tenure.wake_at();
        assert!(acquires(&tenure.step(now, Event::Ticked)));
        tenure.step(now, refused(Failure::Held(second.clone())));
        tenure.wake_at().since(now)
    });
    waits.fold((Duration::MAX, Duration::ZERO), |ends, wait| {
        (ends.0.min(wait), ends.1.max(wait))
    })
}

fn drains() -> Sight {
    Sight {
        draining: true,
        ..Sight::default()
    }
}

#[test]
fn a_standby_behind_a_draining_holder_takes_the_fast_lane() {
    // Poll and lane: an eighth, between four times a second and every 2 s, never slower than the poll.
    for (poll, lane) in [
        (100, 100),
        (250, 250),
        (500, 250),
        (2000, 250),
        (4000, 500),
        (12_000, 1500),
        (16_000, 2000),
        (3_600_000, 2000),
    ] {
        let (least, most) = waits(ms(poll), &drains(), &drains());
        assert!(
            least >= ms(lane) * 4 / 5 && most <= ms(lane) * 6 / 5,
            "poll {poll}"
        );
        assert!(most > ms(lane) && least < ms(lane), "poll {poll}");
        let (_, most) = waits(ms(poll), &Sight::default(), &drains());
        assert!(most <= ms(lane) * 6 / 5, "poll {poll}");
    }
}

#[test]
fn standbys_that_came_or_saw_a_drain_end_together_do_not_stay_together() {
    let first = |seed| {
        let mut tenure = acquiring(Rules { seed, ..rules() });
        tenure.step(BEGIN, refused(held()));
        tenure.wake_at().since(BEGIN)
    };
    assert!((0..500).map(first).min() < Some(ms(100)));
    assert!((0..500).map(first).max() > Some(ms(2100)));
    let (least, most) = waits(secs(2), &drains(), &Sight::default());
    assert!(least < ms(100) && most > ms(2100) && most <= ms(2400));
    let (least, most) = waits(secs(2), &Sight::default(), &Sight::default());
    assert!(
        least >= ms(1600) && most <= ms(2400),
        "then they keep apart"
    );
}

#[test]
fn a_standby_that_is_throttled_leaves_the_fast_lane_and_asks_no_faster_than_it_polls() {
    for (poll, least) in [(500, 1600), (2000, 1600), (12_000, 9600)] {
        let mut tenure = acquiring(Rules {
            poll: Some(ms(poll)),
            ..rules()
        });
        tenure.step(BEGIN, refused(Failure::Held(drains())));
        let now = tenure.wake_at();
        tenure.step(now, Event::Ticked);
        tenure.step(now, refused(transient()));
        assert!(tenure.wake_at() >= now + ms(least), "poll {poll}");
    }
}

fn at_duty(sight: Sight, duty: Duty) -> Sight {
    Sight { duty, ..sight }
}

#[test]
fn a_warm_standby_looks_every_twelve_seconds_and_the_hot_one_at_its_poll() {
    // Poll, and what it comes to: calm and in the lane, for a warm and for the hot one.
    for (poll, warm, warm_lane, hot_lane) in [
        (2000, 12_000, 1500, 100),
        (100, 12_000, 1500, 100),
        (50, 12_000, 1500, 50),
        (30_000, 30_000, 2000, 100),
    ] {
        for (duty, calm, lane) in [(Duty::Warm, warm, warm_lane), (Duty::Hot, poll, hot_lane)] {
            for (sight, pace) in [(Sight::default(), calm), (drains(), lane)] {
                let sight = at_duty(sight, duty);
                let (least, most) = waits(ms(poll), &sight, &sight);
                assert!(
                    least >= ms(pace) * 4 / 5 && most <= ms(pace) * 6 / 5,
                    "{duty:?} at poll {poll}: {least:?} to {most:?}"
                );
                assert!(most > ms(pace) && least < ms(pace), "{duty:?}, {poll}");
            }
        }
    }
}

#[test]
fn standbys_that_find_out_together_that_another_is_hot_do_not_stay_together() {
    let calm = |duty| at_duty(Sight::default(), duty);
    for (before, after, poll) in [
        (Duty::Unshared, Duty::Warm, 12_000),
        (Duty::Hot, Duty::Warm, 12_000),
        (Duty::Warm, Duty::Unshared, 2000),
    ] {
        let (least, most) = waits(secs(2), &calm(before), &calm(after));
        assert!(
            least < ms(poll) / 20 && most > ms(poll) && most <= ms(poll) * 6 / 5,
            "{before:?} to {after:?}: {least:?} to {most:?}"
        );
    }
}

#[test]
fn a_warm_standby_looks_once_more_before_its_wait_ends() {
    for seed in 0..100 {
        let mut tenure = acquiring(Rules {
            wait: Some(secs(5)),
            seed,
            ..rules()
        });
        let sight = at_duty(Sight::default(), Duty::Warm);
        tenure.step(BEGIN, refused(Failure::Held(sight.clone())));
        let mut now = BEGIN;
        while tenure.wake_at() < BEGIN + secs(5) {
            now = tenure.wake_at();
            assert!(acquires(&tenure.step(now, Event::Ticked)));
            tenure.step(now, refused(Failure::Held(sight.clone())));
        }
        assert!(now >= BEGIN + ms(4700), "{now:?}");
    }
}

#[test]
fn a_warm_standby_that_is_not_answered_asks_no_faster_than_it_looks() {
    let calm = |duty| at_duty(Sight::default(), duty);
    for (duty, least, most) in [
        (Duty::Warm, 9600, 14_400),
        (Duty::Hot, 1600, 2400),
        (Duty::Unshared, 1600, 2400),
    ] {
        let mut tenure = acquiring(rules());
        tenure.step(BEGIN, refused(Failure::Held(calm(duty))));
        let now = tenure.wake_at();
        tenure.step(now, Event::Ticked);
        tenure.step(now, refused(transient()));
        let wait = tenure.wake_at().since(now);
        assert!(wait >= ms(least) && wait <= ms(most), "{duty:?}: {wait:?}");
    }
}

#[test]
fn who_of_the_standbys_is_hot_is_no_news() {
    let mut tenure = acquiring(rules());
    let sight = |duty| Failure::Held(at_duty(Sight::default(), duty));
    tenure.step(BEGIN, refused(sight(Duty::Unshared)));
    for duty in [Duty::Hot, Duty::Warm, Duty::Unshared] {
        let now = tenure.wake_at();
        assert!(acquires(&tenure.step(now, Event::Ticked)));
        assert_eq!(tenure.step(now, refused(sight(duty))), []);
    }
}

#[test]
fn a_standby_looks_when_the_lock_may_be_had_if_that_is_before_its_poll() {
    let expires = |span| Sight {
        expires: Some(BEGIN + span),
        ..Sight::default()
    };
    for seed in 0..50 {
        let mut tenure = acquiring(Rules {
            poll: Some(secs(8)),
            seed,
            ..rules()
        });
        tenure.step(BEGIN, refused(Failure::Held(Sight::default())));
        let now = tenure.wake_at();
        let due = now + ms(700);
        tenure.step(now, Event::Ticked);
        let actions = tenure.step(now, refused(Failure::Held(expires(due.since(BEGIN)))));
        assert_eq!(tenure.wake_at(), due);
        let standing_by = |action: &Action| matches!(action, Action::Report(Notice::StandingBy(_)));
        assert!(!actions.iter().any(standing_by), "no news");
        // What is over says nothing about the next look.
        tenure.step(due, Event::Ticked);
        tenure.step(due, refused(Failure::Held(expires(due.since(BEGIN)))));
        assert!(tenure.wake_at() > due + secs(6));
    }
}
