//! Tries out, in a directory of its own beside the lock, whether makers of one name exclude each
//! other there, and how long it takes: for `doctor`.
//!
//! Called from a thread that may hang with the drive. Must never touch the lock's own files.

use std::fs;
use std::io;
use std::path::Path;
use std::sync::Barrier;
use std::time::Duration;

use super::share::{Made, Share};
use crate::clock::Instant;

/// How many make the same names at once.
const MAKERS: usize = 8;

/// What a race came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Race {
    /// How many names were made.
    pub names: u64,
    /// Names that more than one was told to have made.
    pub shared: u64,
    /// Names that nobody was told to have made.
    pub unmade: u64,
}

/// Has eight makers make the same names, at the path with this suffix; what was made is removed.
///
/// # Errors
/// The kernel's.
pub fn race(path: &Path, names: u64) -> io::Result<Race> {
    let share = Share::new(path);
    share.begin()?;
    let start = Barrier::new(MAKERS);
    let make = || -> io::Result<Vec<u64>> {
        let mut won = Vec::new();
        let mut failed = None;
        for name in 1..=names {
            // Whoever fails goes on: the others wait for it here.
            start.wait();
            match share.make(name) {
                Ok(Made::Made) => won.push(name),
                Ok(Made::Exists) => {}
                Err(error) => failed = Some(error),
            }
        }
        failed.map_or(Ok(won), Err)
    };
    let won: io::Result<Vec<Vec<u64>>> = std::thread::scope(|scope| {
        let makers: Vec<_> = (0..MAKERS).map(|_| scope.spawn(make)).collect();
        let ended = makers.into_iter().map(|maker| {
            let died = |_| Err(io::Error::other("a maker died"));
            maker.join().unwrap_or_else(died)
        });
        ended.collect()
    });
    clear(&share);
    let mut won = won?.concat();
    let all = won.len() as u64;
    won.sort_unstable();
    won.dedup();
    let different = won.len() as u64;
    Ok(Race {
        names,
        shared: all - different,
        unmade: names - different,
    })
}

/// How long making a name took, so many times.
///
/// # Errors
/// The kernel's.
pub fn round_trips(path: &Path, times: u64) -> io::Result<Vec<Duration>> {
    let share = Share::new(path);
    share.begin()?;
    let made: io::Result<Vec<Duration>> = (1..=times)
        .map(|name| {
            let begun = Instant::now();
            share.make(name)?;
            Ok(Instant::now().since(begun))
        })
        .collect();
    clear(&share);
    made
}

fn clear(share: &Share) {
    for name in share.list().unwrap_or_default() {
        let _ = share.remove(name);
    }
    // Where it cannot be removed it is empty enough to be left.
    let _ = fs::remove_dir(share.versions());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_race_has_one_winner_a_name_and_leaves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock.probe");
        let race = race(&path, 20).unwrap();
        assert_eq!((race.names, race.shared, race.unmade), (20, 0, 0));
        assert_eq!(round_trips(&path, 5).unwrap().len(), 5);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
