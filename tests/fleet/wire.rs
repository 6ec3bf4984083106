//! The network as the shipped blob store sees it: an HTTP client under the official ones, which
//! puts their requests on the wire as the model's. The world decides whether and when something
//! arrives; dropping a request's future leaves it on the wire.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::{Arc, Mutex, OnceLock};

use async_trait::async_trait;
use azure_core::Bytes;
use azure_core::http::headers::{HeaderName, HeaderValue, Headers};
use azure_core::http::{AsyncRawResponse, HttpClient, Method, Request as Sent};
use tokio::sync::oneshot;
use trafficcop_azure::{Account, AuthOptions};

use super::store::{Code, Id, LeaseState, Record, Reply, Request};

#[derive(Debug, Default)]
pub(crate) struct Texts {
    leases: Vec<String>,
    /// Metadata of each record that was ever written.
    metadata: Vec<Vec<(String, String)>>,
}

impl Texts {
    pub(crate) fn lease(&mut self, text: &str) -> Id {
        let known = self.leases.iter().position(|lease| lease == text);
        let at = known.unwrap_or_else(|| {
            self.leases.push(text.to_owned());
            self.leases.len() - 1
        });
        at as Id + 1
    }

    pub(crate) fn record(&mut self, metadata: Vec<(String, String)>) -> Record {
        let value = |name: &str| {
            let found = metadata.iter().find(|(key, _)| key == name);
            found.map_or("", |(_, value)| value)
        };
        let record = Record {
            token: value("trafficcop_token").parse().expect("a token"),
            holder: value("trafficcop_holder").parse().expect("a holder"),
            series: self.metadata.len() as Id,
            draining: value("trafficcop_draining") == "true",
        };
        self.metadata.push(metadata);
        record
    }
}

#[derive(Debug, Default)]
struct Wire {
    out: Vec<(u64, Request)>,
    waiting: BTreeMap<u64, oneshot::Sender<Reply>>,
    slots: u64,
}

/// Answers some requests immediately.
#[derive(Default)]
struct AtOnce(Option<Box<dyn FnMut(Request) -> Option<Reply> + Send>>);

impl fmt::Debug for AtOnce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AtOnce")
    }
}

#[derive(Debug)]
pub(crate) struct Network {
    texts: Arc<Mutex<Texts>>,
    wire: Mutex<Wire>,
    at_once: Mutex<AtOnce>,
}

impl Network {
    pub(crate) fn new(texts: Arc<Mutex<Texts>>) -> Arc<Network> {
        Arc::new(Network {
            texts,
            wire: Mutex::default(),
            at_once: Mutex::default(),
        })
    }

    /// Answers at once those for which `by` returns a reply.
    pub(crate) fn answer_at_once(&self, by: impl FnMut(Request) -> Option<Reply> + Send + 'static) {
        self.at_once.lock().expect("whole").0 = Some(Box::new(by));
    }

    pub(crate) fn account(self: &Arc<Network>) -> Account {
        static ACCOUNT: OnceLock<Account> = OnceLock::new();
        let account = ACCOUNT.get_or_init(|| {
            let env = |name: &str| match name {
                "AZURE_STORAGE_ACCOUNT" => Some("fleet".to_owned()),
                "AZURE_STORAGE_SAS_TOKEN" => Some("sv=2025-01-05&sig=c2lt".to_owned()),
                _ => None,
            };
            Account::find(&env, &AuthOptions::default(), None).expect("an account")
        });
        account.clone().over(Arc::clone(self) as _)
    }

    pub(crate) fn sent(&self) -> Vec<(u64, Request)> {
        std::mem::take(&mut self.wire.lock().expect("whole").out)
    }

    /// Delivers an answer, which may find its request abandoned.
    pub(crate) fn answered(&self, slot: u64, reply: Reply) {
        let waiting = self.wire.lock().expect("whole").waiting.remove(&slot);
        let _ = waiting.map(|waiting| waiting.send(reply));
    }

    fn read(&self, sent: &Sent) -> Request {
        let mut texts = self.texts.lock().expect("whole");
        // Not by name: for a missing header the library makes an error with a backtrace.
        let header = |name| {
            let mut all = sent.headers().iter();
            let found = all.find(|(known, _)| known.as_str() == name);
            found.map(|(_, value)| value.as_str())
        };
        let mut lease = |name| header(name).map(|id| texts.lease(id));
        let etag = || header("if-match").map(|etag| etag.trim_matches('"').parse().expect("ours"));
        let mut pairs = sent.url().query_pairs();
        let about = pairs.find(|(name, _)| name == "comp");
        let about = about.as_ref().map(|(_, about)| about.as_ref());
        match (sent.method(), about, header("x-ms-lease-action")) {
            (Method::Head, None, None) => Request::Look {
                lease: lease("x-ms-lease-id"),
            },
            (Method::Put, Some("lease"), Some("acquire")) => Request::Acquire {
                id: lease("x-ms-proposed-lease-id").expect("proposed by us"),
            },
            (Method::Put, Some("lease"), Some("renew")) => Request::Renew {
                id: lease("x-ms-lease-id").expect("a lease"),
            },
            (Method::Put, Some("lease"), Some("release")) => Request::Release {
                id: lease("x-ms-lease-id").expect("a lease"),
            },
            (Method::Put, Some("lease"), Some("break")) => Request::RestOfBreaking {
                etag: etag().expect("on a condition"),
            },
            (Method::Put, Some("metadata"), None) => {
                let id = lease("x-ms-lease-id").expect("under a lease");
                let ours = sent.headers().iter().filter_map(|(name, value)| {
                    let name = name.as_str().strip_prefix("x-ms-meta-")?;
                    Some((name.to_owned(), value.as_str().to_owned()))
                });
                let (etag, record) = (etag(), texts.record(ours.collect()));
                Request::Set { id, etag, record }
            }
            (Method::Put, None, None) if header("if-none-match") == Some("*") => Request::Create,
            _ => panic!("the model knows no {sent:?}"),
        }
    }

