//! The planted bugs, which test the detectors, can be applied, and each has its row.

use std::process::Command;

use super::{root, text};

#[test]
fn every_bug_can_still_be_planted() {
    let table = text("tests/planted/README.md");
    let (mut count, mut stale) = (0, Vec::new());
    for entry in std::fs::read_dir(root().join("tests/planted")).expect("the bugs") {
        let path = entry.expect("an entry").path();
        if path.extension().is_none_or(|ending| ending != "patch") {
            continue;
        }
        count += 1;
        let name = path
            .file_stem()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        assert!(
            table.contains(&format!("| `{name}`: ")),
            "no row for {name}"
        );
        let applied = Command::new("git")
            .args(["apply", "--check"])
            .arg(&path)
            .current_dir(root())
            .output();
        let Ok(applied) = applied else {
            println!("SKIPPED: git is not installed here, whether {name} applies was NOT tried");
            continue;
        };
        if !applied.status.success() {
            let said = String::from_utf8_lossy(&applied.stderr);
            stale.push(format!("{name}: {said}"));
        }
    }
    assert!(
        stale.is_empty(),
        "write them anew for the changed lines:\n{}",
        stale.concat()
    );
    assert!(count >= 18, "only {count}");
}
