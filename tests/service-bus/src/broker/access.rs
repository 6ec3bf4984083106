//! Tokens put to `$cbs`. Signatures are recomputed from the key, so that a client that signs
//! wrongly fails as it would at the real service.

use std::time::{Duration, Instant};

use super::namespace::{path_of, wall_millis};
use super::sha256::hmac;

/// Accepted tokens.
#[derive(Clone, Debug)]
pub struct Access {
    /// Name of the shared key.
    pub key_name: String,
    /// The shared key.
    pub key: String,
    /// The only accepted bearer token (of Entra); `None`: any that is not empty.
    pub bearer: Option<String>,
    /// Whether a link needs a token for its entity.
    pub required: bool,
    /// Delay of the clock that judges tokens: they are accepted for this long after their end.
    pub behind: Duration,
}

impl Default for Access {
    fn default() -> Self {
        Self {
            key_name: "RootManageSharedAccessKey".into(),
            key: "c3RhbmQtaW4ga2V5IG9mIG5vIHdvcnRo".into(),
            bearer: None,
            required: true,
            behind: Duration::ZERO,
        }
    }
}

#[derive(Debug)]
pub(crate) struct Granted {
    /// Path that it is for, with everything below.
    pub(crate) path: String,
    pub(crate) until: Option<Instant>,
}

impl Granted {
    pub(crate) fn covers(&self, address: &str, now: Instant) -> bool {
        self.until.is_none_or(|until| now < until) && below(address, &self.path)
    }
}

fn below(address: &str, path: &str) -> bool {
    match address.strip_prefix(path) {
        Some(rest) => path.is_empty() || rest.is_empty() || rest.starts_with('/'),
        None => false,
    }
}

impl Access {
    /// Signs a percent-encoded resource until `expiry`, in seconds since 1970.
    #[must_use]
    pub fn sign(&self, resource: &str, expiry: i64) -> String {
        let signature = base64(&hmac(
            self.key.as_bytes(),
            format!("{resource}\n{expiry}").as_bytes(),
        ));
        let signature = signature
            .replace('+', "%2B")
            .replace('/', "%2f")
            .replace('=', "%3D");
        format!(
            "SharedAccessSignature sr={resource}&sig={signature}&se={expiry}&skn={}",
            self.key_name
        )
    }

    /// Judges a token for an audience; `expiration` is in milliseconds since 1970.
    pub(crate) fn judge(
        &self,
        kind: &str,
        audience: &str,
        token: &str,
        expiration: Option<i64>,
        now: Instant,
    ) -> Result<Granted, String> {
        let path = path_of(audience);
        // Microsoft's Python client calls an SAS `jwt`, too.
        if !matches!(kind, "servicebus.windows.net:sastoken" | "jwt") {
            return Err(format!("InvalidTokenType: '{kind}' is no type of a token."));
        }
        let expiration = match token.strip_prefix("SharedAccessSignature ") {
            Some(fields) => Some(self.judge_signature(fields, &path)?),
            None if kind != "jwt" => {
                return Err("MalformedToken: no shared access signature.".into());
            }
            None if token.is_empty() || self.bearer.as_ref().is_some_and(|it| it != token) => {
                return Err("InvalidToken: the bearer token is not known.".into());
            }
            None => expiration,
        };
        let until = match expiration {
            None => None,
            Some(at) => Some(match u64::try_from(at - self.wall()) {
                Ok(left) if left > 0 => now + Duration::from_millis(left),
                _ => return Err("ExpiredToken: The token is expired.".into()),
            }),
        };
        Ok(Granted { path, until })
    }

    fn wall(&self) -> i64 {
        wall_millis() - i64::try_from(self.behind.as_millis()).unwrap_or(0)
    }

