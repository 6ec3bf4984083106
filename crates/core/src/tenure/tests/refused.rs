//! Standbys whose credential the store refuses.

use super::*;

/// `answer` gets the number of the look.
fn asks_until_it_leaves(mut answer: impl FnMut(u32) -> Failure) -> (Instant, Cause, Vec<Action>) {
    let mut tenure = acquiring(rules());
    tenure.step(BEGIN, refused(held()));
    let (mut now, mut said) = (BEGIN, Vec::new());
    for n in 0..2_000 {
        now = tenure.wake_at();
        tenure.step(now, Event::Ticked);
        said.extend(tenure.step(now, refused(answer(n))));
        if *tenure.state() == State::Releasing {
            tenure.step(now, Event::Released(Ok(())));
            break;
        }
    }
    let cause = tenure.ending().map(|ending| ending.cause.clone());
    (now, cause.unwrap_or(Cause::CommandEnded), said)
}

#[test]
fn credential_refused_for_auth_patience_ends_a_standby() {
    let mut first = None;
    let (left, cause, said) = asks_until_it_leaves(|_| fatal());
    for action in &said {
        if let Action::Notify(Notice::Refused { leaves_at, .. }) = action {
            assert_eq!(*first.get_or_insert(*leaves_at), *leaves_at);
        }
    }
    assert!(
        matches!(said[0], Action::Notify(Notice::Refused { .. })),
        "reported at once"
    );
    assert_eq!(Some(left), first, "neither before nor after its time");
    assert!(left.since(BEGIN) >= AUTH_PATIENCE && left.since(BEGIN) < AUTH_PATIENCE + secs(5));
    assert!(
        matches!(cause, Cause::Store { denied: true, .. }),
        "{cause:?}"
    );
}

#[test]
fn outage_or_answer_between_refusals_ends_no_standby() {
    for other in [transient(), held()] {
        let (_, cause, _) = asks_until_it_leaves(|n| match n % 50 {
            49 => other.clone(),
            _ => fatal(),
        });
        assert_eq!(cause, Cause::CommandEnded, "it never left");
    }
}

#[test]
fn holder_is_named_anew_after_a_refusal() {
    let mut tenure = acquiring(rules());
    tenure.step(BEGIN, refused(held()));
    let now = tenure.wake_at();
    tenure.step(now, Event::Ticked);
    tenure.step(now, refused(fatal()));
    let now = tenure.wake_at();
    tenure.step(now, Event::Ticked);
    let behind = Action::Notify(Notice::StandingBy(HolderInfo::default()));
    let said = tenure.step(now, refused(held()));
    assert_eq!(said, [Action::Notify(Notice::Recovered), behind]);
}
