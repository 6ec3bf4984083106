//! Tests of one instance among several slots.

use std::future::pending;

use super::*;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Free,
    Taken,
    /// Grants, but the answer is lost; so is every answer to a release.
    Mute,
    /// Grants, but the first answer is lost.
    LosesTheAnswer,
    /// Grants, and never answers at all.
    Hangs,
    Broken,
    Stolen,
}

struct World {
    fates: Mutex<Vec<Fate>>,
    asked: Mutex<Vec<u32>>,
    ours: Mutex<BTreeSet<u32>>,
}

impl World {
    fn ours(&self) -> Vec<u32> {
        self.ours.lock().unwrap().iter().copied().collect()
    }

    fn set(&self, slot: usize, fate: Fate) {
        self.fates.lock().unwrap()[slot] = fate;
    }

    fn asked(&self) -> Vec<u32> {
        std::mem::take(&mut self.asked.lock().unwrap())
    }
}

struct Lock {
    name: String,
    slot: u32,
    world: Arc<World>,
}

impl Lock {
    fn fate(&self) -> Fate {
        self.world.fates.lock().unwrap()[self.slot as usize]
    }
}

#[async_trait]
impl LeaseStore for Lock {
    fn info(&self) -> StoreInfo {
        StoreInfo {
            name: self.name.clone(),
            wakes: true,
            ..StoreInfo::default()
        }
    }

    async fn acquire(&self, _: Instant) -> Result<Grant, Failure> {
        self.world.asked.lock().unwrap().push(self.slot);
        let grant = || {
            self.world.ours.lock().unwrap().insert(self.slot);
            Grant {
                t0: Instant::now(),
                token: 1,
                failed: 0,
            }
        };
        match self.fate() {
            Fate::Free => Ok(grant()),
            Fate::Taken | Fate::Stolen => Err(Failure::Held(HolderInfo {
                holder: Some(format!("holder of {}", self.slot)),
                ..HolderInfo::default()
            })),
            Fate::Mute | Fate::LosesTheAnswer => {
                grant();
                Err(transient("no answer".into()))
            }
            Fate::Hangs => {
                grant();
                pending().await
            }
            Fate::Broken => Err(Failure::Fatal {
                why: "broken".into(),
                denied: false,
            }),
        }
    }

    async fn renew(&self, _: Instant) -> Result<(), Failure> {
        Ok(())
    }

    async fn release(&self, _: Instant) -> Result<(), Failure> {
        if self.fate() == Fate::Mute {
            return Err(transient("no answer".into()));
        }
        self.world.ours.lock().unwrap().remove(&self.slot);
        if self.fate() == Fate::Stolen {
            return Err(Failure::Lost {
                until: None,
                why: "stolen".into(),
            });
        }
        Ok(())
    }

    async fn until_free(&self) {}

    fn orphan_release(&self) -> io::Result<OrphanRelease> {
        Ok(OrphanRelease {
            descriptor: None,
            release_info: Some(self.name.clone().into_bytes()),
        })
    }
}

fn slots(first: u32, fates: &[Fate]) -> (Slots, Arc<World>) {
    let world = Arc::new(World {
        fates: Mutex::new(fates.to_vec()),
        asked: Mutex::default(),
        ours: Mutex::default(),
    });
    let theirs = Arc::clone(&world);
    let open = move |slot| {
        Ok(Arc::new(Lock {
            name: format!("locks/x.{slot}"),
            slot,
            world: Arc::clone(&theirs),
        }) as Arc<dyn LeaseStore>)
    };
    let count = u32::try_from(fates.len()).unwrap();
    let store = open(first).unwrap();
    (Slots::over(count, first, store, Arc::new(open)), world)
}

fn later() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

use Fate::{Broken, Free, Hangs, LosesTheAnswer, Mute, Stolen, Taken};

#[tokio::test]
async fn free_slot_is_found_from_any_start() {
    for first in 0..3 {
        let (slots, world) = slots(first, &[Taken, Free, Taken]);
        assert_eq!(slots.info().name, "locks/x");
        slots.acquire(later()).await.unwrap();
        let info = slots.info();
        assert_eq!((info.slot, &*info.name), (1, "locks/x.1"));
        assert_eq!(
            slots.orphan_release().unwrap().release_info.unwrap(),
            b"locks/x.1"
        );
        assert_eq!(world.ours(), [1]);
        slots.release(later()).await.unwrap();
        assert_eq!((world.ours(), &*slots.info().name), (vec![], "locks/x"));
        let lost = slots.renew(later()).await;
        assert!(matches!(lost, Err(Failure::Lost { until: None, .. })));
    }
}