    fn write(&self, request: Request, reply: Reply) -> AsyncRawResponse {
        let texts = self.texts.lock().expect("whole");
        let mut headers = HashMap::new();
        let mut put = |name: &str, value: String| {
            headers.insert(HeaderName::from(name.to_owned()), HeaderValue::from(value));
        };
        // An error that an intermediary sends does not have this header.
        if !matches!(reply, Reply::Error { .. }) {
            put("x-ms-version", "2025-01-05".to_owned());
        }
        let status = match reply {
            Reply::View {
                lease,
                etag,
                record,
            } => {
                let state = match lease {
                    LeaseState::Free => "available",
                    LeaseState::Leased => "leased",
                    LeaseState::Breaking => "breaking",
                };
                put("x-ms-lease-state", state.to_owned());
                put("etag", format!("\"{etag}\""));
                let record = record.and_then(|record| usize::try_from(record.series).ok());
                // No holder so far; without a token the count would begin from the date.
                let unheld = [("trafficcop_token".to_owned(), "0".to_owned())];
                for (name, value) in record.map_or(&unheld[..], |record| &texts.metadata[record]) {
                    put(&format!("x-ms-meta-{name}"), value.clone());
                }
                200
            }
            Reply::Etag(etag) => {
                put("etag", format!("\"{etag}\""));
                if let Request::Acquire { id } | Request::Renew { id } = request {
                    let at = usize::try_from(id - 1).expect("few leases");
                    put("x-ms-lease-id", texts.leases[at].clone());
                }
                match request {
                    Request::Acquire { .. } | Request::Create => 201,
                    _ => 200,
                }
            }
            Reply::Done => 200,
            Reply::Rest(seconds) => {
                put("x-ms-lease-time", seconds.to_string());
                202
            }
            Reply::Refused(code) => {
                let (status, name) = name(code, request);
                put("x-ms-error-code", name.to_owned());
                status
            }
            Reply::Error {
                status,
                retry_after,
            } => {
                if let Some(wish) = retry_after {
                    put("retry-after", wish.as_secs().to_string());
                }
                status
            }
        };
        AsyncRawResponse::from_bytes(status.into(), Headers::from(headers), Bytes::new())
    }
}

/// Returns an error's name at the service, and its status.
fn name(code: Code, request: Request) -> (u16, &'static str) {
    let on_blob = matches!(request, Request::Look { .. } | Request::Set { .. });
    match code {
        Code::BlobNotFound => (404, "BlobNotFound"),
        Code::BlobAlreadyExists => (409, "BlobAlreadyExists"),
        Code::LeaseAlreadyPresent => (409, "LeaseAlreadyPresent"),
        Code::LeaseIsBreaking => (409, "LeaseIsBreakingAndCannotBeAcquired"),
        Code::LeaseIsBrokenAndCannotBeRenewed => (409, "LeaseIsBrokenAndCannotBeRenewed"),
        Code::Mismatch if on_blob => (412, "LeaseIdMismatchWithBlobOperation"),
        Code::Mismatch => (409, "LeaseIdMismatchWithLeaseOperation"),
        Code::NotPresent if on_blob => (412, "LeaseNotPresentWithBlobOperation"),
        Code::NotPresent => (409, "LeaseNotPresentWithLeaseOperation"),
        Code::ConditionNotMet => (412, "ConditionNotMet"),
    }
}

#[async_trait]
impl HttpClient for Network {
    async fn execute_request(&self, sent: &Sent) -> azure_core::Result<AsyncRawResponse> {
        let request = self.read(sent);
        let at_once = match &mut self.at_once.lock().expect("whole").0 {
            Some(by) => by(request),
            None => None,
        };
        if let Some(reply) = at_once {
            return Ok(self.write(request, reply));
        }
        let answer = {
            let mut wire = self.wire.lock().expect("whole");
            let (waiting, answer) = oneshot::channel();
            let slot = wire.slots;
            wire.slots += 1;
            wire.out.push((slot, request));
            wire.waiting.insert(slot, waiting);
            answer
        };
        let reply = answer.await.expect("the network outlives its requests");
        Ok(self.write(request, reply))
    }
}
