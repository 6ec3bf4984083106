//! What is answered, page by page. Called by the server for each request.
//!
//! Every answer is worked out when it is asked for, and none may be kept (`no-store`): an old
//! "yes, I lead" is worth nothing. Nothing here changes anything.

use std::fmt::Write as _;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::Bytes;
use hyper::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use hyper::{Method, Response, StatusCode};
use serde::Serialize;

use super::metrics;
use super::shared_status::{SharedStatus, Snapshot};
use crate::status::Status;

/// The pages, and what they are for.
const PAGES: [(&str, &str); 6] = [
    ("/healthz", "200 while supervisor and guardian are sound"),
    ("/readyz", "200 for holder and standby"),
    ("/leader", "200 only while this instance leads, else 503"),
    ("/primary", "the same as /leader"),
    ("/status", "what the status file says, and more, as JSON"),
    ("/metrics", "for Prometheus"),
];
/// The name of all other paths in the counter of requests.
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

    /// Yes, or no, and why.
    fn verdict(yes: bool, line: impl Into<String>) -> Page {
        let code = if yes {
            StatusCode::OK
        } else {
            StatusCode::SERVICE_UNAVAILABLE
        };
        Page::text(code, line)
    }
}

/// The answer to one request.
pub(super) async fn answer(
    shared_status: &SharedStatus,
    method: &Method,
    path: &str,
    accepts: &str,
) -> Response<Full<Bytes>> {
    let known = PAGES.iter().find(|(name, _)| *name == path);
    let name = known.map_or(OTHER, |(name, _)| name);
    let reads = [Method::GET, Method::HEAD, Method::OPTIONS].contains(method);
    let page = if known.is_none() {
        Page::text(StatusCode::NOT_FOUND, index())
    } else if reads {
        page(shared_status, name, accepts).await
    } else {
        let line = format!("{method} does nothing here: {ALLOWED} do");
        Page::text(StatusCode::METHOD_NOT_ALLOWED, line)
    };
    // By the page's name, never by the path as it came: strangers would make labels without end.
    shared_status.metrics.requested(name, page.code.as_u16());
    // A load balancer may ask by OPTIONS: it gets the same verdict, and no text.
    let body = if *method == Method::OPTIONS {
        Bytes::new()
    } else {
        page.body.into()
    };
    let mut response = Response::new(Full::new(body));
    *response.status_mut() = page.code;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(page.kind));
    // A cache that repeats "yes, I lead" would send requests to who lost control.
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
            // Whoever takes both wants the newer one.
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
        return Page::verdict(false, "supervisor or guardian do not answer");
    }
    match shared_status.snapshot().fault() {
        Some(fault) => Page::verdict(false, fault),
        None => Page::verdict(true, "supervisor and guardian answer"),
    }
}

fn readyz(sight: &Snapshot) -> Page {
    if sight.competes {
        Page::verdict(true, &*sight.status.state)
    } else {
        Page::verdict(false, "the store has not answered yet")
    }
}

fn leader(sight: &Snapshot) -> Page {
    // Never a yes: a balancer would follow whichever worker it asked first.
    if sight.worker {
        return Page::verdict(false, "a worker leads nobody: ask /readyz");
    }
    let token = sight.status.token.unwrap_or(0);
    let line = match (sight.leads(), sight.control_left()) {
        (true, Some(left)) => format!("token {token}, for {:.3} s at least", left.as_secs_f64()),
        (true, None) => format!("token {token}"),
        (false, _) => match sight.status.holder_for_people() {
            Some(holder) => format!("{}: {holder} has control", sight.status.state),
            None => sight.status.state.clone(),
        },
    };
    Page::verdict(sight.leads(), line)
}

/// What the status file says, and what is true at this moment only.
#[derive(Serialize)]
struct Document<'a> {
    #[serde(flatten)]
    status: &'a Status,
    /// What `/leader` says.
    leader: bool,
    /// For how long control is certain; `null` where the lock has no deadline.
    control_remaining_seconds: Option<f64>,
    /// How long ago the request was sent that obtained or renewed the lease last.
    renewed_seconds_ago: Option<f64>,
}

fn status(sight: &Snapshot) -> Page {
    let seconds = |span: Option<Duration>| span.map(|span| span.as_secs_f64());
    let document = Document {
        status: &sight.status,
        leader: sight.leads(),
        control_remaining_seconds: seconds(sight.control_left()),
        renewed_seconds_ago: seconds(sight.confirmed_ago()),
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
