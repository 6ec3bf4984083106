//! HTTP of the official credentials over trafficcop's transport, and `az` with a time limit.
//!
//! It must never repeat a request, send plain http beyond this machine and its link, or show more of an answer
//! than its error.

use std::ffi::OsStr;
use std::io;
use std::pin::pin;
use std::process::{Output, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use azure_core::error::{Error, ErrorKind, Result};
use azure_core::http::{AsyncRawResponse, HttpClient, Request};
use azure_identity::Executor;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use serde::Deserialize;
use url::{Host, Url};

use super::address::is_loopback;
use super::transport::Client;
use trafficcop_core::util::{AwaitedChild, is_unprintable, lock};

const METADATA: &str = "169.254.169.254";

// A service this near connects at once. Outside Azure no host answers, not even with a refusal.
const NEAR_LIMIT: Duration = Duration::from_secs(2);

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NoToken {
    pub(super) why: String,
    pub(super) kind: NoTokenKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoTokenKind {
    Refused,
    Absent,
    Doubt,
}

#[derive(Debug)]
pub(super) struct IdentityHttp {
    secure: Arc<Client>,
    plain: Client,
    metadata: Option<Url>,
    // Kept here because the crate would replace its words.
    error: Mutex<Option<NoToken>>,
}

impl IdentityHttp {
    /// Creates the transport. `metadata` is the metadata service's address, if not the usual one.
    pub(super) fn new(secure: Arc<Client>, metadata: Option<Url>) -> IdentityHttp {
        IdentityHttp {
            secure,
            plain: Client::plain(2, NEAR_LIMIT),
            metadata,
            error: Mutex::default(),
        }
    }

    pub(super) fn error(&self) -> Option<NoToken> {
        lock(&self.error).clone()
    }

    fn fail<T>(&self, why: String, kind: NoTokenKind) -> Result<T> {
        *lock(&self.error) = Some(NoToken { why, kind });
        // The crate would retry other kinds for 72 seconds, and a lease is over by then.
        Err(Error::with_message(ErrorKind::Other, "no token"))
    }
}

#[async_trait]
impl HttpClient for IdentityHttp {
    async fn execute_request(&self, request: &Request) -> Result<AsyncRawResponse> {
        let mut request = request.clone();
        if let Some(metadata) = &self.metadata
            && request.url().host_str() == Some(METADATA)
        {
            // A pod identity on AKS has another address.
            let mut url = metadata.clone();
            url.set_path(request.url().path());
            url.set_query(request.url().query());
            *request.url_mut() = url;
        }
        let url = request.url();
        let host = url.host_str().unwrap_or_default().to_owned();
        let client = match url.scheme() {
            // The request may have a client secret, and the answer has a token.
            "https" => &*self.secure,
            _ if is_near(url) => &self.plain,
            _ => {
                return self.fail(
                    format!("plain http to {host} is not allowed"),
                    NoTokenKind::Refused,
                );
            }
        };
        let answer = match client.execute_request(&request).await {
            Ok(answer) => answer,
            Err(error) => {
                return self.fail(format!("{error} ({host})"), kind(&error));
            }
        };
        let status = u16::from(answer.status());
        if answer.status().is_success() {
            return Ok(answer);
        }
        let answer = answer.try_into_raw_response().await;
        let body = answer.as_ref().map(|answer| answer.body().as_ref());
        let (said, passing) = said(body.unwrap_or_default());
        // A metadata service that starts answers 404 or 410.
        let refused = matches!(status, 400..=499) && !matches!(status, 404 | 408 | 410 | 429);
        let kind = match refused && !passing {
            true => NoTokenKind::Refused,
            false => NoTokenKind::Doubt,
        };
        self.fail(format!("{status} from {host}{said}"), kind)
    }
}

fn kind(error: &Error) -> NoTokenKind {
    let kernel_s = error.downcast_ref().map(io::Error::kind);
    match (error.kind(), kernel_s) {
        // This machine's own network, perhaps during boot.
        (
            ErrorKind::Connection,
            Some(
                io::ErrorKind::NetworkDown
                | io::ErrorKind::NetworkUnreachable
                | io::ErrorKind::HostUnreachable,
            ),
        ) => NoTokenKind::Doubt,
        (ErrorKind::Connection, _) => NoTokenKind::Absent,
        (ErrorKind::Io, _) => NoTokenKind::Doubt,
        _ => NoTokenKind::Refused,
    }
}

/// Returns error name and first sentence of an answer, and whether the error is temporary. The rest could hold
/// anything.
fn said(body: &[u8]) -> (String, bool) {
    #[derive(Deserialize)]
    struct ErrorBody {
        error: String,
        #[serde(default)]
        error_description: String,
    }
    let Ok(said) = serde_json::from_slice::<ErrorBody>(body) else {
        return (String::new(), false);
    };
    let passing = ["temporarily_unavailable", "server_error"].contains(&&*said.error);
    let first = said.error_description.lines().next().unwrap_or_default();
    // The rest names the request and the time: each attempt would be news for the log.
    let first = first.split(" Trace ID").next().unwrap_or_default();
    let first = first.trim_end_matches('.');
    let joint = if first.is_empty() { "" } else { ", " };
    (one_line(&format!(" {}{joint}{first}", said.error)), passing)
}

pub(super) fn one_line(text: &str) -> String {
    let clean: String = text
        .chars()
        .map(|c| if is_unprintable(c) { ' ' } else { c })
        .take(300)
        .collect();
    let words: Vec<&str> = clean.split_whitespace().collect();
    let lead = if text.starts_with(' ') && !words.is_empty() {
        " "
    } else {
        ""
    };
    format!("{lead}{}", words.join(" "))
}

/// Whether the host is this machine or link-local, where platforms have their identity endpoints.
pub(super) fn is_near(url: &Url) -> bool {
    match url.host() {
        Some(Host::Ipv4(address)) if address.is_link_local() => true,
        _ => is_loopback(url),
    }
}

/// Runs `az`. If its caller stops waiting, kills the whole group: `az` is often a shell script around Python.
#[derive(Debug)]
pub(super) struct Cli;

struct Group(Option<Pid>);

impl Drop for Group {
    fn drop(&mut self) {
        if let Some(group) = self.0 {
            let _ = killpg(group, Signal::SIGKILL);
        }
    }
}

#[async_trait]
impl Executor for Cli {
    async fn run(&self, program: &OsStr, args: &[&OsStr]) -> io::Result<Output> {
        let mut command = tokio::process::Command::new(program);
        command
            .args(args)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            // A Ctrl-C is for the command only.
            .process_group(0)
            .kill_on_drop(true);
        let (child, awaited) = AwaitedChild::spawn(|| command.spawn(), |child| child.id())?;
        let pid = Some(awaited.pid()).filter(|pid| *pid > 0);
        // In this order the group dies while its number is still the child's.
        let waiting = pin!(child.wait_with_output());
        let mut group = Group(pid.map(Pid::from_raw));
        let output = waiting.await;
        // Another process may have the number by now.
        group.0 = None;
        output
    }
}

#[cfg(test)]
mod tests {
    use nix::libc;

    use super::*;

    #[test]
    fn only_the_error_of_an_answer_is_shown() {
        let body = concat!(
            r#"{"error":"invalid_client","error_description":"AADSTS7000215: Invalid client secret provided. "#,
            r#"Trace ID: 1\r\nCorrelation ID: 2","x":"y"}"#
        )
        .as_bytes();
        let (text, passing) = said(body);
        assert_eq!(
            text,
            " invalid_client, AADSTS7000215: Invalid client secret provided"
        );
        assert!(!passing);
        assert!(said(br#"{"error":"temporarily_unavailable"}"#).1);
        assert_eq!(said(b"<html>token</html>"), (String::new(), false));
    }

    #[test]
    fn unreachable_network_is_doubt_and_refused_connection_is_absence() {
        for (number, said) in [
            (libc::ECONNREFUSED, NoTokenKind::Absent),
            (libc::ETIMEDOUT, NoTokenKind::Absent),
            (libc::ENETUNREACH, NoTokenKind::Doubt),
            (libc::EHOSTUNREACH, NoTokenKind::Doubt),
            (libc::ENETDOWN, NoTokenKind::Doubt),
        ] {
            let kernel_s = io::Error::from(io::Error::from_raw_os_error(number).kind());
            let error = Error::with_error(ErrorKind::Connection, kernel_s, "cannot connect");
            assert_eq!(kind(&error), said, "{number}");
        }
        let in_time = Error::with_message(ErrorKind::Connection, "cannot connect");
        assert_eq!(kind(&in_time), NoTokenKind::Absent);
    }

    #[test]
    fn plain_http_stays_near() {
        for (text, near) in [
            ("http://127.0.0.1:41741/MSI/token", true),
            ("http://localhost:42356/msi/token", true),
            ("http://169.254.169.254/metadata", true),
            ("http://169.254.255.2:8081/msi/token", true),
            ("http://10.0.0.1/token", false),
            ("http://metadata.example/token", false),
        ] {
            assert_eq!(is_near(&Url::parse(text).expect("a URL")), near, "{text}");
        }
    }

    #[tokio::test]
    async fn dropped_az_call_kills_the_process_and_its_children() {
        let directory = tempfile::tempdir().expect("a directory");
        let file = directory.path().join("pid");
        let script = format!(
            "sleep 600 & echo $! >{0}.new; mv {0}.new {0}; wait",
            file.display()
        );
        let (shell, flag) = (OsStr::new("/bin/sh"), OsStr::new("-c"));
        let args = [flag, OsStr::new(&script)];
        let mut running = Box::pin(Cli.run(shell, &args));
        let pid: i32 = loop {
            tokio::select! {
                ended = &mut running => panic!("it ended: {ended:?}"),
                () = tokio::time::sleep(std::time::Duration::from_millis(5)) => {}
            }
            if let Ok(text) = std::fs::read_to_string(&file) {
                break text.trim().parse().expect("a number");
            }
        };
        drop(running);
        let lives = || {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            stat.contains("sleep") && !stat.contains(") Z ")
        };
        let give_up_at =
            trafficcop_core::clock::Instant::now() + std::time::Duration::from_secs(60);
        while lives() {
            assert!(
                trafficcop_core::clock::Instant::now() < give_up_at,
                "{pid} lives"
            );
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    }
}
