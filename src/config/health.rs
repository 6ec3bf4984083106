//! `--watchdog` and `--health`: checks of whether the command works.

use std::ffi::OsString;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use url::{Host, Url};

use super::UsageError;
use crate::args;
use crate::core::doorbell::is_near;
use crate::core::{HealthRules, ProbeRules};
use crate::units::show;

// systemd's limit for the start of a unit.
const DEFAULT_START: Duration = Duration::from_secs(90);
const DEFAULT_EVERY: Duration = Duration::from_secs(10);
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(5);
// Two failures in a row can be an accident on a busy machine.
const DEFAULT_FAILURES: u32 = 3;

#[derive(Clone, Debug, Default)]
pub(crate) struct Health {
    pub(crate) rules: HealthRules,
    pub(crate) ask: Option<Ask>,
    pub(crate) ca_file: Option<PathBuf>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Ask {
    /// Script for `sh -c`.
    Command(OsString),
    /// Server on this machine or at a private address.
    Url(Url),
}

pub(super) fn health(typed: &args::Health, access: &args::Access) -> Result<Health, UsageError> {
    let mut health = checks(&typed.checks, access)?;
    health.rules.watchdog = typed.watchdog.clone().transpose()?;
    if health.rules.watchdog.is_some() {
        health.rules.start = typed.watchdog_start.clone().unwrap_or(Ok(DEFAULT_START))?;
    }
    Ok(health)
}

fn checks(typed: &args::HealthChecks, access: &args::Access) -> Result<Health, UsageError> {
    let Some(text) = &typed.health else {
        return Ok(Health::default());
    };
    let ask = ask(text)?;
    let every = typed.health_every.clone().unwrap_or(Ok(DEFAULT_EVERY))?;
    // With a short interval the default would contradict a setting.
    let timeout = typed.health_timeout.clone();
    let timeout = timeout.unwrap_or(Ok(DEFAULT_TIMEOUT.min(every)))?;
    if timeout > every {
        refuse!(
            "--health-timeout {} is longer than --health-every {}: the next one would begin before it has ended: \
             take {} or less",
            show(timeout),
            show(every),
            show(every)
        );
    }
    let probe = ProbeRules {
        every,
        timeout,
        failures: typed
            .health_failures
            .clone()
            .unwrap_or(Ok(DEFAULT_FAILURES))?,
        delay: typed.health_delay.clone().unwrap_or(Ok(Duration::ZERO))?,
    };
    let rules = HealthRules {
        probe: Some(probe),
        ..HealthRules::default()
    };
    Ok(Health {
        rules,
        ask: Some(ask),
        ca_file: access.ca_file.clone(),
    })
}

fn ask(text: &OsString) -> Result<Ask, UsageError> {
    // `sh -c ''` succeeds.
    if text.as_encoded_bytes().trim_ascii().is_empty() {
        refuse!("--health is empty: name a command for sh or a URL, or leave it out");
    }
    let url = text.to_str().filter(|text| looks_like_a_url(text));
    let Some(url) = url else {
        if let Some(server) = text.to_str().and_then(server_without_scheme) {
            refuse!("--health: {server} would be run as a command: did you mean http://{server}?");
        }
        return Ok(Ask::Command(text.clone()));
    };
    // The URL may contain a password.
    let url = match Url::parse(url) {
        Ok(url) => url,
        Err(why) => {
            refuse!("--health: this is no URL ({why}): take one like http://127.0.0.1:8080/healthz")
        }
    };
    if !["http", "https"].contains(&url.scheme()) {
        refuse!(
            "--health: a URL with {}: is not supported: take http or https, or a command for sh",
            url.scheme()
        );
    }
    if !url.username().is_empty() || url.password().is_some() {
        refuse!(
            "--health: a URL with a user or a password would show it to all users of this machine: \
             use a command that reads it from a file"
        );
    }
    let is_near = match url.host() {
        Some(Host::Ipv4(ip)) => is_near(ip.into()),
        Some(Host::Ipv6(ip)) => is_near(ip.into()),
        // Any other name needs DNS, and may be another machine's.
        Some(Host::Domain(name)) => name == "localhost",
        None => false,
    };
    if !is_near {
        refuse!(
            "--health: {} is neither this machine nor a private address, and cannot check a command here: \
             take localhost or a private address",
            url.host_str().unwrap_or_default()
        );
    }
    Ok(Ask::Url(url))
}

fn looks_like_a_url(text: &str) -> bool {
    let scheme = text.split_once("://").map_or("", |(scheme, _)| scheme);
    let is_scheme = |c: char| c.is_ascii_alphanumeric() || "+-.".contains(c);
    !scheme.is_empty()
        && scheme.chars().all(is_scheme)
        && !text.trim().contains(char::is_whitespace)
}

/// Finds `localhost:8080/healthz` or `10.0.0.4/healthz`.
fn server_without_scheme(text: &str) -> Option<&str> {
    // The rest may be a secret.
    let shown = text.trim().split(['?', '#']).next()?;
    if text.trim().contains(char::is_whitespace) {
        return None;
    }
    let (server, path) = shown.split_at(shown.find('/').unwrap_or(shown.len()));
    let bare = server
        .strip_prefix('[')
        .and_then(|rest| rest.strip_suffix(']'));
    let has_port = match server.strip_prefix("localhost:") {
        Some(port) => port.parse::<u16>().is_ok(),
        None => server.parse::<SocketAddr>().is_ok(),
    };
    let is_host = server == "localhost" || bare.unwrap_or(server).parse::<IpAddr>().is_ok();
    (has_port || is_host && !path.is_empty()).then_some(shown)
}
