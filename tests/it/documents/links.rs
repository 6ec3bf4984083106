//! The targets of the documents' links exist, and the book's summary names each page once.

use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};

use crate::documents::{chapters, root, text};

/// Lists the documents that people read on the forge and in the book.
fn documents() -> Vec<String> {
    let more = [
        "README.md",
        "CHANGELOG.md",
        "CONTRIBUTING.md",
        "SECURITY.md",
        "docs/SUMMARY.md",
        "benches/start.md",
        "examples/fencing/README.md",
        "tests/vm/README.md",
    ];
    let templates = std::fs::read_dir(root().join(".github/ISSUE_TEMPLATE")).expect("templates");
    let templates = templates
        .map(|entry| entry.expect("an entry").file_name())
        .map(|name| format!(".github/ISSUE_TEMPLATE/{}", name.to_string_lossy()))
        .filter(|path| path.ends_with(".md"));
    let paths = more.into_iter().map(str::to_owned).chain(chapters());
    paths.chain(templates).collect()
}

/// Removes code blocks and, unless `inline`, code within lines.
fn prose(document: &str, inline: bool) -> String {
    let mut inside = false;
    let mut prose = String::new();
    for line in document.lines() {
        if line.trim_start().starts_with("```") {
            inside = !inside;
        } else if !inside {
            for (number, part) in line.split('`').enumerate() {
                if inline || number % 2 == 0 {
                    prose += part;
                }
            }
        }
        prose += "\n";
    }
    prose
}

/// Returns the targets of `[text](target)`; the text may span two lines.
fn targets(document: &str) -> Vec<String> {
    let prose = prose(document, false);
    let parts = prose.split("](").skip(1);
    let targets = parts.filter_map(|part| Some(part.split_once(')')?.0.to_owned()));
    targets.collect()
}

/// Returns the anchors of headings, as forges and mdBook make them.
fn anchors(document: &str) -> Vec<String> {
    let prose = prose(document, true);
    let headings = prose.lines().filter(|line| line.starts_with('#'));
    let mut seen = BTreeMap::<String, usize>::new();
    let mut anchors = Vec::new();
    for heading in headings {
        let heading = heading.trim_start_matches('#').trim().to_lowercase();
        let kept = heading
            .chars()
            .filter(|c| c.is_alphanumeric() || " -_".contains(*c));
        let anchor: String = kept.map(|c| if c == ' ' { '-' } else { c }).collect();
        let before = seen.entry(anchor.clone()).or_default();
        anchors.push(match *before {
            0 => anchor,
            again => format!("{anchor}-{again}"),
        });
        *before += 1;
    }
    anchors
}

/// Makes `a/c` of `a/b/../c`; `None` leads out of the repository.
fn plain(path: &Path) -> Option<PathBuf> {
    let mut plain = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => {
                if !plain.pop() {
                    return None;
                }
            }
            Component::CurDir => {}
            part => plain.push(part),
        }
    }
    Some(plain)
}

fn problem(path: &str, document: &str, target: &str) -> Option<String> {
    if target.starts_with("https://") {
        return None;
    }
    if target.contains("://") || target.starts_with('/') {
        return Some("is neither relative nor https".into());
    }
    let (file, anchor) = match target.split_once('#') {
        Some((file, anchor)) => (file, Some(anchor)),
        None => (target, None),
    };
    let to = match file {
        "" => PathBuf::from(path),
        file => match plain(&Path::new(path).parent()?.join(file)) {
            Some(to) => to,
            None => return Some("leads out of the repository".into()),
        },
    };
    if !root().join(&to).exists() {
        return Some(format!("{} is not there", to.display()));
    }
    let there = match file {
        "" => document.to_owned(),
        _ if anchor.is_some() => text(to.to_str()?),
        _ => return None,
    };
    let anchor = anchor?;
    let found = anchors(&there).iter().any(|of| of == anchor);
    (!found).then(|| format!("{} has no #{anchor}", to.display()))
}

#[test]
fn every_link_of_the_documents_leads_somewhere() {
    let mut checked = 0;
    let mut problems = Vec::new();
    for path in documents() {
        let document = text(&path);
        for target in targets(&document) {
            checked += 1;
            if let Some(problem) = problem(&path, &document, &target) {
                problems.push(format!("{path}: {target}: {problem}"));
            }
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
    assert!(checked >= 100, "only {checked} links were found");
}

#[test]
fn a_link_that_leads_nowhere_is_found() {
    let page =
        "# Here, *and* `--there`\n## Twice\n## Twice\n```\n[no](link)\n```\n[a](#here-and---there)";
    assert_eq!(targets(page), ["#here-and---there"]);
    for target in [
        "#twice",
        "#twice-1",
        "#here-and---there",
        "once.md",
        "../README.md#recipes",
    ] {
        assert_eq!(problem("docs/once.md", page, target), None, "{target}");
    }
    for target in [
        "#thrice",
        "#twice-2",
        "none.md",
        "../README.md#none",
        "/etc",
        "http://x.org",
        "../../a",
    ] {
        assert!(problem("docs/once.md", page, target).is_some(), "{target}");
    }
}

#[test]
fn documents_named_in_sources_exist() {
    let mut look = |path: &Path, text: &str| {
        let part = |c: char| c.is_ascii_alphanumeric() || "/._-#".contains(c);
        for (at, _) in text.match_indices(".md#") {
            let begin = text[..at]
                .rfind(|c| !part(c))
                .map_or(0, |before| before + 1);
            let link = text[begin..].split(|c| !part(c)).next().unwrap_or_default();
            let problem = problem("README.md", "", link.trim_end_matches('.'));
            assert_eq!(problem, None, "{}", path.display());
        }
    };
    for folder in ["src", "examples", "man"] {
        walk(&root().join(folder), &mut look);
    }
}

fn walk(folder: &Path, look: &mut impl FnMut(&Path, &str)) {
    for entry in std::fs::read_dir(folder).expect("a directory") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            walk(&path, look);
        } else if let Ok(text) = std::fs::read_to_string(&path) {
            look(&path, &text);
        }
    }
}

#[test]
fn the_summary_names_every_page_once_and_nothing_else() {
    let mut named = targets(&text("docs/SUMMARY.md"));
    named.sort();
    let named: Vec<String> = named.iter().map(|name| format!("docs/{name}")).collect();
    assert_eq!(named, chapters());
    let settings = text("docs/book.toml");
    assert!(settings.contains("src = \".\""));
    assert!(targets(&text("README.md")).contains(&"docs/SUMMARY.md".to_owned()));
}

/// mdBook would replace such a link's `.md` by `.html`, but makes no page from a file outside of
/// the book.
#[test]
fn no_page_leads_to_a_document_outside_of_the_book() {
    for path in chapters() {
        let outside = targets(&text(&path)).into_iter();
        let mut outside = outside.filter(|target| target.starts_with("../"));
        let found = outside.find(|target| target.contains(".md"));
        assert_eq!(found, None, "{path}: name its directory");
    }
}

#[test]
fn every_page_begins_with_one_title() {
    for path in chapters() {
        let page = text(&path);
        assert!(page.starts_with("# "), "{path}");
        let prose = prose(&page, true);
        let titles = prose.lines().filter(|line| line.starts_with("# "));
        assert_eq!(titles.count(), 1, "{path}");
    }
}
