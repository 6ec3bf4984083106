use std::collections::VecDeque;
use std::future::pending;
use std::pin::pin;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use async_trait::async_trait;

use super::*;
use crate::clock::Instant;
use crate::core::{Budget, Failure, Grant};
use crate::embed::Lost;
use crate::lease::{Competitor, StoreInfo, blob, file};

const LONG: Duration = Duration::from_secs(60);
const LEASE: Duration = Duration::from_secs(2);

async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    let result = tokio::time::timeout(LONG, future).await;
    result.unwrap_or_else(|_| panic!("waited in vain for {what}"))
}

#[derive(Default)]
struct Scripted {
    tokens: Mutex<u64>,
    renewals: Mutex<VecDeque<Result<(), Failure>>>,
    released: Mutex<u32>,
    refuses: Option<Failure>,
    lease: Option<Duration>,
    /// Times of renewals, and the duration of the first.
    asked: Mutex<Vec<Instant>>,
    first_takes: Duration,
}

struct Watched(Arc<Scripted>);

impl std::ops::Deref for Watched {
    type Target = Scripted;

    fn deref(&self) -> &Scripted {
        &self.0
    }
}

#[async_trait]
impl LeaseStore for Watched {
    fn info(&self) -> StoreInfo {
        StoreInfo {
            name: "scripted".to_owned(),
            lease: Some(self.lease.unwrap_or(LEASE)),
            ..StoreInfo::default()
        }
    }

    async fn acquire(&self, _give_up_at: Instant) -> Result<Grant, Failure> {
        if let Some(failure) = &self.refuses {
            return Err(failure.clone());
        }
        let mut tokens = self.tokens.lock().unwrap();
        *tokens += 1;
        Ok(Grant {
            t0: Instant::now(),
            token: *tokens,
            failed: 0,
        })
    }

    async fn renew(&self, _give_up_at: Instant) -> Result<(), Failure> {
        let is_first = {
            let mut asked = self.asked.lock().unwrap();
            asked.push(Instant::now());
            asked.len() == 1
        };
        if is_first {
            tokio::time::sleep(self.first_takes).await;
        }
        self.renewals.lock().unwrap().pop_front().unwrap_or(Ok(()))
    }

    async fn release(&self, _give_up_at: Instant) -> Result<(), Failure> {
        *self.released.lock().unwrap() += 1;
        Ok(())
    }
}

fn lost() -> Result<(), Failure> {
    Err(Failure::Lost {
        until: None,
        why: "taken away".to_owned(),
    })
}

fn in_doubt() -> Result<(), Failure> {
    Err(Failure::Transient {
        why: "no answer".to_owned(),
        retry_after: None,
    })
}

fn renewing(replies: impl IntoIterator<Item = Result<(), Failure>>) -> Arc<Scripted> {
    Arc::new(Scripted {
        renewals: Mutex::new(replies.into_iter().collect()),
        ..Scripted::default()
    })
}

async fn competing(store: &Arc<Scripted>) -> TrafficCop {
    let builder = TrafficCop::with_store(Watched(Arc::clone(store)));
    let builder = builder.budget(Budget::for_lock(LEASE, 70));
    builder
        .poll(Duration::from_millis(50))
        .start()
        .await
        .unwrap()
}

#[tokio::test]
async fn a_dropped_guard_hands_control_to_the_next_one() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("lock");
    let one = TrafficCop::file(&path).unwrap().identity("one");
    let one = one.start().await.unwrap();
    let guard = soon("the first guard", one.acquired()).await.unwrap();
    assert!(guard.has_control() && one.has_control());
    let two = TrafficCop::file(&path).unwrap().identity("two");
    let two = two.start().await.unwrap();
    let mut stands = two.watch();
    let behind = |control: &Control| matches!(control, Control::StandingBy { holder: Some(h) } if h == "one");
    let seen = soon("a look at the holder", stands.wait_for(behind)).await;
    drop(seen.unwrap());
    let first = guard.token();
    drop(guard);
    assert!(!one.has_control());
    let guard = soon("the second guard", two.acquired()).await.unwrap();
    assert!(guard.token() > first);
    // The first instance competes again only when it is asked to.
    drop(guard);
    drop(soon("the third guard", two.acquired()).await.unwrap());
    drop(soon("control to come back", one.acquired()).await.unwrap());
    assert_eq!(two.stop().await, Ok(()));
    assert_eq!(one.stop().await, Ok(()));
}