#[tokio::test]
async fn an_attempt_looks_at_four_slots_and_the_next_one_goes_on_there() {
    let (slots, world) = slots(8, &[Taken; 10]);
    let mut all = BTreeSet::new();
    for _ in 0..3 {
        let held = slots.acquire(later()).await;
        // The same every time, or the log would report every look.
        let many = HolderInfo {
            polls_as_ever: true,
            ..HolderInfo::default()
        };
        assert_eq!(held, Err(Failure::Held(many)));
        let asked = world.asked();
        assert_eq!(asked.len(), 4);
        all.extend(asked);
    }
    assert_eq!(all.len(), 10);
}

#[tokio::test]
async fn single_attempt_looks_at_all_slots() {
    let mut fates = [Taken; 10];
    fates[4] = Free;
    let (slots, _) = slots(5, &fates);
    slots.looking_at_all().acquire(later()).await.unwrap();
}

#[tokio::test]
async fn the_holders_of_a_few_slots_are_named() {
    let (slots, _) = slots(1, &[Taken, Taken]);
    let Err(Failure::Held(info)) = slots.acquire(later()).await else {
        panic!("both are taken");
    };
    assert_eq!(info.holder.as_deref(), Some("holder of 0, holder of 1"));
}

#[tokio::test]
async fn unanswered_grant_is_given_back_at_once() {
    let (slots, world) = slots(0, &[LosesTheAnswer, Free]);
    slots.acquire(later()).await.unwrap();
    assert_eq!(world.ours(), [1], "two slots are ours");
}

#[tokio::test]
async fn unclear_slot_does_not_hide_a_free_one_and_is_given_back_in_the_end() {
    let (slots, world) = slots(0, &[Mute, Taken]);
    assert!(matches!(
        slots.acquire(later()).await,
        Err(Failure::Transient { .. })
    ));
    // The next attempt looks at the unclear slot last.
    world.set(1, Free);
    slots.acquire(later()).await.unwrap();
    assert_eq!((slots.info().slot, world.ours()), (1, vec![0, 1]));
    world.set(0, Taken);
    slots.release(later()).await.unwrap();
    assert_eq!(world.ours(), [0; 0]);
}

#[tokio::test]
async fn slot_that_was_taken_away_is_reported_whatever_the_others_answer() {
    let (slots, world) = slots(0, &[Mute, Taken]);
    let _unanswered = slots.acquire(later()).await;
    world.set(1, Free);
    slots.acquire(later()).await.unwrap();
    world.set(1, Stolen);
    let said = slots.release(later()).await;
    assert!(matches!(said, Err(Failure::Lost { .. })), "{said:?}");
    // This is reported once, and the other slot is still remembered.
    world.set(0, Taken);
    slots.release(later()).await.unwrap();
    assert_eq!(world.ours(), [0; 0]);
}

#[tokio::test]
async fn an_attempt_that_was_dropped_is_undone_by_release() {
    let (slots, world) = slots(2, &[Taken, Taken, Hangs]);
    let limit = tokio::time::timeout(Duration::from_millis(20), slots.acquire(later())).await;
    assert!(limit.is_err());
    assert_eq!(world.ours(), [2]);
    slots.release(later()).await.unwrap();
    assert_eq!(world.ours(), [0; 0]);
}

#[tokio::test]
async fn lost_slot_is_looked_at_first() {
    let (slots, world) = slots(0, &[Taken, Free, Free]);
    slots.acquire(later()).await.unwrap();
    assert_eq!(slots.info().slot, 1);
    // Lost: the core competes again without a release.
    world.set(1, Taken);
    world.asked();
    slots.acquire(later()).await.unwrap();
    assert_eq!(world.asked(), [1, 2]);
    assert_eq!(slots.info().slot, 2);
}

#[tokio::test]
async fn broken_slot_hides_no_other_and_a_broken_store_is_reported() {
    let (some, _) = slots(0, &[Broken, Taken]);
    assert!(matches!(some.acquire(later()).await, Err(Failure::Held(_))));
    let (some, _) = slots(0, &[Broken, Free]);
    some.acquire(later()).await.unwrap();
    let (all, _) = slots(0, &[Broken, Broken]);
    let fatal = all.acquire(later()).await;
    assert!(matches!(fatal, Err(Failure::Fatal { .. })));
}

#[test]
fn instances_begin_at_different_slots() {
    let directory = tempfile::tempdir().unwrap();
    for _ in 0..32 {
        let candidate = crate::record::Candidate {
            identity: "a".into(),
            host: "h".into(),
            pid: 1,
            command: String::new(),
            bell: None,
        };
        let competitor = Competitor::new(candidate, Duration::ZERO);
        let lock = crate::at_path(&directory.path().join("lock"), false, 8).unwrap();
        let slots = Slots::open(lock, 8, competitor).unwrap();
        assert!(!slots.info().wakes);
    }
    // One for each instance: chance does not pick the same slot 32 times.
    let files = std::fs::read_dir(directory.path()).unwrap().count();
    assert!(files > 1 && files <= 8, "{files}");
}
