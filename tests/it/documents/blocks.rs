//! The README's blocks work: commands print what is shown, recipes run, the library's lines are
//! compiled.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use crate::documents::commands::{lines_of, words_of};
use crate::documents::{root, text};

const TRAFFICCOP: &str = env!("CARGO_BIN_EXE_trafficcop");
const LONG: Duration = Duration::from_secs(60);

fn blocks(document: &str, kind: &str) -> Vec<String> {
    let begin = format!("\n```{kind}\n");
    let parts = document.split(&*begin).skip(1);
    let blocks = parts.filter_map(|part| Some(part.split_once("\n```")?.0.to_owned()));
    blocks.collect()
}

/// Makes a shell in this directory, with the tested binary in its path and a clean environment.
fn shell(directory: &Path, line: &str) -> Command {
    let binary = Path::new(TRAFFICCOP).parent().expect("a directory");
    let path = std::env::var("PATH").unwrap_or_default();
    let mut command = Command::new("sh");
    command
        .args(["-c", &format!("exec {line}")])
        .current_dir(directory)
        .env("PATH", format!("{}:{path}", binary.display()))
        // The example's job outlasts the test.
        .env("SECONDS_OF_WORK", "100")
        .stdin(Stdio::null());
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy().into_owned();
        if name.starts_with("TRAFFICCOP_") || name.starts_with("NOTIFY_") {
            command.env_remove(name);
        }
    }
    command
}

/// Replaces times, hosts, pids, directories, seconds of work.
fn normal(line: &str, pids: &[(u32, &str)]) -> String {
    let mut words: Vec<String> = Vec::new();
    for word in line.split(' ') {
        let digits = word.chars().filter(char::is_ascii_digit).count();
        let is_time = digits >= 6 && word.contains(':') && !word.contains('[');
        words.push(if is_time {
            "TIME".into()
        } else if word.starts_with('/') {
            let comma = if word.ends_with(',') { "," } else { "" };
            let name = word.trim_end_matches(',').rsplit('/').next();
            format!("{}{comma}", name.unwrap_or_default())
        } else {
            word.to_owned()
        });
    }
    let mut text = words.join(" ");
    for (pid, name) in pids {
        while let Some(at) = text.find(&format!("-{pid}")) {
            let begin = text[..at].rfind([' ', '[']).map_or(0, |before| before + 1);
            text.replace_range(begin..at + 1 + pid.to_string().len(), name);
        }
    }
    if let Some((before, rest)) = text.clone().split_once(" pid ") {
        let rest = rest.trim_start_matches(|c: char| c.is_ascii_digit());
        text = format!("{before} pid N{rest}");
    }
    if let Some((before, _)) = text.clone().split_once("works, second ") {
        text = format!("{before}works");
    }
    let (before, rest) = text.split_once(", containment ").unwrap_or((&text, ""));
    if rest.is_empty() {
        text
    } else {
        before.to_owned()
    }
}

/// Joins repeated lines.
fn story(lines: impl Iterator<Item = String>, pids: &[(u32, &str)]) -> Vec<String> {
    let mut story: Vec<String> = lines.map(|line| normal(&line, pids)).collect();
    story.dedup();
    story
}

/// Returns the pids in `trafficcop[HOST-PID]`, in order.
fn pids_in(text: &str) -> Vec<u32> {
    let parts = text.split("trafficcop[").skip(1);
    let mut pids: Vec<u32> = parts
        .filter_map(|part| part.split_once(']')?.0.rsplit_once('-')?.1.parse().ok())
        .collect();
    pids.dedup();
    pids
}

/// A terminal of the README: its process, and the lines of both streams.
struct Terminal {
    child: Child,
    lines: Receiver<String>,
    seen: Vec<String>,
}

