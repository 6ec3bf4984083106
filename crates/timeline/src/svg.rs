//! Picture of a timeline, as one SVG without script or font. Every overlap must be visible: what would be too
//! narrow is drawn wider.

mod canvas;

use std::fmt::Write as _;

use self::canvas::{Axis, Canvas, escaped, fitting, legend, text_width};
use super::text::{date, ending, name, span};
use super::{At, Lock, Tenure, Timeline, Track, count};
use crate::record;
use trafficcop_core::util::is_unprintable;

const WIDTH: f64 = 1200.0;
const RIGHT: f64 = 28.0;
const TRACK: f64 = 40.0;
const BAR: f64 = 22.0;
const STRIP: f64 = 12.0;
const HEAD: f64 = 104.0;
const THIN: f64 = 2.0;
// Least and greatest width of the names.
const NAMES: (f64, f64) = (90.0, 260.0);

// Colours of the tracks, in turn. The first six differ by 11 or more in CIELAB, also for people who lack one
// kind of cone (simulated after Machado, Oliveira and Fernandes, 2009). White text is readable on each. Red is
// for overlaps, amber for doubt.
const COLOURS: &[&str] = &[
    "#1769aa", "#9a6a1e", "#b0568f", "#0f8a6a", "#4a5563", "#5b4bb5", "#7a8a1f", "#2f8fb8",
];

const NEXT: &str = r#"class="next" stroke-width="1.3" stroke-dasharray="2 2.5""#;

// A ticket or wiki that shows the file brings no style.
const STYLE: &str = "\
text{font-family:system-ui,-apple-system,'Segoe UI','DejaVu Sans',sans-serif}\
.paper{fill:#ffffff}.ink{fill:#1c2733}.dim{fill:#5d6b7a}.on{fill:#ffffff}\
.grid{stroke:#dfe5ec}.rule{stroke:#c3ccd6}.band{fill:#f4f6f9}.life{stroke:#9aa7b5}\
.nobody{fill:#8b97a5;fill-opacity:.16}.nobody-edge{stroke:#8b97a5}\
.overlap{fill:#d62f3a}.bad{fill:#c2212d}.bad-line{stroke:#c2212d}\
.doubt{fill:#e89a1c}.hatch{stroke:#ffffff}.next{stroke:#7b8896}\
.bell{fill:#ffffff;stroke:#5d6b7a}.hung{fill:#ffffff;stroke:#1c2733}\
@media (prefers-color-scheme:dark){\
.paper{fill:#12181f}.ink{fill:#e8edf2}.dim{fill:#9aa8b6}\
.grid{stroke:#25303b}.rule{stroke:#3b4856}.band{fill:#18212a}.life{stroke:#5f6e7d}\
.nobody{fill:#aab6c3;fill-opacity:.13}.nobody-edge{stroke:#71808f}\
.bad{fill:#ff7a82}.bad-line{stroke:#ff5f69}.next{stroke:#8492a1}.bell{fill:#12181f;stroke:#9aa8b6}\
.hung{fill:#12181f;stroke:#e8edf2}}";

/// Draws the timeline.
#[must_use]
pub fn svg(timeline: &Timeline) -> String {
    let mut canvas = Canvas::default();
    let mut y = 0.0;
    for (number, lock) in timeline.locks.iter().enumerate() {
        y = picture(&mut canvas, lock, number, y) + 26.0;
    }
    y = legend(&mut canvas, timeline, y);
    for note in &timeline.notes {
        let text = fitting(&format!("note: {note}"), 12.0, WIDTH - 2.0 * RIGHT);
        canvas.text((RIGHT, y), 12.0, r#"class="dim""#, &text);
        y += 18.0;
    }
    whole(timeline, &canvas.body, y + 6.0)
}

fn whole(timeline: &Timeline, body: &str, height: f64) -> String {
    let mut all = String::new();
    let _ = write!(
        all,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height:.0}\" \
         viewBox=\"0 0 {WIDTH} {height:.0}\" role=\"img\" aria-labelledby=\"title\">\n\
         <title id=\"title\">Who held control when: {}</title>\n<style>{STYLE}</style>\n\
         <defs><pattern id=\"drain\" width=\"7\" height=\"7\" patternUnits=\"userSpaceOnUse\" \
         patternTransform=\"rotate(45)\"><line class=\"hatch\" x1=\"0\" y1=\"0\" x2=\"0\" y2=\"7\" \
         stroke-width=\"5\" stroke-opacity=\".5\"/></pattern></defs>\n\
         <rect class=\"paper\" width=\"{WIDTH}\" height=\"{height:.0}\"/>\n{body}</svg>\n",
        escaped(&summary(timeline))
    );
    all
}

