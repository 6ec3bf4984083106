//! The HTTP client under the official clients: our time limits, no redirects, no panics, and no
//! URL (it may carry a SAS) in any error.
//!
//! Made by [`super::Account`]. Must never retry: retries are the core's, inside the lease's time.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use azure_core::Bytes;
use azure_core::error::{Error, ErrorKind, Result};
use azure_core::http::headers::{HeaderName, HeaderValue, Headers};
use azure_core::http::{AsyncRawResponse, Body, HttpClient, Method, Request};

use super::ca_file::CaCertificates;
use super::names::Names;
use super::runtime;

/// A connection that takes longer is given up, so that the renewal still has time for another.
const CONNECT_LIMIT: Duration = Duration::from_secs(3);
/// No answer of the operations we use is longer (32 messages of 64 KiB are the longest, each byte
/// of which may take six in XML); anything that is, is not from the service.
const ANSWER_LIMIT: usize = 13 * 1024 * 1024;

/// A client that is built with its first request: where no certificates are installed that
/// fails, and then it is an error with words, and none at all for plain http.
pub(crate) struct Client {
    https: bool,
    /// How many connections are kept for the next requests.
    idle: usize,
    trust: CaCertificates,
    connect_limit: Duration,
    built: OnceLock<std::result::Result<reqwest::Client, String>>,
}

impl Client {
    pub(crate) fn new(https: bool, idle: usize) -> Client {
        Client {
            https,
            idle,
            trust: CaCertificates::default(),
            connect_limit: CONNECT_LIMIT,
            built: OnceLock::new(),
        }
    }

    /// The same, with additional authorities for https.
    pub(super) fn trusting(mut self, trust: CaCertificates) -> Client {
        self.trust = trust;
        self
    }

    /// The same, for somebody who connects at once if he is there at all.
    #[cfg(feature = "entra")]
    pub(super) fn connecting_within(mut self, limit: Duration) -> Client {
        self.connect_limit = limit;
        self
    }

    /// A client like this one, with connections of its own.
    pub(super) fn anew(&self) -> Client {
        Client::new(self.https, self.idle).trusting(self.trust.clone())
    }

    fn client(&self) -> Result<&reqwest::Client> {
        self.built
            .get_or_init(|| {
                runtime::install();
                build(self)
            })
            .as_ref()
            .map_err(|why| Error::with_message(ErrorKind::Other, why.clone()))
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client")
            .field("https", &self.https)
            .finish_non_exhaustive()
    }
}

/// A client for plain http: no certificates, and no proxy.
pub(super) fn plain() -> std::result::Result<reqwest::Client, String> {
    build(&Client::new(false, 1))
}

fn build(client: &Client) -> std::result::Result<reqwest::Client, String> {
    // HTTP/1.1 only: there, giving up a request closes its connection, so a path that has died
    // silently is not used for the next one.
    let mut builder = reqwest::Client::builder()
        .http1_only()
        .redirect(reqwest::redirect::Policy::none())
        .connect_timeout(client.connect_limit)
        .pool_idle_timeout(Duration::from_secs(30))
        .pool_max_idle_per_host(client.idle)
        .tcp_nodelay(true)
        .dns_resolver(Names);
    if client.https {
        // Fails only where another provider was installed before, which serves as well.
        let _ = rustls::crypto::ring::default_provider().install_default();
        // Besides the system's. The proxies are those of the environment.
        builder = builder.tls_certs_merge(client.trust.certificates());
    } else {
        let tls = rustls::ClientConfig::builder_with_provider(Arc::new(
            rustls::crypto::ring::default_provider(),
        ))
        .with_safe_default_protocol_versions()
        .map_err(|error| format!("cannot set up TLS: {error}"))?
        .with_root_certificates(rustls::RootCertStore::empty())
        .with_no_client_auth();
        // Plain http goes to this machine only, so no proxy may see it.
        builder = builder.tls_backend_preconfigured(tls).no_proxy();
    }
    builder.build().map_err(|error| {
        format!(
            "cannot set up TLS: {} (install the system's CA certificates, or name a file of them \
             in --ca-file or SSL_CERT_FILE)",
            root_cause(&error.without_url())
        )
    })
}

