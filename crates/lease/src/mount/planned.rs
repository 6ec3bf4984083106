//! Mount points that /etc/fstab or a mount unit of systemd gives to a network file system. A lock below one
//! that is not mounted would be local, beside the holder on the drive.

use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use trafficcop_core::machine::procfs;

const FSTAB: &str = "/etc/fstab";
/// Directories of mount units, systemd.unit(5), without those that systemd makes of fstab.
const UNITS: [&str; 3] = [
    "/etc/systemd/system",
    "/run/systemd/system",
    "/usr/lib/systemd/system",
];
/// Network file systems of mount(8) and systemd.mount(5); `_netdev` marks all others.
const NETWORK: &str = "nfs nfs4 cifs smb3 smbfs ceph fuse.ceph glusterfs fuse.glusterfs fuse.sshfs sshfs lustre beegfs \
    gpfs gfs2 ocfs2 9p virtiofs afs davfs ncpfs";

/// Mount point that is to have a network file system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Planned {
    pub(super) at: PathBuf,
    pub(super) kind: String,
    pub(super) by: PathBuf,
}

fn is_network(kind: &str, options: &str) -> bool {
    NETWORK.split_whitespace().any(|known| known == kind)
        || options.split(',').any(|option| option == "_netdev")
}

fn of_fstab(text: &[u8]) -> Vec<Planned> {
    let line = |line: &[u8]| {
        let fields: Vec<&[u8]> = line
            .split(u8::is_ascii_whitespace)
            .filter(|field| !field.is_empty())
            .collect();
        let [_, at, kind, ..] = fields[..] else {
            return None;
        };
        let text = |field: &[u8]| String::from_utf8_lossy(field).into_owned();
        let (kind, options) = (text(kind), text(fields.get(3).copied().unwrap_or_default()));
        (!line.starts_with(b"#") && is_network(&kind, &options)).then(|| Planned {
            at: procfs::unescaped(at),
            kind,
            by: FSTAB.into(),
        })
    };
    text.split(|byte| *byte == b'\n').filter_map(line).collect()
}

fn of_unit(text: &str, by: &Path) -> Option<Planned> {
    let value = |key: &str| {
        let mut values = text.lines().filter_map(|line| {
            line.trim()
                .strip_prefix(key)?
                .trim_start()
                .strip_prefix('=')
        });
        values.next_back().map_or("", str::trim)
    };
    let (at, kind) = (value("Where"), value("Type"));
    (!at.is_empty() && is_network(kind, value("Options"))).then(|| Planned {
        at: at.into(),
        kind: kind.to_owned(),
        by: by.to_owned(),
    })
}

/// Reads this machine's configuration; most machines have none of these files.
pub(super) fn all() -> Vec<Planned> {
    let mut found = of_fstab(&std::fs::read(FSTAB).unwrap_or_default());
    for entry in UNITS.iter().flat_map(std::fs::read_dir).flatten().flatten() {
        let path = entry.path();
        if path.as_os_str().as_bytes().ends_with(b".mount") {
            let text = std::fs::read_to_string(&path).unwrap_or_default();
            found.extend(of_unit(&text, &path));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn network_file_systems_of_fstab_are_planned() {
        let text = b"# comment\n/dev/sda1 / ext4 defaults 0 1\nserver:/x /mnt/my\\040share nfs4 noauto 0 0\
            \n//s/x\t/smb\tcifs\n#s:/y /no nfs\n/dev/rbd0 /rbd xfs _netdev,noatime 0 0\n";
        let places: Vec<_> = of_fstab(text)
            .into_iter()
            .map(|planned| planned.at)
            .collect();
        assert_eq!(places, ["/mnt/my share", "/smb", "/rbd"].map(PathBuf::from));
    }

    #[test]
    fn mount_units_of_network_file_systems_are_planned() {
        let by = Path::new("/etc/systemd/system/mnt-share.mount");
        let unit = "[Unit]\nDescription=x\n[Mount]\nWhat=server:/x\nWhere = /mnt/share\nType=nfs\n";
        let planned = of_unit(unit, by).expect("planned");
        assert_eq!((planned.at, &*planned.kind), ("/mnt/share".into(), "nfs"));
        assert_eq!(
            of_unit("[Mount]\nWhat=/dev/sdb\nWhere=/data\nType=xfs\n", by),
            None
        );
        assert!(of_unit("[Mount]\nWhere=/data\nOptions=_netdev\n", by).is_some());
    }
}
