//! The server: a thread with a runtime of its own, so that no number of connections keeps the
//! supervisor's loop from its renewals.
//!
//! Started by `run` after the guardian was forked, stopped by it before the guardian is dismissed.
//! Connections are few and short: one request each, a limit on its time, and when there are too
//! many the oldest makes room. So whoever holds connections open keeps nobody else out.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use hyper::Request;
use hyper::body::Incoming;
use hyper::header::ACCEPT;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::oneshot;
use tokio::task::AbortHandle;

use super::listener::{BoundPath, Listener, Socket};
use super::{SharedStatus, routes};
use crate::runtime::runtime;

/// How many connections there are at most.
const CONNECTIONS: usize = 64;
/// How long a request may take to arrive.
const ARRIVAL: Duration = Duration::from_secs(5);
/// How long a connection may last.
const LIFE: Duration = Duration::from_secs(15);
/// What a request line and its headers may come to, in bytes (hyper's least) and in number.
const HEAD: usize = 8 << 10;
const HEADERS: usize = 64;
/// How long to wait where the kernel has no descriptor for us.
const NAP: Duration = Duration::from_millis(100);
/// The stack of the thread.
const STACK: usize = 512 << 10;

/// A server that runs. Dropped, it stops, and its socket's path is removed.
pub(crate) struct Server {
    shared_status: Arc<SharedStatus>,
    /// Dropped to stop.
    _life: oneshot::Sender<Infallible>,
    place: Option<BoundPath>,
}

impl Server {
    /// Starts to answer. Not before the guardian was forked: it is a thread.
    ///
    /// # Errors
    /// Where there can be no thread, or nothing to wait for connections with.
    pub(crate) fn start(listener: Listener, shared_status: SharedStatus) -> io::Result<Server> {
        let shared_status = Arc::new(shared_status);
        // Its own: a question more must never be a renewal later.
        let runtime = runtime()?;
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
                    tracing::warn!("nobody answers at {address} any more: {why}");
                }
            })?;
        tracing::info!(listen = place_told, "answering at {place_told}");
        Ok(Server {
            shared_status,
            _life: life,
            place,
        })
    }

    /// Where what is answered is written.
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
            // Out of descriptors, mostly: tried again at once it would take a processor for itself.
            Err(_) => tokio::time::sleep(NAP).await,
        }
    }
}

/// The connections that there are, the oldest first.
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
            // Not the newest: then a few connections that are held open would keep every check out.
            oldest.abort();
            // It goes when it is its turn, and the next one comes after that.
            tokio::task::yield_now().await;
        }
        let shared_status = Arc::clone(shared_status);
        let one = tokio::spawn(async move {
            // Whatever became of it: whoever asked will notice, and nobody else cares.
            // Who sends a byte a minute, or does not read, is not waited for.
            let _ = tokio::time::timeout(LIFE, attend(stream, shared_status)).await;
        });
        self.0.push_back(one.abort_handle());
    }
}

async fn attend<S>(stream: S, shared_status: Arc<SharedStatus>) -> hyper::Result<()>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let answer = service_fn(|request: Request<Incoming>| {
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
            Ok::<_, Infallible>(routes::answer(&shared_status, method, path, &accepts).await)
        }
    });
    http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(ARRIVAL)
        // A connection kept open for later would hold a place that somebody needs now.
        .keep_alive(false)
        .max_buf_size(HEAD)
        .max_headers(HEADERS)
        .serve_connection(TokioIo::new(stream), answer)
        .await
}
