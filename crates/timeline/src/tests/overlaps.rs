//! Overlaps of tenures, and what is none.

use super::*;

#[test]
fn successor_before_the_released_record_is_no_overlap() {
    let (mut one, mut two) = pair();
    one.holds(10, 1)
        .word(10, EventKind::Starting)
        .word(50, EventKind::TreeEmpty)
        .word(55, EventKind::Released);
    two.tenure(52, 90, 2);
    let timeline = told(&[&one, &two]);
    assert!(!timeline.has_overlap(), "{}", text(&timeline));
    assert!(only(&timeline).gaps.is_empty());
}

#[test]
fn overlap_lasts_as_long_as_both_lived() {
    let (mut one, mut two) = pair();
    one.tenure(10, 50, 1);
    two.tenure(49, 90, 2);
    let timeline = told(&[&one, &two]);
    let [overlap] = &only(&timeline).overlaps[..] else {
        panic!("{timeline:?}")
    };
    assert_eq!(overlap.of, (0, 1));
    assert_eq!(overlap.to - overlap.from, 100_000_000);
    // On one machine even less than the skew counts.
    assert!(!overlap.within_skew && timeline.has_overlap());
    assert!(text(&timeline).contains("OVERLAP  web1@host-of-a and web2@host-of-a both"));
}

#[test]
fn tenure_within_another_is_an_overlap_even_without_a_command() {
    let (mut one, mut two) = pair();
    one.tenure(10, 90, 1);
    two.holds(40, 2)
        .word(40, EventKind::NotStarted)
        .word(41, EventKind::Released);
    assert!(told(&[&one, &two]).has_overlap());
}

#[test]
fn long_tenure_overlaps_with_each_that_began_within_it() {
    let (mut one, mut two) = pair();
    one.tenure(10, 200, 1);
    two.tenure(20, 40, 2).tenure(60, 80, 3);
    assert_eq!(only(&told(&[&one, &two])).overlaps.len(), 2);
}

#[test]
fn overlap_between_machines_within_the_skew_is_not_counted() {
    for (begin, within) in [(49, true), (48, false)] {
        let mut one = Pen::new("web1", "a");
        let mut two = Pen::new("web2", "b");
        one.tenure(10, 50, 1);
        two.tenure(begin, 90, 2);
        let timeline = told(&[&one, &two]);
        assert_eq!(only(&timeline).overlaps[0].within_skew, within);
        assert_eq!(timeline.has_overlap(), !within);
        assert_eq!(text(&timeline).contains("OVERLAP"), !within);
    }
}

#[test]
fn setting_the_clock_changes_nothing_on_its_machine() {
    // By the wall clock the second comes first.
    let (mut one, mut two) = pair();
    one.tenure(10, 50, 1).word(52, EventKind::Done);
    one.common.run = 8;
    two.off = -3600;
    two.tenure(60, 90, 2);
    let timeline = told(&[&one, &two]);
    assert_eq!(tokens(&timeline), [1, 2]);
    let lock = only(&timeline);
    assert_eq!(lock.gaps[0].to - lock.gaps[0].from, 900_000_000);
    assert!(
        timeline.notes[0].contains("was set 1 time, by -3600.000 s"),
        "{:?}",
        timeline.notes
    );
    let (mut one, mut two) = pair();
    one.holds(10, 1).word(10, EventKind::Starting);
    one.off = 7;
    one.word(50, EventKind::TreeEmpty)
        .word(51, EventKind::Released);
    two.off = 7;
    two.tenure(60, 90, 2);
    let timeline = told(&[&one, &two]);
    assert!(!timeline.has_overlap() && tokens(&timeline) == [1, 2]);
}

#[test]
fn self_reported_overlap_counts() {
    let (mut one, mut two) = pair();
    one.holds(10, 1)
        .word(10, EventKind::Starting)
        .word(30, EventKind::Lost)
        .word(40, EventKind::TreeEmpty);
    one.says(41, EventKind::Done, |record| record.overlap = Some(true));
    two.tenure(60, 90, 2);
    let timeline = told(&[&one, &two]);
    assert!(timeline.has_overlap() && only(&timeline).overlaps.is_empty());
    assert!(
        text(&timeline).contains("OVERLAP NOT EXCLUDED"),
        "{}",
        text(&timeline)
    );
    let mut one = Pen::new("web1", "a");
    one.tenure(10, 50, 1);
    one.says(60, EventKind::Overlap, |record| record.overlap = Some(true));
    assert!(told(&[&one]).has_overlap());
}
