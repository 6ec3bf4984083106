//! Ends of tenures: as recorded, or as inferred.

use super::*;

#[test]
fn hand_over_is_two_tenures_with_a_gap() {
    let (mut one, mut two) = pair();
    one.tenure(10, 50, 1).word(51, EventKind::Done);
    // Woken before the first one could report its release.
    two.tenure(60, 90, 2);
    let timeline = told(&[&one, &two]);
    let lock = only(&timeline);
    assert_eq!(tokens(&timeline), [1, 2]);
    assert_eq!(lock.tenures[0].cause.as_deref(), Some("stopped by SIGTERM"));
    assert_eq!(lock.tenures[0].drains.len(), 1);
    assert_eq!(lock.gaps.len(), 1);
    assert_eq!(lock.gaps[0].to - lock.gaps[0].from, 900_000_000);
    assert!(!lock.gaps[0].at_least && !timeline.has_overlap());
    assert!(
        text(&timeline).ends_with("no overlap\n"),
        "{}",
        text(&timeline)
    );
}

#[test]
fn killed_tenure_ends_by_its_deadline_or_by_the_next_beginning() {
    let killed = || {
        let mut one = Pen::new("web1", "a");
        one.holds(10, 1)
            .starts(10, 590)
            .word(20, EventKind::CommandStarted);
        one
    };
    let end = |timeline: &Timeline| {
        let tenure = &only(timeline).tenures[0];
        (tenure.to, tenure.end)
    };
    let at = |tenths: i64| BOOTED + tenths * 100_000_000;
    let alone = told(&[&killed()]);
    assert_eq!(end(&alone), (at(590), End::Deadline));
    assert!(
        text(&alone).contains("at the latest at its deadline"),
        "{}",
        text(&alone)
    );
    // Its guardian released the lease early.
    let mut two = Pen::new("web2", "a");
    two.tenure(40, 90, 2);
    let timeline = told(&[&killed(), &two]);
    assert_eq!(end(&timeline), (at(40), End::Next));
    let lock = only(&timeline);
    assert!(lock.gaps.is_empty() && lock.overlaps.is_empty());
    assert!(text(&timeline).ends_with("no overlap; 1 end not seen\n"));
    // The lease expired.
    let mut two = Pen::new("web2", "a");
    two.tenure(620, 700, 2);
    let timeline = told(&[&killed(), &two]);
    assert_eq!(end(&timeline), (at(590), End::Deadline));
    let [gap] = &only(&timeline).gaps[..] else {
        panic!("{timeline:?}")
    };
    assert!(gap.at_least && gap.from == at(590) && gap.to == at(620));
    // It was not dead at all.
    let mut one = killed();
    one.word(60, EventKind::Doubt);
    let mut two = Pen::new("web2", "a");
    two.tenure(40, 90, 2);
    assert!(told(&[&one, &two]).has_overlap());
}

#[test]
fn unseen_end_without_a_deadline_is_reported_as_open() {
    let mut one = Pen::new("web1", "a");
    one.holds(10, 1).word(10, EventKind::Starting);
    let timeline = told(&[&one]);
    assert!(
        text(&timeline).contains("ended unseen, or goes on"),
        "{}",
        text(&timeline)
    );
    // The same process went on.
    one.word(80, EventKind::Standby);
    let timeline = told(&[&one]);
    assert!(text(&timeline).contains("lines that say how are missing"));
}

#[test]
fn renewal_moves_the_deadline() {
    let mut one = Pen::new("web1", "a");
    one.holds(10, 1).starts(10, 590);
    one.says(200, EventKind::Renewed, |record| {
        record.deadline_ns = Some(79 * SECOND);
    });
    assert_eq!(
        only(&told(&[&one])).tenures[0].deadline,
        Some(BOOTED + 79 * SECOND as i64)
    );
}

#[test]
fn restarts_within_a_tenure_are_one_tenure() {
    let (mut one, mut two) = pair();
    one.holds(10, 1)
        .word(10, EventKind::Starting)
        .word(20, EventKind::TreeEmpty)
        .word(20, EventKind::Resting)
        .word(30, EventKind::Restarting)
        .word(30, EventKind::Starting)
        .word(50, EventKind::TreeEmpty)
        .word(51, EventKind::Released);
    two.tenure(40, 90, 2);
    let timeline = told(&[&one, &two]);
    assert_eq!(tokens(&timeline), [1, 2]);
    assert!(timeline.has_overlap(), "the second run of its command");
}

#[test]
fn each_slot_is_a_separate_lock() {
    let (mut one, mut two) = pair();
    one.word(1, EventKind::Competing);
    one.common.lock = "file:/x.0".into();
    one.tenure(10, 50, 1);
    two.word(1, EventKind::Competing);
    two.common.lock = "file:/x.1".into();
    two.tenure(20, 60, 1);
    let timeline = told(&[&one, &two]);
    let names: Vec<_> = timeline.locks.iter().map(|lock| &*lock.name).collect();
    assert_eq!(names, ["file:/x.0", "file:/x.1"]);
    assert!(!timeline.has_overlap());
}
