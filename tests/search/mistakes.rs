//! Mistakes outside the core, including known ones of other tools. Each must be found, or the
//! search proves nothing. tests/planted has those of the core.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mistake {
    /// A call to the store ends only with its answer.
    NeverTimesOut,
    /// A missing answer counts as a loss.
    FirstBlipIsLoss,
    /// The token counts from the last release.
    TokenBeginsAnew,
    /// A contender judges the lease by its wall clock.
    WallClocks,
    T0OfTheAnswer,
    /// The guardian gets a duration instead of a deadline.
    RelativeDeadline,
    EmptyListIsBelieved,
}
