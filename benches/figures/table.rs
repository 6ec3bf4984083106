//! The table that people read: one line for each figure, with its target and whether it was met.
//!
//! Used by `main`. The only file here that prints the figures.

use crate::numbers::Samples;

/// One figure.
pub(crate) struct Figure {
    what: String,
    unit: &'static str,
    samples: Samples,
    peer: Option<Samples>,
    target: Option<Target>,
}

/// What the figure should be.
enum Target {
    /// The median, in its unit.
    Median(f64),
    /// The median of the quotients with the peer, run by run.
    Ratio(f64),
}

impl Figure {
    /// A figure without peer or target.
    pub(crate) fn new(what: impl Into<String>, unit: &'static str, samples: Samples) -> Figure {
        Figure {
            what: what.into(),
            unit,
            samples,
            peer: None,
            target: None,
        }
    }

    /// The same measured on the peer, run by run beside ours.
    #[must_use]
    pub(crate) fn beside(mut self, peer: Option<Samples>) -> Figure {
        self.peer = peer;
        self
    }

    /// The median should not exceed this.
    #[must_use]
    pub(crate) fn at_most(mut self, median: f64) -> Figure {
        self.target = Some(Target::Median(median));
        self
    }

    /// The median ratio to the peer should not exceed this.
    #[must_use]
    pub(crate) fn at_most_times(mut self, ratio: f64) -> Figure {
        self.target = Some(Target::Ratio(ratio));
        self
    }

    fn line(&self) -> String {
        let number = |value: f64| format!("{value:.2}");
        let ratio = self
            .peer
            .as_ref()
            .map(|peer| self.samples.per_run(peer).p50());
        let peer = |quantile: fn(&Samples) -> f64| {
            self.peer
                .as_ref()
                .map_or("-".to_owned(), |peer| number(quantile(peer)))
        };
        let (target, met) = match self.target {
            None => ("-".to_owned(), ""),
            Some(Target::Median(most)) => (
                format!("<= {most} {}", self.unit),
                verdict(self.samples.p50(), most),
            ),
            Some(Target::Ratio(most)) => (
                format!("<= {most} x"),
                ratio.map_or("not judged: no peer", |ratio| verdict(ratio, most)),
            ),
        };
        format!(
            "{:<70} {:>4} {:>9} {:>9} {:<4} {:>8} {:>8} {:>7}  {:<12} {}",
            self.what,
            self.samples.len(),
            number(self.samples.p50()),
            number(self.samples.p95()),
            self.unit,
            peer(Samples::p50),
            peer(Samples::p95),
            ratio.map_or("-".to_owned(), |ratio| format!("{ratio:.2}x")),
            target,
            met,
        )
    }
}

fn verdict(found: f64, most: f64) -> &'static str {
    if found <= most { "met" } else { "MISSED" }
}

/// Prints the names of the columns.
pub(crate) fn head() {
    println!(
        "{:<70} {:>4} {:>9} {:>9} {:<4} {:>8} {:>8} {:>7}  {:<12}",
        "figure", "runs", "p50", "p95", "", "flock", "(p95)", "ratio", "target"
    );
}

/// Prints a section's figures, or why there are none.
pub(crate) fn print(section: &str, figures: Result<Vec<Figure>, String>) {
    match figures {
        Ok(figures) => figures
            .iter()
            .for_each(|figure| println!("{}", figure.line())),
        Err(why) => println!("{section}: NOT MEASURED: {why}"),
    }
}
