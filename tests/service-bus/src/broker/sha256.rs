//! SHA-256 and HMAC, which saves a dependency.

pub(crate) fn hmac(key: &[u8], text: &[u8]) -> [u8; 32] {
    let mut block = [0; 64];
    if key.len() > 64 {
        block[..32].copy_from_slice(&digest(key));
    } else {
        block[..key.len()].copy_from_slice(key);
    }
    let inner = digest(&[&block.map(|byte| byte ^ 0x36)[..], text].concat());
    digest(&[&block.map(|byte| byte ^ 0x5c)[..], &inner].concat())
}

pub(crate) fn digest(text: &[u8]) -> [u8; 32] {
    let primes = primes();
    let mut state: [u32; 8] = std::array::from_fn(|at| root_bits(primes[at], 2));
    let constants: [u32; 64] = std::array::from_fn(|at| root_bits(primes[at], 3));
    let mut padded = text.to_vec();
    padded.push(0x80);
    padded.resize(padded.len().next_multiple_of(64), 0);
    if padded.len() - text.len() < 9 {
        padded.resize(padded.len() + 64, 0);
    }
    let end = padded.len();
    padded[end - 8..].copy_from_slice(&(text.len() as u64 * 8).to_be_bytes());
    for block in padded.chunks_exact(64) {
        compress(&mut state, &constants, block);
    }
    let mut out = [0; 32];
    for (bytes, word) in out.chunks_exact_mut(4).zip(state) {
        bytes.copy_from_slice(&word.to_be_bytes());
    }
    out
}

fn compress(state: &mut [u32; 8], constants: &[u32; 64], block: &[u8]) {
    let mut w = [0_u32; 64];
    for (word, bytes) in w.iter_mut().zip(block.chunks_exact(4)) {
        *word = bytes
            .iter()
            .fold(0, |all, byte| all << 8 | u32::from(*byte));
    }
    for at in 16..64 {
        let (x, y) = (w[at - 15], w[at - 2]);
        let low = x.rotate_right(7) ^ x.rotate_right(18) ^ (x >> 3);
        let high = y.rotate_right(17) ^ y.rotate_right(19) ^ (y >> 10);
        w[at] = w[at - 16]
            .wrapping_add(low)
            .wrapping_add(w[at - 7])
            .wrapping_add(high);
    }
    let [mut a, mut b, mut c, mut d, mut e, mut f, mut g, mut h] = *state;
    for at in 0..64 {
        let high = e.rotate_right(6) ^ e.rotate_right(11) ^ e.rotate_right(25);
        let choice = (e & f) ^ (!e & g);
        let first = h
            .wrapping_add(high)
            .wrapping_add(choice)
            .wrapping_add(constants[at])
            .wrapping_add(w[at]);
        let low = a.rotate_right(2) ^ a.rotate_right(13) ^ a.rotate_right(22);
        let second = low.wrapping_add((a & b) ^ (a & c) ^ (b & c));
        (h, g, f, e) = (g, f, e, d.wrapping_add(first));
        (d, c, b, a) = (c, b, a, first.wrapping_add(second));
    }
    for (word, new) in state.iter_mut().zip([a, b, c, d, e, f, g, h]) {
        *word = word.wrapping_add(new);
    }
}

/// Returns the first 64 primes, from which the standard's constants are made.
fn primes() -> [u32; 64] {
    let mut primes = [2; 64];
    for at in 1..64 {
        primes[at] = (primes[at - 1] + 1..)
            .find(|n| primes[..at].iter().all(|prime| n % prime != 0))
            .unwrap_or(0);
    }
    primes
}

/// Returns the first 32 fractional bits of the square root (`degree` 2) or cube root (3) of `n`.
fn root_bits(n: u32, degree: u32) -> u32 {
    // The root times 2^32, bit by bit: the largest r with r^degree <= n * 2^(32 * degree).
    let mut root: u128 = 0;
    for bit in (0..37).rev() {
        let candidate = root | 1 << bit;
        if candidate.pow(degree) <= u128::from(n) << (32 * degree) {
            root = candidate;
        }
    }
    root as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Vectors of FIPS 180 and RFC 4231, and lengths near the padding's limit.
    #[test]
    fn known_texts_have_known_digests() {
        assert_eq!(
            hex(&digest(b"")),
            "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
        );
        assert_eq!(
            hex(&digest(b"abc")),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
        );
        assert_eq!(
            hex(&digest(
                b"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"
            )),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"
        );
        assert_eq!(
            hex(&hmac(b"Jefe", b"what do ya want for nothing?")),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"
        );
    }
}
