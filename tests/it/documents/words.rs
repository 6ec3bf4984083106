//! Retired words stay retired: this project's names for things that the field has a term for.

use std::path::Path;

use crate::documents::{chapters, root, text};

/// A retired word, and its replacement. Only words without another meaning: `audience` is OAuth's,
/// `page` memory's, `cast` Rust's.
const GONE: &[(&str, &str)] = &[
    ("afterlife", "what happens once the supervisor is dead"),
    ("aftermath", "the --on-lost hook"),
    ("attendant", "guardian handle"),
    ("belief", "lock duration"),
    ("cage", "containment"),
    ("campaign", "context, or competing"),
    ("clerk", "message lease"),
    ("desk", "waiter, scheduler"),
    ("errand", "task"),
    ("estate", "what the guardian shares with the supervisor"),
    ("grip", "attempt"),
    ("herald", "service manager"),
    ("keeper", "connection task, lock holder"),
    ("lane", "fast poll, blocking work"),
    ("ledger", "task log, output state"),
    ("mouth", "line writer"),
    ("newborn", "child"),
    ("notary", "message lease"),
    ("parcel", "frame"),
    ("rehearsal", "probe"),
    ("shelf", "prefetch"),
    ("sighting", "lock status"),
    ("stand aside", "do not compete: cordoned"),
    ("stand back", "do not compete: cool down"),
    ("standing aside", "cordoned"),
    ("standing back", "cooling down"),
    ("teller", "event log"),
    ("vault", "shared token"),
    ("vigil", "event loop"),
    ("vitals", "health check"),
];

fn has(text: &str, word: &str) -> bool {
    let text = text.to_lowercase();
    let part = |c: char| c.is_alphanumeric() || c == '_';
    text.match_indices(word).any(|(at, _)| {
        let rest = &text[at + word.len()..];
        let rest = rest.strip_prefix('s').unwrap_or(rest);
        !text[..at].ends_with(part) && !rest.starts_with(part)
    })
}

/// Returns comments and strings with their first lines; names are not checked.
fn said(source: &str) -> Vec<(usize, String)> {
    let bytes = source.as_bytes();
    let mut said = Vec::new();
    let (mut at, mut line) = (0, 1);
    while at < bytes.len() {
        let rest = &source[at..];
        let length = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with('"') {
            quoted(rest)
        } else if let Some(hashes) = raw(rest) {
            let end = format!("\"{}", "#".repeat(hashes));
            let begin = hashes + 2;
            rest[begin..]
                .find(&end)
                .map_or(rest.len(), |to| begin + to + end.len())
        } else {
            // A quote as a character begins no string.
            let step = ["'\"'", "'\\\"'"]
                .iter()
                .find(|quote| rest.starts_with(**quote));
            let step = step.map_or(rest.chars().next().map_or(1, char::len_utf8), |q| q.len());
            line += rest[..step].matches('\n').count();
            at += step;
            continue;
        };
        said.push((line, rest[..length].to_owned()));
        line += rest[..length].matches('\n').count();
        at += length;
    }
    said
}

fn quoted(rest: &str) -> usize {
    let mut escaped = false;
    for (at, c) in rest.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' => return at + 1,
            _ => {}
        }
    }
    rest.len()
}

fn raw(rest: &str) -> Option<usize> {
    let rest = rest.strip_prefix('r')?;
    let hashes = rest.len() - rest.trim_start_matches('#').len();
    rest[hashes..].starts_with('"').then_some(hashes)
}

fn sources(folder: &Path, into: &mut Vec<(String, String)>) {
    for entry in std::fs::read_dir(folder).expect("a directory") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            sources(&path, into);
        } else if let Ok(text) = std::fs::read_to_string(&path) {
            let name = path.strip_prefix(root()).expect("below the root");
            into.push((name.display().to_string(), text));
        }
    }
}

#[test]
fn the_documents_speak_the_field_s_words() {
    let mut read: Vec<(String, String)> = Vec::new();
    for path in ["README.md", "CONTRIBUTING.md", "SECURITY.md", "Cargo.toml"] {
        read.push((path.into(), text(path)));
    }
    for path in chapters() {
        read.push((path.clone(), text(&path)));
    }
    for folder in ["man", "examples", "completions", ".github"] {
        sources(&root().join(folder), &mut read);
    }
    for (path, text) in read {
        for (word, instead) in GONE {
            assert!(!has(&text, word), "{path} says {word}: say {instead}");
        }
    }
}

#[test]
fn comments_and_messages_speak_the_field_s_words() {
    let mut read = Vec::new();
    sources(&root().join("src"), &mut read);
    sources(&root().join("crates"), &mut read);
    assert!(read.len() >= 100, "only {} sources", read.len());
    let mut flaws = Vec::new();
    for (path, text) in &read {
        for (line, text) in said(text) {
            for (word, instead) in GONE {
                if has(&text, word) {
                    flaws.push(format!("{path}:{line} says {word}: say {instead}"));
                }
            }
        }
    }
    assert!(flaws.is_empty(), "{}", flaws.join("\n"));
}

#[test]
fn retired_words_are_found_in_text_and_not_in_code() {
    let source = "let cage = '\"'; // a vigil\nlet x = r#\"the \"desk\"\"#;\nsay(\"a \\\"lane\");\nlet vault = 1;\n";
    let said: Vec<(usize, String)> = said(source);
    let lines: Vec<usize> = said.iter().map(|(line, _)| *line).collect();
    assert_eq!(lines, [1, 2, 3]);
    let found = |word| said.iter().any(|(_, text)| has(text, word));
    assert!(found("vigil") && found("desk") && found("lane"));
    assert!(!found("cage") && !found("vault"));
    assert!(has("Two Lanes.", "lane") && !has("planet lane_of", "lane"));
}
