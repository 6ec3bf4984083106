//! Small helpers for all crates.

use std::fs::{self, File, Metadata};
use std::io;
use std::os::fd::{AsFd, AsRawFd as _};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, FlockArg, fcntl};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// Memory shared with processes forked from this one. Its content is whole whenever its writer dies.
pub trait SharedMemory: Send + Sync {
    /// Replaces the content; clears it if the bytes are too long.
    fn put(&self, bytes: &[u8]);
    /// Returns the content. Call it only while no process puts.
    fn take(&self) -> Option<Vec<u8>>;
}

/// Locks even a poisoned mutex: the guarded data is whole between any two statements.
pub fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the FNV-1a hash (64 bits), to tell a torn record from a whole one.
pub fn check(bytes: &[u8]) -> String {
    let hash = bytes.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    format!("{hash:016x}")
}

/// Returns the wall clock (RFC 3339, UTC), for people, never for decisions.
pub fn wall_clock() -> String {
    let now = OffsetDateTime::now_utc();
    now.replace_nanosecond(0)
        .unwrap_or(now)
        .format(&Rfc3339)
        .unwrap_or_default()
}

static AWAITED: Mutex<Vec<i32>> = Mutex::new(Vec::new());

/// Calls `act` with the awaited children; no new one begins meanwhile.
pub fn with_awaited_children<T>(act: impl FnOnce(&[i32]) -> T) -> T {
    act(&lock(&AWAITED))
}

/// Child that no other code reaps until this is dropped.
#[derive(Debug)]
pub struct AwaitedChild(i32);

impl AwaitedChild {
    /// Starts a child; `id` returns its process id.
    ///
    /// # Errors
    /// Those of `spawn`.
    pub fn spawn<C>(
        spawn: impl FnOnce() -> io::Result<C>,
        id: impl FnOnce(&C) -> Option<u32>,
    ) -> io::Result<(C, AwaitedChild)> {
        // The child may end before its id is known.
        let mut awaited = lock(&AWAITED);
        let child = spawn()?;
        let pid = id(&child).and_then(|pid| i32::try_from(pid).ok());
        let pid = pid.unwrap_or_default();
        awaited.push(pid);
        Ok((child, AwaitedChild(pid)))
    }

    /// Returns the process id; 0: none.
    pub fn pid(&self) -> i32 {
        self.0
    }
}

impl Drop for AwaitedChild {
    fn drop(&mut self) {
        lock(&AWAITED).retain(|pid| *pid != self.0);
    }
}

/// Makes a path absolute.
///
/// # Errors
/// If the working directory was removed.
pub fn absolute(path: &Path) -> io::Result<PathBuf> {
    std::path::absolute(path).map_err(|error| {
        let why = format!("{}: cannot be made absolute: {error}", path.display());
        io::Error::new(error.kind(), why)
    })
}

/// Tells whether a terminal would act on this character, or show text in another order or on another line.
pub fn is_unprintable(c: char) -> bool {
    // Unicode's Bidi_Control and line separators: UAX 9, UAX 14.
    let reorders = matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    c.is_control() || reorders || matches!(c, '\u{2028}' | '\u{2029}')
}

/// Escapes unprintable characters: a name that looks right and is refused should show why.
pub fn spelt_out(text: &str) -> String {
    let spelt = |c: char| match is_unprintable(c) {
        true => c.escape_default().collect(),
        false => String::from(c),
    };
    text.chars().map(spelt).collect()
}

// A server's answer can be a page of HTML.
const TEXT_LIMIT: usize = 1000;

/// Makes a text from outside one line that cannot forge lines or control the terminal, and is not too long.
#[must_use]
pub fn plain(text: &str) -> String {
    let mut line: String = text
        .chars()
        .take(TEXT_LIMIT)
        .map(|c| if is_unprintable(c) { ' ' } else { c })
        .collect();
    if text.chars().nth(TEXT_LIMIT).is_some() {
        line.push_str("...");
    }
    line
}

