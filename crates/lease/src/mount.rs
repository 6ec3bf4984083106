//! Mount that a path lies on: a disk of this machine alone, or a drive that machines share.
//!
//! It must never send a request to a shared drive: its server may be gone, and the caller would hang.

mod planned;

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use self::planned::Planned;
use super::file::OpenError;
use trafficcop_core::machine::procfs;

const UNKNOWN: &str = "unknown";
// Symbolic links to follow (the kernel's limit is 40).
const LINKS: usize = 40;

// File systems whose files no other machine can have, and whose locks the kernel keeps. A list of the trusted:
// an unknown one taken for shared costs a lease's length; taken for local, two machines would run at once.
const LOCAL: &str = "ext2 ext3 ext4 xfs btrfs zfs f2fs bcachefs jfs reiserfs nilfs2 tmpfs ramfs \
    rootfs devtmpfs overlay fuseblk ntfs3 vfat exfat hfsplus ufs udf iso9660 squashfs erofs hugetlbfs";

// Shared file systems on which exactly one of two machines makes a directory, and how that is known. If both
// makers succeeded, both would run.
const EXCLUSIVE: &[(&str, &str)] = &[
    ("nfs nfs4 cifs smb3", "tried between machines (tests/vm)"),
    (
        "ceph fuse.ceph fuse.ceph-fuse lustre beegfs gpfs",
        "by its documentation: one metadata server or lock decides on each name",
    ),
    (
        "fuse.glusterfs",
        "by its documentation: its servers lock a name while they make it",
    ),
    (
        "gfs2 ocfs2",
        "by its documentation: the cluster's lock manager locks the directory",
    ),
    (
        "9p virtiofs fuse.sshfs",
        "by its protocol: one host makes the directory, on a disk of its own",
    ),
];

/// Mount of a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// Name of the file system.
    pub kind: String,
    /// Whether other machines may have the same files.
    pub shared: bool,
    /// Options of the mount and of its file system.
    pub options: String,
    /// Mount point.
    pub at: PathBuf,
    device: String,
    /// Directory of the file system that is mounted here.
    root: PathBuf,
}

impl Mount {
    /// Whether the kernel's table of mounts says what this is.
    pub fn is_known(&self) -> bool {
        self.kind != UNKNOWN
    }

    /// Returns how it is known that exactly one of two machines makes a directory here; `None` if it is not.
    #[must_use]
    pub fn proof(&self) -> Option<&'static str> {
        let has = |kinds: &str| kinds.split(' ').any(|kind| kind == self.kind);
        let known = EXCLUSIVE.iter().find(|(kinds, _)| has(kinds));
        let local = || (!self.shared).then_some("by this machine's kernel");
        known.map(|(_, how)| *how).or_else(local)
    }

    /// Refuses a lock at `path` without a known [proof](Mount::proof). Look at `path` before: that mounts a
    /// drive that is mounted on demand.
    pub fn refuse_unproven(&self, path: &Path) -> Result<(), String> {
        if self.proof().is_some() {
            return Ok(());
        }
        Err(format!(
            "{}: it is not known whether exactly one of two machines makes a directory on this file system \
             ({}), and without that two commands could run: use a drive that is known (docs/files.md), or pass \
             --mkdir-is-exclusive",
            path.display(),
            self.kind
        ))
    }

    /// Whether changes of other machines show late here: an NFS mount that asks no server when a file is opened.
    #[must_use]
    pub fn is_slow_to_tell(&self) -> bool {
        self.kind.starts_with("nfs") && self.options.split(',').any(|option| option == "nocto")
    }

    /// Returns a warning about a lock at `path`, if there is a reason.
    pub(crate) fn warning(&self, path: &Path) -> Option<String> {
        self.is_slow_to_tell().then(|| {
            let (path, kind) = (path.display(), &self.kind);
            format!(
                "{path}: this {kind} mount (nocto) shows changes of other machines late: nothing overlaps, but a \
                 hand-over can take a minute"
            )
        })
    }
}

/// Returns the mount that `path` lies on, or would lie on. Follows no link on a shared drive.
#[must_use]
pub fn of(path: &Path) -> Mount {
    under(&table(), path)
}

/// Returns the mount like [`of`], but fails without the table.
///
/// # Errors
/// If the kernel's table of mounts cannot be read.
pub fn known(path: &Path) -> Result<Mount, OpenError> {
    Ok(under(&parse(&text_for(path)?), path))
}

