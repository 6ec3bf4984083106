//! Legend: a sample of each shape that is in the picture.

use super::canvas::{Canvas, text_width};
use super::{DIM, DOUBT, DRAIN, LIFE, NEXT, NOBODY, OVERLAP, RIGHT, WIDTH, colour, unseen};
use crate::{Lock, Tenure, Timeline, Track};

type Sample = fn(&mut Canvas, f64, f64);

fn band(canvas: &mut Canvas, x: f64, y: f64, more: &str) {
    canvas.rect((x, y), (26.0, 12.0), more, "");
}

fn solid(canvas: &mut Canvas, x: f64, y: f64) {
    band(canvas, x, y, &format!(r#"fill="{}" rx="3""#, colour(0)));
}

fn items(timeline: &Timeline) -> Vec<(&'static str, Sample)> {
    let locks = |has: fn(&Lock) -> bool| timeline.locks.iter().any(has);
    let tenures = |has: fn(&Tenure) -> bool| {
        let mut all = timeline.locks.iter().flat_map(|lock| &lock.tenures);
        all.any(has)
    };
    let mut tracks = timeline.locks.iter().flat_map(|lock| &lock.tracks);
    let rang = tracks.any(|track: &Track| !track.rings.is_empty());
    let mut items: Vec<(&str, Sample)> = vec![
        ("in control, with its token", solid),
        ("standing by", |canvas, x, y| {
            canvas.line((x, y + 6.0), (x + 26.0, y + 6.0), LIFE);
        }),
    ];
    if locks(|lock| lock.tenures.len() > 1) {
        items.push(("control goes over", |canvas, x, y| {
            canvas.line((x + 13.0, y - 2.0), (x + 13.0, y + 14.0), NEXT);
        }));
    }
    if tenures(|tenure| !tenure.drains.is_empty()) {
        items.push(("being stopped", |canvas, x, y| {
            solid(canvas, x, y);
            band(canvas, x, y, DRAIN);
        }));
    }
    if tenures(|tenure| !tenure.doubts.is_empty()) {
        items.push(("the store does not answer", |canvas, x, y| {
            solid(canvas, x, y);
            canvas.rect((x, y + 8.0), (26.0, 4.0), DOUBT, "");
        }));
    }
    if tenures(|tenure| !tenure.hangs.is_empty()) {
        items.push(("the command hangs", |canvas, x, y| {
            canvas.hung(x + 13.0, y + 6.0)
        }));
    }
    if tenures(Tenure::is_unseen) {
        items.push(("last heard of; over by then", |canvas, x, y| {
            band(canvas, x, y, &unseen(colour(0), 3));
            canvas.cross(x + 5.0, y + 6.0, "");
        }));
    }
    if rang {
        items.push(("heard the holder's doorbell", |canvas, x, y| {
            canvas.bell(x + 13.0, y + 6.0)
        }));
    }
    if locks(|lock| !lock.gaps.is_empty()) {
        items.push(("no holder", |canvas, x, y| band(canvas, x, y, NOBODY)));
    }
    if locks(|lock| !lock.overlaps.is_empty()) {
        items.push(("two in control", |canvas, x, y| band(canvas, x, y, OVERLAP)));
    }
    items
}

pub(super) fn draw(canvas: &mut Canvas, timeline: &Timeline, top: f64) -> f64 {
    let items = items(timeline);
    // Widths are only estimates, and would leave uneven gaps.
    let widths = items.iter().map(|(text, _)| text_width(text, 12.0));
    let column = widths.fold(0.0, f64::max) + 32.0 + 10.0;
    let columns = ((WIDTH - 2.0 * RIGHT) / column).floor().max(1.0) as usize;
    let mut y = top + 2.0;
    for (at, (text, sample)) in items.iter().enumerate() {
        if at > 0 && at % columns == 0 {
            y += 22.0;
        }
        let x = RIGHT + (at % columns) as f64 * column;
        sample(canvas, x, y);
        canvas.text((x + 32.0, y + 10.0), 12.0, DIM, text);
    }
    y + 34.0
}
