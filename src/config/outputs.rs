//! The files and sockets besides the lock: each needs a directory, and no two may be the same.

use std::fs::Metadata;
use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::UsageError;
use super::look::in_time;
use super::quote::quoted_word;
use crate::args;
use crate::guardian::{is_control_file, is_control_file_in_use};
use crate::report::{self, Volume};
use crate::serve::Address;
use crate::util::is_same_file;

/// Limit of the kernel for a socket's path, in bytes.
const SOCKET_LIMIT: usize = 107;

impl From<&args::Common> for Volume {
    fn from(typed: &args::Common) -> Volume {
        // `-n -E 0` is for crontabs on many machines: cron mails every line.
        let is_no_failure = typed.conflict_exit_code == Some(Ok(0));
        let is_a_quiet_job = typed.no_wait && is_no_failure && !report::is_watched();
        match Volume::from(&typed.operations) {
            Volume::Normal if is_a_quiet_job => Volume::Quiet,
            volume => volume,
        }
    }
}

impl From<&args::Operations> for Volume {
    fn from(typed: &args::Operations) -> Volume {
        match (typed.quiet, typed.verbose) {
            (true, _) => Volume::Quiet,
            (false, true) => Volume::Verbose,
            (false, false) => Volume::Normal,
        }
    }
}

#[derive(Clone)]
pub(super) struct Outputs {
    pub(super) status_file: Option<PathBuf>,
    pub(super) event_log: Option<PathBuf>,
    control_file: Option<PathBuf>,
    pub(super) listen: Option<Address>,
}

impl Outputs {
    /// Looks for `patience` at most at the files, and at those of the lock.
    pub(super) fn new(
        typed: &args::Operations,
        listen: &args::Listen,
        control_file: Option<&PathBuf>,
        locks: Vec<PathBuf>,
        patience: Duration,
    ) -> Result<Outputs, UsageError> {
        let outputs = Outputs {
            status_file: typed.status_file.clone(),
            event_log: typed.event_log.clone(),
            control_file: control_file.cloned(),
            listen: address(listen)?,
        };
        let socket = match &outputs.listen {
            Some(Address::Unix(path)) => Some(path),
            _ => None,
        };
        let all = [
            ("--status-file", outputs.status_file.as_ref()),
            ("--event-log", outputs.event_log.as_ref()),
            ("--control-file", control_file),
            ("--listen", socket),
        ];
        let set = all
            .into_iter()
            .filter_map(|(flag, path)| Some((flag, path?.as_path())));
        let (flags, mut paths): (Vec<_>, Vec<_>) = set.unzip();
        if !flags.is_empty() {
            paths.extend(locks.iter().map(PathBuf::as_path));
            let look = {
                let (outputs, locks) = (outputs.clone(), locks.clone());
                move || outputs.look(&locks)
            };
            in_time(&flags.join(", "), &paths, patience, look)?;
        }
        Ok(outputs)
    }

    fn look(&self, locks: &[PathBuf]) -> Result<(), UsageError> {
        if let Some(file) = &self.status_file {
            status_file(file, locks)?;
        }
        if let Some(file) = &self.event_log {
            event_log(file, self.status_file.as_deref(), locks)?;
        }
        if let Some(path) = &self.control_file {
            control_file(path, self, locks)?;
        }
        if let Some(Address::Unix(path)) = &self.listen {
            socket(path, self, locks)?;
        }
        Ok(())
    }
}

/// Refuses the lock's file: a rename would replace it, and the next instance would run at the same time.
fn status_file(file: &Path, locks: &[PathBuf]) -> Result<(), UsageError> {
    has_place("--status-file", file)?;
    let why = if is_no_file(file) {
        "trafficcop replaces it at every change, and it is not a regular file: name another (follow it with 'tail -F')"
    } else if is_one_of("--status-file", file, locks)? {
        "it is the lock's file, and would be replaced under the lock: name another one"
    } else {
        return Ok(());
    };
    refuse!("--status-file {}: {why}", quoted_word(file.as_os_str()))
}

