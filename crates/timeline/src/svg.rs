//! Picture of a timeline, as one SVG without script or font. Every overlap must be visible: what would be too
//! narrow is drawn wider.

mod canvas;
mod legend;

use std::fmt::Write as _;

use self::canvas::{Axis, Canvas, escaped, fitting, text_width};
use super::judge::Tally;
use super::text::{date, ending, name, span, token};
use super::{At, Gap, Lock, Overlap, Tenure, Timeline, Track, count};
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

const DIM: &str = r#"class="dim""#;
const CENTRED: &str = r#"class="dim" text-anchor="middle""#;
const BOLD: &str = r#"class="ink" font-weight="650""#;
const BAD: &str = r#"class="bad" font-weight="700""#;
const RULE: &str = r#"class="rule""#;
const LIFE: &str = r#"class="life" stroke-width="2""#;
const DRAIN: &str = r#"fill="url(#drain)""#;
const DOUBT: &str = r#"class="doubt""#;
const NOBODY: &str = r#"class="nobody""#;
const OVERLAP: &str = r#"class="overlap" fill-opacity=".42""#;
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
    y = legend::draw(&mut canvas, timeline, y);
    for note in &timeline.notes {
        let text = fitting(&format!("note: {note}"), 12.0, WIDTH - 2.0 * RIGHT);
        canvas.text((RIGHT, y), 12.0, DIM, &text);
        y += 18.0;
    }
    let height = y + 6.0;
    let names: Vec<&str> = timeline.locks.iter().map(|lock| &*lock.name).collect();
    let names = escaped(&names.join(", "));
    let conclusion = match timeline.has_overlap() {
        true => "overlaps",
        false => "no overlap",
    };
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height:.0}\" \
         viewBox=\"0 0 {WIDTH} {height:.0}\" role=\"img\" aria-labelledby=\"title\">\n\
         <title id=\"title\">Who held control when: {names}: {conclusion}</title>\n<style>{STYLE}</style>\n\
         <defs><pattern id=\"drain\" width=\"7\" height=\"7\" patternUnits=\"userSpaceOnUse\" \
         patternTransform=\"rotate(45)\"><line class=\"hatch\" x1=\"0\" y1=\"0\" x2=\"0\" y2=\"7\" \
         stroke-width=\"5\" stroke-opacity=\".5\"/></pattern></defs>\n\
         <rect class=\"paper\" width=\"{WIDTH}\" height=\"{height:.0}\"/>\n{}</svg>\n",
        canvas.body
    )
}

fn picture(canvas: &mut Canvas, lock: &Lock, number: usize, above: f64) -> f64 {
    let widths = lock
        .tracks
        .iter()
        .map(|track| text_width(&track.identity, 14.0).max(text_width(&track.host, 11.0)));
    let left = widths.fold(NAMES.0, f64::max).min(NAMES.1) + RIGHT + 16.0;
    let runs = || lock.tracks.iter().flat_map(|track| &track.runs);
    let ends = lock.tenures.iter().map(|tenure| tenure.to);
    let first = runs().map(|run| run.from).min().unwrap_or(0);
    let last = runs().map(|run| run.to).chain(ends).max().unwrap_or(0);
    let top = above + HEAD;
    let bottom = top + lock.tracks.len() as f64 * TRACK;
    // First: in SVG the order of elements is the only layering.
    head(canvas, lock, first, above);
    let mut chart = Chart {
        canvas,
        axis: Axis::new(first, last, left, WIDTH - RIGHT - left),
        left,
        strip: top - STRIP - 8.0,
        top,
        bottom,
    };
    chart.ground(lock.tracks.len());
    for gap in &lock.gaps {
        chart.gap(gap);
    }
    for (at, track) in lock.tracks.iter().enumerate() {
        chart.track(track, top + at as f64 * TRACK);
    }
    chart.hand_overs(lock);
    for tenure in &lock.tenures {
        chart.tenure(tenure, &name(&lock.tracks[tenure.track]));
    }
    for overlap in &lock.overlaps {
        chart.overlap(overlap);
    }
    canvas.line((left, bottom), (WIDTH - RIGHT, bottom), RULE);
    if number > 0 {
        canvas.line((RIGHT, above), (WIDTH - RIGHT, above), RULE);
    }
    bottom + 20.0
}

