//! Control of a file: kept by every process with the descriptor.

use std::fs;
use std::sync::Arc;

use super::*;

#[tokio::test]
async fn one_holds_and_the_other_is_told_by_whom() {
    let (_directory, path) = temporary();
    let (a, b) = (open(&path, "a"), open(&path, "b"));
    assert_eq!(a.info().lease, None, "no deadline on a local file");
    assert!(a.info().wakes);
    assert_eq!(a.info().name, path.display().to_string());
    assert_eq!(acquire(&a).await.token, 1);
    let sight = held(&b).await;
    assert_eq!(sight.holder.as_deref(), Some("a"));
    assert_eq!((sight.token, sight.draining), (Some(1), false));
    in_time(a.update_record(
        RecordUpdate::Draining {
            health: String::new(),
        },
        late(),
    ))
    .await
    .expect("to announce");
    assert!(held(&b).await.draining);
    let text = || fs::read_to_string(&path).expect("a record");
    for health in ["failing: it", "hung: it", ""] {
        let update = RecordUpdate::Health(health.to_owned());
        in_time(a.update_record(update, late()))
            .await
            .expect("to tell");
        let said = format!("\"health\":\"{health}\"");
        assert_eq!(text().contains(&said), !health.is_empty(), "{}", text());
        assert!(held(&b).await.draining, "for good");
    }
    release(&a).await;
    assert!(
        !fs::read_to_string(&path)
            .expect("a record")
            .contains("true")
    );
    assert_eq!(acquire(&b).await.token, 2);
    assert!(!held(&a).await.draining);
}

#[tokio::test]
async fn an_inherited_descriptor_keeps_the_lock_and_its_end_wakes_the_standby() {
    let (_directory, path) = temporary();
    let (a, b) = (open(&path, "a"), Arc::new(open(&path, "b")));
    acquire(&a).await;
    let child = heir(&a);
    let standby = tokio::spawn({
        let b = Arc::clone(&b);
        async move { b.until_free().await }
    });
    drop(a);
    // The supervisor's descriptor is closed; the tree's is not.
    assert_eq!(held(&b).await.holder.as_deref(), Some("a"));
    assert!(!standby.is_finished());
    bury(child);
    in_time(standby).await.expect("to be woken");
    assert_eq!(acquire(&b).await.token, 2);
}

#[tokio::test]
async fn a_release_frees_the_lock_though_others_have_its_descriptor_open() {
    let (_directory, path) = temporary();
    let (a, b) = (open(&path, "a"), open(&path, "b"));
    acquire(&a).await;
    let child = heir(&a);
    release(&a).await;
    assert_eq!(acquire(&b).await.token, 2);
    bury(child);
}

#[tokio::test]
async fn tokens_grow_over_a_hundred_tenures_whatever_happens_to_the_record() {
    let (_directory, path) = temporary();
    let mut last = 0;
    for round in 0..100 {
        // A new store each time: only the file remembers.
        let store = open(&path, "a");
        // Closing is not enough: a child that another test is forking has the descriptor, and the
        // lock, until it execs.
        let token = stand_by(&store).await.token;
        assert!(token > last, "round {round}: {token} after {last}");
        last = token;
        drop(store);
        let mut bytes = fs::read(&path).expect("a record");
        assert_eq!(bytes.len(), 2048);
        match round % 5 {
            1 => bytes.truncate(60),
            2 => bytes[40..].fill(0),
            3 => bytes.extend_from_slice(&[0; 100]),
            _ => {}
        }
        match round {
            70 => bytes.fill(0),
            80 => bytes.truncate(11),
            _ => {}
        }
        fs::write(&path, bytes).expect("to damage it");
    }
    assert!(last > 1_700_000_000_000_000, "the wall clock took over");
}

#[tokio::test]
async fn release_reports_a_replaced_file_and_still_unlocks_it() {
    for unlinked in [true, false] {
        let (_directory, path) = temporary();
        let (a, b) = (open(&path, "a"), open(&path, "b"));
        acquire(&a).await;
        let kept = path.with_extension("kept");
        fs::hard_link(&path, &kept).expect("another name for it");
        fs::remove_file(&path).expect("to remove it");
        if !unlinked {
            fs::write(&path, "").expect("another file");
        }
        let told = in_time(a.release(late())).await;
        assert!(
            matches!(told, Err(Failure::Lost { until: None, .. })),
            "{told:?}"
        );
        // Reported once.
        release(&a).await;
        // `b` finds the old file free, and changes to the new one.
        assert_eq!(acquire(&b).await.token, 2);
        assert_eq!(acquire(&open(&kept, "c")).await.token, 2, "unlocked");
        release(&b).await;
    }
}