fn summary(timeline: &Timeline) -> String {
    let names: Vec<&str> = timeline.locks.iter().map(|lock| &*lock.name).collect();
    format!(
        "{}: {}",
        names.join(", "),
        if timeline.has_overlap() {
            "overlaps"
        } else {
            "no overlap"
        }
    )
}

fn picture(canvas: &mut Canvas, lock: &Lock, number: usize, top: f64) -> f64 {
    let names: Vec<String> = lock.tracks.iter().map(name).collect();
    let longest = lock
        .tracks
        .iter()
        .map(|track| text_width(&track.identity, 14.0).max(text_width(&track.host, 11.0)));
    let left = longest.fold(NAMES.0, f64::max).min(NAMES.1) + RIGHT + 16.0;
    let axis = Axis::new(first(lock), last(lock), left, WIDTH - RIGHT - left);
    let tracks = top + HEAD;
    let bottom = tracks + lock.tracks.len() as f64 * TRACK;
    // First: in SVG the order of elements is the only layering.
    head(canvas, lock, top);
    for at in (0..lock.tracks.len()).step_by(2) {
        let y = tracks + at as f64 * TRACK;
        canvas.rect(
            (left, y),
            (WIDTH - RIGHT - left, TRACK),
            r#"class="band""#,
            "",
        );
    }
    scale(canvas, &axis, tracks - STRIP - 14.0, bottom);
    for gap in &lock.gaps {
        let (x, wide) = stretch(&axis, gap.from, gap.to);
        let least = if gap.at_least { "at least " } else { "" };
        let title = format!("no holder for {least}{}", span(gap.to - gap.from));
        let size = (wide, bottom - tracks + STRIP + 8.0);
        canvas.rect((x, tracks - STRIP - 8.0), size, r#"class="nobody""#, &title);
        let label = fitting(&span(gap.to - gap.from), 10.0, wide - 4.0);
        if !label.contains('…') {
            let middle = r#"class="dim" text-anchor="middle""#;
            canvas.text((x + wide / 2.0, tracks - 10.5), 10.0, middle, &label);
        }
    }
    for (at, track) in lock.tracks.iter().enumerate() {
        let y = tracks + at as f64 * TRACK;
        presence(canvas, track, &axis, y, left);
    }
    hand_overs(canvas, lock, &axis, tracks);
    for tenure in &lock.tenures {
        let y = tracks + tenure.track as f64 * TRACK + (TRACK - BAR) / 2.0;
        let colour = colour(tenure.track);
        strip(canvas, tenure, &axis, tracks - STRIP - 8.0, colour);
        bar(canvas, tenure, &axis, y, colour, &names[tenure.track]);
    }
    for overlap in &lock.overlaps {
        let (x, wide) = stretch(&axis, overlap.from, overlap.to);
        // A millisecond must be visible on a picture of a week.
        let (x, wide) = if wide < 4.0 {
            (x - 1.0, 4.0)
        } else {
            (x, wide)
        };
        let length = span(overlap.to - overlap.from);
        let (strength, title) = if overlap.within_skew {
            (
                ".18",
                format!("two in control for {length}, within what the machines' clocks may differ"),
            )
        } else {
            (".42", format!("OVERLAP: two in control for {length}"))
        };
        let more = format!(r#"class="overlap" fill-opacity="{strength}""#);
        canvas.rect(
            (x, tracks - STRIP - 8.0),
            (wide, bottom - tracks + STRIP + 8.0),
            &more,
            &title,
        );
        if !overlap.within_skew {
            let text = format!("overlap {length}");
            let half = text_width(&text, 12.0) / 2.0;
            // The label must not be cut off at the edge.
            let middle = (x + wide / 2.0).clamp(left + half, WIDTH - RIGHT - half);
            let more = r#"class="bad" font-weight="700" text-anchor="middle""#;
            canvas.text((middle, tracks - STRIP - 13.0), 12.0, more, &text);
        }
    }
    canvas.line((left, bottom), (WIDTH - RIGHT, bottom), r#"class="rule""#);
    if number > 0 {
        canvas.line((RIGHT, top), (WIDTH - RIGHT, top), r#"class="rule""#);
    }
    bottom + 20.0
}

fn first(lock: &Lock) -> At {
    let runs = lock.tracks.iter().flat_map(|track| &track.runs);
    runs.map(|run| run.from).min().unwrap_or(0)
}

fn last(lock: &Lock) -> At {
    let runs = lock.tracks.iter().flat_map(|track| &track.runs);
    let runs = runs.map(|run| run.to);
    let ends = lock.tenures.iter().map(Tenure::to);
    runs.chain(ends).max().unwrap_or(0)
}

fn colour(track: usize) -> &'static str {
    COLOURS[track % COLOURS.len()]
}

fn stretch(axis: &Axis, from: At, to: At) -> (f64, f64) {
    let x = axis.x(from);
    (x, (axis.x(to) - x).max(THIN))
}

fn head(canvas: &mut Canvas, lock: &Lock, top: f64) {
    let title = fitting(&lock.name, 19.0, WIDTH - 2.0 * RIGHT);
    let bold = r#"class="ink" font-weight="650""#;
    canvas.text((RIGHT, top + 32.0), 19.0, bold, &title);
    let certain = lock.overlaps.iter().filter(|overlap| !overlap.within_skew);
    let overlaps = certain.count();
    let confessed = lock.tenures.iter().any(|tenure| tenure.confessed);
    let unseen = lock.tenures.iter().filter(|tenure| tenure.is_unseen());
    let unseen = unseen.count();
    let longest = lock.gaps.iter().map(|gap| gap.to - gap.from).max();
    let mut facts = vec![
        count(lock.tenures.len(), "tenure"),
        count(lock.tracks.len(), "instance"),
    ];
    facts.extend(longest.map(|longest| {
        format!(
            "{}, the longest {}",
            count(lock.gaps.len(), "gap"),
            span(longest)
        )
    }));
    if unseen > 0 {
        facts.push(format!("{} not seen", count(unseen, "end")));
    }
    let facts = format!("{} UTC · {} · ", date(first(lock)), facts.join(" · "));
    let (conclusion, class) = match (overlaps, confessed) {
        (0, false) => ("no overlap".to_owned(), r#"class="ink" font-weight="650""#),
        (0, true) => (
            "an overlap is not excluded".to_owned(),
            r#"class="bad" font-weight="700""#,
        ),
        (some, _) => (count(some, "overlap"), r#"class="bad" font-weight="700""#),
    };
    let both = [(r#"class="dim""#, &*facts), (class, &*conclusion)];
    canvas.spans((RIGHT, top + 53.0), 13.0, &both);
}

fn scale(canvas: &mut Canvas, axis: &Axis, top: f64, bottom: f64) {
    for (at, label) in axis.marks() {
        let x = axis.x(at);
        canvas.line((x, top + 6.0), (x, bottom + 4.0), r#"class="grid""#);
        let more = r#"class="dim" text-anchor="middle""#;
        canvas.text((x, bottom + 18.0), 11.0, more, &label);
    }
}

fn presence(canvas: &mut Canvas, track: &Track, axis: &Axis, y: f64, left: f64) {
    let middle = y + TRACK / 2.0;
    let room = left - RIGHT - 12.0;
    let bold = r#"class="ink" font-weight="650""#;
    let text = fitting(&track.identity, 14.0, room);
    if track.identity.contains(&track.host) {
        canvas.text((RIGHT, middle + 5.0), 14.0, bold, &text);
    } else {
        canvas.text((RIGHT, middle), 14.0, bold, &text);
        let host = fitting(&track.host, 11.0, room);
        canvas.text((RIGHT, middle + 13.0), 11.0, r#"class="dim""#, &host);
    }
    for run in &track.runs {
        let (from, to) = (
            axis.x(run.from),
            axis.x(run.to).max(axis.x(run.from) + THIN),
        );
        let more = r#"class="life" stroke-width="2" stroke-linecap="round""#;
        canvas.line((from, middle), (to, middle), more);
        canvas.line(
            (from, middle - 5.0),
            (from, middle + 5.0),
            r#"class="life" stroke-width="2""#,
        );
        if run.done {
            canvas.line(
                (to, middle - 5.0),
                (to, middle + 5.0),
                r#"class="life" stroke-width="2""#,
            );
        }
    }
    for ring in &track.rings {
        bell(canvas, (axis.x(*ring), middle));
    }
}

/// Draws a tenure in the strip above the tracks.
fn strip(canvas: &mut Canvas, tenure: &Tenure, axis: &Axis, y: f64, colour: &str) {
    let (x, wide) = stretch(axis, tenure.from, tenure.to());
    let (_, seen) = stretch(axis, tenure.from, tenure.lived);
    if wide > seen {
        let more = format!(r#"fill="{colour}" fill-opacity=".3""#);
        canvas.rect((x, y), (wide, STRIP), &more, "");
    }
    // Solid while it is known to have lived, pale after that.
    let solid = if tenure.is_unseen() { seen } else { wide };
    canvas.rect((x, y), (solid, STRIP), &format!(r#"fill="{colour}""#), "");
}

fn bar(canvas: &mut Canvas, tenure: &Tenure, axis: &Axis, y: f64, colour: &str, name: &str) {
    let token = tenure.token.map_or("?".into(), |token| token.to_string());
    let name = name.replace(is_unprintable, "\u{fffd}");
    let title = format!(
        "{name} (process {}), token {token}\n{} to {}\n{}",
        tenure.pid,
        record::spelt(tenure.from),
        record::spelt(tenure.to()),
        ending(tenure)
    );
    let unseen = tenure.is_unseen();
    let (x, wide) = stretch(
        axis,
        tenure.from,
        if unseen { tenure.lived } else { tenure.to() },
    );
    let round = (wide / 2.0).min(4.0);
    if unseen {
        let (_, whole) = stretch(axis, tenure.from, tenure.to());
        if whole > wide {
            let more = format!(
                r#"fill="{colour}" fill-opacity=".14" stroke="{colour}" stroke-dasharray="4 3" rx="4""#
            );
            canvas.rect((x, y), (whole, BAR), &more, &title);
        }
    }
    let more = format!(r#"fill="{colour}" rx="{round:.1}""#);
    canvas.rect((x, y), (wide, BAR), &more, &title);
    for (from, to) in &tenure.drains {
        let (x, wide) = stretch(axis, *from, *to);
        canvas.rect(
            (x, y),
            (wide, BAR),
            r#"fill="url(#drain)""#,
            &format!("being stopped for {}", span(to - from)),
        );
    }
    for (from, to) in &tenure.doubts {
        let (x, wide) = stretch(axis, *from, *to);
        let title = format!("the store did not answer for {}", span(to - from));
        canvas.rect((x, y + BAR - 5.0), (wide, 5.0), r#"class="doubt""#, &title);
    }
    for at in &tenure.hangs {
        hung(canvas, (axis.x(*at), y));
    }
    // Room for the cross of an unseen end.
    let taken = if unseen { 12.0 } else { 0.0 };
    let label = fitting(&token, 12.0, wide - 6.0 - taken);
    let low = y + BAR / 2.0 + 4.3;
    if !label.is_empty() && !label.contains('…') {
        let more = r#"class="on" font-weight="650" text-anchor="middle""#;
        canvas.text((x + (wide - taken) / 2.0, low), 12.0, more, &label);
    } else if unseen {
        let (_, whole) = stretch(axis, tenure.from, tenure.to());
        let label = fitting(&token, 12.0, whole - wide - 16.0);
        if !label.contains('…') {
            let more = r#"class="ink" font-weight="650""#;
            canvas.text((x + wide + 9.0, low), 12.0, more, &label);
        }
    }
    if unseen {
        cross(
            canvas,
            (x + wide, y + BAR / 2.0),
            "last heard of: its end was not seen",
        );
    }
    if tenure.confessed {
        let more = r#"fill="none" class="bad-line" stroke-width="2" rx="4""#;
        canvas.rect(
            (x - 2.0, y - 2.0),
            (wide + 4.0, BAR + 4.0),
            more,
            "it reports that it may have run at the same time as another",
        );
    }
}

fn cross(canvas: &mut Canvas, middle: (f64, f64), title: &str) {
    let (left, right) = (middle.0 - 4.5, middle.0 + 4.5);
    let (top, low) = (middle.1 - 4.5, middle.1 + 4.5);
    let d =
        format!("M{left:.1} {top:.1}L{right:.1} {low:.1}M{left:.1} {low:.1}L{right:.1} {top:.1}");
    let more = r#"class="bad-line" stroke-width="2.4" stroke-linecap="round""#;
    canvas.path(&d, more, title);
}

fn bell(canvas: &mut Canvas, middle: (f64, f64)) {
    let (x, y) = middle;
    let d = format!(
        "M{:.1} {:.1}Q{x:.1} {:.1} {:.1} {:.1}ZM{:.1} {:.1}h3",
        x - 5.0,
        y + 3.0,
        y - 14.0,
        x + 5.0,
        y + 3.0,
        x - 1.5,
        y + 5.0
    );
    let more = r#"class="bell" stroke-width="1.4" stroke-linejoin="round""#;
    canvas.path(&d, more, "heard the holder's doorbell");
}

fn hung(canvas: &mut Canvas, middle: (f64, f64)) {
    let (x, y) = middle;
    let d = format!("M{:.1} {y:.1}l5.5 -6.5l5.5 6.5l-5.5 6.5Z", x - 5.5);
    let more = r#"class="hung" stroke-width="1.6" stroke-linejoin="round""#;
    canvas.path(&d, more, "the command did not work any more");
}

fn hand_overs(canvas: &mut Canvas, lock: &Lock, axis: &Axis, tracks: f64) {
    for pair in lock.tenures.windows(2) {
        let [one, next] = pair else { continue };
        // Over an overlap a line would look like order.
        if one.track == next.track || one.lived > next.from {
            continue;
        }
        let y = |tenure: &Tenure| tracks + (tenure.track as f64 + 0.5) * TRACK;
        let (from, to) = (y(one), y(next));
        let towards = if to > from { -1.0 } else { 1.0 };
        let x = axis.x(next.from);
        let (from, to) = (from - towards * BAR / 2.0, to + towards * BAR / 2.0);
        canvas.line((x, from), (x, to), NEXT);
    }
}
