//! What is made of logs: written by hand, by chance, and by those who were killed.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;
use crate::events::{Record, Word, record};

const SECOND: u64 = 1_000_000_000;
/// When the boots of these tests were, by a right clock.
const BOOTED: i64 = 1_767_225_600_000_000_000;
const SKEW: i64 = 100_000_000;

/// An instance that writes; times are tenths of a second since the boot.
struct Pen {
    common: Record,
    /// How far its wall clock is off, in seconds.
    off: i64,
    lines: Vec<Record>,
}

impl Pen {
    fn new(identity: &str, boot: &str) -> Pen {
        Pen {
            common: Record {
                v: 1,
                boot_id: boot.into(),
                host: format!("host-of-{boot}"),
                identity: identity.into(),
                pid: 1000,
                run: 7,
                lock: "file:/x".into(),
                ..Record::default()
            },
            off: 0,
            lines: Vec::new(),
        }
    }

    fn says(&mut self, tenths: u64, event: Word, more: impl FnOnce(&mut Record)) -> &mut Pen {
        let boottime_ns = tenths * SECOND / 10;
        let wall = BOOTED + i64::try_from(boottime_ns).unwrap() + self.off * SECOND as i64;
        let mut record = Record {
            time: record::spelt(wall),
            boottime_ns,
            event,
            ..self.common.clone()
        };
        more(&mut record);
        self.common.seq += 1;
        self.lines.push(record);
        self
    }

    fn word(&mut self, tenths: u64, event: Word) -> &mut Pen {
        self.says(tenths, event, |_| {})
    }

    fn holds(&mut self, tenths: u64, token: u64) -> &mut Pen {
        self.common.token = Some(token);
        self.word(tenths, Word::Holding)
    }

    fn starts(&mut self, tenths: u64, deadline: u64) -> &mut Pen {
        let deadline_ns = Some(deadline * SECOND / 10);
        self.says(tenths, Word::Starting, |record| {
            record.deadline_ns = deadline_ns;
        })
    }

    /// A whole tenure: drained for half a second, given back a moment after its end.
    fn tenure(&mut self, from: u64, to: u64, token: u64) -> &mut Pen {
        self.holds(from, token)
            .word(from, Word::Starting)
            .says(to - 5, Word::Draining, |record| {
                record.cause = Some("stopped by SIGTERM".into());
            })
            .word(to, Word::TreeEmpty)
            .word(to + 1, Word::Released)
    }
}

fn lines(pens: &[&Pen]) -> Vec<String> {
    let records = pens.iter().flat_map(|pen| &pen.lines);
    records
        .map(|record| serde_json::to_string(record).unwrap())
        .collect()
}

fn of(text: &str) -> Timeline {
    merge(&read([("log", text.as_bytes())]), SKEW)
}

fn told(pens: &[&Pen]) -> Timeline {
    of(&lines(pens).join("\n"))
}

fn only(timeline: &Timeline) -> &Lock {
    let [lock] = &timeline.locks[..] else {
        panic!("{timeline:?}")
    };
    lock
}

fn tokens(timeline: &Timeline) -> Vec<u64> {
    let tenures = only(timeline).tenures.iter();
    tenures.filter_map(|tenure| tenure.token).collect()
}

fn pair() -> (Pen, Pen) {
    (Pen::new("web1", "a"), Pen::new("web2", "a"))
}

