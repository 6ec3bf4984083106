//! HTTP client below the official clients: exchanges with a time limit, without redirects or panics, and
//! without the URL (it may have a SAS) in any error.
//!
//! It must never retry: the core does, within the lease's time. Its limits only end waiting; they never judge a
//! lease.

use std::error::Error as _;
use std::fmt;
use std::future::Future;
use std::io;
use std::path::Path;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use async_trait::async_trait;
use azure_core::Bytes;
use azure_core::async_runtime::{
    AbortableTask, AsyncRuntime, SpawnedTask, TaskFuture, set_async_runtime,
};
use azure_core::error::{Error, ErrorKind, Result};
use azure_core::http::headers::{HeaderName, Headers};
use azure_core::http::{AsyncRawResponse, Body, HttpClient, Method, Request};
use url::{Position, Url};

use super::credential::CaCertificates;
use super::error::{ServiceError, innermost};
use super::proxy::Proxy;
use super::server::{CONNECT_LIMIT, Names, tls_cause, tls_refusal, without_number};
use trafficcop_core::clock::{self, Instant};
use trafficcop_core::util::lock;

// The longest answers are 32 messages of 64 KiB, each byte up to six in XML.
const ANSWER_LIMIT: usize = 13 * 1024 * 1024;
// A dead connection must leave time for another attempt before SIGTERM is due.
const EXCHANGE_LIMIT: Duration = Duration::from_secs(5);
// tokio's timers stop while the machine sleeps, so CLOCK_BOOTTIME is checked this often.
const CLOCK_INTERVAL: Duration = Duration::from_millis(250);

/// A client that is built at its first request.
pub(crate) struct Client {
    https: bool,
    idle: usize,
    trust: CaCertificates,
    connect_limit: Duration,
    proxy: Option<Arc<Proxy>>,
    names: Names,
    // Built late, because building fails without certificates. That must be a request's error, and none for
    // plain http.
    built: Mutex<Option<std::result::Result<reqwest::Client, String>>>,
}

impl Client {
    pub(super) fn new(
        https: bool,
        idle: usize,
        trust: CaCertificates,
        proxy: Option<Proxy>,
    ) -> Client {
        Client {
            https,
            idle,
            trust,
            connect_limit: CONNECT_LIMIT,
            proxy: proxy.map(Arc::new),
            names: Names::default(),
            built: Mutex::default(),
        }
    }

    /// Returns a client for plain http, without a proxy.
    pub(super) fn plain(idle: usize, connect_limit: Duration) -> Client {
        Client {
            connect_limit,
            ..Client::new(false, idle, CaCertificates::default(), None)
        }
    }

    /// Returns a client without connections, for a forked process: of two that share a socket each would read
    /// the other's answers.
    pub(super) fn anew(&self) -> Client {
        Client {
            trust: self.trust.clone(),
            proxy: self.proxy.clone(),
            names: Names::default(),
            built: Mutex::default(),
            ..*self
        }
    }

    async fn told(&self, url: &Url, error: reqwest::Error) -> Error {
        let way = match self.proxy.as_ref().filter(|proxy| proxy.takes(url)) {
            Some(proxy) => Some(proxy.named(url, &root_cause(&error)).await),
            None => {
                let tried: Vec<String> =
                    self.names.tried().iter().map(ToString::to_string).collect();
                let tried =
                    Some(tried.join(", ")).filter(|tried| error.is_connect() && !tried.is_empty());
                tried.map(|tried| format!("tried {tried}"))
            }
        };
        told(error, way)
    }

    pub(super) fn hang_up(&self) {
        lock(&self.built).take();
    }

    fn client(&self) -> Result<reqwest::Client> {
        lock(&self.built)
            .get_or_insert_with(|| {
                // Fails only if the program installed another, which serves as well.
                let _ = set_async_runtime(Arc::new(Tokio));
                build(self)
            })
            .clone()
            .map_err(|why| Error::with_message(ErrorKind::Other, why))
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client")
            .field("https", &self.https)
            .finish_non_exhaustive()
    }
}

