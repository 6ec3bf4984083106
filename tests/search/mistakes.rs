//! Mistakes of stores, drivers and guardians, including known ones of other tools. Each must be
//! found, or the search proves nothing. tests/planted has those of the core.

/// A possible mistake outside the core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mistake {
    /// A call to the store ends only with its answer.
    NeverTimesOut,
    /// A missing answer counts as a loss.
    FirstBlipIsLoss,
    /// The token counts from the last release.
    TokenBeginsAnew,
    /// A contender uses its wall clock to decide whether a lease has run out.
    WallClocks,
    T0OfTheAnswer,
    /// The guardian gets a duration instead of a deadline.
    RelativeDeadline,
    EmptyListIsBelieved,
}
