//! Counts of what makes English hard to read; `table.txt` has the limits.
//!
//! A lint, not a judge: a hit that reads well may stay while the figure is below its limit.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::{files, read, root};

/// First words of a doc comment that does not begin with the thing or its effect.
const OPENINGS: &[&str] = &[
    "The same",
    "It ",
    "Its ",
    "What ",
    "Who",
    "Whom",
    "Whose",
    "That ",
    "So ",
    "Nothing",
    "Nobody",
    "Somebody",
    "Since when",
    "Until when",
    "As ",
    "By ",
    "Of ",
    "For ",
    "In ",
    "How ",
];
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
    "is gone,",
    "has it that",
    "it is so",
    "by itself alone",
    "as it were",
    "in any case",
    "all the same",
];
/// Pronouns for the program, which has a name.
const WE: &[&str] = &["we", "us", "our", "ours", "ourselves"];
/// First words of a test's name that is a riddle.
const TEST_OPENINGS: &[&str] = &[
    "what", "who", "whoever", "whose", "nobody", "somebody", "nothing", "one_that", "one_who",
    "that", "the_same", "those", "however", "where", "so", "as", "of", "by", "for", "in", "it",
];
/// Longest sentence that is not counted.
const LONG: usize = 35;

fn hits(text: &str, words: &[&str]) -> usize {
    let text = text.to_lowercase();
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    let count = |word: &&str| {
        let found = text.match_indices(*word).filter(|(at, _)| {
            let after = text[at + word.len()..].chars().next();
            !text[..*at].ends_with(is_part) && (word.ends_with(',') || !after.is_some_and(is_part))
        });
        found.count()
    };
    words.iter().map(count).sum()
}

/// Returns the lines that people read: a document without code blocks; comments and strings of a
/// source.
fn prose(path: &Path, text: &str) -> Vec<String> {
    let mut lines = Vec::new();
    if path.extension().is_some_and(|ending| ending == "rs") {
        for line in text.lines() {
            let s = line.trim();
            match s.strip_prefix("//") {
                Some(comment) => {
                    lines.push(comment.trim_start_matches(['/', '!']).trim().to_owned())
                }
                None => lines.extend(strings(line).into_iter().filter(|text| text.contains(' '))),
            }
        }
        return lines;
    }
    let mut fence = false;
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            fence = !fence;
        } else if !fence && !line.starts_with(".\\\"") {
            lines.push(line.to_owned());
        }
    }
    lines
}

fn strings(line: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut rest = line;
    while let Some((_, inside)) = rest.split_once('"') {
        let (mut end, mut escaped) = (None, false);
        for (at, c) in inside.char_indices() {
            match c {
                _ if escaped => escaped = false,
                '\\' => escaped = true,
                '"' => {
                    end = Some(at);
                    break;
                }
                _ => {}
            }
        }
        let Some(end) = end else { break };
        found.push(inside[..end].to_owned());
        rest = &inside[end + 1..];
    }
    found
}

fn sentences(text: &str) -> Vec<usize> {
    let mut text = text.to_owned();
    for (begin, end) in [("```", "```"), ("<!--", "-->")] {
        while let Some(at) = text.find(begin) {
            let Some(to) = text[at + begin.len()..].find(end) else {
                break;
            };
            text.replace_range(at..at + begin.len() + to + end.len(), "");
        }
    }
    let mut blocks: Vec<String> = vec![String::new()];
    for line in text.lines() {
        if line.trim().is_empty() || line.starts_with(['-', '*', '|', '#']) {
            blocks.push(String::new());
        }
        for (at, cell) in line.split('|').enumerate() {
            if at > 0 {
                blocks.push(String::new());
            }
            let block = blocks.last_mut().expect("one");
            block.push_str(cell);
            block.push(' ');
        }
    }
    let mut counts = Vec::new();
    for block in blocks {
        let mut words = 0;
        for word in block.split_whitespace() {
            let bare = word.trim_start_matches(|c: char| !c.is_ascii_alphabetic() && c != '`');
            words += usize::from(!bare.is_empty());
            if word.ends_with(['.', '!', '?', ':', ';']) {
                counts.push(std::mem::take(&mut words));
            }
        }
        counts.push(words);
    }
    counts.retain(|words| *words > 3);
    counts
}

fn first_lines(text: &str) -> Vec<&str> {
    let mut before = false;
    let mut found = Vec::new();
    for line in text.lines() {
        let s = line.trim();
        let doc = s.strip_prefix("///").or_else(|| s.strip_prefix("//!"));
        if let Some(first) = doc
            .map(str::trim)
            .filter(|first| !before && !first.is_empty())
        {
            found.push(first);
        }
        before = doc.is_some();
    }
    found
}

fn test_names(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut is_test = false;
    for line in text.lines().map(str::trim) {
        if line.starts_with("#[test") || line.starts_with("#[tokio::test") {
            is_test = true;
        } else if let Some((_, rest)) = line.split_once("fn ").filter(|_| is_test) {
            found.push(rest.split(['(', '<']).next().unwrap_or_default().to_owned());
            is_test = false;
        }
    }
    found
}

