//! Files of /proc, read at once.
//!
//! The kernel makes the text anew for every read, and the standard library begins with 32 bytes. For a file
//! of a few hundred lines that is most of the cost.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::ffi::OsStringExt as _;
use std::path::PathBuf;

const ROOM: usize = 8192;

/// Reads the whole of `path`.
///
/// # Errors
/// Those of opening and reading.
pub fn bytes(path: &str) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(ROOM);
    File::open(path)?.read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Reads the whole of `path` as text, in which a name that is not UTF-8 comes out changed.
///
/// # Errors
/// Those of opening and reading.
pub fn text(path: &str) -> io::Result<String> {
    let text = String::from_utf8(bytes(path)?);
    Ok(text.unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned()))
}

/// Decodes a path of mountinfo: blanks, line ends and backslashes are three octal digits each.
pub fn unescaped(text: &[u8]) -> PathBuf {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((byte, after)) = rest.split_first() {
        let digits = after.get(..3).filter(|_| *byte == b'\\');
        let code = digits.and_then(|digits| {
            let digits = std::str::from_utf8(digits).ok()?;
            u8::from_str_radix(digits, 8).ok()
        });
        match code {
            Some(code) => {
                bytes.push(code);
                rest = &after[3..];
            }
            None => {
                bytes.push(*byte);
                rest = after;
            }
        }
    }
    PathBuf::from(OsString::from_vec(bytes))
}
