//! The names of the tables' rows and columns, as docs/figures.md has them too. Used by `beside` and `crowd`,
//! and by the test that holds that chapter to what the command prints; measures and decides nothing.

/// What is compared, in the order of the columns.
pub(crate) const TOOLS: [&str; 6] = [
    "flock",
    "etcdctl lock",
    "Python script",
    "trafficcop --file",
    "trafficcop --blob",
    "the same, --doorbell",
];

/// What is measured, in the order of the rows.
pub(crate) const ROWS: [&str; 17] = [
    "start to the command, ms",
    "the same, times flock",
    "holder, PSS in MB",
    "standby, PSS in MB",
    "one of 50 standbys, PSS in MB",
    "holder, requests/s",
    "standby, requests/s",
    "holder, ms of CPU per minute",
    "standby, ms of CPU per minute",
    "hand-over when the command ends, ms",
    "supervisor SIGKILLed: next command after, s",
    "the same: both ran for, s",
    "store hangs for the holder: next command after, s",
    "the same: both ran for, s (store)",
    "supervisor SIGSTOPped: next command after, s",
    "the same: both ran for, s (stop)",
    "supervisor SIGKILLed, deaf tree with a daemon: both ran for, s",
];

/// The crowds that are simulated, in the order of the columns.
pub(crate) const CROWDS: [&str; 6] = ["1", "50", "80", "500", "500, 12s", "500, doorbell"];

/// What is said of each, in the order of the rows.
pub(crate) const CROWD_ROWS: [&str; 13] = [
    "in an hour without a change: requests/s (of 500)",
    "the busiest 100 ms of it",
    "the busiest second of it",
    "all started in one second: the busiest second",
    "the busiest second of the minute after the next",
    "holder drains for 30 s: the busiest second",
    "the same, all above 500/s being refused: of all requests, and ms to the next command at most",
    "holder drains for 2 s: the busiest second",
    "from its release to the next command, ms",
    "supervisor SIGKILLed: the busiest second",
    "from the guardian's release to the next command, ms",
    "machine switched off: the busiest second",
    "from the end of the lease to the next command, ms",
];