/// Tells whether both are of one file.
pub fn is_same_file(one: &Metadata, other: &Metadata) -> bool {
    // An inode's number may repeat on another file system.
    (one.dev(), one.ino()) == (other.dev(), other.ino())
}

/// Tells whether only this user and root can rename or replace entries of this directory.
pub fn is_safe_from_others(directory: &Metadata) -> bool {
    let others_write = directory.mode() & 0o022 != 0 && directory.mode() & 0o1000 == 0;
    let owner = directory.uid();
    let is_trusted = owner == 0 || owner == nix::unistd::geteuid().as_raw();
    directory.is_dir() && is_trusted && !others_write
}

/// Lists this user's entries of a directory with this prefix and kind. Those of other users are not for
/// this one to judge, open or remove.
pub fn ours_in(
    directory: &Path,
    prefix: &str,
    is_kind: fn(&Metadata) -> bool,
) -> impl Iterator<Item = PathBuf> {
    let ours = nix::unistd::geteuid().as_raw();
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let named =
        entries.filter(move |entry| entry.file_name().to_string_lossy().starts_with(prefix));
    named.filter_map(move |entry| {
        let found = entry.metadata().ok()?;
        (is_kind(&found) && found.uid() == ours).then(|| entry.path())
    })
}

/// Makes a request for a lock on the whole file.
pub fn whole_file(kind: libc::c_int) -> libc::flock {
    libc::flock {
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: 0,
        l_len: 0,
        // The kernel demands zero for locks of an open file description.
        l_pid: 0,
    }
}

/// Tells whether an open file description other than `file`'s keeps it from locking.
pub fn is_locked_by_another(file: &File) -> nix::Result<bool> {
    let mut request = whole_file(libc::F_WRLCK);
    fcntl(file, FcntlArg::F_OFD_GETLK(&mut request))?;
    Ok(libc::c_int::from(request.l_type) != libc::F_UNLCK)
}

/// Locks or unlocks with flock(2), for every process that shares the description.
#[expect(
    deprecated,
    reason = "nix's own type unlocks for all of them when it is dropped"
)]
pub fn flock(file: &impl AsFd, how: FlockArg) -> nix::Result<()> {
    loop {
        match nix::fcntl::flock(file.as_fd().as_raw_fd(), how) {
            Err(Errno::EINTR) => {}
            done => return done,
        }
    }
}

/// Reads from `offset` until the buffer is full or the file ends.
pub fn read_up_to(file: &File, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match file.read_at(&mut buffer[filled..], offset + filled as u64) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

/// Defines a struct whose fields are documented for users, and `FIELDS` with their names and meanings.
/// Fields after the semicolon are optional.
#[macro_export]
macro_rules! documented {
    ($(#[$meta:meta])* struct $name:ident {
        $($(#[$attr:meta])* $field:ident: $type:ty = $meaning:literal,)*
        $(; $($optional:ident: $inner:ty = $about:literal,)*)?
    }) => {
        $(#[$meta])*
        pub struct $name {
            $(#[doc = $meaning] $(#[$attr])* pub $field: $type,)*
            $($(#[doc = $about] #[serde(skip_serializing_if = "Option::is_none")]
            pub $optional: Option<$inner>,)*)?
        }

        /// Fields in order, with their meanings.
        pub const FIELDS: &[(&str, &str)] = &[
            $((stringify!($field), $meaning),)*
            $($((stringify!($optional), $about),)*)?
        ];
    };
}
pub use crate::documented;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_from_outside_is_one_harmless_line() {
        assert_eq!(plain("a\nb\x1b[2J"), "a b [2J");
        assert_eq!(plain("a\u{202e}b\u{2066}c\u{2028}d\u{200f}e"), "a b c d e");
        let long = plain(&"é".repeat(5000));
        assert!(long.len() < 2100 && long.ends_with("..."));
    }
}
