//! The list of functions on a run's way (CONTRIBUTING.md) agrees with the sources.

use super::text;

/// A function, its file, and its caller (none for the first).
struct Row {
    function: String,
    file: String,
    caller: Option<String>,
}

fn rows(page: &str) -> Vec<Row> {
    let list = page.split("## Follow a run").nth(1).expect("the list");
    let list = list.split("\n## ").next().unwrap_or_default();
    let ticked = |cell: &str| Some(cell.trim().strip_prefix('`')?.strip_suffix('`')?.to_owned());
    let row = |line: &str| {
        let cells: Vec<&str> = line.split('|').collect();
        let (_, path) = cells.get(2)?.split_once('(')?;
        Some(Row {
            function: ticked(cells.get(1)?)?,
            file: path.trim_end().strip_suffix(')')?.to_owned(),
            caller: ticked(cells.get(3)?),
        })
    };
    list.lines().filter_map(row).collect()
}

/// Returns the body of a function, or of a method with its type in front.
fn body<'a>(source: &'a str, function: &str) -> Option<&'a str> {
    let (of, name) = function
        .split_once("::")
        .map_or((None, function), |(of, name)| (Some(of), name));
    let mut begun = of.is_none();
    let mut at = 0;
    let mut from = None;
    for line in source.split_inclusive('\n') {
        let code = line.trim_start();
        let depth = line.len() - code.len();
        if let Some(of) = of.filter(|_| depth == 0 && code.starts_with("impl")) {
            let (_, last) = code.rsplit_once("for ").unwrap_or(("", code));
            let last = last.trim_start_matches("impl<S: System> ");
            let last = last.trim_start_matches("impl ");
            begun = last.split(['<', ' ']).next() == Some(of);
        }
        let is_it = [format!("fn {name}("), format!("fn {name}<")]
            .iter()
            .any(|begins| code.contains(begins.as_str()));
        if begun && is_it && depth == usize::from(of.is_some()) * 4 {
            from = Some((at, depth));
        }
        at += line.len();
        // rustfmt puts the closing brace at the first line's indentation.
        if let Some((from, depth)) = from
            && line.trim_end() == format!("{}}}", " ".repeat(depth))
        {
            return Some(&source[from..at]);
        }
    }
    None
}

fn calls(body: &str, function: &str) -> bool {
    let name = function.rsplit("::").next().unwrap_or(function);
    let is_name = |c: char| c.is_alphanumeric() || c == '_';
    // Without the signature, or each would call itself.
    let (_, code) = body.split_once("{\n").unwrap_or_default();
    let code: Vec<&str> = code
        .lines()
        .map(|line| line.split("//").next().unwrap_or_default())
        .collect();
    let code = code.join("\n");
    code.match_indices(name).any(|(at, _)| {
        let before = code[..at].chars().next_back();
        let after = code[at + name.len()..].chars().next();
        !before.is_some_and(is_name) && matches!(after, Some('(' | ')'))
    })
}

#[test]
fn a_run_goes_through_the_functions_that_are_listed() {
    let page = text("CONTRIBUTING.md");
    let rows = rows(&page);
    let mut files: Vec<&str> = rows.iter().map(|row| row.file.as_str()).collect();
    files.sort_unstable();
    files.dedup();
    let counted = format!("{} functions in {} files", rows.len(), files.len());
    assert!(page.contains(&counted), "CONTRIBUTING.md: it is {counted}");
    for (at, row) in rows.iter().enumerate() {
        let source = text(&row.file);
        let (function, file) = (&row.function, &row.file);
        assert!(body(&source, function).is_some(), "no {function} in {file}");
        let Some(caller) = &row.caller else {
            assert_eq!(at, 0, "{function} has no caller");
            continue;
        };
        let before = rows[..at].iter().rfind(|row| row.function == *caller);
        let before = before.unwrap_or_else(|| panic!("{caller} stands before {function}"));
        let source = text(&before.file);
        let body = body(&source, caller).unwrap_or_default();
        assert!(calls(body, function), "{caller} does not call {function}");
    }
}

#[test]
fn a_list_that_is_not_true_is_seen() {
    let source = "impl A {\n    fn go() {\n        stop();\n    }\n}\n\
        impl T for B {\n    fn go(\n        x: u8,\n    ) {\n        A::go(); // not stop()\n    }\n}\n";
    let of_a = body(source, "A::go").expect("it is there");
    let of_b = body(source, "B::go").expect("it is there");
    assert!(calls(of_a, "stop") && !calls(of_b, "stop"));
    assert!(calls(of_b, "A::go") && !calls(of_a, "A::go"));
    assert!(body(source, "A::stop").is_none() && body(source, "go").is_none());
}
