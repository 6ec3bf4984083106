//! Properties of readers of foreign bytes: each function takes any bytes and panics if a property
//! does not hold.
//!
//! The bounded test in this folder calls them on every run, and `fuzz/` with libFuzzer's bytes;
//! this file depends on neither. It bounds memory by the output: no reader returns more than a
//! stated multiple of its input.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use serde_json::Value;
use trafficcop::internals::parsers::{
    FrameEvent, FrameScanner, greeting as greet, rank_in, understand,
};
use trafficcop::queue::storage;
use trafficcop::{Bell, Instant};
use trafficcop_azure::{Account, Auth, AuthOptions};
use trafficcop_guardian::wire::{self, Event, PAYLOAD_MAX, Request};
use trafficcop_lease::blob::{self, metadata};
use trafficcop_lease::file::once_log;
use trafficcop_lease::file::record::{self as file_record, Content};
use trafficcop_lease::once::TaskLog;
use trafficcop_lease::record::Record;
use trafficcop_lease::version_record::{self as shared_record, VersionRecord};
use trafficcop_timeline::Record as EventRecord;
use url::Url;

/// A reader of bytes, with its property and seeds.
pub struct Target {
    /// Name on command lines.
    pub name: &'static str,
    /// Function that panics if a property does not hold.
    pub holds: fn(&[u8]),
    /// Valid bytes to begin with.
    pub seeds: fn() -> Vec<Vec<u8>>,
}

macro_rules! targets {
    ($($name:ident $seeds:ident,)*) => {
        pub const TARGETS: &[Target] = &[$(Target {
            name: stringify!($name),
            holds: $name,
            seeds: $seeds,
        },)*];
    };
}

targets! {
    lock_record lock_records,
    version_record version_records,
    blob_metadata blob_metadatas,
    task_log task_logs,
    connection_string connection_strings,
    sas sas_tokens,
    target_url target_urls,
    amqp_frames amqp_streams,
    event_log event_logs,
    control_frames frame_sequences,
    doorbell doorbells,
}

fn texts(record: &Record) -> usize {
    let Record {
        holder,
        host,
        since,
        command,
        bell,
        ..
    } = record;
    [holder, host, since, command, bell]
        .iter()
        .map(|text| text.len())
        .sum()
}

fn a_record() -> Record {
    Record {
        token: 41,
        holder: "höst-1".into(),
        host: "host".into(),
        pid: 7,
        since: "2026-01-01T00:00:00Z".into(),
        command: "sh -c 'a\n\"b\"'".into(),
        draining: true,
        bell: "10.0.0.4:4000 000102030405060708090a0b0c0d0e0f".into(),
        ..Record::default()
    }
}

const RESULTS: &str = concat!(
    r#"[{"key":"vé\n","periods":true,"over":{"period":3600,"exit":0,"token":6,"#,
    r#""by":"höst","at":"2026-01-01T00:00:00Z"}},"#,
    r#"{"key":"b","tries":{"failed":2,"token":7}}]"#
);

/// Checks a lock file with any content.
pub fn lock_record(bytes: &[u8]) {
    let content = file_record::decode(bytes);
    match &content {
        Content::Record(record) => {
            assert!(texts(record) <= bytes.len());
            let written = file_record::encode(record);
            assert_eq!(written.len(), file_record::WIDTH);
            let Content::Record(back) = file_record::decode(&written) else {
                panic!("what was written is no record");
            };
            // Texts may be cut, but not what counts.
            assert_eq!(
                (back.token, back.pid, back.draining),
                (record.token, record.pid, record.draining)
            );
            assert_eq!(file_record::encode(&back), written);
            if texts(record) < 256 {
                assert_eq!(&back, record);
            }
        }
        // A token is read, and never invented.
        Content::Damaged(Some(token)) => {
            let text = String::from_utf8_lossy(bytes);
            let mut numbers = text.split(|c: char| !c.is_ascii_digit());
            assert!(numbers.any(|number| number.parse() == Ok(*token)));
        }
        Content::Damaged(None) | Content::Empty | Content::Shared | Content::Foreign => {}
    }
    // A torn record's token never goes back; the bytes say where it is torn.
    let (Some(at), Some(by)) = (bytes.first(), bytes.get(1)) else {
        return;
    };
    let record = |token| Record {
        token,
        ..a_record()
    };
    // Where the next number has a digit more.
    let old = 10_u64.pow(u32::from(by % 20)) - 1;
    let (before, after) = (
        file_record::encode(&record(old)),
        file_record::encode(&record(old + 1)),
    );
    let torn = [&after[..usize::from(*at)], &before[usize::from(*at)..]].concat();
    let token = match file_record::decode(&torn) {
        Content::Record(record) => record.token,
        Content::Damaged(Some(token)) => token,
        other => panic!("torn at {at}: {other:?}"),
    };
    assert!(token >= old, "torn at {at}: {token} after {old}");
}

