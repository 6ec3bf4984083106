//! The address of a blob or a queue, taken apart: the endpoint, the path below it, and a SAS if it bears one.
//!
//! Called by the account, and by the store to find the account of its URL. Must never let the SAS
//! into what is shown.

use url::{Host, Url};

use super::account_error::{AccountError, malformed};
use super::transport::Client;

/// Which service of a storage account.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Service {
    #[default]
    Blob,
    Queue,
}

impl Service {
    /// In the names of hosts.
    pub(super) fn word(self) -> &'static str {
        match self {
            Service::Blob => "blob",
            Service::Queue => "queue",
        }
    }

    /// Its address in a connection string.
    pub(super) fn part(self) -> &'static str {
        match self {
            Service::Blob => "BlobEndpoint",
            Service::Queue => "QueueEndpoint",
        }
    }

    /// The environment variable for its address, where there is one.
    pub(super) fn variable(self) -> Option<&'static str> {
        match self {
            Service::Blob => None,
            Service::Queue => Some("AZURE_STORAGE_QUEUE_ENDPOINT"),
        }
    }

    /// Its address in an emulator that was started without options.
    pub(super) fn emulator(self) -> &'static str {
        match self {
            Service::Blob => "http://127.0.0.1:10000/devstoreaccount1",
            Service::Queue => "http://127.0.0.1:10001/devstoreaccount1",
        }
    }

    /// What two sources contradict each other in.
    pub(super) fn differs(self) -> &'static str {
        match self {
            Service::Blob => "different blob endpoints",
            Service::Queue => "different queue endpoints",
        }
    }

    /// A client for it. Every message that is worked on renews by itself; a lease is one.
    pub(super) fn client(self, endpoint: &Url) -> Client {
        let idle = match self {
            Service::Blob => 2,
            Service::Queue => 32,
        };
        Client::new(endpoint.scheme() == "https", idle)
    }
}

/// A URL of a service, taken apart.
pub(crate) struct SplitUrl {
    /// The account's address, without a query.
    pub(crate) endpoint: Url,
    /// The account's name, where the URL tells it.
    pub(crate) account: Option<String>,
    /// The path below the account, still encoded, without a leading slash.
    pub(crate) path: String,
    /// The query, if it is a SAS.
    pub(crate) sas: Option<String>,
}

/// Takes a URL of a service apart: the account is the host's first label, or on this machine and
/// on bare addresses the first part of the path.
pub(crate) fn split_url(url: &Url) -> Result<SplitUrl, AccountError> {
    safe(url)?;
    let path = url.path().trim_start_matches('/');
    let mut endpoint = url.clone();
    endpoint.set_query(None);
    endpoint.set_fragment(None);
    let label = match url.host() {
        Some(Host::Domain(host)) => host
            .split_once('.')
            .filter(|(_, rest)| rest.contains("blob.") || rest.contains("queue."))
            .map(|(label, _)| label.to_owned()),
        _ => None,
    };
    let in_path = matches!(url.host(), Some(Host::Ipv4(_) | Host::Ipv6(_)))
        || url.host_str() == Some("localhost");
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

/// Only https, and plain http to this machine.
pub(super) fn safe(url: &Url) -> Result<(), AccountError> {
    match (url.scheme(), url.host_str()) {
        (_, None) => Err(malformed("the URL", "names no host")),
        ("https", _) => Ok(()),
        ("http", _) if is_loopback(url) => Ok(()),
        ("http", Some(host)) => Err(AccountError::PlainHttp {
            host: host.to_owned(),
        }),
        (scheme, _) => Err(malformed(
            "the URL",
            format!("begins with `{scheme}`, not `https`"),
        )),
    }
}
