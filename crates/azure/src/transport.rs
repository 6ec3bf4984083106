//! One exchange with a service: the HTTP client under the official clients, what those sleep and
//! spawn with, and the time limit round it all. No redirects, no panics, and no URL (it may carry a
//! SAS) in any error.
//!
//! Made by [`super::Account`]. Must never retry: retries are the core's, inside the lease's time.
//! Must never be used to judge a lease: a time limit here only ends waiting.

use std::collections::HashMap;
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
use azure_core::http::headers::{HeaderName, HeaderValue, Headers};
use azure_core::http::{AsyncRawResponse, Body, HttpClient, Method, Request};
use url::Url;

use super::credential::CaCertificates;
use super::error::{ServiceError, innermost};
use super::proxy::Proxy;
use super::server::{CONNECT_LIMIT, Names, tls_cause, tls_refusal};
use trafficcop_core::clock::{self, Instant};
use trafficcop_core::util::lock;

// No answer of the operations we use is longer (32 messages of 64 KiB are the longest, each byte
// of which may take six in XML). Without a limit whoever answers could fill our memory.
const ANSWER_LIMIT: usize = 13 * 1024 * 1024;
// A dead connection must leave time for another attempt before SIGTERM is due.
const EXCHANGE_LIMIT: Duration = Duration::from_secs(5);
// tokio's timers stand still while the machine sleeps: after a sleep of an hour a limit of 5 s
// would have 5 s left. So the clock that counts suspend is looked at again this often.
const LOOK: Duration = Duration::from_millis(250);

/// A client that is built with its first request.
pub(crate) struct Client {
    https: bool,
    // How many connections are kept for the next requests.
    idle: usize,
    trust: CaCertificates,
    connect_limit: Duration,
    // No proxy is asked, whatever the environment says.
    direct: bool,
    // The one of the environment, for https.
    proxy: Option<Arc<Proxy>>,
    names: Names,
    // Late, because building fails where no certificates are installed: so that is the error of a
    // request, in words, and none at all for plain http.
    built: Mutex<Option<std::result::Result<reqwest::Client, String>>>,
    // What answers in the place of the network, where a test put something there.
    #[cfg(debug_assertions)]
    simulated: Option<Arc<dyn HttpClient>>,
}

impl Client {
    pub(crate) fn new(https: bool, idle: usize) -> Client {
        Client {
            https,
            idle,
            trust: CaCertificates::default(),
            connect_limit: CONNECT_LIMIT,
            direct: !https,
            proxy: None,
            names: Names::default(),
            built: Mutex::default(),
            #[cfg(debug_assertions)]
            simulated: None,
        }
    }

    /// One whose requests go to this, and not to the network.
    #[cfg(debug_assertions)]
    pub(super) fn simulated(network: Arc<dyn HttpClient>) -> Client {
        Client {
            simulated: Some(network),
            ..Client::new(false, 1)
        }
    }

    /// The same, with additional authorities for https.
    pub(super) fn trusting(mut self, trust: CaCertificates) -> Client {
        self.trust = trust;
        self
    }

    /// Sets the proxy.
    pub(super) fn through(mut self, proxy: Option<Proxy>) -> Client {
        self.proxy = proxy.map(Arc::new);
        self
    }

    /// The same, for somebody who connects at once if he is there at all.
    #[cfg(feature = "entra")]
    pub(super) fn connecting_within(mut self, limit: Duration) -> Client {
        self.connect_limit = limit;
        self
    }

    /// A client like this one without its connections, for a process that was forked: of two that
    /// send through one socket each would read the other's answers.
    pub(super) fn anew(&self) -> Client {
        #[cfg(debug_assertions)]
        if let Some(network) = &self.simulated {
            return Client::simulated(Arc::clone(network));
        }
        let mut client = Client::new(self.https, self.idle).trusting(self.trust.clone());
        client.proxy.clone_from(&self.proxy);
        client
    }

