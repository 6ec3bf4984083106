//! Name of a blob: `CONTAINER/NAME` or a URL, by Azure's rules.
//!
//! It must never show a URL's query: that is a secret.

use std::fmt;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use url::Url;

use trafficcop_azure::{AccountError, below, is_label, shown, typed_url};
use trafficcop_core::util::is_unprintable;

/// Blob that is the lock. `Debug` shows no secret.
#[derive(Clone, PartialEq, Eq)]
pub struct Target {
    container: String,
    name: String,
    url: Option<Url>,
}

/// Reason why a text names no blob.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TargetError {
    /// No name, or no container.
    #[error("'{0}' is no blob: write CONTAINER/NAME, as in locks/nightly, or the blob's URL")]
    Incomplete(String),
    /// A URL whose path is no text.
    #[error("the blob's URL cannot be read: its path is not UTF-8")]
    Path,
    /// Bad container's name.
    #[error(
        "'{0}' cannot be a container: 3 to 63 lower-case letters, digits and single hyphens, \
         beginning and ending with a letter or digit (or $root)"
    )]
    Container(String),
    /// Bad name.
    #[error("the blob's name {0}")]
    Name(&'static str),
    /// A URL that cannot be used.
    #[error(transparent)]
    Account(#[from] AccountError),
}

impl Target {
    /// Reads `CONTAINER/NAME` or a URL, which may carry a SAS.
    ///
    /// # Errors
    /// If it breaks Azure's rules for names.
    pub fn parse(text: &str) -> Result<Target, TargetError> {
        let (path, url) = take_apart(text)?;
        let (container, name) = match path.split_once('/') {
            Some((container, name)) => (container.to_owned(), name.to_owned()),
            // A name alone in a URL lies in the root container.
            None if url.is_some() => ("$root".to_owned(), path),
            None => return Err(TargetError::Incomplete(shown(text).to_owned())),
        };
        if container.is_empty() || name.is_empty() {
            return Err(TargetError::Incomplete(shown(text).to_owned()));
        }
        check_container(&container)?;
        check_name(&container, &name)?;
        Ok(Target {
            container,
            name,
            url,
        })
    }

    /// Reads the place to list: `CONTAINER`, `CONTAINER/PREFIX` or a URL of either.
    ///
    /// # Errors
    /// If it breaks Azure's rules for names.
    pub fn of_listing(text: &str) -> Result<Target, TargetError> {
        let (path, url) = take_apart(text)?;
        let (container, prefix) = path.split_once('/').unwrap_or((&path, ""));
        check_container(container)?;
        if prefix.chars().any(is_unprintable) {
            return Err(TargetError::Name("has a control character"));
        }
        Ok(Target {
            container: container.to_owned(),
            name: prefix.to_owned(),
            url,
        })
    }

    /// Returns the container's name.
    #[must_use]
    pub fn container(&self) -> &str {
        &self.container
    }

    /// Returns the blob's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the URL that named the blob, perhaps with a secret.
    #[must_use]
    pub fn url(&self) -> Option<&Url> {
        self.url.as_ref()
    }

    /// Returns the blob `NAME` followed by `suffix`.
    ///
    /// # Errors
    /// If the name becomes too long.
    pub fn with_suffix(&self, suffix: &str) -> Result<Target, TargetError> {
        let name = format!("{}{suffix}", self.name);
        check_name(&self.container, &name)?;
        Ok(Target {
            name,
            ..self.clone()
        })
    }

    /// Returns the command that ends another program's lease; `lock` is the blob's address.
    pub(super) fn how_to_break(&self, lock: &str) -> String {
        let name = match &self.url {
            Some(_) => lock.to_owned(),
            None => self.title(),
        };
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/._:-%".contains(&byte);
        let quote = if name.bytes().all(is_plain) { "" } else { "\"" };
        format!("trafficcop break --blob {quote}{name}{quote}")
    }

    pub(super) fn title(&self) -> String {
        format!("{}/{}", self.container, self.name)
    }

    pub(super) fn named(&self, name: &str) -> Target {
        Target {
            name: name.to_owned(),
            ..self.clone()
        }
    }

    pub(super) fn container_url(&self, endpoint: &Url) -> Url {
        below(endpoint, &self.container)
    }

    /// Returns the blob's address.
    pub fn blob_url(&self, endpoint: &Url) -> Url {
        let mut url = self.container_url(endpoint);
        // The URL type leaves a `%` unchanged, and `a%2Fb` would be another blob.
        let path = format!("{}/{}", url.path(), encode(&self.name));
        url.set_path(&path);
        url
    }
}

/// Returns the decoded path below the account, and the URL if it is one.
fn take_apart(text: &str) -> Result<(String, Option<Url>), TargetError> {
    if !text.contains("://") {
        return Ok((text.to_owned(), None));
    }
    let (url, split) = typed_url(text, "the blob's URL")?;
    let path = decode(&split.path).ok_or(TargetError::Path)?;
    Ok((path, Some(url)))
}

impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Target({}/{})", self.container, self.name)
    }
}

fn check_container(name: &str) -> Result<(), TargetError> {
    if name == "$root" || is_label(name) {
        Ok(())
    } else {
        Err(TargetError::Container(shown(name)))
    }
}

