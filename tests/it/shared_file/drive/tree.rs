//! The drive in memory, as the server has it.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::time::SystemTime;

use fuser::{FileAttr, FileType, INodeNo};
use nix::libc;

#[derive(Clone)]
struct Node {
    kind: Kind,
    mode: u16,
    modified: SystemTime,
}

#[derive(Clone)]
enum Kind {
    Directory(BTreeMap<OsString, u64>),
    File(Vec<u8>),
}

#[derive(Clone)]
pub(crate) struct Tree {
    nodes: BTreeMap<u64, Node>,
    next: u64,
    /// Making an existing directory succeeds, as on some object stores.
    pub(crate) is_careless: bool,
}

const ROOT: u64 = 1;

pub(crate) type DriveResult<T> = Result<T, i32>;

impl Tree {
    pub(crate) fn new() -> Tree {
        let root = Node::new(Kind::Directory(BTreeMap::new()), 0o777);
        Tree {
            nodes: BTreeMap::from([(ROOT, root)]),
            next: ROOT + 1,
            is_careless: false,
        }
    }

    pub(crate) fn has(&self, number: u64) -> bool {
        self.nodes.contains_key(&number)
    }

    /// Returns a node; a removed one is unknown, even to a client that has its number.
    fn node(&self, number: u64) -> DriveResult<&Node> {
        self.nodes.get(&number).ok_or(libc::ESTALE)
    }

    fn directory(&mut self, number: u64) -> DriveResult<&mut BTreeMap<OsString, u64>> {
        let node = self.nodes.get_mut(&number).ok_or(libc::ESTALE)?;
        node.modified = SystemTime::now();
        match &mut node.kind {
            Kind::Directory(names) => Ok(names),
            Kind::File(_) => Err(libc::ENOTDIR),
        }
    }

    pub(crate) fn names(&self, number: u64) -> DriveResult<&BTreeMap<OsString, u64>> {
        match &self.node(number)?.kind {
            Kind::Directory(names) => Ok(names),
            Kind::File(_) => Err(libc::ENOTDIR),
        }
    }

    pub(crate) fn child(&self, parent: u64, name: &OsStr) -> DriveResult<u64> {
        let names = self.names(parent)?;
        names.get(name).copied().ok_or(libc::ENOENT)
    }

    pub(crate) fn find(&self, path: &str) -> Option<u64> {
        let parts = path.split('/').filter(|part| !part.is_empty());
        parts
            .into_iter()
            .try_fold(ROOT, |here, part| self.child(here, part.as_ref()).ok())
    }

    pub(crate) fn attributes(&self, number: u64) -> DriveResult<FileAttr> {
        let node = self.node(number)?;
        let (kind, size) = match &node.kind {
            Kind::Directory(_) => (FileType::Directory, 4096),
            Kind::File(bytes) => (FileType::RegularFile, bytes.len() as u64),
        };
        Ok(FileAttr {
            ino: INodeNo(number),
            size,
            blocks: size.div_ceil(512),
            atime: node.modified,
            mtime: node.modified,
            ctime: node.modified,
            crtime: node.modified,
            kind,
            perm: node.mode,
            nlink: if kind == FileType::Directory { 2 } else { 1 },
            uid: nix::unistd::geteuid().as_raw(),
            gid: nix::unistd::getegid().as_raw(),
            rdev: 0,
            blksize: 4096,
            flags: 0,
        })
    }

    fn make(&mut self, parent: u64, name: &OsStr, node: Node) -> DriveResult<u64> {
        let number = self.next;
        let names = self.directory(parent)?;
        if names.contains_key(name) {
            return Err(libc::EEXIST);
        }
        names.insert(name.to_owned(), number);
        self.nodes.insert(number, node);
        self.next += 1;
        Ok(number)
    }

    pub(crate) fn make_directory(
        &mut self,
        parent: u64,
        name: &OsStr,
        mode: u32,
    ) -> DriveResult<u64> {
        let kind = Kind::Directory(BTreeMap::new());
        match self.make(parent, name, Node::new(kind, mode)) {
            Err(libc::EEXIST) if self.is_careless => self.child(parent, name),
            made => made,
        }
    }

    pub(crate) fn make_file(
        &mut self,
        parent: u64,
        name: &OsStr,
        mode: u32,
        exclusively: bool,
    ) -> DriveResult<u64> {
        match self.make(parent, name, Node::new(Kind::File(Vec::new()), mode)) {
            Err(libc::EEXIST) if !exclusively => self.child(parent, name),
            made => made,
        }
    }

    pub(crate) fn remove(&mut self, parent: u64, name: &OsStr, directory: bool) -> DriveResult<()> {
        let number = self.child(parent, name)?;
        match &self.node(number)?.kind {
            Kind::Directory(_) if !directory => return Err(libc::EISDIR),
            Kind::File(_) if directory => return Err(libc::ENOTDIR),
            Kind::Directory(names) if !names.is_empty() => return Err(libc::ENOTEMPTY),
            _ => {}
        }
        self.directory(parent)?.remove(name);
        self.nodes.remove(&number);
        Ok(())
    }

    pub(crate) fn rename(
        &mut self,
        (parent, name): (u64, &OsStr),
        (to, new): (u64, &OsStr),
    ) -> DriveResult<()> {
        let number = self.child(parent, name)?;
        if let Ok(there) = self.child(to, new) {
            match &self.node(there)?.kind {
                Kind::Directory(names) if !names.is_empty() => return Err(libc::ENOTEMPTY),
                _ => self.nodes.remove(&there),
            };
        }
        self.directory(parent)?.remove(name);
        self.directory(to)?.insert(new.to_owned(), number);
        Ok(())
    }

    fn bytes(&mut self, number: u64) -> DriveResult<&mut Vec<u8>> {
        let node = self.nodes.get_mut(&number).ok_or(libc::ESTALE)?;
        match &mut node.kind {
            Kind::File(bytes) => Ok(bytes),
            Kind::Directory(_) => Err(libc::EISDIR),
        }
    }

    pub(crate) fn read(&self, number: u64, offset: u64, size: u32) -> DriveResult<Vec<u8>> {
        let Kind::File(bytes) = &self.node(number)?.kind else {
            return Err(libc::EISDIR);
        };
        let rest = bytes.get(offset as usize..).unwrap_or_default();
        Ok(rest[..rest.len().min(size as usize)].to_vec())
    }

    pub(crate) fn write(&mut self, number: u64, offset: u64, data: &[u8]) -> DriveResult<u32> {
        let bytes = self.bytes(number)?;
        let (from, to) = (offset as usize, offset as usize + data.len());
        bytes.resize(bytes.len().max(to), 0);
        bytes[from..to].copy_from_slice(data);
        Ok(data.len() as u32)
    }

    pub(crate) fn resize(&mut self, number: u64, size: u64) -> DriveResult<()> {
        self.bytes(number)?.resize(size as usize, 0);
        Ok(())
    }
}

impl Node {
    fn new(kind: Kind, mode: u32) -> Node {
        Node {
            kind,
            mode: (mode & 0o777) as u16,
            modified: SystemTime::now(),
        }
    }
}
