//! Strict reader of OpenMetrics text: anything that a scraper could refuse is an error.

use std::collections::{BTreeMap, BTreeSet};

#[derive(Debug, Default)]
pub(super) struct Numbers {
    /// Samples by name and labels without `lock`: `name{a="b"}` or `name`.
    pub(super) samples: BTreeMap<String, f64>,
    pub(super) names: BTreeSet<String>,
    /// Type of each family.
    pub(super) kinds: BTreeMap<String, String>,
    /// Values of the label `lock`.
    pub(super) locks: BTreeSet<String>,
}

impl Numbers {
    pub(super) fn at(&self, sample: &str) -> f64 {
        *self
            .samples
            .get(sample)
            .unwrap_or_else(|| panic!("no {sample} in {:#?}", self.samples))
    }
}

pub(super) fn parse(text: &str) -> Result<Numbers, String> {
    let mut numbers = Numbers::default();
    let body = text
        .strip_suffix("# EOF\n")
        .ok_or("it does not end with # EOF")?;
    let mut family = String::new();
    for line in body.lines() {
        if let Some(rest) = line.strip_prefix("# ") {
            let mut words = rest.splitn(3, ' ');
            let (what, name) = (words.next(), words.next().ok_or(line)?);
            let value = words.next().ok_or_else(|| format!("bare: {line}"))?;
            match what {
                Some("HELP") => family = named(name)?.to_owned(),
                Some("TYPE") if name == family => {
                    let known = ["gauge", "counter", "histogram", "info"];
                    if !known.contains(&value) {
                        return Err(format!("a new kind: {line}"));
                    }
                    let twice = numbers.kinds.insert(name.into(), value.into());
                    if twice.is_some() {
                        return Err(format!("twice: {line}"));
                    }
                }
                Some("UNIT") if name == family && name.ends_with(&format!("_{value}")) => {}
                _ => return Err(format!("out of place: {line}")),
            }
            continue;
        }
        let kind = numbers.kinds.get(&family).ok_or(line)?.clone();
        sample(line, &family, &kind, &mut numbers)?;
    }
    Ok(numbers)
}

fn named(name: &str) -> Result<&str, String> {
    let good = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    if name.starts_with("trafficcop_") && name.chars().all(good) {
        Ok(name)
    } else {
        Err(format!("a strange name: {name}"))
    }
}

fn sample(line: &str, family: &str, kind: &str, into: &mut Numbers) -> Result<(), String> {
    let (series, value) = line.rsplit_once(' ').ok_or(line)?;
    let (name, labels) = match series.split_once('{') {
        Some((name, rest)) => (name, rest.strip_suffix('}').ok_or(line)?),
        None => (series, ""),
    };
    let suffix = named(name)?.strip_prefix(family).ok_or(line)?;
    let suffixes: &[&str] = match kind {
        "gauge" => &[""],
        "counter" => &["_total"],
        "info" => &["_info"],
        _ => &["_bucket", "_count", "_sum"],
    };
    if !suffixes.contains(&suffix) {
        return Err(format!("not of {family}, a {kind}: {line}"));
    }
    let mut shown = Vec::new();
    for (label, text) in labels_of(labels)? {
        if label == "lock" {
            into.locks.insert(text);
        } else {
            shown.push(format!("{label}=\"{text}\""));
        }
    }
    let series = if shown.is_empty() {
        name.to_owned()
    } else {
        format!("{name}{{{}}}", shown.join(","))
    };
    let value: f64 = value.parse().map_err(|why| format!("{why}: {line}"))?;
    if !value.is_finite() || value < 0.0 {
        return Err(format!("no number of ours: {line}"));
    }
    into.names.insert(name.to_owned());
    match into.samples.insert(series, value) {
        Some(_) => Err(format!("twice: {line}")),
        None => Ok(()),
    }
}

/// Parses `a="b",c="d"` with backslashes as escapes.
fn labels_of(mut text: &str) -> Result<Vec<(String, String)>, String> {
    let mut labels = Vec::new();
    while !text.is_empty() {
        let (name, rest) = text.split_once("=\"").ok_or(text)?;
        let mut value = String::new();
        let mut chars = rest.char_indices();
        let end = loop {
            match chars.next().ok_or(text)? {
                (at, '"') => break at,
                (_, '\\') => match chars.next().ok_or(text)?.1 {
                    'n' => value.push('\n'),
                    c @ ('"' | '\\') => value.push(c),
                    c => return Err(format!("\\{c} in {text}")),
                },
                (_, c) => value.push(c),
            }
        };
        if !name.chars().all(|c| c.is_ascii_lowercase() || c == '_') {
            return Err(format!("a strange label: {name}"));
        }
        labels.push((name.to_owned(), value));
        text = &rest[end + 1..];
        if !text.is_empty() {
            text = text.strip_prefix(',').ok_or(text)?;
        }
    }
    Ok(labels)
}

#[test]
fn invalid_openmetrics_text_is_refused() {
    let good = "# HELP trafficcop_a A.\n# TYPE trafficcop_a counter\n\
                trafficcop_a_total{lock=\"a\\\"b\",x=\"y\"} 2\n# EOF\n";
    let numbers = parse(good).expect("it is good");
    assert_eq!(numbers.at("trafficcop_a_total{x=\"y\"}"), 2.0);
    assert!(numbers.locks.contains("a\"b"));
    for (what, with) in [
        ("# EOF\n", ""),
        ("_total", ""),
        (" 2\n", " inf\n"),
        (" 2\n", " two\n"),
        ("counter", "tally"),
        ("a\\\"b", "a\"b"),
        ("# TYPE trafficcop_a counter\n", ""),
    ] {
        assert!(good.contains(what));
        assert!(parse(&good.replace(what, with)).is_err(), "{what} {with}");
    }
}
