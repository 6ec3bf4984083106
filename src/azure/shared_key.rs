//! Signs requests with an account key (the scheme `SharedKey`, service version 2009-09-19 and
//! later), because the official client does not; and dates them by the service's own clock.
//!
//! Called by the client's pipeline once for each try. Must never log or return the key, and must
//! never repeat what the service may have done: only a request that was refused because of its date
//! is sent once more. The service's clock must never judge a lease.
//!
//! A SAS is not dated by us: when it begins and ends is between its maker and the service.

use std::cmp::Ordering as Order;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use azure_core::credentials::Secret;
use azure_core::hmac::hmac_sha256;
use azure_core::http::policies::{Policy, PolicyResult};
use azure_core::http::{AsyncRawResponse, Context, Request, Url};
use azure_core::time::{OffsetDateTime, parse_rfc7231, to_rfc7231};

use super::transport::header;
use crate::clock::Instant;

// A date that was closer to the service's than this was not the reason of a refusal: the service
// allows fifteen minutes. A second try for a wrong key would only double its refusals.
const DATE_MATTERS: Duration = Duration::from_secs(60);
// Nothing was received of the service's clock yet.
const UNKNOWN: i64 = i64::MIN;
// A date is in whole seconds.
const SECOND: i64 = 1000;
// A third of what the service allows: time to mend the clock before other tools fail by it.
const WORTH_A_WORD: Duration = Duration::from_secs(300);

/// The policy that dates and signs each try.
pub(crate) struct SharedKey {
    account: String,
    key: Secret,
    clock: Arc<ServiceClock>,
}

impl SharedKey {
    pub(crate) fn new(account: String, key: Secret, clock: Arc<ServiceClock>) -> SharedKey {
        SharedKey {
            account,
            key,
            clock,
        }
    }

    /// Dates the request and signs it.
    fn sign(&self, request: &mut Request, date: &OffsetDateTime) -> azure_core::Result<()> {
        // Anew for each try: the date of the try before may be just what it was refused for.
        request.insert_header("x-ms-date", to_rfc7231(date));
        let headers: BTreeMap<String, String> = request
            .headers()
            .iter()
            .map(|(name, value)| (name.as_str().to_lowercase(), value.as_str().to_owned()))
            .collect();
        let text = string_to_sign(
            &self.account,
            request.method().as_str(),
            request.url(),
            &headers,
            request.body().len().unwrap_or(0),
        );
        let signature = hmac_sha256(&text, &self.key)?;
        request.insert_header(
            "authorization",
            format!("SharedKey {}:{signature}", self.account),
        );
        Ok(())
    }

    /// Learns the service's time from its answer. Whether a request of this date was refused for it.
    fn was_misdated(&self, sent: Instant, date: OffsetDateTime, answer: &AsyncRawResponse) -> bool {
        let header = |name| header(answer.headers(), name);
        // What stands between us and the service has a clock of its own.
        if header("x-ms-version").is_none() && header("x-ms-request-id").is_none() {
            return false;
        }
        let Some(theirs) = header("date").and_then(|text| parse_rfc7231(text).ok()) else {
            return false;
        };
        self.clock.learn(sent, theirs);
        u16::from(answer.status()) == 403
            && header("x-ms-error-code") == Some("AuthenticationFailed")
            && (self.clock.date() - date).unsigned_abs() > DATE_MATTERS
    }
}

impl fmt::Debug for SharedKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedKey").finish_non_exhaustive()
    }
}

#[async_trait]
impl Policy for SharedKey {
    async fn send(
        &self,
        ctx: &Context,
        request: &mut Request,
        next: &[Arc<dyn Policy>],
    ) -> PolicyResult {
        let (sent, date) = (Instant::now(), self.clock.date());
        self.sign(request, &date)?;
        let answer = next[0].send(ctx, request, &next[1..]).await?;
        if !self.was_misdated(sent, date, &answer) {
            return Ok(answer);
        }
        // Refused before anything was done. Once more, now that the service has told its time; the
        // time limit round the whole exchange stands.
        let (sent, date) = (Instant::now(), self.clock.date());
        self.sign(request, &date)?;
        let answer = next[0].send(ctx, request, &next[1..]).await?;
        self.was_misdated(sent, date, &answer);
        Ok(answer)
    }
}