    /// An error of the HTTP library in our words, with the way that the request took.
    async fn told(&self, url: &Url, error: reqwest::Error) -> Error {
        let proxy = self
            .proxy
            .as_ref()
            .filter(|proxy| !self.direct && proxy.takes(url));
        let way = match proxy {
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

    /// Leaves the present connections to the requests that are under way on them.
    pub(super) fn hang_up(&self) {
        lock(&self.built).take();
    }

    fn client(&self) -> Result<reqwest::Client> {
        lock(&self.built)
            .get_or_insert_with(|| {
                // Fails only where a program that we are a library of installed another, which
                // serves as well.
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

/// A client for plain http: no certificates, and no proxy.
pub(super) fn plain() -> std::result::Result<reqwest::Client, String> {
    build(&Client::new(false, 1))
}

/// A client that asks this URL, of this machine or one beside it, over a connection of its own each time.
pub fn for_probes(
    url: &Url,
    ca_file: Option<&Path>,
) -> std::result::Result<reqwest::Client, String> {
    let https = url.scheme() == "https";
    let trust = match ca_file.filter(|_| https) {
        Some(path) => CaCertificates::read(path).map_err(|why| why.to_string())?,
        None => CaCertificates::default(),
    };
    let client = Client {
        direct: true,
        ..Client::new(https, 0)
    };
    client.names.expect(url);
    build(&client.trusting(trust))
}

fn build(client: &Client) -> std::result::Result<reqwest::Client, String> {
    let mut builder = reqwest::Client::builder()
        // There, giving up a request closes its connection. Under HTTP/2 the next one would go out
        // on the same connection, whose path may have died silently.
        .http1_only()
        // The service never redirects. Whoever does (a captive portal, a proxy) is told of, and not
        // followed with our signature in the request.
        .redirect(reqwest::redirect::Policy::none())
        .connect_timeout(client.connect_limit)
        // Shorter than the idle limits of load balancers and NATs on the way (Azure's is four
        // minutes), which drop a connection without telling either end.
        .pool_idle_timeout(Duration::from_secs(30))
        .pool_max_idle_per_host(client.idle)
        .tcp_nodelay(true)
        .dns_resolver(client.names.clone());
    if client.https {
        // Fails only where another provider was installed before, which serves as well.
        let _ = rustls::crypto::ring::default_provider().install_default();
        // Besides the system's.
        builder = builder.tls_certs_merge(client.trust.certificates());
    } else {
        // An empty store of roots: reqwest would load the system's for plain http, too, and panic
        // or fail in a container that has none.
        let tls = rustls::ClientConfig::builder_with_provider(Arc::new(
            rustls::crypto::ring::default_provider(),
        ))
        .with_safe_default_protocol_versions()
        .map_err(|error| format!("cannot set up TLS: {error}"))?
        .with_root_certificates(rustls::RootCertStore::empty())
        .with_no_client_auth();
        builder = builder.tls_backend_preconfigured(tls);
    }
    // The library would read the environment itself, and pass over in silence what it cannot use.
    builder = builder.no_proxy();
    if let Some(proxy) = client.proxy.as_ref().filter(|_| !client.direct) {
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
        #[cfg(debug_assertions)]
        if let Some(network) = &self.simulated {
            return network.execute_request(request).await;
        }
        let other = |why: String| Error::with_message(ErrorKind::Other, why);
        let client = self.client()?;
        let method = reqwest::Method::from_bytes(request.method().as_str().as_bytes())
            .map_err(|error| other(error.to_string()))?;
        self.names.expect(request.url());
        let mut outgoing = client.request(method, request.url().clone());
        for (name, value) in request.headers().iter() {
            // The length is that of the body, and is set below.
            if name.as_str() != "content-length" {
                // As bytes: other people's metadata need not be ASCII.
                outgoing = outgoing.header(name.as_str(), value.as_str().as_bytes());
            }
        }
        let Body::Bytes(body) = request.body().clone() else {
            return Err(other("a streamed body is not supported".to_owned()));
        };
        if matches!(request.method(), Method::Put | Method::Post) {
            // Said even where it is zero: the service answers 411 without, and the HTTP library
            // leaves it out.
            outgoing = outgoing.header("content-length", body.len());
        }
        let mut answer = match outgoing.body(body).send().await {
            Ok(answer) => answer,
            Err(error) => return Err(self.told(request.url(), error).await),
        };
        let status = answer.status().as_u16();
        let headers = headers(answer.headers())?;
        // Read here, so that the limits of time and of size hold for the body, too.
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

/// The body of an answer; `None` if it is longer than `limit`.
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
    let mut headers = HashMap::new();
    for (name, value) in map {
        match std::str::from_utf8(value.as_bytes()) {
            Ok(text) => {
                headers.insert(
                    HeaderName::from(name.as_str().to_owned()),
                    HeaderValue::from(text.to_owned()),
                );
            }
            // A write replaces all metadata of a blob: what is left out here would be lost with
            // our next record, and as text it could not be written back as it was.
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
    Ok(Headers::from(headers))
}

/// One header's value, if it is there and text.
pub fn header<'a>(headers: &'a Headers, name: &'static str) -> Option<&'a str> {
    headers.get_optional_str(&HeaderName::from_static(name))
}

/// An error of the HTTP library in our words. Its kind says whether the request was sent: only
/// where it certainly was not may an acquire be taken for one that obtained nothing.
fn told(error: reqwest::Error, way: Option<String>) -> Error {
    let url = error.url();
    let server = url.and_then(|url| {
        let port = url.port().map(|port| format!(":{port}"));
        Some(url.host_str()?.to_owned() + &port.unwrap_or_default())
    });
    let server = server.unwrap_or_else(|| "the server".to_owned());
    // Of https it may be a proxy that was connected to.
    let is_direct = url.is_some_and(|url| url.scheme() == "http");
    // The library's text has the whole URL in it, and with that a SAS.
    let error = error.without_url();
    let cause = if error.is_timeout() {
        "no answer in time".to_owned()
    } else if let Some(why) = tls_cause(&error) {
        tls_refusal(&server, why)
    } else {
        match root_cause(&error) {
            refused if is_direct && refused == "Connection refused" => {
                format!("{refused}: nothing listens at {server}")
            }
            // The library's words for the refusal of a proxy.
            refusal if refusal.starts_with("tunnel error: ") => "refused".to_owned(),
            eof if eof == "tls handshake eof" => {
                format!(
                    "{server} closed the connection before TLS began: check its port, and whether its address begins with http://"
                )
            }
            why => why,
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
        // Of what is beneath no more than its kind: its text is the library's.
        Some(errno) => {
            let beneath = io::Error::from_raw_os_error(errno).kind();
            Error::with_error(kind, io::Error::from(beneath), text)
        }
        None => Error::with_message(kind, text),
    }
}

/// The kernel's error number, where the kernel refused.
pub fn kernel_errno(error: &reqwest::Error) -> Option<i32> {
    let chain = std::iter::successors(error.source(), |&error| error.source());
    let mut kernel_s = chain.filter_map(|error| error.downcast_ref::<io::Error>());
    kernel_s.find_map(io::Error::raw_os_error)
}

/// The innermost cause: the outer ones only say "error sending request".
pub fn root_cause(error: &reqwest::Error) -> String {
    let mut text = innermost(error);
    if let Some(at) = text.find(" (os error") {
        text.truncate(at);
    }
    // It goes into a line of the log, and part of it can be the other side's words.
    match text.char_indices().nth(200) {
        Some((at, _)) => text[..at].to_owned(),
        None => text,
    }
}

/// Waits for `work` until `deadline`; `None` if it was not done by then (it is dropped, which
/// closes its connection).
pub async fn before<T>(deadline: Instant, work: impl Future<Output = T>) -> Option<T> {
    let mut work = pin!(work);
    loop {
        // First: what would begin after its deadline is not begun at all.
        let left = deadline.since(Instant::now());
        if left.is_zero() {
            return None;
        }
        tokio::select! {
            biased;
            done = &mut work => return Some(done),
            () = clock::sleep(left.min(LOOK)) => {}
        }
    }
}

/// One exchange, until then and no longer than any.
pub async fn limited<T>(
    give_up_at: Instant,
    work: impl IntoFuture<Output = azure_core::Result<T>>,
) -> std::result::Result<T, ServiceError> {
    unhurried(give_up_at.min(Instant::now() + EXCHANGE_LIMIT), work).await
}

/// One exchange, for as long as is given: its answer can be long.
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

/// What the official clients sleep and spawn with. Their own adapter for tokio would bring in its
/// runtime of many threads, and with it the mathematics library: one more to load at every start.
struct Tokio;

impl AsyncRuntime for Tokio {
    fn spawn(&self, task: TaskFuture) -> SpawnedTask {
        Box::pin(Task(tokio::spawn(task)))
    }

    fn sleep(&self, duration: azure_core::time::Duration) -> TaskFuture {
        // A negative one is none.
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
    async fn what_is_done_in_time_is_returned_and_what_hangs_is_given_up() {
        let soon = Instant::now() + Duration::from_millis(300);
        assert_eq!(before(soon, std::future::pending::<()>()).await, None);
        assert!(Instant::now() >= soon);
        let late = Instant::now() + Duration::from_secs(60);
        assert_eq!(before(late, async { 7 }).await, Some(7));
    }

    #[tokio::test]
    async fn nothing_is_begun_after_the_deadline() {
        let mut begun = false;
        assert_eq!(before(Instant::now(), async { begun = true }).await, None);
        assert!(!begun);
    }

    #[tokio::test]
    async fn the_clients_tasks_and_naps_are_tokio_s() {
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
    async fn a_task_that_is_aborted_ends() {
        install();
        let task = get_async_runtime().spawn(Box::pin(std::future::pending()));
        task.abort();
        assert!(task.await.is_err());
    }
}
