//! Cache of the Entra ID token: renewed in the background long before it expires, and passed on to the
//! guardian. While a token is valid no request waits for the issuer.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use azure_core::credentials::Secret;
use azure_core::error::{Error, ErrorKind};
use azure_core::http::policies::{Policy, PolicyResult};
use azure_core::http::{Context, Request};
use tokio::sync::{Notify, watch};
use tokio::task::AbortHandle;

use super::transport::{Client, before, header};
use trafficcop_core::Failure;
use trafficcop_core::clock::Instant;
use trafficcop_core::retry::Backoff;
use trafficcop_core::util::{SharedMemory, lock};

// Less than a request's own limit (5 s), so that its error says why there is no token.
const WAIT: Duration = Duration::from_secs(4);
const PAUSE: Duration = Duration::from_secs(1);
// Without a valid token the lease runs out: the next renewal must find one.
const LONGEST_IN_NEED: Duration = Duration::from_secs(5);
const LONGEST: Duration = Duration::from_secs(60);
// Least time between renewals of a refused token: another may lack the same right.
const SPACING: Duration = Duration::from_secs(5);
// tokio's timers stop while the machine sleeps.
const CLOCK_INTERVAL: Duration = Duration::from_secs(30);

pub(super) struct Issued {
    pub(super) secret: Secret,
    // No point in time: that would be by a wall clock, which may jump.
    pub(super) left: Duration,
}

/// Reason why there is no token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unissued {
    pub(super) why: String,
    pub(super) refused: bool,
}

impl From<Unissued> for Failure {
    fn from(none: Unissued) -> Failure {
        match none.refused {
            true => Failure::Fatal {
                why: none.why,
                denied: true,
            },
            false => Failure::Transient {
                why: none.why,
                retry_after: None,
            },
        }
    }
}

#[async_trait]
pub(super) trait Issuer: Send + Sync {
    fn kind(&self) -> &'static str;
    /// Requests a new token, within its own time limit.
    async fn issue(&self) -> Result<Issued, Unissued>;
    /// Returns the issuer for a forked process.
    fn in_another_process(&self, client: Arc<Client>) -> Arc<dyn Issuer>;
}

#[derive(Clone)]
struct Token {
    secret: Secret,
    until: Instant,
}

#[derive(Default)]
struct CacheState {
    token: Option<Token>,
    error: Option<Unissued>,
    failures: u32,
    asked: Instant,
    next: Instant,
}

struct SharedCache {
    state: Mutex<CacheState>,
    // Sends at the end of each attempt, with the state locked.
    settled: watch::Sender<()>,
    // The next attempt moved, or came while tokio's timers did not run.
    look: Notify,
    shared_token: Option<Arc<dyn SharedMemory>>,
}

/// A token, and the task that renews it.
// The library's own cache requests another token five minutes before the end while it holds its lock. So every
// request waits for an issuer that hangs, although its token is still valid.
pub struct TokenCache {
    issuer: Arc<dyn Issuer>,
    shared: Arc<SharedCache>,
    renewing: Mutex<Option<AbortHandle>>,
}

impl TokenCache {
    pub(super) fn new(
        issuer: Arc<dyn Issuer>,
        shared_token: Option<Arc<dyn SharedMemory>>,
    ) -> TokenCache {
        TokenCache {
            issuer,
            shared: Arc::new(SharedCache {
                state: Mutex::default(),
                settled: watch::Sender::default(),
                look: Notify::new(),
                shared_token,
            }),
            renewing: Mutex::default(),
        }
    }

    /// Returns a cache that shares its token with processes that will be forked.
    pub(super) fn with_shared_token(&self, shared_token: Arc<dyn SharedMemory>) -> TokenCache {
        TokenCache::new(Arc::clone(&self.issuer), Some(shared_token))
    }

    /// Returns a cache for this forked process, beginning with the shared token.
    pub(super) fn in_another_process(&self, client: Arc<Client>) -> TokenCache {
        // The fork copied the state from before the first token.
        let tokens = TokenCache::new(self.issuer.in_another_process(client), None);
        let kept = self
            .shared
            .shared_token
            .as_ref()
            .and_then(|kept| kept.take());
        if let Some(token) = kept.as_deref().and_then(Token::unpack) {
            let mut state = tokens.shared.state();
            // One request or two need no new token before this one expires.
            state.next = token.until;
            state.token = Some(token);
        }
        tokens
    }

    pub(super) fn kind(&self) -> &'static str {
        self.issuer.kind()
    }

    /// Returns how long the current token is still valid, if there is one.
    pub fn left(&self) -> Option<Duration> {
        self.shared.state().left(Instant::now())
    }

    /// Returns the token; without a valid one waits until `give_up_at` at most.
    pub async fn token(&self, give_up_at: Instant) -> Result<Secret, Unissued> {
        self.keep_renewing();
        let mut settled = {
            let now = Instant::now();
            let state = self.shared.state();
            let due = now >= state.next;
            if due {
                // In case the renewal slept too long.
                self.shared.look.notify_one();
            }
            if let Some(token) = state.good(now) {
                return Ok(token.secret.clone());
            }
            match &state.error {
                // Do not wait: the caller can use the time to try the store again.
                Some(error) if !due => return Err(error.clone()),
                _ => self.shared.settled.subscribe(),
            }
        };
        let ended = before(give_up_at, settled.changed()).await;
        let state = self.shared.state();
        match (ended, state.good(Instant::now()), &state.error) {
            (Some(_), Some(token), _) => Ok(token.secret.clone()),
            (Some(_), None, Some(error)) => Err(error.clone()),
            _ => Err(Unissued {
                why: format!("no token yet from {}", self.kind()),
                refused: false,
            }),
        }
    }

    /// Requests another token soon: the service refused this one.
    pub fn refused(&self, secret: &Secret) {
        let mut state = self.shared.state();
        let present = state.token.as_ref().map(|token| token.secret.secret());
        if present == Some(secret.secret()) {
            state.next = state.next.min(state.asked + SPACING);
            self.shared.look.notify_one();
        }
    }

    fn keep_renewing(&self) {
        // At creation there is no runtime yet.
        let mut renewing = lock(&self.renewing);
        if renewing.as_ref().is_none_or(AbortHandle::is_finished) {
            let work = renew(Arc::clone(&self.shared), Arc::clone(&self.issuer));
            *renewing = Some(tokio::spawn(work).abort_handle());
        }
    }
}

