//! Meaning of the service's errors, and one line for a person, without a URL's query, a header or a body.

use std::time::Duration;

use azure_core::error::{Error, ErrorKind};
use azure_core::http::RawResponse;
use azure_core::http::headers::Headers;
use azure_core::time::{OffsetDateTime, parse_rfc7231};

use super::API_VERSION;
use super::transport::header;
use trafficcop_core::Failure;

/// The operation that failed; each needs its own permission.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Look at the blob's properties.
    Look,
    /// Create the blob.
    CreateBlob,
    /// Create the container.
    CreateContainer,
    /// Acquire the lease.
    Acquire,
    /// Write the record.
    Record,
    /// Renew the lease.
    Renew,
    /// Give the lease back.
    Release,
    /// Ask how long a breaking lease still lasts.
    Break,
    /// Break another instance's lease.
    BreakLease,
    /// List the blobs of a container.
    List,
    /// Delete the blob.
    Delete,
    /// Look at the queue's properties.
    LookAtQueue,
    /// Create the queue.
    CreateQueue,
    /// Take messages.
    Take,
    /// Lock a message again, or make it visible again.
    Update,
    /// Put a message into a queue.
    Put,
    /// Delete a message.
    DeleteMessage,
}

impl Operation {
    /// Returns the action as text, its permission as a letter of a SAS, and its object.
    fn words(self) -> (&'static str, &'static str, Object) {
        use Object::{Blob, Queue};
        match self {
            Operation::Look => ("read the properties of", "r", Blob),
            Operation::CreateBlob => ("create", "c", Blob),
            Operation::CreateContainer => ("create the container of", "c", Blob),
            Operation::Acquire => ("lease", "w", Blob),
            Operation::Record => ("write the metadata of", "w", Blob),
            Operation::Renew => ("renew the lease of", "w", Blob),
            Operation::Release => ("release the lease of", "w", Blob),
            Operation::Break => ("read the rest of the lease of", "w", Blob),
            Operation::BreakLease => ("break the lease of", "w", Blob),
            Operation::List => ("list the blobs of", "l", Blob),
            Operation::Delete => ("delete", "d", Blob),
            Operation::LookAtQueue => ("read the properties of", "r", Queue),
            Operation::CreateQueue => ("create", "c", Queue),
            Operation::Take => ("take messages from", "p", Queue),
            Operation::Update => ("update a message of", "u", Queue),
            Operation::Put => ("put a message into", "a", Queue),
            Operation::DeleteMessage => ("delete a message of", "p", Queue),
        }
    }
}

enum Object {
    Blob,
    Queue,
}

#[derive(Debug, thiserror::Error)]
#[error("unknown: the answer belongs to an earlier request")]
pub(super) struct StaleAnswer;

/// An answer other than the expected success.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answer {
    status: u16,
    // The service's error code (`x-ms-error-code`), the only proof that the service answered. A page has none.
    code: Option<String>,
    // The header that the service does not accept.
    header: Option<String>,
    // A proxy or a portal answered with a web page.
    page: bool,
    retry_after: Option<Duration>,
    // When the service answered, by its clock.
    date: Option<OffsetDateTime>,
}

/// Failure of one exchange.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServiceError {
    /// An answer other than the expected success.
    Answer(Answer),
    /// No connection: the request was not sent.
    Unsent(String),
    /// No complete answer: the result is unknown.
    Silence(String),
    /// Answer to an earlier request: the result is unknown.
    Stale,
    /// The request could not be built.
    Ours(String),
    /// No token: nothing was sent.
    Denied(String),
}

impl Answer {
    fn read(status: u16, raw: &RawResponse) -> Answer {
        let header = |name| header(raw.headers(), name);
        let body: &[u8] = raw.body().as_ref();
        let start = body.trim_ascii_start().get(..5).unwrap_or_default();
        // Portals do not always declare a page, and their 404 must not pass for "no such blob", a definite
        // loss.
        let page = header("content-type").is_some_and(|kind| kind.contains("text/html"))
            || start.eq_ignore_ascii_case(b"<html")
            || start.eq_ignore_ascii_case(b"<!doc");
        let date = header("date").and_then(|text| parse_rfc7231(text).ok());
        let retry_after = header("x-ms-retry-after-ms")
            .and_then(|text| text.trim().parse().ok().map(Duration::from_millis))
            .or_else(|| {
                let text = header("retry-after")?.trim();
                match text.parse() {
                    Ok(seconds) => Some(Duration::from_secs(seconds)),
                    // Relative to the service's clock: this machine's may be wrong.
                    Err(_) => Duration::try_from(parse_rfc7231(text).ok()? - date?).ok(),
                }
            });
        Answer {
            status,
            code: header("x-ms-error-code").map(clean).filter(|_| !page),
            header: header_named_in(body),
            page,
            retry_after,
            date,
        }
    }

