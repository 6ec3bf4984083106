//! What the metadata service's document of scheduled events says, and what of it is about us.
//!
//! Called by the task that asks for it; pure. What is not understood is no announcement: it may
//! stop nobody.

use std::time::Duration;

use azure_core::time::OffsetDateTime;
use serde::Deserialize;
use time::format_description::well_known::Rfc2822;

use crate::clock::Instant;
use crate::core::Cordon;

// What ends or suspends everything that runs here. Whatever else Azure may announce one day is let
// pass: to drain for something unknown would stop commands on a whole fleet at once.
const KINDS: &[(&str, &str)] = &[
    ("Freeze", "a freeze"),
    ("Reboot", "a reboot"),
    ("Redeploy", "a redeployment"),
    ("Preempt", "the preemption"),
    ("Terminate", "the termination"),
];
// The longest identifier of an event that is shown or sent back; Azure's are 36 characters.
const ID_LIMIT: usize = 64;

/// The document, as far as we know it.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct Document {
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

/// What is announced for one machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Announced {
    pub(super) cordon: Cordon,
    // The identifiers of what can be approved.
    pub(super) waiting: Vec<String>,
}

// What comes first: what has begun, then what has a time, the earliest before the others.
type Rank = (bool, bool, Option<OffsetDateTime>);

impl Document {
    pub(super) fn parse(text: &[u8]) -> Result<Document, String> {
        serde_json::from_slice(text).map_err(|_| "it is no document of scheduled events".to_owned())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.events.is_empty()
    }

    /// What of it is about the machine of this name, read at `now`, when the service's clock said
    /// `date`.
    pub(super) fn announced_for(
        &self,
        name: &str,
        now: Instant,
        date: OffsetDateTime,
    ) -> Option<Announced> {
        let ours = self.events.iter().filter_map(|entry| {
            let (_, kind) = KINDS.iter().find(|(kind, _)| *kind == entry.event_type)?;
            let named = |resource: &String| resource.eq_ignore_ascii_case(name);
            (entry.resources.iter().any(named) && is_id(&entry.event_id)).then_some((kind, entry))
        });
        let mut first: Option<(Rank, &str, &Entry)> = None;
        let mut waiting = Vec::new();
        for (kind, entry) in ours {
            // Approved or not, it cannot be had any earlier.
            let begun = entry.event_status == "Started";
            if !begun {
                waiting.push(entry.event_id.clone());
            }
            let at = OffsetDateTime::parse(&entry.not_before, &Rfc2822).ok();
            let at = at.filter(|_| !begun);
            let rank = (!begun, at.is_none(), at);
            if first.as_ref().is_none_or(|(before, ..)| rank < *before) {
                first = Some((rank, *kind, entry));
            }
        }
        let ((pending, _, at), kind, entry) = first?;
        let when = match (pending, at) {
            (false, _) => "is under way".to_owned(),
            (true, None) => "is announced".to_owned(),
            (true, Some(at)) => {
                let (hour, minute, second) = at.to_offset(time::UtcOffset::UTC).to_hms();
                format!("is announced, not before {hour:02}:{minute:02}:{second:02} UTC")
            }
        };
        let cordon = Cordon {
            why: format!("{kind} of this machine {when} (event {})", entry.event_id),
            // By the service's clock, which wrote both dates; ours may be wrong by hours.
            before: at.map_or(Instant::FOREVER, |at| {
                now + Duration::try_from(at - date).unwrap_or_default()
            }),
        };
        Some(Announced { cordon, waiting })
    }
}

/// It is shown to people and sent back: nothing but what identifiers are made of.
fn is_id(text: &str) -> bool {
    let fits = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    (1..=ID_LIMIT).contains(&text.len()) && text.chars().all(fits)
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn an_event_for_us_says_what_and_when() {
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
    fn every_kind_that_disturbs_counts_and_no_other() {
        for (kind, _) in KINDS {
            let found = announced(&event(kind, r#""web-1""#, "Scheduled", ""));
            assert_eq!(found.unwrap().cordon.before, Instant::FOREVER, "{kind}");
        }
        let other = event("Party", r#""web-1""#, "Scheduled", "");
        assert_eq!(announced(&other), None);
    }

    #[test]
    fn what_is_for_another_machine_is_not_for_us() {
        for resources in [r#""web-2""#, r#""web-10", "xweb-1""#, ""] {
            let event = event("Reboot", resources, "Scheduled", "");
            assert_eq!(announced(&event), None, "{resources}");
        }
        assert_eq!(announced(""), None);
    }

    #[test]
    fn what_has_begun_comes_first_and_cannot_be_approved() {
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
    fn a_moment_that_has_passed_is_now_and_one_that_is_none_is_not_known() {
        let past = "Mon, 19 Sep 2022 18:00:00 GMT";
        let found = announced(&event("Reboot", r#""web-1""#, "Scheduled", past));
        assert_eq!(found.unwrap().cordon.before, NOW);
        let found = announced(&event("Reboot", r#""web-1""#, "Scheduled", "soon"));
        assert_eq!(found.unwrap().cordon.before, Instant::FOREVER);
    }

    #[test]
    fn nonsense_is_refused_and_an_identifier_that_is_none_is_passed_over() {
        for text in ["", "{}", "[]", "<html>", r#"{"Events": 7}"#] {
            assert!(Document::parse(text.as_bytes()).is_err(), "{text}");
        }
        let mut event = event("Reboot", r#""web-1""#, "Scheduled", "");
        event = event.replace("id-Reboot", r"x\nsomething else");
        assert_eq!(announced(&event), None);
    }
}
