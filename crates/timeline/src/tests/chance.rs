//! Random schedules: the timeline of their logs shows what was played.

use proptest::prelude::*;

use super::*;

fn schedules() -> impl Strategy<Value = Vec<Vec<(u64, u64, u8)>>> {
    let tenure = (0..400_u64, 6..80_u64, 0..4_u8);
    prop::collection::vec(prop::collection::vec(tenure, 0..5), 1..5)
}

/// Plays instances on two machines; each tenure of one begins after its last.
fn played(schedules: &[Vec<(u64, u64, u8)>]) -> Vec<Pen> {
    let mut pens = Vec::new();
    for (number, schedule) in schedules.iter().enumerate() {
        let mut pen = Pen::new(&format!("web{number}"), ["a", "b"][number % 2]);
        let mut now = 1;
        pen.word(now, EventKind::Competing);
        for (token, (wait, length, fate)) in schedule.iter().enumerate() {
            now += wait;
            let token = token as u64 * 10 + number as u64;
            match fate {
                // Killed, and started again.
                0 => {
                    pen.holds(now, token).starts(now, now + 580);
                    pen.common.run += 1;
                    pen.common.pid += 1;
                    pen.common.seq = 0;
                }
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
        // As of a log that was rotated while it was copied.
        parts.push(parts[0].clone());
        let parts = parts.iter().map(|part| ("part", part.as_bytes()));
        prop_assert_eq!(&merge(&read(parts), SKEW), &straight);
    }

    #[test]
    fn only_a_time_with_two_holders_is_an_overlap(
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
        for gap in &only(&timeline).gaps {
            for tenure in &only(&timeline).tenures {
                prop_assert!(gap.to <= tenure.from || tenure.to <= gap.from);
            }
        }
    }
}