    /// Returns whether the service itself refused, so that nothing was done.
    fn is_refusal(&self) -> bool {
        matches!(self.status, 400..=499) && self.code.is_some()
    }

    /// Returns whether a refusal blames the credential; `None` for a doubt.
    fn denies(&self, proven: bool) -> Option<bool> {
        match (self.status, self.code.as_deref()) {
            _ if self.page => None,
            // A refusal even if proven, because only a new credential ends it.
            (401 | 403, Some(_))
            | (_, Some("AccountIsDisabled" | "InsufficientAccountPermissions")) => Some(true),
            _ if proven => None,
            (401 | 403, _) => Some(true),
            // A deletion takes a while. If a condition is not met, another candidate was faster.
            (_, Some("ContainerBeingDeleted" | "QueueBeingDeleted" | "ConditionNotMet"))
            | (408 | 429, _) => None,
            (400..=499, Some(_)) => Some(false),
            _ => None,
        }
    }

    fn why(&self) -> String {
        let status = self.status;
        match &self.code {
            Some(code) => format!("{status} {code}"),
            None if self.page => {
                format!("{status} with a web page instead of an answer of the storage service")
            }
            None => format!("{status} without an error code of the storage service"),
        }
    }
}

impl ServiceError {
    /// Converts an error of the official clients.
    pub fn of(error: &Error) -> ServiceError {
        match error.kind() {
            ErrorKind::HttpResponse {
                status,
                raw_response,
                ..
            } => {
                let status = u16::from(*status);
                ServiceError::Answer(match raw_response {
                    Some(raw) => Answer::read(status, raw),
                    None => Answer {
                        status,
                        ..Answer::default()
                    },
                })
            }
            // Nothing can have been done without a connection; after a lost one an acquire may have succeeded.
            ErrorKind::Connection => ServiceError::Unsent(error.to_string()),
            ErrorKind::Io if error.downcast_ref::<StaleAnswer>().is_some() => ServiceError::Stale,
            ErrorKind::Io => ServiceError::Silence(error.to_string()),
            ErrorKind::Credential => ServiceError::Denied(innermost(error)),
            _ => ServiceError::Ours(error.to_string()),
        }
    }

    /// Returns the error for a success that lacks what the service always sends.
    pub fn foreign(lacks: &str, headers: &Headers) -> ServiceError {
        let kind = header(headers, "content-type").unwrap_or_default();
        // The clients accept a page with the status 200 as a renewal: a command would run without a lease.
        ServiceError::Silence(if kind.contains("text/html") {
            "unknown: a web page instead of an answer of the storage service".to_owned()
        } else {
            format!("unknown: the answer lacks {lacks}, so it is not from the storage service")
        })
    }

    /// Returns the error for an exchange without an answer in time.
    pub fn timed_out() -> ServiceError {
        ServiceError::Silence("no answer in time".to_owned())
    }

    fn answer(&self) -> Option<&Answer> {
        match self {
            ServiceError::Answer(answer) => Some(answer),
            _ => None,
        }
    }

    /// Returns the status of the answer, if there was one.
    pub fn status(&self) -> Option<u16> {
        Some(self.answer()?.status)
    }

    /// Returns the service's own error code, if it answered.
    pub fn code(&self) -> Option<&str> {
        self.answer()?.code.as_deref()
    }

    /// Returns when the service answered, by its own clock.
    pub fn date(&self) -> Option<OffsetDateTime> {
        self.answer()?.date
    }

    /// Returns the delay that the service asked for.
    pub fn retry_after(&self) -> Option<Duration> {
        self.answer()?.retry_after
    }

    /// Returns whether a refusal lacks a reason, as in an answer to a HEAD.
    pub fn needs_a_reason(&self) -> bool {
        self.answer().is_some_and(|answer| {
            let code = answer.code.as_deref();
            answer.status == 400
                && !answer.page
                && matches!(code, None | Some("InvalidHeaderValue"))
        })
    }

