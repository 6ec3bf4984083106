//! Lock tokens: the bytes of a delivery tag are a GUID as .NET lays it out in memory.
//!
//! Called where deliveries are read. `$management` wants the token as a `uuid`, whose bytes are in
//! the order of RFC 9562; the tag has the first three groups of the same GUID turned round. Taking
//! the tag as it is names another lock, and every renewal of it would be refused.

use std::fmt;

/// A GUID; its bytes in the order in which it is written down.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct LockToken([u8; 16]);

impl LockToken {
    /// From the order in which it is written down, as AMQP's `uuid` has it.
    pub(super) fn from_uuid(bytes: [u8; 16]) -> LockToken {
        LockToken(bytes)
    }

    /// From a delivery tag; none, if that has not the length of one.
    pub(super) fn from_tag(tag: &[u8]) -> Option<LockToken> {
        let mut bytes: [u8; 16] = tag.try_into().ok()?;
        bytes[0..4].reverse();
        bytes[4..6].reverse();
        bytes[6..8].reverse();
        Some(LockToken(bytes))
    }

    /// In the order in which it is written down.
    pub(super) fn as_uuid(self) -> [u8; 16] {
        self.0
    }
}

impl fmt::Display for LockToken {
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

impl fmt::Debug for LockToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_is_read_as_dotnet_lays_it_out() {
        // new LockToken("00112233-4455-6677-8899-aabbccddeeff").ToByteArray() of .NET's documentation.
        let tag = [
            0x33, 0x22, 0x11, 0x00, 0x55, 0x44, 0x77, 0x66, 0x88, 0x99, 0xaa, 0xbb, 0xcc, 0xdd,
            0xee, 0xff,
        ];
        let lock_token = LockToken::from_tag(&tag).expect("sixteen bytes");
        assert_eq!(
            lock_token.to_string(),
            "00112233-4455-6677-8899-aabbccddeeff"
        );
        assert_eq!(LockToken::from_uuid(lock_token.as_uuid()), lock_token);
        assert_eq!(LockToken::from_tag(&tag[1..]), None);
        assert_eq!(LockToken::from_tag(&[]), None);
    }
}