    /// Checks `sr=…&sig=…&se=…&skn=…`; returns the end in milliseconds since 1970.
    fn judge_signature(&self, fields: &str, path: &str) -> Result<i64, String> {
        let field = |name: &str| {
            fields
                .split('&')
                .find_map(|field| field.strip_prefix(name)?.strip_prefix('='))
                .ok_or_else(|| format!("MalformedToken: the token has no '{name}'."))
        };
        let (resource, expiry) = (field("sr")?, field("se")?);
        if unescape(field("skn")?) != self.key_name {
            return Err("InvalidSignature: The name of the key is not known.".into());
        }
        let expected = hmac(
            self.key.as_bytes(),
            format!("{resource}\n{expiry}").as_bytes(),
        );
        if unescape(field("sig")?) != base64(&expected) {
            return Err("InvalidSignature: The token has an invalid signature.".into());
        }
        if !below(path, &path_of(&unescape(resource))) {
            return Err("InvalidAudience: The token is for another resource.".into());
        }
        let seconds: i64 = expiry
            .parse()
            .map_err(|_| "MalformedToken: 'se' is no number.".to_owned())?;
        Ok(seconds.saturating_mul(1000))
    }
}

fn unescape(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((&byte, tail)) = rest.split_first() {
        let code = tail
            .get(..2)
            .and_then(|hex| std::str::from_utf8(hex).ok())
            .and_then(|hex| u8::from_str_radix(hex, 16).ok());
        match code {
            Some(code) if byte == b'%' => {
                bytes.push(code);
                rest = &tail[2..];
            }
            _ => {
                bytes.push(byte);
                rest = tail;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for chunk in bytes.chunks(3) {
        let group = chunk
            .iter()
            .fold(0_u32, |all, byte| all << 8 | u32::from(*byte));
        let group = group << (8 * (3 - chunk.len()));
        for digit in 0..4 {
            if digit <= chunk.len() {
                text.push(DIGITS[(group >> (18 - 6 * digit)) as usize & 63].into());
            } else {
                text.push('=');
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAS: &str = "servicebus.windows.net:sastoken";

    /// The value is from openssl's HMAC-SHA-256.
    #[test]
    fn a_signature_is_what_another_implementation_computes() {
        let text = b"sb%3a%2f%2flocalhost%2fjobs\n1900000000";
        let key = Access::default().key;
        assert_eq!(
            base64(&hmac(key.as_bytes(), text)),
            "n70+5nBfSapY36Qt5taOyxRdzaEBXeSdBkzSJ+VhbXE="
        );
    }

    #[test]
    fn a_token_is_taken_for_its_resource_and_what_is_below_it() {
        let (access, now) = (Access::default(), Instant::now());
        let later = wall_millis() / 1000 + 3600;
        let token = access.sign("sb%3a%2f%2flocalhost%2fjobs", later);
        let judge = |audience, token: &str| access.judge(SAS, audience, token, None, now);
        let granted = judge("sb://localhost:5671/Jobs", &token).expect("it is for this queue");
        assert!(granted.covers("jobs/$management", now));
        assert!(!granted.covers("jobs2", now));
        assert!(!granted.covers("jobs", now + Duration::from_secs(3601)));
        for (audience, token, why) in [
            ("sb://localhost/other", token.clone(), "InvalidAudience"),
            (
                "sb://localhost/jobs",
                token.replace("sig=", "sig=A"),
                "InvalidSignature",
            ),
            (
                "sb://localhost/jobs",
                token.replace("skn=", "skn=x"),
                "InvalidSignature",
            ),
            (
                "sb://localhost/jobs",
                token.replace("&se=", "&no="),
                "MalformedToken",
            ),
            ("sb://localhost/jobs", "opaque".into(), "MalformedToken"),
            (
                "sb://localhost/jobs",
                access.sign("sb%3a%2f%2flocalhost", 1),
                "ExpiredToken",
            ),
        ] {
            let refused = judge(audience, &token).expect_err(why);
            assert!(refused.starts_with(why), "{refused}");
        }
    }

    #[test]
    fn a_bearer_token_is_taken_by_its_text_and_until_its_time() {
        let access = Access {
            bearer: Some("a.b.c".into()),
            ..Access::default()
        };
        let now = Instant::now();
        let audience = "sb://localhost/jobs";
        let soon = wall_millis() + 60_000;
        assert!(
            access
                .judge("jwt", audience, "a.b.c", Some(soon), now)
                .is_ok()
        );
        assert!(
            access
                .judge("jwt", audience, "a.b.d", Some(soon), now)
                .is_err()
        );
        assert!(
            access
                .judge("jwt", audience, "a.b.c", Some(1), now)
                .is_err()
        );
        assert!(access.judge("swt", audience, "a.b.c", None, now).is_err());
    }
}
