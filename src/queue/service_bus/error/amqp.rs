//! What the engine's library says went wrong, as a [`BusError`].
//!
//! Called by the engine alone. The library has an error type for each thing that can be done; what
//! counts in all of them is whether the service said no, and in which words.

use fe2o3_amqp::connection::{ConnectionStopReason, OpenError};
use fe2o3_amqp::link::{
    DetachError, IllegalLinkStateError, LinkStateError, ReceiverAttachError, RecvError, SendError,
    SenderAttachError, SessionStopReason,
};
use fe2o3_amqp::session::BeginError;
use fe2o3_amqp::types::definitions::{Error, ErrorCondition};
use fe2o3_amqp::types::primitives::Symbol;

use super::super::transport::stranger;
use super::BusError;

fn refused(error: &Error) -> BusError {
    let condition = match &error.condition {
        ErrorCondition::AmqpError(condition) => Symbol::from(condition),
        ErrorCondition::ConnectionError(condition) => Symbol::from(condition),
        ErrorCondition::SessionError(condition) => Symbol::from(condition),
        ErrorCondition::LinkError(condition) => Symbol::from(condition),
        ErrorCondition::Custom(condition) => condition.clone(),
    };
    BusError::refused(condition.as_str(), error.description.as_deref())
}

fn cut(why: impl ToString) -> BusError {
    BusError::Unanswered(why.to_string())
}

fn connection(reason: &ConnectionStopReason) -> BusError {
    match reason {
        ConnectionStopReason::RemoteClosedWithError(error) => refused(error),
        ConnectionStopReason::ClosedWithError(error) => cut(format!(
            "the connection was given up: {}",
            refused(error).why()
        )),
        ConnectionStopReason::Closed | ConnectionStopReason::RemoteClosed => {
            cut("the connection was closed")
        }
    }
}

fn session(reason: &SessionStopReason) -> BusError {
    match reason {
        SessionStopReason::RemoteEndedWithError(error) => refused(error),
        SessionStopReason::ConnectionStopped(reason) => connection(reason),
        SessionStopReason::EndedWithError(error) => cut(refused(error).why()),
        SessionStopReason::Ended | SessionStopReason::RemoteEnded => cut("the session was ended"),
    }
}

fn link(error: &LinkStateError) -> BusError {
    match error {
        LinkStateError::RemoteDetachedWithError(error)
        | LinkStateError::RemoteClosedWithError(error) => refused(error),
        LinkStateError::SessionStopped(reason) => session(reason),
        LinkStateError::RemoteDetached | LinkStateError::RemoteClosed => {
            cut("the service detached the link")
        }
        other => cut(other),
    }
}

/// Of opening the connection to this host and port.
pub(in crate::queue::service_bus) fn opening(error: &OpenError, host: &str, port: u16) -> BusError {
    match error {
        OpenError::ProtocolHeaderMismatch(said) => stranger(host, port, said),
        OpenError::RemoteClosedWithError(error) => refused(error),
        OpenError::SaslError { .. } => BusError::refused("amqp:unauthorized-access", Some("SASL")),
        other => BusError::Unsent(format!("{host}:{port}: {other}")),
    }
}

/// Of beginning a session.
pub(in crate::queue::service_bus) fn beginning(error: &BeginError) -> BusError {
    match error {
        BeginError::RemoteEndedWithError(error) => refused(error),
        BeginError::ConnectionStopped(reason) => connection(reason),
        other => cut(other),
    }
}

/// Of attaching a link to send by.
pub(in crate::queue::service_bus) fn attaching_sender(error: &SenderAttachError) -> BusError {
    match error {
        SenderAttachError::RemoteClosedWithError(error) => refused(error),
        SenderAttachError::SessionStopped(reason) => session(reason),
        other => cut(other),
    }
}

/// Of attaching a link to receive by.
pub(in crate::queue::service_bus) fn attaching_receiver(error: &ReceiverAttachError) -> BusError {
    match error {
        ReceiverAttachError::RemoteClosedWithError(error) => refused(error),
        ReceiverAttachError::SessionStopped(reason) => session(reason),
        other => cut(other),
    }
}

/// Of sending a request.
pub(in crate::queue::service_bus) fn sending(error: &SendError) -> BusError {
    match error {
        SendError::LinkStateError(error) => link(error),
        SendError::Detached(DetachError::RemoteClosedWithError(error))
        | SendError::Detached(DetachError::RemoteDetachedWithError(error)) => refused(error),
        SendError::Detached(DetachError::SessionStopped(reason)) => session(reason),
        other => cut(other),
    }
}

/// Of receiving.
pub(in crate::queue::service_bus) fn receiving(error: &RecvError) -> BusError {
    match error {
        RecvError::LinkStateError(error) => link(error),
        other => cut(other),
    }
}

/// Of giving credit, or settling.
pub(in crate::queue::service_bus) fn flowing(error: &IllegalLinkStateError) -> BusError {
    match error {
        IllegalLinkStateError::SessionStopped(reason) => session(reason),
        other => cut(other),
    }
}
