//! [`meet`]: doctors on several machines race for the same names, beside the lock.
//!
//! A doctor is present while its mark changes. The two with the smallest numbers pair up, wait for each other
//! before each name, and leave a witness in each name that they made. With two witnesses in one name, the drive
//! told both that they made it. The lock's own files are never touched.

use std::cmp::{max, min};
use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::files;
use crate::mount::beside;
use trafficcop_core::clock::{self, Instant};

const PLACE: &str = ".trafficcop-doctors";
const NAMES: u32 = 20;
// Time to wait for the other before a name.
const TURN: Duration = Duration::from_secs(3);
const LOOK_INTERVAL: Duration = Duration::from_millis(100);

/// Result of a race between two doctors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Meeting {
    /// Machine of the other doctor.
    pub host: String,
    /// Number of names that both raced for.
    pub names: u32,
    /// Names that both were told to have made.
    pub shared: u32,
}

/// Waits up to `patience` for another doctor of the lock at `path`, and races against it; `None`: none came.
/// Calls `alive` after each answer of the drive.
///
/// # Errors
/// The kernel's.
pub fn meet(
    path: &Path,
    host: &str,
    patience: Duration,
    alive: &dyn Fn(),
) -> io::Result<Option<Meeting>> {
    let host = host.chars().take(60);
    let host = host.map(|one| {
        if one.is_ascii_alphanumeric() {
            one
        } else {
            '-'
        }
    });
    let mut table = Table {
        place: beside(path, PLACE),
        own: fastrand::u32(..),
        host: host.collect(),
        beats: 0,
        made: Vec::new(),
        alive,
    };
    let met = table.meet(Instant::now() + patience);
    table.clear();
    met
}

struct Table<'a> {
    place: PathBuf,
    own: u32,
    host: String,
    beats: u64,
    // In the order of making.
    made: Vec<PathBuf>,
    alive: &'a dyn Fn(),
}

impl Table<'_> {
    fn meet(&mut self, until: Instant) -> io::Result<Option<Meeting>> {
        self.make(self.place.clone())?;
        // Marks when first seen.
        let mut first = BTreeMap::new();
        let (other, host) = loop {
            self.beat()?;
            let mut present = self.present()?;
            present.retain(|other, (beats, _)| *beats > *first.entry(*other).or_insert(*beats));
            if let Some((other, (_, host))) = present.pop_first() {
                break (other, host);
            }
            if Instant::now() >= until {
                return Ok(None);
            }
            clock::pause(LOOK_INTERVAL);
        };
        let pair = format!("{:08x}.{:08x}", min(self.own, other), max(self.own, other));
        let mut names = 0;
        while names < NAMES && self.takes_turn(other, names)? {
            let name = self.place.join(format!("name.{pair}.{names}"));
            if self.make(name.clone())? {
                self.make(name.join(format!("{:08x}", self.own)))?;
            }
            names += 1;
        }
        // Now both have left their witnesses.
        self.takes_turn(other, NAMES)?;
        let mut shared = 0;
        for name in 0..names {
            let witnesses = files::list(&self.place.join(format!("name.{pair}.{name}")));
            shared += u32::from(witnesses.is_ok_and(|witnesses| witnesses.len() > 1));
        }
        // Remove nothing before the other has counted.
        self.takes_turn(other, NAMES + 1)?;
        Ok((names > 0).then_some(Meeting {
            host,
            names,
            shared,
        }))
    }

    fn beat(&mut self) -> io::Result<()> {
        let mark = |table: &Table<'_>| {
            let name = format!("here.{:08x}.{}.{}", table.own, table.beats, table.host);
            table.place.join(name)
        };
        let before = mark(self);
        self.beats += 1;
        self.make(mark(self))?;
        self.made.retain(|made| *made != before);
        match files::remove_directory(before) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    fn present(&self) -> io::Result<BTreeMap<u32, (u64, String)>> {
        let mut present = BTreeMap::new();
        for name in files::list(&self.place)? {
            let name = name.to_string_lossy();
            let mut parts = name.split('.');
            if parts.next() != Some("here") {
                continue;
            }
            let number = parts
                .next()
                .and_then(|text| u32::from_str_radix(text, 16).ok());
            let beats = parts.next().and_then(|text| text.parse().ok());
            if let (Some(number), Some(beats)) = (number, beats)
                && number != self.own
            {
                let host = parts.next().unwrap_or_default().to_owned();
                present.insert(number, (beats, host));
            }
        }
        (self.alive)();
        Ok(present)
    }

    /// Waits until the other comes to this turn.
    fn takes_turn(&mut self, other: u32, turn: u32) -> io::Result<bool> {
        let mark = |one: u32, two: u32| format!("turn.{one:08x}.{two:08x}.{turn}");
        self.make(self.place.join(mark(self.own, other)))?;
        let theirs = mark(other, self.own);
        let until = Instant::now() + TURN;
        loop {
            let names = files::list(&self.place)?;
            (self.alive)();
            if names.iter().any(|name| *name == *theirs) {
                return Ok(true);
            }
            if Instant::now() >= until {
                return Ok(false);
            }
            // The other pairs up with a doctor that it sees alive.
            if turn == 0 {
                self.beat()?;
            }
        }
    }

    fn make(&mut self, path: PathBuf) -> io::Result<bool> {
        let made = match files::make_directory(path.clone()) {
            Ok(()) => true,
            Err(error) if error.kind() == ErrorKind::AlreadyExists => false,
            Err(error) => return Err(error),
        };
        (self.alive)();
        self.made.push(path);
        Ok(made)
    }

    /// Removes this doctor's traces.
    fn clear(&mut self) {
        for made in self.made.drain(..).rev() {
            let _ = files::remove_directory(made);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::thread;

    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(60);

    #[test]
    fn two_doctors_race_for_the_same_names_and_leave_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        // Left by a killed doctor.
        let dead = beside(&path, PLACE).join("here.00000000.7.gone");
        fs::create_dir_all(&dead).unwrap();
        let doctor = |host: &'static str| {
            let path = path.clone();
            thread::spawn(move || meet(&path, host, TIMEOUT, &|| {}).unwrap())
        };
        let (a, b) = (doctor("a"), doctor("b"));
        let met = |host: &str| Meeting {
            host: host.into(),
            names: NAMES,
            shared: 0,
        };
        assert_eq!(a.join().unwrap(), Some(met("b")));
        assert_eq!(b.join().unwrap(), Some(met("a")));
        fs::remove_dir(dead).unwrap();
        fs::remove_dir(beside(&path, PLACE)).unwrap();
    }

    #[test]
    fn lone_doctor_meets_no_other_and_leaves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let met = meet(&dir.path().join("lock"), "a", Duration::ZERO, &|| {});
        assert_eq!(met.unwrap(), None);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
