//! Whether the command can be started at all, looked at before anybody competes or takes a message: a
//! standby that can never work would be found out by the fail-over, and a typo would cost a queue an
//! attempt of each message.
//!
//! Called by the drivers. It looks as `execvp` would. What it cannot see (a missing interpreter,
//! another architecture) is found out with the first start.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use nix::errno::Errno;
use nix::unistd::{AccessFlags, access};

use super::spawn;

/// Whether `name` can be executed, found by `path` (the variable).
///
/// # Errors
/// ENOENT if there is no such command, EACCES if there is, and it may not be executed.
pub fn which(name: &OsStr, path: Option<&OsStr>) -> Result<(), Errno> {
    let mut found = Errno::ENOENT;
    for candidate in spawn::candidates(name, path)? {
        let candidate = Path::new(OsStr::from_bytes(candidate.as_bytes()));
        if !candidate.exists() {
            continue;
        }
        if candidate.is_file() && access(candidate, AccessFlags::X_OK).is_ok() {
            return Ok(());
        }
        found = Errno::EACCES;
    }
    Err(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn a_command_is_found_as_execvp_finds_it() {
        let dir = tempfile::tempdir().unwrap();
        let file = |name: &str, mode| {
            let path = dir.path().join(name);
            std::fs::write(&path, "").unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            path
        };
        let (runs, text) = (file("runs", 0o755), file("text", 0o644));
        let path = Some(dir.path().as_os_str());
        let of = |name: &OsStr| which(name, path);
        assert_eq!(of("runs".as_ref()), Ok(()));
        assert_eq!(of(runs.as_os_str()), Ok(()));
        assert_eq!(of("text".as_ref()), Err(Errno::EACCES));
        assert_eq!(of(text.as_os_str()), Err(Errno::EACCES));
        assert_eq!(of("nothing".as_ref()), Err(Errno::ENOENT));
        assert_eq!(of("./runs".as_ref()), Err(Errno::ENOENT));
        assert_eq!(
            of(dir.path().as_os_str()),
            Err(Errno::EACCES),
            "a directory"
        );
        assert_eq!(which("sh".as_ref(), None), Ok(()));
    }
}
