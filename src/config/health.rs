//! Whether the command works: `--watchdog`, and what `--health` is asked by.

use std::ffi::OsString;
use std::time::Duration;

use url::{Host, Url};

use super::UsageError;
use super::run::refuse_first;
use crate::args;
use crate::core::doorbell::is_near;
use crate::core::{HealthRules, ProbeRules};
use crate::units::show;

const DEFAULT_EVERY: Duration = Duration::from_secs(10);
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(5);
// One that fails can be an accident, and so can two in a row on a machine that is busy.
const DEFAULT_FAILURES: u32 = 3;

/// What is expected of a command, and who is asked.
#[derive(Clone, Debug, Default)]
pub(crate) struct Health {
    pub(crate) rules: HealthRules,
    pub(crate) ask: Option<Ask>,
}

/// Who is asked whether a command works.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Ask {
    /// A command, by `sh -c`.
    Command(OsString),
    /// A server on this machine, or at a private address.
    Url(Url),
}

pub(super) fn health(typed: &args::Health) -> Result<Health, UsageError> {
    let mut health = checks(&typed.checks)?;
    health.rules.watchdog = typed.watchdog.clone().transpose()?;
    Ok(health)
}

/// Of a reader, who is no child of ours, and is asked where it answers.
pub(super) fn of_a_reader(typed: &args::HealthChecks) -> Result<Health, UsageError> {
    let health = checks(typed)?;
    if let Some(Ask::Command(_)) = health.ask {
        return Err(UsageError::new(
            "--health: elect asks a URL: take one like http://127.0.0.1:8080/healthz",
        ));
    }
    Ok(health)
}

fn checks(typed: &args::HealthChecks) -> Result<Health, UsageError> {
    let Some(text) = &typed.health else {
        let details = [
            ("--health-every", typed.health_every.is_some()),
            ("--health-timeout", typed.health_timeout.is_some()),
            ("--health-failures", typed.health_failures.is_some()),
            ("--health-delay", typed.health_delay.is_some()),
        ];
        refuse_first(details, |flag| {
            format!("{flag} has no meaning without --health: add it, or leave {flag} out")
        })?;
        return Ok(Health::default());
    };
    let ask = ask(text)?;
    let every = typed.health_every.clone().unwrap_or(Ok(DEFAULT_EVERY))?;
    // With a shorter interval alone the default would be a contradiction that nobody typed.
    let timeout = typed.health_timeout.clone();
    let timeout = timeout.unwrap_or(Ok(DEFAULT_TIMEOUT.min(every)))?;
    if timeout > every {
        return Err(UsageError::new(format!(
            "--health-timeout {} is longer than --health-every {}: the next one would begin before it has ended: take {} or less",
            show(timeout),
            show(every),
            show(every)
        )));
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
        watchdog: None,
        probe: Some(probe),
    };
    Ok(Health {
        rules,
        ask: Some(ask),
    })
}

fn ask(text: &OsString) -> Result<Ask, UsageError> {
    // `sh -c ''` succeeds, always.
    if text.as_encoded_bytes().trim_ascii().is_empty() {
        return Err(UsageError::new(
            "--health is empty: name a command for sh or a URL, or leave it out",
        ));
    }
    let url = text.to_str().filter(|text| looks_like_a_url(text));
    let Some(url) = url else {
        return Ok(Ask::Command(text.clone()));
    };
    // Not repeated: it may have a password in it.
    let refuse = |why: &str| UsageError::new(format!("--health: {why}"));
    let url = Url::parse(url).map_err(|why| {
        refuse(&format!(
            "this is no URL ({why}): take one like http://127.0.0.1:8080/healthz"
        ))
    })?;
    if !["http", "https"].contains(&url.scheme()) {
        return Err(refuse(&format!(
            "a URL with {}: is not asked: take http or https, or a command for sh",
            url.scheme()
        )));
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err(refuse(
            "a URL with a user or a password would show it to everybody on this machine: use a command that reads it from a file",
        ));
    }
    let is_near = match url.host() {
        Some(Host::Ipv4(ip)) => is_near(ip.into()),
        Some(Host::Ipv6(ip)) => is_near(ip.into()),
        // Another name would have to be looked up, and its servers would be what is asked.
        Some(Host::Domain(name)) => name == "localhost",
        None => false,
    };
    if !is_near {
        return Err(refuse(&format!(
            "{} is neither this machine nor a private address, and says nothing of a command here: take localhost or a number",
            url.host_str().unwrap_or_default()
        )));
    }
    Ok(Ask::Url(url))
}

/// Whether it begins with a scheme and two slashes, and is one word.
fn looks_like_a_url(text: &str) -> bool {
    let scheme = text.split_once("://").map_or("", |(scheme, _)| scheme);
    let is_scheme = |c: char| c.is_ascii_alphanumeric() || "+-.".contains(c);
    !scheme.is_empty()
        && scheme.chars().all(is_scheme)
        && !text.trim().contains(char::is_whitespace)
}
