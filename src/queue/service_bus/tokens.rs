//! What proves to `$cbs` who we are: shared access signatures. Entra's tokens are made elsewhere,
//! through the same trait.
//!
//! Called by the connection task, for each connection and before a token ends. Must never
//! show a key, a signature or a token.

use std::time::Duration;

use async_trait::async_trait;
use azure_core::credentials::Secret;
use azure_core::hmac::hmac_sha256;
use time::OffsetDateTime;
use url::form_urlencoded::byte_serialize;

use crate::clock::Instant;
use crate::core::Failure;

/// How long our signatures are good.
const LIFE: Duration = Duration::from_secs(3600);

/// What `$cbs` calls a shared access signature.
pub const SAS: &str = "servicebus.windows.net:sastoken";
/// What `$cbs` calls a token of Entra ID.
pub const JWT: &str = "jwt";

/// A token as `$cbs` takes it.
#[derive(Clone, Debug)]
pub struct CbsToken {
    /// [`SAS`] or [`JWT`].
    pub kind: &'static str,
    /// The token itself: a secret.
    pub token: Secret,
    /// Until when it is good, as far as its maker knows.
    pub good_until: Instant,
}

/// Who makes tokens.
#[async_trait]
pub trait CbsTokens: Send + Sync {
    /// A token for this audience (`sb://HOST/ENTITY`), under a time limit of its own.
    ///
    /// # Errors
    /// Why there is none; `Fatal` if there will never be one.
    async fn token(&self, audience: &str) -> Result<CbsToken, Failure>;
}

/// Shared access signatures.
#[derive(Clone, Debug)]
pub enum SasTokens {
    /// Made from a key.
    Key {
        /// The key's name (`SharedAccessKeyName`).
        name: String,
        /// The key (`SharedAccessKey`), as it is written: its text is the key, not what base64
        /// would make of it.
        key: Secret,
    },
    /// Ready-made (`SharedAccessSignature`): good for as long as its maker meant.
    Signature(Secret),
}

#[async_trait]
impl CbsTokens for SasTokens {
    async fn token(&self, audience: &str) -> Result<CbsToken, Failure> {
        let (now, date) = (Instant::now(), OffsetDateTime::now_utc().unix_timestamp());
        let (token, left) = match self {
            SasTokens::Key { name, key } => {
                let expiry = date.saturating_add(LIFE.as_secs() as i64);
                (sign(audience, expiry, name, key)?, LIFE)
            }
            SasTokens::Signature(text) => {
                let expiry = expiry(text.secret()).unwrap_or(i64::MAX);
                let left = expiry.saturating_sub(date).clamp(0, i64::from(u32::MAX));
                (text.clone(), Duration::from_secs(left as u64))
            }
        };
        Ok(CbsToken {
            kind: SAS,
            token,
            good_until: now + left,
        })
    }
}

/// The signature for `audience` that ends at `expiry`, in seconds since 1970.
fn sign(audience: &str, expiry: i64, name: &str, key: &Secret) -> Result<Secret, Failure> {
    let resource: String = byte_serialize(audience.as_bytes()).collect();
    // The library takes its keys in base64, and this one is meant as it is written.
    let key = Secret::new(azure_core::base64::encode(key.secret()));
    let signature =
        hmac_sha256(&format!("{resource}\n{expiry}"), &key).map_err(|why| Failure::Fatal {
            why: format!("the shared access key cannot sign: {why}"),
            denied: false,
        })?;
    let signature: String = byte_serialize(signature.as_bytes()).collect();
    let name: String = byte_serialize(name.as_bytes()).collect();
    Ok(Secret::new(format!(
        "SharedAccessSignature sr={resource}&sig={signature}&se={expiry}&skn={name}"
    )))
}

/// When a ready-made signature ends, in seconds since 1970.
fn expiry(text: &str) -> Option<i64> {
    let fields = text.split_once(' ').map_or(text, |(_, fields)| fields);
    fields
        .split('&')
        .find_map(|field| field.strip_prefix("se="))?
        .parse()
        .ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signature_is_what_another_implementation_computes() {
        // printf 'sb%%3A%%2F%%2Flocalhost%%2Fjobs\n1900000000' |
        //     openssl dgst -sha256 -hmac c3RhbmQtaW4ga2V5IG9mIG5vIHdvcnRo -binary | base64
        let key = Secret::new("c3RhbmQtaW4ga2V5IG9mIG5vIHdvcnRo");
        let token = sign("sb://localhost/jobs", 1_900_000_000, "a key", &key).expect("signed");
        assert_eq!(
            token.secret(),
            "SharedAccessSignature sr=sb%3A%2F%2Flocalhost%2Fjobs&\
             sig=RaW79Mr2%2BpFtem0iPsv6pLtMw78HCspgoAHaJO19Zi8%3D&se=1900000000&\
             skn=a+key"
        );
    }

    #[tokio::test]
    async fn tokens_last_as_long_as_they_say() {
        let now = Instant::now();
        let ours = SasTokens::Key {
            name: "n".into(),
            key: Secret::new("k"),
        };
        let token = ours.token("sb://h/q").await.expect("a token");
        assert_eq!(token.kind, SAS);
        assert!(token.good_until >= now + LIFE);
        let soon = OffsetDateTime::now_utc().unix_timestamp() + 100;
        for (text, least, most) in [
            (
                format!("SharedAccessSignature sr=x&sig=y&se={soon}&skn=z"),
                90,
                101,
            ),
            ("SharedAccessSignature sr=x&sig=y&se=1&skn=z".into(), 0, 1),
            (
                "SharedAccessSignature sr=x&sig=y&skn=z".into(),
                1 << 31,
                u64::MAX,
            ),
        ] {
            let ready = SasTokens::Signature(Secret::new(text.clone()));
            let token = ready.token("sb://h/q").await.expect("a token");
            let left = token.good_until.since(now).as_secs();
            assert!((least..=most).contains(&left), "{text}: {left}");
            assert_eq!(token.token.secret(), text);
        }
    }

    #[test]
    fn nothing_shows_a_secret() {
        let key = SasTokens::Key {
            name: "name".into(),
            key: Secret::new("s3cret"),
        };
        let ready = SasTokens::Signature(Secret::new("s3cret"));
        let token = CbsToken {
            kind: SAS,
            token: Secret::new("s3cret"),
            good_until: Instant::now(),
        };
        assert!(!format!("{key:?} {ready:?} {token:?}").contains("s3cret"));
    }
}