/// Refuses the lock's file, where a line is an unreadable record, and the status file, which is replaced.
fn event_log(file: &Path, status: Option<&Path>, locks: &[PathBuf]) -> Result<(), UsageError> {
    has_place("--event-log", file)?;
    let flag = "--event-log";
    let what = if is_one_of(flag, file, locks)? {
        "the lock's file"
    } else if is_one_of(flag, file, status)? {
        "the status file, which is replaced at every change"
    } else {
        return Ok(());
    };
    refuse!("--event-log {} is {what}: name another one", file.display())
}

/// Finds a device, a pipe or a descriptor (/dev/stdout), which a rename would take away from all programs.
fn is_no_file(path: &Path) -> bool {
    let Ok(found) = path.symlink_metadata() else {
        return false;
    };
    match found.is_symlink() {
        true => leads_to_a_descriptor(path) || path.metadata().is_ok_and(|it| !it.is_file()),
        false => !found.is_file(),
    }
}

fn leads_to_a_descriptor(path: &Path) -> bool {
    let to = path.read_link().map(|to| directory(path).join(to));
    to.and_then(|to| directory(&to).canonicalize())
        .is_ok_and(|directory| directory.starts_with("/proc"))
}

/// Refuses a file without a directory: it is written from the first moment.
fn has_place(flag: &str, file: &Path) -> Result<(), UsageError> {
    let is_too_long = || {
        let found = file.symlink_metadata();
        found.is_err_and(|why| why.kind() == ErrorKind::InvalidFilename)
    };
    let why = if file.as_os_str().is_empty() || file.file_name().is_none() || file.is_dir() {
        "name a file, not a directory"
    } else if is_too_long() {
        "the name is too long: take a shorter one"
    } else if !seen(flag, directory(file))?.is_some_and(|found| found.is_dir()) {
        "there is no such directory: create it, or name another file"
    } else {
        return Ok(());
    };
    refuse!("{flag} {}: {why}", quoted_word(file.as_os_str()))
}

fn directory(file: &Path) -> &Path {
    let directory = file.parent().filter(|path| !path.as_os_str().is_empty());
    directory.unwrap_or(Path::new("."))
}

pub(crate) const ANOTHER_S_LINK: &str = "another instance keeps its link there: name another one";

/// Refuses a path where the link of elect would replace anything else.
fn control_file(path: &Path, outputs: &Outputs, locks: &[PathBuf]) -> Result<(), UsageError> {
    let flag = "--control-file";
    let why = if path.as_os_str().is_empty() || path.file_name().is_none() {
        "name a file, not a directory"
    } else if is_one_of(flag, path, &outputs.status_file)? {
        "it is the status file: name another one"
    } else if is_one_of(flag, path, &outputs.event_log)? {
        "it is the event log: name another one"
    } else if is_one_of(flag, path, locks)? {
        "it is the lock's file: name another one"
    // `metadata` would miss a link that was left behind and leads nowhere.
    } else if path.symlink_metadata().is_ok_and(|it| !it.is_symlink()) {
        "it exists and is not a symbolic link: remove it, or name another one"
    } else if path.read_link().is_ok_and(|to| !is_control_file(&to)) {
        "it is another program's symbolic link, and would be replaced: remove it, or name another one"
    } else if is_control_file_in_use(path) {
        ANOTHER_S_LINK
    } else {
        return Ok(());
    };
    refuse!("--control-file {}: {why}", quoted_word(path.as_os_str()))
}

