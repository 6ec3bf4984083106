//! Signature of requests with an account key (`SharedKey`, service version 2009-09-19 and later), dated by the
//! service's clock. Only a request that was refused because of its date is sent once more.

use std::cmp::Ordering as Order;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use azure_core::credentials::Secret;
use azure_core::hmac::hmac_sha256;
use azure_core::http::policies::{Policy, PolicyResult};
use azure_core::http::{AsyncRawResponse, Context, Request, Url};
use azure_core::time::{OffsetDateTime, to_rfc7231};

use super::service_clock::{ServiceClock, name_anew};
use super::transport::header;

// A smaller difference is not the reason: the service allows fifteen minutes. A wrong key must not be tried
// twice.
const DATE_MATTERS: Duration = Duration::from_secs(60);

/// Policy that dates and signs each try.
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

    fn sign(&self, request: &mut Request, date: &OffsetDateTime) -> azure_core::Result<()> {
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

    fn was_misdated(&self, date: OffsetDateTime, answer: &AsyncRawResponse) -> bool {
        u16::from(answer.status()) == 403
            && header(answer.headers(), "x-ms-error-code") == Some("AuthenticationFailed")
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
        let date = self.clock.date();
        self.sign(request, &date)?;
        let answer = next[0].send(ctx, request, &next[1..]).await?;
        if !self.was_misdated(date, &answer) {
            return Ok(answer);
        }
        // Nothing was done, and now the service's time is known. The time limit stays.
        name_anew(request);
        self.sign(request, &self.clock.date())?;
        next[0].send(ctx, request, &next[1..]).await
    }
}

/// Builds the text to sign; names in `headers` are lower-case.
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
        // Not `Date`: the date is in x-ms-date.
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
    // With an emulator the account is in the path, too, and so appears twice.
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
    // The service sorts an underscore before the digits; a wrong order is a wrong signature.
    let weights = |name: &str| name.replace('_', " ");
    weights(one).cmp(&weights(other))
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
    fn string_to_sign_matches_the_services_documentation() {
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
    fn conditions_length_and_path_account_have_their_places() {
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
    fn underscore_sorts_before_digits() {
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
    fn signature_is_hmac_sha256_with_the_decoded_key() {
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
            Arc::default(),
        );
        assert_eq!(format!("{policy:?}"), "SharedKey { .. }");
    }
}