pub(super) fn plain() -> std::result::Result<reqwest::Client, String> {
    build(&Client::plain(1, CONNECT_LIMIT))
}

/// Builds a client for probes of this URL, with a new connection each time.
pub fn for_probes(
    url: &Url,
    ca_file: Option<&Path>,
) -> std::result::Result<reqwest::Client, String> {
    let https = url.scheme() == "https";
    let trust = match ca_file.filter(|_| https) {
        Some(path) => CaCertificates::read(path).map_err(|why| why.to_string())?,
        None => CaCertificates::default(),
    };
    let client = Client::new(https, 0, trust, None);
    client.names.expect(url);
    build(&client)
}

fn build(client: &Client) -> std::result::Result<reqwest::Client, String> {
    let mut builder = reqwest::Client::builder()
        // With HTTP/2 a request after a timeout would use the same, perhaps dead connection.
        .http1_only()
        // A signed request must not follow the redirect of a captive portal or proxy.
        .redirect(reqwest::redirect::Policy::none())
        .connect_timeout(client.connect_limit)
        // Load balancers and NATs drop idle connections silently (Azure's after four minutes).
        .pool_idle_timeout(Duration::from_secs(30))
        .pool_max_idle_per_host(client.idle)
        .tcp_nodelay(true)
        .dns_resolver(client.names.clone());
    if client.https {
        // Fails only if another provider was installed, which serves as well.
        let _ = rustls::crypto::ring::default_provider().install_default();
        builder = builder.tls_certs_merge(client.trust.certificates());
    } else {
        // Even for plain http reqwest would load the system's roots, and panic or fail in a container without
        // any.
        let tls = rustls::ClientConfig::builder_with_provider(Arc::new(
            rustls::crypto::ring::default_provider(),
        ))
        .with_safe_default_protocol_versions()
        .map_err(|error| format!("cannot set up TLS: {error}"))?
        .with_root_certificates(rustls::RootCertStore::empty())
        .with_no_client_auth();
        builder = builder.tls_backend_preconfigured(tls);
    }
    // The library would silently ignore a proxy that it cannot use.
    builder = builder.no_proxy();
    if let Some(proxy) = &client.proxy {
        let proxy = proxy
            .setting()
            .map_err(|error| root_cause(&error.without_url()))?;
        builder = builder.proxy(proxy);
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
        let other = |why: String| Error::with_message(ErrorKind::Other, why);
        let client = self.client()?;
        let method = reqwest::Method::from_bytes(request.method().as_str().as_bytes())
            .map_err(|error| other(error.to_string()))?;
        self.names.expect(request.url());
        let mut outgoing = client.request(method, request.url().clone());
        for (name, value) in request.headers().iter() {
            if name.as_str() != "content-length" {
                // Metadata of other programs need not be ASCII.
                outgoing = outgoing.header(name.as_str(), value.as_str().as_bytes());
            }
        }
        let Body::Bytes(body) = request.body().clone() else {
            return Err(other("a streamed body is not supported".to_owned()));
        };
        if matches!(request.method(), Method::Put | Method::Post) {
            // Even zero: the HTTP library would omit it, and the service answer 411.
            outgoing = outgoing.header("content-length", body.len());
        }
        let mut answer = match outgoing.body(body).send().await {
            Ok(answer) => answer,
            Err(error) => return Err(self.told(request.url(), error).await),
        };
        let status = answer.status().as_u16();
        let headers = headers(answer.headers())?;
        // Read here, so that the limits hold for the body, too.
        let bytes = match body_within(&mut answer, ANSWER_LIMIT).await {
            Ok(bytes) => bytes,
            Err(error) => return Err(self.told(request.url(), error).await),
        };
        let Some(bytes) = bytes else {
            return Err(Error::with_message(
                ErrorKind::Io,
                format!("the answer ({status}) is too long for the storage service"),
            ));
        };
        Ok(AsyncRawResponse::from_bytes(
            status.into(),
            headers,
            Bytes::from(bytes),
        ))
    }
}

