//! Search of the lease that is observed on a shared drive. The model covers everything around the
//! real `Observed`: requests, versions, arrivals and reads.
//!
//! `SEARCH_DRIVE_TICKS`, `SEARCH_DRIVE_VERSIONS` and `SEARCH_DRIVE_FAULTS` move the bound.

mod memories;
mod mistakes;
mod search;
mod states;
