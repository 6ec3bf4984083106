//! Azure's announcements for this virtual machine (freeze, reboot, redeployment, preemption, termination), read
//! from the metadata service while this instance competes.
//!
//! A bad endpoint stops no instance. Announcements must never delay or judge a lease, and never need TLS.

use std::sync::OnceLock;
use std::time::Duration;

use azure_core::time::OffsetDateTime;
use reqwest::Method;
use serde::Deserialize;
use time::format_description::well_known::Rfc2822;
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;
use url::Url;

use super::transport;
use trafficcop_core::Cordon;
use trafficcop_core::clock::Instant;
use trafficcop_core::retry::Backoff;

// Time between two reads, ±20 %. Azure allows one a second; the shortest notice (of a preemption) is 30
// seconds.
const PACE: Duration = Duration::from_secs(5);
// Longest pause if the endpoint has answered before: less than the shortest notice.
const SHORT_PAUSE: Duration = Duration::from_secs(20);
// Longest pause if it never has: this may not be Azure.
const LONG_PAUSE: Duration = Duration::from_secs(300);
const LEAST: Duration = Duration::from_secs(1);
// The machine's very first request may take minutes; then a later one reads the events.
const LIMIT: Duration = Duration::from_secs(5);
// A document is a few hundred bytes.
const ANSWER_LIMIT: usize = 256 * 1024;
const EVENTS: &str = "/metadata/scheduledevents?api-version=2020-07-01";
const NAME: &str = "/metadata/instance/compute/name?api-version=2021-02-01&format=text";
const NAME_LIMIT: usize = 256;

/// Settings for following the announcements.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Address of the metadata service.
    pub endpoint: Endpoint,
    /// Name of this machine in the announcements, if the metadata service does not tell it.
    pub vm_name: Option<String>,
    /// Host name, used if no other name is known.
    pub host: String,
    /// Whether to approve an announcement once nothing runs here.
    pub ack: bool,
}

/// The announcements, as they come.
#[derive(Debug)]
pub struct EventFollower {
    /// Receives `Some` when this machine is cordoned (again for each change), `None` when it is not any more.
    pub words: mpsc::UnboundedReceiver<Option<Cordon>>,
    /// Whether nothing runs here and no lease is held because of the last announcement.
    pub idle: watch::Sender<bool>,
    first: watch::Receiver<bool>,
}

impl EventFollower {
    /// Starts to follow them.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    #[must_use]
    pub fn begin(config: Config) -> EventFollower {
        let (say, words) = mpsc::unbounded_channel();
        let (idle, is_idle) = watch::channel(false);
        let (looked, first) = watch::channel(false);
        let follower = Follower {
            config,
            http: OnceLock::new(),
            say,
            idle: is_idle,
            looked,
            name: None,
            said: None,
            approved: Vec::new(),
            failures: 0,
            told: false,
            ever: false,
        };
        tokio::spawn(follower.follow());
        EventFollower { words, idle, first }
    }

    /// Waits at most `limit` for the first read, so that an instance knows earlier announcements before it
    /// competes.
    pub async fn first(&mut self, limit: Duration) -> Option<Cordon> {
        let looked = self.first.wait_for(|looked| *looked);
        // A late announcement comes through the channel.
        let _in_time = timeout(limit, looked).await.is_ok();
        self.words.try_recv().ok().flatten()
    }
}

struct Follower {
    config: Config,
    http: OnceLock<Result<reqwest::Client, String>>,
    say: mpsc::UnboundedSender<Option<Cordon>>,
    idle: watch::Receiver<bool>,
    looked: watch::Sender<bool>,
    name: Option<String>,
    said: Option<Announced>,
    // They stay in the document until they begin.
    approved: Vec<String>,
    failures: u32,
    told: bool,
    ever: bool,
}

impl Follower {
    async fn follow(mut self) {
        while !self.say.is_closed() {
            match self.look().await {
                Ok(()) => self.works(),
                Err(why) => self.fails(&why),
            }
            // After a failure as well: no instance waits for an absent endpoint.
            self.looked.send_replace(true);
            self.pause().await;
        }
    }

    fn works(&mut self) {
        if std::mem::take(&mut self.told) {
            tracing::info!("the metadata service answers again");
        }
        (self.failures, self.ever) = (0, true);
    }

    fn fails(&mut self, why: &str) {
        self.failures = self.failures.saturating_add(1);
        if std::mem::replace(&mut self.told, true) {
            tracing::debug!("scheduled events: {why}");
        } else if self.said.is_some() {
            // Silence before a reboot does not mean that it is over.
            tracing::warn!("scheduled events are not available: {why}; cordoned until they are");
        } else {
            tracing::warn!(
                "scheduled events are not available: {why}; continuing without them, retrying now and then"
            );
        }
    }