#[test]
fn a_hand_over_is_two_tenures_and_the_gap_between_them() {
    let (mut one, mut two) = pair();
    one.tenure(10, 50, 1).word(51, Word::Done);
    // Woken before the first had a chance to say that it had let go.
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
fn a_successor_that_speaks_before_its_predecessor_has_said_released_is_no_overlap() {
    let (mut one, mut two) = pair();
    one.holds(10, 1)
        .word(10, Word::Starting)
        .word(50, Word::TreeEmpty)
        .word(55, Word::Released);
    two.tenure(52, 90, 2);
    let timeline = told(&[&one, &two]);
    assert!(!timeline.has_overlap(), "{}", text(&timeline));
    assert!(only(&timeline).gaps.is_empty());
}

#[test]
fn two_at_the_same_time_are_an_overlap_as_long_as_both_lived() {
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
fn one_within_another_s_time_is_an_overlap_even_if_it_ran_nothing() {
    let (mut one, mut two) = pair();
    one.tenure(10, 90, 1);
    two.holds(40, 2)
        .word(40, Word::NotStarted)
        .word(41, Word::Released);
    assert!(told(&[&one, &two]).has_overlap());
}

#[test]
fn one_long_tenure_overlaps_with_each_that_began_within_it() {
    let (mut one, mut two) = pair();
    one.tenure(10, 200, 1);
    two.tenure(20, 40, 2).tenure(60, 80, 3);
    assert_eq!(only(&told(&[&one, &two])).overlaps.len(), 2);
}

#[test]
fn between_machines_what_the_clocks_may_differ_by_proves_nothing() {
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
fn a_clock_that_was_set_changes_nothing_on_its_machine() {
    // Put back by an hour between the two: by the wall clock the second comes first.
    let (mut one, mut two) = pair();
    one.tenure(10, 50, 1).word(52, Word::Done);
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
    // And in the midst of a tenure.
    let (mut one, mut two) = pair();
    one.holds(10, 1).word(10, Word::Starting);
    one.off = 7;
    one.word(50, Word::TreeEmpty).word(51, Word::Released);
    two.off = 7;
    two.tenure(60, 90, 2);
    let timeline = told(&[&one, &two]);
    assert!(!timeline.has_overlap() && tokens(&timeline) == [1, 2]);
}

#[test]
fn who_was_killed_is_over_by_its_deadline_or_by_the_next_one_s_beginning() {
    let killed = || {
        let mut one = Pen::new("web1", "a");
        one.holds(10, 1)
            .starts(10, 590)
            .word(20, Word::CommandStarted);
        one
    };
    let end = |timeline: &Timeline| only(timeline).tenures[0].end.clone();
    let at = |tenths: i64| BOOTED + tenths * 100_000_000;
    let alone = told(&[&killed()]);
    let unseen = |by, known_by| End::Unseen {
        by: Some(by),
        known_by,
    };
    assert_eq!(end(&alone), unseen(at(590), model::KnownBy::Deadline));
    assert!(
        text(&alone).contains("at the latest at its deadline"),
        "{}",
        text(&alone)
    );
    // Its guardian gave the lease back early.
    let mut two = Pen::new("web2", "a");
    two.tenure(40, 90, 2);
    let timeline = told(&[&killed(), &two]);
    assert_eq!(end(&timeline), unseen(at(40), model::KnownBy::Next));
    let lock = only(&timeline);
    assert!(lock.gaps.is_empty() && lock.overlaps.is_empty());
    assert!(text(&timeline).ends_with("no overlap; 1 end not seen\n"));
    // It ran out.
    let mut two = Pen::new("web2", "a");
    two.tenure(620, 700, 2);
    let timeline = told(&[&killed(), &two]);
    assert_eq!(end(&timeline), unseen(at(590), model::KnownBy::Deadline));
    let [gap] = &only(&timeline).gaps[..] else {
        panic!("{timeline:?}")
    };
    assert!(gap.at_least && gap.from == at(590) && gap.to == at(620));
    // It was not dead at all.
    let mut one = killed();
    one.word(60, Word::Doubt);
    let mut two = Pen::new("web2", "a");
    two.tenure(40, 90, 2);
    assert!(told(&[&one, &two]).has_overlap());
}

#[test]
fn a_lock_without_a_deadline_says_so_where_an_end_was_not_seen() {
    let mut one = Pen::new("web1", "a");
    one.holds(10, 1).word(10, Word::Starting);
    let timeline = told(&[&one]);
    assert!(
        text(&timeline).contains("ended unseen, or goes on"),
        "{}",
        text(&timeline)
    );
    // The same process went on.
    one.word(80, Word::Standby);
    let timeline = told(&[&one]);
    assert!(text(&timeline).contains("lines that say how are missing"));
}

#[test]
fn a_renewal_moves_the_deadline() {
    let mut one = Pen::new("web1", "a");
    one.holds(10, 1).starts(10, 590);
    one.says(200, Word::Renewed, |record| {
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
        .word(10, Word::Starting)
        .word(20, Word::TreeEmpty)
        .word(20, Word::Resting)
        .word(30, Word::Restarting)
        .word(30, Word::Starting)
        .word(50, Word::TreeEmpty)
        .word(51, Word::Released);
    two.tenure(40, 90, 2);
    let timeline = told(&[&one, &two]);
    assert_eq!(tokens(&timeline), [1, 2]);
    assert!(timeline.has_overlap(), "the second run of its command");
}

#[test]
fn one_that_cannot_exclude_an_overlap_itself_is_believed() {
    let (mut one, mut two) = pair();
    one.holds(10, 1)
        .word(10, Word::Starting)
        .word(30, Word::Lost)
        .word(40, Word::TreeEmpty);
    one.says(41, Word::Done, |record| record.overlap = Some(true));
    two.tenure(60, 90, 2);
    let timeline = told(&[&one, &two]);
    assert!(timeline.has_overlap() && only(&timeline).overlaps.is_empty());
    assert!(
        text(&timeline).contains("OVERLAP NOT EXCLUDED"),
        "{}",
        text(&timeline)
    );
    // After the lease had been left to run out, too.
    let mut one = Pen::new("web1", "a");
    one.tenure(10, 50, 1);
    one.says(60, Word::Overlap, |record| record.overlap = Some(true));
    assert!(told(&[&one]).has_overlap());
}

#[test]
fn half_lines_rubbish_and_copies_do_no_harm() {
    let (mut one, mut two) = pair();
    one.tenure(10, 50, 1);
    two.tenure(60, 90, 2);
    let whole = lines(&[&one, &two]);
    let text = whole.join("\n");
    let clean = of(&text);
    let torn = format!("{text}\n\n{}", &whole[0][..40]);
    let timeline = of(&torn);
    assert_eq!(timeline.locks, clean.locks);
    assert!(
        timeline.notes[0].contains("1 line passed over") && timeline.notes[0].contains("log:12")
    );
    // A line glued to somebody's half line is found again.
    let glued = format!("{}{}\n{}", &whole[3][..30], whole[0], whole[1..].join("\n"));
    assert_eq!(of(&glued).locks, clean.locks);
    let twice = merge(
        &read([("a", text.as_bytes()), ("b", text.as_bytes())]),
        SKEW,
    );
    assert_eq!(twice, clean);
    assert!(of("rubbish\n\u{0}\n{}\n").locks.is_empty());
}

#[test]
fn lost_lines_are_told() {
    let mut one = Pen::new("web1", "a");
    one.tenure(10, 50, 1);
    one.lines.remove(2);
    let timeline = told(&[&one]);
    assert!(
        timeline.notes[0].contains("1 line missing"),
        "{:?}",
        timeline.notes
    );
}

#[test]
fn slots_are_locks_of_their_own() {
    let (mut one, mut two) = pair();
    one.word(1, Word::Competing);
    one.common.lock = "file:/x.0".into();
    one.tenure(10, 50, 1);
    two.word(1, Word::Competing);
    two.common.lock = "file:/x.1".into();
    two.tenure(20, 60, 1);
    let timeline = told(&[&one, &two]);
    let names: Vec<_> = timeline.locks.iter().map(|lock| &*lock.name).collect();
    assert_eq!(names, ["file:/x.0", "file:/x.1"]);
    assert!(!timeline.has_overlap());
}

#[test]
fn the_json_says_what_is_documented_and_nothing_else() {
    let (mut one, mut two) = pair();
    one.tenure(10, 50, 1).word(51, Word::Done);
    two.tenure(40, 90, 2);
    let json = json(&told(&[&one, &two]));
    let keys = |value: &serde_json::Value| -> BTreeSet<String> {
        value.as_object().unwrap().keys().cloned().collect()
    };
    let documented: BTreeSet<String> = FIELDS
        .iter()
        .filter(|(name, _)| !name.contains('.'))
        .map(|(name, _)| (*name).to_owned())
        .collect();
    assert_eq!(keys(&json), documented);
    let lock = &json["locks"][0];
    for key in keys(lock) {
        let name = format!("locks.{key}");
        let (_, meaning) = FIELDS.iter().find(|(field, _)| *field == name).unwrap();
        for inner in lock[&key].as_array().into_iter().flatten().flat_map(keys) {
            assert!(meaning.contains(&inner), "{name}: {inner}");
        }
    }
    assert_eq!(json["overlap"], true);
    assert_eq!(lock["overlaps"][0]["tokens"][1], 2);
    assert_eq!(lock["tenures"][0]["cause"], "stopped by SIGTERM");
}

#[test]
fn a_name_is_no_more_than_a_name_in_the_picture() {
    let mut one = Pen::new("<script>alert('&\"1\u{1}')</script>", "a");
    one.common.lock = "file:/<x>&".into();
    one.tenure(10, 50, 1);
    let picture = svg(&told(&[&one]));
    assert!(!picture.contains("<script") && !picture.contains('\u{1}'));
    assert!(picture.contains("&lt;script&gt;") && picture.contains("file:/&lt;x&gt;&amp;"));
}

#[test]
fn the_picture_shows_what_is_worth_a_question() {
    let (mut one, mut two) = pair();
    one.holds(10, 1).starts(10, 590).word(20, Word::Doubt);
    two.tenure(100, 200, 2).tenure(300, 400, 3);
    let calm = svg(&told(&[&one, &two]));
    for shown in [
        "its end was not seen",
        "nobody had control",
        "url(#drain)",
        "class=\"doubt\"",
        "no overlap",
    ] {
        assert!(calm.contains(shown), "{shown}");
    }
    assert!(!calm.contains("OVERLAP") && !calm.contains("script"));
    let mut three = Pen::new("web3", "a");
    three.tenure(399, 500, 4);
    let picture = svg(&told(&[&one, &two, &three]));
    assert!(picture.contains("OVERLAP: two in control for 0.100s"));
    assert!(picture.contains("prefers-color-scheme:dark"));
}

#[test]
fn nonsense_of_any_size_breaks_nothing() {
    let mut one = Pen::new("web1", "a");
    one.tenure(10, 50, 1);
    for (boottime_ns, time) in [
        (u64::MAX, "2261-01-01T00:00:00Z"),
        (0, "0001-01-01T00:00:00Z"),
        (5, "?"),
    ] {
        one.lines[1].boottime_ns = boottime_ns;
        one.lines[1].time = time.into();
        one.lines[1].deadline_ns = Some(u64::MAX);
        let timeline = told(&[&one]);
        let _ = (text(&timeline), json(&timeline), svg(&timeline));
    }
}

fn schedules() -> impl Strategy<Value = Vec<Vec<(u64, u64, u8)>>> {
    let tenure = (0..400_u64, 6..80_u64, 0..4_u8);
    prop::collection::vec(prop::collection::vec(tenure, 0..5), 1..5)
}

/// Instances on two machines; each tenure of one begins after its last.
fn played(schedules: &[Vec<(u64, u64, u8)>]) -> Vec<Pen> {
    let mut pens = Vec::new();
    for (number, schedule) in schedules.iter().enumerate() {
        let mut pen = Pen::new(&format!("web{number}"), ["a", "b"][number % 2]);
        let mut now = 1;
        pen.word(now, Word::Competing);
        for (token, (wait, length, fate)) in schedule.iter().enumerate() {
            now += wait;
            let token = token as u64 * 10 + number as u64;
            match fate {
                // Killed, and started anew.
                0 => {
                    pen.holds(now, token).starts(now, now + 580);
                    pen.common.run += 1;
                    pen.common.pid += 1;
                    pen.common.seq = 0;
                }
                // The clock is set.
                1 => {
                    pen.off += 9;
                    pen.tenure(now, now + length, token);
                }
                _ => {
                    pen.tenure(now, now + length, token);
                }
            }
            now += length + 2;
        }
        pens.push(pen);
    }
    pens
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn any_interleaving_merges_the_same(
        schedules in schedules(),
        order in prop::collection::vec(any::<u32>(), 400),
        cut in 0..8_usize,
    ) {
        let pens = played(&schedules);
        let pens: Vec<&Pen> = pens.iter().collect();
        let lines = lines(&pens);
        let straight = of(&lines.join("\n"));
        let mut shuffled: Vec<_> = lines.iter().zip(order).collect();
        shuffled.sort_by_key(|(_, order)| *order);
        let shuffled: Vec<&str> = shuffled.into_iter().map(|(line, _)| &**line).collect();
        let mut parts: Vec<String> = shuffled.chunks(cut + 1).map(|part| part.join("\n")).collect();
        // A copy of a part, as of a log that was rotated while it was copied.
        parts.push(parts[0].clone());
        let parts = parts.iter().map(|part| ("part", part.as_bytes()));
        prop_assert_eq!(&merge(&read(parts), SKEW), &straight);
    }

    #[test]
    fn what_two_lived_through_together_is_an_overlap_and_nothing_else_is(
        spans in prop::collection::vec((10..500_u64, 6..60_u64), 2..8),
    ) {
        let mut pens = Vec::new();
        for (number, (from, length)) in spans.iter().enumerate() {
            let mut pen = Pen::new(&format!("web{number}"), "a");
            pen.tenure(*from, from + length, number as u64);
            pens.push(pen);
        }
        let pens: Vec<&Pen> = pens.iter().collect();
        let timeline = told(&pens);
        let mut pairs = 0;
        for (at, (from, length)) in spans.iter().enumerate() {
            for (other, other_length) in &spans[at + 1..] {
                pairs += usize::from(*from < other + other_length && *other < from + length);
            }
        }
        prop_assert_eq!(only(&timeline).overlaps.len(), pairs);
        prop_assert_eq!(timeline.has_overlap(), pairs > 0);
        // A gap and a tenure never share a moment.
        for gap in &only(&timeline).gaps {
            for tenure in &only(&timeline).tenures {
                prop_assert!(gap.to <= tenure.from || tenure.to() <= gap.from);
            }
        }
    }
}
