//! Polls of a standby.

use super::*;

/// Returns the shortest and the longest wait after `first` and then `second`.
fn waits(poll: Duration, first: &HolderInfo, second: &HolderInfo) -> (Duration, Duration) {
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

fn drains() -> HolderInfo {
    HolderInfo {
        draining: true,
        ..HolderInfo::default()
    }
}

#[test]
fn standby_behind_a_draining_holder_polls_eight_times_as_often() {
    // An eighth, between 250 ms and 2 s, never slower than the poll.
    for (poll, fast) in [
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
            least >= ms(fast) * 4 / 5 && most <= ms(fast) * 6 / 5,
            "poll {poll}"
        );
        assert!(most > ms(fast) && least < ms(fast), "poll {poll}");
        let (_, most) = waits(ms(poll), &HolderInfo::default(), &drains());
        assert!(most <= ms(fast) * 6 / 5, "poll {poll}");
    }
}

#[test]
fn standbys_that_start_together_or_see_a_drain_end_together_spread_out() {
    let first = |seed| {
        let mut tenure = acquiring(Rules { seed, ..rules() });
        tenure.step(BEGIN, refused(held()));
        tenure.wake_at().since(BEGIN)
    };
    assert!((0..500).map(first).min() < Some(ms(100)));
    assert!((0..500).map(first).max() > Some(ms(2100)));
    let (least, most) = waits(secs(2), &drains(), &HolderInfo::default());
    assert!(least < ms(100) && most > ms(2100) && most <= ms(2400));
    let (least, most) = waits(secs(2), &HolderInfo::default(), &HolderInfo::default());
    assert!(
        least >= ms(1600) && most <= ms(2400),
        "then they keep apart"
    );
}

#[test]
fn throttled_standby_asks_no_faster_than_it_polls() {
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

#[test]
fn standby_that_polls_slowly_looks_once_more_before_its_wait_ends() {
    for seed in 0..100 {
        let mut tenure = acquiring(Rules {
            poll: Some(secs(12)),
            wait: Some(secs(5)),
            seed,
            ..rules()
        });
        tenure.step(BEGIN, refused(held()));
        let mut now = BEGIN;
        while tenure.wake_at() < BEGIN + secs(5) {
            now = tenure.wake_at();
            assert!(acquires(&tenure.step(now, Event::Ticked)));
            tenure.step(now, refused(held()));
        }
        assert!(now >= BEGIN + ms(4700), "{now:?}");
    }
}

#[test]
fn unanswered_standby_asks_no_faster_than_it_polls() {
    for (poll, least, most) in [
        (500, 1600, 2400),
        (2000, 1600, 2400),
        (12_000, 9600, 14_400),
    ] {
        let mut tenure = acquiring(Rules {
            poll: Some(ms(poll)),
            ..rules()
        });
        tenure.step(BEGIN, refused(held()));
        let now = tenure.wake_at();
        tenure.step(now, Event::Ticked);
        tenure.step(now, refused(transient()));
        let wait = tenure.wake_at().since(now);
        assert!(wait >= ms(least) && wait <= ms(most), "{poll}: {wait:?}");
    }
}

#[test]
fn standby_looks_when_the_lease_expires_if_that_is_before_its_poll() {
    let expires = |span| HolderInfo {
        expires: Some(BEGIN + span),
        ..HolderInfo::default()
    };
    for seed in 0..50 {
        let mut tenure = acquiring(Rules {
            poll: Some(secs(8)),
            seed,
            ..rules()
        });
        tenure.step(BEGIN, refused(Failure::Held(HolderInfo::default())));
        let now = tenure.wake_at();
        let due = now + ms(700);
        tenure.step(now, Event::Ticked);
        let actions = tenure.step(now, refused(Failure::Held(expires(due.since(BEGIN)))));
        assert_eq!(tenure.wake_at(), due);
        let standing_by = |action: &Action| matches!(action, Action::Notify(Notice::StandingBy(_)));
        assert!(!actions.iter().any(standing_by), "no news");
        tenure.step(due, Event::Ticked);
        tenure.step(due, refused(Failure::Held(expires(due.since(BEGIN)))));
        assert!(tenure.wake_at() > due + secs(6));
    }
}