    async fn pause(&mut self) {
        let most = if self.ever { SHORT_PAUSE } else { LONG_PAUSE };
        let pace = Backoff::new(PACE, most).after(self.failures);
        let span = pace.mul_f64(0.8 + 0.4 * fastrand::f64());
        let wants_approval = self.config.ack && self.failures == 0;
        let (least, span) = (span.min(LEAST), span.saturating_sub(LEAST));
        tokio::time::sleep(least).await;
        tokio::select! {
            () = tokio::time::sleep(span) => {}
            Ok(()) = self.idle.changed(), if wants_approval => {}
        }
    }

    async fn look(&mut self) -> Result<(), String> {
        let (text, date) = self.ask(Method::GET, EVENTS, None).await?;
        let document = Document::parse(&text)?;
        // Nearly always true; then the name is not needed.
        if document.events.is_empty() {
            self.hears(None);
            return Ok(());
        }
        let name = self.name().await;
        let announced = document.announced_for(&name, Instant::now(), date);
        self.hears(announced);
        self.approve().await
    }

    async fn name(&mut self) -> String {
        if let Some(name) = self.config.vm_name.as_ref().or(self.name.as_ref()) {
            return name.clone();
        }
        match self.vm_name().await {
            Ok(name) => self.name.insert(name).clone(),
            // Most machines have the same name in Azure.
            Err(why) => {
                tracing::debug!("the metadata service does not tell this machine's name: {why}");
                self.config.host.clone()
            }
        }
    }

    fn hears(&mut self, announced: Option<Announced>) {
        let said = self.said.as_ref().map(|announced| &announced.cordon);
        let cordon = announced.as_ref().map(|announced| &announced.cordon);
        // The moment differs by milliseconds from answer to answer.
        if said.map(|cordon| &cordon.why) != cordon.map(|cordon| &cordon.why) {
            let _ = self.say.send(cordon.cloned());
        }
        if announced.is_none() {
            self.approved.clear();
        }
        self.said = announced;
    }

    /// Approves waiting announcements once nothing is in the way: then Azure acts at once.
    async fn approve(&mut self) -> Result<(), String> {
        if !self.config.ack || !*self.idle.borrow_and_update() {
            return Ok(());
        }
        let waiting = self.said.iter().flat_map(|announced| &announced.waiting);
        let waiting = waiting.filter(|id| !self.approved.contains(id)).cloned();
        for id in waiting.collect::<Vec<_>>() {
            let body = serde_json::json!({ "StartRequests": [{ "EventId": id }] });
            self.ask(Method::POST, EVENTS, Some(body.to_string()))
                .await?;
            tracing::info!("approved what Azure announced for this machine (event {id})");
            self.approved.push(id);
        }
        Ok(())
    }

    async fn vm_name(&self) -> Result<String, String> {
        let (name, _) = self.ask(Method::GET, NAME, None).await?;
        let name = String::from_utf8(name).map_err(|_| "it is no text".to_owned())?;
        let name = name.trim();
        if name.is_empty() || name.len() > NAME_LIMIT || name.chars().any(char::is_control) {
            return Err("it is no name".to_owned());
        }
        Ok(name.to_owned())
    }

    async fn ask(
        &self,
        method: Method,
        path: &str,
        body: Option<String>,
    ) -> Result<(Vec<u8>, OffsetDateTime), String> {
        let http = self.http.get_or_init(transport::plain);
        let http = http.as_ref().map_err(Clone::clone)?;
        let url = self.config.endpoint.0.join(path);
        let url = url.map_err(|why| why.to_string())?;
        // The service requires it: an attacker who makes a server fetch a URL cannot make it send a header.
        let mut request = http.request(method, url).header("Metadata", "true");
        if let Some(body) = body {
            request = request
                .header("content-type", "application/json")
                .body(body);
        }
        let asked = async {
            let mut answer = request.send().await.map_err(said)?;
            let status = answer.status();
            if !status.is_success() {
                return Err(format!("the metadata service answers {}", status.as_u16()));
            }
            let date = answer.headers().get("date");
            let date = date.and_then(|date| date.to_str().ok());
            let date = date.and_then(|date| OffsetDateTime::parse(date, &Rfc2822).ok());
            let bytes = transport::body_within(&mut answer, ANSWER_LIMIT)
                .await
                .map_err(said)?;
            let bytes = bytes.ok_or("the metadata service's answer is too long")?;
            Ok((bytes, date.unwrap_or_else(OffsetDateTime::now_utc)))
        };
        let in_time = timeout(LIMIT, asked).await;
        in_time.unwrap_or_else(|_| Err("the metadata service does not answer".to_owned()))
    }
}

