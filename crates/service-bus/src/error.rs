//! Failures of the service, and the meaning of each as a [`Failure`]. Of the library's many error types it only
//! matters whether the service itself refused, and in which words.

use std::time::Duration;

use fe2o3_amqp::connection::{ConnectionStopReason, OpenError};
use fe2o3_amqp::link::{
    DetachError, IllegalLinkStateError, LinkStateError, ReceiverAttachError, RecvError, SendError,
    SenderAttachError, SessionStopReason,
};
use fe2o3_amqp::session::BeginError;
use fe2o3_amqp::types::definitions::{Error, ErrorCondition};
use fe2o3_amqp::types::primitives::Symbol;

use super::stream::stranger;
use trafficcop_azure::queue::Missing;
use trafficcop_core::Failure;

// Microsoft's clients wait as long.
pub(super) const BUSY: Duration = Duration::from_secs(4);

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum BusError {
    /// The service refused, or the library in its place.
    Refused {
        status: Option<i64>,
        /// Condition, such as `amqp:not-found`; can be empty.
        condition: String,
        text: String,
    },
    /// No answer came: it may have been done.
    Unanswered(String),
    /// No connection: it was not done.
    Unsent(String),
    /// The other side will never work: another protocol, or an untrusted certificate.
    Unusable(String),
}

impl BusError {
    pub(super) fn refused(condition: &str, text: Option<&str>) -> BusError {
        BusError::Refused {
            status: None,
            condition: condition.to_owned(),
            text: one_line(text.unwrap_or_default()),
        }
    }

    fn condition(&self) -> &str {
        match self {
            BusError::Refused { condition, .. } => condition,
            _ => "",
        }
    }

    fn status(&self) -> Option<i64> {
        match self {
            BusError::Refused { status, .. } => *status,
            _ => None,
        }
    }

    pub(super) fn is_unclear(&self) -> bool {
        match self {
            BusError::Unanswered(_) => true,
            // The service's own time limits, and its internal errors.
            BusError::Refused { status, .. } => status.is_some_and(|status| {
                status == 408 || (500..=599).contains(&status) && !self.is_busy()
            }),
            BusError::Unsent(_) | BusError::Unusable(_) => false,
        }
    }

    pub(super) fn is_lost(&self) -> bool {
        // Only these are final: all others, "not authorised" included, can pass while the lock lasts.
        self.status() == Some(410)
            || matches!(
                self.condition(),
                "com.microsoft:message-lock-lost"
                    | "com.microsoft:message-not-found"
                    | "com.microsoft:session-lock-lost"
            )
    }

    pub(super) fn is_busy(&self) -> bool {
        // `$management` answers with a status, links with a condition.
        self.condition() == "com.microsoft:server-busy" || self.status() == Some(429)
    }

    fn is_denied(&self) -> bool {
        self.condition() == "amqp:unauthorized-access" || matches!(self.status(), Some(401 | 403))
    }

    fn hint(&self) -> &'static str {
        match self {
            BusError::Refused { text, .. } if text.contains("ExpiredToken") => {
                ": is this machine's clock right?"
            }
            _ => "",
        }
    }

    /// Whether the content was refused: too large, or malformed.
    pub(super) fn is_refused_for_good(&self) -> bool {
        matches!(self, BusError::Refused { status: Some(400 | 403 | 413), condition, .. }
            if condition.contains("size") || condition.contains("argument"))
    }

    pub(super) fn is_no_session(&self) -> bool {
        matches!(
            self.condition(),
            "com.microsoft:timeout" | "com.microsoft:session-cannot-be-locked"
        )
    }

    pub(super) fn is_not_found(&self) -> bool {
        self.condition() == "amqp:not-found" || self.status() == Some(404)
    }

    /// Returns its meaning in the middle of work: always doubt.
    pub(super) fn doubt(&self, what: &str) -> Failure {
        // A right that is taken away and given back costs nothing; a killed command would stay dead.
        Failure::Transient {
            why: format!("{what}: {}", self.why()),
            retry_after: self.is_busy().then_some(BUSY),
        }
    }

    /// Returns its meaning while the worker waits: a refused credential is no doubt.
    pub(super) fn refusal_or_doubt(&self, name: &str) -> Failure {
        match self.doubt(&format!("cannot reach {name}")) {
            Failure::Transient { why, .. } if self.is_denied() => {
                Failure::Fatal { why, denied: true }
            }
            doubt => doubt,
        }
    }

    /// Returns its meaning at the start; `sessions`: the user set `--sessions`.
    pub(super) fn at_first(&self, name: &str, sessions: bool) -> Missing {
        let fatal = |why: String, denied| Failure::Fatal { why, denied }.into();
        match self {
            BusError::Unusable(why) => fatal(format!("{name}: {why}"), false),
            // Nothing is lost by giving up, and a person is there to read why.
            _ if self.is_denied() => fatal(
                format!(
                    "not authorised for {name}: {}: a key or identity with the right to listen \
                     is needed (Azure Service Bus Data Receiver){}",
                    self.why(),
                    self.hint()
                ),
                true,
            ),
            _ if self.is_not_found() => Missing::NoQueue(format!(
                "no such queue {name}: {}: create it, or check its name (a subscription is \
                 TOPIC/Subscriptions/NAME)",
                self.why()
            )),
            // Only the text tells the meanings of this condition apart.
            BusError::Refused {
                condition, text, ..
            } if condition == "amqp:not-allowed" && text.to_lowercase().contains("session") => {
                let (is, say) = match sessions {
                    true => (
                        "its messages do not come in sessions",
                        "leave out --sessions",
                    ),
                    false => ("its messages come in sessions", "add --sessions"),
                };
                Missing::OtherKind(format!("{name}: {is}: {say} ({})", self.why()))
            }
            BusError::Refused { condition, .. } if condition == "amqp:not-allowed" => {
                fatal(format!("{name} cannot be worked on: {}", self.why()), false)
            }
            BusError::Refused { condition, .. } if condition.ends_with(":entity-disabled") => {
                fatal(
                    format!("{name} is disabled: {}: enable it", self.why()),
                    false,
                )
            }
            _ => self.doubt(&format!("cannot reach {name}")).into(),
        }
    }

    pub(super) fn why(&self) -> String {
        match self {
            BusError::Refused {
                status,
                condition,
                text,
            } => {
                let status = status.map(|status| status.to_string());
                let parts = [status.as_deref(), Some(condition.as_str()), Some(text)];
                let parts = parts.into_iter().flatten().filter(|part| !part.is_empty());
                parts.collect::<Vec<_>>().join(" ")
            }
            BusError::Unanswered(why) | BusError::Unsent(why) | BusError::Unusable(why) => {
                why.clone()
            }
        }
    }
}

