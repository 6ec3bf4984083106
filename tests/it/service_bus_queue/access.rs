//! Authentication, and its errors.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use super::*;
use crate::support::closed_port::ClosedPort;
use trafficcop::queue::service_bus::JWT;

async fn refused(scene: &Scene) -> Missing {
    let refused = scene.queue.prepare(patiently()).await;
    let why = refused.expect_err("it cannot be worked on");
    assert!(!why.to_string().contains('\n'), "{why}");
    why
}

fn fatal(why: &Missing) -> bool {
    match why {
        Missing::Failed(Failure::Fatal { denied, .. }) => *denied,
        other => panic!("{other:?} is not final"),
    }
}

#[tokio::test]
async fn wrong_key_is_reported_as_such() {
    let wrong = Access {
        key: "d3Jvbmc=".into(),
        ..Access::default()
    };
    let scene = Scene::with(settings(30), |config| {
        config.tokens = Arc::new(tokens(&wrong));
    });
    let why = refused(&scene).await;
    assert!(fatal(&why), "{why}");
    assert!(why.to_string().contains("not authorised"), "{why}");
    assert!(!why.to_string().contains(&wrong.key), "{why}");
    // Missing rights show at the link's attach.
    let scene = Scene::locking(30);
    scene.fault(On::Attach, Act::unauthorized());
    scene
        .broker
        .fault(Fault::new(On::Attach, Act::unauthorized()).times(9));
    assert!(fatal(&refused(&scene).await));
}

#[tokio::test]
async fn a_queue_that_will_not_do_is_explained() {
    let scene = Scene::with(settings(30), |config| config.target.entity = "none".into());
    let why = refused(&scene).await;
    assert!(matches!(why, Missing::NoQueue(_)), "{why:?}");
    let sessions = QueueSettings {
        sessions: true,
        ..settings(30)
    };
    let scene = Scene::with(sessions, |_| {});
    let why = refused(&scene).await;
    assert!(matches!(why, Missing::OtherKind(_)), "{why:?}");
    assert!(why.to_string().contains("add --sessions"), "{why}");
    let disabled = QueueSettings {
        disabled: true,
        ..settings(30)
    };
    let scene = Scene::with(disabled, |_| {});
    let why = refused(&scene).await;
    assert!(!fatal(&why));
    assert!(why.to_string().contains("disabled"), "{why}");
}

#[tokio::test]
async fn a_queue_that_comes_back_is_worked_on_again() {
    let scene = Scene::locking(30);
    scene
        .queue
        .prepare(patiently())
        .await
        .expect("the queue is there");
    scene.broker.disable(JOBS, true);
    let failed = async {
        loop {
            if let Err(failure) = scene.queue.take(1, later(5000)).await {
                return failure;
            }
        }
    };
    let failure = failed.await;
    assert!(matches!(failure, Failure::Transient { .. }), "{failure:?}");
    scene.broker.disable(JOBS, false);
    scene.put(b"m");
    assert_eq!(body(&scene.take().await), b"m");
}

#[tokio::test]
async fn a_service_that_is_not_there_is_doubt() {
    let closed = ClosedPort::new();
    let queue = ServiceBusQueue::open(config(closed.port));
    let why = queue
        .prepare(patiently())
        .await
        .expect_err("the port is closed");
    assert!(
        matches!(why, Missing::Failed(Failure::Transient { .. })),
        "{why:?}"
    );
    assert!(why.to_string().contains(&closed.port.to_string()), "{why}");
}

/// Token lifetime, at the broker, too.
struct Short(Duration);

#[async_trait]
impl CbsTokens for Short {
    async fn token(&self, _audience: &str) -> Result<CbsToken, Failure> {
        Ok(CbsToken {
            kind: JWT,
            token: Secret::new("a.b.c"),
            good_until: Instant::now() + self.0,
        })
    }
}

fn short(life: u64) -> Arc<Short> {
    Arc::new(Short(Duration::from_secs(life)))
}

fn puts(view: View<'_>) -> usize {
    count(view, &|event| {
        matches!(
            event,
            Event::TokenPut {
                status: 202 | 200,
                ..
            }
        )
    })
}

#[tokio::test]
async fn a_token_is_renewed_before_it_ends() {
    let scene = Scene::with(settings(30), |config| config.tokens = short(10));
    scene.put(b"m");
    let message = scene.take().await;
    scene.until(|view| (puts(view) >= 2).then_some(())).await;
    // The first token has ended by then; its links would have ended with it.
    tokio::time::sleep(Duration::from_secs(3)).await;
    renew(&message).await.expect("renewed");
    complete(&message).await.expect("completed");
    let detached = |event: &Event| {
        matches!(
            event,
            Event::Detached {
                condition: Some(_),
                ..
            }
        )
    };
    assert_eq!(scene.count(detached), 0);
}

#[tokio::test]
async fn a_token_that_is_refused_while_the_last_is_good_is_tried_again() {
    let scene = Scene::with(settings(30), |config| config.tokens = short(5));
    scene.put(b"m");
    let message = scene.take().await;
    scene.fault(On::PutToken, Act::unauthorized());
    scene.until(|view| (puts(view) >= 2).then_some(())).await;
    renew_in_the_end(&message).await.expect("renewed");
    complete_in_the_end(&message).await.expect("completed");
}

#[tokio::test]
async fn a_ready_made_signature_will_do() {
    let made = tokens(&Access::default());
    let token = made.token("sb://127.0.0.1/jobs").await.expect("a token");
    let scene = Scene::with(settings(30), |config| {
        config.tokens = Arc::new(SasTokens::Signature(token.token));
    });
    scene.put(b"m");
    complete(&scene.take().await).await.expect("completed");
}

/// Gives a token unknown to the broker until it is refused; before that another, if there is one.
struct Revoked {
    before: Mutex<Option<Short>>,
    was_refused: AtomicBool,
}

#[async_trait]
impl CbsTokens for Revoked {
    async fn token(&self, audience: &str) -> Result<CbsToken, Failure> {
        let before = self.before.lock().expect("not poisoned").take();
        if let Some(before) = before {
            return before.token(audience).await;
        }
        let right = Access::default();
        let access = match self.was_refused.load(Ordering::SeqCst) {
            true => right,
            false => Access {
                key: "d3Jvbmc=".into(),
                ..right
            },
        };
        tokens(&access).token(audience).await
    }

    fn refused(&self, _token: &CbsToken) {
        self.was_refused.store(true, Ordering::SeqCst);
    }
}

fn revoked(before: Option<Short>) -> Arc<Revoked> {
    Arc::new(Revoked {
        before: Mutex::new(before),
        was_refused: AtomicBool::new(false),
    })
}

#[tokio::test]
async fn a_token_that_the_service_refuses_is_not_offered_for_the_rest_of_its_time() {
    let scene = Scene::with(settings(30), |config| config.tokens = revoked(None));
    scene.put(b"m");
    complete(&scene.take().await).await.expect("completed");
}

#[tokio::test]
async fn nor_is_one_that_is_refused_while_the_last_is_good() {
    let before = Short(Duration::from_secs(15));
    let scene = Scene::with(settings(60), |config| config.tokens = revoked(Some(before)));
    scene.put(b"m");
    let message = scene.take().await;
    scene.until(|view| (puts(view) >= 2).then_some(())).await;
    complete(&message).await.expect("completed");
    // Before its end, which would have cut the connection.
    let connected = |event: &Event| matches!(event, Event::Connected { .. });
    assert_eq!(scene.count(connected), 1);
}
