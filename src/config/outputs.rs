//! The files and sockets besides the lock: each needs a directory, and no two may be the same.

use std::fs::Metadata;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::UsageError;
use super::look::in_time;
use super::quote::quoted_word;
use crate::args;
use crate::guardian::{is_control_file, is_control_file_in_use};
use crate::report::{self, Volume};
use crate::util::is_same_file;

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
            // Both together are refused, and the refusal is logged.
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
}

impl Outputs {
    fn files(&self) -> impl Iterator<Item = &PathBuf> {
        self.status_file.iter().chain(&self.event_log)
    }

    pub(super) fn new(typed: &args::Operations, beside: Beside) -> Result<Outputs, UsageError> {
        let outputs = Outputs {
            status_file: typed.status_file.clone(),
            event_log: typed.event_log.clone(),
        };
        if let Some(file) = outputs.status_file.clone() {
            let paths = vec![file.clone()];
            beside.look("--status-file", paths, move |locks| {
                status_file(&file, locks)
            })?;
        }
        if typed.quiet && typed.verbose {
            return Err(UsageError::new(
                "--quiet and --verbose contradict each other: choose one (is TRAFFICCOP_QUIET or TRAFFICCOP_VERBOSE \
                 set?)",
            ));
        }
        if let Some(file) = outputs.event_log.clone() {
            let status = outputs.status_file.clone();
            let paths = status.iter().chain([&file]).cloned().collect();
            beside.look("--event-log", paths, move |locks| {
                event_log(&file, status.as_deref(), locks)
            })?;
        }
        Ok(outputs)
    }
}

#[derive(Clone, Copy)]
pub(super) struct Beside<'a> {
    pub(super) locks: &'a [PathBuf],
    pub(super) patience: Duration,
}

impl Beside<'_> {
    fn look(
        self,
        flag: &str,
        paths: Vec<PathBuf>,
        check: impl FnOnce(&[PathBuf]) -> Result<(), UsageError> + Send + 'static,
    ) -> Result<(), UsageError> {
        let locks = self.locks.to_vec();
        let all: Vec<&Path> = paths.iter().chain(self.locks).map(AsRef::as_ref).collect();
        in_time(flag, &all, self.patience, move || check(&locks))
    }
}

/// Refuses the lock's file: a rename would replace it, and the next instance would run at the same time.
fn status_file(file: &Path, locks: &[PathBuf]) -> Result<(), UsageError> {
    has_place("--status-file", file)?;
    if is_no_file(file) {
        return Err(UsageError::new(format!(
            "--status-file {}: trafficcop replaces it at every change, and it is not a regular file: \
             name another (follow it with 'tail -F')",
            quoted_word(file.as_os_str())
        )));
    }
    if is_one_of("--status-file", file, locks)? {
        return Err(UsageError::new(format!(
            "--status-file {} is the lock's file, and would be replaced under the lock: name another one",
            file.display()
        )));
    }
    Ok(())
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
    Err(UsageError::new(format!(
        "--event-log {} is {what}: name another one",
        file.display()
    )))
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
    if file.as_os_str().is_empty() || file.file_name().is_none() || file.is_dir() {
        return Err(UsageError::new(format!(
            "{flag} {}: name a file, not a directory",
            quoted_word(file.as_os_str())
        )));
    }
    if file
        .symlink_metadata()
        .is_err_and(|why| why.kind() == ErrorKind::InvalidFilename)
    {
        return Err(UsageError::new(format!(
            "{flag} {}: the name is too long: take a shorter one",
            file.display()
        )));
    }
    if !seen(flag, directory(file))?.is_some_and(|found| found.is_dir()) {
        return Err(UsageError::new(format!(
            "{flag} {}: there is no such directory: create it, or name another file",
            file.display()
        )));
    }
    Ok(())
}

fn directory(file: &Path) -> &Path {
    let directory = file.parent().filter(|path| !path.as_os_str().is_empty());
    directory.unwrap_or(Path::new("."))
}

