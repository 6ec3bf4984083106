//! Who waits for which answer. Pure.
//!
//! Every request has an identifier that is never used again, and an answer counts for the request
//! that it names and for no other: one that comes late, twice, or names nobody changes nothing. (To
//! pair answers with requests by their order is how a refused renewal becomes a success.)

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard};

use crate::util::lock;
use tokio::sync::oneshot;

/// The requests of one link that are not answered yet, and what answers them.
pub(super) struct Waiting<A> {
    open: Mutex<HashMap<String, oneshot::Sender<A>>>,
}

impl<A> Waiting<A> {
    pub(super) fn new() -> Waiting<A> {
        Waiting {
            open: Mutex::new(HashMap::new()),
        }
    }

    fn open(&self) -> MutexGuard<'_, HashMap<String, oneshot::Sender<A>>> {
        lock(&self.open)
    }

    /// A place for the answer to `id`, for as long as it is kept.
    pub(super) fn expect(&self, id: String) -> Expected<'_, A> {
        let (sender, answer) = oneshot::channel();
        self.open().insert(id.clone(), sender);
        Expected {
            waiting: self,
            id,
            answer,
        }
    }

    /// An answer has come. Whether somebody waited for it.
    pub(super) fn answered(&self, id: &str, answer: A) -> bool {
        let waiter = self.open().remove(id);
        waiter.is_some_and(|waiter| waiter.send(answer).is_ok())
    }

    #[cfg(test)]
    fn len(&self) -> usize {
        self.open().len()
    }
}

/// A place for an answer. Dropped, nobody waits for it any more.
pub(super) struct Expected<'a, A> {
    waiting: &'a Waiting<A>,
    id: String,
    answer: oneshot::Receiver<A>,
}

impl<A> Expected<'_, A> {
    /// The answer, when it comes.
    pub(super) async fn answer(&mut self) -> Option<A> {
        (&mut self.answer).await.ok()
    }
}

impl<A> Drop for Expected<'_, A> {
    fn drop(&mut self) {
        self.waiting.open().remove(&self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_answer_counts_for_the_request_that_it_names_and_for_no_other() {
        let waiting = Waiting::new();
        let mut first = waiting.expect("1".into());
        let mut second = waiting.expect("2".into());
        assert!(waiting.answered("2", "two"));
        assert!(!waiting.answered("2", "two again"));
        assert!(!waiting.answered("3", "three"));
        assert!(!waiting.answered("", "nobody"));
        assert!(waiting.answered("1", "one"));
        assert_eq!(first.answer().await, Some("one"));
        assert_eq!(second.answer().await, Some("two"));
    }

    #[tokio::test]
    async fn an_answer_that_comes_too_late_is_nobodys() {
        let waiting = Waiting::new();
        drop(waiting.expect("1".into()));
        let mut next = waiting.expect("2".into());
        assert!(!waiting.answered("1", 200));
        assert!(waiting.answered("2", 410));
        assert_eq!(next.answer().await, Some(410));
        drop(next);
        assert_eq!(waiting.len(), 0);
    }
}
