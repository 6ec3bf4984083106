//! What was typed to name a queue or a subscription, by Azure's rules for names.
//!
//! Called by the parent alone. Must never guess: a slash that could mean two things is refused
//! where the two differ.

use super::namespace::Namespace;
use crate::azure::account_error::{AccountError, malformed};

const WHAT: &str = "--service-bus";
/// Between a topic and the name of a subscription to it, however it is written.
const SUBSCRIPTIONS: &str = "Subscriptions";
/// Behind the path of what it belongs to.
const DEAD_LETTERS: &str = "$DeadLetterQueue";

/// A queue or a subscription.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Typed {
    /// Where, if that was said.
    pub(super) namespace: Option<Namespace>,
    /// `QUEUE` or `TOPIC/Subscriptions/NAME`.
    pub(super) entity: String,
}

impl Typed {
    /// Reads it.
    pub(super) fn read(text: &str) -> Result<Typed, AccountError> {
        let refuse = |why: String| Err(malformed(format!("{WHAT} {}", shown(text)), why));
        let (namespace, path) = match text.split_once("://") {
            Some((scheme, rest)) => {
                scheme_is_ours(scheme, &format!("{WHAT} {}", shown(text)))?;
                if rest.contains(['?', '#', '@']) {
                    return refuse(
                        "is more than an address: it is sb://HOST/QUEUE, and credentials come from \
                         the environment"
                            .to_owned(),
                    );
                }
                let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
                let namespace = Namespace::at(host, &format!("{WHAT} {}", shown(text)))?;
                (Some(namespace), path.trim_end_matches('/').to_owned())
            }
            None => {
                let parts: Vec<&str> = text.split('/').collect();
                let named = |name: &str| Namespace::named(name, &format!("{WHAT} {}", shown(text)));
                let is_subscription = |at: usize| parts[at].eq_ignore_ascii_case(SUBSCRIPTIONS);
                match parts.len() {
                    1 => (None, text.to_owned()),
                    3 if is_subscription(1) => (None, text.to_owned()),
                    2 if !parts[1].starts_with('$') => {
                        (Some(named(parts[0])?), parts[1].to_owned())
                    }
                    4 if is_subscription(2) => (Some(named(parts[0])?), parts[1..].join("/")),
                    _ => {
                        return refuse(format!(
                            "is neither QUEUE nor NAMESPACE/QUEUE nor \
                             TOPIC/{SUBSCRIPTIONS}/NAME{}; a queue with a slash in its name is \
                             written as sb://HOST/NAME",
                            if text.to_ascii_lowercase().ends_with("/$deadletterqueue") {
                                "; say --dead-letter-queue for what has been put aside"
                            } else {
                                ""
                            }
                        ));
                    }
                }
            }
        };
        match check(&path) {
            Ok(entity) => Ok(Typed { namespace, entity }),
            Err(why) => refuse(why),
        }
    }

    /// Whether `path`, of a connection string, is this entity, or the topic of this subscription.
    pub(super) fn is_of(&self, path: &str) -> bool {
        let path = path.trim_matches('/');
        let topic = self.entity.split_once('/').filter(|(_, rest)| {
            let first = rest.split('/').next().unwrap_or_default();
            first.eq_ignore_ascii_case(SUBSCRIPTIONS)
        });
        self.entity.eq_ignore_ascii_case(path)
            || topic.is_some_and(|(topic, _)| topic.eq_ignore_ascii_case(path))
    }
}

/// The entity's path, written as Microsoft's clients do.
fn check(path: &str) -> Result<String, String> {
    if path.is_empty() {
        return Err("names no queue: it is QUEUE, NAMESPACE/QUEUE or sb://HOST/QUEUE".to_owned());
    }
    let parts: Vec<&str> = path.split('/').collect();
    if parts
        .iter()
        .any(|part| part.eq_ignore_ascii_case(DEAD_LETTERS))
    {
        return Err(
            "is a dead-letter queue: leave that part out, and say --dead-letter-queue".into(),
        );
    }
    if let [topic @ .., word, name] = &parts[..]
        && word.eq_ignore_ascii_case(SUBSCRIPTIONS)
    {
        let topic = topic.join("/");
        if !fits(&topic, 260) || !fits(name, 50) {
            return Err(format!(
                "is no TOPIC/{SUBSCRIPTIONS}/NAME by Azure's rules for names"
            ));
        }
        return Ok(format!("{topic}/{SUBSCRIPTIONS}/{name}"));
    }
    if !fits(path, 260) {
        return Err(
            "is no name of a queue: at most 260 letters, digits, `.`, `-`, `_` and `/`, beginning \
             and ending with a letter or digit"
                .to_owned(),
        );
    }
    Ok(path.to_owned())
}

fn fits(name: &str, most: usize) -> bool {
    let bytes = name.as_bytes();
    let inner = |b: &u8| b.is_ascii_alphanumeric() || b"._-~/".contains(b);
    let end = |b: Option<&u8>| b.is_some_and(u8::is_ascii_alphanumeric);
    (1..=most).contains(&bytes.len())
        && bytes.iter().all(inner)
        && !name.contains("//")
        && end(bytes.first())
        && end(bytes.last())
}

/// What of an address may be shown: nothing that somebody pasted behind it.
fn shown(text: &str) -> String {
    let end = text.find(['?', '#', ';', '=']).unwrap_or(text.len());
    let begin = text[..end].rfind('@').map_or(0, |at| at + 1);
    let plain = text[begin..end].chars().filter(|c| !c.is_control());
    plain.take(80).collect()
}

/// Whether this scheme is Service Bus's.
pub(super) fn scheme_is_ours(scheme: &str, what: &str) -> Result<(), AccountError> {
    match scheme.to_ascii_lowercase().as_str() {
        "sb" | "amqps" => Ok(()),
        "amqp" => Err(malformed(
            what,
            "asks for plain TCP, which is for the emulator alone: write sb://, and \
             UseDevelopmentEmulator=true into the connection string if it is the emulator",
        )),
        _ => Err(malformed(what, "does not begin with sb://")),
    }
}
