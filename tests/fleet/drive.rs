//! A shared drive as its server has it: directories and files with all their history, because a
//! client's reads may show any earlier state. Changes are judged by the present one. It knows no
//! lock, except that the referee asks about versions.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use fastrand::Rng;
use trafficcop_lease::shared_file::{Answer, Call, Found, Kind};

use super::adversary::Act;
use super::clock::{SECOND, Time};

/// A restarted server opens, creates, renames and removes nothing for this long.
pub(crate) const GRACE: Time = 41 * SECOND;

/// The first operator; instances have smaller numbers.
pub(crate) const OPERATOR: usize = 1 << 20;

/// Start of its clock, in seconds since 1970.
const EPOCH: u64 = 1_700_000_000;

#[derive(Clone, Debug, PartialEq, Eq)]
enum Node {
    Directory,
    File(Vec<u8>),
}

struct Change {
    at: Time,
    /// Machine whose client sees the change at once.
    machine: usize,
    node: Option<Node>,
    modified: Duration,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Making {
    pub(crate) version: u64,
    pub(crate) at: Time,
    /// Number of the instance that made it, or, from [`OPERATOR`] on, of the operator.
    pub(crate) by: usize,
    /// Number of times that all versions had been removed before.
    pub(crate) era: u64,
    /// The record of the version before said that the lock is free.
    pub(crate) after_release: bool,
    /// It says itself that the lock is free.
    pub(crate) releases: bool,
    /// The version before was absent.
    pub(crate) after_nothing: bool,
    /// The version before was its maker's own, and had none before itself.
    pub(crate) goes_on_from_nothing: bool,
    /// No process waited for the request any more.
    pub(crate) by_nobody: bool,
}

/// A request for which no process waits.
struct Ghost {
    at: Time,
    machine: usize,
    by: usize,
    call: Call,
}

pub(crate) struct Server {
    pub(crate) now: Time,
    pub(crate) rng: Rng,
    pub(crate) acts: Vec<Act>,
    /// Greatest age of a machine's reads.
    pub(crate) staleness: Time,
    /// Views by machine: time as of which it reads, and until when.
    pub(crate) views: Vec<(Time, Time)>,
    pub(crate) starts: u64,
    pub(crate) grace_until: Time,
    /// Time until which reads of the lock's path differ from what was written.
    pub(crate) torn_until: Time,
    /// They also do so now and then at other times.
    pub(crate) tears: bool,
    /// Seconds by which its clock is ahead.
    pub(crate) ahead: u64,
    lock: PathBuf,
    versions: PathBuf,
    names: BTreeMap<PathBuf, Vec<Change>>,
    ghosts: Vec<Ghost>,
    pub(crate) era: u64,
    pub(crate) makings: Vec<Making>,
    /// Versions (and eras) whose leases an operator announced to break.
    pub(crate) said_broken: Vec<(u64, u64)>,
    /// Instances that wrote the record of another's version.
    pub(crate) forged: Vec<(usize, u64)>,
    pub(crate) counts: BTreeMap<&'static str, u64>,
    pub(crate) trace: Option<Vec<(Time, String)>>,
}

fn refused(errno: i32) -> io::Error {
    io::Error::from_raw_os_error(errno)
}

impl Server {
    pub(crate) fn new(lock: PathBuf, machines: usize, acts: Vec<Act>, seed: u64) -> Server {
        let root = lock.parent().expect("a directory").to_owned();
        let mut versions = lock.clone().into_os_string();
        versions.push(".versions");
        let mut server = Server {
            now: 0,
            rng: Rng::with_seed(seed),
            acts,
            staleness: 0,
            views: vec![(0, 0); machines + 1],
            starts: 0,
            grace_until: 0,
            torn_until: 0,
            tears: true,
            ahead: 0,
            lock,
            versions: versions.into(),
            names: BTreeMap::new(),
            ghosts: Vec::new(),
            era: 0,
            makings: Vec::new(),
            said_broken: Vec::new(),
            forged: Vec::new(),
            counts: BTreeMap::new(),
            trace: None,
        };
        server.change(0, &root, Some(Node::Directory));
        server
    }

    pub(crate) fn count(&mut self, what: &'static str) {
        *self.counts.entry(what).or_default() += 1;
    }

