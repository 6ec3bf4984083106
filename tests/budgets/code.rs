//! Lines of code by crate: no tests, comments or blank lines.

use std::collections::BTreeMap;
use std::path::Path;

use crate::{files, read, root};

/// Lines of one file: code, and code of its `#[cfg(test)]` modules.
pub(crate) fn count(text: &str) -> (usize, usize) {
    let (mut code, mut test) = (0, 0);
    let (mut depth, mut until, mut pending) = (0_i64, None, false);
    for line in text.lines() {
        let s = line.trim();
        if s == "#[cfg(test)]" {
            pending = true;
        } else if pending && is_module(s) {
            (until, pending) = (Some(depth), false);
        } else if pending && !s.is_empty() && !s.starts_with("#[") {
            pending = false;
        }
        let inside = until.is_some();
        let braces = |c| i64::try_from(line.matches(c).count()).unwrap_or(0);
        depth += braces('{') - braces('}');
        if until.is_some_and(|until| depth <= until) {
            until = None;
        }
        if inside {
            test += 1;
        } else if !s.is_empty() && !s.starts_with("//") {
            code += 1;
        }
    }
    (code, test)
}

/// Whether a line begins a module with a body: `mod name {`.
fn is_module(line: &str) -> bool {
    let line = line.strip_prefix("pub ").unwrap_or(line);
    let line = match line.strip_prefix("pub(") {
        Some(rest) => rest.split_once(") ").map_or(line, |(_, rest)| rest),
        None => line,
    };
    line.strip_prefix("mod ")
        .is_some_and(|rest| rest.ends_with('{'))
}

pub(crate) fn is_test(path: &Path) -> bool {
    let parts = path.iter().map(|part| part.to_string_lossy());
    let mut below = parts.skip_while(|part| part != "src").skip(1);
    below.any(|part| {
        let name = part.strip_suffix(".rs").unwrap_or(&part);
        ["test", "tests"].contains(&name) && (name != "test" || !part.ends_with(".rs"))
            || name.ends_with("_tests")
    })
}

/// Words of comment, without blocks of code.
pub(crate) fn words_of_comment(text: &str) -> usize {
    let (mut words, mut in_block) = (0, false);
    for line in text.lines() {
        let Some(comment) = line.trim().strip_prefix("//") else {
            in_block = false;
            continue;
        };
        let comment = comment.trim_start_matches(['/', '!']).trim();
        if comment.starts_with("```") {
            in_block = !in_block;
        } else if !in_block {
            words += comment.split_whitespace().count();
        }
    }
    words
}

/// `lines:CRATE`, `lines:all`, `lines:over-120-columns`, `files:unsafe` and `words:comment`.
pub(crate) fn figures() -> BTreeMap<String, usize> {
    let mut figures = BTreeMap::new();
    let sources = files(
        &["src", "crates", "tests", "benches", "examples", "fuzz"],
        ".rs",
    );
    let long = |path| {
        read(path)
            .lines()
            .filter(|line| line.chars().count() > 120)
            .count()
    };
    let long = sources.iter().map(|path| long(path)).sum();
    figures.insert("lines:over-120-columns".to_owned(), long);
    let texts = files(&["src", "crates"], ".rs");
    let words = texts.iter().map(|path| words_of_comment(&read(path))).sum();
    figures.insert("words:comment".to_owned(), words);
    let mut with_unsafe = 0;
    for path in files(&["src", "crates"], ".rs") {
        let inside = path
            .strip_prefix(root())
            .expect("below the root")
            .to_owned();
        if !inside.iter().any(|part| part == "src") || is_test(&inside) {
            continue;
        }
        let parts: Vec<_> = inside.iter().map(|part| part.to_string_lossy()).collect();
        let name = if parts[0] == "src" {
            "trafficcop"
        } else {
            &parts[1]
        };
        let text = read(&path);
        let (lines, _) = count(&text);
        *figures.entry(format!("lines:{name}")).or_default() += lines;
        *figures.entry("lines:all".to_owned()).or_default() += lines;
        let has = |word: &str| {
            text.lines()
                .any(|line| line.split("//").next().unwrap_or_default().contains(word))
        };
        with_unsafe += usize::from(
            ["unsafe {", "unsafe fn", "unsafe impl", "unsafe extern"]
                .iter()
                .any(|word| has(word)),
        );
    }
    figures.insert("files:unsafe".to_owned(), with_unsafe);
    figures
}

#[test]
fn code_in_a_comment_has_no_words() {
    let text = "/// One `two` three.\n/// ```\n/// let x = 1;\n/// ```\nfn f() {} // not counted\n    // four\n";
    assert_eq!(words_of_comment(text), 4);
}

#[test]
fn comments_blanks_and_test_modules_are_not_code() {
    let text = "//! Doc.\n\nfn f() {\n    // Why.\n    g();\n}\n\n\
        #[cfg(test)]\nmod tests {\n    #[test]\n    fn t() {}\n}\nfn h() {}\n";
    assert_eq!(count(text), (5, 4));
    assert!(
        is_test(Path::new("crates/core/src/tenure/tests/table.rs"))
            && is_test(Path::new("src/config/tests.rs"))
    );
    assert!(!is_test(Path::new("src/latest.rs")) && !is_test(Path::new("src/contests/a.rs")));
}