    /// Returns whether `asked` is the same refusal, with the header in question.
    pub fn is_explained_by(&self, asked: &ServiceError) -> bool {
        asked.is_refusal()
            && asked.answer().is_some_and(|asked| asked.header.is_some())
            && (self.code().is_none() || self.code() == asked.code())
    }

    /// Returns whether the service itself refused, so that nothing was done.
    pub fn is_refusal(&self) -> bool {
        self.answer().is_some_and(Answer::is_refusal)
    }

    /// Returns whether the request may have been carried out.
    pub fn is_unclear(&self) -> bool {
        match self {
            ServiceError::Unsent(_) | ServiceError::Denied(_) => false,
            // The service may have given up at any point (408), and a 5xx can follow the change. Without the
            // service's code a proxy may have forwarded the request.
            ServiceError::Answer(answer) => answer.status == 408 || !answer.is_refusal(),
            ServiceError::Silence(_) | ServiceError::Stale | ServiceError::Ours(_) => true,
        }
    }

    /// Returns one line for a person, without the operation.
    pub fn why(&self) -> String {
        match self {
            ServiceError::Answer(answer) => answer.why(),
            ServiceError::Stale => StaleAnswer.to_string(),
            ServiceError::Unsent(why)
            | ServiceError::Silence(why)
            | ServiceError::Ours(why)
            | ServiceError::Denied(why) => why.clone(),
        }
    }

    /// Returns advice, if there is any.
    pub fn advice(&self, operation: Operation) -> Option<String> {
        let answer = self.answer()?;
        let (_, letter, object) = operation.words();
        Some(match (answer.status, answer.code.as_deref()) {
            (400, Some("InvalidHeaderValue")) if answer.header.as_deref() == Some("xmsversion") => {
                format!(
                    "the service does not know version {API_VERSION} of its interface: use a newer \
                 service, or start Azurite with --skipApiVersionCheck"
                )
            }
            (_, Some("AccountIsDisabled")) => "the account is disabled: enable it".to_owned(),
            (
                _,
                Some(
                    "AuthorizationPermissionMismatch"
                    | "AuthorizationResourceTypeMismatch"
                    | "AuthorizationServiceMismatch"
                    | "InsufficientAccountPermissions",
                ),
            ) => {
                let (needed, role) = match (operation, object) {
                    (Operation::List | Operation::Delete, _) => (
                        format!("the permission {letter} for it"),
                        "a token of Entra ID the role Storage Blob Data Contributor",
                    ),
                    (_, Object::Queue) => (
                        format!("the permissions rpuac (here {letter}) for the queue service"),
                        "an identity the role Storage Queue Data Contributor",
                    ),
                    (_, Object::Blob) => (
                        format!("the permissions rcw (here {letter}) for the blob service"),
                        "a token of Entra ID the role Storage Blob Data Contributor",
                    ),
                };
                format!("the credential does not allow it: a SAS needs {needed}, {role}")
            }
            (_, Some("AuthorizationSourceIPMismatch")) => {
                "the SAS excludes this machine: make another one".to_owned()
            }
            (_, Some("KeyBasedAuthenticationNotPermitted")) => {
                "the account does not allow account keys: use --auth entra".to_owned()
            }
            (401 | 403, Some("AuthenticationFailed")) => {
                "the key is another account's, the SAS has \
                expired or was changed, or the token is another tenant's: replace it"
                    .to_owned()
            }
            (401 | 403, _) => "check the credential, its permissions and the account's network \
                rules"
                .to_owned(),
            _ => return None,
        })
    }

    /// Returns the meaning outside a tenure. `proven`: this operation succeeded before, so only refused
    /// credentials are no doubt.
    pub fn failure(&self, operation: Operation, target: &str, proven: bool) -> Failure {
        let denied = match self {
            ServiceError::Ours(_) => Some(false),
            ServiceError::Denied(_) => Some(true),
            ServiceError::Answer(answer) => answer.denies(proven),
            _ => None,
        };
        let Some(denied) = denied else {
            return self.doubt(operation);
        };
        let advice = self.advice(operation).map(|text| format!(": {text}"));
        Failure::Fatal {
            why: format!(
                "cannot {} {target}: {}{}",
                operation.words().0,
                self.why(),
                advice.unwrap_or_default()
            ),
            denied,
        }
    }

