//! Breadth-first search through all reachable states, each visited once.

use std::collections::HashSet;
use std::hash::{BuildHasherDefault, Hash, Hasher};

#[derive(Debug)]
pub(crate) struct Found<S> {
    pub(crate) states: usize,
    pub(crate) depth: usize,
    pub(crate) way: Option<Vec<S>>,
}

pub(crate) trait Space {
    type State: Copy;
    /// The state in a few words, quick to compare.
    type Key: Hash + Eq;

    fn key(&self, state: &Self::State) -> Self::Key;
    fn is_bad(&self, state: &Self::State) -> bool;
    /// Adds the possible next states, with repetitions.
    fn successors(&mut self, state: Self::State, reached: &mut Vec<Self::State>);
}

pub(crate) fn explore<S: Space>(space: &mut S, first: S::State) -> Found<S::State> {
    let mut seen: HashSet<S::Key, Quickly> = HashSet::default();
    let mut all = vec![(first, usize::MAX)];
    seen.insert(space.key(&first));
    let mut reached = Vec::new();
    let (mut from, mut depth) = (0, 0);
    while from < all.len() {
        let level = all.len();
        for at in from..level {
            let state = all[at].0;
            if space.is_bad(&state) {
                return Found {
                    states: all.len(),
                    depth,
                    way: Some(way(&all, at)),
                };
            }
            space.successors(state, &mut reached);
            for next in reached.drain(..) {
                if seen.insert(space.key(&next)) {
                    all.push((next, at));
                }
            }
        }
        from = level;
        depth += 1;
    }
    Found {
        states: all.len(),
        depth,
        way: None,
    }
}

fn way<S: Copy>(all: &[(S, usize)], mut at: usize) -> Vec<S> {
    let mut way = Vec::new();
    while at != usize::MAX {
        way.push(all[at].0);
        at = all[at].1;
    }
    way.reverse();
    way
}

pub(crate) type Quickly = BuildHasherDefault<Quick>;

#[derive(Default)]
pub(crate) struct Quick(u64);

impl Hasher for Quick {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.write_u64(u64::from_le_bytes(word));
        }
    }
    fn write_u64(&mut self, word: u64) {
        self.0 = (self.0.rotate_left(26) ^ word).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    }
    fn write_u32(&mut self, word: u32) {
        self.write_u64(u64::from(word));
    }
    fn write_u8(&mut self, byte: u8) {
        self.write_u64(u64::from(byte));
    }
    // Lengths of keys, which are all equal, and kinds of their parts.
    fn write_usize(&mut self, _: usize) {}
    fn write_isize(&mut self, kind: isize) {
        self.write_u64(kind.unsigned_abs() as u64);
    }
}