/// Refuses a path where the link of elect would replace anything else.
pub(super) fn control_file(
    path: &Path,
    outputs: &Outputs,
    beside: Beside,
) -> Result<(), UsageError> {
    let (path, outputs) = (path.to_owned(), outputs.clone());
    let paths = outputs.files().chain([&path]).cloned().collect();
    beside.look("--control-file", paths, move |locks| {
        link(&path, &outputs, locks)
    })
}

pub(crate) const ANOTHER_S_LINK: &str = "another instance keeps its link there: name another one";

fn link(path: &Path, outputs: &Outputs, locks: &[PathBuf]) -> Result<(), UsageError> {
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
    Err(UsageError::new(format!(
        "--control-file {}: {why}",
        quoted_word(path.as_os_str())
    )))
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

pub(super) use http::listen;

mod http {
    use std::net::{Ipv4Addr, SocketAddr};
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::fs::FileTypeExt;

    use super::{Beside, Outputs, Path, PathBuf, UsageError, args, is_one_of, quoted_word};
    use crate::serve::Address;

    /// The kernel's limit, in bytes.
    const PATH_LIMIT: usize = 107;

    pub(in super::super) fn listen(
        typed: &args::Listen,
        outputs: &Outputs,
        beside: Beside,
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
            let (path, outputs) = (PathBuf::from(path), outputs.clone());
            let there = path.clone();
            let paths = outputs.files().chain([&path]).cloned().collect();
            beside.look("--listen", paths, move |locks| {
                socket(&path)?;
                free(&path, &outputs, locks)
            })?;
            return Ok(Some(Address::Unix(there)));
        }
        let Some(address) = tcp(text) else {
            return Err(UsageError::new(format!(
                "--listen {}: take an address and a port, as in 127.0.0.1:9090 or [::1]:9090, or a socket, \
                 as in unix:/run/trafficcop.sock",
                quoted_word(text.as_ref())
            )));
        };
        // `::ffff:127.0.0.1` is loopback, too.
        if !typed.listen_any && !address.ip().to_canonical().is_loopback() {
            return Err(UsageError::new(format!(
                "--listen {text}: other machines could connect: take 127.0.0.1:{}, or add --listen-any to allow that",
                address.port()
            )));
        }
        Ok(Some(Address::Tcp(address)))
    }

    /// Does without DNS, which `localhost` does not need.
    fn tcp(text: &str) -> Option<SocketAddr> {
        match text.strip_prefix("localhost:") {
            Some(port) => Some((Ipv4Addr::LOCALHOST, port.parse().ok()?).into()),
            None => text.parse().ok(),
        }
    }

    fn free(path: &Path, outputs: &Outputs, locks: &[PathBuf]) -> Result<(), UsageError> {
        if is_one_of("--listen", path, locks.iter().chain(outputs.files()))? {
            return Err(UsageError::new(format!(
                "--listen unix:{}: it is the lock's file, the status file or the event log: name another path",
                path.display()
            )));
        }
        Ok(())
    }

    fn socket(path: &Path) -> Result<(), UsageError> {
        let length = path.as_os_str().as_bytes().len();
        // A file left there is removed, so it must be a socket.
        let found = path.symlink_metadata();
        let why = if !path.is_absolute() || path.file_name().is_none() {
            "name a whole path, as in unix:/run/trafficcop.sock".to_owned()
        } else if length > PATH_LIMIT {
            format!("a path of {length} bytes is too long for a socket: take {PATH_LIMIT} at most")
        } else if found.is_ok_and(|found| !found.file_type().is_socket()) {
            "it exists and is not a socket: name another path".to_owned()
        } else {
            return Ok(());
        };
        Err(UsageError::new(format!(
            "--listen unix:{}: {why}",
            quoted_word(path.as_os_str())
        )))
    }
}
