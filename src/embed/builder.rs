//! [`Builder`], which must never panic instead of returning an error.

use std::fmt;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;

use super::program::{Condition, Control, Program, SharedProgram, rules, spawn};
use super::{Error, Guards, TrafficCop};
use crate::azure::Account;
use crate::clock::Instant;
use crate::core::health::LEAST_WATCHDOG;
use crate::core::{Bell, Budget, IfLost, Tenure};
use crate::doorbell::{Doorbell, DoorbellAddress};
use crate::host::{self, Host};
use crate::lease::record::Candidate;
use crate::lease::{self, Competitor, LeaseStore, NamedLock, OpenError, StoreInfo, blob, file};

// As on the command line: commands and programs can compete for one lock.
const LEASE: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_secs(2);

enum LockPlace {
    Named(Arc<dyn NamedLock>),
    Store(Arc<dyn LeaseStore>),
}

/// Settings of a competition, which [`Builder::start`] begins.
#[must_use = "nothing competes before it is started"]
pub struct Builder {
    lock: String,
    place: LockPlace,
    identity: Option<String>,
    mkdir_is_exclusive: bool,
    lease: Option<Duration>,
    budget: Option<Budget>,
    poll: Duration,
    doorbell: Option<DoorbellAddress>,
    only_if: Option<Condition>,
    watchdog: Option<Duration>,
}

impl fmt::Debug for Builder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder")
            .field("lock", &self.lock)
            .field("identity", &self.identity)
            .field("lease", &self.lease)
            .field("budget", &self.budget)
            .field("poll", &self.poll)
            .field("doorbell", &self.doorbell)
            .field("watchdog", &self.watchdog)
            .finish()
    }
}

fn competitor(identity: Option<String>, lease: Duration, bell: Option<Bell>) -> Competitor {
    let here = Host::here();
    let candidate = Candidate {
        identity: identity.unwrap_or_else(|| here.identity()),
        host: here.host,
        pid: here.pid,
        command: host::program(),
        bell,
    };
    // Without memory for a guardian: if the program dies, the lease expires.
    Competitor {
        runtime_directories: lease::runtime_directories(host::runtime_directory().as_deref()),
        ..Competitor::new(candidate, lease)
    }
}

impl Builder {
    fn at(lock: String, place: LockPlace) -> Builder {
        Builder {
            lock,
            place,
            identity: None,
            mkdir_is_exclusive: false,
            lease: None,
            budget: None,
            poll: POLL,
            doorbell: None,
            only_if: None,
            watchdog: None,
        }
    }

    pub(super) fn of_blob(target: blob::Target, account: Account) -> Builder {
        let name = format!("{}/{}", target.container(), target.name());
        let lock = blob::BlobLock {
            target,
            account,
            create: true,
            page_blob: None,
        };
        Builder::at(name, LockPlace::Named(Arc::new(lock)))
    }

    pub(super) fn of_file(path: &Path) -> Result<Builder, Error> {
        if path.as_os_str().is_empty() {
            return Err(Error::refused("the lock's path is empty: name a file"));
        }
        // `false`: the file system tells whether the drive is shared. If so, the lock is kept in another way,
        // because the kernel's excludes no other machine there.
        let lock = lease::at_path(path, false, 1).map_err(not_opened)?;
        lock.info().warn();
        // Opened now for an early error; closed again, since the identity may still change.
        drop(open(&*lock, &competitor(None, LEASE, None))?);
        let name = path.display().to_string();
        Ok(Builder::at(name, LockPlace::Named(lock)))
    }

    pub(super) fn of_store(store: Arc<dyn LeaseStore>) -> Builder {
        Builder::at(store.info().name, LockPlace::Store(store))
    }

    /// Sets the instance's name in the lock's record (default `HOST-PID`). With a custom store,
    /// [`Builder::start`] refuses it.
    pub fn identity(mut self, identity: impl Into<String>) -> Builder {
        self.identity = Some(identity.into());
        self
    }

    /// Promises that exactly one of two machines can create the same directory on the lock's drive. Without
    /// this promise, an unknown shared file system is refused. A wrong promise gives two instances control.
    pub fn mkdir_is_exclusive(mut self) -> Builder {
        self.mkdir_is_exclusive = true;
        self
    }

    /// Sets the lease: 15 to 60 whole seconds on a blob (default 60), 10 to 60 s on a shared drive. After
    /// a crash, standbys may wait this long. A local disk ignores it.
    pub fn lease(mut self, lease: Duration) -> Builder {
        self.lease = Some(lease);
        self
    }

    /// Sets the lease and the division of its time: renewals, grace, margin.
    pub fn budget(mut self, budget: Budget) -> Builder {
        self.budget = Some(budget);
        self
    }

    /// Sets the time between looks at a held lock (default 2 s, ±20 %). While the holder drains, the instance looks
    /// eight times as often, at least every 2 s and at most every 250 ms. On a local disk the kernel wakes it.
    pub fn poll(mut self, poll: Duration) -> Builder {
        self.poll = poll;
        self
    }

    /// Passes control on within milliseconds (default: off): the holder tells its standbys when it gives up control.
    /// The instance listens on TCP at `address`, which must be in a private network; `None` takes a free port on the
    /// address from which this machine reaches the store. It has no effect on a local disk or a custom store.
    pub fn doorbell(mut self, address: Option<SocketAddr>) -> Builder {
        self.doorbell = Some(DoorbellAddress {
            ip: address.map(|address| address.ip()),
            port: address.map_or(0, |address| address.port()),
        });
        self
    }

    /// Takes control only if `condition` is true (default: always). A standby calls it at each poll on a
    /// thread of the runtime: it must not block. Its `false` never ends a tenure.
    pub fn only_if(mut self, condition: impl Fn() -> bool + Send + 'static) -> Builder {
        self.only_if = Some(Box::new(condition));
        self
    }