impl Drop for TokenCache {
    fn drop(&mut self) {
        let renewing = self.renewing.get_mut();
        if let Some(task) = renewing.unwrap_or_else(PoisonError::into_inner) {
            task.abort();
        }
    }
}

impl SharedCache {
    fn state(&self) -> MutexGuard<'_, CacheState> {
        lock(&self.state)
    }

    fn settle(&self, kind: &str, answer: Result<Issued, Unissued>) {
        let now = Instant::now();
        let mut state = self.state();
        match answer {
            Ok(issued) => {
                let token = Token {
                    secret: issued.secret,
                    // A request takes time.
                    until: now + (issued.left - (issued.left / 20).min(Duration::from_secs(10))),
                };
                if state.error.take().is_some() {
                    tracing::info!("got a new token of {kind} again");
                } else {
                    tracing::debug!("a new token of {kind}, good for {:?}", issued.left);
                }
                if let Some(shared_token) = &self.shared_token {
                    shared_token.put(&token.pack());
                }
                state.failures = 0;
                // An issuer may be absent for the other half (usually half an hour).
                state.next = now + (issued.left / 2).max(PAUSE);
                state.token = Some(token);
            }
            Err(error) => {
                let left = state.left(now);
                let longest = left.map_or(LONGEST_IN_NEED, |_| LONGEST);
                if state.error.is_none()
                    && let Some(left) = left
                {
                    tracing::warn!(
                        "no new token: {}; the present one is good for another {} s, retrying",
                        error.why,
                        left.as_secs()
                    );
                }
                state.error = Some(error);
                let pause = Backoff::new(PAUSE, longest).after(state.failures);
                // From the current token's end on each attempt counts.
                let pause = left.map_or(pause, |left| pause.min(left.max(PAUSE)));
                state.next = now + pause;
                state.failures += 1;
            }
        }
        self.settled.send_replace(());
    }
}

async fn renew(shared: Arc<SharedCache>, issuer: Arc<dyn Issuer>) {
    loop {
        loop {
            let next = shared.state().next;
            let left = next.since(Instant::now());
            if left.is_zero() {
                break;
            }
            tokio::select! {
                () = tokio::time::sleep(left.min(CLOCK_INTERVAL)) => {}
                () = shared.look.notified() => {}
            }
        }
        shared.state().asked = Instant::now();
        let answer = issuer.issue().await;
        shared.settle(issuer.kind(), answer);
    }
}

impl CacheState {
    fn good(&self, now: Instant) -> Option<&Token> {
        self.token.as_ref().filter(|token| now < token.until)
    }

    fn left(&self, now: Instant) -> Option<Duration> {
        self.good(now).map(|token| token.until.since(now))
    }
}

impl Token {
    fn pack(&self) -> Vec<u8> {
        let mut bytes = self.until.as_nanos().to_le_bytes().to_vec();
        bytes.extend_from_slice(self.secret.secret().as_bytes());
        bytes
    }

    fn unpack(bytes: &[u8]) -> Option<Token> {
        let (until, secret) = bytes.split_first_chunk()?;
        Some(Token {
            secret: Secret::new(String::from_utf8(secret.to_vec()).ok()?),
            until: Instant::from_nanos(u64::from_le_bytes(*until)),
        })
    }
}

impl fmt::Debug for TokenCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TokenCache").finish_non_exhaustive()
    }
}

/// Policy that puts the token into each try.
#[derive(Debug)]
pub(super) struct Bearer(pub(super) Arc<TokenCache>);

#[async_trait]
impl Policy for Bearer {
    async fn send(
        &self,
        ctx: &Context,
        request: &mut Request,
        next: &[Arc<dyn Policy>],
    ) -> PolicyResult {
        if request.url().scheme() != "https" {
            let why = "a token is never sent over plain http: use https";
            return Err(Error::with_message(ErrorKind::Other, why));
        }
        let token = self.0.token(Instant::now() + WAIT).await.map_err(|none| {
            // Nothing was sent.
            let kind = match none.refused {
                true => ErrorKind::Credential,
                false => ErrorKind::Connection,
            };
            Error::with_message(kind, none.why)
        })?;
        request.insert_header("authorization", format!("Bearer {}", token.secret()));
        let answer = next[0].send(ctx, request, &next[1..]).await?;
        let code = header(answer.headers(), "x-ms-error-code");
        // Other codes of 403 mean a missing right: no token would help.
        let unknown = ["AuthenticationFailed", "InvalidAuthenticationInfo"].map(Some);
        let status = u16::from(answer.status());
        if status == 401 || (status == 403 && unknown.contains(&code)) {
            self.0.refused(&token);
        }
        Ok(answer)
    }
}

#[cfg(test)]
mod tests;