    pub(crate) fn go_on(&mut self, now: Time) {
        while let Some(at) = (0..self.ghosts.len())
            .filter(|at| self.ghosts[*at].at <= now)
            .min_by_key(|at| self.ghosts[*at].at)
        {
            let ghost = self.ghosts.swap_remove(at);
            self.now = self.now.max(ghost.at);
            self.count("requests that arrived when no process waited for them");
            let known = self.makings.len();
            let _ = self.carry_out(ghost.machine, ghost.by, &ghost.call);
            for made in &mut self.makings[known..] {
                made.by_nobody = true;
            }
        }
        self.now = now;
    }

    /// Lets a request arrive this much later, even if no process waits then.
    pub(crate) fn haunt(&mut self, later: Time, machine: usize, by: usize, call: Call) {
        if changes(&call) {
            let at = self.now + later;
            self.ghosts.push(Ghost {
                at,
                machine,
                by,
                call,
            });
        }
    }

    fn clock(&self) -> Duration {
        Duration::from_nanos(self.now) + Duration::from_secs(EPOCH + self.ahead)
    }

    fn change(&mut self, machine: usize, path: &Path, node: Option<Node>) {
        let (at, modified) = (self.now, self.clock());
        let changes = self.names.entry(path.to_owned()).or_default();
        changes.push(Change {
            at,
            machine,
            node,
            modified,
        });
    }

    fn present(&self, path: &Path) -> Option<&Change> {
        let last = self.names.get(path)?.last()?;
        last.node.as_ref().map(|_| last)
    }

    /// Returns what this machine sees of a path as of this view; a machine always sees its own
    /// changes.
    fn shown(&self, path: &Path, machine: usize, view: Time) -> Option<&Change> {
        let mut changes = self.names.get(path)?.iter().rev();
        let last = changes.find(|change| change.at <= view || change.machine == machine)?;
        last.node.as_ref().map(|_| last)
    }

    fn children<'a>(&'a self, path: &'a Path) -> impl Iterator<Item = &'a PathBuf> {
        let below = self.names.range(path.to_owned()..).map(|(name, _)| name);
        below
            .take_while(move |name| name.starts_with(path))
            .filter(move |name| name.parent() == Some(path))
    }

    /// Stamps the directory that contains this path.
    fn touch(&mut self, machine: usize, path: &Path) {
        if let Some(parent) = path.parent()
            && self.present(parent).is_some()
        {
            let parent = parent.to_owned();
            self.change(machine, &parent, Some(Node::Directory));
        }
    }

    fn has_room_for(&self, path: &Path) -> io::Result<()> {
        let parent = path.parent().expect("below the root");
        if self.present(parent).is_some() {
            return Ok(());
        }
        // A client may know the name of a directory that the server does not know any more.
        let known = self.names.contains_key(parent) && self.now.is_multiple_of(2);
        let errno = if known { libc::ESTALE } else { libc::ENOENT };
        Err(refused(errno))
    }

    /// Returns the time as of which a machine reads now.
    fn view(&mut self, machine: usize) -> Time {
        let (since, until) = self.views[machine];
        if self.now < until {
            return since;
        }
        if self.staleness == 0 || self.rng.bool() {
            return self.now;
        }
        let old = self.rng.u64(0..self.staleness);
        self.now.saturating_sub(old)
    }

    /// Carries out a call. A pure read is as of the machine's view.
    pub(crate) fn carry_out(
        &mut self,
        machine: usize,
        by: usize,
        call: &Call,
    ) -> io::Result<Answer> {
        let answer = self.answer(machine, by, call);
        if self.trace.is_some() && changes(call) {
            let name = |path: &Path| {
                let root = self.lock.parent().unwrap_or(path);
                path.strip_prefix(root)
                    .unwrap_or(path)
                    .display()
                    .to_string()
            };
            let (what, path) = match call {
                Call::MakeDirectory(path) => ("mkdir", path),
                Call::RemoveDirectory(path) => ("rmdir", path),
                Call::RemoveFile(path) => ("rm", path),
                Call::Rename(_, path) => ("rename to", path),
                Call::Write { path, .. } => ("write", path),
                _ => unreachable!("it changes nothing"),
            };
            let said = match &answer {
                Ok(_) => "done".to_owned(),
                Err(error) => format!("{:?}", error.kind()),
            };
            let by = match by {
                OPERATOR.. => "an operator".to_owned(),
                by => format!("#{by}"),
            };
            let text = format!("drive: {what} {} of {by} -> {said}", name(path));
            let now = self.now;
            self.trace.get_or_insert_default().push((now, text));
        }
        answer
    }

