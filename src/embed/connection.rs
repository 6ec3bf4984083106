//! [`Connection`]: a program's storage account and credential, if they are not in its environment.
//!
//! It must never show a secret, nor combine a given credential with the environment's.

use std::fmt;
#[cfg(feature = "entra")]
use std::sync::Arc;

#[cfg(feature = "entra")]
use azure_core::credentials::TokenCredential;

use super::worker::WorkerBuilder;
use super::{Builder, Error};
use crate::azure::{
    ACCOUNT, Account, BLOB, Credential, KEY, LIBRARY_METHODS, QUEUE, SAS, STRING, Service, withheld,
};
use crate::host;
use crate::lease::blob;
use crate::queue::storage;

/// Storage account of a lock or a queue, and its credential.
///
/// By default both come from the environment. After any setter, no `AZURE_…` variable is read.
///
/// ```
/// # fn main() -> Result<(), trafficcop::Error> {
/// use trafficcop::{AccountCredential, TrafficCop};
///
/// # let secret = "UseDevelopmentStorage=true";
/// let first = TrafficCop::builder().connection_string(secret);
/// let index = first.blob("locks/index")?;
///
/// # let key = "Zm9vYmFy";
/// let second = TrafficCop::builder().account("contoso", AccountCredential::key(key));
/// let orders = second.queue("orders")?;
/// # Ok(())
/// # }
/// ```
///
/// With a `BlobClient` of `azure_storage_blob`, pass its URL and credential:
/// `TrafficCop::builder().credential(credential).blob(client.url().as_str())`. The requests use this
/// library's client: one that repeats requests would repeat renewals.
#[derive(Clone, Default)]
#[must_use = "it names an account, and does nothing by itself"]
pub struct Connection {
    /// Values by the variable that would have them.
    given: Vec<(&'static str, String)>,
    token: Option<Credential>,
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection").finish_non_exhaustive()
    }
}

impl Connection {
    /// Sets account and credential from a connection string. `UseDevelopmentStorage=true` is Azurite on this
    /// machine.
    pub fn connection_string(self, text: impl Into<String>) -> Connection {
        self.with(STRING, text.into())
    }

    /// Sets the account (in Azure's public cloud) and its credential, such as [`AccountCredential::key`].
    pub fn account(self, name: impl Into<String>, by: impl Into<AccountCredential>) -> Connection {
        self.with(ACCOUNT, name.into()).credential(by)
    }

    /// Sets the credential, for a blob or a queue that is named by its URL.
    pub fn credential(self, by: impl Into<AccountCredential>) -> Connection {
        match by.into().0 {
            Kind::Key(key) => self.with(KEY, key),
            Kind::Sas(sas) => self.with(SAS, sas),
            #[cfg(feature = "entra")]
            Kind::Token(token) => Connection {
                token: Some(Credential::of_program(token)),
                ..self
            },
        }
    }

    /// Prepares to compete for a lease on a blob, `CONTAINER/NAME` or its URL. Creates both if missing. Sends
    /// nothing yet.
    ///
    /// # Errors
    /// If the name is invalid, or account or credential are invalid or contradictory.
    pub fn blob(&self, name: &str) -> Result<Builder, Error> {
        let target = blob::Target::parse(name).map_err(Error::refused)?;
        let account = self.find(&BLOB, target.url())?;
        Ok(Builder::of_blob(target, account))
    }

    /// Prepares to take messages from a queue, by its name or URL. Sends nothing yet.
    ///
    /// # Errors
    /// Like [`Connection::blob`].
    pub fn queue(&self, name: &str) -> Result<WorkerBuilder, Error> {
        let target = storage::Target::parse(name).map_err(Error::refused)?;
        let account = self.find(&QUEUE, target.url())?;
        Ok(WorkerBuilder::of(target, account))
    }

    #[cfg(test)]
    pub(super) fn account_of_a_blob(&self) -> Account {
        self.find(&BLOB, None).expect("an account")
    }

    fn with(mut self, variable: &'static str, value: String) -> Connection {
        self.given.push((variable, value));
        self
    }

    /// Returns the given value, or the environment's if the variable names no account or credential.
    fn variable(&self, name: &str, get: fn(&str) -> Option<String>) -> Option<String> {
        let mut given = self.given.iter().rev();
        match given.find(|(variable, _)| *variable == name) {
            Some((_, value)) => Some(value.clone()),
            None if name.starts_with("AZURE_") || withheld().any(|one| one == name) => None,
            None => get(name),
        }
    }

    fn find(&self, service: &'static Service, url: Option<&url::Url>) -> Result<Account, Error> {
        if self.given.is_empty() && self.token.is_none() {
            let found = Account::of_program(service, &host::variable, url, None);
            return found.map_err(Error::refused);
        }
        let given = |name: &str| self.variable(name, host::variable);
        let found = Account::of_program(service, &given, url, self.token.clone());
        // A program that set no variable needs the names of the methods.
        found.map_err(|why| {
            let words = LIBRARY_METHODS
                .iter()
                .fold(why.to_string(), |text, (variable, word)| {
                    text.replace(variable, word)
                });
            Error::refused(words)
        })
    }
}

/// Credential for a storage account: [`AccountCredential::key`], [`AccountCredential::sas`], or (with
/// `features = ["entra"]`) an `Arc` of any `azure_core::credentials::TokenCredential`.
#[derive(Clone)]
pub struct AccountCredential(Kind);

#[derive(Clone)]
enum Kind {
    Key(String),
    Sas(String),
    #[cfg(feature = "entra")]
    Token(Arc<dyn TokenCredential>),
}

impl fmt::Debug for AccountCredential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("AccountCredential").finish_non_exhaustive()
    }
}

impl AccountCredential {
    /// Creates a credential from an account key in base64.
    pub fn key(key: impl Into<String>) -> AccountCredential {
        AccountCredential(Kind::Key(key.into()))
    }

    /// Creates a credential from a SAS, with or without its question mark.
    pub fn sas(sas: impl Into<String>) -> AccountCredential {
        AccountCredential(Kind::Sas(sas.into()))
    }
}

#[cfg(feature = "entra")]
impl<T: TokenCredential + 'static> From<Arc<T>> for AccountCredential {
    fn from(token: Arc<T>) -> AccountCredential {
        AccountCredential(Kind::Token(token))
    }
}

#[cfg(feature = "entra")]
impl From<Arc<dyn TokenCredential>> for AccountCredential {
    fn from(token: Arc<dyn TokenCredential>) -> AccountCredential {
        AccountCredential(Kind::Token(token))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn given_credential_excludes_those_of_the_environment() {
        let given = Connection::default().account("contoso", AccountCredential::key("Zm9v"));
        let of = |name: &str| given.variable(name, |_| Some("of the environment".to_owned()));
        assert_eq!(of(ACCOUNT).as_deref(), Some("contoso"));
        assert_eq!(of(KEY).as_deref(), Some("Zm9v"));
        for name in withheld().filter(|name| ![ACCOUNT, KEY].contains(name)) {
            assert_eq!(of(name), None, "{name}");
        }
        assert_eq!(of("AZURE_STORAGE_ENDPOINT_SUFFIX"), None);
        assert!(of("HTTPS_PROXY").is_some());
    }
}
