//! What was typed of being asked over HTTP, made sense of. Called by the plan.

use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use super::{Lock, UsageError, locks, quoted_word, same_file};
use crate::args;
use crate::serve::Address;

/// The longest path of a socket, in bytes: the kernel's limit.
const PATH_LIMIT: usize = 107;

pub(super) fn listen(
    typed: &args::Listen,
    lock: &Lock,
    slots: u32,
    status_file: Option<&Path>,
) -> Result<Option<Address>, UsageError> {
    let Some(text) = typed.listen.as_deref() else {
        if typed.listen_any {
            return Err(UsageError::new(
                "--listen-any has no meaning without --listen: name an address, or leave it out",
            ));
        }
        return Ok(None);
    };
    if let Some(path) = text.strip_prefix("unix:") {
        let path = Path::new(path);
        socket(path)?;
        let is_ours = match lock {
            Lock::File { path: lock, .. } => locks(lock, slots).any(|lock| same_file(path, &lock)),
            Lock::Blob { .. } => false,
        };
        if is_ours || status_file.is_some_and(|status| same_file(path, status)) {
            return Err(UsageError::new(format!(
                "--listen {text}: the lock's file or the status file is to be there: name another path"
            )));
        }
        return Ok(Some(Address::Unix(path.to_owned())));
    }
    let Some(address) = tcp(text) else {
        return Err(UsageError::new(format!(
            "--listen {}: take an address and a port, as in 127.0.0.1:9090 or [::1]:9090, or a socket, as in unix:/run/trafficcop.sock",
            quoted_word(text.as_ref())
        )));
    };
    if !typed.listen_any && !address.ip().to_canonical().is_loopback() {
        return Err(UsageError::new(format!(
            "--listen {text}: other machines could ask there: take 127.0.0.1:{}, or add --listen-any if that is what you want",
            address.port()
        )));
    }
    Ok(Some(Address::Tcp(address)))
}

/// A name would have to be looked up; this one everybody knows.
fn tcp(text: &str) -> Option<SocketAddr> {
    match text.strip_prefix("localhost:") {
        Some(port) => Some((Ipv4Addr::LOCALHOST, port.parse().ok()?).into()),
        None => text.parse().ok(),
    }
}

fn socket(path: &Path) -> Result<(), UsageError> {
    let named = quoted_word(path.as_os_str());
    if !path.is_absolute() || path.file_name().is_none() {
        return Err(UsageError::new(format!(
            "--listen unix:{named}: name a whole path, as in unix:/run/trafficcop.sock"
        )));
    }
    let length = path.as_os_str().as_bytes().len();
    if length > PATH_LIMIT {
        return Err(UsageError::new(format!(
            "--listen unix:{named}: a path of {length} bytes is too long for a socket: {PATH_LIMIT} at most"
        )));
    }
    if path
        .symlink_metadata()
        .is_ok_and(|found| !found.file_type().is_socket())
    {
        return Err(UsageError::new(format!(
            "--listen unix:{named}: there is something else than a socket: name another path"
        )));
    }
    Ok(())
}
