//! Release of the lock, records of this instance's versions, and notes by which the guardian can release.
//!
//! This module must never note a version that may be another instance's, nor clear a note before others can
//! read that the lock is free.

use super::chain::{Chain, Tenure};
use super::release;
use super::writer::Wanted;
use crate::errors::transient;
use crate::version_record::{VersionRecord, VersionState, fresh_nonce};
use trafficcop_core::Failure;
use trafficcop_core::clock::Instant;
use trafficcop_core::observed::Version;

impl Chain {
    pub(super) fn release(&self, give_up_at: Instant) -> Result<(), Failure> {
        let unwritten = self.state().unwritten.clone();
        let version = match unwritten {
            Some(record) => {
                // A passing error may be over, and no other instance writes this record.
                self.writer.again(&record);
                record.version
            }
            None if self.has_nothing_to_release() => {
                self.end_tenure();
                return Ok(());
            }
            None => match self.make_released_version() {
                Ok(version) => version,
                // Never granted: nothing to release.
                Err(Failure::Lost { .. }) if self.state().tenure.is_none() => return Ok(()),
                Err(failure) => {
                    if let Failure::Lost { .. } = failure {
                        self.end_tenure();
                    }
                    return Err(failure);
                }
            },
        };
        // Others read the version's record, and the hint in the file at the lock's path. One is enough: the other
        // write can hang because of another machine that is cut off.
        let written = self.writer.outcome(version, give_up_at, Wanted::Either);
        if written.record || written.hint {
            self.state().unwritten = None;
            self.clear_note();
            return Ok(());
        }
        Err(transient(format!(
            "{}: cannot record that it is free",
            self.share.path().display()
        )))
    }

    fn make_released_version(&self) -> Result<Version, Failure> {
        let granted = self.state().tenure.clone();
        let version = self.step()?;
        let tenure = match granted {
            Some(tenure) => tenure,
            // An abandoned attempt obtained the lock.
            None => self.ungranted_tenure(version)?,
        };
        let record = self.queue_record(version, true, &tenure);
        let mut state = self.state();
        state.tenure = None;
        state.unwritten = Some(record);
        state.observed.released(fresh_nonce(), Instant::now());
        Ok(version)
    }

    fn end_tenure(&self) {
        self.state().tenure = None;
        self.clear_note();
    }

    /// Queues a version's record, and notes it for the guardian if the version is certainly this instance's.
    pub(super) fn queue_record(
        &self,
        version: Version,
        released: bool,
        tenure: &Tenure,
    ) -> VersionRecord {
        let record = self.record_of(version, released, tenure);
        let (own, t0) = {
            let state = self.state();
            (state.observed.own(), state.observed.t0())
        };
        // The guardian makes the version after this one: note this one only if it is certainly this
        // instance's.
        if let Some(t0) = t0.filter(|_| own == Some(version)) {
            self.leave_note(t0, &record);
        }
        self.writer.put(&record);
        record
    }

    pub(super) fn record_of(
        &self,
        version: Version,
        released: bool,
        tenure: &Tenure,
    ) -> VersionRecord {
        // Only its nonce and lease are used, so the argument does not matter.
        let claim = self.state().observed.claim(false);
        VersionRecord {
            version,
            state: match tenure.record.draining {
                _ if released => VersionState::Released,
                true => VersionState::Draining,
                false => VersionState::Held,
            },
            nonce: claim.nonce,
            lease: claim.lease,
            record: tenure.record.clone(),
            unread: tenure.unread,
        }
    }

    pub(super) fn leave_note(&self, t0: Instant, record: &VersionRecord) {
        if let Some(memory) = &self.memory {
            release::leave_note(&**memory, self.share.path(), t0, record);
        }
    }

    pub(super) fn clear_note(&self) {
        if let Some(memory) = &self.memory {
            release::forget(&**memory, self.share.path());
        }
    }
}