    fn answer(&mut self, machine: usize, by: usize, call: &Call) -> io::Result<Answer> {
        match call {
            Call::MakeDirectory(path) => {
                self.has_room_for(path)?;
                if self.present(path).is_some() {
                    return Err(refused(libc::EEXIST));
                }
                self.change(machine, path, Some(Node::Directory));
                self.touch(machine, path);
                if by >= OPERATOR
                    && let Some(version) = path.parent().and_then(|path| self.number(path))
                {
                    self.said_broken.push((self.era, version));
                }
                self.note(path, by);
            }
            Call::RemoveDirectory(path) => {
                self.present(path).ok_or(refused(libc::ENOENT))?;
                if self.children(path).any(|name| self.present(name).is_some()) {
                    return Err(refused(libc::ENOTEMPTY));
                }
                self.change(machine, path, None);
                self.touch(machine, path);
                if self.number(path).is_some() {
                    self.count("versions removed");
                }
            }
            Call::RemoveFile(path) => {
                self.present(path).ok_or(refused(libc::ENOENT))?;
                self.change(machine, path, None);
                self.touch(machine, path);
            }
            Call::Rename(from, to) => {
                self.present(from).ok_or(refused(libc::ENOENT))?;
                if self.children(to).any(|name| self.present(name).is_some()) {
                    return Err(refused(libc::ENOTEMPTY));
                }
                let below = self.names.range(from.clone()..).map(|(name, _)| name);
                let below = below.take_while(|name| name.starts_with(from));
                let below: Vec<PathBuf> = below.cloned().collect();
                for name in below {
                    let Some(node) = self.present(&name).and_then(|it| it.node.clone()) else {
                        continue;
                    };
                    let rest = name.strip_prefix(from).expect("it is below");
                    let there = match rest.as_os_str().is_empty() {
                        true => to.clone(),
                        false => to.join(rest),
                    };
                    self.change(machine, &name, None);
                    self.change(machine, &there, Some(node));
                }
            }
            Call::Write {
                path, new, bytes, ..
            } => {
                self.has_room_for(path)?;
                let before = match self.present(path) {
                    Some(_) if *new => return Err(refused(libc::EEXIST)),
                    None if !*new => return Err(refused(libc::ENOENT)),
                    before => before.and_then(|it| it.node.clone()),
                };
                let mut bytes = bytes.clone();
                let version = version_in(&bytes);
                let made = |version: &u64| {
                    let mut makings = self.makings.iter();
                    makings.any(|made| (made.by, made.version) == (by, *version))
                };
                if let Some(version) = version.filter(|version| !made(version)) {
                    self.forged.push((by, version));
                }
                // In place: the rest of a longer file stays.
                if let Some(Node::File(before)) = before
                    && let Some(rest) = before.get(bytes.len()..)
                {
                    bytes.extend_from_slice(rest);
                }
                self.change(machine, path, Some(Node::File(bytes)));
            }
            Call::Stat(path) | Call::StatLink(path) => {
                let view = self.view(machine);
                return self.stat(path, machine, view);
            }
            Call::StatIn(directory, name) => {
                let view = self.view(machine);
                return self.stat(&directory.join(name), machine, view);
            }
            Call::List(path) => {
                let view = self.view(machine);
                self.shown(path, machine, view)
                    .ok_or(refused(libc::ENOENT))?;
                let names = self.children(path);
                let names = names.filter(|name| self.shown(name, machine, view).is_some());
                let names = names.filter_map(|name| name.file_name());
                return Ok(Answer::Names(names.map(OsString::from).collect()));
            }
            Call::Read(path) => return self.read(path, machine),
            Call::ReadIn(directory, name) => return self.read(&directory.join(name), machine),
        }
        Ok(Answer::Done)
    }

