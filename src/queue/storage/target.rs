//! Which queue: its name or its URL, by Azure's naming rules.
//!
//! Called when the command line is made sense of. Must never show a URL's query: it is a secret.

use std::fmt;

use url::Url;

use crate::azure::{AccountError, is_label, shown, split_url};

// What a poison queue is called unless it is named: as Azure Functions calls it.
const POISON: &str = "-poison";

/// The queue that is worked on. `Debug` shows no secret.
#[derive(Clone, PartialEq, Eq)]
pub struct Target {
    queue: String,
    url: Option<Url>,
}

/// Why a text names no queue. One line each, what to do included.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TargetError {
    /// The name is against the rules.
    #[error(
        "`{0}` cannot be a queue: 3 to 63 lower-case letters, digits and single hyphens, beginning \
         and ending with a letter or digit"
    )]
    Name(String),
    /// With `-poison` behind it the name is too long.
    #[error(
        "the queue's name is {0} characters long, so `-poison` does not fit behind it (63 at \
         most): name the queue for what is put aside with --poison-queue"
    )]
    Poison(usize),
    /// What is put aside would come again at once.
    #[error("`{0}` cannot be its own poison queue: name another with --poison-queue")]
    Itself(String),
    /// Not a URL.
    #[error("the queue's URL cannot be read: {0}")]
    Url(String),
    /// A URL of something else.
    #[error(
        "the URL is not a queue's: it is https://ACCOUNT.queue.core.windows.net/QUEUE, and nothing \
         behind the name"
    )]
    NoQueue,
    /// A URL with a query that is no SAS.
    #[error("the queue's URL has a query that is no SAS (`sig=` is missing): leave the query out")]
    Query,
    /// The URL's address cannot be used.
    #[error(transparent)]
    Account(#[from] AccountError),
}

impl Target {
    /// Reads a queue's name, or its URL, which may carry a SAS.
    ///
    /// # Errors
    /// What is wrong, by Azure's rules for names.
    pub fn parse(text: &str) -> Result<Target, TargetError> {
        if !text.contains("://") {
            check(text)?;
            return Ok(Target {
                queue: text.to_owned(),
                url: None,
            });
        }
        let url = Url::parse(text).map_err(|error| TargetError::Url(error.to_string()))?;
        // No service takes one here, so it is a mistake, and it may hold a password.
        if !url.username().is_empty() || url.password().is_some() {
            return Err(TargetError::Url("it has a user name in it".to_owned()));
        }
        let split = split_url(&url)?;
        // Left there it would be part of every request of ours, and change what that asks for.
        if url.query().is_some() && split.sas.is_none() {
            return Err(TargetError::Query);
        }
        // The portal shows the endpoints side by side: another one's URL is the likely mistake.
        let elsewhere = [".blob.", ".file.", ".table.", ".dfs."];
        let host = url.host_str().unwrap_or_default();
        let queue = split.path.strip_suffix('/').unwrap_or(&split.path);
        if queue.is_empty() || queue.contains('/') || elsewhere.iter().any(|s| host.contains(s)) {
            return Err(TargetError::NoQueue);
        }
        check(queue)?;
        Ok(Target {
            queue: queue.to_owned(),
            url: Some(url),
        })
    }

    /// The queue's name.
    #[must_use]
    pub fn queue(&self) -> &str {
        &self.queue
    }

    /// The URL, if it was given as one: for [`crate::azure::Account::find_queue`]. May hold a
    /// secret.
    #[must_use]
    pub fn url(&self) -> Option<&Url> {
        self.url.as_ref()
    }

    /// The name of the queue for what is put aside: the one `named`, else `QUEUE-poison`.
    ///
    /// # Errors
    /// If that can be none.
    pub fn poison(&self, named: Option<&str>) -> Result<String, TargetError> {
        let Some(name) = named else {
            // Said with the flag that helps: nobody typed the name that is too long.
            let name = format!("{}{POISON}", self.queue);
            return match check(&name) {
                Ok(()) => Ok(name),
                Err(_) => Err(TargetError::Poison(self.queue.len())),
            };
        };
        check(name)?;
        if name == self.queue {
            return Err(TargetError::Itself(name.to_owned()));
        }
        Ok(name.to_owned())
    }
}

impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Target({})", self.queue)
    }
}

/// The address of a queue under `endpoint`.
pub(super) fn address(endpoint: &Url, queue: &str) -> Url {
    let mut url = endpoint.clone();
    // Azurite has the account's name in the path, in front of the queue's.
    let base = url.path().trim_end_matches('/').to_owned();
    url.set_path(&format!("{base}/{queue}"));
    url
}

fn check(name: &str) -> Result<(), TargetError> {
    // The service would say 400 to the first request, and not which rule was broken.
    if is_label(name) {
        return Ok(());
    }
    Err(TargetError::Name(shown(name)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_urls_are_read() {
        for (text, queue) in [
            ("jobs", "jobs"),
            ("a-1-b", "a-1-b"),
            ("https://acct.queue.core.windows.net/jobs", "jobs"),
            ("https://acct.queue.core.windows.net/jobs/", "jobs"),
            ("http://127.0.0.1:10001/devstoreaccount1/jobs", "jobs"),
            (
                "https://acct.queue.core.windows.net/jobs?sig=s3cret",
                "jobs",
            ),
        ] {
            let target = Target::parse(text).expect(text);
            assert_eq!(target.queue(), queue);
            assert_eq!(target.url().is_some(), text.contains("://"));
            assert!(!format!("{target:?}").contains("s3cret"));
        }
        let emulator = Url::parse("http://127.0.0.1:10001/devstoreaccount1").expect("a URL");
        assert_eq!(
            address(&emulator, "jobs").as_str(),
            "http://127.0.0.1:10001/devstoreaccount1/jobs"
        );
        let public = Url::parse("https://acct.queue.core.windows.net").expect("a URL");
        assert_eq!(
            address(&public, "jobs").as_str(),
            "https://acct.queue.core.windows.net/jobs"
        );
    }

    #[test]
    fn what_azure_would_refuse_is_refused() {
        let long = "x".repeat(64);
        for bad in [
            "",
            "ab",
            "Jobs",
            "jobs_1",
            "-jobs",
            "jobs-",
            "jo--bs",
            "jobs/messages",
            "jobs\nsecond line",
            &long,
            "https://acct.queue.core.windows.net/",
            "https://acct.queue.core.windows.net/jobs/messages",
            "https://acct.queue.core.windows.net/Jobs",
            "https://acct.queue.core.windows.net/jobs?comp=metadata",
            "https://u:p@acct.queue.core.windows.net/jobs",
            "https://acct.blob.core.windows.net/jobs",
            "http://127.0.0.1:10001/devstoreaccount1",
            "http://acct.queue.core.windows.net/jobs",
            "ftp://h.example/jobs",
            "http://[/x",
            "https:/acct.queue.core.windows.net/jobs?sig=s3cret",
        ] {
            let said = Target::parse(bad).expect_err(bad).to_string();
            assert!(!said.contains('\n') && !said.contains("s3cret"), "{said}");
        }
        assert!(Target::parse(&"x".repeat(63)).is_ok());
    }

    #[test]
    fn the_poison_queue_has_a_name_that_fits() {
        let of = |name: &str| Target::parse(name).expect(name);
        assert_eq!(of("jobs").poison(None).as_deref(), Ok("jobs-poison"));
        assert_eq!(of("jobs").poison(Some("aside")).as_deref(), Ok("aside"));
        assert_eq!(of(&"x".repeat(56)).poison(None).map(|n| n.len()), Ok(63));
        let long = of(&"x".repeat(57));
        let said = long.poison(None).expect_err("too long");
        assert_eq!(said, TargetError::Poison(57));
        assert!(said.to_string().contains("--poison-queue"), "{said}");
        assert!(long.poison(Some("aside")).is_ok());
        assert!(of("jobs").poison(Some("Aside")).is_err());
        let itself = of("jobs").poison(Some("jobs"));
        assert_eq!(itself, Err(TargetError::Itself("jobs".into())));
    }
}