#[async_trait]
impl HttpClient for Client {
    async fn execute_request(&self, request: &Request) -> Result<AsyncRawResponse> {
        let client = self.client()?;
        let method = reqwest::Method::from_bytes(request.method().as_str().as_bytes())
            .map_err(|error| Error::with_message(ErrorKind::Other, error.to_string()))?;
        let mut outgoing = client.request(method, request.url().clone());
        for (name, value) in request.headers().iter() {
            // The length is that of the body, and is set below.
            if name.as_str() != "content-length" {
                // As bytes: other people's metadata need not be ASCII.
                outgoing = outgoing.header(name.as_str(), value.as_str().as_bytes());
            }
        }
        let body = match request.body().clone() {
            Body::Bytes(bytes) => bytes,
            Body::SeekableStream(_) => {
                return Err(Error::with_message(
                    ErrorKind::Other,
                    "a streamed body is not supported",
                ));
            }
        };
        if matches!(request.method(), Method::Put | Method::Post) {
            // Said even where it is zero: the service answers 411 without, and the HTTP library
            // leaves it out.
            outgoing = outgoing.header("content-length", body.len());
        }
        let mut answer = outgoing.body(body).send().await.map_err(told)?;
        let status = answer.status().as_u16();
        let headers = headers(answer.headers())?;
        let mut bytes = Vec::new();
        while let Some(chunk) = answer.chunk().await.map_err(told)? {
            if bytes.len() + chunk.len() > ANSWER_LIMIT {
                return Err(Error::with_message(
                    ErrorKind::Io,
                    format!("the answer ({status}) is longer than any of the storage service"),
                ));
            }
            bytes.extend_from_slice(&chunk);
        }
        Ok(AsyncRawResponse::from_bytes(
            status.into(),
            headers,
            Bytes::from(bytes),
        ))
    }
}

fn headers(map: &reqwest::header::HeaderMap) -> Result<Headers> {
    let mut headers = HashMap::new();
    for (name, value) in map {
        match std::str::from_utf8(value.as_bytes()) {
            Ok(text) => {
                headers.insert(
                    HeaderName::from(name.as_str().to_owned()),
                    HeaderValue::from(text.to_owned()),
                );
            }
            // It could not be written back as it was, and what is left out would be lost.
            Err(_) if name.as_str().starts_with("x-ms-meta-") => {
                return Err(Error::with_message(
                    ErrorKind::DataConversion,
                    format!(
                        "the metadata `{}` is not text in UTF-8: remove it",
                        name.as_str().trim_start_matches("x-ms-meta-")
                    ),
                ));
            }
            Err(_) => {}
        }
    }
    Ok(Headers::from(headers))
}

fn told(error: reqwest::Error) -> Error {
    let error = error.without_url();
    let connecting = error.is_connect();
    let cause = if error.is_timeout() {
        "no answer in time".to_owned()
    } else {
        root_cause(&error)
    };
    if connecting {
        Error::with_message(ErrorKind::Connection, format!("cannot connect: {cause}"))
    } else if error.is_builder() {
        Error::with_message(
            ErrorKind::Other,
            format!("cannot make the request: {cause}"),
        )
    } else {
        Error::with_message(ErrorKind::Io, format!("connection lost: {cause}"))
    }
}

/// The innermost cause: the outer ones only say "error sending request".
pub(super) fn root_cause(error: &reqwest::Error) -> String {
    let mut cause: &dyn std::error::Error = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    let mut text = cause.to_string();
    if let Some(at) = text.find(" (os error") {
        text.truncate(at);
    }
    match text.char_indices().nth(200) {
        Some((at, _)) => text[..at].to_owned(),
        None => text,
    }
}
