//! Renewal of tokens, with a scripted issuer. The spans are short, so the tests check only the order of events.

use std::collections::VecDeque;

use super::*;

/// Next answer of the issuer; without one it hangs.
enum Play {
    Issue(&'static str, Duration),
    Refuse,
    Doubt,
}

#[derive(Default)]
struct Script {
    plays: Mutex<VecDeque<Play>>,
    asked: Mutex<u32>,
}

#[async_trait]
impl Issuer for Script {
    fn kind(&self) -> &'static str {
        "a script"
    }

    async fn issue(&self) -> Result<Issued, Unissued> {
        *self.asked.lock().expect("a number") += 1;
        let play = self.plays.lock().expect("plays").pop_front();
        let none = |refused| {
            Err(Unissued {
                why: "no".to_owned(),
                refused,
            })
        };
        match play {
            Some(Play::Issue(text, left)) => Ok(Issued {
                secret: Secret::new(text),
                left,
            }),
            Some(Play::Refuse) => none(true),
            Some(Play::Doubt) => none(false),
            None => std::future::pending().await,
        }
    }

    fn in_another_process(&self, _: Arc<Client>) -> Arc<dyn Issuer> {
        Arc::new(Script::default())
    }
}

fn tokens(plays: impl IntoIterator<Item = Play>) -> (TokenCache, Arc<Script>) {
    let script = Arc::new(Script {
        plays: Mutex::new(plays.into_iter().collect()),
        asked: Mutex::default(),
    });
    (TokenCache::new(Arc::clone(&script) as _, None), script)
}

fn late() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

const HOUR: Duration = Duration::from_secs(3600);

async fn said(tokens: &TokenCache) -> Result<String, Unissued> {
    let token = tokens.token(late()).await;
    token.map(|token| token.secret().to_owned())
}

fn asked(script: &Script) -> u32 {
    *script.asked.lock().expect("a number")
}

#[tokio::test]
async fn first_request_asks_the_issuer_once_for_all_waiting_requests() {
    let (tokens, script) = tokens([Play::Issue("one", HOUR)]);
    tokio::task::yield_now().await;
    assert_eq!(asked(&script), 0);
    let (first, second) = tokio::join!(said(&tokens), said(&tokens));
    assert_eq!(
        (first.as_deref(), second.as_deref()),
        (Ok("one"), Ok("one"))
    );
    assert_eq!(asked(&script), 1);
}

#[tokio::test]
async fn old_token_is_served_while_the_issuer_hangs() {
    let (tokens, script) = tokens([Play::Issue("one", Duration::from_secs(20))]);
    assert_eq!(said(&tokens).await.as_deref(), Ok("one"));
    let until = tokens.left().expect("a token");
    tokens.shared.state().next = Instant::now();
    while asked(&script) < 2 {
        tokens.shared.look.notify_one();
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    // The issuer hangs now, but this request has no time.
    let token = tokens.token(Instant::now()).await.expect("the old one");
    assert_eq!(token.secret(), "one");
    assert!(until > Duration::from_secs(18) && until < Duration::from_secs(20));
}

#[tokio::test]
async fn token_is_renewed_at_half_its_life() {
    let (tokens, _script) = tokens([
        Play::Issue("one", Duration::from_secs(3)),
        Play::Issue("two", HOUR),
    ]);
    assert_eq!(said(&tokens).await.as_deref(), Ok("one"));
    let mut seen = Vec::new();
    while seen.last().map(String::as_str) != Some("two") {
        // Each of these needs an answer at once.
        let token = tokens.token(Instant::now()).await;
        match token {
            Ok(token) => seen.push(token.secret().to_owned()),
            // Only if the machine slept through the second half.
            Err(none) => seen.push(none.why),
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(seen.first().map(String::as_str), Some("one"));
}

#[tokio::test]
async fn renewal_is_tried_before_the_token_ends() {
    let (tokens, _script) = tokens([Play::Issue("one", Duration::from_secs(40))]);
    said(&tokens).await.expect("a token");
    tokens.shared.state().failures = 20;
    let none = Unissued {
        why: "no".into(),
        refused: false,
    };
    tokens.shared.settle("script", Err(none));
    let state = tokens.shared.state();
    let until = state.token.as_ref().expect("it is good").until;
    assert!(state.next <= until, "{:?}", state.next.since(until));
}

#[tokio::test]
async fn refusal_and_doubt_are_reported_and_retried() {
    for (play, refused) in [(Play::Refuse, true), (Play::Doubt, false)] {
        let (tokens, script) = tokens([play, Play::Issue("one", HOUR)]);
        let none = said(&tokens).await.expect_err("no token");
        assert_eq!((none.refused, none.why.as_str()), (refused, "no"));
        if asked(&script) == 1 {
            let again = tokens.token(late()).await;
            assert!(again.is_ok() || again.is_err_and(|none| none.why == "no"));
        }
        loop {
            match said(&tokens).await {
                Ok(token) => break assert_eq!(token, "one"),
                Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
            }
        }
        assert_eq!(asked(&script), 2);
    }
}

#[tokio::test]
async fn request_without_a_token_keeps_its_time_limit() {
    let (tokens, _script) = tokens([]);
    let soon = Instant::now() + Duration::from_millis(200);
    let none = tokens.token(soon).await.expect_err("it hangs");
    assert!(
        !none.refused && none.why.contains("no token yet"),
        "{none:?}"
    );
}

#[tokio::test]
async fn token_refused_by_the_service_is_replaced_soon() {
    let (tokens, script) = tokens([Play::Issue("one", HOUR), Play::Issue("two", HOUR)]);
    assert_eq!(said(&tokens).await.as_deref(), Ok("one"));
    tokens.refused(&Secret::new("another one"));
    assert_eq!(
        tokens.shared.state().next.since(Instant::now()).as_secs() / 60,
        29
    );
    tokens.refused(&Secret::new("one"));
    let next = tokens.shared.state().next;
    assert!(next.since(Instant::now()) <= SPACING);
    while said(&tokens).await.as_deref() != Ok("two") {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(asked(&script), 2);
}

#[derive(Default)]
struct Chest(Mutex<Option<Vec<u8>>>);

impl SharedMemory for Chest {
    fn put(&self, bytes: &[u8]) {
        *self.0.lock().expect("a box") = Some(bytes.to_vec());
    }

    fn take(&self) -> Option<Vec<u8>> {
        self.0.lock().expect("a box").clone()
    }
}

#[tokio::test]
async fn forked_process_starts_with_the_shared_token() {
    let (tokens, _script) = tokens([
        Play::Issue("one", Duration::from_secs(1)),
        Play::Issue("two", HOUR),
    ]);
    let tokens = tokens.with_shared_token(Arc::new(Chest::default()));
    while said(&tokens).await.as_deref() != Ok("two") {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let theirs =
        tokens.in_another_process(Arc::new(Client::new(true, 2, Default::default(), None)));
    let token = theirs.token(Instant::now()).await.expect("handed on");
    assert_eq!(token.secret(), "two");
    let shown = format!("{theirs:?} {:?}", Bearer(Arc::new(tokens)));
    assert!(!shown.contains("two"), "{shown}");
}
