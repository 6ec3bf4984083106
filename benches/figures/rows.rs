//! The names of the table's rows and columns, as the README has them too. Used by `beside`, and by
//! the test that holds the README to what the command prints; measures and decides nothing.

/// What is compared, in the order of the columns.
pub(crate) const TOOLS: [&str; 5] = [
    "flock",
    "etcdctl lock",
    "Python script",
    "trafficcop --file",
    "trafficcop --blob",
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
