//! `--listen`: answers other programs over HTTP.
//!
//! ```text
//! driver ── notices, events, replies ─▶ SharedStatus ◀── server (a thread and a runtime of its own)
//! guardian ── the control file's word ────▲
//! ```
//! The supervisor's loop never waits for a reader. Nothing in here may end or delay the command.
//!
//! The server has its own thread and runtime: no number of connections may delay a renewal. It stops before the
//! guardian is dismissed. A connection carries one request, within a time limit.

mod listener;
mod metrics;
mod shared_status;

use std::collections::VecDeque;
use std::convert::Infallible;
use std::fmt::Write as _;
use std::io;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{ACCEPT, ALLOW, CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use serde::Serialize;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::oneshot;
use tokio::task::AbortHandle;

use self::listener::{BoundPath, Socket};
use self::shared_status::Snapshot;
use crate::runtime::runtime;
use crate::status::{REFUSED, Status, UNFIT};

pub(crate) use listener::{Address, Listener};
pub(crate) use shared_status::SharedStatus;

// A balancer and a Prometheus need a handful; leases and logs need descriptors, too.
const CONNECTIONS: usize = 64;
const ARRIVAL: Duration = Duration::from_secs(5);
// Longer than `/healthz` may wait for a sign of life on a busy machine.
const LIFE: Duration = Duration::from_secs(15);
// In bytes (hyper's minimum) and in number.
const HEAD: usize = 8 << 10;
const HEADERS: usize = 64;
const ACCEPT_RETRY: Duration = Duration::from_millis(100);
const STACK: usize = 512 << 10;

/// Running server, which stops and removes its socket's path when dropped.
pub(crate) struct Server {
    shared_status: Arc<SharedStatus>,
    _life: oneshot::Sender<Infallible>,
    place: Option<BoundPath>,
}

impl Server {
    /// Starts the server's thread: call it after the fork.
    ///
    /// # Errors
    /// If the thread or its runtime cannot be created.
    pub(crate) fn start(listener: Listener, shared_status: SharedStatus) -> io::Result<Server> {
        let shared_status = Arc::new(shared_status);
        let runtime = runtime()?;
        // Its drop ends the thread, whatever that is waiting for.
        let (life, ended) = oneshot::channel::<Infallible>();
        let place = listener.place;
        let (socket, address) = (listener.socket, listener.address);
        let its = Arc::clone(&shared_status);
        let place_told = address.to_string();
        thread::Builder::new()
            .name("http".into())
            .stack_size(STACK)
            .spawn(move || {
                let served = runtime.block_on(async {
                    tokio::select! {
                        served = serve(socket, its) => served,
                        _ = ended => Ok(()),
                    }
                });
                if let Err(why) = served {
                    tracing::warn!("/healthz and the other pages at {address} are gone: {why}");
                }
            })?;
        tracing::info!(listen = place_told, "answering at {place_told}");
        Ok(Server {
            shared_status,
            _life: life,
            place,
        })
    }

    #[must_use]
    pub(crate) fn shared_status(&self) -> Arc<SharedStatus> {
        Arc::clone(&self.shared_status)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(place) = &self.place {
            place.remove();
        }
    }
}

async fn serve(socket: Socket, shared_status: Arc<SharedStatus>) -> io::Result<()> {
    match socket {
        Socket::Tcp(socket) => {
            let socket = tokio::net::TcpListener::from_std(socket)?;
            receive_all(async || Ok(socket.accept().await?.0), &shared_status).await
        }
        Socket::Unix(socket) => {
            let socket = tokio::net::UnixListener::from_std(socket)?;
            receive_all(async || Ok(socket.accept().await?.0), &shared_status).await
        }
    }
}

async fn receive_all<S>(
    accept: impl AsyncFn() -> io::Result<S>,
    shared_status: &Arc<SharedStatus>,
) -> io::Result<()>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let mut connections = Connections::default();
    loop {
        match accept().await {
            Ok(stream) => connections.receive(stream, shared_status).await,
            // Mostly for want of descriptors: an immediate retry would use up a processor.
            Err(_) => tokio::time::sleep(ACCEPT_RETRY).await,
        }
    }
}

