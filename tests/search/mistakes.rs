//! Mistakes of stores, drivers and guardians, the known ones of other tools among them: each is found,
//! else the search proves nothing. Those of the core are planted in its source: tests/planted.

/// What can be done wrong round the core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mistake {
    /// A call to the store ends when it is answered, and else never.
    NeverTimesOut,
    /// What is not answered counts as lost.
    FirstBlipIsLoss,
    /// The token is counted from the last release.
    TokenBeginsAnew,
    /// Whether a lease has run out is read off the contender's wall clock.
    WallClocks,
    /// The lease is counted from the answer.
    T0OfTheAnswer,
    /// The guardian is told how long the command may run, and not until when.
    RelativeDeadline,
    /// No child in a list is taken for no child.
    EmptyListIsBelieved,
}