fn check_name(container: &str, name: &str) -> Result<(), TargetError> {
    let wrong = |why| Err(TargetError::Name(why));
    if name.chars().count() > 1024 {
        return wrong("is longer than 1024 characters");
    }
    if name.split('/').count() > 254 {
        return wrong("has more than 254 parts");
    }
    // URL libraries and proxies drop such endings: two names would be one lock.
    if name.ends_with('.') || name.ends_with('/') {
        return wrong("must not end with '.' or '/'");
    }
    if name
        .split('/')
        .any(|part| part.is_empty() || part.ends_with('.'))
    {
        return wrong(
            "has an empty part, or one that ends with '.': take one like locks/singleton",
        );
    }
    if name.chars().any(is_unprintable) || name.contains('\\') {
        return wrong("has a control character or a backslash in it");
    }
    if container == "$root" && name.contains('/') {
        return wrong("must not have a '/' in the container $root");
    }
    Ok(())
}

fn encode(name: &str) -> String {
    const RESERVED: AsciiSet = NON_ALPHANUMERIC
        .remove(b'-')
        .remove(b'.')
        .remove(b'_')
        .remove(b'~')
        .remove(b'/');
    utf8_percent_encode(name, &RESERVED).to_string()
}

pub(super) fn decode(text: &str) -> Option<String> {
    let decoded = percent_decode_str(text).decode_utf8().ok()?;
    Some(decoded.into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_urls_are_read() {
        let plain = Target::parse("locks/a/b c").expect("a target");
        assert_eq!((plain.container(), plain.name()), ("locks", "a/b c"));
        let endpoint = Url::parse("https://acct.blob.core.windows.net").expect("a URL");
        assert_eq!(
            plain.blob_url(&endpoint).as_str(),
            "https://acct.blob.core.windows.net/locks/a/b%20c"
        );
        let url = Target::parse("https://acct.blob.core.windows.net/locks/w%20e%C3%A4?sig=s3cret")
            .expect("a target");
        assert_eq!((url.container(), url.name()), ("locks", "w eä"));
        assert!(!format!("{url:?}").contains("s3cret"));
        let emulator =
            Target::parse("http://127.0.0.1:10000/devstoreaccount1/locks/x").expect("a target");
        assert_eq!((emulator.container(), emulator.name()), ("locks", "x"));
        let endpoint = Url::parse("http://127.0.0.1:10000/devstoreaccount1").expect("a URL");
        assert_eq!(
            emulator.blob_url(&endpoint).as_str(),
            "http://127.0.0.1:10000/devstoreaccount1/locks/x"
        );
        let root = Target::parse("https://acct.blob.core.windows.net/x").expect("a target");
        assert_eq!((root.container(), root.name()), ("$root", "x"));
        assert!(Target::parse("$root/x").is_ok());
    }

    #[test]
    fn listing_needs_no_name() {
        let read = |text| {
            let target = Target::of_listing(text).expect(text);
            (target.container().to_owned(), target.name().to_owned())
        };
        let of = |container: &str, prefix: &str| (container.to_owned(), prefix.to_owned());
        assert_eq!(read("locks"), of("locks", ""));
        assert_eq!(read("locks/"), of("locks", ""));
        assert_eq!(read("locks/a/"), of("locks", "a/"));
        assert_eq!(
            read("https://acct.blob.core.windows.net/locks?sig=s3cret"),
            of("locks", "")
        );
        assert_eq!(
            read("http://127.0.0.1:10000/devstoreaccount1/locks/n%20"),
            of("locks", "n ")
        );
        for bad in ["", "/x", "Locks", "locks/a\nb", "https://a.example/"] {
            assert!(Target::of_listing(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn names_that_azure_refuses_are_refused() {
        let long = format!("locks/{}", "x".repeat(1025));
        let deep = format!("locks/{}x", "a/".repeat(254));
        for bad in [
            "locks",
            "/x",
            "locks/",
            "ab/x",
            "Locks/x",
            "lo--cks/x",
            "-locks/x",
            "locks-/x",
            "lo_cks/x",
            "locks/x.",
            "locks/x/",
            "locks/a//b",
            "locks/../x",
            "locks/a./b",
            "$root/a/b",
            "$web2/a",
            "ftp://h.example/locks/x",
            "http://h.example/locks/x",
            "https://acct.blob.core.windows.net/locks/x?comp=lease",
            "https://u:p@acct.blob.core.windows.net/locks/x",
            "https:///x",
            "http://[/x",
            "Locks?sig=s3cret/x",
            "Lo\ncks/x",
            "http://127.0.0.1:10000/devstoreaccount1",
            "locks/a\nb",
            &long,
            &deep,
        ] {
            let said = Target::parse(bad);
            let Err(error) = said else {
                panic!("{bad} was taken as {said:?}");
            };
            // One line without a secret, whatever the input.
            let said = error.to_string();
            assert!(!said.contains("s3cret") && !said.contains('\n'), "{said}");
        }
        assert!(Target::parse(&format!("locks/{}", "x".repeat(1024))).is_ok());
    }

    #[test]
    fn encoding_is_undone_by_decoding() {
        for name in ["a%2Fb", "ü/ö", "100%", "a+b c", "%"] {
            assert_eq!(decode(&encode(name)).as_deref(), Some(name));
        }
        assert_eq!(decode("%FF"), None);
        assert_eq!(decode("%zz%4"), Some("%zz%4".to_owned()));
    }
}
