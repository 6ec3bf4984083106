//! How often a standby looks: its poll, the fast lane behind a draining holder, and how those that
//! wait from one moment on are kept from looking together.

use super::*;

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