#[derive(Default)]
struct Connections(VecDeque<AbortHandle>);

impl Connections {
    async fn receive<S>(&mut self, stream: S, shared_status: &Arc<SharedStatus>)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        self.0.retain(|one| !one.is_finished());
        if self.0.len() >= CONNECTIONS
            && let Some(oldest) = self.0.pop_front()
        {
            // Not the newest: otherwise a few idle connections would keep every check out.
            oldest.abort();
            // The aborted task closes its connection first.
            tokio::task::yield_now().await;
        }
        let shared_status = Arc::clone(shared_status);
        let one = tokio::spawn(async move {
            // For a client that sends a byte a minute, or does not read. It notices a failure itself.
            let _ = tokio::time::timeout(LIFE, attend(stream, shared_status)).await;
        });
        self.0.push_back(one.abort_handle());
    }
}

async fn attend<S>(stream: S, shared_status: Arc<SharedStatus>) -> hyper::Result<()>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let service = service_fn(|request: Request<Incoming>| {
        let shared_status = Arc::clone(&shared_status);
        async move {
            let (method, path) = (request.method(), request.uri().path());
            let accepts: Vec<&str> = request
                .headers()
                .get_all(ACCEPT)
                .iter()
                .filter_map(|value| value.to_str().ok())
                .collect();
            let accepts = accepts.join(",");
            Ok::<_, Infallible>(answer(&shared_status, method, path, &accepts).await)
        }
    });
    http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(ARRIVAL)
        // A client that has closed its sending side (`nc -N`) still waits.
        .half_close(true)
        // An idle connection would take the place of another one.
        .keep_alive(false)
        .max_buf_size(HEAD)
        .max_headers(HEADERS)
        .serve_connection(TokioIo::new(stream), service)
        .await
}

const PAGES: [(&str, &str); 6] = [
    ("/healthz", "200 while supervisor and guardian are sound"),
    (
        "/readyz",
        "200 for holder and standby; 503 before the store answers, and while it or --if refuses",
    ),
    ("/leader", "200 only while certainly in control, else 503"),
    ("/primary", "the same as /leader"),
    ("/status", "the status file, and more, as JSON"),
    ("/metrics", "for Prometheus"),
];
/// All other paths in the counter of requests.
const OTHER: &str = "other";

const ALLOWED: &str = "GET, HEAD, OPTIONS";
const TEXT: &str = "text/plain; charset=utf-8";
const JSON: &str = "application/json";

struct Page {
    code: StatusCode,
    kind: &'static str,
    body: String,
}

impl Page {
    fn text(code: StatusCode, line: impl Into<String>) -> Page {
        let mut body = line.into();
        body.push('\n');
        Page {
            code,
            kind: TEXT,
            body,
        }
    }

    fn yes_or_no(yes: bool, line: impl Into<String>) -> Page {
        let code = if yes {
            StatusCode::OK
        } else {
            StatusCode::SERVICE_UNAVAILABLE
        };
        Page::text(code, line)
    }
}

async fn answer(
    shared_status: &SharedStatus,
    method: &Method,
    path: &str,
    accepts: &str,
) -> Response<Full<Bytes>> {
    let known = PAGES.iter().find(|(name, _)| *name == path);
    let name = known.map_or(OTHER, |(name, _)| name);
    let reads = [Method::GET, Method::HEAD, Method::OPTIONS].contains(method);
    // No method works on a page that does not exist.
    let page = if known.is_none() {
        Page::text(StatusCode::NOT_FOUND, index())
    } else if reads {
        page(shared_status, name, accepts).await
    } else {
        let line = format!("{method} does nothing here: {ALLOWED} do");
        Page::text(StatusCode::METHOD_NOT_ALLOWED, line)
    };
    // Never the requested path: clients could create labels without end.
    shared_status.metrics.requested(name, page.code.as_u16());
    // A load balancer may use OPTIONS.
    let body = if *method == Method::OPTIONS {
        Bytes::new()
    } else {
        page.body.into()
    };
    let mut response = Response::new(Full::new(body));
    *response.status_mut() = page.code;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(page.kind));
    // A cached "yes, I lead" would send requests to an instance that has lost control.
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    if !reads || *method == Method::OPTIONS {
        headers.insert(ALLOW, HeaderValue::from_static(ALLOWED));
    }
    response
}