fn head(canvas: &mut Canvas, lock: &Lock, first: At, top: f64) {
    let title = fitting(&lock.name, 19.0, WIDTH - 2.0 * RIGHT);
    canvas.text((RIGHT, top + 32.0), 19.0, BOLD, &title);
    let tally = Tally::of(std::slice::from_ref(lock));
    let mut facts = format!(
        "{} UTC · {} · {} · ",
        date(first),
        count(lock.tenures.len(), "tenure"),
        count(lock.tracks.len(), "instance")
    );
    if let Some(longest) = lock.gaps.iter().map(|gap| gap.to - gap.from).max() {
        let gaps = count(lock.gaps.len(), "gap");
        let _ = write!(facts, "{gaps}, the longest {} · ", span(longest));
    }
    if tally.unseen > 0 {
        let _ = write!(facts, "{} not seen · ", count(tally.unseen, "end"));
    }
    let (class, conclusion) = match (tally.overlaps, tally.confessed) {
        (0, 0) => (BOLD, "no overlap"),
        (0, _) => (BAD, "an overlap is not excluded"),
        (some, _) => (BAD, &*count(some, "overlap")),
    };
    let both = [(DIM, &*facts), (class, conclusion)];
    canvas.spans((RIGHT, top + 53.0), 13.0, &both);
}

fn colour(track: usize) -> &'static str {
    COLOURS[track % COLOURS.len()]
}

fn unseen(colour: &str, round: u8) -> String {
    format!(
        r#"fill="{colour}" fill-opacity=".14" stroke="{colour}" stroke-dasharray="4 3" rx="{round}""#
    )
}

/// Place for one lock: its tracks lie between `top` and `bottom`, with a strip above them.
struct Chart<'a> {
    canvas: &'a mut Canvas,
    axis: Axis,
    left: f64,
    strip: f64,
    top: f64,
    bottom: f64,
}

