//! One client of the drive: a mounted file system, with a switchboard to the server's tree, and a
//! cache.
//!
//! Changes go to the server at once; only reads can be old.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use fuser::{
    BsdFileFlags, Errno, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo,
    LockOwner, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory,
    ReplyEmpty, ReplyEntry, ReplyOpen, ReplyWrite, Request, TimeOrNow, WriteFlags,
};
use nix::libc;
use trafficcop::Instant;

use super::switchboard::{Op, Switchboard};
use super::tree::{DriveResult, Tree};

/// The kernel caches nothing.
const AT_ONCE: Duration = Duration::ZERO;
const NO_HANDLE: FileHandle = FileHandle(0);

#[derive(Default)]
struct Memory {
    lasts: Duration,
    tree: Option<(Tree, Instant)>,
    /// Made or changed here, or known from the server.
    known: BTreeSet<(u64, OsString)>,
    written: BTreeSet<u64>,
}

#[derive(Clone)]
pub(super) struct Client {
    server: Arc<Mutex<Tree>>,
    pub(super) switchboard: Switchboard,
    memory: Arc<Mutex<Memory>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn errno(number: i32) -> Errno {
    Errno::from_i32(number)
}

impl Client {
    pub(super) fn new(server: Arc<Mutex<Tree>>) -> Client {
        Client {
            server,
            switchboard: Switchboard::default(),
            memory: Arc::default(),
        }
    }

    pub(super) fn remember_for(&self, lasts: Duration) {
        *lock(&self.memory) = Memory {
            lasts,
            ..Memory::default()
        };
    }

    fn tree(&self) -> MutexGuard<'_, Tree> {
        lock(&self.server)
    }

    /// Looks at the server only without a valid cache, or where `knows_better`.
    fn look<T>(
        &self,
        knows_better: impl Fn(&Memory) -> bool,
        look: impl Fn(&Tree) -> DriveResult<T>,
    ) -> DriveResult<T> {
        let mut memory = lock(&self.memory);
        if memory.lasts.is_zero() || knows_better(&memory) {
            return look(&self.tree());
        }
        let now = Instant::now();
        let lasts = memory.lasts;
        let known = memory.tree.as_ref();
        if known.is_none_or(|(_, since)| now.since(*since) > lasts) {
            memory.tree = Some((self.tree().clone(), now));
            memory.known.clear();
            memory.written.clear();
        }
        let remembered = memory.tree.as_ref().map(|(tree, _)| look(tree));
        match remembered {
            Some(Err(libc::ESTALE)) | None => look(&self.tree()),
            Some(answer) => answer,
        }
    }

    fn knows(&self, parent: u64, name: &OsStr) {
        lock(&self.memory).known.insert((parent, name.to_owned()));
    }

    fn child(&self, parent: u64, name: &OsStr) -> DriveResult<fuser::FileAttr> {
        let known = |memory: &Memory| memory.known.contains(&(parent, name.to_owned()));
        let number = self.look(known, |tree| tree.child(parent, name))?;
        self.attributes(number)
    }

    fn attributes(&self, number: u64) -> DriveResult<fuser::FileAttr> {
        let written = |memory: &Memory| memory.written.contains(&number);
        self.look(written, |tree| tree.attributes(number))
    }

    fn entries(&self, number: u64) -> DriveResult<Vec<(u64, FileType, OsString)>> {
        let mut names = self.look(|_| false, |tree| tree.names(number).cloned())?;
        let tree = self.tree();
        for (parent, name) in &lock(&self.memory).known {
            if *parent == number {
                match tree.child(number, name) {
                    Ok(child) => names.insert(name.clone(), child),
                    Err(_) => names.remove(name),
                };
            }
        }
        let kind = |child| {
            tree.attributes(child)
                .map_or(FileType::Directory, |it| it.kind)
        };
        let entries = names
            .into_iter()
            .map(|(name, child)| (child, kind(child), name));
        let dots = [".", ".."].map(|dot| (number, FileType::Directory, dot.into()));
        Ok(dots.into_iter().chain(entries).collect())
    }

    fn serve<T: Send + 'static>(
        &self,
        op: (Op, Option<&OsStr>, &Request),
        execute: impl FnOnce(&Client) -> DriveResult<T> + Send + 'static,
        answer: impl FnOnce(DriveResult<T>) + Send + 'static,
    ) {
        let client = self.clone();
        let op = (op.0, op.1, op.2.pid());
        self.switchboard.serve(op, move || execute(&client), answer);
    }
}

fn entry(reply: ReplyEntry) -> impl FnOnce(DriveResult<fuser::FileAttr>) + Send {
    move |done| match done {
        Ok(found) => reply.entry(&AT_ONCE, &found, Generation(0)),
        Err(number) => reply.error(errno(number)),
    }
}

fn empty(reply: ReplyEmpty) -> impl FnOnce(DriveResult<()>) + Send {
    move |done| match done {
        Ok(()) => reply.ok(),
        Err(number) => reply.error(errno(number)),
    }
}

fn attr(reply: ReplyAttr) -> impl FnOnce(DriveResult<fuser::FileAttr>) + Send {
    move |done| match done {
        Ok(found) => reply.attr(&AT_ONCE, &found),
        Err(number) => reply.error(errno(number)),
    }
}

fn opened(reply: ReplyOpen, flags: FopenFlags) -> impl FnOnce(DriveResult<()>) + Send {
    move |done| match done {
        Ok(()) => reply.opened(NO_HANDLE, flags),
        Err(number) => reply.error(errno(number)),
    }
}

