//! A credential for storage: a key, a SAS or a token, and what each does to a request.
//!
//! Made by the account when it has chosen. Must never show what it holds.

use std::sync::Arc;
use std::time::Duration;

use azure_core::credentials::Secret;
use azure_core::http::policies::Policy;
use url::Url;

use super::error::ServiceError;
use super::service_clock::ServiceClock;
use super::shared_key::SharedKey;
#[cfg(feature = "entra")]
use super::token_cache::{Bearer, SharedToken, TokenCache};
use super::transport::Client;
use crate::clock::Instant;

/// How we prove who we are.
#[derive(Clone)]
pub(super) enum Credential {
    /// The account's key, in base64.
    Key(Secret),
    /// A SAS, without the question mark.
    Sas(Secret),
    /// A token of Entra ID.
    #[cfg(feature = "entra")]
    Token(Arc<TokenCache>),
}

impl Credential {
    /// What it is, for the log.
    pub(super) fn kind(&self) -> &'static str {
        match self {
            Credential::Key(_) => "account key",
            Credential::Sas(_) => "SAS",
            #[cfg(feature = "entra")]
            Credential::Token(tokens) => tokens.kind(),
        }
    }

    /// Whether it opens one blob and nothing beside it: a SAS of the service's, not of the account's.
    pub(super) fn is_for_one_blob(&self) -> bool {
        let Credential::Sas(sas) = self else {
            return false;
        };
        let mut pairs = url::form_urlencoded::parse(sas.secret().as_bytes());
        pairs.any(|(name, value)| name == "sr" && value == "b")
    }

    /// Sees to it that there is what requests are to bear; for how long a token is good.
    #[cfg_attr(
        not(feature = "entra"),
        expect(unused_variables, reason = "nobody asks")
    )]
    pub(super) async fn obtain(
        &self,
        give_up_at: Instant,
    ) -> Result<Option<Duration>, ServiceError> {
        match self {
            #[cfg(feature = "entra")]
            Credential::Token(tokens) => match tokens.token(give_up_at).await {
                Ok(_) => Ok(tokens.left()),
                Err(none) if none.refused => Err(ServiceError::Denied(none.why)),
                Err(none) => Err(ServiceError::Unsent(none.why)),
            },
            Credential::Key(_) | Credential::Sas(_) => Ok(None),
        }
    }

    /// `url` as it must be requested: with the SAS, if it is one. A secret.
    pub(super) fn authorised(&self, url: &Url) -> Url {
        let mut url = url.clone();
        if let Credential::Sas(sas) = self {
            url.set_query(Some(sas.secret()));
        }
        url
    }

    /// What signs each try of a request; `name` is the account's.
    pub(super) fn policy(
        &self,
        name: Option<&str>,
        clock: &Arc<ServiceClock>,
    ) -> Option<Arc<dyn Policy>> {
        match self {
            Credential::Key(key) => {
                let clock = Arc::clone(clock);
                Some(Arc::new(SharedKey::new(
                    name?.to_owned(),
                    key.clone(),
                    clock,
                )))
            }
            Credential::Sas(_) => None,
            #[cfg(feature = "entra")]
            Credential::Token(tokens) => Some(Arc::new(Bearer(Arc::clone(tokens)))),
        }
    }

    /// The same, with a vault for the token; `None` where there is no token.
    #[cfg(feature = "entra")]
    pub(super) fn with_shared_token(
        &self,
        shared_token: impl FnOnce() -> Option<Arc<dyn SharedToken>>,
    ) -> Option<Credential> {
        match self {
            Credential::Token(tokens) => Some(Credential::Token(Arc::new(
                tokens.with_shared_token(shared_token()?),
            ))),
            Credential::Key(_) | Credential::Sas(_) => None,
        }
    }

    /// The same for a process that was forked, with a client of its own.
    #[cfg_attr(
        not(feature = "entra"),
        expect(unused_variables, reason = "nobody asks")
    )]
    pub(super) fn in_another_process(&self, client: &Arc<Client>) -> Credential {
        match self {
            #[cfg(feature = "entra")]
            Credential::Token(tokens) => {
                Credential::Token(Arc::new(tokens.in_another_process(Arc::clone(client))))
            }
            other => other.clone(),
        }
    }
}