    /// Returns the meaning where nothing is certain, as in a tenure.
    pub fn doubt(&self, operation: Operation) -> Failure {
        let (action, _, object) = operation.words();
        let object = match object {
            Object::Blob => "the blob",
            Object::Queue => "the queue",
        };
        Failure::Transient {
            why: format!("{} (to {action} {object})", self.why()),
            retry_after: self.retry_after(),
        }
    }
}

pub(super) fn innermost(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    cause.to_string()
}

fn header_named_in(body: &[u8]) -> Option<String> {
    let text = std::str::from_utf8(body).ok()?;
    let (_, rest) = text.split_once("<HeaderName>")?;
    let (name, _) = rest.split_once("</HeaderName>")?;
    Some(clean(name))
}

fn clean(code: &str) -> String {
    // A line break or an escape sequence could forge log lines.
    code.chars()
        .filter(|c| c.is_ascii_alphanumeric())
        .take(80)
        .collect()
}

/// Checks that the answer names its API version, which a portal's does not.
pub fn of_the_service(headers: &Headers) -> Result<(), ServiceError> {
    match header(headers, "x-ms-version") {
        Some(_) => Ok(()),
        None => Err(ServiceError::foreign("its version", headers)),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use azure_core::http::headers::{HeaderName, HeaderValue};
    use azure_core::time::to_rfc7231;

    use super::*;

    fn error(status: u16, headers: &[(&'static str, &str)], body: &str) -> ServiceError {
        let headers: HashMap<HeaderName, HeaderValue> = headers
            .iter()
            .map(|(name, value)| {
                (
                    HeaderName::from_static(name),
                    HeaderValue::from((*value).to_owned()),
                )
            })
            .collect();
        let raw = RawResponse::from_bytes(status.into(), Headers::from(headers), body.to_owned());
        let kind = ErrorKind::HttpResponse {
            status: status.into(),
            error_code: Some("made up by the client".to_owned()),
            raw_response: Some(Box::new(raw)),
        };
        ServiceError::of(&Error::with_message(kind, "a text with sig=s3cr3t in it"))
    }

    #[test]
    fn refused_signature_blames_the_credential_not_the_clock() {
        let date = to_rfc7231(&(OffsetDateTime::now_utc() + Duration::from_secs(20 * 60)));
        let code = ("x-ms-error-code", "AuthenticationFailed");
        let said = error(403, &[code, ("date", &date)], "").failure(Operation::Look, "B", false);
        assert!(said.to_string().contains("replace it"), "{said}");
    }

    #[test]
    fn only_refused_and_unsent_requests_are_certainly_undone() {
        let code = [("x-ms-error-code", "X")];
        assert!(!error(409, &code, "").is_unclear());
        let refused = Error::with_message(ErrorKind::Connection, "cannot connect");
        assert!(!ServiceError::of(&refused).is_unclear());
        let reset = Error::with_message(ErrorKind::Io, "connection lost");
        assert!(ServiceError::of(&reset).is_unclear());
        assert!(error(408, &code, "").is_unclear());
        assert!(error(500, &code, "").is_unclear());
        assert!(error(409, &[], "").is_unclear());
        assert!(error(409, &code, "<html>").is_unclear());
        assert!(ServiceError::timed_out().is_unclear());
    }

    #[test]
    fn error_text_has_status_and_code_but_no_body() {
        let said = error(
            503,
            &[("x-ms-error-code", "ServerBusy\nfake line")],
            "sig=s3cr3t",
        );
        assert_eq!(said.why(), "503 ServerBusyfakeline");
        let page = error(
            404,
            &[("x-ms-error-code", "BlobNotFound")],
            " <!DOCTYPE html>sig=s3cr3t",
        );
        assert_eq!(
            page.why(),
            "404 with a web page instead of an answer of the storage service"
        );
        assert_eq!(page.code(), None, "a web page proves nothing");
        assert_eq!(error(409, &[], "").code(), None);
    }

    #[test]
    fn only_the_services_own_refusal_is_one() {
        let code = [("x-ms-error-code", "X")];
        assert!(error(409, &code, "").is_refusal());
        assert!(!error(409, &[], "").is_refusal());
        assert!(!error(500, &code, "").is_refusal());
        assert!(!ServiceError::timed_out().is_refusal());
    }
}