fn is_riddle(name: &str) -> bool {
    TEST_OPENINGS.iter().any(|word| {
        name.strip_prefix(word)
            .is_some_and(|rest| rest.starts_with('_'))
    })
}

fn rate(hits: usize, of: usize) -> usize {
    (10_000 * hits).div_ceil(of.max(1))
}

fn documents() -> Vec<PathBuf> {
    let mut found = files(&["docs", "examples"], ".md");
    for name in [
        "README.md",
        "CHANGELOG.md",
        "CONTRIBUTING.md",
        "SECURITY.md",
    ] {
        found.push(root().join(name));
    }
    found.extend(files(&["crates"], "README.md"));
    found
}

/// `prose:first`, `prose:riddles` (per 100,000 words), `prose:we`, `prose:long`, `prose:tests` (per 10,000), and
/// `prose:user-riddles`: those of documents and manual pages alone, per 100,000 words.
pub(crate) fn figures() -> BTreeMap<String, usize> {
    let sources = files(&["src", "crates"], ".rs");
    let man: Vec<PathBuf> = ["1", "5", "7"]
        .iter()
        .flat_map(|section| files(&["man"], &format!(".{section}")))
        .collect();
    let (mut firsts, mut bad) = (0, 0);
    let (mut tests, mut odd) = (0, 0);
    for path in sources.iter().chain(&files(&["tests"], ".rs")) {
        let text = read(path);
        if sources.contains(path) {
            let lines = first_lines(&text);
            firsts += lines.len();
            bad += lines
                .iter()
                .filter(|line| OPENINGS.iter().any(|word| line.starts_with(word)))
                .count();
        }
        let names = test_names(&text);
        tests += names.len();
        odd += names.iter().filter(|name| is_riddle(name)).count();
    }
    let riddles_in = |paths: &[PathBuf]| {
        let (mut words, mut riddles) = (0, 0);
        for path in paths {
            for line in prose(path, &read(path)) {
                words += line.split_whitespace().count();
                riddles += hits(&line, RIDDLES);
            }
        }
        10 * rate(riddles, words)
    };
    let users: Vec<PathBuf> = documents().into_iter().chain(man.iter().cloned()).collect();
    let all: Vec<PathBuf> = users.iter().chain(&sources).cloned().collect();
    let we = man.iter().map(|path| {
        let lines = prose(path, &read(path));
        let unquoted = |line: &String| {
            line.split('`')
                .step_by(2)
                .map(|part| hits(part, WE))
                .sum::<usize>()
        };
        lines.iter().map(unquoted).sum::<usize>()
    });
    let counts: Vec<usize> = documents()
        .iter()
        .filter(|path| !path.ends_with("CHANGELOG.md"))
        .flat_map(|path| sentences(&read(path)))
        .collect();
    let long = counts.iter().filter(|count| **count > LONG).count();
    let figures = [
        ("prose:first", rate(bad, firsts)),
        ("prose:riddles", riddles_in(&all)),
        ("prose:user-riddles", riddles_in(&users)),
        ("prose:we", we.sum()),
        ("prose:long", rate(long, counts.len())),
        ("prose:tests", rate(odd, tests)),
    ];
    figures
        .map(|(name, figure)| (name.to_owned(), figure))
        .into()
}

#[test]
fn riddles_are_found_as_whole_words() {
    assert_eq!(
        hits("Nobody owns up; whoever it is, it is said.", RIDDLES),
        4
    );
    assert_eq!(hits("An antibody says something.", RIDDLES), 0);
    assert_eq!(hits("We use us", WE), 2);
    let source = "// Whoever waits.\nlet x = \"nobody waits\"; let nobody = 1;\n";
    let lines = prose(Path::new("a.rs"), source);
    assert_eq!(lines, ["Whoever waits.", "nobody waits"]);
    assert_eq!(prose(Path::new("a.md"), "a\n```sh\nb\n```\nc"), ["a", "c"]);
}

#[test]
fn sentences_end_at_full_stops_table_cells_and_list_items() {
    let text = "One two three four. Five six seven eight nine.\n\n| a b c d | e f g h i |\n- one two three four\n- x\n";
    assert_eq!(sentences(text), [4, 5, 4, 5, 4]);
}

#[test]
fn test_names_that_begin_like_riddles_are_counted() {
    let text = "#[test]\nfn who_waits() {}\n\
        #[tokio::test]\n#[cfg(x)]\nasync fn second_sigterm_kills() {}\nfn what() {}";
    let names = test_names(text);
    assert_eq!(names, ["who_waits", "second_sigterm_kills"]);
    assert_eq!(names.iter().filter(|name| is_riddle(name)).count(), 1);
    assert_eq!(
        first_lines("/// Of it.\n/// More.\nfn f() {}\n/// Returns x."),
        ["Of it.", "Returns x."]
    );
}
