//! Speaking to the metadata service: plain http to a link-local address, with a time limit and a
//! size limit on everything, never through a proxy.
//!
//! Used by the task that follows the announcements. It must never retry, and never need TLS.

use std::sync::OnceLock;
use std::time::Duration;

use azure_core::time::OffsetDateTime;
use time::format_description::well_known::Rfc2822;
use tokio::time::timeout;
use url::Url;

use super::super::transport;

/// For one question, connection and all. The very first one enables the events for the machine and
/// may take minutes; then it is asked again.
const LIMIT: Duration = Duration::from_secs(5);
/// A document is a few hundred bytes.
const ANSWER_LIMIT: usize = 256 * 1024;
const EVENTS: &str = "/metadata/scheduledevents?api-version=2020-07-01";
const NAME: &str = "/metadata/instance/compute/name?api-version=2021-02-01&format=text";
/// The longest name of a machine.
const NAME_LIMIT: usize = 256;

/// Where the metadata service is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint(Url);

/// Why that cannot be where it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("take http://ADDRESS or http://ADDRESS:PORT")]
pub struct EndpointError;

impl Default for Endpoint {
    /// Azure's.
    fn default() -> Endpoint {
        let url = Url::parse("http://169.254.169.254").expect("a constant that is a URL");
        Endpoint(url)
    }
}

impl Endpoint {
    /// Another one.
    ///
    /// # Errors
    /// What is no plain http to an address.
    pub fn parse(text: &str) -> Result<Endpoint, EndpointError> {
        let url = Url::parse(text).map_err(|_| EndpointError)?;
        // A name would have to be looked up, and that takes its time.
        let is_address = matches!(url.host(), Some(url::Host::Ipv4(_) | url::Host::Ipv6(_)));
        let is_bare = url.path() == "/" && url.query().is_none() && url.username().is_empty();
        if url.scheme() != "http" || !is_address || !is_bare || url.fragment().is_some() {
            return Err(EndpointError);
        }
        Ok(Endpoint(url))
    }
}

pub(super) struct Client {
    endpoint: Endpoint,
    http: OnceLock<Result<reqwest::Client, String>>,
}

impl Client {
    pub(super) fn new(endpoint: Endpoint) -> Client {
        Client {
            endpoint,
            http: OnceLock::new(),
        }
    }

    /// The document of scheduled events, and what the service's clock says.
    pub(super) async fn events(&self) -> Result<(Vec<u8>, OffsetDateTime), String> {
        self.ask(reqwest::Method::GET, EVENTS, None).await
    }

    /// What Azure calls this machine.
    pub(super) async fn name(&self) -> Result<String, String> {
        let (name, _) = self.ask(reqwest::Method::GET, NAME, None).await?;
        let name = String::from_utf8(name).map_err(|_| "it is no text".to_owned())?;
        let name = name.trim();
        if name.is_empty() || name.len() > NAME_LIMIT || name.chars().any(char::is_control) {
            return Err("it is no name".to_owned());
        }
        Ok(name.to_owned())
    }

    /// Approves an event: it need not wait any longer on our account.
    pub(super) async fn approve(&self, id: &str) -> Result<(), String> {
        let body = serde_json::json!({ "StartRequests": [{ "EventId": id }] });
        let done = self.ask(reqwest::Method::POST, EVENTS, Some(body.to_string()));
        done.await.map(drop)
    }

    async fn ask(
        &self,
        method: reqwest::Method,
        path: &str,
        body: Option<String>,
    ) -> Result<(Vec<u8>, OffsetDateTime), String> {
        let http = self.http.get_or_init(transport::plain);
        let http = http.as_ref().map_err(Clone::clone)?;
        let url = self.endpoint.0.join(path).map_err(|why| why.to_string())?;
        let mut request = http.request(method, url).header("Metadata", "true");
        if let Some(body) = body {
            request = request
                .header("content-type", "application/json")
                .body(body);
        }
        let asked = async {
            let mut answer = request.send().await.map_err(said)?;
            let status = answer.status();
            if !status.is_success() {
                return Err(format!("the metadata service answers {}", status.as_u16()));
            }
            let date = answer.headers().get("date");
            let date = date.and_then(|date| date.to_str().ok());
            let date = date.and_then(|date| OffsetDateTime::parse(date, &Rfc2822).ok());
            let mut bytes = Vec::new();
            while let Some(chunk) = answer.chunk().await.map_err(said)? {
                if bytes.len() + chunk.len() > ANSWER_LIMIT {
                    return Err("the metadata service's answer is too long".to_owned());
                }
                bytes.extend_from_slice(&chunk);
            }
            Ok((bytes, date.unwrap_or_else(OffsetDateTime::now_utc)))
        };
        let in_time = timeout(LIMIT, asked).await;
        in_time.unwrap_or_else(|_| Err("the metadata service does not answer".to_owned()))
    }
}

fn said(error: reqwest::Error) -> String {
    let what = if error.is_connect() {
        "cannot be reached"
    } else {
        "broke off"
    };
    let why = transport::root_cause(&error.without_url());
    format!("the metadata service {what}: {why}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_is_plain_http_to_an_address() {
        for good in [
            "http://127.0.0.1:8080",
            "http://[::1]:1/",
            "http://169.254.169.254",
        ] {
            assert!(Endpoint::parse(good).is_ok(), "{good}");
        }
        for bad in [
            "",
            "127.0.0.1",
            "https://127.0.0.1",
            "http://metadata",
            "http://127.0.0.1/x",
            "http://user@127.0.0.1",
            "http://127.0.0.1/?a=b",
        ] {
            assert!(Endpoint::parse(bad).is_err(), "{bad}");
        }
        assert_eq!(
            Endpoint::parse("http://169.254.169.254"),
            Ok(Endpoint::default())
        );
    }
}
