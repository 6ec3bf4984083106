//! A search of the lease that is observed on a shared drive: two instances with the real
//! `Observed`, one chain of versions, and every order of events up to a bound of ticks, versions
//! and faults. The model covers everything around `Observed`: requests, versions, arrivals and
//! reads.
//!
//! `SEARCH_DRIVE_TICKS`, `SEARCH_DRIVE_VERSIONS` and `SEARCH_DRIVE_FAULTS` move the bound.

mod memories;
mod mistakes;
mod search;
mod states;
