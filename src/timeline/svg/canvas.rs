//! Shapes as SVG text: the one place that knows how it is written, and how a name is kept from
//! being more than a name.

use std::fmt::Write as _;

/// A drawing in the making.
#[derive(Debug, Default)]
pub(super) struct Canvas {
    pub(super) body: String,
}

/// How wide a text of this size is, roughly; more often too wide than not.
pub(super) fn text_width(text: &str, size: f64) -> f64 {
    text.chars()
        .map(|c| if c.is_ascii() { 0.56 } else { 1.05 })
        .sum::<f64>()
        * size
}

/// A text that fits, with an ellipsis where it had to be cut; empty where nothing of use would be
/// left.
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
    if cut.chars().count() < 3 {
        return String::new();
    }
    cut + "…"
}

/// A text that is a text, whatever is in it.
pub(super) fn escaped(text: &str) -> String {
    let mut safe = String::new();
    for c in text.chars() {
        match c {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&#39;"),
            // XML has no place for these at all.
            c if c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}') => safe.push('\u{fffd}'),
            c => safe.push(c),
        }
    }
    safe
}

impl Canvas {
    /// A rectangle; `more` are attributes, `title` is shown where the mouse rests.
    pub(super) fn rect(&mut self, at: (f64, f64), size: (f64, f64), more: &str, title: &str) {
        let _ = write!(
            self.body,
            r#"<rect x="{:.1}" y="{:.1}" width="{:.1}" height="{:.1}" {more}"#,
            at.0,
            at.1,
            size.0.max(0.0),
            size.1
        );
        self.close("rect", title);
    }

    /// A line.
    pub(super) fn line(&mut self, from: (f64, f64), to: (f64, f64), more: &str) {
        let _ = writeln!(
            self.body,
            r#"<line x1="{:.1}" y1="{:.1}" x2="{:.1}" y2="{:.1}" {more}/>"#,
            from.0, from.1, to.0, to.1
        );
    }

    /// A path.
    pub(super) fn path(&mut self, d: &str, more: &str, title: &str) {
        let _ = write!(self.body, r#"<path d="{d}" {more}"#);
        self.close("path", title);
    }

    /// A text; `more` are attributes.
    pub(super) fn text(&mut self, at: (f64, f64), size: f64, more: &str, text: &str) {
        if text.is_empty() {
            return;
        }
        let _ = writeln!(
            self.body,
            r#"<text x="{:.1}" y="{:.1}" font-size="{size}" {more}>{}</text>"#,
            at.0,
            at.1,
            escaped(text)
        );
    }

    /// A text of several parts, each with its attributes.
    pub(super) fn spans(&mut self, at: (f64, f64), size: f64, parts: &[(&str, &str)]) {
        let _ = write!(
            self.body,
            r#"<text x="{:.1}" y="{:.1}" font-size="{size}" xml:space="preserve">"#,
            at.0, at.1
        );
        for (more, text) in parts {
            let _ = write!(self.body, "<tspan {more}>{}</tspan>", escaped(text));
        }
        self.body.push_str("</text>\n");
    }

    fn close(&mut self, element: &str, title: &str) {
        if title.is_empty() {
            self.body.push_str("/>\n");
        } else {
            let _ = writeln!(self.body, "><title>{}</title></{element}>", escaped(title));
        }
    }
}
