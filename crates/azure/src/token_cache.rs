//! The token of Entra ID that requests bear: had from an issuer, renewed in the background long
//! before it ends, and handed on to the guardian.
//!
//! Asked by the policy that puts it into each request ([`Bearer`]). Must never make a request wait for
//! the issuer while there is a token that is still good, and must never show a token.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use azure_core::credentials::Secret;
use azure_core::error::{Error, ErrorKind};
use azure_core::http::policies::{Policy, PolicyResult};
use azure_core::http::{Context, Request};
use tokio::sync::Notify;
use tokio::task::AbortHandle;

use super::transport::{Client, before, header};
use trafficcop_core::Failure;
use trafficcop_core::clock::Instant;
use trafficcop_core::retry::Backoff;
use trafficcop_core::util::{SharedMemory, lock};

// How long a request waits for the first token: less than it may take itself (5 s), so that what
// it says is why there is no token, and not that there was no answer in time.
const WAIT: Duration = Duration::from_secs(4);
// The first pause after an issuer failed; it doubles.
const PAUSE: Duration = Duration::from_secs(1);
// While no token is good the lease runs out: the next renewal has to find one. While one is good
// there is time, and an issuer in trouble is spared.
const LONGEST_IN_NEED: Duration = Duration::from_secs(5);
const LONGEST: Duration = Duration::from_secs(60);
// A token that the service refused is not renewed more often than this: where it is the right that
// is missing, another token has it no more.
const SPACING: Duration = Duration::from_secs(5);
// tokio's timers stand still while the machine sleeps, so the clock is looked at this often.
const LOOK: Duration = Duration::from_secs(30);

/// A token as it was issued.
pub(super) struct Issued {
    pub(super) secret: Secret,
    // How long it is good, from now on. Not until when: that is by a wall clock, which may jump.
    pub(super) left: Duration,
}

/// Why there is none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unissued {
    // For a person; no secret.
    pub(super) why: String,
    // The issuer said no, and would say so again.
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

/// Who issues tokens.
#[async_trait]
pub(super) trait Issuer: Send + Sync {
    fn kind(&self) -> &'static str;
    /// Asks for a new token, under a time limit of its own.
    async fn issue(&self) -> Result<Issued, Unissued>;
    /// The same for a process that was forked, with a client of its own.
    fn in_another_process(&self, client: Arc<Client>) -> Arc<dyn Issuer>;
}

#[derive(Clone)]
struct Token {
    secret: Secret,
    until: Instant,
}

#[derive(Default)]
struct State {
    token: Option<Token>,
    error: Option<Unissued>,
    // Attempts that have ended.
    attempts: u64,
    // Attempts that have failed since the last that did not.
    failures: u32,
    asked: Instant,
    // When the issuer is asked next.
    next: Instant,
}

struct Shared {
    state: Mutex<State>,
    // An attempt has ended.
    changed: Notify,
    // The time to ask next is another one, or has come while tokio's timers stood still.
    look: Notify,
    shared_token: Option<Arc<dyn SharedMemory>>,
}

/// A token, and the task that renews it.
// The library's credentials have a cache of their own, which would not do: five minutes before a
// token's end it asks for another with its lock held, so that every request waits for an issuer that
// hangs, and fails with it although the token that it has is still good.
pub struct TokenCache {
    issuer: Arc<dyn Issuer>,
    shared: Arc<Shared>,
    renewing: Mutex<Option<AbortHandle>>,
}

impl TokenCache {
    /// Nothing is asked for before the first request.
    pub(super) fn new(
        issuer: Arc<dyn Issuer>,
        shared_token: Option<Arc<dyn SharedMemory>>,
    ) -> TokenCache {
        TokenCache {
            issuer,
            shared: Arc::new(Shared {
                state: Mutex::default(),
                changed: Notify::new(),
                look: Notify::new(),
                shared_token,
            }),
            renewing: Mutex::default(),
        }
    }

    /// The same, with memory that it shares with the processes that will be forked.
    pub(super) fn with_shared_token(&self, shared_token: Arc<dyn SharedMemory>) -> TokenCache {
        TokenCache::new(Arc::clone(&self.issuer), Some(shared_token))
    }

    /// The same for this process, which was forked: it begins with the token that was shared last.
    pub(super) fn in_another_process(&self, client: Arc<Client>) -> TokenCache {
        // Ours is a copy of what there was at the fork, which comes before the first token.
        let tokens = TokenCache::new(self.issuer.in_another_process(client), None);
        let kept = self
            .shared
            .shared_token
            .as_ref()
            .and_then(|shared_token| shared_token.take());
        if let Some(token) = kept.as_deref().and_then(Token::unpack) {
            let mut state = tokens.shared.state();
            // One request, or two: asking for another token is only for where this one has ended.
            state.next = token.until;
            state.token = Some(token);
        }
        tokens
    }

