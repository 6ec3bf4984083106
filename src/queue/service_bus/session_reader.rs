//! Reads the link of a session, and says on it what is to be said, until it ends.
//!
//! Begun by [`super::session`] for each session, as a task of its own: that a link has ended is known by
//! reading it, and whoever has a command to kill must not have to ask. It decides nothing.

use std::sync::Arc;

use fe2o3_amqp::link::RecvError;
use fe2o3_amqp::link::delivery::{self, DeliveryInfo};
use fe2o3_amqp::types::messaging::Body;
use fe2o3_amqp::types::primitives::Value;
use tokio::sync::{mpsc, oneshot, watch};

use super::amqp::{Connection, limited};
use super::error::BusError;
use super::session_link::SessionLink;
use super::wire::{self, Delivery, Ticket};
use crate::clock::Instant;
use crate::queue::Settlement;

/// What the link of a session is to do.
pub(super) enum Want {
    /// Let one message come.
    Message,
    /// Settle the last one so.
    Settle(Settlement),
    /// End.
    Close(Instant, oneshot::Sender<()>),
}

/// Reads the link of a session until it ends, whether there is anything to read or not: that it has ended
/// is known by reading.
pub(super) struct Reader {
    link: SessionLink,
    connection: Arc<Connection>,
    max_body: usize,
    deliveries: mpsc::UnboundedSender<Delivery>,
    last: Option<DeliveryInfo>,
    /// A message was let come and has not.
    credit: bool,
}

impl Reader {
    pub(super) fn new(
        link: SessionLink,
        connection: Arc<Connection>,
        max_body: usize,
        deliveries: mpsc::UnboundedSender<Delivery>,
    ) -> Reader {
        Reader {
            link,
            connection,
            max_body,
            deliveries,
            last: None,
            credit: false,
        }
    }

    pub(super) async fn run(
        mut self,
        mut wants: mpsc::UnboundedReceiver<Want>,
        ended: watch::Sender<Option<String>>,
    ) {
        let connection = Arc::clone(&self.connection);
        let name = self.link.name.clone();
        connection.state.holds_session();
        let why = loop {
            let done = tokio::select! {
                biased;
                // First: what it does not say to itself any more, the link cannot either.
                why = connection.ended() => break why.why(),
                want = wants.recv() => match want {
                    Some(Want::Close(give_up_at, done)) => {
                        // Before it is so: nobody is to count on it any more.
                        ended.send_replace(Some("it was given up".to_owned()));
                        connection.state.gives_up_session(&name);
                        self.link.close(give_up_at).await;
                        // Whoever asked may have gone.
                        let _ = done.send(());
                        return;
                    }
                    Some(want) => self.does(want).await,
                    // Nobody has it any more. Dropped, the link is ended.
                    None => break "nobody wants it".to_owned(),
                },
                received = self.link.receiver.recv::<Body<Value>>() => self.received(received),
            };
            if let Err(error) = done {
                break error.why();
            }
        };
        connection.state.gives_up_session(&name);
        ended.send_replace(Some(why));
    }

    async fn does(&mut self, want: Want) -> Result<(), BusError> {
        match want {
            Want::Message if !self.credit => {
                self.credit = true;
                limited(self.link.receiver.set_credit(1)).await
            }
            Want::Settle(how) => match self.last.clone() {
                Some(info) => limited(self.link.receiver.dispose(info, wire::outcome(&how))).await,
                None => Ok(()),
            },
            // It is under way already: whoever waited for it before gave up waiting.
            Want::Message | Want::Close(..) => Ok(()),
        }
    }

    fn received(
        &mut self,
        received: Result<delivery::Delivery<Body<Value>>, RecvError>,
    ) -> Result<(), BusError> {
        let delivery = match received {
            Ok(delivery) => {
                let (info, message) = delivery.into_parts();
                let (tag, ticket) = (info.delivery_tag().to_vec(), self.arrived(info));
                wire::delivery(ticket, &tag, message, self.max_body)
            }
            Err(RecvError::MessageDecode(error)) => {
                let tag = error.info.delivery_tag().to_vec();
                let ticket = self.arrived(error.info);
                wire::unreadable(ticket, &tag, &error.source.to_string())
            }
            Err(error) => return Err(error.into()),
        };
        // Nobody may want it any more: it goes back with the link.
        let _ = self.deliveries.send(delivery);
        Ok(())
    }

    fn arrived(&mut self, info: DeliveryInfo) -> Ticket {
        self.credit = false;
        let delivery = info.delivery_id();
        self.last = Some(info);
        Ticket {
            connection: self.connection.serial,
            delivery,
        }
    }
}