/// Reads the body of an answer; `None` if it is longer than `limit`.
pub(super) async fn body_within(
    answer: &mut reqwest::Response,
    limit: usize,
) -> reqwest::Result<Option<Vec<u8>>> {
    let mut bytes = Vec::new();
    while let Some(chunk) = answer.chunk().await? {
        if bytes.len() + chunk.len() > limit {
            return Ok(None);
        }
        bytes.extend_from_slice(&chunk);
    }
    Ok(Some(bytes))
}

fn headers(map: &reqwest::header::HeaderMap) -> Result<Headers> {
    let mut headers = Headers::new();
    for (name, value) in map {
        match std::str::from_utf8(value.as_bytes()) {
            Ok(text) => headers.insert(name.as_str().to_owned(), text.to_owned()),
            // A write replaces all metadata of a blob: this entry would be lost.
            Err(_) if name.as_str().starts_with("x-ms-meta-") => {
                return Err(Error::with_message(
                    ErrorKind::DataConversion,
                    format!(
                        "the metadata '{}' is not UTF-8: remove it",
                        name.as_str().trim_start_matches("x-ms-meta-")
                    ),
                ));
            }
            Err(_) => {}
        }
    }
    Ok(headers)
}

/// Returns one header's value, if it exists and is text.
pub fn header<'a>(headers: &'a Headers, name: &'static str) -> Option<&'a str> {
    headers.get_optional_str(&HeaderName::from_static(name))
}

/// Describes an error of the HTTP library. Its kind says whether the request was sent: only if it certainly was
/// not, an acquire has obtained nothing.
fn told(error: reqwest::Error, way: Option<String>) -> Error {
    let url = error.url();
    let server = match url.filter(|url| url.has_host()) {
        Some(url) => url[Position::BeforeHost..Position::AfterPort].to_owned(),
        None => "the server".to_owned(),
    };
    let is_direct = url.is_some_and(|url| url.scheme() == "http");
    // The library's text has the whole URL, and with that a SAS.
    let error = error.without_url();
    let cause = if error.is_timeout() {
        "no answer in time".to_owned()
    } else if let Some(why) = tls_cause(&error) {
        tls_refusal(&server, why)
    } else {
        match &*root_cause(&error) {
            why @ "Connection refused" if is_direct => {
                format!("{why}: nothing listens at {server}")
            }
            // The library's words for the refusal of a proxy.
            why if why.starts_with("tunnel error: ") => "refused".to_owned(),
            "tls handshake eof" => format!(
                "{server} closed the connection before TLS began: check its port, and whether its address begins \
                 with http://"
            ),
            why => why.to_owned(),
        }
    };
    let (kind, what) = if error.is_connect() {
        (ErrorKind::Connection, "cannot connect")
    } else if error.is_builder() {
        (ErrorKind::Other, "cannot make the request")
    } else {
        (ErrorKind::Io, "connection lost")
    };
    let way = way.map(|way| format!(" ({way})")).unwrap_or_default();
    let text = format!("{what}: {cause}{way}");
    match kernel_errno(&error) {
        Some(errno) => {
            let beneath = io::Error::from_raw_os_error(errno).kind();
            Error::with_error(kind, io::Error::from(beneath), text)
        }
        None => Error::with_message(kind, text),
    }
}

/// Returns the kernel's error number, if the kernel refused.
pub fn kernel_errno(error: &reqwest::Error) -> Option<i32> {
    let chain = std::iter::successors(error.source(), |&error| error.source());
    let mut kernel_s = chain.filter_map(|error| error.downcast_ref::<io::Error>());
    kernel_s.find_map(io::Error::raw_os_error)
}

/// Returns the innermost cause; the outer ones say nothing.
pub fn root_cause(error: &reqwest::Error) -> String {
    let text = innermost(error);
    // The server may have written part of it.
    without_number(&text).chars().take(200).collect()
}