fn text_for(path: &Path) -> Result<Vec<u8>, OpenError> {
    text().map_err(|why| {
        OpenError::in_words(format!(
            "{}: the table of mounts cannot be read, so it is not known whether locks work there: \
             /proc/self/mountinfo: {why}: mount /proc, or try again",
            path.display()
        ))
    })
}

/// Whether cleaners of temporary files remove an old-looking file at this path.
#[must_use]
pub fn is_cleaned(path: &Path) -> bool {
    let typed = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let parent = typed.parent().and_then(|parent| parent.canonicalize().ok());
    let found = parent.as_deref().unwrap_or(&typed);
    ["/tmp", "/var/tmp"]
        .iter()
        .any(|place| typed.starts_with(place) || found.starts_with(place))
}

/// Returns the mount points of these paths' shared drives.
#[must_use]
pub fn shared_among<'a>(paths: impl IntoIterator<Item = &'a Path>) -> Vec<PathBuf> {
    let mounts = table();
    let found = paths.into_iter().map(|path| under(&mounts, path));
    let shared = found.filter(|mount| mount.shared);
    let mut drives: Vec<PathBuf> = shared.map(|mount| mount.at).collect();
    drives.sort();
    drives.dedup();
    drives
}

/// Reads the kernel's table: statfs(2) would ask the server, which may be gone.
fn table() -> Vec<Mount> {
    parse(&text().unwrap_or_default())
}

fn text() -> io::Result<Vec<u8>> {
    procfs::bytes("/proc/self/mountinfo")
}

fn under(mounts: &[Mount], path: &Path) -> Mount {
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    find(mounts, &absolute, &|path| std::fs::read_link(path).ok()).unwrap_or_else(|| Mount {
        // Without a table nothing is trusted.
        kind: UNKNOWN.to_owned(),
        shared: true,
        options: String::new(),
        at: PathBuf::from("/"),
        device: String::new(),
        root: PathBuf::from("/"),
    })
}

/// Refuses a path at which a lock excludes no process. In an overlay's upper directory, the file has another
/// inode through the overlay. Below an unmounted drive's mount point, the lock would be local.
pub fn refuse_wrong_place(path: &Path) -> Result<(), OpenError> {
    // Most machines have neither, and every start comes here: the whole table takes longer.
    const OVERLAY: &[u8] = b" - overlay ";
    let text = text_for(path)?;
    let has_overlay = text.windows(OVERLAY.len()).any(|words| words == OVERLAY);
    let planned = planned::all();
    if !has_overlay && planned.is_empty() {
        return Ok(());
    }
    let mounts = parse(&text);
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let read_link = |path: &Path| std::fs::read_link(path).ok();
    if let Some(drive) = unmounted_above(&mounts, &planned, &absolute, &read_link) {
        return Err(OpenError::in_words(format!(
            "{}: {} is the mount point of a network drive ({}, {}) that is not mounted, so a lock there would \
             exclude no other machine: mount it, or name a file elsewhere",
            path.display(),
            drive.at.display(),
            drive.kind,
            drive.by.display()
        )));
    }
    match overlay_above(&mounts, &absolute, &|path| std::fs::read_link(path).ok()) {
        None => Ok(()),
        Some(overlay) => Err(OpenError::in_words(format!(
            "{}: this lies in the upper directory of the overlay that is mounted at {}, and the same file has \
             another lock there: name it by its path in the overlay, or name a file elsewhere",
            path.display(),
            overlay.at.display()
        ))),
    }
}

fn unmounted_above<'a>(
    mounts: &[Mount],
    planned: &'a [Planned],
    path: &Path,
    read_link: &dyn Fn(&Path) -> Option<PathBuf>,
) -> Option<&'a Planned> {
    let (mount, here) = walk(mounts, path, read_link)?;
    // The first look mounts a drive on demand (autofs). If it stays unmounted, it has no proof, and is refused.
    let is_missing = |drive: &&Planned| {
        here.starts_with(&drive.at)
            && !mount.at.starts_with(&drive.at)
            && !mounts.iter().any(|mount| mount.at == drive.at)
    };
    planned.iter().find(is_missing)
}

