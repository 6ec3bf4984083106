//! Every message of the binary, read from its sources: a list for a reader, and the share of its
//! words that make a sentence hard to read.
//!
//! `cargo test --test it -- documents::messages --nocapture` prints the list as Markdown.

use std::path::Path;

use super::root;

/// Words of `prose.py` that make a reader stop.
const RIDDLES: &[&str] = &[
    "whoever",
    "whomever",
    "nobody",
    "somebody",
    "anybody",
    "to be had",
    "own up",
    "owns up",
    "owned up",
    "is said",
    "are said",
    "be said",
    "say so",
    "says so",
    "is told of",
    "are told of",
    "be told of",
    "stand still",
    "stands still",
    "stood still",
    "goes round",
    "put aside",
    "one of its own",
    "in words",
    "is asked for",
    "be asked for",
    "is meant",
    "the next one begins",
    "has it that",
    "it is so",
    "by itself alone",
    "as it were",
    "in any case",
    "all the same",
];

/// Pronouns for the program, which has a name.
const WE: &[&str] = &["we", "us", "our", "ours", "ourselves"];

const LIMIT: usize = 3;

const NOT_FOR_USERS: &[&str] = &[
    "assert!",
    "assert_eq!",
    "assert_ne!",
    "debug_assert!",
    "expect(",
    "panic!",
    "reason =",
    "unreachable!",
    "serde(",
    "cfg(",
    "cfg_attr(",
    "doc =",
    "concat!",
    "include_str!",
];

/// String literals of a source without its tests, each with its line.
fn strings(source: &str) -> Vec<(usize, String)> {
    let source = source
        .split("#[cfg(test)]\nmod tests {")
        .next()
        .unwrap_or_default();
    let mut found = Vec::new();
    let (mut at, mut line) = (0, 1);
    while at < source.len() {
        let rest = &source[at..];
        let step = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if let Some(quote) = ["'\"'", "'\\\"'", "b'\"'"]
            .iter()
            .find(|quote| rest.starts_with(**quote))
        {
            quote.len()
        } else if let Some(hashes) = raw(rest) {
            let (begin, end) = (hashes + 2, format!("\"{}", "#".repeat(hashes)));
            let length = rest[begin..].find(&end).expect("its end");
            keep(&mut found, source, at, line, &rest[begin..begin + length]);
            begin + length + end.len()
        } else if let Some(text) = rest.strip_prefix('"') {
            let mut escaped = false;
            let end = text.find(|c| {
                let is_end = c == '"' && !escaped;
                escaped = c == '\\' && !escaped;
                is_end
            });
            let end = end.expect("its end");
            keep(&mut found, source, at, line, &text[..end]);
            end + 2
        } else {
            rest.chars().next().map_or(1, char::len_utf8)
        };
        line += source[at..at + step].matches('\n').count();
        at += step;
    }
    found
}

fn raw(rest: &str) -> Option<usize> {
    let rest = rest.strip_prefix('r')?;
    let hashes = rest.len() - rest.trim_start_matches('#').len();
    rest[hashes..].starts_with('"').then_some(hashes)
}

/// Adds a literal that has words, unless it is for programmers.
fn keep(found: &mut Vec<(usize, String)>, source: &str, at: usize, line: usize, text: &str) {
    let before = source[..at].rsplit([';', '{', '}']).next();
    let before = before.unwrap_or_default();
    let is_for_users = !NOT_FOR_USERS.iter().any(|name| before.contains(name));
    // A line that continues in the next one.
    let mut words = text.split("\\\n");
    let first = words.next().unwrap_or_default().to_owned();
    let text = words.fold(first, |text, more| text + more.trim_start());
    if is_for_users && text.trim().contains(' ') && text.contains(|c: char| c.is_alphabetic()) {
        found.push((line, text));
    }
}

fn messages() -> Vec<(String, usize, String)> {
    let mut all = Vec::new();
    for folder in ["src", "crates"] {
        read(&root().join(folder), &mut all);
    }
    all.sort();
    all
}

fn read(folder: &Path, all: &mut Vec<(String, usize, String)>) {
    for entry in std::fs::read_dir(folder).expect("a directory") {
        let path = entry.expect("an entry").path();
        let name = path.file_name().and_then(|name| name.to_str());
        let name = name.unwrap_or_default();
        if path.is_dir() {
            if name != "tests" {
                read(&path, all);
            }
        } else if name.ends_with(".rs")
            && !["tests.rs", "simulated.rs", "scripted.rs"].contains(&name)
        {
            let place = path.strip_prefix(root()).expect("below the root");
            let source = std::fs::read_to_string(&path).expect("a source");
            let of_file = strings(&source).into_iter();
            all.extend(of_file.map(|(line, text)| (place.display().to_string(), line, text)));
        }
    }
}

/// Whether the text has this phrase, in any case of letters.
fn has(text: &str, phrase: &str) -> bool {
    let part = |c: char| c.is_alphanumeric() || c == '_' || c == '-' || c == '.';
    text.match_indices(phrase).any(|(at, _)| {
        !text[..at].ends_with(part) && !text[at + phrase.len()..].starts_with(char::is_alphanumeric)
    })
}

#[test]
fn messages_are_in_plain_english() {
    let all = messages();
    assert!(all.len() >= 1000, "only {} messages were found", all.len());
    println!("# Messages\n");
    let (mut words, mut riddles, mut flaws) = (0, 0, Vec::new());
    let mut file = "";
    for (place, line, text) in &all {
        if place != file {
            println!("\n## {place}\n");
            file = place;
        }
        println!("- {}", text.replace('\n', "\\n"));
        words += text.split_whitespace().count();
        let lower = text.to_lowercase();
        // One is a style sheet.
        let is_prose = !text.contains("{fill:");
        for phrase in RIDDLES
            .iter()
            .filter(|phrase| is_prose && has(&lower, phrase))
        {
            riddles += 1;
            flaws.push(format!("{place}:{line}: '{phrase}' in: {text}"));
        }
        let we = WE.iter().find(|word| has(&lower, word));
        assert!(
            we.is_none(),
            "{place}:{line}: '{}' in: {text}",
            we.unwrap_or(&"")
        );
        assert!(
            !text.contains('`'),
            "{place}:{line}: one kind of quotation marks, 'x': {text}"
        );
    }
    println!("\n{} messages, {words} words, {riddles} riddles", all.len());
    assert!(riddles * 10_000 <= LIMIT * words, "{}", flaws.join("\n"));
}

#[test]
fn strings_are_found_and_comments_are_not() {
    let source = "// \"a comment\"\nsay(\"a \\\"b\\\" \\\n    c\", '\"');\nassert!(x, \"not this\");\n\
        let r = r#\"a \"raw\" one\"#;\n#[cfg(test)]\nmod tests {\n\"nor that\"";
    let found = strings(source);
    let expected = [
        (2, "a \\\"b\\\" c".to_owned()),
        (5, "a \"raw\" one".to_owned()),
    ];
    assert_eq!(found[0], expected[0]);
    assert_eq!(found[1].1, expected[1].1);
    assert_eq!(found.len(), 2, "{found:?}");
}
