//! Whether a file's locks reach other machines: what the mount under it says of itself. Called
//! once, when the file is opened; must never guess that a lock works.

use std::fs;
use std::os::fd::AsRawFd;

use nix::sys::statfs::fstatfs;

use crate::procfs;

/// What was found.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Mount {
    /// The file system's name, for people.
    pub(super) kind: String,
    /// Other machines have it too; a lock can be lost, and the kernel's wait for it may poll.
    pub(super) network: bool,
    /// Whether its locks reach other machines is up to a server that cannot be asked.
    pub(super) unsure: bool,
}

/// Looks at the mount that `file` was opened on.
///
/// # Errors
/// One line, if locks on this mount are local to the machine while the files are not.
pub(super) fn examine(file: &fs::File) -> Result<Mount, String> {
    let magic = fstatfs(file).map(|found| found.filesystem_type().0 as u32);
    if let Ok(Some(kind)) = magic.map(local_by_magic) {
        return Ok(Mount {
            kind: kind.to_owned(),
            network: false,
            unsure: false,
        });
    }
    let by_number = magic.ok().and_then(by_magic);
    let text = procfs::text("/proc/self/mountinfo").unwrap_or_default();
    let line = fs::read_to_string(format!("/proc/self/fdinfo/{}", file.as_raw_fd()))
        .ok()
        .and_then(|info| {
            let id = info.lines().find_map(|line| line.strip_prefix("mnt_id:"))?;
            text.lines()
                .find(|line| line.split(' ').next() == Some(id.trim()))
        });
    match (line, by_number) {
        (Some(line), _) => judge(line),
        (None, None) => Ok(Mount {
            kind: "local".into(),
            network: false,
            unsure: false,
        }),
        (None, Some(kind)) => Err(format!(
            "it is on a network mount ({kind}) whose options cannot be read: mount /proc"
        )),
    }
}

/// The name of a file system that is this machine's alone, whatever its options: no mount table
/// has to be read for it.
fn local_by_magic(magic: u32) -> Option<&'static str> {
    Some(match magic {
        0xEF53 => "ext",
        0x5846_5342 => "xfs",
        0x9123_683E => "btrfs",
        0xF2F5_2010 => "f2fs",
        0x0102_1994 => "tmpfs",
        _ => return None,
    })
}

/// The name of a network file system by its number, for want of a mount table.
fn by_magic(magic: u32) -> Option<&'static str> {
    Some(match magic {
        0x6969 => "nfs",
        0xFF53_4D42 | 0xFE53_4D42 | 0x517B => "cifs",
        0x0102_1997 => "9p",
        0x6573_5546 => "fuse",
        0x00C3_6400 => "ceph",
        0x0BD0_0BD0 => "lustre",
        0x0116_1970 => "gfs2",
        0x7461_636F => "ocfs2",
        0x5346_414F | 0x6B41_4653 => "afs",
        0x4750_4653 => "gpfs",
        0x1983_0326 => "beegfs",
        0x786F_4256 => "vboxsf",
        0x2003_0528 => "orangefs",
        0x7375_7245 => "coda",
        _ => return None,
    })
}

/// Judges one line of the mount table: `id parent dev root point options [tags] - type source
/// super-options`.
fn judge(line: &str) -> Result<Mount, String> {
    let (head, tail) = line.split_once(" - ").unwrap_or((line, ""));
    let options_here = head.split(' ').nth(5).unwrap_or_default();
    let mut tail = tail.split(' ');
    let kind = tail.next().unwrap_or_default();
    let options_there = tail.nth(1).unwrap_or_default();
    let options: Vec<&str> = options_here
        .split(',')
        .chain(options_there.split(','))
        .collect();

    // `local_lock=flock` is no harm: our locks are byte-range locks, and those go to the server.
    // A 9p mount of an older protocol answers every request for a lock with "granted".
    let (network, unsure, local_only): (bool, bool, &[&str]) = match kind {
        "nfs" | "nfs4" => (
            true,
            false,
            &["nolock", "local_lock=all", "local_lock=posix"],
        ),
        "cifs" | "smb2" | "smb3" | "smbfs" => (true, false, &["nobrl"]),
        "9p" => (
            true,
            true,
            &["noextend", "version=9p2000", "version=9p2000.u"],
        ),
        "gfs2" | "ocfs2" => (true, false, &["localflocks"]),
        "lustre" => (true, false, &["localflock", "noflock"]),
        "ceph" | "gpfs" | "afs" => (true, false, &[]),
        "beegfs" | "vboxsf" | "orangefs" | "pvfs2" | "coda" | "virtiofs" | "fuse" => {
            (true, true, &[])
        }
        kind if kind.starts_with("fuse.") => (true, true, &[]),
        _ => (false, false, &[]),
    };
    if let Some(option) = options.iter().find(|option| local_only.contains(option)) {
        return Err(format!(
            "it is on a {kind} mount with the option {option}, whose locks do not reach other \
             machines: mount it without"
        ));
    }
    Ok(Mount {
        kind: kind.to_owned(),
        network,
        unsure,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(kind: &str, options: &str) -> String {
        format!("36 35 0:98 / /mnt/share rw,noatime shared:1 - {kind} server:/x rw,{options}")
    }

    #[test]
    fn mounts_whose_locks_stay_on_the_machine_are_refused() {
        for (kind, options) in [
            ("nfs", "vers=3,nolock,local_lock=all"),
            ("nfs", "vers=3,local_lock=posix"),
            ("nfs4", "vers=4.2,local_lock=all"),
            ("cifs", "vers=3.1.1,nobrl,cache=strict"),
            ("smb3", "nobrl"),
            ("9p", "access=client,version=9p2000.u"),
            ("9p", "noextend"),
            ("gfs2", "localflocks"),
            ("lustre", "localflock"),
        ] {
            let why = judge(&line(kind, options)).expect_err(options);
            assert!(why.contains(kind) && !why.contains('\n'), "{why}");
        }
    }

    #[test]
    fn network_mounts_are_told_from_local_ones() {
        for (kind, options, network) in [
            ("nfs4", "vers=4.1,local_lock=none", true),
            ("nfs", "vers=3,local_lock=flock", true),
            ("cifs", "vers=3.1.1", true),
            ("9p", "trans=virtio", true),
            ("fuse.sshfs", "user_id=0", true),
            ("virtiofs", "", true),
            ("ceph", "acl", true),
            ("fuseblk", "user_id=0", false),
            ("ext4", "relatime", false),
            ("tmpfs", "size=16k", false),
            ("overlay", "lowerdir=/a", false),
        ] {
            let mount = judge(&line(kind, options)).expect(kind);
            assert_eq!(mount.network, network, "{kind}");
        }
        // Tags are optional, and the options of the mount point count too.
        let bare = "36 35 0:98 / /mnt rw - nfs server:/x rw,nolock";
        assert!(judge(bare).is_err());
        assert!(judge("36 35 0:98 / /mnt rw,nobrl - cifs //server/x rw").is_err());
    }

    #[test]
    fn the_mount_of_a_file_here_is_found() {
        let file = tempfile::tempfile().expect("a temporary file");
        let mount = examine(&file).expect("a mount that is not refused");
        assert!(!mount.kind.is_empty());
    }
}
