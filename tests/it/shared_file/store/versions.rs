//! Many versions, old ones, and views older than those that are kept.

use std::fs::File;
use std::time::SystemTime;

use super::*;

#[tokio::test]
async fn versions_older_than_an_hour_are_removed_but_never_the_last_64() {
    let (_directory, path) = temporary();
    fs::write(&path, "trafficcop shared lock 1\n").expect("a hint");
    let old = SystemTime::now() - Duration::from_secs(3700);
    for version in 0..=100 {
        let state = if version == 100 { "released" } else { "held" };
        fs::create_dir_all(version_of(&path, version)).expect("a version");
        if version > 0 {
            Written::new(version, state).put(&path);
        }
    }
    for version in 0..90 {
        let directory = File::open(version_of(&path, version)).expect("a version");
        directory.set_modified(old).expect("to make it old");
    }
    let a = open(&path, "a");
    assert_eq!(acquire(&a).await.token, 101);
    let left = || Some(list(&path)).filter(|left| left.len() <= 64);
    let left = await_for("the removal", left, || format!("{:?}", list(&path)));
    assert_eq!((left[0], left.len()), (38, 64));
    // Those less than an hour old stay.
    Written::new(180, "released").put(&path);
    release(&a).await;
    assert_eq!(list(&path)[0], 38);
}

#[tokio::test]
async fn a_hundred_thousand_versions_are_looked_at_and_taken_over_in_time() {
    let Some(small) = Tmpfs::mount("nr_inodes=0") else {
        return;
    };
    let path = small.path("lock");
    fs::write(&path, "trafficcop shared lock 1\n").expect("a hint");
    fs::create_dir(versions_of(&path)).expect("a directory");
    for version in 0..99_999 {
        fs::create_dir(version_of(&path, version)).expect("a version");
    }
    Written::new(99_999, "held").put(&path);
    let begun = Instant::now();
    assert_eq!(held(&open(&path, "a")).await.token, Some(99_999));
    let looked = Instant::now().since(begun);
    Written::new(100_000, "released").put(&path);
    let begun = Instant::now();
    let a = open(&path, "a");
    assert_eq!(acquire(&a).await.token, 100_001);
    let taken = Instant::now().since(begun);
    release(&a).await;
    eprintln!("100,000 versions: a look takes {looked:?}, a take-over {taken:?}");
    // Far less than an attempt may take.
    assert!(
        looked.max(taken) < Duration::from_secs(3),
        "{looked:?} {taken:?}"
    );
}

#[tokio::test]
async fn a_lock_of_which_but_the_last_version_is_left_is_taken_over() {
    let (_directory, path) = temporary();
    fs::write(&path, "trafficcop shared lock 1\n").expect("a hint");
    fs::create_dir_all(version_of(&path, 7)).expect("a version");
    // Its record was in the version before.
    Written::new(7, "released").put_hint(&path);
    let a = open(&path, "a");
    assert_eq!(acquire(&a).await.token, 8);
    renew(&a).await;
    assert_eq!(list(&path), [7, 8, 9]);
    release(&a).await;
    assert_eq!(acquire(&open(&path, "b")).await.token, 11);
}

#[tokio::test]
async fn a_version_of_ours_that_alone_is_left_is_not_withdrawn() {
    let (_directory, path) = temporary();
    let a = open(&path, "a");
    assert_eq!(acquire(&a).await.token, 1);
    await_record(&path, 1);
    // The next is made, and the look for this one is not answered.
    fs::remove_dir_all(version_of(&path, 1)).expect("to remove it");
    fs::write(version_of(&path, 1), "").expect("a file");
    let doubt = in_time(a.renew(late())).await.expect_err("no answer");
    assert_doubt(&doubt, "confirming it");
    // All but the last are removed by hand.
    fs::remove_dir_all(version_of(&path, 0)).expect("to remove it");
    fs::remove_file(version_of(&path, 1)).expect("to remove it");
    assert_lost(&in_time(a.renew(late())).await.expect_err("not ours"));
    assert_eq!(list(&path), [2]);
    Written::new(2, "released").put_hint(&path);
    assert_eq!(acquire(&open(&path, "b")).await.token, 3);
}

#[tokio::test]
async fn a_version_that_an_old_view_has_left_is_not_taken_for_all_that_is_left() {
    let (_directory, path) = temporary();
    fs::write(&path, "trafficcop shared lock 1\n").expect("a hint");
    fs::create_dir_all(version_of(&path, 7)).expect("a version");
    Written::new(107, "held").put(&path);
    Written::new(7, "released").put_hint(&path);
    let a = open(&path, "a");
    assert_lost(&refusal(&a).await);
    assert_eq!(list(&path), [7, 106, 107], "what it made it removes");
    assert_eq!(held(&a).await.token, Some(107));
}

#[tokio::test]
async fn the_last_is_gone_on_from_although_old_views_have_left_something_behind_it() {
    let (_directory, path) = temporary();
    fs::write(&path, "trafficcop shared lock 1\n").expect("a hint");
    for left in [2, 5] {
        fs::create_dir_all(version_of(&path, left)).expect("a version");
    }
    Written::new(9, "released").put_hint(&path);
    fs::create_dir(version_of(&path, 9)).expect("a version");
    assert_eq!(acquire(&open(&path, "a")).await.token, 10);
}

#[test]
fn an_instance_whose_view_is_older_than_what_is_kept_withdraws() {
    let (_directory, path) = temporary();
    fs::write(&path, "trafficcop shared lock 1\n").expect("a hint");
    for version in 5..=7 {
        Written::new(version, "held").put(&path);
    }
    Written::new(7, "held").put_hint(&path);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    runtime.expect("a runtime").block_on(async {
        let a = open(&path, "a");
        assert_eq!(held(&a).await.token, Some(7));
        let looked = Instant::now();
        for version in 4..=7 {
            fs::remove_dir_all(version_of(&path, version)).expect("to remove it");
        }
        Written::new(107, "held").put(&path);
        let mut failures = Vec::new();
        while Instant::now() < looked + LEASE + Duration::from_secs(2) {
            failures.push(refusal(&a).await);
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        let withdrew = |failure: &&Failure| matches!(failure, Failure::Lost { .. });
        assert_eq!(failures.iter().filter(withdrew).count(), 1, "{failures:?}");
        assert_eq!(list(&path), [106, 107], "what it made it removes");
        assert_eq!(held(&a).await.token, Some(107));
    });
}
