//! The lease that is observed on a drive that machines share, searched likewise: two instances with the real
//! `Observed`, one chain of versions, and every order of what can happen to a bound of ticks, versions and
//! faults. What stands round `Observed` is its surroundings: who asks, what is made, what arrives and what is read.
//!
//! `SEARCH_DRIVE_TICKS`, `SEARCH_DRIVE_VERSIONS` and `SEARCH_DRIVE_FAULTS` move the bound.

mod memories;
mod mistakes;
mod search;
mod states;