impl Terminal {
    fn open(directory: &Path, line: &str) -> Terminal {
        let (reader, writer) = std::io::pipe().expect("a pipe");
        let errors = writer.try_clone().expect("its end");
        let child = shell(directory, line).stdout(writer).stderr(errors).spawn();
        let child = child.expect("a shell");
        let (send, lines) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(reader).lines().map_while(Result::ok) {
                if send.send(line).is_err() {
                    break;
                }
            }
        });
        Terminal {
            child,
            lines,
            seen: Vec::new(),
        }
    }

    fn await_line(&mut self, what: &str) {
        let end = Instant::now() + LONG;
        while !self.seen.iter().any(|line| line.contains(what)) {
            let left = end.saturating_duration_since(Instant::now());
            match self.lines.recv_timeout(left) {
                Ok(line) => self.seen.push(line),
                Err(why) => panic!("no '{what}' ({why}) after {:#?}", self.seen),
            }
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn the_first_three_commands_say_what_stands_below_them() {
    let readme = text("README.md");
    let commands = lines_of(&format!("```sh\n{}\n```", blocks(&readme, "sh")[1]));
    let [first, second, kill] = &*commands else {
        panic!("three commands: {commands:?}");
    };
    let shown: Vec<String> = blocks(&readme, "text").into_iter().take(2).collect();
    let there = tempfile::tempdir().expect("a directory");
    std::os::unix::fs::symlink(root().join("examples"), there.path().join("examples"))
        .expect("a link");

    let mut one = Terminal::open(there.path(), first);
    one.await_line("works, second 1");
    let mut two = Terminal::open(there.path(), second);
    two.await_line("standing by");
    let in_the_readme = pids_in(&shown[0])[0];
    assert!(
        shell(there.path(), kill)
            .status()
            .expect("it runs")
            .success()
    );
    two.await_line("works, second 1");
    one.await_line("asked to stop");

    let (ours, theirs) = (one.child.id(), two.child.id());
    let ours = [(ours, "ONE"), (theirs, "TWO")];
    let readme_s = [(in_the_readme, "ONE"), (pids_in(&shown[1])[0], "TWO")];
    // Shells report children that a signal ended; `...` marks an omitted end.
    let of_trafficcop = |line: &&str| !["Killed", "Terminated", "..."].contains(line);
    for (terminal, shown) in [(&one, &shown[0]), (&two, &shown[1])] {
        let wanted = shown.lines().filter(of_trafficcop).map(str::to_owned);
        let said = terminal.seen.iter().map(String::as_str);
        let said = said.filter(of_trafficcop).map(str::to_owned);
        assert_eq!(story(said, &ours), story(wanted, &readme_s));
    }
}

/// A file's lock and a simple command replace each recipe's; its settings are the README's.
#[test]
fn the_readme_s_recipes_run() {
    let there = tempfile::tempdir().expect("a directory");
    let mut ran = 0;
    for (number, line) in lines_of(&text("README.md")).iter().enumerate() {
        let Some(words) = words_of(line).filter(|words| words[1] == "run") else {
            continue;
        };
        if words.iter().any(|word| word.ends_with("cron-job.sh")) {
            continue;
        }
        let lock = there.path().join(format!("{number}.lock"));
        let mut words = words.into_iter().skip(1);
        let mut line = String::from("trafficcop");
        while let Some(word) = words.next() {
            line += " ";
            match word.as_str() {
                "--" => break,
                "--blob" | "--file" => {
                    words.next();
                    line += &format!("--file {}", lock.display());
                }
                "--auth" => {
                    words.next();
                }
                "--listen" => {
                    words.next();
                    line += "--listen 127.0.0.1:0";
                }
                script if script.starts_with("./") => line += "true",
                word => line += word,
            }
        }
        let done = shell(there.path(), &format!("{line} -w 30s -- true")).output();
        let done = done.expect("it runs");
        let errors = String::from_utf8_lossy(&done.stderr);
        assert!(done.status.success(), "{line}: {errors}");
        ran += 1;
    }
    assert!(ran >= 6, "only {ran} recipes were run");
}

/// The README's lines, compiled but not run.
#[expect(dead_code, reason = "what is compiled is what is tested")]
mod library {
    async fn rebuild_the_index(_token: u64) {}

    #[rustfmt::skip]
    async fn example() -> Result<(), trafficcop::Error> {
// begin
use trafficcop::TrafficCop;

let cop = TrafficCop::blob("locks/index")?.start().await?; // or TrafficCop::file("/mnt/share/index.lock")?
loop {
    let guard = cop.acquired().await?;
    match guard.run(rebuild_the_index(guard.token())).await {
        Ok(()) => break,
        Err(lost) => eprintln!("{lost}"), // It was dropped where it waited: compete again.
    }
}
cop.stop().await?;
// end
        Ok(())
    }
}

#[test]
fn the_readme_s_library_code_is_compiled() {
    let readme = text("README.md");
    let shown = blocks(&readme, "rust");
    assert_eq!(shown.len(), 1);
    let (_, compiled) = include_str!("blocks.rs")
        .split_once("\n// begin\n")
        .expect("a begin");
    let (compiled, _) = compiled.split_once("\n// end\n").expect("an end");
    assert_eq!(shown[0], compiled);
    assert!(compiled.lines().count() <= 12);
}
