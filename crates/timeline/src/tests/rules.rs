//! The rules that one instance can break alone.

use super::*;

fn broken(pens: &[&Pen]) -> Vec<String> {
    let timeline = told(pens);
    let all = timeline.contradictions();
    // Whoever is told of one is told everywhere.
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
fn a_tenure_under_a_lease_breaks_no_rule() {
    let mut one = Pen::new("web1", "a");
    one.holds(10, 1)
        .leases(10, 140, 150)
        .word(60, EventKind::Draining)
        // Killed at its deadline, which took a while.
        .word(145, EventKind::TreeEmpty)
        .word(146, EventKind::LeftToRunOut);
    assert_eq!(broken(&[&one]), [""; 0]);
}

#[test]
fn a_token_that_is_not_greater_than_an_earlier_one_is_a_broken_rule() {
    for (token, sound) in [(8, true), (7, false), (6, false)] {
        let (mut one, mut two) = pair();
        one.tenure(10, 50, 7);
        two.tenure(60, 90, token);
        let all = broken(&[&one, &two]);
        assert_eq!(all.is_empty(), sound, "{token}: {all:?}");
    }
    // Not only than the one before.
    let mut one = Pen::new("web1", "a");
    one.tenure(10, 50, 7).tenure(60, 90, 3).tenure(100, 120, 5);
    assert_eq!(broken(&[&one]).len(), 2);
}

#[test]
fn of_two_machines_tokens_are_compared_as_far_as_their_clocks_tell_who_was_first() {
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
fn a_deadline_that_is_not_before_the_lease_s_end_is_a_broken_rule() {
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
fn a_command_that_outlives_its_lease_is_a_broken_rule() {
    let mut one = Pen::new("web1", "a");
    one.holds(10, 1)
        .leases(10, 140, 150)
        .word(151, EventKind::TreeEmpty)
        .word(152, EventKind::LeftToRunOut);
    assert_one(&[&one], "lived for 0.100s after the end of its lease");
    // Where it was renewed meanwhile it did not.
    let mut one = Pen::new("web1", "a");
    one.holds(10, 1)
        .leases(10, 140, 150)
        .leases(60, 190, 200)
        .word(151, EventKind::TreeEmpty)
        .word(152, EventKind::Released);
    assert_eq!(broken(&[&one]), [""; 0]);
}

#[test]
fn a_lease_that_is_given_back_before_the_tree_is_empty_is_a_broken_rule() {
    let mut one = Pen::new("web1", "a");
    one.holds(10, 1)
        .leases(10, 140, 150)
        .word(50, EventKind::Released);
    assert_one(&[&one], "gave the lease back before");
    // Of a restart the second time counts.
    let mut one = Pen::new("web1", "a");
    one.holds(10, 1)
        .leases(10, 140, 150)
        .word(20, EventKind::TreeEmpty)
        .leases(30, 140, 150)
        .word(50, EventKind::Released);
    assert_one(&[&one], "gave the lease back before");
}

#[test]
fn where_lines_are_missing_nobody_is_accused_of_what_they_may_have_said() {
    let mut one = Pen::new("web1", "a");
    one.holds(10, 1).leases(10, 140, 150);
    one.common.seq += 1;
    one.word(50, EventKind::Released);
    assert_eq!(broken(&[&one]), [""; 0]);
}