impl Chart<'_> {
    fn stretch(&self, from: At, to: At) -> (f64, f64) {
        let x = self.axis.x(from);
        (x, (self.axis.x(to) - x).max(THIN))
    }

    fn block(&mut self, (from, to): (At, At), y: f64, height: f64, more: &str, title: &str) {
        let (x, wide) = self.stretch(from, to);
        self.canvas.rect((x, y), (wide, height), more, title);
    }

    fn column(&mut self, (x, wide): (f64, f64), more: &str, title: &str) {
        let size = (wide, self.bottom - self.strip);
        self.canvas.rect((x, self.strip), size, more, title);
    }

    fn ground(&mut self, tracks: usize) {
        let size = (WIDTH - RIGHT - self.left, TRACK);
        for at in (0..tracks).step_by(2) {
            let y = self.top + at as f64 * TRACK;
            self.canvas
                .rect((self.left, y), size, r#"class="band""#, "");
        }
        for (at, label) in self.axis.marks() {
            let x = self.axis.x(at);
            let (from, to) = ((x, self.strip), (x, self.bottom + 4.0));
            self.canvas.line(from, to, r#"class="grid""#);
            self.canvas
                .text((x, self.bottom + 18.0), 11.0, CENTRED, &label);
        }
    }

    fn gap(&mut self, gap: &Gap) {
        let (x, wide) = self.stretch(gap.from, gap.to);
        let length = span(gap.to - gap.from);
        let least = if gap.at_least { "at least " } else { "" };
        self.column((x, wide), NOBODY, &format!("no holder for {least}{length}"));
        if text_width(&length, 10.0) <= wide - 4.0 {
            let at = (x + wide / 2.0, self.top - 10.5);
            self.canvas.text(at, 10.0, CENTRED, &length);
        }
    }

    fn track(&mut self, track: &Track, y: f64) {
        let middle = y + TRACK / 2.0;
        let room = self.left - RIGHT - 12.0;
        let is_named = track.identity.contains(&track.host);
        let low = if is_named { middle + 5.0 } else { middle };
        let text = fitting(&track.identity, 14.0, room);
        self.canvas.text((RIGHT, low), 14.0, BOLD, &text);
        if !is_named {
            let host = fitting(&track.host, 11.0, room);
            self.canvas.text((RIGHT, middle + 13.0), 11.0, DIM, &host);
        }
        for run in &track.runs {
            let (from, wide) = self.stretch(run.from, run.to);
            let to = from + wide;
            let round = format!(r#"{LIFE} stroke-linecap="round""#);
            self.canvas.line((from, middle), (to, middle), &round);
            for x in [Some(from), run.done.then_some(to)].into_iter().flatten() {
                self.canvas.line((x, middle - 5.0), (x, middle + 5.0), LIFE);
            }
        }
        for ring in &track.rings {
            self.canvas.bell(self.axis.x(*ring), middle);
        }
    }

    fn hand_overs(&mut self, lock: &Lock) {
        for (one, next) in lock.tenures.iter().zip(lock.tenures.iter().skip(1)) {
            // Over an overlap a line would look like order.
            if one.track == next.track || one.lived > next.from {
                continue;
            }
            let y = |tenure: &Tenure| self.top + (tenure.track as f64 + 0.5) * TRACK;
            let towards = if y(next) > y(one) {
                BAR / 2.0
            } else {
                -BAR / 2.0
            };
            let x = self.axis.x(next.from);
            let (from, to) = ((x, y(one) + towards), (x, y(next) - towards));
            self.canvas.line(from, to, NEXT);
        }
    }

    fn tenure(&mut self, tenure: &Tenure, name: &str) {
        let colour = colour(tenure.track);
        let fill = format!(r#"fill="{colour}""#);
        let is_unseen = tenure.is_unseen();
        let (x, whole) = self.stretch(tenure.from, tenure.to);
        let (_, seen) = self.stretch(tenure.from, tenure.lived);
        // Solid while it is known to have lived, pale after that.
        let solid = if is_unseen { seen } else { whole };
        if whole > seen {
            let pale = format!(r#"{fill} fill-opacity=".3""#);
            self.canvas.rect((x, self.strip), (whole, STRIP), &pale, "");
        }
        self.canvas.rect((x, self.strip), (solid, STRIP), &fill, "");

        let y = self.top + tenure.track as f64 * TRACK + (TRACK - BAR) / 2.0;
        let token = token(tenure);
        let title = format!(
            "{} (process {}), token {token}\n{} to {}\n{}",
            name.replace(is_unprintable, "\u{fffd}"),
            tenure.pid,
            record::spelt(tenure.from),
            record::spelt(tenure.to),
            ending(tenure)
        );
        if whole > solid {
            let pale = unseen(colour, 4);
            self.canvas.rect((x, y), (whole, BAR), &pale, &title);
        }
        let round = (solid / 2.0).min(4.0);
        let bar = format!(r#"{fill} rx="{round:.1}""#);
        self.canvas.rect((x, y), (solid, BAR), &bar, &title);
        for &(from, to) in &tenure.drains {
            let title = format!("being stopped for {}", span(to - from));
            self.block((from, to), y, BAR, DRAIN, &title);
        }
        for &(from, to) in &tenure.doubts {
            let title = format!("the store did not answer for {}", span(to - from));
            self.block((from, to), y + BAR - 5.0, 5.0, DOUBT, &title);
        }
        for at in &tenure.hangs {
            self.canvas.hung(self.axis.x(*at), y);
        }
        // Room for the cross of an unseen end.
        let room = if is_unseen { solid - 12.0 } else { solid };
        let label = text_width(&token, 12.0);
        let low = y + BAR / 2.0 + 4.3;
        if label <= room - 6.0 {
            let more = r#"class="on" font-weight="650" text-anchor="middle""#;
            self.canvas.text((x + room / 2.0, low), 12.0, more, &token);
        } else if is_unseen && label <= whole - solid - 16.0 {
            let at = (x + solid + 9.0, low);
            self.canvas.text(at, 12.0, BOLD, &token);
        }
        if is_unseen {
            let title = "last heard of: its end was not seen";
            self.canvas.cross(x + solid, y + BAR / 2.0, title);
        }
        if tenure.confessed {
            let more = r#"fill="none" class="bad-line" stroke-width="2" rx="4""#;
            let title = "it reports that it may have run at the same time as another";
            let size = (solid + 4.0, BAR + 4.0);
            self.canvas.rect((x - 2.0, y - 2.0), size, more, title);
        }
    }

    fn overlap(&mut self, overlap: &Overlap) {
        let (x, wide) = self.stretch(overlap.from, overlap.to);
        // A millisecond must be visible on a picture of a week.
        let (x, wide) = if wide < 4.0 {
            (x - 1.0, 4.0)
        } else {
            (x, wide)
        };
        let length = span(overlap.to - overlap.from);
        let title = format!("two in control for {length}");
        if overlap.within_skew {
            let pale = r#"class="overlap" fill-opacity=".18""#;
            let title = format!("{title}, within what the machines' clocks may differ");
            return self.column((x, wide), pale, &title);
        }
        self.column((x, wide), OVERLAP, &format!("OVERLAP: {title}"));
        let text = format!("overlap {length}");
        let half = text_width(&text, 12.0) / 2.0;
        // The label must not be cut off at the edge.
        let middle = (x + wide / 2.0).clamp(self.left + half, WIDTH - RIGHT - half);
        let more = format!(r#"{BAD} text-anchor="middle""#);
        self.canvas
            .text((middle, self.top - STRIP - 13.0), 12.0, &more, &text);
    }
}