/// Waits for `work` until `deadline`; `None` if it was not done by then. Dropping it closes its connection.
pub async fn before<T>(deadline: Instant, work: impl Future<Output = T>) -> Option<T> {
    let mut work = pin!(work);
    loop {
        // Late work does not even begin.
        let left = deadline.since(Instant::now());
        if left.is_zero() {
            return None;
        }
        tokio::select! {
            biased;
            done = &mut work => return Some(done),
            () = clock::sleep(left.min(CLOCK_INTERVAL)) => {}
        }
    }
}

/// Runs one exchange within the usual limit.
pub async fn limited<T>(
    give_up_at: Instant,
    work: impl IntoFuture<Output = azure_core::Result<T>>,
) -> std::result::Result<T, ServiceError> {
    unhurried(give_up_at.min(Instant::now() + EXCHANGE_LIMIT), work).await
}

/// Runs one exchange without the usual limit: its answer can be long.
pub async fn unhurried<T>(
    give_up_at: Instant,
    work: impl IntoFuture<Output = azure_core::Result<T>>,
) -> std::result::Result<T, ServiceError> {
    match before(give_up_at, work.into_future()).await {
        Some(Ok(done)) => Ok(done),
        Some(Err(error)) => Err(ServiceError::of(&error)),
        None => Err(ServiceError::timed_out()),
    }
}

/// Runtime of the official clients. Their own adapter brings in tokio's multi-threaded runtime and the
/// mathematics library, one more to load at every start.
struct Tokio;

impl AsyncRuntime for Tokio {
    fn spawn(&self, task: TaskFuture) -> SpawnedTask {
        Box::pin(Task(tokio::spawn(task)))
    }

    fn sleep(&self, duration: azure_core::time::Duration) -> TaskFuture {
        Box::pin(clock::sleep(duration.try_into().unwrap_or_default()))
    }

    fn yield_now(&self) -> TaskFuture {
        Box::pin(tokio::task::yield_now())
    }
}

struct Task(tokio::task::JoinHandle<()>);

impl Future for Task {
    type Output = std::result::Result<(), Box<dyn std::error::Error + Send>>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let ended = Pin::new(&mut self.0).poll(context);
        ended.map_err(|error| Box::new(error) as _)
    }
}

impl AbortableTask for Task {
    fn abort(&self) {
        self.0.abort();
    }
}

#[cfg(test)]
mod tests {
    use azure_core::async_runtime::get_async_runtime;
    use tokio::sync::oneshot;

    use super::*;

    fn install() {
        let _ = set_async_runtime(Arc::new(Tokio));
    }

    #[tokio::test]
    async fn before_returns_finished_work_and_gives_up_hanging_work() {
        let soon = Instant::now() + Duration::from_millis(300);
        assert_eq!(before(soon, std::future::pending::<()>()).await, None);
        assert!(Instant::now() >= soon);
        let late = Instant::now() + Duration::from_secs(60);
        assert_eq!(before(late, async { 7 }).await, Some(7));
    }

    #[tokio::test]
    async fn work_does_not_begin_after_its_deadline() {
        let mut begun = false;
        assert_eq!(before(Instant::now(), async { begun = true }).await, None);
        assert!(!begun);
    }

    #[tokio::test]
    async fn clients_spawn_and_sleep_with_tokio() {
        install();
        let runtime = get_async_runtime();
        let (done, was_done) = oneshot::channel();
        let task = runtime.spawn(Box::pin(async { done.send(()).expect("heard") }));
        task.await.expect("it ended");
        was_done.await.expect("it ran");
        let nap = Duration::from_millis(20);
        let begun = std::time::Instant::now();
        let for_them = nap.try_into().expect("a duration");
        runtime.sleep(for_them).await;
        assert!(begun.elapsed() >= nap);
        runtime.sleep(azure_core::time::Duration::seconds(-1)).await;
    }

    #[tokio::test]
    async fn aborted_task_ends() {
        install();
        let task = get_async_runtime().spawn(Box::pin(std::future::pending()));
        task.abort();
        assert!(task.await.is_err());
    }
}