/// The text that is signed. Header names are lower-case in `headers`.
fn string_to_sign(
    account: &str,
    method: &str,
    url: &Url,
    headers: &BTreeMap<String, String>,
    body_length: u64,
) -> String {
    let header = |name: &str| headers.get(name).map_or("", |value| value.trim());
    // Since version 2015-02-21 a length of zero is written as nothing.
    let length = match body_length {
        0 => String::new(),
        some => some.to_string(),
    };
    let mut text = [
        method,
        header("content-encoding"),
        header("content-language"),
        &length,
        header("content-md5"),
        header("content-type"),
        // The line of the header `Date`: empty, because the date is x-ms-date.
        "",
        header("if-modified-since"),
        header("if-match"),
        header("if-none-match"),
        header("if-unmodified-since"),
        header("range"),
    ]
    .join("\n");
    text.push('\n');
    let ours = |name: &String| name.starts_with("x-ms-");
    let mut ours: Vec<_> = headers.iter().filter(|(name, _)| ours(name)).collect();
    ours.sort_by(|(one, _), (other, _)| in_their_order(one, other));
    for (name, value) in ours {
        text.push_str(&format!("{name}:{}\n", value.trim()));
    }
    // Of an emulator the account is in the path as well, and so is there twice: the service's rule.
    text.push_str(&format!("/{account}{}", url.path()));
    let mut query: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (name, value) in url.query_pairs() {
        query
            .entry(name.to_lowercase())
            .or_default()
            .push(value.into_owned());
    }
    for (name, mut values) in query {
        values.sort();
        text.push_str(&format!("\n{name}:{}", values.join(",")));
    }
    text
}

fn in_their_order(one: &str, other: &str) -> Order {
    // The service sorts names like words and not like bytes: an underscore comes before the digits.
    // Names of other people's metadata have both, and a wrong order is a wrong signature.
    let weights = |name: &str| name.replace('_', " ");
    weights(one).cmp(&weights(other))
}

/// What time it is by the service's clock, as far as that is known: a request whose date differs
/// from the service's by more than fifteen minutes is refused.
#[derive(Debug)]
pub(crate) struct ServiceClock {
    // The service's time less CLOCK_BOOTTIME, in milliseconds. Against the clock that counts
    // suspend, because the wall clock may be set while we run.
    ahead: AtomicI64,
    // People were told that the machine's clock is off.
    told: AtomicBool,
}

impl ServiceClock {
    /// Nothing is known: the machine's wall clock is believed until the first answer.
    pub(crate) fn new() -> ServiceClock {
        ServiceClock {
            ahead: AtomicI64::new(UNKNOWN),
            told: AtomicBool::new(false),
        }
    }

    /// As another process of this machine knew it ([`ServiceClock::ahead`]): a guardian that gives a
    /// lease back is spared a refusal, for which it may have no time.
    pub(crate) fn of_another(ahead: Option<i64>) -> ServiceClock {
        ServiceClock {
            ahead: AtomicI64::new(ahead.unwrap_or(UNKNOWN)),
            // By the other process.
            told: AtomicBool::new(true),
        }
    }

    /// The service's time less CLOCK_BOOTTIME, in milliseconds, once it is known.
    pub(crate) fn ahead(&self) -> Option<i64> {
        Some(self.ahead.load(Ordering::Relaxed)).filter(|ahead| *ahead != UNKNOWN)
    }

    /// The present date by the service's clock.
    pub(crate) fn date(&self) -> OffsetDateTime {
        let Some(ahead) = self.ahead() else {
            return OffsetDateTime::now_utc();
        };
        let unix = millis(Instant::now()).saturating_add(ahead);
        OffsetDateTime::from_unix_timestamp_nanos(i128::from(unix) * 1_000_000)
            .unwrap_or_else(|_| OffsetDateTime::now_utc())
    }

