//! Judges the answers of instances: could two have led at the same time?
//!
//! An answer of 200 was true at some moment between its request and its end. A tenure has no
//! pauses, so between the first and the last such answer with its token the instance claimed to
//! lead all the time. Two of these spans may not overlap, and no answer may lie wholly within
//! another tenure's span.

use std::collections::BTreeMap;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Yes {
    pub(super) who: &'static str,
    pub(super) token: u64,
    /// CLOCK_BOOTTIME before the request.
    pub(super) asked: u64,
    /// CLOCK_BOOTTIME after the answer.
    pub(super) told: u64,
}

pub(super) fn faults(answers: &[Yes]) -> Vec<String> {
    let mut certain: BTreeMap<(&str, u64), (u64, u64)> = BTreeMap::new();
    for yes in answers {
        let tenure = certain.entry((yes.who, yes.token)).or_insert((u64::MAX, 0));
        tenure.0 = tenure.0.min(yes.told);
        tenure.1 = tenure.1.max(yes.asked);
    }
    let mut faults = Vec::new();
    for (one, (from, to)) in &certain {
        for (other, (begin, end)) in &certain {
            if one < other && from < to && begin < end && from.max(begin) < to.min(end) {
                faults.push(format!("{one:?} and {other:?} both led"));
            }
        }
        for yes in answers {
            let another = (yes.who, yes.token) != *one;
            if another && *from < yes.asked && yes.told < *to {
                faults.push(format!("{yes:?} within the time of {one:?}"));
            }
        }
    }
    faults
}

fn yes(who: &'static str, token: u64, asked: u64, told: u64) -> Yes {
    Yes {
        who,
        token,
        asked,
        told,
    }
}

#[test]
fn one_after_the_other_is_no_fault() {
    let answers = [
        yes("one", 1, 0, 2),
        yes("one", 1, 10, 12),
        yes("two", 2, 11, 13),
        yes("two", 2, 20, 22),
        yes("one", 3, 21, 23),
    ];
    assert_eq!(faults(&answers), [""; 0]);
}

#[test]
fn an_answer_that_was_long_under_way_is_no_fault() {
    // Requested before the other led; the answer may have been true then.
    let answers = [
        yes("two", 2, 10, 11),
        yes("one", 1, 5, 50),
        yes("two", 2, 60, 61),
    ];
    assert_eq!(faults(&answers), [""; 0]);
}

#[test]
fn both_at_once_is_seen() {
    let answers = [
        yes("one", 1, 0, 2),
        yes("two", 2, 3, 4),
        yes("one", 1, 10, 12),
        yes("two", 2, 20, 22),
    ];
    assert!(!faults(&answers).is_empty());
    // A single answer within another's tenure.
    let answers = [
        yes("two", 2, 0, 2),
        yes("one", 1, 5, 6),
        yes("two", 2, 10, 12),
    ];
    assert_eq!(faults(&answers).len(), 1);
}