    /// Gives control up if [`Guard::alive`](super::Guard::alive) is not called at least this often during a
    /// tenure (1 s or more; default: off).
    ///
    /// The lease is then given back once the guards are dropped, or after the [`Budget`]'s grace. A pause of the
    /// process or the machine does not count. Blocking the runtime stops the renewals, and so loses control.
    pub fn watchdog(mut self, watchdog: Duration) -> Builder {
        self.watchdog = Some(watchdog);
        self
    }

    /// Starts to compete, on a task of the current tokio runtime, which needs `enable_all`.
    ///
    /// # Errors
    /// If a setting is invalid, the file cannot be opened, or there is no runtime. [`TrafficCop::acquired`]
    /// reports an unreachable store.
    pub async fn start(mut self) -> Result<TrafficCop, Error> {
        // Before anything is opened: `tokio::spawn` would panic.
        let runtime = tokio::runtime::Handle::try_current().map_err(|_| Error::NoRuntime)?;
        let (given, poll, watchdog) = (self.budget, self.poll, self.watchdog);
        if watchdog.is_some_and(|span| span < LEAST_WATCHDOG) {
            return Err(Error::refused(
                "the watchdog is shorter than a second: a busy machine can be that late",
            ));
        }
        let condition = self.only_if.take();
        let asks_every = condition.as_ref().map(|_| poll);
        let doorbell = self.bind()?;
        let store = self.open(doorbell.as_ref().map(Doorbell::bell))?;
        let StoreInfo {
            name, lease, wakes, ..
        } = store.info();
        let budget = budget(lease, given)?;
        let rules = rules(budget, (!wakes).then_some(poll), IfLost::Compete);
        let (send_cordon, cordons) = mpsc::unbounded_channel();
        let shared = SharedProgram::new(
            &name,
            Control::StandingBy { holder: None },
            Instant::ZERO,
            Guards::telling(send_cordon),
        );
        let workload = Program::new(&shared, watchdog).only_if(condition);
        let tenure = Tenure::new(rules, Instant::now()).only_if(asks_every);
        let spawned = spawn(
            &runtime,
            &shared,
            tenure,
            store,
            workload,
            Some(cordons),
            doorbell,
        );
        Ok(TrafficCop::new(shared, spawned))
    }

    fn bind(&self) -> Result<Option<Doorbell>, Error> {
        let (Some(wanted), LockPlace::Named(lock)) = (self.doorbell, &self.place) else {
            return Ok(None);
        };
        let info = lock.info();
        if !info.uses_doorbell {
            return Ok(None);
        }
        let bound = Doorbell::bind(wanted, info.host.as_deref())
            .map_err(|why| Error::refused(why.to_string()))?;
        bound.warn();
        Ok(Some(bound))
    }

    fn open(self, bell: Option<Bell>) -> Result<Arc<dyn LeaseStore>, Error> {
        let asked = self.lease.or(self.budget.map(|budget| budget.lease));
        let lease = asked.unwrap_or(LEASE);
        if let Some(identity) = &self.identity
            && let Some(why) = host::unfit_identity(identity)
        {
            return Err(Error::refused(format!("the identity: {why}")));
        }
        match self.place {
            // Only a shared drive reports limits before it is opened, so the error can name it.
            LockPlace::Named(lock) if !lock.info().leases.contains(&lease) => Err(Error::refused(
                format!("a lease on a shared drive lasts 10 to 60 s, not {lease:?}"),
            )),
            LockPlace::Named(lock) => {
                let competitor = Competitor {
                    mkdir_is_exclusive: self.mkdir_is_exclusive,
                    ..competitor(self.identity, lease, bell)
                };
                open(&*lock, &competitor)
            }
            // Its records name its own candidate: an operator would look for an ignored name in vain.
            LockPlace::Store(_) if self.identity.is_some() => Err(Error::refused(
                "a custom store already has its own instance name: do not call identity()",
            )),
            LockPlace::Store(store) => match store.info().lease {
                Some(has) if asked.is_some_and(|asked| asked != has) => {
                    Err(Error::refused(format!(
                        "{}: its lease lasts {has:?}, not {lease:?}: set a lease or a budget of {has:?}, or none",
                        store.info().name
                    )))
                }
                _ => Ok(store),
            },
        }
    }
}

fn open(lock: &dyn NamedLock, competitor: &Competitor) -> Result<Arc<dyn LeaseStore>, Error> {
    lock.open(competitor).map_err(not_opened)
}

fn not_opened(refusal: OpenError) -> Error {
    match refusal {
        OpenError::File(file::OpenError { why, denied, .. }) => Error::of_store(&why, denied),
        other => Error::refused(other),
    }
}

fn budget(lease: Option<Duration>, given: Option<Budget>) -> Result<Option<Budget>, Error> {
    let Some(lease) = lease else {
        return Ok(None);
    };
    let budget = given.unwrap_or_else(|| Budget::for_lease(lease));
    if budget.lease != lease {
        return Err(Error::refused(format!(
            "two leases, one of {lease:?} and a budget for {:?}: give one",
            budget.lease
        )));
    }
    // Exclusive control depends on its inequalities.
    budget.validate()?;
    Ok(Some(budget))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doorbell_on_a_local_file_binds_no_address() {
        let dir = tempfile::tempdir().expect("a directory");
        // For documentation: no machine has it.
        let nobodys = SocketAddr::from(([192, 0, 2, 7], 0));
        let builder = Builder::of_file(&dir.path().join("lock")).expect("a lock");
        let doorbell = builder.doorbell(Some(nobodys)).bind();
        assert!(doorbell.expect("nothing is refused").is_none());
    }
}
