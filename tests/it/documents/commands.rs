//! The command lines in README, book and the help's examples can be parsed.

use trafficcop::internals::args;

use crate::documents::{definition, manual, root};

pub(crate) fn lines_of(document: &str) -> Vec<String> {
    let mut inside = false;
    let mut lines = Vec::new();
    for line in document.lines() {
        let line = line.trim_start();
        if line.starts_with("```") {
            inside = line.starts_with("```sh");
        } else if inside {
            lines.push(line.trim().to_owned());
        }
    }
    lines
}

/// Returns the words of trafficcop's command line in a shell's line, after a crontab's five fields
/// or a script's prefix.
pub(crate) fn words_of(line: &str) -> Option<Vec<String>> {
    let rest = match line.find("trafficcop ") {
        Some(at) => &line[at + "trafficcop ".len()..],
        None => line.split_once("cargo run --release -- ")?.1,
    };
    let mut words = vec!["trafficcop".to_owned()];
    for word in rest.split_whitespace() {
        if ["|", "&", "&&", "||", "#"].contains(&word) {
            break;
        }
        let bare = word.trim_end_matches([';', ')', '"']);
        words.push(bare.to_owned());
        if bare != word {
            break;
        }
    }
    Some(words)
}

#[test]
fn the_manual_s_command_lines_can_be_parsed() {
    let definition = definition();
    let mut seen = std::collections::BTreeMap::<String, usize>::new();
    for (path, text) in manual() {
        for line in lines_of(&text) {
            let Some(words) = words_of(&line) else {
                continue;
            };
            let verb = words.get(1).cloned().unwrap_or_default();
            assert!(
                definition.find_subcommand(&verb).is_some(),
                "{path}: {line}"
            );
            args::parse(words.iter().map(Into::into))
                .unwrap_or_else(|why| panic!("{path}: {line}: {why}"));
            *seen.entry(verb).or_default() += 1;
        }
    }
    for (verb, least) in [
        ("run", 20),
        ("work", 6),
        ("elect", 2),
        ("check", 2),
        ("timeline", 2),
    ] {
        let found = seen.get(verb).copied().unwrap_or_default();
        assert!(found >= least, "only {found} lines with {verb}");
    }
    for verb in ["status", "list", "watch", "break", "reset", "doctor"] {
        assert!(seen.contains_key(verb), "no line with {verb}");
    }
}

#[test]
fn examples_named_in_code_blocks_exist() {
    let mut seen = 0;
    for (path, text) in manual() {
        for line in lines_of(&text) {
            for word in line.split_whitespace() {
                let word = word.strip_prefix("./").unwrap_or(word);
                if word.starts_with("examples/") {
                    assert!(root().join(word).exists(), "{path}: {line}");
                    seen += 1;
                }
            }
        }
    }
    assert!(seen >= 8, "only {seen} examples were found");
}

#[test]
fn the_help_s_examples_can_be_parsed() {
    for (_, example) in args::EXAMPLES
        .iter()
        .chain(args::ELECT_EXAMPLES)
        .chain(args::WORK_EXAMPLES)
    {
        let example = example.split(" | ").next().unwrap_or_default();
        args::parse(example.split_whitespace().map(Into::into))
            .unwrap_or_else(|why| panic!("{why}"));
    }
}