/// Returns the mounted overlay in whose upper directory this path lies, by whatever name.
fn overlay_above<'a>(
    mounts: &'a [Mount],
    path: &Path,
    read_link: &dyn Fn(&Path) -> Option<PathBuf>,
) -> Option<&'a Mount> {
    let mut overlays = mounts.iter().filter(|mount| mount.kind == "overlay");
    let place = |path: &Path| {
        let (mount, here) = walk(mounts, path, read_link)?;
        let inside = here.strip_prefix(&mount.at).ok()?;
        Some((mount.device, mount.root.join(inside)))
    };
    let mut lock = None;
    overlays.find(|overlay| {
        let mut options = overlay.options.split(',');
        let upper = options.find_map(|option| option.strip_prefix("upperdir="));
        // Newer kernels write a comma of the name as `\\,`, and then escape both.
        let upper = upper.map(|upper| upper.replace("\\134\\054", "\\054"));
        let upper = upper.and_then(|upper| place(&procfs::unescaped(upper.as_bytes())));
        upper.is_some_and(|(device, upper)| {
            let lock = lock.get_or_insert_with(|| place(path));
            lock.as_ref()
                .is_some_and(|(on, at)| *on == device && at.starts_with(&upper))
        })
    })
}

fn find(
    mounts: &[Mount],
    path: &Path,
    read_link: &dyn Fn(&Path) -> Option<PathBuf>,
) -> Option<Mount> {
    walk(mounts, path, read_link).map(|(mount, _)| mount)
}

/// Walks down `path`, up to the first shared mount. Returns the mount, and where the links lead.
fn walk(
    mounts: &[Mount],
    path: &Path,
    read_link: &dyn Fn(&Path) -> Option<PathBuf>,
) -> Option<(Mount, PathBuf)> {
    let parts = |path: &Path| -> Vec<OsString> {
        let parts = path.components().rev().filter_map(|part| match part {
            Component::Normal(name) => Some(name.to_owned()),
            Component::ParentDir => Some("..".into()),
            Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
        });
        parts.collect()
    };
    let mut ahead = parts(path);
    let mut here = PathBuf::from("/");
    let mut links = 0;
    loop {
        // The last of several mounts at one place hides the others.
        let mount = mounts.iter().rfind(|mount| mount.at == here);
        if let Some(mount) = mount.filter(|mount| mount.shared) {
            // A mount point is no link, so one further down is reached without a request.
            let Some(inner) = below(mounts, &here, &ahead) else {
                return Some((mount.clone(), here));
            };
            ahead.truncate(ahead.len() - (depth(&inner) - depth(&here)));
            here = inner;
            continue;
        }
        let Some(name) = ahead.pop() else { break };
        // Only after the links before it: `a/..` is elsewhere if `a` is a link.
        if name == ".." {
            here.pop();
            continue;
        }
        let next = here.join(&name);
        // No link, and the question could reach a server.
        let mounted = mounts.iter().any(|mount| mount.at == next);
        match (!mounted && links < LINKS)
            .then(|| read_link(&next))
            .flatten()
        {
            Some(target) => {
                links += 1;
                if target.is_absolute() {
                    here = PathBuf::from("/");
                }
                ahead.extend(parts(&target));
            }
            None => here = next,
        }
    }
    let of_these = mounts.iter().filter(|mount| here.starts_with(&mount.at));
    // The last of equals hides the others.
    let mount = of_these.max_by_key(|mount| depth(&mount.at)).cloned();
    mount.map(|mount| (mount, here))
}

/// Returns the deepest mount point on the way from `here` through `ahead` (last part first).
fn below(mounts: &[Mount], here: &Path, ahead: &[OsString]) -> Option<PathBuf> {
    let mut whole = here.to_owned();
    // Behind "..", the path leaves the place that would need a request.
    whole.extend(ahead.iter().rev().take_while(|part| *part != ".."));
    let points = mounts.iter().map(|mount| &mount.at);
    let inner = points.filter(|at| whole.starts_with(at) && at.starts_with(here) && *at != here);
    inner.max_by_key(|at| depth(at)).cloned()
}

fn depth(path: &Path) -> usize {
    path.components().count()
}

/// Parses the mount table: `id parent dev root point options [tags] - type source super-options`.
fn parse(table: &[u8]) -> Vec<Mount> {
    let line = |line: &[u8]| {
        let fields: Vec<&[u8]> = line.split(|byte| *byte == b' ').collect();
        let dash = fields.iter().position(|field| *field == b"-")?;
        let kind = String::from_utf8_lossy(fields.get(dash + 1)?).into_owned();
        let here = String::from_utf8_lossy(fields.get(5)?);
        let there = fields.get(dash + 3).copied().unwrap_or_default();
        Some(Mount {
            shared: !LOCAL.split(' ').any(|local| local == kind),
            options: format!("{here},{}", String::from_utf8_lossy(there)),
            at: procfs::unescaped(fields.get(4)?),
            device: String::from_utf8_lossy(fields.get(2)?).into_owned(),
            root: procfs::unescaped(fields.get(3)?),
            kind,
        })
    };
    table
        .split(|byte| *byte == b'\n')
        .filter_map(line)
        .collect()
}