pub(super) fn one_line(text: &str) -> String {
    const MOST: usize = 400;
    // The service's texts have line ends, and go into one line of the log.
    let words = text.split(|c: char| c.is_whitespace() || c.is_control());
    let words: Vec<&str> = words.filter(|word| !word.is_empty()).collect();
    words.join(" ").chars().take(MOST).collect()
}

fn cut(why: impl ToString) -> BusError {
    BusError::Unanswered(why.to_string())
}

impl From<&Error> for BusError {
    fn from(error: &Error) -> BusError {
        let condition = match &error.condition {
            ErrorCondition::AmqpError(condition) => Symbol::from(condition),
            ErrorCondition::ConnectionError(condition) => Symbol::from(condition),
            ErrorCondition::SessionError(condition) => Symbol::from(condition),
            ErrorCondition::LinkError(condition) => Symbol::from(condition),
            ErrorCondition::Custom(condition) => condition.clone(),
        };
        BusError::refused(condition.as_str(), error.description.as_deref())
    }
}

impl From<&ConnectionStopReason> for BusError {
    fn from(reason: &ConnectionStopReason) -> BusError {
        match reason {
            ConnectionStopReason::RemoteClosedWithError(error) => error.into(),
            ConnectionStopReason::ClosedWithError(error) => cut(format!(
                "the connection was given up: {}",
                BusError::from(error).why()
            )),
            ConnectionStopReason::Closed | ConnectionStopReason::RemoteClosed => {
                cut("the connection was closed")
            }
        }
    }
}

impl From<&SessionStopReason> for BusError {
    fn from(reason: &SessionStopReason) -> BusError {
        match reason {
            SessionStopReason::RemoteEndedWithError(error) => error.into(),
            SessionStopReason::ConnectionStopped(reason) => reason.into(),
            SessionStopReason::EndedWithError(error) => cut(BusError::from(error).why()),
            SessionStopReason::Ended | SessionStopReason::RemoteEnded => {
                cut("the session was ended")
            }
        }
    }
}

impl From<&LinkStateError> for BusError {
    fn from(error: &LinkStateError) -> BusError {
        match error {
            LinkStateError::RemoteDetachedWithError(error)
            | LinkStateError::RemoteClosedWithError(error) => error.into(),
            LinkStateError::SessionStopped(reason) => reason.into(),
            LinkStateError::RemoteDetached | LinkStateError::RemoteClosed => {
                cut("the service detached the link")
            }
            other => cut(other),
        }
    }
}

impl From<BeginError> for BusError {
    fn from(error: BeginError) -> BusError {
        match &error {
            BeginError::RemoteEndedWithError(error) => error.into(),
            BeginError::ConnectionStopped(reason) => reason.into(),
            other => cut(other),
        }
    }
}

impl From<SenderAttachError> for BusError {
    fn from(error: SenderAttachError) -> BusError {
        match &error {
            SenderAttachError::RemoteClosedWithError(error) => error.into(),
            SenderAttachError::SessionStopped(reason) => reason.into(),
            other => cut(other),
        }
    }
}

