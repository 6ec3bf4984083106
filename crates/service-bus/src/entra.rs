//! Tokens of Entra ID, as `$cbs` takes them.

use std::time::Duration;

use async_trait::async_trait;
use trafficcop_azure::TokenCache;
use trafficcop_core::Failure;
use trafficcop_core::clock::Instant;

use crate::{CbsToken, CbsTokens, JWT};

// Less than the connection task waits, so that the error has Entra's reason.
const WAIT: Duration = Duration::from_secs(4);

#[async_trait]
impl CbsTokens for TokenCache {
    /// Returns one token for all queues: it is valid wherever its bearer has rights.
    async fn token(&self, _audience: &str) -> Result<CbsToken, Failure> {
        let token = TokenCache::token(self, Instant::now() + WAIT).await?;
        Ok(CbsToken {
            kind: JWT,
            token,
            good_until: Instant::now() + self.left().unwrap_or_default(),
        })
    }

    fn refused(&self, token: &CbsToken) {
        TokenCache::refused(self, &token.token);
    }
}