fn lock_records() -> Vec<Vec<u8>> {
    vec![
        file_record::encode(&a_record()),
        file_record::encode(&Record::default()),
        serde_json::to_vec(&a_record()).expect("JSON"),
        b"\0\0\"token\": 7,\"holder\"{\"token\":12,".to_vec(),
    ]
}

fn fnv(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

const FIRST_LINE: &[u8] = b"trafficcop shared lock 1\n";

/// Makes these bytes the line of a record with a valid checksum, which they never have by chance.
fn sealed(line: &[u8]) -> Vec<u8> {
    let check = format!("\n{:016x}\n", fnv(line));
    [FIRST_LINE, line, check.as_bytes()].concat()
}

/// Checks a version's record, or the hint, whole or torn.
pub fn version_record(bytes: &[u8]) {
    let line = bytes.strip_prefix(FIRST_LINE).unwrap_or(bytes);
    let line = line.split(|byte| *byte == b'\n').next().unwrap_or_default();
    for bytes in [bytes, &sealed(line)] {
        let Some(record) = VersionRecord::decode(bytes) else {
            continue;
        };
        let long = texts(&record.record) + record.record.once.text().len();
        assert!(long <= 8 * bytes.len());
        let written = record.encode();
        assert!(written.len() <= shared_record::WIDTH);
        let hint = record.encode_hint();
        assert_eq!(hint.len(), shared_record::WIDTH);
        let back = VersionRecord::decode(&written).expect("what was written is a record");
        assert_eq!(VersionRecord::decode(&hint).as_ref(), Some(&back));
        assert_eq!(back.version, record.version);
        assert_eq!(back.record.token, record.record.token);
        // Results that have no room are not forgotten silently.
        assert!(back.unread == record.unread || back.unread && back.record.once == TaskLog::EMPTY);
        assert_eq!(back.encode(), written);
        if long < 1024 {
            assert_eq!(back, record);
        }
        // With the kernel's locks it is a foreign file.
        assert_eq!(file_record::decode_record(&written), Content::Foreign);
        assert_eq!(file_record::decode(&written), Content::Shared);
        // Cut anywhere, it is no record.
        let cut = usize::from(bytes[bytes.len() / 2]) * written.len() / 256;
        assert_eq!(VersionRecord::decode(&written[..cut]), None);
    }
}

fn version_records() -> Vec<Vec<u8>> {
    let line = |state: &str, once: &str| {
        let mut line = serde_json::json!({
            "version": 41, "state": state, "nonce": format!("{:032x}", u128::MAX),
            "lease_ms": 60_000, "tenure": 7, "holder": "höst", "host": "h", "pid": 7,
            "since": "2026-01-01T00:00:00Z", "command": "sh -c 'a\nb'",
            "doorbell": "10.0.0.4:4000 000102030405060708090a0b0c0d0e0f", "once": once,
        });
        if once.is_empty() {
            line["unread"] = Value::Bool(true);
        }
        sealed(line.to_string().as_bytes())
    };
    vec![
        line("held", RESULTS),
        line("draining", ""),
        line("released", "no results"),
    ]
}

/// Checks lines of `KEY:VALUE`.
pub fn blob_metadata(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    // The service ignores the case of names, and has each once.
    let mut seen = BTreeSet::new();
    let pairs: Vec<(&str, &str)> = text
        .lines()
        .filter_map(|line| line.split_once(':'))
        .filter(|(key, _)| seen.insert(key.to_ascii_lowercase()))
        .collect();
    let found = metadata::read(pairs.iter().copied());
    // Foreign metadata is never lost or changed.
    for (key, value) in &found.others {
        assert!(pairs.contains(&(key, value)));
    }
    let ours = pairs.len() - found.others.len();
    assert!(ours <= 9 && (found.record.is_some() == (ours > 0)));
    let Some(record) = &found.record else {
        return;
    };
    assert!(texts(record) <= bytes.len());
    // A token that is no number is reported.
    assert!(found.broken_token.is_none() || record.token == 0);
    // New results replace unreadable ones.
    let mut others = found.others.clone();
    if record.once != TaskLog::EMPTY {
        others.retain(|key, _| !key.eq_ignore_ascii_case("trafficcop_once"));
    }
    let written = metadata::write(&others, record);
    let size: usize = written
        .iter()
        .map(|(key, value)| key.len() + value.len())
        .sum();
    assert!(size <= 4 * bytes.len() + 1024);
    for (key, value) in &written {
        let ours = key.starts_with("trafficcop_") && !others.contains_key(key);
        assert!(!ours || value.bytes().all(|b| (b' '..=b'~').contains(&b)));
        assert!(!ours || value.trim() == value && !value.is_empty());
    }
    let back = metadata::read(written.iter().map(|(k, v)| (k.as_str(), v.as_str())));
    assert_eq!(back.record.as_ref(), Some(record));
    assert_eq!(back.others, others);
    assert_eq!(back.broken_token, None);
}

fn blob_metadatas() -> Vec<Vec<u8>> {
    let mut record = a_record();
    record.once = TaskLog::parse(RESULTS).expect("results");
    let others = BTreeMap::from([("Owner".to_owned(), "100% theirs".to_owned())]);
    let lines = |pairs: &mut dyn Iterator<Item = (String, String)>| {
        let mut text = String::new();
        for (key, value) in pairs {
            let _ = writeln!(text, "{key}:{value}");
        }
        text.into_bytes()
    };
    let mut written: Vec<_> = metadata::write(&others, &record).into_iter().collect();
    written.sort();
    vec![
        lines(&mut written.iter().cloned()),
        b"TrafficCop_Token: 12 \nx:y\ntrafficcop_once:[nothing]\n".to_vec(),
        b"trafficcop_token:twelve\ntrafficcop_draining:TRUE\n".to_vec(),
    ]
}

/// Checks results as text, and as a line of a lock file.
pub fn task_log(bytes: &[u8]) {
    let edition = bytes
        .iter()
        .fold(0, |all: u64, byte| all << 8 ^ u64::from(*byte));
    if let Some((_, task_log)) = once_log::decode(bytes) {
        reads_back(&task_log, edition, bytes.len());
    }
    // Random lines are never whole: their content is tried alone.
    let value = serde_json::from_slice::<Value>(bytes).unwrap_or_default();
    let text = match value.get("once") {
        Some(once) => once.to_string(),
        None => String::from_utf8_lossy(bytes).into_owned(),
    };
    if let Some(task_log) = TaskLog::parse(&text) {
        reads_back(&task_log, edition, text.len());
    }
}

fn reads_back(task_log: &TaskLog, edition: u64, length: usize) {
    let text = task_log.text();
    // Each entry of `[]` may have fields that are omitted when empty.
    assert!(text.len() <= 8 * length + 2);
    let back = match text.as_str() {
        "" => TaskLog::EMPTY,
        text => TaskLog::parse(text).expect("what was written is a log"),
    };
    assert_eq!(&back, task_log);
    let line = once_log::encode(task_log, edition);
    assert_eq!(line.len(), 4096);
    if task_log.fits() {
        assert_eq!(once_log::decode(&line), Some((edition, back)));
    }
    // Torn over an older one, it is one of the two, or none.
    let before = once_log::encode(&TaskLog::EMPTY, edition.wrapping_sub(1));
    let cut = length % line.len();
    let torn = [&line[..cut], &before[cut..]].concat();
    if let Some((found, results)) = once_log::decode(&torn) {
        let one = found == edition && &results == task_log;
        let other = found == edition.wrapping_sub(1) && results == TaskLog::EMPTY;
        assert!(one || other, "torn at {cut}: edition {found}");
    }
}

fn task_logs() -> Vec<Vec<u8>> {
    let results = TaskLog::parse(RESULTS).expect("results");
    vec![
        once_log::encode(&results, 7),
        once_log::encode(&TaskLog::EMPTY, u64::MAX),
        RESULTS.into(),
    ]
}

const KEY: &str = "c2VjcmV0LW9mLXRoZS1hY2NvdW50";
const SIGNATURE: &str = "c2lnbmF0dXJlLW9mLXRoZS1zYXM";

/// Reads an account: a message about it is short and shows no secret.
fn finds(variable: &'static str, bytes: &[u8]) -> Option<Account> {
    let text = String::from_utf8_lossy(bytes).into_owned();
    // Otherwise it looks for credentials in the machine's environment.
    let options = AuthOptions {
        auth: Auth::Auto,
        ..AuthOptions::default()
    };
    let env = |name: &str| match name {
        "AZURE_STORAGE_ACCOUNT" if variable == "AZURE_STORAGE_SAS_TOKEN" => Some("acct".to_owned()),
        name => (name == variable).then(|| text.clone()),
    };
    let mut found = None;
    for service in [Account::find, Account::find_queue] {
        let account = service(&env, &options, None);
        let shown = match &account {
            Ok(account) => format!("{account:?}"),
            Err(error) => error.to_string(),
        };
        assert!(shown.len() <= 3 * text.len() + 1024, "{shown}");
        for secret in [KEY, SIGNATURE] {
            assert!(!shown.contains(secret), "{shown}");
        }
        if let Ok(account) = account {
            let endpoint = account.endpoint();
            // The connection is encrypted, and the address has no secret.
            let local = ["localhost", "127.", "[::1]"];
            let host = endpoint.host_str().expect("a host");
            assert!(
                endpoint.scheme() == "https"
                    || host.ends_with(".localhost")
                    || local.iter().any(|here| host.starts_with(here)),
                "{endpoint}"
            );
            assert!(endpoint.query().is_none() && endpoint.password().is_none());
            found = Some(account);
        }
    }
    found
}

/// Checks `AZURE_STORAGE_CONNECTION_STRING`.
pub fn connection_string(bytes: &[u8]) {
    finds("AZURE_STORAGE_CONNECTION_STRING", bytes);
}

fn connection_strings() -> Vec<Vec<u8>> {
    [
        format!("DefaultEndpointsProtocol=https;AccountName=acct;AccountKey={KEY};EndpointSuffix=core.windows.net"),
        format!("BlobEndpoint=https://acct.blob.core.windows.net/;\
             QueueEndpoint=https://acct.queue.core.windows.net;\
             SharedAccessSignature=sv=2024-11-04&sr=c&sp=rw&sig={SIGNATURE}%3D"),
        format!("AccountName=devstoreaccount1;AccountKey={KEY};BlobEndpoint=http://127.0.0.1:10000/devstoreaccount1"),
        "UseDevelopmentStorage=true".to_owned(),
    ]
    .map(String::into_bytes)
    .to_vec()
}

/// Checks `AZURE_STORAGE_SAS_TOKEN`.
pub fn sas(bytes: &[u8]) {
    // A blank one does not count; Entra ID provides the credential.
    if let Some(account) = finds("AZURE_STORAGE_SAS_TOKEN", bytes) {
        let blank = String::from_utf8_lossy(bytes).trim().is_empty();
        assert_eq!(account.kind() == "SAS", !blank);
        let _ = account.is_for_one_blob();
    }
}

fn sas_tokens() -> Vec<Vec<u8>> {
    [
        format!("?sv=2024-11-04&ss=bq&srt=sco&sp=rwdl&se=2026-01-01T00:00:00Z&spr=https&sig={SIGNATURE}%3D"),
        format!("sv=2024-11-04&sr=b&sp=rw&sig={SIGNATURE}"),
        format!("sig={SIGNATURE}"),
    ]
    .map(String::into_bytes)
    .to_vec()
}

/// Checks the name or URL of a blob or a queue.
pub fn target_url(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    let endpoint = Url::parse("https://acct.blob.core.windows.net/").expect("a URL");
    for read in [blob::Target::parse, blob::Target::of_listing] {
        match read(text) {
            Ok(target) => {
                assert!(target.container().len() + target.name().len() <= text.len() + 8);
                // A name is not secret.
                let shown = format!("{target:?}");
                let named = format!("{}/{}", target.container(), target.name());
                assert!(
                    !shown.contains(SIGNATURE) || named.contains(SIGNATURE),
                    "{shown}"
                );
            }
            Err(error) => says_no_more(&error.to_string(), text),
        }
    }
    if let Ok(target) = blob::Target::parse(text) {
        // The address leads to this blob only: read again, it names the same.
        let address = target.blob_url(&endpoint);
        assert!(address.as_str().starts_with(endpoint.as_str()));
        let again = blob::Target::parse(address.as_str()).expect("our own address");
        assert_eq!(
            (again.container(), again.name()),
            (target.container(), target.name())
        );
        assert!(address.query().is_none() && address.fragment().is_none());
    }
    match storage::Target::parse(text) {
        Ok(target) => {
            // A URL's parser drops or decodes these.
            let is_read = text.contains(['%', '\t', '\r', '\n']);
            assert!(text.contains(target.queue()) || is_read);
            let poison = target.poison(None);
            assert_eq!(poison.is_ok(), target.queue().len() + "-poison".len() <= 63);
        }
        Err(error) => says_no_more(&error.to_string(), text),
    }
}

/// Checks that an error is one line without a secret.
fn says_no_more(error: &str, text: &str) {
    let signed = text.contains(&format!("sig={SIGNATURE}"));
    assert!(!signed || !error.contains(SIGNATURE), "{error}");
    assert!(error.len() <= 3 * text.len() + 1024, "{error}");
    assert!(!error.contains('\n'), "{error}");
}

fn target_urls() -> Vec<Vec<u8>> {
    [
        "locks/a/b c".to_owned(),
        "$root/x".to_owned(),
        format!(
            "https://acct.blob.core.windows.net/locks/w%20e%C3%A4%2F?sv=2024-11-04&sig={SIGNATURE}"
        ),
        "http://127.0.0.1:10000/devstoreaccount1/locks/x".to_owned(),
        format!("https://acct.queue.core.windows.net/work?sig={SIGNATURE}"),
        "https://[::1]:8080/acct/work-items".to_owned(),
        "work-items".to_owned(),
    ]
    .map(String::into_bytes)
    .to_vec()
}

/// Checks a broker's stream, in pieces by the first byte.
pub fn amqp_frames(bytes: &[u8]) {
    let Some((piece, stream)) = bytes.split_first() else {
        return;
    };
    let read = |piece: usize| {
        let mut scanner = FrameScanner::default();
        let (mut events, mut passed) = (Vec::new(), 0);
        for part in stream.chunks(piece) {
            match scanner.feed(part, |event| events.push(event)) {
                Ok(()) => passed += part.len(),
                Err(before) => {
                    assert!(before <= part.len());
                    passed += before;
                    return (events, Some(passed));
                }
            }
        }
        (events, None)
    };
    // The pieces do not change what is read.
    let (events, short) = read(usize::MAX);
    let (others, other) = read(usize::from(*piece) + 1);
    assert_eq!(events, others);
    // In pieces, a part of a broken frame that is shorter than a size has gone by already.
    assert_eq!(short.is_some(), other.is_some());
    if let (Some(whole), Some(cut)) = (short, other) {
        assert!(whole <= cut && cut - whole < 4, "{whole}, {cut}");
    }
    // No frame is shorter than its header; each yields at most one event.
    assert!(events.len() <= stream.len() / 8);
    let long: usize = events
        .iter()
        .map(|event| match event {
            FrameEvent::Attach { name, .. } => name.len(),
            // An invalid UTF-8 byte becomes a character of three.
            other => format!("{other:?}").len().saturating_sub(128) / 8,
        })
        .sum();
    assert!(long <= 3 * stream.len());
}

fn frame(channel: u8, code: u8, fields: &[&[u8]], behind: &[u8]) -> Vec<u8> {
    let fields = fields.concat();
    let mut body = vec![0, 0x53, code, 0xd0];
    let length = |bytes: usize| u32::try_from(bytes).expect("short").to_be_bytes();
    body.extend(length(fields.len() + 4));
    body.extend([0, 0, 0, 9]);
    body.extend(&fields);
    body.extend(behind);
    let mut frame = length(body.len() + 8).to_vec();
    frame.extend([2, 0, 0, channel]);
    frame.extend(body);
    frame
}

fn amqp_streams() -> Vec<Vec<u8>> {
    let refused = b"\x00\x53\x25\xc0\x10\x01\x00\x53\x1d\xc0\x0a\x02\xa3\x03a:b\xa1\x02no";
    let frames = [
        vec![7],
        b"AMQP\x03\x01\x00\x00".to_vec(),
        vec![0, 0, 0, 12, 2, 1, 0, 0, 0, 0x53, 0x15, 0x45],
        b"AMQP\x00\x01\x00\x00".to_vec(),
        frame(7, 0x12, &[b"\xa1\x02me", b"\x52\x03", b"\x42"], b""),
        vec![0, 0, 0, 8, 2, 0, 0, 0],
        frame(
            7,
            0x14,
            &[b"\x52\x03\x43\xa0\x01x\x43\x42\x41"],
            &[0x53; 300],
        ),
        frame(7, 0x14, &[b"\x52\x03"], b"payload"),
        frame(7, 0x13, &[b"\x43\x43\x43\x43\x52\x03\x43\x43\x40\x41"], b""),
        frame(7, 0x15, &[b"\x42\x52\x04\x52\x06\x41", refused], b""),
    ];
    vec![
        frames.concat(),
        frames[..5].concat(),
        [&[0], &frames[9][..]].concat(),
        [&[0], &frames[6][..], &frames[4][..]].concat(),
    ]
}

/// Checks logs as instances, crashes and editors leave them.
pub fn event_log(bytes: &[u8]) {
    let lines: Vec<&[u8]> = bytes.split(|byte| *byte == b'\n').collect();
    for line in &lines {
        // Written as read, without unknown fields.
        if let Ok(record) = serde_json::from_slice::<EventRecord>(line) {
            let written = serde_json::to_vec(&record).expect("JSON");
            assert!(written.len() <= 8 * line.len() + 512);
            let back: EventRecord = serde_json::from_slice(&written).expect("what was written");
            assert_eq!(serde_json::to_vec(&back).expect("JSON"), written);
        }
    }
    let log = trafficcop_timeline::read([("log", bytes)]);
    let merged = trafficcop_timeline::merge(&log, 100_000_000);
    // Copies and the order of lines do not matter.
    let turned: Vec<&[u8]> = lines.iter().rev().copied().collect();
    let turned = turned.join(&b'\n');
    let again = trafficcop_timeline::merge(
        &trafficcop_timeline::read([("log", &turned[..])]),
        100_000_000,
    );
    assert_eq!(again.contradictions(), merged.contradictions());
    let picture = trafficcop_timeline::svg(&merged);
    assert!(picture.len() <= 4096 * lines.len() + 16 * bytes.len() + 65_536);
    assert!(picture.starts_with("<svg ") && picture.ends_with("</svg>\n"));
}

fn event_logs() -> Vec<Vec<u8>> {
    let line = |who: &str, seq: u64, at: u64, event: &str, more: &str| {
        let (second, milli) = (at / 1000, at % 1000);
        format!(
            "{{\"v\":1,\"time\":\"2026-01-01T00:00:{second:02}.{milli:03}Z\",\"boottime_ns\":{},\"boot_id\":\"b\",\
             \"host\":\"h\",\"identity\":\"{who}\",\"pid\":7,\"run\":1,\"seq\":{seq},\
             \"lock\":\"file:/x\",\"event\":\"{event}\"{more}}}\n",
            at * 1_000_000
        )
    };
    let mut log = String::new();
    for (tenure, who) in ["a", "b"].into_iter().enumerate() {
        let at = 20_000 * tenure as u64;
        let token = format!(",\"token\":{}", tenure + 1);
        let lease = format!(
            "{token},\"deadline_ns\":{},\"expires_ns\":{}",
            (at + 14_000) * 1_000_000,
            (at + 15_000) * 1_000_000
        );
        for (seq, (after, event, more)) in [
            (0, "competing", ""),
            (10, "standby", ",\"holder\":\"c\""),
            (20, "holding", &*token),
            (20, "starting", &*lease),
            (25, "command-started", &*token),
            (5000, "doubt", ",\"cause\":\"why\""),
            (5500, "recovered", ""),
            (5500, "renewed", &*lease),
            (9000, "draining", ",\"cause\":\"stopped\""),
            (9100, "command-ended", ",\"command_exit\":143"),
            (9200, "tree-empty", &*token),
            (9300, "released", &*token),
            (9400, "done", ",\"exit\":143"),
        ]
        .into_iter()
        .enumerate()
        {
            log += &line(who, seq as u64, at + after, event, more);
        }
    }
    let half = log.len() / 2;
    vec![log.clone().into_bytes(), log.as_bytes()[half..].to_vec()]
}

/// Checks frames, then changes of an environment.
pub fn control_frames(bytes: &[u8]) {
    let (frames, rest) = bytes.as_chunks::<{ wire::FRAME }>();
    for frame in frames {
        if let Ok(request) = Request::decode(frame) {
            assert!(request.payload() <= PAYLOAD_MAX);
            assert_eq!(Request::decode(&request.encode()), Ok(request));
            assert!(
                Event::decode(frame).is_err(),
                "both sides' word: {request:?}"
            );
        }
        if let Ok(event) = Event::decode(frame) {
            assert_eq!(Event::decode(&event.encode()), Ok(event));
        }
    }
    for bytes in [rest, bytes] {
        let changes = wire::variables(bytes);
        let long: usize = changes
            .iter()
            .map(|(name, value)| name.len() + value.as_ref().map_or(0, |value| value.len()))
            .sum();
        assert!(long <= bytes.len());
        // Fit for a command: no NUL, and no `=` in a name.
        for (name, value) in &changes {
            let whole = |text: &std::ffi::OsString| !text.as_encoded_bytes().contains(&0);
            assert!(whole(name) && value.as_ref().is_none_or(whole));
            assert!(!name.as_encoded_bytes().contains(&b'='));
        }
    }
}

fn frame_sequences() -> Vec<Vec<u8>> {
    use trafficcop_core::Deadlines;
    let deadlines = Deadlines {
        term_at: Instant::from_nanos(5_000_000_000),
        kill_at: Instant::from_nanos(9_000_000_000),
    };
    let requests = [
        Request::Start {
            program: 1,
            in_control: true,
            deadlines,
            stop_signal: 15,
            stop_to: trafficcop_guardian::StopTo::Main,
            env: 12,
            release_info: 3,
            lock: true,
            input: false,
        },
        Request::Extend(deadlines),
        Request::Drain {
            signal: 15,
            end_of_grace: deadlines.term_at,
        },
        Request::SetReleaseInfo { release_info: 9 },
        Request::Ping(7),
    ];
    let mut frames: Vec<u8> = requests.into_iter().flat_map(Request::encode).collect();
    frames.extend(b"A=x=y\0B=\0C\0");
    let events = [Event::Ready, Event::Unready { errno: 5 }, Event::Pong(7)];
    vec![
        frames,
        events.into_iter().flat_map(Event::encode).collect(),
        b"A=1\0B\0".to_vec(),
    ]
}

/// Checks a record's doorbell, a greeting, and messages.
pub fn doorbell(bytes: &[u8]) {
    if let Ok(text) = std::str::from_utf8(bytes)
        && let Ok(bell) = text.parse::<Bell>()
    {
        assert_eq!(bell.to_string().parse::<Bell>(), Ok(bell));
        let _ = bell.is_near();
    }
    if let Some((greeting, words)) = bytes.split_first_chunk::<12>() {
        let (theirs, _) = greeting.split_at(8);
        let mut nonce = [0; 16];
        nonce[8..].copy_from_slice(theirs);
        let nonce = u128::from_be_bytes(nonce);
        let rank = rank_in(*greeting, nonce).expect("it is this one's");
        assert_eq!(greet(nonce, rank), *greeting);
        assert_eq!(rank_in(*greeting, nonce ^ 1), None);
        says(words);
    }
    says(bytes);
}

fn says(words: &[u8]) {
    let mut rings = 0;
    let last = understand(words, |_| rings += 1);
    assert!(rings <= words.len());
    // Word by word, the same is understood.
    let mut others = 0;
    let other = words
        .iter()
        .find_map(|word| understand(&[*word], |_| others += 1));
    assert_eq!((last, rings), (other, others));
}

fn doorbells() -> Vec<Vec<u8>> {
    vec![
        b"10.0.0.4:4000 000102030405060708090a0b0c0d0e0f".to_vec(),
        b"[fd00::1]:4000 ffffffffffffffffffffffffffffffff".to_vec(),
        [&greet(7 << 64 | 9, 3)[..], b"....d..r"].concat(),
    ]
}
