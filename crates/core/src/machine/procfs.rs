//! A file of /proc, read at once. The kernel makes its text anew for every read, and the standard
//! library, which is told a length of 0, begins with 32 bytes: for a file of a few hundred lines
//! that is most of what the reading costs.
//!
//! Called wherever one is read on the way to a command. It must never be used for a file that has
//! no end.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::ffi::OsStringExt as _;
use std::path::PathBuf;

// More than most of them have.
const ROOM: usize = 8192;

/// The whole of `path`.
///
/// # Errors
/// Those of opening and reading it.
pub fn bytes(path: &str) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(ROOM);
    File::open(path)?.read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The same as text. Names in it need not be UTF-8, and are then not what they were: who looks for one takes
/// [`bytes`].
///
/// # Errors
/// Those of opening and reading it.
pub fn text(path: &str) -> io::Result<String> {
    let text = String::from_utf8(bytes(path)?);
    Ok(text.unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned()))
}

/// A path as mountinfo has it: blanks, line ends and backslashes are three octal digits each.
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