    /// What the credential is, for the log.
    pub(super) fn kind(&self) -> &'static str {
        self.issuer.kind()
    }

    /// How long the present token is good, if there is one.
    pub fn left(&self) -> Option<Duration> {
        let now = Instant::now();
        let state = self.shared.state();
        state.good(now).map(|token| token.until.since(now))
    }

    /// The token; waits only where none is good, and no longer than until `give_up_at`.
    pub async fn token(&self, give_up_at: Instant) -> Result<Secret, Unissued> {
        self.keep_renewing();
        let seen = {
            let now = Instant::now();
            let state = self.shared.state();
            let due = now >= state.next;
            if due {
                // Should the renewal have overslept.
                self.shared.look.notify_one();
            }
            if let Some(token) = state.good(now) {
                return Ok(token.secret.clone());
            }
            match &state.error {
                // What was said a moment ago is said again: to wait for the next attempt would take
                // the time in which the store itself could be tried again.
                Some(error) if !due => return Err(error.clone()),
                _ => state.attempts,
            }
        };
        let ended = async {
            loop {
                let changed = self.shared.changed.notified();
                let mut changed = std::pin::pin!(changed);
                // Registered before the look, so that nothing is missed in between.
                changed.as_mut().enable();
                {
                    let state = self.shared.state();
                    if let Some(token) = state.good(Instant::now()) {
                        return Ok(token.secret.clone());
                    }
                    if state.attempts != seen {
                        return Err(state.error.clone());
                    }
                }
                changed.await;
            }
        };
        let late = || Unissued {
            why: format!("no token yet from {}", self.kind()),
            refused: false,
        };
        match before(give_up_at, ended).await {
            Some(Ok(secret)) => Ok(secret),
            Some(Err(error)) => Err(error.unwrap_or_else(late)),
            None => Err(late()),
        }
    }

    /// The service refused this token: another one is asked for soon, whatever time it has left.
    pub fn refused(&self, secret: &Secret) {
        let mut state = self.shared.state();
        if state
            .token
            .as_ref()
            .is_some_and(|token| token.secret.secret() == secret.secret())
        {
            state.next = state.next.min(state.asked + SPACING);
            self.shared.look.notify_one();
        }
    }

    /// Begins to renew, in the runtime of whoever asks first.
    fn keep_renewing(&self) {
        // Not when it is made: there is no runtime yet then, and a guardian has one of its own.
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

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    fn settle(&self, kind: &str, answer: Result<Issued, Unissued>) {
        let now = Instant::now();
        let mut state = self.state();
        state.attempts += 1;
        match answer {
            Ok(issued) => {
                let token = Token {
                    secret: issued.secret,
                    // Not to the last moment: a request takes its time.
                    until: now + (issued.left - (issued.left / 20).min(Duration::from_secs(10))),
                };
                if state.error.take().is_some() && state.attempts > 1 {
                    tracing::info!("got a new token of {kind} again");
                } else {
                    tracing::debug!("a new token of {kind}, good for {:?}", issued.left);
                }
                if let Some(shared_token) = &self.shared_token {
                    shared_token.put(&token.pack());
                }
                state.failures = 0;
                // At half of its time: an issuer may be away for the other half (half an hour,
                // usually) without anybody noticing.
                state.next = now + (issued.left / 2).max(PAUSE);
                state.token = Some(token);
            }
            Err(error) => {
                let left = state.good(now).map(|token| token.until.since(now));
                let longest = left.map_or(LONGEST_IN_NEED, |_| LONGEST);
                // Said once, and not at each attempt.
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
                // At the end of the one we have at the latest: from there on each attempt counts.
                let pause = left.map_or(pause, |left| pause.min(left.max(PAUSE)));
                state.next = now + pause;
                state.failures += 1;
            }
        }
        // Whoever is woken looks at it at once.
        drop(state);
        self.changed.notify_waiters();
    }
}

/// Asks the issuer, for as long as the runtime lives.
async fn renew(shared: Arc<Shared>, issuer: Arc<dyn Issuer>) {
    loop {
        loop {
            let next = shared.state().next;
            let left = next.since(Instant::now());
            if left.is_zero() {
                break;
            }
            tokio::select! {
                () = tokio::time::sleep(left.min(LOOK)) => {}
                () = shared.look.notified() => {}
            }
        }
        shared.state().asked = Instant::now();
        let answer = issuer.issue().await;
        shared.settle(issuer.kind(), answer);
    }
}

impl State {
    fn good(&self, now: Instant) -> Option<&Token> {
        self.token.as_ref().filter(|token| now < token.until)
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

/// The policy that puts the token into each try.
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
        // For each try, and not for each client: a client lives for weeks, a token for an hour.
        let token = self.0.token(Instant::now() + WAIT).await.map_err(|none| {
            // Nothing was sent, so nothing can have been done.
            let kind = match none.refused {
                true => ErrorKind::Credential,
                false => ErrorKind::Connection,
            };
            Error::with_message(kind, none.why)
        })?;
        request.insert_header("authorization", format!("Bearer {}", token.secret()));
        let answer = next[0].send(ctx, request, &next[1..]).await?;
        // Of the other codes of 403 the right is what is missing, and no token would help.
        if matches!(
            (
                u16::from(answer.status()),
                header(answer.headers(), "x-ms-error-code")
            ),
            (401, _)
                | (
                    403,
                    Some("AuthenticationFailed" | "InvalidAuthenticationInfo")
                )
        ) {
            self.0.refused(&token);
        }
        Ok(answer)
    }
}

#[cfg(test)]
mod tests;
