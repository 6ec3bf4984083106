//! Clock of the storage service, and the policy that accepts only the answer to its own request. That clock may
//! refuse an answer, but never make a lease longer.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use azure_core::Uuid;
use azure_core::error::{Error, ErrorKind};
use azure_core::http::headers::{CLIENT_REQUEST_ID, Headers};
use azure_core::http::policies::{Policy, PolicyResult};
use azure_core::http::{Context, Request};
use azure_core::time::{OffsetDateTime, parse_rfc7231};

use super::error::StaleAnswer;
use super::transport::{Client, header};
use trafficcop_core::clock::Instant;
use trafficcop_core::service_time::{DatedAnswer, ServiceTime, millis};
use trafficcop_core::util::lock;

// A third of what the service allows: time to correct the clock.
const WORTH_A_WORD: Duration = Duration::from_secs(300);

/// Gives the request a new id, which its answer repeats. Call it before signing.
pub(super) fn name_anew(request: &mut Request) {
    request.insert_header(CLIENT_REQUEST_ID, Uuid::new_v4().to_string());
}

#[derive(Debug)]
pub(super) struct OwnAnswers {
    pub(super) clock: Arc<ServiceClock>,
    pub(super) client: Arc<Client>,
}

#[async_trait]
impl Policy for OwnAnswers {
    async fn send(
        &self,
        ctx: &Context,
        request: &mut Request,
        next: &[Arc<dyn Policy>],
    ) -> PolicyResult {
        let sent = Instant::now();
        let before = lock(&self.clock.last_sent).replace(sent);
        let answer = next[0].send(ctx, request, &next[1..]).await?;
        let own = request.headers().get_optional_str(&CLIENT_REQUEST_ID);
        let status = u16::from(answer.status());
        if self.is_own(own, status, answer.headers(), sent, before) {
            return Ok(answer);
        }
        // A connection that is out of step stays so for its whole life.
        self.client.hang_up();
        Err(Error::new(ErrorKind::Io, StaleAnswer))
    }
}

impl OwnAnswers {
    fn is_own(
        &self,
        own: Option<&str>,
        status: u16,
        headers: &Headers,
        sent: Instant,
        before: Option<Instant>,
    ) -> bool {
        // A proxy or portal on the way has another clock, and no ids.
        if header(headers, "x-ms-version").is_none() && header(headers, "x-ms-request-id").is_none()
        {
            return true;
        }
        let echo = headers.get_optional_str(&CLIENT_REQUEST_ID).map(str::trim);
        let is_named =
            echo.is_some_and(|echo| own.is_some_and(|own| echo.eq_ignore_ascii_case(own)));
        if echo.is_some() && !is_named {
            return false;
        }
        let Some(date) = header(headers, "date").and_then(|text| parse_rfc7231(text).ok()) else {
            return true;
        };
        let answer = DatedAnswer {
            sent,
            before,
            received: Instant::now(),
            date: unix(date),
        };
        // A refusal for a wrong date must teach the right one, even if the service's clock was set back.
        let misdated =
            status == 403 && header(headers, "x-ms-error-code") == Some("AuthenticationFailed");
        let mut time = lock(&self.clock.time);
        let is_own = if is_named || misdated {
            time.learn(&answer);
            true
        } else {
            // An error makes no lease longer.
            time.admits(&answer) || status >= 300
        };
        drop(time);
        self.clock.tell_how_far_off();
        is_own
    }
}

/// The service's time, as far as it is known: the service refuses dates that differ by more than fifteen
/// minutes.
#[derive(Debug, Default)]
pub struct ServiceClock {
    // Relative to CLOCK_BOOTTIME: the wall clock may be set.
    time: Mutex<ServiceTime>,
    last_sent: Mutex<Option<Instant>>,
    told: AtomicBool,
}

impl ServiceClock {
    /// Creates a clock from another process's [`ServiceClock::ahead`]: a guardian may have no time for a
    /// refusal.
    pub fn of_another(ahead: Option<i64>) -> ServiceClock {
        let known = ahead.map(|ahead| ServiceTime::known(ahead, Instant::now()));
        ServiceClock {
            time: Mutex::new(known.unwrap_or_default()),
            last_sent: Mutex::default(),
            // The other process has logged it.
            told: AtomicBool::new(true),
        }
    }

    /// Returns the service's time minus CLOCK_BOOTTIME, in milliseconds.
    pub fn ahead(&self) -> Option<i64> {
        lock(&self.time).ahead()
    }

    /// Returns the date by the service's clock; before the first answer, by the wall clock.
    pub fn date(&self) -> OffsetDateTime {
        let Some(ahead) = self.ahead() else {
            return OffsetDateTime::now_utc();
        };
        let unix = millis(Instant::now()).saturating_add(ahead);
        OffsetDateTime::from_unix_timestamp_nanos(i128::from(unix) * 1_000_000)
            .unwrap_or_else(|_| OffsetDateTime::now_utc())
    }

    fn tell_how_far_off(&self) {
        let Some(ahead) = self.ahead() else {
            return;
        };
        let wall = unix(OffsetDateTime::now_utc()) - millis(Instant::now());
        let off = Duration::from_millis(wall.abs_diff(ahead));
        if off <= WORTH_A_WORD {
            self.told.store(false, Ordering::Relaxed);
        } else if !self.told.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                "this machine's clock is {} minutes {} the storage service's; requests are dated \
                 by the service's",
                off.as_secs() / 60,
                if wall > ahead { "ahead of" } else { "behind" },
            );
        }
    }
}

fn unix(date: OffsetDateTime) -> i64 {
    i64::try_from(date.unix_timestamp_nanos() / 1_000_000).unwrap_or(i64::MAX)
}
