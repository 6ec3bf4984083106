//! Addresses of services: split, checked, and cleaned for messages.

use azure_core::time::{OffsetDateTime, parse_rfc3339};
use url::{Host, Url};

use super::account::{AccountError, malformed};
use super::account_builder::EMULATOR;
use trafficcop_core::util::spelt_out;

/// Parts of a service's URL.
pub struct SplitUrl {
    pub endpoint: Url,
    pub account: Option<String>,
    // Below the account. Still encoded: a blob's name may have encoded slashes and plain ones.
    pub path: String,
    pub sas: Option<String>,
}

/// Returns whether a container or a queue can have this name.
pub fn is_label(name: &str) -> bool {
    let alnum = |b: &u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let bytes = name.as_bytes();
    (3..=63).contains(&bytes.len())
        && bytes.iter().all(|b| alnum(b) || *b == b'-')
        && bytes.first().is_some_and(alnum)
        && bytes.last().is_some_and(alnum)
        && !name.contains("--")
}

/// Splits a service's URL: the account is the host's first label, or, for local hosts and IP addresses, the
/// first part of the path.
pub(super) fn split_url(url: &Url) -> Result<SplitUrl, AccountError> {
    safe(url)?;
    let path = url.path().trim_start_matches('/');
    let mut endpoint = url.clone();
    endpoint.set_query(None);
    endpoint.set_fragment(None);
    // A custom domain does not tell the account.
    let label = match url.host() {
        Some(Host::Domain(host)) => host
            .split_once('.')
            .filter(|(_, rest)| rest.contains("blob.") || rest.contains("queue."))
            .map(|(label, _)| label.to_owned()),
        _ => None,
    };
    // An emulator has one host name for all accounts.
    let in_path = matches!(url.host(), Some(Host::Ipv4(_) | Host::Ipv6(_)))
        || url.host_str() == Some("localhost")
        || names_the_emulator(url);
    let (account, path) = if in_path {
        let (account, rest) = path.split_once('/').unwrap_or((path, ""));
        endpoint.set_path(account);
        ((!account.is_empty()).then(|| account.to_owned()), rest)
    } else {
        endpoint.set_path("");
        (label, path)
    };
    Ok(SplitUrl {
        endpoint,
        account,
        path: path.to_owned(),
        sas: url.query().filter(|query| is_sas(query)).map(str::to_owned),
    })
}

pub(super) fn parsed(text: &str, what: &str) -> Result<Url, AccountError> {
    Url::parse(text).map_err(|error| malformed(what, format!("is not a URL: {error}")))
}

/// Parses the URL of a blob or queue as typed, and splits it; `what` names it in an error.
pub fn typed_url(text: &str, what: &str) -> Result<(Url, SplitUrl), AccountError> {
    let unreadable = |why: &str| malformed(what, format!("cannot be read: {why}"));
    let url = Url::parse(text).map_err(|error| unreadable(&error.to_string()))?;
    // A user name may come with a password.
    if !url.username().is_empty() || url.password().is_some() {
        return Err(unreadable("it has a user name"));
    }
    let split = split_url(&url)?;
    // Otherwise an operation in the query (`comp=lease`) would become part of every request.
    if url.query().is_some() && split.sas.is_none() {
        let why = "has a query that is no SAS ('sig=' is missing): leave the query out";
        return Err(malformed(what, why));
    }
    Ok((url, split))
}

/// Returns the address of a container or queue.
pub fn below(endpoint: &Url, name: &str) -> Url {
    let mut url = endpoint.clone();
    // Azurite has the account in the path.
    let base = url.path().trim_end_matches('/').to_owned();
    url.set_path(&format!("{base}/{name}"));
    url
}

/// Returns the part of an address that may be shown: one short line, without pasted secrets.
pub fn shown(text: &str) -> String {
    let end = text.find(['?', '#', ';', '=']).unwrap_or(text.len());
    let begin = text[..end].rfind('@').map_or(0, |at| at + 1);
    spelt_out(&text[begin..end]).chars().take(80).collect()
}

pub(super) fn is_sas(query: &str) -> bool {
    url::form_urlencoded::parse(query.as_bytes())
        .any(|(name, value)| name == "sig" && !value.is_empty())
}

pub(super) fn is_loopback(url: &Url) -> bool {
    match url.host() {
        Some(Host::Ipv4(address)) => address.is_loopback(),
        Some(Host::Ipv6(address)) => address.is_loopback(),
        Some(Host::Domain(host)) => host == "localhost" || host.ends_with(".localhost"),
        None => false,
    }
}

/// Returns the end of the SAS (`se`), in any form that the service accepts.
pub(super) fn end_of(sas: &str) -> Option<OffsetDateTime> {
    let mut pairs = url::form_urlencoded::parse(sas.as_bytes());
    let (_, end) = pairs.find(|(name, _)| name == "se")?;
    let forms = [
        end.to_string(),
        format!("{end}T00:00:00Z"),
        end.replace('Z', ":00Z"),
    ];
    forms.iter().find_map(|form| parse_rfc3339(form).ok())
}

/// Whether the path begins with the emulator's account; over https that is a container's name.
pub(super) fn names_the_emulator(url: &Url) -> bool {
    let mut parts = url.path_segments().into_iter().flatten();
    url.scheme() == "http" && parts.next() == Some(EMULATOR)
}

/// Refuses plain http beyond this machine: on the way everyone could read a SAS, or take the lock with the
/// lease id. The emulator's account passes until its credential is known to be public.
pub(super) fn safe(url: &Url) -> Result<(), AccountError> {
    match (url.scheme(), url.host_str()) {
        (_, None) => Err(malformed("the URL", "names no host")),
        ("https", _) => Ok(()),
        ("http", _) if is_loopback(url) || names_the_emulator(url) => Ok(()),
        ("http", Some(host)) => Err(AccountError::PlainHttp {
            host: host.to_owned(),
        }),
        (scheme, _) => Err(malformed(
            "the URL",
            format!("begins with '{scheme}', not 'https': take the one that Azure's portal shows"),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_below_an_endpoint_keeps_its_path() {
        for (endpoint, address) in [
            (
                "http://127.0.0.1:10001/devstoreaccount1",
                "http://127.0.0.1:10001/devstoreaccount1/jobs",
            ),
            (
                "https://acct.queue.core.windows.net",
                "https://acct.queue.core.windows.net/jobs",
            ),
        ] {
            let endpoint = Url::parse(endpoint).expect("a URL");
            assert_eq!(below(&endpoint, "jobs").as_str(), address);
        }
    }
}
