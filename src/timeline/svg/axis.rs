//! The time axis: where a moment lies on the paper, and which moments are worth a mark.

use super::super::model::At;
use crate::events::record;

const SECOND: i64 = 1_000_000_000;
/// Distances between marks that read well, in nanoseconds.
const STEPS: &[i64] = &[
    SECOND / 1000,
    SECOND / 500,
    SECOND / 200,
    SECOND / 100,
    SECOND / 50,
    SECOND / 20,
    SECOND / 10,
    SECOND / 5,
    SECOND / 2,
    SECOND,
    2 * SECOND,
    5 * SECOND,
    10 * SECOND,
    15 * SECOND,
    30 * SECOND,
    60 * SECOND,
    120 * SECOND,
    300 * SECOND,
    600 * SECOND,
    900 * SECOND,
    1800 * SECOND,
    3600 * SECOND,
    7200 * SECOND,
    3 * 3600 * SECOND,
    6 * 3600 * SECOND,
    12 * 3600 * SECOND,
    86400 * SECOND,
];

/// From moments to the paper.
#[derive(Clone, Copy, Debug)]
pub(super) struct Axis {
    from: At,
    to: At,
    left: f64,
    width: f64,
}

impl Axis {
    /// Everything from `from` to `to`, with some air, between `left` and `left + width`.
    pub(super) fn new(from: At, to: At, left: f64, width: f64) -> Axis {
        let air = ((to - from) / 50).max(SECOND / 100);
        Axis {
            from: from.saturating_sub(air),
            to: to.saturating_add(air),
            left,
            width,
        }
    }

    /// Where on the paper, never off it.
    pub(super) fn x(&self, at: At) -> f64 {
        let all = (self.to - self.from) as f64;
        let part = at.saturating_sub(self.from) as f64 / all;
        self.left + part.clamp(0.0, 1.0) * self.width
    }

    /// The marks: moments, and how they are called.
    pub(super) fn marks(&self) -> Vec<(At, String)> {
        let span = self.to - self.from;
        let most = (self.width / 105.0).max(2.0) as i64;
        let step = STEPS.iter().copied().find(|step| span / step <= most);
        let step = step.unwrap_or_else(|| {
            let days = span / most / (86400 * SECOND) + 1;
            days * 86400 * SECOND
        });
        let first = self.from.div_euclid(step) * step;
        (0..=most + 2)
            .map(|number| first.saturating_add(step.saturating_mul(number)))
            .filter(|at| (self.from..=self.to).contains(at))
            .map(|at| (at, label(at, step)))
            .collect()
    }
}

fn label(at: At, step: i64) -> String {
    let text = record::spelt(at);
    let part = if step >= 86400 * SECOND {
        text.get(5..10)
    } else if step >= 60 * SECOND {
        text.get(11..16)
    } else if step >= SECOND {
        text.get(11..19)
    } else {
        text.get(11..23)
    };
    part.unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_few_and_round_whatever_the_span() {
        let mut span = 1_000_000;
        while span < i64::MAX / 8 {
            let axis = Axis::new(
                1_700_000_000 * SECOND,
                1_700_000_000 * SECOND + span,
                0.0,
                1000.0,
            );
            let marks = axis.marks();
            assert!((1..=11).contains(&marks.len()), "{span}: {}", marks.len());
            span *= 3;
        }
    }

    #[test]
    fn nothing_is_drawn_off_the_paper() {
        let axis = Axis::new(0, 10, 100.0, 50.0);
        assert!(axis.x(i64::MIN / 2) >= 100.0 && axis.x(i64::MAX / 2) <= 150.0);
        assert!(axis.x(0) < axis.x(10));
    }
}
