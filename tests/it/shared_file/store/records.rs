//! Foreign or unfinished records and hints are refused or counted as held; no token goes back.

use super::*;

/// Makes a lock whose last version is this one, with these bytes as its record, and no hint.
fn lock_with(version: u64, bytes: &[u8]) -> (TempDir, PathBuf) {
    let (directory, path) = temporary();
    fs::write(&path, "trafficcop shared lock 1\n").expect("a hint");
    Written::new(version - 1, "released").put(&path);
    put(&path, version, bytes);
    (directory, path)
}

/// Checks that the lock cannot be taken before the longest lease is over.
async fn assert_held_for_long(bytes: &[u8]) {
    let (_directory, path) = lock_with(7, bytes);
    let looked = Instant::now();
    let sight = held(&open(&path, "a")).await;
    let expires = sight.expires.expect("a moment");
    let text = String::from_utf8_lossy(bytes);
    assert!(expires >= looked + Duration::from_secs(60), "{text}");
    assert_eq!(list(&path), [5, 6, 7], "{text}");
}

#[tokio::test]
async fn whatever_is_no_record_is_held_for_the_longest_lease() {
    let whole = Written::new(7, "released").text();
    let mut bytes: Vec<Vec<u8>> = vec![
        Vec::new(),
        vec![0; 8192],
        vec![b'9'; 100_000],
        b"trafficcop shared lock 2\n{}\n".to_vec(),
        checked("{}").into_bytes(),
        checked("[[[[[[[[[[[[").into_bytes(),
        checked(&"[".repeat(8000)).into_bytes(),
    ];
    bytes.extend(
        (0..whole.len() - 1)
            .step_by(7)
            .map(|cut| whole[..cut].into()),
    );
    let mut random = fastrand::Rng::with_seed(14);
    bytes.extend((0..100).map(|_| {
        let mut torn = whole.clone().into_bytes();
        for _ in 0..=random.usize(0..4) {
            let at = random.usize(0..torn.len() - 1);
            torn[at] = torn[at].wrapping_add(random.u8(1..));
        }
        torn
    }));
    bytes.extend((0..100).map(|_| (0..random.usize(0..300)).map(|_| random.u8(..)).collect()));
    // Each look takes a moment longer, because the record may follow.
    let looks = bytes.iter().map(|bytes| assert_held_for_long(bytes));
    futures::future::join_all(looks).await;
}

#[tokio::test]
async fn foreign_record_counts_as_held_for_the_longest_lease() {
    for lease_ms in [0, 1, 9_999, 60_001, 1_000_000_000_000_000_000, u64::MAX] {
        let record = Written {
            lease_ms,
            ..Written::new(7, "released")
        };
        assert_held_for_long(record.text().as_bytes()).await;
    }
    for version in [0, 6, 8, u64::MAX] {
        assert_held_for_long(Written::new(version, "released").text().as_bytes()).await;
    }
    let line = Written::new(7, "released").text();
    let line = line.lines().nth(1).expect("a line");
    for (from, to) in [
        ("\"version\":7", "\"version\":1e30"),
        ("\"version\":7", "\"version\":-7"),
        ("\"state\":\"released\"", "\"state\":\"free\""),
        ("\"nonce\":\"0", "\"nonce\":\"x"),
        ("\"pid\":1", "\"pid\":99999999999"),
    ] {
        assert!(line.contains(from), "{line}");
        assert_held_for_long(checked(&line.replace(from, to)).as_bytes()).await;
    }
}

#[tokio::test]
async fn a_token_never_goes_back_whatever_a_record_says_of_it() {
    for tenure in [0, 1, u64::MAX] {
        let record = Written {
            tenure,
            ..Written::new(7, "released")
        };
        let (_directory, path) = lock_with(7, record.text().as_bytes());
        assert_eq!(acquire(&open(&path, "a")).await.token, 8);
    }
}

#[tokio::test]
async fn a_version_at_the_greatest_number_is_refused_in_words() {
    let record = Written::new(u64::MAX, "released").text();
    let (_directory, path) = lock_with(u64::MAX, record.as_bytes());
    assert_fatal(&refusal(&open(&path, "a")).await, "is the greatest");
    // The last possible version can only be acquired.
    let record = Written::new(u64::MAX - 1, "released").text();
    let (_directory, path) = lock_with(u64::MAX - 1, record.as_bytes());
    let a = open(&path, "a");
    assert_eq!(acquire(&a).await.token, u64::MAX);
    let failure = in_time(a.renew(late())).await.expect_err("no number");
    assert_lost(&failure);
}

#[tokio::test]
async fn hint_of_a_missing_version_grants_no_control() {
    for version in [8, 9, 1_000_000, u64::MAX - 1] {
        let released = Written::new(7, "released").text();
        let (_directory, path) = lock_with(7, released.as_bytes());
        Written::new(version, "released").put_hint(&path);
        let a = open(&path, "a");
        let failure = refusal(&a).await;
        assert_lost(&failure);
        // Seen to be missing, it is not believed in again.
        assert_eq!(acquire(&a).await.token, 8, "hint of {version}");
        assert_eq!(list(&path), [5, 6, 7, 8]);
    }
}

#[tokio::test]
async fn old_hint_of_a_released_version_grants_no_control() {
    let (_directory, path) = lock_with(7, Written::new(7, "held").text().as_bytes());
    Written::new(6, "released").put_hint(&path);
    assert_eq!(held(&open(&path, "a")).await.token, Some(7));
    // A torn hint counts as none.
    let old = fs::read(&path).expect("the hint");
    fs::write(&path, &old[..200]).expect("a hint");
    assert_eq!(held(&open(&path, "a")).await.token, Some(7));
}