pub(super) fn is_one_of(
    flag: &str,
    path: &Path,
    files: impl IntoIterator<Item = impl AsRef<Path>>,
) -> Result<bool, UsageError> {
    for file in files {
        if same_file(flag, path, file.as_ref())? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Returns an error if that cannot be checked: a file that may be the lock is not taken for another.
fn same_file(flag: &str, one: &Path, other: &Path) -> Result<bool, UsageError> {
    // A hard link has another name.
    if let (Some(one), Some(other)) = (seen(flag, one)?, seen(flag, other)?) {
        return Ok(is_same_file(&one, &other));
    }
    let place = |path: &Path| {
        let path = end_of_links(path);
        let directory = directory(&path).canonicalize().ok()?;
        Some(directory.join(path.file_name()?))
    };
    Ok(place(one).is_some_and(|one| place(other).is_some_and(|other| one == other)))
}

/// Finds where a new file would be created: a link may lead to a missing file.
fn end_of_links(path: &Path) -> PathBuf {
    const LINKS: usize = 40;
    let mut end = path.to_owned();
    for _ in 0..LINKS {
        match end.read_link() {
            Ok(to) => end = directory(&end).join(to),
            Err(_) => break,
        }
    }
    end
}

/// Returns `None` if nothing there could be opened.
fn seen(flag: &str, path: &Path) -> Result<Option<Metadata>, UsageError> {
    const NOT_THERE: [libc::c_int; 5] = [
        libc::ENOENT,
        libc::ENOTDIR,
        libc::EACCES,
        libc::ELOOP,
        libc::ENAMETOOLONG,
    ];
    match path.metadata() {
        Ok(found) => Ok(Some(found)),
        Err(why)
            if why
                .raw_os_error()
                .is_none_or(|why| NOT_THERE.contains(&why)) =>
        {
            Ok(None)
        }
        Err(why) => Err(UsageError::of_the_machine(format!(
            "{flag}: cannot look at {}: {why}: nothing was started: try again when it can be read",
            path.display()
        ))),
    }
}

fn address(typed: &args::Listen) -> Result<Option<Address>, UsageError> {
    let Some(text) = typed.listen.as_deref() else {
        return Ok(None);
    };
    if let Some(path) = text.strip_prefix("unix:") {
        return Ok(Some(Address::Unix(path.into())));
    }
    // `localhost` needs no DNS.
    let tcp = match text.strip_prefix("localhost:") {
        Some(port) => port
            .parse()
            .ok()
            .map(|port: u16| (Ipv4Addr::LOCALHOST, port).into()),
        None => text.parse::<SocketAddr>().ok(),
    };
    let Some(address) = tcp else {
        refuse!(
            "--listen {}: take an address and a port, as in 127.0.0.1:9090 or [::1]:9090, or a socket, \
             as in unix:/run/trafficcop.sock",
            quoted_word(text.as_ref())
        );
    };
    // `::ffff:127.0.0.1` is loopback, too.
    if !typed.listen_any && !address.ip().to_canonical().is_loopback() {
        refuse!(
            "--listen {text}: other machines could connect: take 127.0.0.1:{}, or add --listen-any to allow that",
            address.port()
        );
    }
    Ok(Some(Address::Tcp(address)))
}

fn socket(path: &Path, outputs: &Outputs, locks: &[PathBuf]) -> Result<(), UsageError> {
    let length = path.as_os_str().as_bytes().len();
    let files = locks
        .iter()
        .chain(&outputs.status_file)
        .chain(&outputs.event_log);
    // A file left there is removed, so it must be a socket.
    let found = path.symlink_metadata();
    let why = if !path.is_absolute() || path.file_name().is_none() {
        "name a whole path, as in unix:/run/trafficcop.sock".to_owned()
    } else if length > SOCKET_LIMIT {
        format!("a path of {length} bytes is too long for a socket: take {SOCKET_LIMIT} at most")
    } else if found.is_ok_and(|found| !found.file_type().is_socket()) {
        "it exists and is not a socket: name another path".to_owned()
    } else if is_one_of("--listen", path, files)? {
        "it is the lock's file, the status file or the event log: name another path".to_owned()
    } else {
        return Ok(());
    };
    refuse!("--listen unix:{}: {why}", quoted_word(path.as_os_str()))
}
