//! Shapes as SVG text, and the time axis.

use std::fmt::Write as _;

use crate::At;
use crate::text::part;
use trafficcop_core::util::is_unprintable;

#[derive(Debug, Default)]
pub(super) struct Canvas {
    pub(super) body: String,
}

/// Estimates a text's width by a wide font, because the real one is unknown.
pub(super) fn text_width(text: &str, size: f64) -> f64 {
    text.chars()
        .map(|c| if c.is_ascii() { 0.56 } else { 1.05 })
        .sum::<f64>()
        * size
}

/// Cuts a text to fit, with an ellipsis; returns nothing if too little would be left.
pub(super) fn fitting(text: &str, size: f64, width: f64) -> String {
    if text_width(text, size) <= width {
        return text.to_owned();
    }
    let mut cut = String::new();
    for c in text.chars() {
        if text_width(&cut, size) + 2.1 * size > width {
            break;
        }
        cut.push(c);
    }
    // Two letters and an ellipsis distinguish no names.
    if cut.chars().count() < 3 {
        return String::new();
    }
    cut + "…"
}

pub(super) fn escaped(text: &str) -> String {
    let mut safe = String::new();
    for c in text.chars() {
        match c {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&#39;"),
            // XML does not allow these.
            c if is_unprintable(c) || matches!(c, '\u{fffe}' | '\u{ffff}') => safe.push('\u{fffd}'),
            c => safe.push(c),
        }
    }
    safe
}

impl Canvas {
    /// Draws a rectangle; `more` are attributes, `title` is the tooltip, line by line.
    pub(super) fn rect(
        &mut self,
        (x, y): (f64, f64),
        (wide, high): (f64, f64),
        more: &str,
        title: &str,
    ) {
        // A browser does not show an element with a negative width.
        let wide = wide.max(0.0);
        let _ = write!(
            self.body,
            r#"<rect x="{x:.1}" y="{y:.1}" width="{wide:.1}" height="{high:.1}" {more}"#
        );
        self.close("rect", title);
    }

    pub(super) fn line(&mut self, (x1, y1): (f64, f64), (x2, y2): (f64, f64), more: &str) {
        let _ = writeln!(
            self.body,
            r#"<line x1="{x1:.1}" y1="{y1:.1}" x2="{x2:.1}" y2="{y2:.1}" {more}/>"#
        );
    }

    fn path(&mut self, d: &str, more: &str, title: &str) {
        let _ = write!(self.body, r#"<path d="{d}" {more}"#);
        self.close("path", title);
    }

    pub(super) fn text(&mut self, (x, y): (f64, f64), size: f64, more: &str, text: &str) {
        if text.is_empty() {
            return;
        }
        let text = escaped(text);
        let _ = writeln!(
            self.body,
            r#"<text x="{x:.1}" y="{y:.1}" font-size="{size}" {more}>{text}</text>"#
        );
    }

    pub(super) fn spans(&mut self, (x, y): (f64, f64), size: f64, parts: &[(&str, &str)]) {
        let _ = write!(
            self.body,
            r#"<text x="{x:.1}" y="{y:.1}" font-size="{size}" xml:space="preserve">"#
        );
        for (more, text) in parts {
            let _ = write!(self.body, "<tspan {more}>{}</tspan>", escaped(text));
        }
        self.body.push_str("</text>\n");
    }

    pub(super) fn cross(&mut self, x: f64, y: f64, title: &str) {
        let (left, right, top, low) = (x - 4.5, x + 4.5, y - 4.5, y + 4.5);
        let d = format!(
            "M{left:.1} {top:.1}L{right:.1} {low:.1}M{left:.1} {low:.1}L{right:.1} {top:.1}"
        );
        let more = r#"class="bad-line" stroke-width="2.4" stroke-linecap="round""#;
        self.path(&d, more, title);
    }

    pub(super) fn bell(&mut self, x: f64, y: f64) {
        let (left, right, top, low) = (x - 5.0, x + 5.0, y - 14.0, y + 3.0);
        let (clapper, below) = (x - 1.5, y + 5.0);
        let d = format!(
            "M{left:.1} {low:.1}Q{x:.1} {top:.1} {right:.1} {low:.1}ZM{clapper:.1} {below:.1}h3"
        );
        let more = r#"class="bell" stroke-width="1.4" stroke-linejoin="round""#;
        self.path(&d, more, "heard the holder's doorbell");
    }

    pub(super) fn hung(&mut self, x: f64, y: f64) {
        let d = format!("M{:.1} {y:.1}l5.5 -6.5l5.5 6.5l-5.5 6.5Z", x - 5.5);
        let more = r#"class="hung" stroke-width="1.6" stroke-linejoin="round""#;
        self.path(&d, more, "the command did not work any more");
    }

    fn close(&mut self, element: &str, title: &str) {
        if title.is_empty() {
            self.body.push_str("/>\n");
        } else {
            let lines: Vec<String> = title.lines().map(escaped).collect();
            let _ = writeln!(
                self.body,
                "><title>{}</title></{element}>",
                // Some readers turn a bare line end into a space.
                lines.join("&#10;")
            );
        }
    }
}

const SECOND: i64 = 1_000_000_000;
// Milliseconds.
const STEPS: &[i64] = &[
    1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 15_000, 30_000, 60_000, 120_000,
    300_000, 600_000, 900_000, 1_800_000, 3_600_000, 7_200_000, 10_800_000, 21_600_000, 43_200_000,
    86_400_000,
];

#[derive(Clone, Copy, Debug)]
pub(super) struct Axis {
    from: At,
    to: At,
    left: f64,
    width: f64,
}

impl Axis {
    pub(super) fn new(from: At, to: At, left: f64, width: f64) -> Axis {
        // A single moment has no width: the axis would divide by zero.
        let air = ((to - from) / 50).max(SECOND / 100);
        Axis {
            from: from.saturating_sub(air),
            to: to.saturating_add(air),
            left,
            width,
        }
    }

    pub(super) fn x(&self, at: At) -> f64 {
        let all = (self.to - self.from) as f64;
        let part = at.saturating_sub(self.from) as f64 / all;
        self.left + part.clamp(0.0, 1.0) * self.width
    }

    pub(super) fn marks(&self) -> Vec<(At, String)> {
        let span = self.to - self.from;
        // The width of a label with milliseconds.
        let most = (self.width / 105.0).max(2.0) as i64;
        let mut steps = STEPS.iter().map(|millis| millis * (SECOND / 1000));
        let step = steps.find(|step| span / step <= most);
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
    part(
        at,
        match step / SECOND {
            86400.. => 5..10,
            60.. => 11..16,
            1.. => 11..19,
            _ => 11..23,
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_few_for_any_span() {
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
    fn moments_beyond_the_axis_stay_on_the_paper() {
        let axis = Axis::new(0, 10, 100.0, 50.0);
        assert!(axis.x(i64::MIN / 2) >= 100.0 && axis.x(i64::MAX / 2) <= 150.0);
        assert!(axis.x(0) < axis.x(10));
    }
}