    fn stat(&mut self, path: &Path, machine: usize, view: Time) -> io::Result<Answer> {
        let shown = self.shown(path, machine, view);
        let stale = shown.is_some() != self.present(path).is_some();
        let found = shown.map(|it| match &it.node {
            Some(Node::File(bytes)) => (Kind::File, bytes.len() as u64, it.modified),
            _ => (Kind::Directory, 0, it.modified),
        });
        if stale {
            self.count("old views");
        }
        let (kind, length, modified) = found.ok_or(refused(libc::ENOENT))?;
        Ok(Answer::Found(Found {
            kind,
            has_another_name: false,
            length,
            modified,
            device: 1,
            owner: nix::unistd::geteuid().as_raw(),
            writable_by_group_or_others: false,
        }))
    }

    fn read(&mut self, path: &Path, machine: usize) -> io::Result<Answer> {
        let view = self.view(machine);
        let shown = self.shown(path, machine, view);
        let Some(Change {
            node: Some(Node::File(bytes)),
            at,
            ..
        }) = shown
        else {
            return Err(refused(libc::ENOENT));
        };
        let (mut bytes, at) = (bytes.clone(), *at);
        if self.present(path).is_none_or(|present| present.at != at) {
            self.count("old views");
        }
        let torn = self.tears && (self.now < self.torn_until || self.rng.u8(..) < 3);
        if path == self.lock && torn && !bytes.is_empty() {
            self.count("torn hints");
            let changes = self.names[path].iter().rev();
            let mut before = changes.filter(|change| change.at < at);
            let from = self.rng.usize(0..bytes.len());
            match (self.rng.u8(0..3), before.next().map(|it| &it.node)) {
                (0, Some(Some(Node::File(before)))) if before.len() == bytes.len() => {
                    bytes[from..].copy_from_slice(&before[from..]);
                }
                (1, _) => bytes.fill(0),
                _ => bytes.truncate(from.max(1)),
            }
        }
        Ok(Answer::Bytes(bytes))
    }

    fn number(&self, path: &Path) -> Option<u64> {
        let name = path.file_name()?.to_str()?;
        (path.parent() == Some(&self.versions)).then(|| name.parse().ok())?
    }

    fn name(&self, version: u64) -> PathBuf {
        self.versions.join(format!("{version:020}"))
    }

    fn note(&mut self, path: &Path, by: usize) {
        let Some(version) = self.number(path) else {
            return;
        };
        if self.greatest().is_some_and(|greatest| version < greatest) {
            self.count("versions made behind the last");
        }
        let mut made = Making {
            version,
            at: self.now,
            by,
            era: self.era,
            after_release: version > 0 && self.says_released(version - 1),
            releases: false,
            after_nothing: false,
            goes_on_from_nothing: false,
            by_nobody: false,
        };
        let before = self.before(&made);
        made.after_nothing = before.is_none() && version > 1;
        // After that it has waited as long as for a version without a readable record.
        let lately = |before: &Making| self.now < before.at + 59 * SECOND;
        let own = before.filter(|it| it.by == by && it.after_nothing && !it.by_nobody);
        // The process may since have made the one before, and then only steps over it.
        let is_behind = version >= 2
            && self.present(&self.name(version - 2)).is_some()
            && self.maker(version - 2) == Some(by);
        made.goes_on_from_nothing = !is_behind && own.as_ref().is_some_and(lately);
        self.makings.push(made);
    }

    /// Whether this version's record, or a hint, ever said that the lock is free: an old view may
    /// still show that after a late write has replaced it.
    fn says_released(&self, version: u64) -> bool {
        let record = self.name(version.saturating_sub(1)).join("next/record");
        let said = |change: &Change| match &change.node {
            Some(Node::File(bytes)) => String::from_utf8_lossy(bytes)
                .contains(&format!("{{\"version\":{version},\"state\":\"released\"")),
            _ => false,
        };
        let mut makings = self.makings.iter().rev();
        let of_it = |made: &&Making| made.version == version && made.era == self.era;
        let since = makings.find(of_it).map_or(0, |made| made.at);
        let hints = self.names.get(&self.lock).into_iter().flatten();
        self.present(&record).is_some_and(said) || hints.filter(|hint| hint.at >= since).any(said)
    }

