//! Messages at rest: available, locked or deferred.
//!
//! Pure: the time is passed in, nothing is sent. A shelf is a queue or a dead-letter queue;
//! [`super::namespace`] knows which.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::{Duration, Instant};

use crate::codec::{Guid, Message};

#[derive(Clone, Debug)]
pub(crate) struct Stored {
    pub(crate) message: Message,
    /// Milliseconds since 1970.
    pub(crate) enqueued: i64,
    pub(crate) failed: u32,
    pub(crate) state: MessageState,
    /// Session that it belongs to: its `group-id`.
    pub(crate) session: Option<String>,
}

/// State of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageState {
    /// Available to the next receiver with credit.
    Ready,
    /// Locked for the receiver that knows the token.
    Locked {
        /// Lock token.
        token: Guid,
        /// End of the lock, whatever clients were told.
        until: Instant,
    },
    /// Available by its sequence number only.
    Deferred,
}

/// Counts of messages by state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Available messages.
    pub ready: usize,
    /// Locked messages.
    pub locked: usize,
    /// Deferred messages.
    pub deferred: usize,
}

#[derive(Debug, Default)]
pub(crate) struct Shelf {
    messages: BTreeMap<u64, Stored>,
    ready: BTreeSet<u64>,
    /// Available messages by session.
    by_session: BTreeMap<String, BTreeSet<u64>>,
    locks: HashMap<Guid, u64>,
    expiries: BTreeSet<(Instant, u64)>,
}

impl Shelf {
    pub(crate) fn put(&mut self, sequence: u64, mut stored: Stored) {
        stored.state = MessageState::Ready;
        if let Some(session) = &stored.session {
            let ready = self.by_session.entry(session.clone()).or_default();
            ready.insert(sequence);
        }
        self.messages.insert(sequence, stored);
        self.ready.insert(sequence);
    }

    /// Takes the next available message, of a session or of all.
    fn pop(&mut self, session: Option<&str>) -> Option<u64> {
        let sequence = *match session {
            Some(session) => self.by_session.get(session)?.first()?,
            None => self.ready.first()?,
        };
        self.ready.remove(&sequence);
        if let Some(session) = &self.messages.get(&sequence)?.session
            && let Some(ready) = self.by_session.get_mut(session)
        {
            ready.remove(&sequence);
            if ready.is_empty() {
                self.by_session.remove(session);
            }
        }
        Some(sequence)
    }

    /// Lists the sessions with available messages, each with the number of its first.
    pub(crate) fn sessions(&self) -> impl Iterator<Item = (u64, &str)> {
        let sessions = self.by_session.iter();
        sessions.filter_map(|(session, ready)| Some((*ready.first()?, session.as_str())))
    }

    pub(crate) fn locked_of(&self, session: &str) -> Vec<Guid> {
        let mut locks: Vec<(u64, Guid)> = (self.locks.iter())
            .filter(|(_, sequence)| {
                let stored = self.messages.get(sequence);
                stored.is_some_and(|stored| stored.session.as_deref() == Some(session))
            })
            .map(|(token, sequence)| (*sequence, *token))
            .collect();
        locks.sort_by_key(|(sequence, _)| *sequence);
        locks.into_iter().map(|(_, token)| token).collect()
    }

    pub(crate) fn counts(&self) -> Counts {
        let (ready, locked) = (self.ready.len(), self.locks.len());
        Counts {
            ready,
            locked,
            deferred: self.messages.len() - ready - locked,
        }
    }

    pub(crate) fn has_ready(&self, session: Option<&str>) -> bool {
        session.map_or(!self.ready.is_empty(), |session| {
            self.by_session.contains_key(session)
        })
    }

    pub(crate) fn lock_next(
        &mut self,
        session: Option<&str>,
        now: Instant,
        length: Duration,
    ) -> Option<(u64, Guid)> {
        let sequence = self.pop(session)?;
        Some((sequence, self.lock(sequence, now, length)?))
    }

    pub(crate) fn lock_deferred(
        &mut self,
        sequence: u64,
        now: Instant,
        length: Duration,
    ) -> Option<Guid> {
        (self.messages.get(&sequence)?.state == MessageState::Deferred)
            .then(|| self.lock(sequence, now, length))?
    }

    fn lock(&mut self, sequence: u64, now: Instant, length: Duration) -> Option<Guid> {
        let stored = self.messages.get_mut(&sequence)?;
        let (token, until) = (Guid::new(), now + length);
        stored.state = MessageState::Locked { token, until };
        self.locks.insert(token, sequence);
        self.expiries.insert((until, sequence));
        Some(token)
    }

    pub(crate) fn remove_next(&mut self, session: Option<&str>) -> Option<(u64, Stored)> {
        let sequence = self.pop(session)?;
        Some((sequence, self.messages.remove(&sequence)?))
    }

    pub(crate) fn get(&self, sequence: u64) -> Option<&Stored> {
        self.messages.get(&sequence)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, &Stored)> {
        self.messages
            .iter()
            .map(|(sequence, stored)| (*sequence, stored))
    }

