//! The host of a Service Bus namespace. Called where what was typed and the connection string are
//! read; knows no secret.

use crate::azure::account_error::{AccountError, malformed};

/// What stands behind a namespace's name in Azure's public cloud.
const SUFFIX: &str = ".servicebus.windows.net";

/// Where a namespace is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Namespace {
    /// In lower case; an IPv6 address is in brackets.
    pub(super) host: String,
    /// If one was named.
    pub(super) port: Option<u16>,
}

impl Namespace {
    /// `contoso`, or a whole host name, of any cloud.
    pub(super) fn named(text: &str, what: &str) -> Result<Namespace, AccountError> {
        let host = match text.contains('.') {
            true => text.to_owned(),
            false => format!("{text}{SUFFIX}"),
        };
        Namespace::at(&host, what)
    }

    /// `HOST` or `HOST:PORT`.
    pub(super) fn at(text: &str, what: &str) -> Result<Namespace, AccountError> {
        let refuse = |why: &str| Err(malformed(what, why.to_owned()));
        let (host, port) = match text.rsplit_once(':') {
            // Not the colons within an IPv6 address.
            Some((host, port)) if !port.contains(']') => (host, Some(port)),
            _ => (text, None),
        };
        let port = match port.map(str::parse::<u16>) {
            None => None,
            Some(Ok(port)) if port > 0 => Some(port),
            Some(_) => return refuse("has a port that is none: take 1 to 65535"),
        };
        let is_address = host.starts_with('[')
            && host.ends_with(']')
            && host[1..host.len() - 1]
                .parse::<std::net::Ipv6Addr>()
                .is_ok();
        let label = |label: &str| {
            (1..=63).contains(&label.len())
                && label
                    .bytes()
                    .all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
        };
        if !is_address && (host.len() > 253 || !host.split('.').all(label)) {
            return refuse("names no host, as contoso.servicebus.windows.net is one");
        }
        Ok(Namespace {
            host: host.to_ascii_lowercase(),
            port,
        })
    }

    /// Whether the other one is the same, as far as this one says.
    pub(super) fn is(&self, other: &Namespace) -> bool {
        self.host == other.host && self.port.is_none_or(|port| other.port == Some(port))
    }
}
