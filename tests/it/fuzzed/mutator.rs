//! Mutations of valid bytes, the same for the same seed.

use fastrand::Rng;

/// Longer than any reader takes at once.
const LONGEST: usize = 16 * 1024;

/// Numbers that readers get wrong.
const NUMBERS: [&[u8]; 12] = [
    b"0",
    b"-1",
    b"18446744073709551615",
    b"18446744073709551616",
    b"9223372036854775807",
    b"1e999",
    b"null",
    b"\"\"",
    &[0, 0, 0, 0],
    &[0xff, 0xff, 0xff, 0xff],
    &[0x7f, 0xff, 0xff, 0xff],
    &[0, 0, 0, 7],
];

pub(super) fn mutated(rng: &mut Rng, seeds: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = seeds[rng.usize(..seeds.len())].clone();
    for _ in 0..=rng.usize(..4) {
        change(rng, &mut bytes, seeds);
    }
    bytes.truncate(LONGEST);
    bytes
}

fn place(rng: &mut Rng, bytes: &[u8]) -> usize {
    rng.usize(..=bytes.len())
}

/// Returns a random part; short ones are likelier.
fn part(rng: &mut Rng, bytes: &[u8]) -> std::ops::Range<usize> {
    let begin = place(rng, bytes);
    let most = (bytes.len() - begin) >> rng.usize(..8);
    begin..begin + rng.usize(..=most)
}

fn change(rng: &mut Rng, bytes: &mut Vec<u8>, seeds: &[Vec<u8>]) {
    match rng.u8(..9) {
        0 if !bytes.is_empty() => {
            let at = rng.usize(..bytes.len());
            bytes[at] ^= 1 << rng.u8(..8);
        }
        1 if !bytes.is_empty() => {
            let at = rng.usize(..bytes.len());
            bytes[at] = rng.u8(..);
        }
        2 => {
            let at = place(rng, bytes);
            bytes.truncate(at);
        }
        3 => {
            let gone = part(rng, bytes);
            bytes.drain(gone);
        }
        4 => {
            // Repeat a part, often enough to pass every bound.
            let piece = bytes[part(rng, bytes)].to_vec();
            let most = LONGEST / piece.len().max(1);
            let times = rng.usize(..=most) >> rng.usize(..16);
            let at = place(rng, bytes);
            bytes.splice(at..at, piece.repeat(times.min(LONGEST)));
        }
        5 => {
            let other = &seeds[rng.usize(..seeds.len())];
            let piece = other[part(rng, other)].to_vec();
            let gone = part(rng, bytes);
            bytes.splice(gone, piece);
        }
        6 => {
            let number = NUMBERS[rng.usize(..NUMBERS.len())];
            let digits: Vec<usize> = (0..bytes.len())
                .filter(|at| bytes[*at].is_ascii_digit())
                .collect();
            if digits.is_empty() || rng.bool() {
                let at = place(rng, bytes);
                let end = bytes.len().min(at + number.len());
                bytes.splice(at..end, number.iter().copied());
            } else {
                let at = digits[rng.usize(..digits.len())];
                let rest = bytes[at..].iter();
                let end = at + rest.take_while(|byte| byte.is_ascii_digit()).count();
                bytes.splice(at..end, number.iter().copied());
            }
        }
        7 => {
            let noise: Vec<u8> = (0..rng.usize(..16)).map(|_| rng.u8(..)).collect();
            let at = place(rng, bytes);
            bytes.splice(at..at, noise);
        }
        _ => {
            let at = place(rng, bytes);
            bytes.rotate_left(at);
        }
    }
}