    pub(crate) fn locked(&self, token: Guid) -> Option<u64> {
        self.locks.get(&token).copied()
    }

    pub(crate) fn renew(&mut self, token: Guid, now: Instant, length: Duration) -> Option<u64> {
        let sequence = self.locked(token)?;
        let stored = self.messages.get_mut(&sequence)?;
        if let MessageState::Locked { until, .. } = &mut stored.state {
            self.expiries.remove(&(*until, sequence));
            *until = now + length;
            self.expiries.insert((*until, sequence));
        }
        Some(sequence)
    }

    pub(crate) fn unlock(&mut self, token: Guid) -> Option<(u64, Stored)> {
        let sequence = self.locks.remove(&token)?;
        let stored = self.messages.remove(&sequence)?;
        if let MessageState::Locked { until, .. } = stored.state {
            self.expiries.remove(&(until, sequence));
        }
        Some((sequence, stored))
    }

    pub(crate) fn defer(&mut self, sequence: u64, mut stored: Stored) {
        stored.state = MessageState::Deferred;
        self.messages.insert(sequence, stored);
    }

    /// Hides a message from requests for the next one.
    pub(crate) fn hide(&mut self, sequence: u64) {
        if self.ready.remove(&sequence)
            && let Some(stored) = self.messages.get_mut(&sequence)
        {
            stored.state = MessageState::Deferred;
            if let Some(session) = &stored.session
                && let Some(ready) = self.by_session.get_mut(session)
            {
                ready.remove(&sequence);
                if ready.is_empty() {
                    self.by_session.remove(session);
                }
            }
        }
    }

    pub(crate) fn show(&mut self, sequence: u64) {
        if let Some(stored) = self.messages.remove(&sequence) {
            self.put(sequence, stored);
        }
    }

    /// Returns the first lock that has ended by `now`.
    pub(crate) fn expired(&self, now: Instant) -> Option<Guid> {
        let (until, sequence) = self.expiries.first()?;
        match self.messages.get(sequence)?.state {
            MessageState::Locked { token, .. } if *until <= now => Some(token),
            _ => None,
        }
    }

    pub(crate) fn next_expiry(&self) -> Option<Instant> {
        self.expiries.first().map(|(until, _)| *until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shelf(messages: u64) -> Shelf {
        let mut shelf = Shelf::default();
        for sequence in 1..=messages {
            shelf.put(
                sequence,
                Stored {
                    message: Message::data(b"x"),
                    enqueued: 0,
                    failed: 0,
                    state: MessageState::Ready,
                    session: None,
                },
            );
        }
        shelf
    }

    const LOCK: Duration = Duration::from_secs(30);

    #[test]
    fn locked_message_goes_to_no_other_receiver_before_its_lock_ends() {
        let (mut shelf, now) = (shelf(1), Instant::now());
        let (_, token) = shelf.lock_next(None, now, LOCK).expect("one is ready");
        assert_eq!(shelf.lock_next(None, now, LOCK), None);
        assert_eq!(shelf.expired(now + LOCK - Duration::from_millis(1)), None);
        assert_eq!(shelf.expired(now + LOCK), Some(token));
    }

    #[test]
    fn a_renewed_lock_runs_from_the_renewal() {
        let (mut shelf, now) = (shelf(1), Instant::now());
        let (_, token) = shelf.lock_next(None, now, LOCK).expect("one is ready");
        assert_eq!(shelf.renew(token, now + LOCK / 2, LOCK), Some(1));
        assert_eq!(shelf.expired(now + LOCK), None);
        assert_eq!(shelf.next_expiry(), Some(now + LOCK / 2 + LOCK));
        assert_eq!(shelf.renew(Guid::new(), now, LOCK), None);
    }

    #[test]
    fn an_unlocked_message_leaves_no_lock_and_no_expiry() {
        let (mut shelf, now) = (shelf(2), Instant::now());
        let (_, token) = shelf.lock_next(None, now, LOCK).expect("one is ready");
        let (sequence, stored) = shelf.unlock(token).expect("it is locked");
        assert!(shelf.unlock(token).is_none());
        assert_eq!(shelf.next_expiry(), None);
        shelf.put(sequence, stored);
        let again = shelf.lock_next(None, now, LOCK).expect("it is back");
        assert_eq!(again.0, 1, "in its old place");
        assert_ne!(again.1, token, "under a new token");
    }

    #[test]
    fn a_deferred_message_comes_only_by_its_number() {
        let (mut shelf, now) = (shelf(1), Instant::now());
        let (_, token) = shelf.lock_next(None, now, LOCK).expect("one is ready");
        let (sequence, stored) = shelf.unlock(token).expect("it is locked");
        shelf.defer(sequence, stored);
        assert_eq!(shelf.lock_next(None, now, LOCK), None);
        assert!(shelf.lock_deferred(sequence, now, LOCK).is_some());
        assert!(shelf.lock_deferred(sequence, now, LOCK).is_none());
    }
}