/// A store of another crate has these names for it.
#[tokio::test]
async fn custom_store_can_report_that_the_task_is_done() {
    let over = crate::TaskResult {
        status: 0,
        holder: "web1".to_owned(),
        at: "2026-01-31T13:00:02Z".to_owned(),
        token: 7,
    };
    let store = Arc::new(Scripted {
        refuses: Some(crate::Failure::AlreadyDone(over)),
        ..Scripted::default()
    });
    let cop = competing(&store).await;
    let none = soon("the end", cop.acquired()).await.unwrap_err();
    assert!(matches!(none, Error::Over { .. }), "{none}");
    assert_eq!(cop.stop().await, Err(none));
}

#[tokio::test]
async fn watchdog_ends_control_only_without_alive() {
    let store = Arc::new(Scripted {
        lease: Some(LONG),
        ..Scripted::default()
    });
    let watched = |store: &Arc<Scripted>| {
        let builder = TrafficCop::with_store(Watched(Arc::clone(store)));
        let budget = Budget {
            grace_on_loss: Duration::from_secs(1),
            ..Budget::for_lease(LONG)
        };
        builder.budget(budget).watchdog(Duration::from_secs(1))
    };
    let cop = watched(&store).start().await.unwrap();
    let guard = soon("a guard", cop.acquired()).await.unwrap();
    let begun = Instant::now();
    while Instant::now().since(begun) < Duration::from_secs(3) {
        guard.alive();
        assert!(guard.has_control());
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    soon("the end of control", guard.lost()).await;
    assert!(!guard.has_control());
    // The grace comes first, since the work may still go on.
    assert_eq!(*store.released.lock().unwrap(), 0);
    let standby = |control: &Control| matches!(control, Control::StandingBy { .. });
    let mut watch = cop.watch();
    drop(
        soon("the end of the tenure", watch.wait_for(standby))
            .await
            .unwrap(),
    );
    guard.alive();
    let next = soon("the next", cop.acquired()).await.unwrap();
    assert_eq!((next.token(), *store.released.lock().unwrap()), (2, 1));
    drop((guard, next));

    let short = watched(&store).watchdog(Duration::from_millis(900));
    assert!(short.start().await.is_err());
}

#[tokio::test]
async fn instance_competes_again_only_for_the_next_guard() {
    let store = Arc::new(Scripted::default());
    let cop = competing(&store).await;
    drop(soon("a guard", cop.acquired()).await.unwrap());
    let standby = |control: &Control| matches!(control, Control::StandingBy { .. });
    let mut watched = cop.watch();
    let stands = soon("the end of the tenure", watched.wait_for(standby)).await;
    drop(stands.unwrap());
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(*store.tokens.lock().unwrap(), 1);
    assert_eq!(*store.released.lock().unwrap(), 1);
    let guard = soon("the next", cop.acquired()).await.unwrap();
    assert_eq!(guard.token(), 2);
}

#[tokio::test]
async fn only_if_keeps_an_unfit_program_from_control_but_never_ends_it() {
    let store = Arc::new(Scripted::default());
    let fit = Arc::new(AtomicBool::new(false));
    let asked = Arc::new(AtomicU32::new(0));
    let (its, count) = (Arc::clone(&fit), Arc::clone(&asked));
    let builder = TrafficCop::with_store(Watched(Arc::clone(&store)));
    let cop = builder
        .budget(Budget::for_lock(LEASE, 70))
        .poll(Duration::from_millis(50))
        .only_if(move || {
            count.fetch_add(1, Ordering::SeqCst);
            its.load(Ordering::SeqCst)
        })
        .start()
        .await
        .unwrap();
    let asked_again = async |more| {
        let before = asked.load(Ordering::SeqCst);
        while asked.load(Ordering::SeqCst) < before + more {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    soon("some questions", asked_again(3)).await;
    assert_eq!(*store.tokens.lock().unwrap(), 0, "it competed");
    fit.store(true, Ordering::SeqCst);
    let guard = soon("control", cop.acquired()).await.unwrap();
    fit.store(false, Ordering::SeqCst);
    let before = asked.load(Ordering::SeqCst);
    // Two renewals must have come round.
    let renewed = async {
        while store.asked.lock().unwrap().len() < 2 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    soon("renewals", renewed).await;
    assert!(guard.has_control());
    assert_eq!(
        asked.load(Ordering::SeqCst),
        before,
        "a holder is not asked"
    );
    drop(guard);
    let again = cop.acquired();
    let mut again = pin!(again);
    tokio::select! {
        biased;
        _ = &mut again => panic!("it is not fit"),
        () = soon("more questions", asked_again(3)) => {}
    }
    fit.store(true, Ordering::SeqCst);
    let _guard = soon("control again", again).await.unwrap();
}

#[tokio::test]
async fn guards_of_one_tenure_share_it() {
    let cop = competing(&Arc::new(Scripted::default())).await;
    let one = soon("a guard", cop.acquired()).await.unwrap();
    let two = soon("another", cop.acquired()).await.unwrap();
    assert_eq!(one.token(), two.token());
    drop(one);
    assert!(two.has_control());
    drop(two);
    assert!(!cop.has_control());
}

struct Dropped(Arc<Mutex<bool>>);

impl Drop for Dropped {
    fn drop(&mut self) {
        *self.0.lock().unwrap() = true;
    }
}

#[tokio::test]
async fn work_is_dropped_when_control_is_lost_and_the_next_tenure_follows() {
    for reply in [lost(), in_doubt()] {
        let store = renewing(std::iter::repeat_n(reply, 3));
        let cop = competing(&store).await;
        let guard = soon("a guard", cop.acquired()).await.unwrap();
        let dropped = Arc::new(Mutex::new(false));
        let mark = Dropped(Arc::clone(&dropped));
        let work = async move {
            let _mark = mark;
            pending::<()>().await;
        };
        assert_eq!(soon("the loss", guard.run(work)).await, Err(Lost));
        assert!(*dropped.lock().unwrap());
        assert!(!guard.has_control() && !cop.has_control());
        let (next, ()) = tokio::join!(soon("the next", cop.acquired()), async {
            tokio::task::yield_now().await;
            drop(guard);
        });
        let next = next.unwrap();
        assert_eq!(next.token(), 2);
        assert_eq!(next.run(async { 7 }).await, Ok(7));
    }
}

/// Counting from the answer would be wrong: the store has counted for long.
#[tokio::test]
async fn lease_counts_from_before_the_renewal_was_sent() {
    let budget = Budget::for_lock(Duration::from_secs(10), 70);
    let store = Arc::new(Scripted {
        renewals: Mutex::new(
            std::iter::once(Ok(()))
                .chain(std::iter::repeat_with(in_doubt).take(100))
                .collect(),
        ),
        lease: Some(budget.lease),
        first_takes: Duration::from_secs(2),
        ..Scripted::default()
    });
    let cop = TrafficCop::with_store(Watched(Arc::clone(&store))).budget(budget);
    let cop = cop.start().await.unwrap();
    let guard = soon("a guard", cop.acquired()).await.unwrap();
    soon("the loss", guard.lost()).await;
    let lost = Instant::now();
    let asked = store.asked.lock().unwrap();
    assert!(asked.len() > 1, "the first was counted");
    assert!(lost < budget.kill_at(asked[0]), "{lost:?}, {asked:?}");
}

#[tokio::test]
async fn guard_has_no_control_in_a_later_tenure() {
    let store = renewing([lost()]);
    let cop = competing(&store).await;
    let old = soon("a guard", cop.acquired()).await.unwrap();
    soon("the loss", old.lost()).await;
    let new = soon("the next", cop.acquired()).await.unwrap();
    assert!(new.has_control() && !old.has_control());
    assert_eq!(old.run(async {}).await, Err(Lost));
    drop(old);
    assert!(new.has_control(), "the old guard ended a later tenure");
}

#[tokio::test]
async fn stop_ends_the_work_under_control() {
    let cop = competing(&Arc::new(Scripted::default())).await;
    let guard = soon("a guard", cop.acquired()).await.unwrap();
    let work = tokio::spawn(async move { guard.run(pending::<()>()).await });
    tokio::task::yield_now().await;
    assert_eq!(soon("the end", cop.stop()).await, Ok(()));
    assert_eq!(work.await.unwrap(), Err(Lost));
}

#[tokio::test]
async fn dropped_instance_keeps_the_lease_until_its_guard_ends() {
    let store = Arc::new(Scripted::default());
    let cop = competing(&store).await;
    let guard = soon("a guard", cop.acquired()).await.unwrap();
    let mut watched = cop.watch();
    drop(cop);
    soon("the loss", guard.lost()).await;
    assert_eq!(*store.released.lock().unwrap(), 0);
    drop(guard);
    let over = |control: &Control| *control == Control::Ended;
    let ended = soon("the end", watched.wait_for(over)).await;
    drop(ended.unwrap());
    assert_eq!(*store.released.lock().unwrap(), 1);
}

/// A lock without a deadline has a grace, too, while a guard still works.
#[tokio::test]
async fn live_guard_keeps_the_lock_on_a_local_file() {
    let directory = tempfile::tempdir().unwrap();
    let file = || TrafficCop::file(directory.path().join("lock")).unwrap();
    let one = file().start().await.unwrap();
    let guard = soon("a guard", one.acquired()).await.unwrap();
    let two = file().start().await.unwrap();
    drop(one);
    soon("the loss", guard.lost()).await;
    let early = tokio::time::timeout(Duration::from_millis(300), two.acquired()).await;
    assert!(early.is_err(), "two instances have it");
    drop(guard);
    drop(soon("the next one", two.acquired()).await.unwrap());
}

#[tokio::test]
async fn refusal_of_the_store_reaches_the_waiter() {
    let store = Arc::new(Scripted {
        refuses: Some(Failure::Fatal {
            why: "no right to".to_owned(),
            denied: true,
        }),
        ..Scripted::default()
    });
    let cop = competing(&store).await;
    let why = "scripted: no right to".to_owned();
    let refused = Error::Refused { why, denied: true };
    let said = soon("the refusal", cop.acquired()).await;
    assert_eq!(said.unwrap_err(), refused);
    assert_eq!(cop.stop().await, Err(refused));
}

#[tokio::test]
async fn bad_lock_is_refused_in_the_words_of_the_command_line() {
    let directory = tempfile::tempdir().unwrap();
    let candidate = crate::lease::record::Candidate {
        identity: "x".to_owned(),
        host: "x".to_owned(),
        pid: 1,
        command: "x".to_owned(),
        bell: None,
    };
    let competitor = Competitor::new(candidate, LONG);
    let foreign = directory.path().join("foreign");
    std::fs::write(&foreign, "my diary").unwrap();
    for path in [directory.path(), &foreign, Path::new("/nowhere/at/all")] {
        let said = file::File::open(path, &competitor).err().unwrap();
        let refused = TrafficCop::file(path).unwrap_err();
        assert_eq!(refused.to_string(), said.to_string());
    }
    assert!(TrafficCop::file("").is_err());
    for name in ["locks", "Locks/x", "https://h.example/locks/x?a=b"] {
        let said = blob::Target::parse(name).unwrap_err();
        let refused = TrafficCop::blob(name).unwrap_err();
        assert_eq!(refused.to_string(), said.to_string());
    }
}

#[tokio::test]
async fn invalid_settings_are_refused_at_the_start() {
    let store = || TrafficCop::with_store(Watched(Arc::new(Scripted::default())));
    let file = || TrafficCop::file(tempfile::NamedTempFile::new().unwrap().path()).unwrap();
    for builder in [
        store().identity("me"),
        store().lease(LONG),
        store().budget(Budget::for_lease(LONG)),
        store(), // Its lease is too short for the default division.
        file().identity(" "),
        file().identity("x".repeat(129)),
    ] {
        let shown = format!("{builder:?}");
        assert!(builder.start().await.is_err(), "{shown}");
    }
}

#[test]
fn start_without_a_runtime_is_an_error() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let builder = TrafficCop::file(file.path()).unwrap();
    let start = pin!(builder.start());
    let Poll::Ready(said) = start.poll(&mut Context::from_waker(Waker::noop())) else {
        panic!("it waits for something");
    };
    assert_eq!(said.err(), Some(Error::NoRuntime));
    let own = Worker::builder().connection_string("UseDevelopmentStorage=true");
    let start = pin!(own.queue("orders").unwrap().start());
    let Poll::Ready(said) = start.poll(&mut Context::from_waker(Waker::noop())) else {
        panic!("it waits for something");
    };
    assert_eq!(said.err(), Some(Error::NoRuntime));
}

#[test]
fn shut_down_runtime_is_an_error_and_no_panic() {
    let runtime = || {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        builder.enable_all().build().unwrap()
    };
    let first = runtime();
    let store = Arc::new(Scripted::default());
    let (cop, guard) = first.block_on(async {
        let cop = competing(&store).await;
        let guard = cop.acquired().await.unwrap();
        (cop, guard)
    });
    drop(first);
    runtime().block_on(async move {
        assert!(!guard.has_control() && !cop.has_control());
        soon("the loss", guard.lost()).await;
        let said = soon("an answer", cop.acquired()).await;
        assert!(matches!(said, Err(Error::Failed(_))), "{said:?}");
        let said = soon("the end", cop.stop()).await;
        assert!(matches!(said, Err(Error::Failed(_))), "{said:?}");
    });
}

#[tokio::test]
async fn try_acquire_gives_none_while_another_instance_has_control_and_a_guard_afterwards() {
    let directory = tempfile::tempdir().unwrap();
    let file = || TrafficCop::file(directory.path().join("lock")).unwrap();
    let one = file().start().await.unwrap();
    let guard = one.try_acquire(LONG).await.unwrap().expect("it is free");
    let two = file().start().await.unwrap();
    let none = two.try_acquire(Duration::from_millis(200)).await.unwrap();
    assert!(none.is_none(), "two instances have it");
    drop(guard);
    assert!(two.try_acquire(LONG).await.unwrap().is_some());
}

#[tokio::test]
async fn error_of_a_program_names_no_flag_and_no_signal() {
    let short = Budget {
        margin: Duration::ZERO,
        ..Budget::for_lock(LEASE, 70)
    };
    let store = TrafficCop::with_store(Watched(Arc::new(Scripted::default()))).budget(short);
    let no_account =
        Connection::default().connection_string("BlobEndpoint=http://127.0.0.1:1/contoso");
    let no_key = Connection::default().account("contoso", AccountCredential::key("no base64!"));
    let no_sas = Connection::default().account("contoso", AccountCredential::sas("sp=r"));
    let twice = Connection::default()
        .connection_string("AccountName=other;AccountKey=Zm9v")
        .account("contoso", AccountCredential::key("Zm9v"));
    for (error, words) in [
        (
            store.start().await.unwrap_err(),
            "margin 0 s is too short for lease 2 s",
        ),
        (no_account.blob("abc/b").unwrap_err(), "connection_string()"),
        (
            no_key.blob("abc/b").unwrap_err(),
            "the account key in AccountCredential::key() is not base64",
        ),
        (
            no_sas.queue("abc").unwrap_err(),
            "the SAS in AccountCredential::sas() has no signature",
        ),
        (twice.blob("abc/b").unwrap_err(), "account()"),
    ] {
        let text = error.to_string();
        assert!(text.contains(words), "{text}");
        for not in ["--", "AZURE_", "SIG"] {
            assert!(!text.contains(not), "{text}");
        }
    }
}

#[cfg(feature = "entra")]
mod own_credential {
    use azure_core::credentials::{AccessToken, TokenCredential, TokenRequestOptions};
    use azure_core::time::OffsetDateTime;

    use super::*;

    #[derive(Debug, Default)]
    struct Own(Mutex<Vec<String>>);

    #[async_trait]
    impl TokenCredential for Own {
        async fn get_token(
            &self,
            scopes: &[&str],
            _: Option<TokenRequestOptions<'_>>,
        ) -> azure_core::Result<AccessToken> {
            let scopes = scopes.iter().map(|scope| (*scope).to_owned());
            self.0.lock().unwrap().extend(scopes);
            let ends = OffsetDateTime::now_utc() + azure_core::time::Duration::hours(1);
            Ok(AccessToken::new("a token", ends))
        }
    }

    #[tokio::test]
    async fn token_credential_of_a_program_is_asked_for_storage() {
        let own = Arc::new(Own::default());
        let account = Connection::default()
            .account("contoso", Arc::clone(&own))
            .account_of_a_blob();
        let soon = Instant::now() + LONG;
        let left = account.obtain(soon).await.expect("a token");
        assert!(
            left.is_some_and(|left| left > Duration::from_secs(3000)),
            "{left:?}"
        );
        let asked = own.0.lock().unwrap().clone();
        assert_eq!(asked, ["https://storage.azure.com/.default"]);
        assert_eq!(account.kind(), "a token credential of the program");
    }

    #[test]
    fn token_credential_never_goes_over_plain_http_nor_beside_a_signature() {
        let own = || Connection::default().credential(Arc::new(Own::default()));
        for (url, words) in [
            (
                "http://127.0.0.1:10000/contoso/abc/b",
                "never sent over plain http",
            ),
            (
                "https://contoso.blob.core.windows.net/abc/b?sig=x",
                "one credential is needed",
            ),
        ] {
            let said = own().blob(url).unwrap_err().to_string();
            assert!(said.contains(words) && !said.contains("--"), "{said}");
        }
    }
}
