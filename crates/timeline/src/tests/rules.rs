//! Rules that one instance can break alone.

use super::*;

fn broken(pens: &[&Pen]) -> Vec<String> {
    let timeline = told(pens);
    let all = timeline.contradictions();
    assert_eq!(all.is_empty(), !text(&timeline).contains("BROKEN"));
    assert_eq!(json(&timeline)["violations"], all.len());
    assert!(!timeline.has_overlap());
    all
}

fn assert_one(pens: &[&Pen], words: &str) {
    let all = broken(pens);
    assert!(
        matches!(&all[..], [one] if one.contains(words)),
        "{words}: {all:?}"
    );
}

#[test]
fn normal_tenure_breaks_no_rule() {
    let mut one = Pen::new("web1", "a");
    one.holds(10, 1)
        .leases(10, 140, 150)
        .word(60, EventKind::Draining)
        .word(145, EventKind::TreeEmpty)
        .word(146, EventKind::LeftToRunOut);
    assert_eq!(broken(&[&one]), [""; 0]);
}

#[test]
fn token_must_be_greater_than_all_earlier_ones() {
    for (token, sound) in [(8, true), (7, false), (6, false)] {
        let (mut one, mut two) = pair();
        one.tenure(10, 50, 7);
        two.tenure(60, 90, token);
        let all = broken(&[&one, &two]);
        assert_eq!(all.is_empty(), sound, "{token}: {all:?}");
    }
    let mut one = Pen::new("web1", "a");
    one.tenure(10, 50, 7).tenure(60, 90, 3).tenure(100, 120, 5);
    assert_eq!(broken(&[&one]).len(), 2);
}

#[test]
fn tokens_of_two_machines_are_compared_beyond_the_skew_only() {
    for (from, sound) in [(11, true), (12, false)] {
        let mut one = Pen::new("web1", "a");
        let mut two = Pen::new("web2", "b");
        one.holds(10, 7)
            .word(10, EventKind::NotStarted)
            .word(10, EventKind::Released);
        two.holds(from, 6)
            .word(from, EventKind::NotStarted)
            .word(from, EventKind::Released);
        assert_eq!(broken(&[&one, &two]).is_empty(), sound, "{from}");
    }
}

#[test]
fn deadline_must_be_before_the_lease_s_end() {
    for (deadline, sound) in [(149, true), (150, false), (151, false)] {
        let mut one = Pen::new("web1", "a");
        one.holds(10, 1)
            .leases(10, deadline, 150)
            .word(50, EventKind::TreeEmpty)
            .word(51, EventKind::Released);
        assert_eq!(broken(&[&one]).is_empty(), sound, "{deadline}");
    }
}

#[test]
fn command_must_not_outlive_its_lease() {
    let mut one = Pen::new("web1", "a");
    one.holds(10, 1)
        .leases(10, 140, 150)
        .word(151, EventKind::TreeEmpty)
        .word(152, EventKind::LeftToRunOut);
    assert_one(&[&one], "lived for 0.100s after the end of its lease");
    let mut one = Pen::new("web1", "a");
    one.holds(10, 1)
        .leases(10, 140, 150)
        .leases(60, 190, 200)
        .word(151, EventKind::TreeEmpty)
        .word(152, EventKind::Released);
    assert_eq!(broken(&[&one]), [""; 0]);
}

#[test]
fn lease_must_not_be_released_before_the_tree_is_empty() {
    let mut one = Pen::new("web1", "a");
    one.holds(10, 1)
        .leases(10, 140, 150)
        .word(50, EventKind::Released);
    assert_one(&[&one], "gave the lease back before");
    let mut one = Pen::new("web1", "a");
    one.holds(10, 1)
        .leases(10, 140, 150)
        .word(20, EventKind::TreeEmpty)
        .leases(30, 140, 150)
        .word(50, EventKind::Released);
    assert_one(&[&one], "gave the lease back before");
}

#[test]
fn missing_lines_are_not_counted_as_a_broken_rule() {
    let mut one = Pen::new("web1", "a");
    one.holds(10, 1).leases(10, 140, 150);
    one.common.seq += 1;
    one.word(50, EventKind::Released);
    assert_eq!(broken(&[&one]), [""; 0]);
}
