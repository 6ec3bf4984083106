//! Lock tokens: 128-bit identifiers in two byte orders.
//!
//! An AMQP `uuid` (in management requests) has the order of RFC 4122; a delivery tag has that of
//! .NET's `Guid.ToByteArray`: the first three groups little-endian. A client that forgets the swap
//! renews a lock that does not exist.

use std::collections::hash_map::RandomState;
use std::fmt;
use std::hash::{BuildHasher, Hasher};

/// An identifier, in the byte order of RFC 4122.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Guid(pub [u8; 16]);

impl Guid {
    /// Makes an identifier that is unique across processes.
    #[must_use]
    pub fn new() -> Self {
        // A `RandomState`'s keys come from the system; two hashes give 128 bits.
        let state = RandomState::new();
        let mut bytes = [0; 16];
        for (half, salt) in bytes.chunks_exact_mut(8).zip([1_u64, 2]) {
            let mut hasher = state.build_hasher();
            hasher.write_u64(salt);
            half.copy_from_slice(&hasher.finish().to_be_bytes());
        }
        bytes[6] = (bytes[6] & 0x0f) | 0x40;
        bytes[8] = (bytes[8] & 0x3f) | 0x80;
        Self(bytes)
    }

    /// Converts the 16 bytes that .NET wrote.
    #[must_use]
    pub fn from_dotnet(bytes: [u8; 16]) -> Self {
        Self(swap(bytes))
    }

    /// Converts to .NET's bytes, as in a delivery tag.
    #[must_use]
    pub fn to_dotnet(self) -> [u8; 16] {
        swap(self.0)
    }
}

impl Default for Guid {
    fn default() -> Self {
        Self::new()
    }
}

/// Reverses each of the first three groups; the inverse of itself.
fn swap(mut bytes: [u8; 16]) -> [u8; 16] {
    bytes[0..4].reverse();
    bytes[4..6].reverse();
    bytes[6..8].reverse();
    bytes
}

impl fmt::Display for Guid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, byte) in self.0.iter().enumerate() {
            if matches!(at, 4 | 6 | 8 | 10) {
                f.write_str("-")?;
            }
            write!(f, "{byte:02x}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Guid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dotnet_reverses_the_first_three_groups_and_no_other() {
        let rfc = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15];
        let dotnet = [3, 2, 1, 0, 5, 4, 7, 6, 8, 9, 10, 11, 12, 13, 14, 15];
        assert_eq!(Guid(rfc).to_dotnet(), dotnet);
        assert_eq!(Guid::from_dotnet(dotnet), Guid(rfc));
        assert_eq!(
            Guid(rfc).to_string(),
            "00010203-0405-0607-0809-0a0b0c0d0e0f"
        );
    }

    #[test]
    fn new_ones_differ() {
        let many: std::collections::BTreeSet<Guid> = (0..1000).map(|_| Guid::new()).collect();
        assert_eq!(many.len(), 1000);
    }
}
