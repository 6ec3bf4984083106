//! What the bytes of a message are: a storage queue carries text only, and senders put anything
//! else into base64.
//!
//! Called for every message that was taken. Pure. Must never change what it does not decode.

use azure_core::base64;

use crate::queue::Unreadable;

/// How the text of a message becomes the bytes of its body; as it is typed, with its help.
///
/// **The rule** of `Auto`. A text is decoded if it is base64 as RFC 4648 writes it (its standard letters,
/// padded, nothing else before, between or behind, not empty, no stray bits) and if, moreover,
/// it ends in `=`, or it has an upper-case letter, a lower-case letter and one of `0-9+/` in it
/// and is 24 letters long or decodes to text (UTF-8 without control characters other than tab
/// and line ends).
///
/// So words, numbers, hexadecimal digests, UUIDs, JSON and paths stay what they are, and what
/// Azure Functions, the older SDKs and anybody's `base64` send is decoded. Where bodies are
/// tokens that look exactly like base64, or so short that it cannot be told, say which it is.
#[cfg_attr(feature = "cli", derive(clap::ValueEnum))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Encoding {
    /// As base64 where that is evident, else as text
    #[default]
    Auto,
    /// As base64; others are put aside
    // White space is passed over.
    Base64,
    /// Not at all
    Text,
}

impl Encoding {
    /// The bytes of a message with this text; at most `most` of them.
    ///
    /// # Errors
    /// `NotBase64` where it was to be, `TooLarge` beyond the limit.
    pub(super) fn read(self, text: &str, most: usize) -> Result<Vec<u8>, Unreadable> {
        let bytes = match self {
            Encoding::Text => text.as_bytes().to_vec(),
            Encoding::Auto => evident(text).unwrap_or_else(|| text.as_bytes().to_vec()),
            Encoding::Base64 => {
                let dense: String = text.split_ascii_whitespace().collect();
                canonical(&dense).ok_or_else(|| Unreadable {
                    reason: "NotBase64",
                    detail: format!("the text of {} bytes is not base64", text.len()),
                })?
            }
        };
        if bytes.len() > most {
            return Err(Unreadable {
                reason: "TooLarge",
                detail: format!(
                    "the body of {} bytes is larger than the {most} allowed",
                    bytes.len()
                ),
            });
        }
        Ok(bytes)
    }
}

/// What the text encodes, if it is base64 in the one way that an encoder writes it.
fn canonical(text: &str) -> Option<Vec<u8>> {
    let bytes = base64::decode(text).ok()?;
    (base64::encode(&bytes) == text).then_some(bytes)
}

/// What the text encodes, if it is evident that it does: see [`Encoding::Auto`].
fn evident(text: &str) -> Option<Vec<u8>> {
    let bytes = canonical(text).filter(|bytes| !bytes.is_empty())?;
    let has = |kind: fn(u8) -> bool| text.bytes().any(kind);
    let mixed = has(|b| b.is_ascii_uppercase())
        && has(|b| b.is_ascii_lowercase())
        && has(|b| !b.is_ascii_alphabetic());
    let evident = text.ends_with('=') || mixed && (text.len() >= 24 || is_text(&bytes));
    evident.then_some(bytes)
}

fn is_text(bytes: &[u8]) -> bool {
    let plain = |c: char| !c.is_control() || matches!(c, '\t' | '\n' | '\r');
    std::str::from_utf8(bytes).is_ok_and(|text| text.chars().all(plain))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLENTY: usize = 1 << 20;

    fn auto(text: &str) -> Vec<u8> {
        Encoding::Auto.read(text, PLENTY).expect("readable")
    }

    #[test]
    fn what_looks_like_base64_by_chance_stays_text() {
        for text in [
            "",
            "test",
            "ping",
            "Test",
            "TestRun1",
            "Order123",
            "Job1",
            "1500",
            "0400",
            "12345678",
            "deadbeef",
            "550e8400e29b41d4a716446655440000",
            "DA39A3EE5E6B4B0D3255BFEF95601890AFD80709",
            "550e8400-e29b-41d4-a716-446655440000",
            "incoming/2026/report",
            "{\"a\":1}",
            "<a>&b</a>",
            "grüße",
            "two words==",
            "line\n",
            " ",
            "====",
        ] {
            assert_eq!(auto(text), text.as_bytes(), "{text:?}");
        }
    }

    #[test]
    fn what_an_encoder_wrote_is_decoded() {
        let all: Vec<u8> = (0..=255).cycle().take(48 * 1024).collect();
        for bytes in [
            b"hello".as_slice(),
            b"hello world!",
            b"{\"id\":42}",
            b"foobar",
            b"a",
            &[0, 0xff],
            "grüße, grüße!".as_bytes(),
            &all,
        ] {
            let text = base64::encode(bytes);
            assert_eq!(auto(&text), bytes, "{text:.80}");
            let read = Encoding::Base64.read(&text, PLENTY);
            assert_eq!(read.as_deref(), Ok(bytes));
            let read = Encoding::Text.read(&text, PLENTY);
            assert_eq!(read.as_deref(), Ok(text.as_bytes()));
        }
    }

    #[test]
    fn only_what_an_encoder_would_write_is_base64() {
        // Without its padding, with stray bits, of the other alphabet, with a line end behind it.
        for text in ["aGVsbG8", "aGVsbG9=", "_-8eyJhIjoxfQ==", "aGVsbG8=\n"] {
            assert_eq!(auto(text), text.as_bytes(), "{text:?}");
        }
        let wrapped = Encoding::Base64.read("aGVs\r\nbG8=\n", PLENTY);
        assert_eq!(wrapped.as_deref(), Ok(b"hello".as_slice()));
        assert_eq!(Encoding::Base64.read("", PLENTY), Ok(Vec::new()));
        for text in ["test!", "aGVsbG8", "{}"] {
            let said = Encoding::Base64.read(text, PLENTY).expect_err(text);
            assert_eq!(said.reason, "NotBase64");
            assert!(
                !said.detail.contains(text),
                "bodies stay out of messages: {said}"
            );
        }
    }

    #[test]
    fn the_limit_is_that_of_the_bytes_that_are_handed_over() {
        assert!(Encoding::Auto.read("aGVsbG8=", 5).is_ok());
        let said = Encoding::Auto.read("aGVsbG8=", 4).expect_err("too large");
        assert_eq!(said.reason, "TooLarge");
        assert!(Encoding::Text.read("aGVsbG8=", 5).is_err());
    }
}