impl From<ReceiverAttachError> for BusError {
    fn from(error: ReceiverAttachError) -> BusError {
        match &error {
            ReceiverAttachError::RemoteClosedWithError(error) => error.into(),
            ReceiverAttachError::SessionStopped(reason) => reason.into(),
            other => cut(other),
        }
    }
}

impl From<SendError> for BusError {
    fn from(error: SendError) -> BusError {
        match &error {
            SendError::LinkStateError(error) => error.into(),
            SendError::Detached(
                DetachError::RemoteClosedWithError(error)
                | DetachError::RemoteDetachedWithError(error),
            ) => error.into(),
            SendError::Detached(DetachError::SessionStopped(reason)) => reason.into(),
            SendError::MessageSizeExceeded(why) => BusError::Refused {
                status: Some(413),
                condition: "amqp:link:message-size-exceeded".to_owned(),
                text: why.to_string(),
            },
            SendError::MessageEncodeError => BusError::Refused {
                status: Some(400),
                condition: "com.microsoft:argument-error".to_owned(),
                text: error.to_string(),
            },
            other => cut(other),
        }
    }
}

impl From<RecvError> for BusError {
    fn from(error: RecvError) -> BusError {
        match &error {
            RecvError::LinkStateError(error) => error.into(),
            other => cut(other),
        }
    }
}

impl From<IllegalLinkStateError> for BusError {
    fn from(error: IllegalLinkStateError) -> BusError {
        match &error {
            IllegalLinkStateError::SessionStopped(reason) => reason.into(),
            other => cut(other),
        }
    }
}

pub(super) fn opening(error: &OpenError, host: &str, port: u16) -> BusError {
    match error {
        OpenError::ProtocolHeaderMismatch(said) => stranger(host, port, said),
        OpenError::RemoteClosedWithError(error) => error.into(),
        OpenError::SaslError { .. } => BusError::refused("amqp:unauthorized-access", Some("SASL")),
        other => BusError::Unsent(format!("{host}:{port}: {other}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(status: Option<i64>, condition: &str) -> BusError {
        BusError::Refused {
            status,
            condition: condition.to_owned(),
            text: "text".to_owned(),
        }
    }

    #[test]
    fn every_refusal_has_its_meaning() {
        let coded = |status, condition| refused(Some(status), condition);
        for (error, meaning) in [
            (coded(410, ""), "lost"),
            (coded(410, "com.microsoft:message-lock-lost"), "lost"),
            (refused(None, "com.microsoft:message-lock-lost"), "lost"),
            (coded(404, "com.microsoft:message-not-found"), "lost"),
            (coded(404, "amqp:not-found"), ""),
            (coded(503, "com.microsoft:server-busy"), "busy"),
            (coded(500, "amqp:internal-error"), "unclear"),
            (coded(408, "com.microsoft:timeout"), "unclear"),
            (coded(401, ""), ""),
            (BusError::Unanswered("x".into()), "unclear"),
            (BusError::Unsent("x".into()), ""),
        ] {
            assert_eq!(error.is_lost(), meaning == "lost", "{error:?}");
            assert_eq!(error.is_unclear(), meaning == "unclear", "{error:?}");
            assert_eq!(error.is_busy(), meaning == "busy", "{error:?}");
        }
    }

    #[test]
    fn permanent_errors_are_fatal_at_the_start() {
        let denied = |missing| match missing {
            Missing::Failed(Failure::Fatal { denied, .. }) => Some(denied),
            _ => None,
        };
        let at_first = |condition| refused(None, condition).at_first("sb://h/q", false);
        assert_eq!(denied(at_first("amqp:unauthorized-access")), Some(true));
        assert_eq!(
            denied(refused(Some(401), "").at_first("q", false)),
            Some(true)
        );
        assert_eq!(denied(at_first("amqp:not-allowed")), Some(false));
        for (sessions, flag) in [(true, "leave out --sessions"), (false, "add --sessions")] {
            let error = BusError::refused("amqp:not-allowed", Some("Sessionful, or not"));
            let Missing::OtherKind(why) = error.at_first("q", sessions) else {
                panic!("{:?}", error.at_first("q", sessions));
            };
            assert!(why.contains(flag), "{why}");
        }
        assert_eq!(
            denied(at_first("com.microsoft:entity-disabled")),
            Some(false)
        );
        assert_eq!(
            denied(BusError::Unusable("HTTP".into()).at_first("q", false)),
            Some(false)
        );
        assert!(matches!(at_first("amqp:not-found"), Missing::NoQueue(_)));
        let busy = at_first("com.microsoft:server-busy");
        let Missing::Failed(Failure::Transient { retry_after, .. }) = busy else {
            panic!("{busy}");
        };
        assert_eq!(retry_after, Some(BUSY));
    }

    #[test]
    fn error_text_is_one_line() {
        let error = BusError::refused("amqp:not-found", Some("one\r\n two\0\x1b[31m"));
        assert_eq!(error.why(), "amqp:not-found one two [31m");
        assert_eq!(refused(Some(410), "c").why(), "410 c text");
    }
}
