//! Parsers for the name of a queue or subscription, and for a connection string of Service Bus.

use azure_core::credentials::Secret;

use crate::account::{AccountError, contradiction, malformed, missing};
use crate::address::shown;
use crate::credential::{Credential, parts_of_connection_string, refuse_quotes, unknown_part};

const SUBSCRIPTIONS: &str = "Subscriptions";
const DEAD_LETTERS: &str = "$DeadLetterQueue";
const SUFFIX: &str = ".servicebus.windows.net";

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Typed {
    pub(super) namespace: Option<Namespace>,
    // `QUEUE` or `TOPIC/Subscriptions/NAME`.
    pub(super) entity: String,
}

impl Typed {
    pub(super) fn read(text: &str) -> Result<Typed, AccountError> {
        let what = format!("--service-bus {}", shown(text));
        let refuse = |why: String| Err(malformed(&what, why));
        let (namespace, path) = match text.split_once("://") {
            Some((scheme, rest)) => {
                scheme_is_ours(scheme, &what)?;
                if rest.contains(['?', '#', '@']) {
                    return refuse(
                        "is more than an address: it is sb://HOST/QUEUE, and credentials come from \
                         the environment"
                            .to_owned(),
                    );
                }
                let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
                let namespace = Namespace::at(host, &what)?;
                (Some(namespace), path.trim_end_matches('/').to_owned())
            }
            None => {
                let parts: Vec<&str> = text.split('/').collect();
                let named = |name: &str| Namespace::named(name, &what);
                let is_subscription = |at: usize| parts[at].eq_ignore_ascii_case(SUBSCRIPTIONS);
                // Azure allows slashes in names, so `a/b` could be one queue. Here it is a queue of a
                // namespace, and a connection string for another namespace refuses it.
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
                                "; add --dead-letter-queue for dead letters"
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

/// Checks the path, and spells it as Microsoft's clients do.
fn check(path: &str) -> Result<String, String> {
    if path.is_empty() {
        return Err("names no queue: it is QUEUE, NAMESPACE/QUEUE or sb://HOST/QUEUE".to_owned());
    }
    let parts: Vec<&str> = path.split('/').collect();
    // Only a flag selects dead letters, never a name in a variable.
    if parts
        .iter()
        .any(|part| part.eq_ignore_ascii_case(DEAD_LETTERS))
    {
        return Err(
            "is a dead-letter queue: leave that part out, and add --dead-letter-queue".into(),
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
            "is not a queue's name: at most 260 letters, digits, '.', '-', '_' and '/', beginning and ending with a \
             letter or digit"
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

pub(super) fn scheme_is_ours(scheme: &str, what: &str) -> Result<(), AccountError> {
    match scheme.to_ascii_lowercase().as_str() {
        "sb" | "amqps" => Ok(()),
        "amqp" => Err(malformed(
            what,
            "is for plain TCP, which only the emulator may use: write sb://, and for the emulator \
             UseDevelopmentEmulator=true in the connection string",
        )),
        _ => Err(malformed(what, "does not begin with sb://, like sb://HOST")),
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Namespace {
    // In lower case; an IPv6 address has brackets.
    pub(super) host: String,
    pub(super) port: Option<u16>,
}

impl Namespace {
    pub(super) fn named(text: &str, what: &str) -> Result<Namespace, AccountError> {
        let host = match text.contains('.') {
            true => text.to_owned(),
            false => format!("{text}{SUFFIX}"),
        };
        Namespace::at(&host, what)
    }

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
            Some(_) => return refuse("has an invalid port: take 1 to 65535"),
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
            return refuse("names no host like contoso.servicebus.windows.net");
        }
        Ok(Namespace {
            host: host.to_ascii_lowercase(),
            port,
        })
    }

    /// Whether the other one is the same; a missing port here matches any.
    pub(super) fn is(&self, other: &Namespace) -> bool {
        self.host == other.host && self.port.is_none_or(|port| other.port == Some(port))
    }
}

pub(super) struct Parts {
    pub(super) endpoint: Namespace,
    pub(super) entity: Option<String>,
    // Plain TCP.
    pub(super) emulator: bool,
    pub(super) secret: Option<Credential>,
}

impl Parts {
    pub(super) fn read(text: &str, source: &str) -> Result<Parts, AccountError> {
        let whole = format!("copy the whole connection string into {source}");
        let (mut endpoint, mut entity, mut emulator) = (None, None, None);
        let (mut name, mut key, mut signature) = (None, None, None);
        refuse_quotes(source, Some(text))?;
        for (part, value) in parts_of_connection_string(text, source)? {
            let (word, slot) = match part.as_str() {
                "endpoint" => ("Endpoint", &mut endpoint),
                "entitypath" => ("EntityPath", &mut entity),
                "sharedaccesskeyname" => ("SharedAccessKeyName", &mut name),
                "sharedaccesskey" => ("SharedAccessKey", &mut key),
                "sharedaccesssignature" => ("SharedAccessSignature", &mut signature),
                "usedevelopmentemulator" => ("UseDevelopmentEmulator", &mut emulator),
                // For other clients: how long they wait.
                "operationtimeout" => continue,
                "transporttype" if value.eq_ignore_ascii_case("amqp") => continue,
                "transporttype" => {
                    return Err(malformed(
                        format!("TransportType in {source}"),
                        "can only be 'Amqp': WebSockets are not supported",
                    ));
                }
                part => return Err(unknown_part(part, source)),
            };
            if value.is_empty() {
                return Err(malformed(
                    format!("{word} in {source}"),
                    format!("is empty: {whole}"),
                ));
            }
            // Two strings were pasted together: the right key is unknown.
            if slot.replace(value.to_owned()).is_some() {
                return Err(malformed(format!("{word} in {source}"), "is there twice"));
            }
        }
        let emulator = match emulator.as_deref() {
            None => false,
            Some(word) if word.eq_ignore_ascii_case("true") => true,
            Some(word) if word.eq_ignore_ascii_case("false") => false,
            Some(_) => {
                return Err(malformed(
                    format!("UseDevelopmentEmulator in {source}"),
                    "is neither 'true' nor 'false'",
                ));
            }
        };
        let endpoint = endpoint.ok_or_else(|| missing(format!("Endpoint in {source}"), &*whole))?;
        let secret = match (name, key, signature) {
            (Some(_), _, Some(_)) | (_, Some(_), Some(_)) => {
                return Err(contradiction(
                    format!("SharedAccessKey in {source}"),
                    "SharedAccessSignature",
                    "one credential is needed, not two",
                ));
            }
            (Some(name), Some(key), None) => Some(Credential::Key {
                name,
                key: Secret::new(key),
            }),
            (Some(_), None, None) => {
                return Err(missing(format!("SharedAccessKey in {source}"), whole));
            }
            (None, Some(_), None) => {
                return Err(missing(format!("SharedAccessKeyName in {source}"), whole));
            }
            (None, None, Some(signature)) => Some(of_signature(signature, source)?),
            (None, None, None) => None,
        };
        Ok(Parts {
            endpoint: of_endpoint(&endpoint, source)?,
            entity,
            emulator,
            secret,
        })
    }
}

fn of_signature(text: String, source: &str) -> Result<Credential, AccountError> {
    let fields = text.strip_prefix("SharedAccessSignature ").unwrap_or("");
    let has = |name: &str| {
        fields
            .split('&')
            .any(|field| field.starts_with(name) && field.len() > name.len())
    };
    if !has("sr=") || !has("sig=") {
        return Err(malformed(
            format!("SharedAccessSignature in {source}"),
            "is none: write 'SharedAccessSignature sr=...&sig=...&se=...&skn=...'",
        ));
    }
    Ok(Credential::Sas(Secret::new(text)))
}

fn of_endpoint(text: &str, source: &str) -> Result<Namespace, AccountError> {
    let what = format!("Endpoint in {source}");
    let Some((scheme, rest)) = text.split_once("://") else {
        return Err(malformed(what, "does not begin with sb://, like sb://HOST"));
    };
    scheme_is_ours(scheme, &what)?;
    let host = rest.strip_suffix('/').unwrap_or(rest);
    if host.contains(['/', '?', '#', '@']) {
        return Err(malformed(
            what,
            "is more than sb://HOST/: write the queue as EntityPath, and no key here",
        ));
    }
    Namespace::at(host, &what)
}
