//! A model of a leased blob, written from the table "outcomes of lease operations by lease state"
//! of the Azure reference.

use trafficcop::Instant;

use super::clock::nanos;
use std::time::Duration;

pub(crate) type Id = u64;

/// The holder's metadata.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) token: u64,
    pub(crate) holder: usize,
    pub(crate) series: Id,
    pub(crate) draining: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Request {
    Look {
        lease: Option<Id>,
    },
    Create,
    Acquire {
        id: Id,
    },
    Renew {
        id: Id,
    },
    Release {
        id: Id,
    },
    Set {
        id: Id,
        etag: Option<u64>,
        record: Record,
    },
    RestOfBreaking {
        etag: u64,
    },
}

/// The service's codes, as far as instances treat them differently.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Code {
    BlobNotFound,
    BlobAlreadyExists,
    LeaseAlreadyPresent,
    LeaseIsBreaking,
    LeaseIsBrokenAndCannotBeRenewed,
    Mismatch,
    NotPresent,
    ConditionNotMet,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LeaseState {
    Free,
    Leased,
    Breaking,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    View {
        lease: LeaseState,
        etag: u64,
        record: Option<Record>,
    },
    Etag(u64),
    Done,
    Rest(u64),
    Refused(Code),
    /// Error of the front end or a proxy: it says nothing about the lease.
    Error {
        status: u16,
        retry_after: Option<Duration>,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lease {
    Available,
    Leased {
        id: Id,
        until: Instant,
    },
    /// The lease of this id ran out; it can be renewed until the blob is written or leased.
    Expired {
        id: Id,
        modified: bool,
    },
    Breaking {
        id: Id,
        until: Instant,
    },
    Broken {
        id: Id,
    },
}

#[derive(Clone, Copy, Debug)]
struct Blob {
    lease: Lease,
    etag: u64,
    record: Option<Record>,
}

#[derive(Debug)]
pub(crate) struct Store {
    blob: Option<Blob>,
    etags: u64,
    span: Duration,
    /// Number of times that the blob was deleted, with its token.
    pub(crate) deletions: u32,
}

impl Store {
    pub(crate) fn new(span: Duration, exists: bool) -> Store {
        let blob = exists.then_some(Blob {
            lease: Lease::Available,
            etag: 1,
            record: None,
        });
        Store {
            blob,
            etags: 1,
            span,
            deletions: 0,
        }
    }

    /// Returns the id that keeps all others out at `now`.
    pub(crate) fn protects(&mut self, now: Instant) -> Option<Id> {
        self.settle(now);
        match self.blob?.lease {
            Lease::Leased { id, .. } | Lease::Breaking { id, .. } => Some(id),
            Lease::Available | Lease::Expired { .. } | Lease::Broken { .. } => None,
        }
    }

    /// Returns the id of a lease that is not being broken.
    pub(crate) fn leased(&mut self, now: Instant) -> Option<Id> {
        self.settle(now);
        match self.blob?.lease {
            Lease::Leased { id, .. } => Some(id),
            _ => None,
        }
    }

    pub(crate) fn ends(&self) -> Option<Instant> {
        match self.blob?.lease {
            Lease::Leased { until, .. } | Lease::Breaking { until, .. } => Some(until),
            Lease::Available | Lease::Expired { .. } | Lease::Broken { .. } => None,
        }
    }

    fn settle(&mut self, now: Instant) {
        let Some(blob) = &mut self.blob else { return };
        match blob.lease {
            Lease::Leased { id, until } if now >= until => {
                blob.lease = Lease::Expired {
                    id,
                    modified: false,
                };
            }
            Lease::Breaking { id, until } if now >= until => blob.lease = Lease::Broken { id },
            _ => {}
        }
    }

    pub(crate) fn delete(&mut self) {
        self.deletions += u32::from(self.blob.is_some());
        self.blob = None;
    }

    pub(crate) fn break_lease(&mut self, now: Instant, period: Option<Duration>) {
        self.settle(now);
        let Some(blob) = &mut self.blob else { return };
        blob.lease = match blob.lease {
            Lease::Leased { id, until } | Lease::Breaking { id, until } => {
                let until = period.map_or(until, |period| until.min(now + period));
                if until <= now {
                    Lease::Broken { id }
                } else {
                    Lease::Breaking { id, until }
                }
            }
            Lease::Expired { id, .. } => Lease::Broken { id },
            other => other,
        };
    }

    pub(crate) fn handle(&mut self, now: Instant, request: Request) -> Reply {
        self.settle(now);
        if let (Request::Create, None) = (request, self.blob) {
            self.etags += 1;
            self.blob = Some(Blob {
                lease: Lease::Available,
                etag: self.etags,
                record: None,
            });
            return Reply::Etag(self.etags);
        }
        let Some(blob) = &mut self.blob else {
            return Reply::Refused(Code::BlobNotFound);
        };
        let active = match blob.lease {
            Lease::Leased { id, .. } | Lease::Breaking { id, .. } => Some(id),
            _ => None,
        };
        let until = now + self.span;
        match request {
            Request::Create => Reply::Refused(Code::BlobAlreadyExists),
            Request::Look { lease } => {
                if let Some(id) = lease
                    && active != Some(id)
                {
                    let code = if active.is_some() {
                        Code::Mismatch
                    } else {
                        Code::NotPresent
                    };
                    return Reply::Refused(code);
                }
                let lease = match blob.lease {
                    Lease::Leased { .. } => LeaseState::Leased,
                    Lease::Breaking { .. } => LeaseState::Breaking,
                    _ => LeaseState::Free,
                };
                Reply::View {
                    lease,
                    etag: blob.etag,
                    record: blob.record,
                }
            }
            Request::Acquire { id } => match blob.lease {
                Lease::Leased { id: theirs, .. } if theirs != id => {
                    Reply::Refused(Code::LeaseAlreadyPresent)
                }
                Lease::Breaking { id: theirs, .. } => Reply::Refused(if theirs == id {
                    Code::LeaseIsBreaking
                } else {
                    Code::LeaseAlreadyPresent
                }),
                _ => {
                    blob.lease = Lease::Leased { id, until };
                    Reply::Etag(blob.etag)
                }
            },
            Request::Renew { id } => match blob.lease {
                Lease::Leased { id: ours, .. } if ours == id => {
                    blob.lease = Lease::Leased { id, until };
                    Reply::Etag(blob.etag)
                }
                Lease::Expired {
                    id: ours,
                    modified: false,
                } if ours == id => {
                    blob.lease = Lease::Leased { id, until };
                    Reply::Etag(blob.etag)
                }
                Lease::Breaking { id: ours, .. } | Lease::Broken { id: ours } if ours == id => {
                    Reply::Refused(Code::LeaseIsBrokenAndCannotBeRenewed)
                }
                Lease::Available => Reply::Refused(Code::NotPresent),
                _ => Reply::Refused(Code::Mismatch),
            },
            Request::Release { id } => match blob.lease {
                Lease::Leased { id: ours, .. }
                | Lease::Expired { id: ours, .. }
                | Lease::Breaking { id: ours, .. }
                | Lease::Broken { id: ours }
                    if ours == id =>
                {
                    blob.lease = Lease::Available;
                    Reply::Done
                }
                Lease::Available => Reply::Refused(Code::NotPresent),
                _ => Reply::Refused(Code::Mismatch),
            },
            Request::Set { id, etag, record } => {
                if active != Some(id) {
                    let code = if active.is_some() {
                        Code::Mismatch
                    } else {
                        Code::NotPresent
                    };
                    return Reply::Refused(code);
                }
                if etag.is_some_and(|etag| etag != blob.etag) {
                    return Reply::Refused(Code::ConditionNotMet);
                }
                self.etags += 1;
                blob.etag = self.etags;
                blob.record = Some(record);
                Reply::Etag(blob.etag)
            }
            Request::RestOfBreaking { etag } => {
                if etag != blob.etag {
                    return Reply::Refused(Code::ConditionNotMet);
                }
                match blob.lease {
                    Lease::Breaking { until, .. } => {
                        Reply::Rest(nanos(until.since(now)) / 1_000_000_000)
                    }
                    Lease::Leased { id, until } => {
                        blob.lease = Lease::Breaking { id, until };
                        Reply::Rest(nanos(until.since(now)) / 1_000_000_000)
                    }
                    Lease::Expired { id, .. } | Lease::Broken { id } => {
                        blob.lease = Lease::Broken { id };
                        Reply::Rest(0)
                    }
                    Lease::Available => Reply::Refused(Code::NotPresent),
                }
            }
        }
    }
}
