//! Samples and what is said of them. Used by every section; measures nothing itself.

/// Measurements of one thing, in the unit of whoever took them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Samples(Vec<f64>);

impl Samples {
    /// One more.
    pub(crate) fn push(&mut self, sample: f64) {
        self.0.push(sample);
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// The smallest sample that `share` (0 to 1) of all do not exceed.
    ///
    /// # Panics
    /// Without any sample.
    pub(crate) fn quantile(&self, share: f64) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        let rank = (share * sorted.len() as f64).ceil() as usize;
        sorted[rank.clamp(1, sorted.len()) - 1]
    }

    /// The median.
    pub(crate) fn p50(&self) -> f64 {
        self.quantile(0.5)
    }

    /// What one run in twenty exceeds.
    pub(crate) fn p95(&self) -> f64 {
        self.quantile(0.95)
    }

    /// The quotient of each run, for two things measured side by side.
    pub(crate) fn per_run(&self, other: &Samples) -> Samples {
        let pairs = self.0.iter().zip(&other.0);
        Samples(pairs.map(|(ours, theirs)| ours / theirs).collect())
    }
}