impl Filesystem for Client {
    fn lookup(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let (parent, owned) = (parent.0, name.to_owned());
        let op = (Op::Lookup, Some(name), request);
        let look = move |client: &Client| {
            let found = client.child(parent, &owned);
            // Over a network both look before one makes it.
            if found.is_err() && client.tree().is_careless {
                std::thread::sleep(Duration::from_millis(20));
            }
            found
        };
        self.serve(op, look, entry(reply));
    }

    fn getattr(&self, request: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        let op = (Op::Getattr, None, request);
        self.serve(op, move |client| client.attributes(ino.0), attr(reply));
    }

    fn setattr(
        &self,
        request: &Request,
        ino: INodeNo,
        _mode: Option<u32>,
        _uid: Option<u32>,
        _gid: Option<u32>,
        size: Option<u64>,
        _atime: Option<TimeOrNow>,
        _mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        _fh: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let set = move |client: &Client| {
            if let Some(size) = size {
                client.tree().resize(ino.0, size)?;
            }
            client.tree().attributes(ino.0)
        };
        self.serve((Op::Setattr, None, request), set, attr(reply));
    }

    fn mkdir(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        reply: ReplyEntry,
    ) {
        let owned = name.to_owned();
        let make = move |client: &Client| {
            client.knows(parent.0, &owned);
            let mut tree = client.tree();
            let number = tree.make_directory(parent.0, &owned, mode)?;
            tree.attributes(number)
        };
        self.serve((Op::Mkdir, Some(name), request), make, entry(reply));
    }

    fn unlink(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let owned = name.to_owned();
        let remove = move |client: &Client| {
            client.knows(parent.0, &owned);
            client.tree().remove(parent.0, &owned, false)
        };
        self.serve((Op::Unlink, Some(name), request), remove, empty(reply));
    }

    fn rmdir(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let owned = name.to_owned();
        let remove = move |client: &Client| {
            client.knows(parent.0, &owned);
            client.tree().remove(parent.0, &owned, true)
        };
        self.serve((Op::Rmdir, Some(name), request), remove, empty(reply));
    }

    fn rename(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        to: INodeNo,
        new: &OsStr,
        _flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let (from, owned) = (name.to_owned(), new.to_owned());
        let rename = move |client: &Client| {
            client.knows(parent.0, &from);
            client.knows(to.0, &owned);
            client.tree().rename((parent.0, &from), (to.0, &owned))
        };
        self.serve((Op::Rename, Some(new), request), rename, empty(reply));
    }

    fn open(&self, request: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let open = move |client: &Client| {
            if flags.0 & libc::O_TRUNC != 0 {
                client.tree().resize(ino.0, 0)?;
            }
            client.attributes(ino.0).map(drop)
        };
        // All reads and writes go to the server.
        let answer = opened(reply, FopenFlags::FOPEN_DIRECT_IO);
        self.serve((Op::Open, None, request), open, answer);
    }

    fn create(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let owned = name.to_owned();
        let create = move |client: &Client| {
            client.knows(parent.0, &owned);
            let mut tree = client.tree();
            let exclusively = flags & libc::O_EXCL != 0;
            let number = tree.make_file(parent.0, &owned, mode, exclusively)?;
            tree.attributes(number)
        };
        let answer = move |done| match done {
            Ok(found) => {
                let flags = FopenFlags::FOPEN_DIRECT_IO;
                reply.created(&AT_ONCE, &found, Generation(0), NO_HANDLE, flags);
            }
            Err(number) => reply.error(errno(number)),
        };
        self.serve((Op::Create, Some(name), request), create, answer);
    }

    fn read(
        &self,
        request: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let read = move |client: &Client| {
            let written = |memory: &Memory| memory.written.contains(&ino.0);
            client.look(written, |tree| tree.read(ino.0, offset, size))
        };
        let answer = move |done: DriveResult<Vec<u8>>| match done {
            Ok(bytes) => reply.data(&bytes),
            Err(number) => reply.error(errno(number)),
        };
        self.serve((Op::Read, None, request), read, answer);
    }

    fn write(
        &self,
        request: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        data: &[u8],
        _write_flags: WriteFlags,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let data = data.to_vec();
        let write = move |client: &Client| {
            lock(&client.memory).written.insert(ino.0);
            client.tree().write(ino.0, offset, &data)
        };
        let answer = move |done| match done {
            Ok(size) => reply.written(size),
            Err(number) => reply.error(errno(number)),
        };
        self.serve((Op::Write, None, request), write, answer);
    }

    fn flush(
        &self,
        request: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        _owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        self.serve((Op::Flush, None, request), |_| Ok(()), empty(reply));
    }

    fn fsync(
        &self,
        request: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        _data: bool,
        reply: ReplyEmpty,
    ) {
        let sync = move |client: &Client| {
            let there = client.tree().has(ino.0);
            there.then_some(()).ok_or(libc::ESTALE)
        };
        self.serve((Op::Fsync, None, request), sync, empty(reply));
    }

    fn opendir(&self, request: &Request, ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        let open = move |client: &Client| client.attributes(ino.0).map(drop);
        let answer = opened(reply, FopenFlags::empty());
        self.serve((Op::Opendir, None, request), open, answer);
    }

    fn readdir(
        &self,
        request: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let answer = move |done: DriveResult<Vec<(u64, FileType, OsString)>>| match done {
            Ok(entries) => {
                let entries = (1..).zip(entries).skip(offset as usize);
                for (next, (number, kind, name)) in entries {
                    if reply.add(INodeNo(number), next, kind, name) {
                        break;
                    }
                }
                reply.ok();
            }
            Err(number) => reply.error(errno(number)),
        };
        let op = (Op::Readdir, None, request);
        self.serve(op, move |client| client.entries(ino.0), answer);
    }
}
