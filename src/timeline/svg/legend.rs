//! What the picture's marks mean. It explains only what occurs in it.

use super::super::model::{Tenure, Timeline};
use super::canvas::{Canvas, text_width};
use super::{NEXT, RIGHT, WIDTH, bell, colour, cross, hung};

/// Draws it from `top` on; returns where it ends.
pub(super) fn legend(canvas: &mut Canvas, timeline: &Timeline, top: f64) -> f64 {
    let tenures = || timeline.locks.iter().flat_map(|lock| &lock.tenures);
    let solid = &*format!(r#"fill="{}" rx="3""#, colour(0));
    let unseen = &*format!(
        r#"fill="{0}" fill-opacity=".14" stroke="{0}" stroke-dasharray="4 3" rx="3""#,
        colour(0)
    );
    let overlap = r#"class="overlap" fill-opacity=".42""#;
    let band = |more| Sample::Bands(vec![(0.0, more)]);
    let tracks = || timeline.locks.iter().flat_map(|lock| &lock.tracks);
    // What does not occur is not explained: most pictures need six of them.
    let items = [
        (true, band(solid), "in control, with its token"),
        (true, Sample::Life, "standing by"),
        (
            timeline.locks.iter().any(|lock| lock.tenures.len() > 1),
            Sample::HandOver,
            "control goes over",
        ),
        (
            tenures().any(|tenure| !tenure.drains.is_empty()),
            Sample::Bands(vec![(0.0, solid), (0.0, r#"fill="url(#drain)""#)]),
            "being stopped",
        ),
        (
            tenures().any(|tenure| !tenure.doubts.is_empty()),
            Sample::Bands(vec![(0.0, solid), (8.0, r#"class="doubt""#)]),
            "the store does not answer",
        ),
        (
            tenures().any(|tenure| !tenure.hangs.is_empty()),
            Sample::Hung,
            "the command hangs",
        ),
        (
            tenures().any(Tenure::is_unseen),
            Sample::Unseen(unseen),
            "last heard of; over by then",
        ),
        (
            tracks().any(|track| !track.rings.is_empty()),
            Sample::Bell,
            "heard the holder's doorbell",
        ),
        (
            timeline.locks.iter().any(|lock| !lock.gaps.is_empty()),
            band(r#"class="nobody""#),
            "nobody in control",
        ),
        (
            timeline.locks.iter().any(|lock| !lock.overlaps.is_empty()),
            band(overlap),
            "two in control",
        ),
    ];
    let items = || items.iter().filter(|(there, ..)| *there);
    // In columns: the widths of words are only guessed here, and guesses leave uneven gaps.
    let widest = items().map(|(.., text)| text_width(text, 12.0));
    let column = widest.fold(0.0, f64::max) + 32.0 + 10.0;
    let columns = ((WIDTH - 2.0 * RIGHT) / column).floor().max(1.0) as usize;
    let mut y = top + 2.0;
    for (at, (_, sample, text)) in items().enumerate() {
        if at > 0 && at % columns == 0 {
            y += 22.0;
        }
        let x = RIGHT + (at % columns) as f64 * column;
        sample.draw(canvas, (x, y));
        canvas.text((x + 32.0, y + 10.0), 12.0, r#"class="dim""#, text);
    }
    y + 34.0
}

/// What the legend explains, 26 by 12.
enum Sample<'a> {
    /// Rectangles upon each other: how far down each begins; all of them end at the same height.
    Bands(Vec<(f64, &'a str)>),
    Unseen(&'a str),
    Life,
    HandOver,
    Bell,
    Hung,
}

impl Sample<'_> {
    fn draw(&self, canvas: &mut Canvas, (x, y): (f64, f64)) {
        match self {
            Sample::Bands(bands) => {
                for (down, more) in bands {
                    canvas.rect((x, y + down), (26.0, 12.0 - down), more, "");
                }
            }
            Sample::Unseen(more) => {
                canvas.rect((x, y), (26.0, 12.0), more, "");
                cross(canvas, (x + 5.0, y + 6.0), "");
            }
            Sample::Life => {
                let more = r#"class="life" stroke-width="2""#;
                canvas.line((x, y + 6.0), (x + 26.0, y + 6.0), more);
            }
            Sample::HandOver => canvas.line((x + 13.0, y - 2.0), (x + 13.0, y + 14.0), NEXT),
            Sample::Bell => bell(canvas, (x + 13.0, y + 6.0)),
            Sample::Hung => hung(canvas, (x + 13.0, y + 6.0)),
        }
    }
}