/// Address of the metadata service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint(Url);

/// Error for an address that is not valid here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("take http://ADDRESS or http://ADDRESS:PORT")]
pub struct EndpointError;

impl Default for Endpoint {
    fn default() -> Endpoint {
        let url = Url::parse("http://169.254.169.254").expect("a constant that is a URL");
        Endpoint(url)
    }
}

impl Endpoint {
    /// Parses another address: plain http to an IP address, without a path.
    pub fn parse(text: &str) -> Result<Endpoint, EndpointError> {
        let url = Url::parse(text).map_err(|_| EndpointError)?;
        // A name would need a look-up, which any name server could answer.
        let is_address = matches!(url.host(), Some(url::Host::Ipv4(_) | url::Host::Ipv6(_)));
        let is_bare = url.path() == "/" && url.query().is_none() && url.username().is_empty();
        if url.scheme() != "http" || !is_address || !is_bare || url.fragment().is_some() {
            return Err(EndpointError);
        }
        Ok(Endpoint(url))
    }
}

fn said(error: reqwest::Error) -> String {
    let what = if error.is_connect() {
        "cannot be reached"
    } else {
        "broke off"
    };
    let why = transport::root_cause(&error.without_url());
    format!("the metadata service {what}: {why}")
}

// Draining for an unknown kind would stop commands on a whole fleet at once.
const KINDS: &[(&str, &str)] = &[
    ("Freeze", "a freeze"),
    ("Reboot", "a reboot"),
    ("Redeploy", "a redeployment"),
    ("Preempt", "the preemption"),
    ("Terminate", "the termination"),
];
// Azure's have 36 characters.
const ID_LIMIT: usize = 64;

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Document {
    events: Vec<Entry>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Entry {
    event_id: String,
    event_type: String,
    #[serde(default)]
    event_status: String,
    #[serde(default)]
    resources: Vec<String>,
    #[serde(default)]
    not_before: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Announced {
    cordon: Cordon,
    waiting: Vec<String>,
}

impl Entry {
    fn has_begun(&self) -> bool {
        self.event_status == "Started"
    }

    /// Returns when it may begin, if it has not begun.
    fn time(&self) -> Option<OffsetDateTime> {
        let at = OffsetDateTime::parse(&self.not_before, &Rfc2822).ok();
        at.filter(|_| !self.has_begun())
    }
}

impl Document {
    fn parse(text: &[u8]) -> Result<Document, String> {
        serde_json::from_slice(text).map_err(|_| "it is no document of scheduled events".to_owned())
    }

    /// Returns what the document announces for this machine; it was read at `now`, with `date` on the service's
    /// clock.
    fn announced_for(&self, name: &str, now: Instant, date: OffsetDateTime) -> Option<Announced> {
        let ours = self.events.iter().filter_map(|entry| {
            let (_, kind) = KINDS.iter().find(|(kind, _)| *kind == entry.event_type)?;
            let named = |resource: &String| resource.eq_ignore_ascii_case(name);
            (entry.resources.iter().any(named) && is_id(&entry.event_id)).then_some((kind, entry))
        });
        let ours: Vec<_> = ours.collect();
        let pending = ours.iter().filter(|(_, entry)| !entry.has_begun());
        let waiting = pending.map(|(_, entry)| entry.event_id.clone()).collect();
        // What has begun, then what has a time, earliest first, then the rest.
        let (kind, entry) = ours.into_iter().min_by_key(|(_, entry)| {
            let at = entry.time();
            (!entry.has_begun(), at.is_none(), at)
        })?;
        let at = entry.time();
        let when = match at {
            _ if entry.has_begun() => "is under way".to_owned(),
            None => "is announced".to_owned(),
            Some(at) => {
                let (hour, minute, second) = at.to_offset(time::UtcOffset::UTC).to_hms();
                format!("is announced, not before {hour:02}:{minute:02}:{second:02} UTC")
            }
        };
        let cordon = Cordon {
            why: format!("{kind} of this machine {when} (event {})", entry.event_id),
            // By the service's clock, which wrote both dates.
            before: at.map_or(Instant::FOREVER, |at| {
                now + Duration::try_from(at - date).unwrap_or_default()
            }),
        };
        Some(Announced { cordon, waiting })
    }
}

fn is_id(text: &str) -> bool {
    let fits = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    (1..=ID_LIMIT).contains(&text.len()) && text.chars().all(fits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_is_plain_http_to_an_address() {
        for good in [
            "http://127.0.0.1:8080",
            "http://[::1]:1/",
            "http://169.254.169.254",
        ] {
            assert!(Endpoint::parse(good).is_ok(), "{good}");
        }
        for bad in [
            "",
            "127.0.0.1",
            "https://127.0.0.1",
            "http://metadata",
            "http://127.0.0.1/x",
            "http://user@127.0.0.1",
            "http://127.0.0.1/?a=b",
        ] {
            assert!(Endpoint::parse(bad).is_err(), "{bad}");
        }
        assert_eq!(
            Endpoint::parse("http://169.254.169.254"),
            Ok(Endpoint::default())
        );
    }

    const NOW: Instant = Instant::from_nanos(1_000_000_000_000);
    const DATE: &str = "Mon, 19 Sep 2022 18:29:47 GMT";

    fn announced(events: &str) -> Option<Announced> {
        let text = format!(r#"{{"DocumentIncarnation": 1, "Events": [{events}]}}"#);
        let date = OffsetDateTime::parse(DATE, &Rfc2822).unwrap();
        let document = Document::parse(text.as_bytes()).unwrap();
        document.announced_for("web-1", NOW, date)
    }

    fn event(kind: &str, resources: &str, status: &str, not_before: &str) -> String {
        format!(
            r#"{{"EventId": "id-{kind}", "EventType": "{kind}", "ResourceType": "VirtualMachine",
                "Resources": [{resources}], "EventStatus": "{status}", "NotBefore": "{not_before}",
                "Description": "x", "EventSource": "Platform", "DurationInSeconds": -1}}"#
        )
    }

    #[test]
    fn event_for_this_machine_gives_its_kind_and_time() {
        let later = "Mon, 19 Sep 2022 18:44:47 GMT";
        let found = announced(&event("Reboot", r#""Web-1", "web-2""#, "Scheduled", later));
        let found = found.unwrap();
        assert_eq!(
            found.cordon.why,
            "a reboot of this machine is announced, not before 18:44:47 UTC (event id-Reboot)"
        );
        assert_eq!(found.cordon.before, NOW + Duration::from_secs(900));
        assert_eq!(found.waiting, ["id-Reboot"]);
    }

    #[test]
    fn only_disturbing_kinds_count() {
        for (kind, _) in KINDS {
            let found = announced(&event(kind, r#""web-1""#, "Scheduled", ""));
            assert_eq!(found.unwrap().cordon.before, Instant::FOREVER, "{kind}");
        }
        let other = event("Party", r#""web-1""#, "Scheduled", "");
        assert_eq!(announced(&other), None);
    }

    #[test]
    fn events_for_other_machines_are_ignored() {
        for resources in [r#""web-2""#, r#""web-10", "xweb-1""#, ""] {
            let event = event("Reboot", resources, "Scheduled", "");
            assert_eq!(announced(&event), None, "{resources}");
        }
        assert_eq!(announced(""), None);
    }

    #[test]
    fn started_event_comes_first_and_cannot_be_approved() {
        let events = [
            event("Reboot", r#""web-1""#, "Scheduled", DATE),
            event("Freeze", r#""web-1""#, "Started", ""),
        ];
        let found = announced(&events.join(",")).unwrap();
        assert!(
            found
                .cordon
                .why
                .starts_with("a freeze of this machine is under way")
        );
        assert_eq!(found.cordon.before, Instant::FOREVER);
        assert_eq!(found.waiting, ["id-Reboot"]);
    }

    #[test]
    fn past_time_counts_as_now_and_unreadable_time_as_unknown() {
        let past = "Mon, 19 Sep 2022 18:00:00 GMT";
        let found = announced(&event("Reboot", r#""web-1""#, "Scheduled", past));
        assert_eq!(found.unwrap().cordon.before, NOW);
        let found = announced(&event("Reboot", r#""web-1""#, "Scheduled", "soon"));
        assert_eq!(found.unwrap().cordon.before, Instant::FOREVER);
    }

    #[test]
    fn nonsense_is_refused_and_bad_identifiers_are_ignored() {
        for text in ["", "{}", "[]", "<html>", r#"{"Events": 7}"#] {
            assert!(Document::parse(text.as_bytes()).is_err(), "{text}");
        }
        let mut event = event("Reboot", r#""web-1""#, "Scheduled", "");
        event = event.replace("id-Reboot", r"x\nsomething else");
        assert_eq!(announced(&event), None);
    }
}