    /// Takes in the date of an answer that has just come, to a request that was sent at `sent`.
    pub(crate) fn learn(&self, sent: Instant, date: OffsetDateTime) {
        let now = Instant::now();
        let wall = unix(OffsetDateTime::now_utc()) - millis(now);
        let known = self.ahead().unwrap_or(wall);
        let ahead = corrected(known, sent, now, unix(date));
        self.ahead.store(ahead, Ordering::Relaxed);
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

/// What is known of the service's clock after an answer with this date, sent and received at these
/// moments.
fn corrected(known: i64, sent: Instant, received: Instant, date: i64) -> i64 {
    // The date was written between the two, so an answer that waited for an hour until we read it
    // says next to nothing, and corrects nothing that may be true.
    known.clamp(date - millis(received), date + SECOND - millis(sent))
}

fn millis(at: Instant) -> i64 {
    i64::try_from(at.as_nanos() / 1_000_000).unwrap_or(i64::MAX)
}

fn unix(date: OffsetDateTime) -> i64 {
    i64::try_from(date.unix_timestamp_nanos() / 1_000_000).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(list: &[(&str, &str)]) -> BTreeMap<String, String> {
        list.iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect()
    }

    #[test]
    fn the_example_of_the_services_own_documentation() {
        // "Authorize with Shared Key", the Get Container Metadata example.
        let url = Url::parse(
            "https://myaccount.blob.core.windows.net/mycontainer?restype=container&comp=metadata&timeout=20",
        )
        .expect("a URL");
        let headers = headers(&[
            ("x-ms-date", "Fri, 26 Jun 2015 23:39:12 GMT"),
            ("x-ms-version", "2015-02-21"),
            ("accept", "application/xml"),
        ]);
        assert_eq!(
            string_to_sign("myaccount", "GET", &url, &headers, 0),
            "GET\n\n\n\n\n\n\n\n\n\n\n\nx-ms-date:Fri, 26 Jun 2015 23:39:12 GMT\n\
             x-ms-version:2015-02-21\n/myaccount/mycontainer\ncomp:metadata\nrestype:container\n\
             timeout:20"
        );
    }

    #[test]
    fn conditions_length_and_an_account_in_the_path_take_their_places() {
        let url = Url::parse("http://127.0.0.1:10000/devstoreaccount1/c/a%20b?comp=lease&B=2&b=1")
            .expect("a URL");
        let headers = headers(&[
            ("if-match", "\"0x1\""),
            ("content-type", "text/plain"),
            ("x-ms-meta-a", " padded "),
        ]);
        assert_eq!(
            string_to_sign("devstoreaccount1", "PUT", &url, &headers, 12),
            "PUT\n\n\n12\n\ntext/plain\n\n\n\"0x1\"\n\n\n\nx-ms-meta-a:padded\n\
             /devstoreaccount1/devstoreaccount1/c/a%20b\nb:1,2\ncomp:lease"
        );
    }

    #[test]
    fn an_underscore_comes_before_a_digit_as_the_service_sorts_it() {
        let url =
            Url::parse("https://acct.blob.core.windows.net/c/b?comp=metadata").expect("a URL");
        let names = [
            "x-ms-meta-a1",
            "x-ms-meta-a_b",
            "x-ms-meta-ab",
            "x-ms-meta-a",
        ];
        let headers = headers(&names.map(|name| (name, "v")));
        let text = string_to_sign("acct", "PUT", &url, &headers, 0);
        let order: Vec<&str> = text.lines().filter(|l| l.starts_with("x-ms")).collect();
        let wanted = [
            "x-ms-meta-a:v",
            "x-ms-meta-a_b:v",
            "x-ms-meta-a1:v",
            "x-ms-meta-ab:v",
        ];
        assert_eq!(order, wanted);
    }

    #[test]
    fn the_signature_is_hmac_sha256_of_the_text_under_the_decoded_key() {
        // RFC 4231, test case 2: the key "Jefe".
        let signature = hmac_sha256("what do ya want for nothing?", &Secret::new("SmVmZQ=="))
            .expect("a signature");
        assert_eq!(signature, "W9zBRr9gdU5qBCQmCJV1x1oAPwidJzmDnexYuWTsOEM=");
    }

    #[test]
    fn debug_shows_neither_key_nor_account() {
        let policy = SharedKey::new(
            "someaccount".into(),
            Secret::new("c2VjcmV0"),
            Arc::new(ServiceClock::new()),
        );
        assert_eq!(format!("{policy:?}"), "SharedKey { .. }");
    }

    const HOUR: i64 = 3_600_000;

    fn at(seconds: u64) -> Instant {
        Instant::ZERO + Duration::from_secs(seconds)
    }

    #[test]
    fn a_right_clock_is_left_as_it_is() {
        // At 100 s after the boot it is 1,000,100.7 s: the date says 1,000,100.
        let known = 1_000_000_700;
        assert_eq!(corrected(known, at(100), at(101), 1_000_101_000), known);
    }

    #[test]
    fn a_clock_that_is_off_is_corrected_to_what_the_answer_proves() {
        let right = 1_000_000_000;
        for off in [HOUR, -HOUR] {
            let known = corrected(right + off, at(100), at(102), right + 101_000);
            assert!(known.abs_diff(right) <= 2000, "{off}: {known}");
        }
    }

    #[test]
    fn an_answer_that_waited_for_us_corrects_nothing_that_may_be_true() {
        let right = 1_000_000_000;
        // Written at 100 s, read at 3700 s: we were stopped, or the machine slept.
        assert_eq!(corrected(right, at(100), at(3700), right + 100_000), right);
        let off = corrected(right + 2 * HOUR, at(100), at(3700), right + 100_000);
        assert_eq!(off, right + SECOND);
    }

    #[test]
    fn what_is_not_known_is_the_wall_clock_and_what_is_known_goes_on_by_itself() {
        let clock = ServiceClock::new();
        let wall = || unix(OffsetDateTime::now_utc());
        assert_eq!(clock.ahead(), None);
        assert!(unix(clock.date()).abs_diff(wall()) < 60_000);
        clock.learn(
            Instant::now(),
            OffsetDateTime::now_utc() + Duration::from_secs(3600),
        );
        assert!(unix(clock.date()).abs_diff(wall() + HOUR) < 60_000);
        let another = ServiceClock::of_another(clock.ahead());
        assert!(unix(another.date()).abs_diff(wall() + HOUR) < 60_000);
    }
}
