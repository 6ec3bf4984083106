//! Gives an entry back after the supervisor's death, from the guardian, and kills the calls that it left
//! behind.
//!
//! The guardian finds both in shared memory, and calls the helper that was found before the fork. It must never
//! write over another instance's version, nor begin a call after the lease's end.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};

use super::call::{Helper, Put};
use crate::version_record::{VersionRecord, VersionState};
use crate::{MakeMemory, SharedMemory};
use trafficcop_core::clock::{self, Instant};
use trafficcop_core::machine::procfs;
use trafficcop_core::util::lock;

pub(super) const MARK: &[u8] = b"helper";
const LIMIT: Duration = Duration::from_secs(10);
const CALL: Duration = Duration::from_secs(5);
const RETRY: Duration = Duration::from_millis(250);

// Not in a store: the guardian is forked before there is any.
static MEMORY: OnceLock<Option<Arc<dyn SharedMemory>>> = OnceLock::new();
static NOTES: Mutex<Notes> = Mutex::new(Notes {
    running: Vec::new(),
    ours: None,
});

#[derive(Default, Serialize, Deserialize)]
struct Notes {
    running: Vec<Running>,
    ours: Option<Ours>,
}

/// Process group of a call, and when its leader began.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Running {
    group: i32,
    began: Option<String>,
}

/// Last version of a tenure.
#[derive(Serialize, Deserialize)]
struct Ours {
    program: PathBuf,
    name: String,
    /// Just before the write, on CLOCK_BOOTTIME.
    t0: u64,
    text: String,
}

impl Running {
    pub(super) fn of(pid: u32) -> Running {
        let running = Running {
            group: pid.cast_signed(),
            began: began(pid.cast_signed()),
        };
        change(|notes| notes.running.push(running.clone()));
        running
    }
}

pub(super) fn has_ended(call: &Running) {
    change(|notes| notes.running.retain(|one| one != call));
}

/// Returns the start of a process, in ticks.
fn began(pid: i32) -> Option<String> {
    let stat = procfs::text(&format!("/proc/{pid}/stat")).ok()?;
    // Field 22 of all; the name before may contain blanks.
    let (_, fields) = stat.rsplit_once(')')?;
    fields.split_whitespace().nth(19).map(str::to_owned)
}

pub(super) fn prepare(make: MakeMemory) {
    MEMORY.get_or_init(make);
}

pub(crate) fn is_meant(release_info: &[u8]) -> bool {
    release_info == MARK
}

fn change(change: impl FnOnce(&mut Notes)) {
    #[cfg(debug_assertions)]
    if let Some(calls) = super::call::simulated() {
        let mut notes = taken(&**calls);
        change(&mut notes);
        return calls.put(&serde_json::to_vec(&notes).unwrap_or_default());
    }
    let mut notes = lock(&NOTES);
    change(&mut notes);
    if let Some(memory) = MEMORY.get().and_then(Option::as_ref) {
        memory.put(&serde_json::to_vec(&*notes).unwrap_or_default());
    }
}

pub(super) fn leave_note(helper: &Helper, t0: Instant, record: &VersionRecord) {
    let ours = Ours {
        program: helper.program.clone(),
        name: helper.name.clone(),
        t0: t0.as_nanos(),
        text: String::from_utf8_lossy(&record.encode()).into_owned(),
    };
    change(|notes| notes.ours = Some(ours));
}

pub(super) fn forget(helper: &Helper) {
    change(|notes| drop(notes.ours.take_if(|ours| ours.name == helper.name)));
}

pub(crate) fn execute() {
    if let Some(memory) = MEMORY.get().and_then(Option::as_ref) {
        release_orphaned_by(&**memory);
    }
}

fn taken(memory: &dyn SharedMemory) -> Notes {
    let bytes = memory.take().unwrap_or_default();
    serde_json::from_slice(&bytes).unwrap_or_default()
}

/// Does what the guardian does with the notes in a memory.
pub fn release_orphaned_by(memory: &dyn SharedMemory) {
    let notes = taken(memory);
    for call in notes.running {
        // Another process gets the number only when no process of the group lives.
        if began(call.group).is_none_or(|now| Some(now) == call.began) {
            let _ = killpg(Pid::from_raw(call.group), Signal::SIGKILL);
        }
    }
    if let Some(ours) = notes.ours {
        give_back(&ours);
    }
}

fn give_back(ours: &Ours) {
    let Some(last) = VersionRecord::decode(ours.text.as_bytes()) else {
        return;
    };
    let helper = Helper {
        shown: ours.program.display().to_string(),
        program: ours.program.clone(),
        name: ours.name.clone(),
    };
    let claim = last.claim();
    let give_up_at = (Instant::now() + LIMIT).min(Instant::from_nanos(ours.t0) + claim.lease);
    while Instant::now() < give_up_at {
        let limit = give_up_at.min(Instant::now() + CALL);
        let entry = helper.get(limit).ok().flatten();
        let read = entry
            .as_ref()
            .map(|entry| VersionRecord::decode(&entry.text));
        match (entry, read) {
            (Some(entry), Some(Some(read))) if read.claim().nonce == claim.nonce => {
                let version = read.version.saturating_add(1);
                let identity = (claim.nonce, claim.lease);
                let free = VersionRecord::new(
                    version,
                    VersionState::Released,
                    identity,
                    read.record,
                    read.unread,
                );
                if read.state == VersionState::Released
                    || helper
                        .put(&entry.tag, &free.encode(), limit)
                        .is_ok_and(|put| put == Put::Done)
                {
                    return;
                }
            }
            // Another instance has it.
            (_, Some(Some(_))) => return,
            _ => {}
        }
        clock::pause(RETRY);
    }
}
