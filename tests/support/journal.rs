//! The journal and its judge: lifetimes of processes, as the command itself reports them.
//!
//! A process lives at least from its first line to its last, so every overlap that the judge finds
//! is real. It must never be softened by a tolerance.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use super::await_for;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    Start,
    Beat,
    Term,
    /// Last line, if it ended by itself.
    End,
}

#[derive(Clone, Debug)]
pub(crate) struct Line {
    pub(crate) what: What,
    /// Name of the command in the test, with `/daemon`, `/child` or `/storm` added by a process
    /// that is not the main one.
    pub(crate) tag: String,
    pub(crate) token: u64,
    /// The instance that started it, as the command was given it.
    pub(crate) holder: String,
    pub(crate) pid: i32,
    /// Nanoseconds of CLOCK_BOOTTIME.
    pub(crate) at: u64,
}

/// Returns the whole part of a line. A process killed while it writes across a page boundary leaves
/// half a line, which the next writer's continues.
fn whole(line: &str) -> &str {
    let words = ["start ", "beat ", "term ", "end "];
    // The half may be a single byte.
    if line.split(' ').count() == 6 && words.iter().any(|what| line.starts_with(what)) {
        return line;
    }
    let begins = words.map(|what| line.rfind(what));
    begins
        .into_iter()
        .flatten()
        .max()
        .map_or(line, |at| &line[at..])
}

impl Line {
    #[must_use]
    pub(crate) fn command(&self) -> &str {
        self.tag.split('/').next().unwrap_or_default()
    }

    /// # Panics
    ///
    /// If it is invalid: only the journalist writes there.
    #[must_use]
    pub(crate) fn parse(text: &str) -> Line {
        let fields: Vec<&str> = whole(text).split(' ').collect();
        let [what, tag, token, holder, pid, at] = fields[..] else {
            panic!("a line of the journal is broken: {text}");
        };
        Line {
            what: match what {
                "start" => What::Start,
                "beat" => What::Beat,
                "term" => What::Term,
                "end" => What::End,
                _ => panic!("a line of the journal is broken: {text}"),
            },
            tag: tag.into(),
            token: token
                .parse()
                .unwrap_or_else(|_| panic!("the command was told no fencing token: {text}")),
            holder: holder.into(),
            pid: pid.parse().expect("a pid"),
            at: at.parse().expect("nanoseconds"),
        }
    }
}

/// A stretch of control: of one holder, under one token. A new lock in a lock's place counts its
/// tokens from the start; only the holder tells them apart.
#[derive(Clone, Debug)]
pub(crate) struct Tenure {
    pub(crate) token: u64,
    pub(crate) holder: String,
    pub(crate) tag: String,
    pub(crate) first: u64,
    pub(crate) last: u64,
}

#[derive(Clone)]
pub(crate) struct Journal {
    path: PathBuf,
}

impl Journal {
    #[must_use]
    pub(crate) fn at(path: PathBuf) -> Journal {
        Journal { path }
    }

    #[must_use]
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    #[must_use]
    pub(crate) fn lines(&self) -> Vec<Line> {
        self.lines_from(&mut 0)
    }

    /// Returns the complete lines after this byte, which moves behind them.
    fn lines_from(&self, read: &mut u64) -> Vec<Line> {
        let mut text = String::new();
        // Without a file there is no line yet.
        if let Ok(mut file) = File::open(&self.path) {
            file.seek(SeekFrom::Start(*read)).expect("it is a file");
            file.read_to_string(&mut text).expect("lines of text");
        }
        text.truncate(text.rfind('\n').map_or(0, |end| end + 1));
        *read += text.len() as u64;
        text.lines().map(Line::parse).collect()
    }

    /// Waits for a line, and returns it. Lines are not read twice: a command that beats for a
    /// minute writes twelve thousand.
    pub(crate) fn await_line(&self, what: &str, wanted: impl Fn(&Line) -> bool) -> Line {
        let mut read = 0;
        await_for(
            &format!("the journal to show {what}"),
            || self.lines_from(&mut read).into_iter().find(&wanted),
            || self.to_string(),
        )
    }

    pub(crate) fn await_tag(&self, what: What, tag: &str) -> Line {
        self.await_line(&format!("{what:?} of {tag}"), |line| {
            line.what == what && line.tag == tag
        })
    }

    /// Waits for another line of this tag.
    pub(crate) fn await_sign_of_life(&self, tag: &str) -> Line {
        let now = trafficcop::Instant::now().as_nanos();
        self.await_line(&format!("that {tag} lives"), |line| {
            line.tag == tag && line.at > now
        })
    }

    #[must_use]
    pub(crate) fn tenures(&self) -> Vec<Tenure> {
        let mut tenures: BTreeMap<(u64, String), Tenure> = BTreeMap::new();
        for line in self.lines() {
            let key = (line.token, line.holder.clone());
            let tenure = tenures.entry(key).or_insert_with(|| Tenure {
                token: line.token,
                holder: line.holder.clone(),
                tag: line.command().into(),
                first: line.at,
                last: line.at,
            });
            tenure.first = tenure.first.min(line.at);
            tenure.last = tenure.last.max(line.at);
        }
        let mut tenures: Vec<Tenure> = tenures.into_values().collect();
        tenures.sort_by_key(|tenure| tenure.first);
        tenures
    }

    /// Returns the tags of the tenures in order.
    ///
    /// # Panics
    ///
    /// If two tenures overlap, or a later one does not have the greater token.
    pub(crate) fn judge(&self) -> Vec<String> {
        let tenures = self.tenures();
        for (index, one) in tenures.iter().enumerate() {
            for other in &tenures[index + 1..] {
                assert!(
                    other.first > one.last,
                    "{} (token {}) and {} (token {}) were alive at the same time, for {} us\n{self}",
                    one.tag,
                    one.token,
                    other.tag,
                    other.token,
                    (one.last.min(other.last) - other.first) / 1000,
                );
                assert!(
                    other.token > one.token,
                    "{} came after {} but its token {} is not greater than {}\n{self}",
                    other.tag,
                    one.tag,
                    other.token,
                    one.token,
                );
            }
        }
        tenures.into_iter().map(|tenure| tenure.tag).collect()
    }
}

/// Omits the beats, for people who read why a test failed.
impl fmt::Display for Journal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "-- journal")?;
        for line in self
            .lines()
            .iter()
            .filter(|line| line.what != What::Beat)
            .take(60)
        {
            writeln!(
                f,
                "{:>10.3} {:?} {} token {} of {} pid {}",
                line.at as f64 / 1e9,
                line.what,
                line.tag,
                line.token,
                line.holder,
                line.pid
            )?;
        }
        for tenure in self.tenures() {
            writeln!(
                f,
                "token {} ({}) {:.3} to {:.3}",
                tenure.token,
                tenure.tag,
                tenure.first as f64 / 1e9,
                tenure.last as f64 / 1e9
            )?;
        }
        // The instances' output, next to the journal.
        let beside = self
            .path
            .parent()
            .and_then(|directory| std::fs::read_dir(directory).ok());
        let mut logs: Vec<PathBuf> = beside
            .into_iter()
            .flatten()
            .flatten()
            .map(|entry| entry.path())
            .collect();
        logs.retain(|path| {
            path.file_name()
                .is_some_and(|name| name.as_encoded_bytes().starts_with(b"stderr-"))
        });
        logs.sort();
        for log in logs {
            let text = std::fs::read_to_string(&log).unwrap_or_default();
            writeln!(f, "-- {}\n{text}", log.display())?;
        }
        Ok(())
    }
}
