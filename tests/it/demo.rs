//! The demo kills and stops the holders as announced, without an overlap, and its recording can be
//! played.

use std::path::Path;
use std::process::{Command, Stdio};

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

/// Reads the frames of a recording after its header (asciinema's format, version 2).
fn frames(path: &Path) -> Vec<(f64, String)> {
    let text =
        std::fs::read_to_string(path).unwrap_or_else(|why| panic!("{}: {why}", path.display()));
    let mut lines = text
        .lines()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).expect(line));
    let header = lines.next().expect("a header");
    assert_eq!(header["version"], 2, "{header}");
    assert!(
        header["width"].is_u64() && header["height"].is_u64(),
        "{header}"
    );
    let frames = lines.map(|frame| {
        assert_eq!(frame[1], "o", "{frame}");
        let at = frame[0].as_f64().expect("a time");
        (at, frame[2].as_str().expect("what is shown").to_owned())
    });
    let frames: Vec<_> = frames.collect();
    assert!(frames.windows(2).all(|pair| pair[0].0 <= pair[1].0));
    frames
}

#[test]
fn the_demo_kills_and_shows_who_is_in_control() {
    let dir = tempfile::tempdir().expect("a directory");
    let (cast, picture) = (dir.path().join("demo.cast"), dir.path().join("demo.svg"));
    let output = Command::new("python3")
        .arg(Path::new(ROOT).join("examples/demo/demo.py"))
        .args(["--trafficcop", env!("CARGO_BIN_EXE_trafficcop")])
        .args(["--seconds", "10", "--every", "2", "--file"])
        .arg(dir.path().join("demo.lock"))
        .arg("--cast")
        .arg(&cast)
        .arg("--svg")
        .arg(&picture)
        .stdin(Stdio::null())
        .output()
        .expect("python3 starts");
    assert!(output.status.success(), "{output:?}");
    let frames = frames(&cast);
    let shows = |text: &str| frames.iter().any(|(_, frame)| frame.contains(text));
    assert!(shows("kill -9 of web") && shows("token 2"), "{frames:?}");
    assert!(
        frames
            .last()
            .is_some_and(|(_, last)| last.contains("no overlap"))
    );
    assert!(
        std::fs::read_to_string(&picture)
            .expect("a picture")
            .contains("</svg>")
    );
}

#[test]
fn the_recording_in_the_readme_can_be_played() {
    let demo = Path::new(ROOT).join("examples/demo");
    let frames = frames(&demo.join("demo.cast"));
    assert!(
        frames
            .last()
            .is_some_and(|(_, last)| last.contains("no overlap"))
    );
    assert!(demo.join("demo.svg").exists());
}