/// Returns the path beside `path` whose name continues with `suffix`.
#[must_use]
pub fn beside(path: &Path, suffix: impl AsRef<OsStr>) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(OsStr::from_bytes(name.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "\
22 1 8:1 / / rw,relatime - ext4 /dev/sda1 rw
23 22 0:20 / /proc rw - proc proc rw
30 22 0:50 / /mnt/share rw,noatime shared:1 - nfs4 server:/x rw,vers=4.2,hard
31 22 0:51 / /mnt/my\\040smb rw - cifs //server/x rw,vers=3.1.1
32 22 0:52 / /tmp rw - tmpfs tmpfs rw
33 32 0:53 / /tmp/blob rw - fuse.blobfuse2 blobfuse2 rw
34 30 8:2 / /mnt/share/local rw - xfs /dev/sdb rw
35 22 0:54 / /mnt/over rw - ext4 /dev/sdc rw
36 22 0:55 / /mnt/over rw - nfs server:/y rw,nocto
";

    fn found(path: &str, links: &[(&str, &str)]) -> Mount {
        let mounts = parse(TABLE.as_bytes());
        let read_link = |path: &Path| {
            assert!(
                path.starts_with("/mnt/share/local")
                    || !path.starts_with("/mnt/share") && !path.starts_with("/mnt/my smb"),
                "a shared drive was asked for {path:?}"
            );
            let link = links.iter().find(|(from, _)| Path::new(from) == path);
            link.map(|(_, to)| PathBuf::from(to))
        };
        find(&mounts, Path::new(path), &read_link).expect("a mount")
    }

    #[test]
    fn only_a_mount_that_shows_changes_late_is_warned_of() {
        let path = "/mnt/over/lock";
        let warning = found(path, &[]).warning(Path::new(path));
        assert!(warning.is_some_and(|text| text.starts_with("/mnt/over/lock: this nfs mount")));
        let share = "/mnt/share/lock";
        assert_eq!(found(share, &[]).warning(Path::new(share)), None);
    }

    #[test]
    fn mount_point_that_is_not_utf8_is_found() {
        let mut table = TABLE.as_bytes().to_vec();
        table.extend_from_slice(b"37 22 0:57 / /mnt/b\xfcro rw - fuse.sshfs h: rw\n");
        let mounts = parse(&table);
        let of = |path: &[u8]| {
            use std::os::unix::ffi::OsStrExt as _;
            let path = Path::new(std::ffi::OsStr::from_bytes(path));
            find(&mounts, path, &|_| None).expect("a mount").shared
        };
        assert!(of(b"/mnt/b\xfcro/lock") && !of(b"/srv/lock") && !of(b"/mnt/buro/lock"));
    }

    #[test]
    fn only_known_local_file_systems_are_local() {
        for (path, kind, shared) in [
            ("/srv/lock", "ext4", false),
            ("/tmp/a/lock", "tmpfs", false),
            ("/mnt/share/lock", "nfs4", true),
            ("/mnt/sharelock", "ext4", false),
            ("/mnt/my smb/a/lock", "cifs", true),
            ("/tmp/blob/lock", "fuse.blobfuse2", true),
            ("/tmp/blob/../lock", "fuse.blobfuse2", true),
            ("/mnt/over/lock", "nfs", true),
            ("/proc/lock", "proc", true),
            ("/mnt/share/local/lock", "xfs", false),
            ("/mnt/share/local/../lock", "nfs4", true),
            ("/mnt/share/a/../local/lock", "nfs4", true),
        ] {
            let mount = found(path, &[]);
            assert_eq!(
                (mount.kind.as_str(), mount.shared),
                (kind, shared),
                "{path}"
            );
        }
        for (path, is_proven) in [
            ("/srv/lock", true),
            ("/mnt/share/lock", true),
            ("/mnt/my smb/lock", true),
            ("/tmp/blob/lock", false),
            ("/proc/lock", false),
        ] {
            assert_eq!(found(path, &[]).proof().is_some(), is_proven, "{path}");
        }
        assert!(found("/mnt/over/lock", &[]).is_slow_to_tell());
        assert!(!found("/mnt/share/lock", &[]).is_slow_to_tell());
    }

    #[test]
    fn path_below_the_upper_directory_of_an_overlay_is_found_by_any_name() {
        let table = format!(
            "{TABLE}\
40 22 0:60 / /merged rw - overlay o rw,lowerdir=/low,upperdir=/srv/up\\134\\054x\\040y,workdir=/srv/work
41 22 8:1 /srv /bound rw - ext4 /dev/sda1 rw
42 22 0:61 / /old rw - overlay o rw,lowerdir=/low,upperdir=/srv/an\\054old,workdir=/srv/work
43 22 0:62 / /read rw - overlay o ro,lowerdir=/low:/lower
"
        );
        let mounts = parse(table.as_bytes());
        let read_link =
            |path: &Path| (path == Path::new("/link")).then(|| PathBuf::from("/srv/up,x y/a"));
        for (path, overlay) in [
            ("/srv/up,x y/lock", Some("/merged")),
            ("/bound/up,x y/a/lock", Some("/merged")),
            ("/link/lock", Some("/merged")),
            ("/srv/an,old/lock", Some("/old")),
            ("/merged/lock", None),
            ("/read/lock", None),
            ("/srv/up/lock", None),
            ("/srv/lock", None),
            ("/low/lock", None),
            ("/tmp/srv/up,x y/lock", None),
        ] {
            let above = overlay_above(&mounts, Path::new(path), &read_link);
            let above = above.map(|mount| mount.at.as_path());
            assert_eq!(above, overlay.map(Path::new), "{path}");
        }
    }

    #[test]
    fn planned_network_drives_that_are_not_mounted_are_found() {
        let mounts = parse(TABLE.as_bytes());
        let plan = |at: &str| Planned {
            at: at.into(),
            kind: "nfs4".into(),
            by: "/etc/fstab".into(),
        };
        let planned = ["/mnt/share", "/mnt/other", "/mnt", "/tmp/blob/x"].map(plan);
        let read_link = |path: &Path| (path == Path::new("/link")).then(|| "/mnt/other".into());
        for (path, missing) in [
            ("/mnt/share/l", None),
            ("/mnt/other/l", Some("/mnt/other")),
            ("/link/l", Some("/mnt/other")),
            ("/mnt/l", Some("/mnt")),
            ("/mnt/share/local/l", None),
            ("/mnt/otherwise/l", Some("/mnt")),
            ("/srv/l", None),
        ] {
            let found = unmounted_above(&mounts, &planned, Path::new(path), &read_link);
            assert_eq!(
                found.map(|drive| &*drive.at),
                missing.map(Path::new),
                "{path}"
            );
        }
    }

    #[test]
    fn links_are_followed_without_asking_a_shared_drive() {
        let links = [
            ("/locks", "/mnt/share/locks"),
            ("/srv/x", "../locks/y"),
            ("/srv/round", "round"),
        ];
        for (path, shared) in [
            ("/locks/a", true),
            ("/srv/x/a", true),
            ("/srv/round/a", false),
            ("/srv/a", false),
        ] {
            assert_eq!(found(path, &links).shared, shared, "{path}");
        }
    }

    #[test]
    fn cleaners_remove_what_lies_below_tmp_by_whatever_name() {
        let there = tempfile::tempdir_in("/run").or_else(|_| tempfile::tempdir_in("/dev/shm"));
        let there = there.unwrap();
        let back = there.path().join("link");
        std::os::unix::fs::symlink("/tmp", &back).unwrap();
        for path in ["/tmp/lock", "/tmp/a/lock", "/var/tmp/lock"] {
            assert!(is_cleaned(Path::new(path)), "{path}");
        }
        assert!(is_cleaned(&back.join("lock")));
        for path in ["/tmpfs/lock", "/run/lock/x", "/var/lib/tmp/lock"] {
            assert!(!is_cleaned(Path::new(path)), "{path}");
        }
        assert!(!is_cleaned(&there.path().join("lock")));
    }

    #[test]
    fn mount_of_the_temporary_directory_is_found() {
        let directory = tempfile::tempdir().unwrap();
        let mount = of(&directory.path().join("lock"));
        assert!(!mount.kind.is_empty() && mount.kind != "unknown");
    }
}
