//! A pair of links for requests and their answers, as `$cbs` and `$management` have it.
//!
//! Made by [`super::amqp`] for each connection. Every request has an identifier that is never used
//! again, on no connection, and an answer counts for the request that it names and for no other: one
//! that comes late, twice, or names nobody changes nothing. (To pair answers with requests by their
//! order is how a refused renewal becomes a success.)

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use fe2o3_amqp::session::SessionHandle;
use fe2o3_amqp::types::definitions::{ReceiverSettleMode, SenderSettleMode};
use fe2o3_amqp::types::messaging::{
    AmqpValue, ApplicationProperties, Body, Message, MessageId, Properties, Target,
};
use fe2o3_amqp::types::primitives::{OrderedMap, SimpleValue, Value};
use fe2o3_amqp::{Receiver, Sender, link::RecvError, link::SendError};
use tokio::sync::oneshot;
use tokio::task::AbortHandle;

use super::error::BusError;
use super::stream::ConnectionState;
use super::wire::{self, Answer};
use trafficcop_azure::before;
use trafficcop_core::clock::Instant;
use trafficcop_core::util::lock;

/// A pair of links, one for requests and one for their answers.
pub(super) struct RequestLink {
    /// Unlike any other of this process and of others.
    name: String,
    sender: tokio::sync::Mutex<Sender>,
    waiting: Arc<Waiting<Answer>>,
    next: AtomicU64,
    state: Arc<ConnectionState>,
    reading: AbortHandle,
}

impl RequestLink {
    /// Attaches both links to `address`. `name` is unlike any other.
    pub(super) async fn attach(
        session: &mut SessionHandle<()>,
        address: &str,
        name: String,
        state: Arc<ConnectionState>,
    ) -> Result<RequestLink, BusError> {
        let sender = Sender::builder()
            .name(format!("{name}:requests"))
            .source(name.as_str())
            .target(address)
            // What the service says to a request is its answer.
            .sender_settle_mode(SenderSettleMode::Settled)
            .verify_incoming_source(false)
            .verify_incoming_target(false)
            .attach(session)
            .await?;
        let receiver = Receiver::builder()
            .name(format!("{name}:answers"))
            .source(address)
            .target(Target::builder().address(name.as_str()).build())
            .receiver_settle_mode(ReceiverSettleMode::First)
            .auto_accept(true)
            .verify_incoming_source(false)
            .verify_incoming_target(false)
            .attach(session)
            .await?;
        let waiting = Arc::new(Waiting::new());
        // One reader for all who wait: whoever gives up waiting must not take another's answer
        // along.
        let reading = tokio::spawn(read(receiver, Arc::clone(&waiting), Arc::clone(&state)));
        Ok(RequestLink {
            name,
            sender: tokio::sync::Mutex::new(sender),
            waiting,
            next: AtomicU64::new(0),
            state,
            reading: reading.abort_handle(),
        })
    }

    /// Sends a request and waits for its answer.
    pub(super) async fn ask<const N: usize>(
        &self,
        marks: [(&str, SimpleValue); N],
        body: Value,
        give_up_at: Instant,
    ) -> Result<Answer, BusError> {
        let sent = Instant::now();
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let id = format!("{}:{number}", self.name);
        // Before it is sent: the answer may be quicker than we are.
        let mut expected = self.waiting.expect(id.clone());
        let mut properties = Properties::new();
        properties.message_id = Some(MessageId::String(id));
        properties.reply_to = Some(self.name.clone());
        let marks = marks.map(|(key, value)| (key.to_owned(), value));
        let marks = marks.into_iter().collect::<OrderedMap<_, _>>();
        let message = Message::builder()
            .properties(properties)
            .application_properties(ApplicationProperties(marks))
            .body(AmqpValue(body))
            .build();
        let sending = async {
            // Within the limit: one that hangs on a dead socket holds up those behind it.
            let mut sender = self.sender.lock().await;
            sender.send(message).await
        };
        match before(give_up_at, sending).await {
            Some(Ok(_)) => {}
            Some(Err(error)) => {
                let unsent = matches!(
                    error,
                    SendError::MessageSizeExceeded(_) | SendError::MessageEncodeError
                );
                let error = BusError::from(error);
                // What the link will not carry was not begun: the others who wait on it lose nothing.
                if unsent {
                    return Err(error);
                }
                self.state.close(error.clone());
                // It was never handed to the connection: it can be asked for on the next one.
                return Err(BusError::Unsent(error.why()));
            }
            None => {
                self.state.suspect(sent);
                return Err(BusError::Unanswered(
                    "the request could not be sent in time".into(),
                ));
            }
        }
        let answer = async {
            tokio::select! {
                biased;
                answer = expected.answer() => answer.ok_or_else(|| {
                    BusError::Unanswered("the reader of the answers has ended".into())
                }),
                why = self.state.closed() => Err(BusError::Unanswered(why.why())),
            }
        };
        before(give_up_at, answer).await.unwrap_or_else(|| {
            self.state.suspect(sent);
            let waited = Instant::now().since(sent).as_secs_f32();
            Err(BusError::Unanswered(format!("no answer in {waited:.1} s")))
        })
    }
}

impl Drop for RequestLink {
    fn drop(&mut self) {
        // It holds the link, and with it the connection: nobody else ends it.
        self.reading.abort();
    }
}

/// Reads the answers, until there are none any more.
async fn read(mut receiver: Receiver, waiting: Arc<Waiting<Answer>>, state: Arc<ConnectionState>) {
    loop {
        match receiver.recv::<Body<Value>>().await {
            Ok(delivery) => {
                let known = wire::answer(delivery.into_message())
                    .is_some_and(|(id, answer)| waiting.answered(&id, answer));
                // Late, or twice. Taken for the next one it would make a refused renewal a success.
                if !known {
                    tracing::debug!("ignored an answer without a request");
                }
            }
            // One answer is lost, whose request ends by its time; the link is sound, and others
            // wait on it.
            Err(RecvError::MessageDecode(error)) => {
                tracing::debug!("ignored an answer that cannot be read ({})", error.source);
            }
            Err(error) => return state.close(error.into()),
        }
    }
}

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

    /// A place for the answer to `id`, for as long as it is kept.
    pub(super) fn expect(&self, id: String) -> Expected<'_, A> {
        let (sender, answer) = oneshot::channel();
        lock(&self.open).insert(id.clone(), sender);
        Expected {
            waiting: self,
            id,
            answer,
        }
    }

    /// An answer has come. Whether somebody waited for it.
    pub(super) fn answered(&self, id: &str, answer: A) -> bool {
        let waiter = lock(&self.open).remove(id);
        waiter.is_some_and(|waiter| waiter.send(answer).is_ok())
    }

    #[cfg(test)]
    fn len(&self) -> usize {
        lock(&self.open).len()
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
        // Whoever gave up is not answered any more, and a connection of months does not fill with
        // them.
        lock(&self.waiting.open).remove(&self.id);
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
