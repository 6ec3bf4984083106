//! Tokens of a credential that the program created itself: any `TokenCredential` of the official libraries.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use azure_core::credentials::TokenCredential;
use azure_core::time::OffsetDateTime;

use super::credential::STORAGE;
use super::identity_http::one_line;
use super::token_cache::{Issued, Issuer, Unissued};
use super::transport::{Client, before};
use trafficcop_core::clock::Instant;

// As for the CLI, which it may start.
const LIMIT: Duration = Duration::from_secs(30);
// For a token that expires at once: this machine's clock is wrong, or the token is old.
const LEFT_AT_LEAST: Duration = Duration::from_secs(60);

pub(super) struct ProgramCredential(pub(super) Arc<dyn TokenCredential>);

#[async_trait]
impl Issuer for ProgramCredential {
    fn kind(&self) -> &'static str {
        "a token credential of the program"
    }

    async fn issue(&self) -> Result<Issued, Unissued> {
        // An error of a foreign credential does not tell whether it is permanent.
        let none = |why: String| Unissued {
            why: format!("no token from the program's credential: {why}"),
            refused: false,
        };
        let asked = self.0.get_token(&[STORAGE.scope], None);
        match before(Instant::now() + LIMIT, asked).await {
            Some(Ok(token)) => {
                let left = token.expires_on - OffsetDateTime::now_utc();
                let left = Duration::try_from(left).unwrap_or_default();
                Ok(Issued {
                    secret: token.token,
                    left: left.max(LEFT_AT_LEAST),
                })
            }
            Some(Err(error)) => Err(none(one_line(&error.to_string()))),
            None => Err(none(format!("no answer within {} s", LIMIT.as_secs()))),
        }
    }

    fn in_another_process(&self, _: Arc<Client>) -> Arc<dyn Issuer> {
        Arc::new(ProgramCredential(Arc::clone(&self.0)))
    }
}
