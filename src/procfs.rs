//! A file of /proc, read at once. The kernel makes its text anew for every read, and the standard
//! library, which is told a length of 0, begins with 32 bytes: for a file of a few hundred lines
//! that is most of what the reading costs.
//!
//! Called wherever one is read on the way to a command. It must never be used for a file that has
//! no end.

use std::fs::File;
use std::io::{self, Read as _};

// More than most of them have.
const ROOM: usize = 8192;

/// The whole text of `path`.
///
/// # Errors
/// Those of opening and reading it, and [`io::ErrorKind::InvalidData`] where it is not UTF-8.
pub(crate) fn text(path: &str) -> io::Result<String> {
    let mut text = String::with_capacity(ROOM);
    File::open(path)?.read_to_string(&mut text)?;
    Ok(text)
}