async fn page(shared_status: &SharedStatus, name: &str, accepts: &str) -> Page {
    match name {
        "/healthz" => healthz(shared_status).await,
        "/readyz" => readyz(&shared_status.snapshot()),
        "/leader" | "/primary" => leader(&shared_status.snapshot()),
        "/status" => status(&shared_status.snapshot()),
        _ => {
            let text = shared_status.metrics.text(&shared_status.snapshot());
            let plain = accepts.contains("text/plain") && !accepts.contains("openmetrics-text");
            Page {
                code: StatusCode::OK,
                kind: if plain { metrics::PLAIN } else { metrics::KIND },
                body: if plain { metrics::plain(&text) } else { text },
            }
        }
    }
}

fn index() -> String {
    let mut text = String::from("there is no such page; there are\n");
    for (name, meaning) in PAGES {
        let _ = write!(text, "\n{name:9} {meaning}");
    }
    text
}

async fn healthz(shared_status: &SharedStatus) -> Page {
    if !shared_status.is_alive().await {
        return Page::yes_or_no(false, "supervisor or guardian do not answer");
    }
    match shared_status.snapshot().fault() {
        Some(fault) => Page::yes_or_no(false, fault),
        None => Page::yes_or_no(true, "supervisor and guardian answer"),
    }
}

fn readyz(snapshot: &Snapshot) -> Page {
    // An unfit or refused instance could not take over.
    let state = &*snapshot.status.state;
    if [UNFIT, REFUSED].contains(&state) {
        let cause = snapshot.status.cause.as_deref().unwrap_or_default();
        return Page::yes_or_no(false, format!("{state}: {cause}"));
    }
    // A standby is as ready as the holder: otherwise a rolling update would wait for a fail-over.
    if snapshot.competes {
        Page::yes_or_no(true, &*snapshot.status.state)
    } else {
        Page::yes_or_no(false, "the store has not answered yet")
    }
}

fn leader(snapshot: &Snapshot) -> Page {
    // Never yes: a balancer would follow the first worker that it asked.
    if snapshot.worker {
        return Page::yes_or_no(false, "a worker has no leader: use /readyz");
    }
    let token = snapshot.status.token.unwrap_or(0);
    let line = match (snapshot.leads(), snapshot.control_left()) {
        (true, Some(left)) => format!("token {token}, for {:.3} s at least", left.as_secs_f64()),
        (true, None) => format!("token {token}"),
        (false, _) => match snapshot.status.holder_for_people() {
            Some(holder) => format!("{}: {holder} has control", snapshot.status.state),
            None => snapshot.status.state.clone(),
        },
    };
    Page::yes_or_no(snapshot.leads(), line)
}

#[derive(Serialize)]
struct Document<'a> {
    #[serde(flatten)]
    status: &'a Status,
    leader: bool,
    /// Time for which control is certain; `null` if the lock has no deadline.
    control_remaining_seconds: Option<f64>,
    renewed_seconds_ago: Option<f64>,
    health_answered_seconds_ago: Option<f64>,
}

fn status(snapshot: &Snapshot) -> Page {
    let seconds = |span: Option<Duration>| span.map(|span| span.as_secs_f64());
    let document = Document {
        status: &snapshot.status,
        leader: snapshot.leads(),
        control_remaining_seconds: seconds(snapshot.control_left()),
        renewed_seconds_ago: seconds(snapshot.confirmed_ago()),
        health_answered_seconds_ago: seconds(snapshot.answered_ago()),
    };
    match serde_json::to_string(&document) {
        Ok(mut body) => {
            body.push('\n');
            Page {
                code: StatusCode::OK,
                kind: JSON,
                body,
            }
        }
        Err(why) => Page::text(StatusCode::INTERNAL_SERVER_ERROR, why.to_string()),
    }
}