    pub(crate) fn before(&self, made: &Making) -> Option<Making> {
        let version = made.version.checked_sub(1)?;
        self.present(&self.name(version))?;
        let mut makings = self.makings.iter().rev();
        let of_it = |it: &&Making| it.version == version && it.era == made.era && it.at <= made.at;
        makings.find(of_it).copied()
    }

    fn versions(&self) -> Vec<u64> {
        let names = self.children(&self.versions);
        let there = names.filter(|name| self.present(name).is_some());
        there.filter_map(|name| self.number(name)).collect()
    }

    pub(crate) fn greatest(&self) -> Option<u64> {
        self.versions().last().copied()
    }

    pub(crate) fn maker(&self, version: u64) -> Option<usize> {
        let mut makings = self.makings.iter().rev();
        let made = makings.find(|made| made.version == version && made.era == self.era);
        made.map(|made| made.by)
    }

    /// An operator removes old versions, oldest first; all but the last only if the lease has not
    /// been renewed for `quiet`.
    pub(crate) fn tidy(&mut self, keep: usize, quiet: Time) {
        let last = self.makings.iter().map(|made| made.at).max().unwrap_or(0);
        let used = keep == 1 && self.now < last + quiet;
        let keep = if used { 3 } else { keep };
        let versions = self.versions();
        if keep == 1 && versions.len() > 1 {
            self.count("all but the last removed by hand");
        }
        let old = versions.len().saturating_sub(keep);
        for version in &versions[..old] {
            self.remove(&self.name(*version));
        }
    }

    pub(crate) fn remove_all(&mut self) {
        self.remove(&self.versions.clone());
        self.remove(&self.lock.clone());
        self.era += 1;
    }

    fn remove(&mut self, path: &Path) {
        let below = self.names.range(path.to_owned()..).map(|(name, _)| name);
        let below = below.take_while(|name| name.starts_with(path));
        let below: Vec<PathBuf> = below.cloned().collect();
        for name in below.iter().rev() {
            if self.present(name).is_some() {
                self.change(usize::MAX, name, None);
            }
        }
        self.touch(usize::MAX, path);
    }
}

/// Returns when the last version of the tenure that began with this one was made. A tenure ends with
/// another's first version; a version that an old view makes behind the last ends nothing.
pub(crate) fn last_of(makings: &[Making], by: usize, era: u64, token: u64) -> Option<Time> {
    let its = |made: &Making| made.by == by && made.era == era && made.version == token;
    let first = makings.iter().rposition(its)?;
    let mut last = &makings[first];
    for made in makings[first..].iter().filter(|it| it.era == era) {
        match made.by == by {
            _ if made.version < last.version => {}
            true => last = made,
            false => break,
        }
    }
    Some(last.at)
}

pub(crate) fn era_of(makings: &[Making], by: usize, token: u64) -> Option<u64> {
    let of = |made: &&Making| made.by == by && made.version == token;
    makings.iter().rev().find(of).map(|made| made.era)
}

pub(crate) fn version_in(bytes: &[u8]) -> Option<u64> {
    let text = String::from_utf8_lossy(bytes);
    let (_, rest) = text.split_once("{\"version\":")?;
    rest.split_once(',')?.0.parse().ok()
}

pub(crate) fn changes(call: &Call) -> bool {
    match call {
        Call::MakeDirectory(_)
        | Call::RemoveDirectory(_)
        | Call::RemoveFile(_)
        | Call::Rename(..)
        | Call::Write { .. } => true,
        Call::Stat(_)
        | Call::StatLink(_)
        | Call::StatIn(..)
        | Call::List(_)
        | Call::Read(_)
        | Call::ReadIn(..) => false,
    }
}

/// Whether a restarted server delays what opens, renames or removes.
pub(crate) fn waits_for_grace(call: &Call) -> bool {
    match call {
        Call::RemoveDirectory(_)
        | Call::RemoveFile(_)
        | Call::Rename(..)
        | Call::Write { .. }
        | Call::Read(_)
        | Call::ReadIn(..) => true,
        Call::MakeDirectory(_)
        | Call::Stat(_)
        | Call::StatLink(_)
        | Call::StatIn(..)
        | Call::List(_) => false,
    }
}
