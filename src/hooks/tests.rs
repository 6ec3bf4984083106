use super::*;
use crate::core::{Exit, Failed};

const BEGIN: Instant = Instant::from_nanos(1_000_000_000_000);
const ALL: HookConfig = HookConfig {
    standby: true,
    on_acquire: true,
    grace: Duration::from_secs(30),
};

fn at(seconds: u64) -> Instant {
    BEGIN + Duration::from_secs(seconds)
}

fn term(t0: u64) -> Start {
    Start {
        deadlines: until(t0 + 48, t0 + 58),
        fresh_until: at(t0 + 30),
        token: 7,
    }
}

fn until(term_at: u64, kill_at: u64) -> Deadlines {
    Deadlines {
        term_at: at(term_at),
        kill_at: at(kill_at),
    }
}

fn launched(effects: &[Effect]) -> Option<Role> {
    effects.iter().find_map(|effect| match effect {
        Effect::Launch { role, .. } => Some(*role),
        _ => None,
    })
}

fn told(effects: &[Effect]) -> Vec<WorkloadEvent> {
    let told = effects.iter().filter_map(|effect| match effect {
        Effect::Tell(event) => Some(*event),
        _ => None,
    });
    told.collect()
}

fn drained(effects: &[Effect]) -> Option<Instant> {
    effects.iter().find_map(|effect| match effect {
        Effect::Drain { end_of_grace, .. } => Some(*end_of_grace),
        _ => None,
    })
}

fn exited(code: u8) -> WorkloadEvent {
    WorkloadEvent::Exited(Exit::Code(code))
}

fn empty(seconds: u64) -> WorkloadEvent {
    WorkloadEvent::TreeEmpty { at: at(seconds) }
}

fn standing(config: HookConfig) -> HookSequencer {
    let mut hooks = HookSequencer::new(config);
    assert_eq!(launched(&hooks.stand_by(BEGIN)), Some(Role::Standby));
    hooks.on_event(BEGIN, WorkloadEvent::Started { pid: 4711 });
    hooks
}

/// Has control since second 10; the standby command was told to end.
fn ushering() -> HookSequencer {
    let mut hooks = standing(ALL);
    let effects = hooks.start(at(10), term(10));
    assert_eq!(drained(&effects), Some(at(40)));
    assert_eq!(launched(&effects), None);
    hooks
}

/// The standby command's tree was empty at second 11.
fn preparing() -> HookSequencer {
    let mut hooks = ushering();
    hooks.on_event(at(11), WorkloadEvent::Exited(Exit::Signal(TERM)));
    assert_eq!(
        launched(&hooks.on_event(at(11), empty(11))),
        Some(Role::OnAcquire)
    );
    hooks
}

/// The hook succeeded at second 12.
fn playing() -> HookSequencer {
    let mut hooks = preparing();
    assert_eq!(hooks.on_event(at(12), exited(0)), []);
    assert_eq!(
        launched(&hooks.on_event(at(12), empty(12))),
        Some(Role::Command)
    );
    hooks
}

#[test]
fn each_program_waits_for_an_empty_tree() {
    let mut hooks = playing();
    assert_eq!(told(&hooks.on_event(at(20), exited(3))), [exited(3)]);
    assert_eq!(launched(&hooks.stand_by(at(20))), None, "its tree may live");
    assert_eq!(hooks.on(), Some(Role::Command));
    assert_eq!(told(&hooks.on_event(at(21), empty(21))), [empty(21)]);
}

#[test]
fn standby_command_returns_when_control_is_gone() {
    let mut hooks = playing();
    hooks.on_event(at(21), empty(21));
    assert_eq!(launched(&hooks.stand_by(at(22))), Some(Role::Standby));
    assert_eq!(hooks.stand_by(at(23)), [], "once");
}

#[test]
fn deadline_of_a_standby_command_is_that_of_the_lease_and_moves_with_renewals() {
    let mut hooks = standing(ALL);
    let effects = hooks.start(at(10), term(10));
    assert_eq!(effects[0], Effect::SetReleaseInfo);
    let kill_at = |effects: &[Effect]| {
        effects.iter().find_map(|effect| match effect {
            Effect::Extend(deadlines) => Some(deadlines.kill_at),
            _ => None,
        })
    };
    assert_eq!(kill_at(&effects), Some(at(58)));
    let effects = hooks.extend(at(30), until(78, 88));
    assert_eq!(kill_at(&effects), Some(at(78)));
}

#[test]
fn hook_runs_once_in_a_tenure() {
    let mut hooks = playing();
    hooks.on_event(at(13), exited(1));
    hooks.on_event(at(13), empty(13));
    assert_eq!(
        launched(&hooks.start(at(14), term(10))),
        Some(Role::Command)
    );
    hooks.on_event(at(15), empty(15));
    let next = Start {
        token: 8,
        ..term(20)
    };
    assert_eq!(launched(&hooks.start(at(20), next)), Some(Role::OnAcquire));
}

#[test]
fn failed_hook_is_reported_when_its_tree_is_empty() {
    let mut hooks = preparing();
    assert_eq!(told(&hooks.on_event(at(12), exited(3))), []);
    hooks.on_event(at(12), WorkloadEvent::LeftBehind);
    let effects = hooks.on_event(at(14), empty(14));
    let how = Failed::Exited(Exit::Code(3));
    assert_eq!(
        told(&effects),
        [WorkloadEvent::HookFailed { at: at(14), how }]
    );
    assert_eq!(launched(&effects), None);
    assert_eq!(hooks.on(), None);
}

#[test]
fn hook_that_cannot_start_has_failed() {
    let mut hooks = preparing();
    let how = Failed::NotStarted(libc::EAGAIN);
    let effects = hooks.on_event(
        at(12),
        WorkloadEvent::NotStarted {
            errno: libc::EAGAIN,
        },
    );
    assert_eq!(
        told(&effects),
        [WorkloadEvent::HookFailed { at: at(11), how }]
    );
}

#[test]
fn hook_that_was_told_to_end_has_not_failed() {
    for exit in [
        exited(0),
        exited(3),
        WorkloadEvent::Exited(Exit::Signal(TERM)),
    ] {
        let mut hooks = preparing();
        let effects = hooks.drain(at(12), libc::SIGQUIT, at(42));
        let drain = Effect::Drain {
            signal: TERM,
            end_of_grace: at(42),
        };
        assert_eq!(effects, [drain], "--stop-signal is the command's");
        hooks.on_event(at(13), exit);
        let effects = hooks.on_event(at(13), empty(13));
        assert_eq!(told(&effects), [empty(13)]);
        assert_eq!(launched(&effects), None);
    }
}

#[test]
fn hook_never_ends_before_the_request_to_end() {
    let mut hooks = preparing();
    hooks.drain(at(12), TERM, at(42));
    hooks.on_event(at(13), exited(0));
    assert_eq!(told(&hooks.on_event(at(13), empty(11))), [empty(12)]);
}

#[test]
fn hook_ended_by_its_guardian_ended_at_its_deadline() {
    let mut hooks = preparing();
    hooks.on_event(at(58), WorkloadEvent::Acting);
    hooks.on_event(at(58), WorkloadEvent::Exited(Exit::Signal(TERM)));
    assert_eq!(
        told(&hooks.on_event(at(90), empty(59))),
        [empty(59)],
        "no later"
    );
}

#[test]
fn hook_that_ends_after_a_long_pause_starts_nothing() {
    let mut hooks = preparing();
    hooks.on_event(at(90), exited(0));
    let effects = hooks.on_event(at(90), empty(12));
    assert_eq!(launched(&effects), None);
    assert_eq!(
        told(&effects),
        [empty(58)],
        "its deadline: doubt, and no overlap"
    );
}

#[test]
fn half_used_lease_starts_nothing_until_renewed() {
    let mut hooks = preparing();
    hooks.on_event(at(41), exited(0));
    assert_eq!(
        hooks.on_event(at(41), empty(41)),
        [],
        "the next renewal is waited for"
    );
    let effects = hooks.extend(at(42), until(89, 99));
    assert_eq!(launched(&effects), Some(Role::Command));
    let mut hooks = preparing();
    hooks.on_event(at(41), exited(0));
    hooks.on_event(at(41), empty(41));
    let effects = hooks.drain(at(58), TERM, at(68));
    assert_eq!(told(&effects), [empty(58)], "or the deadline");
    assert_eq!(hooks.extend(at(59), until(99, 109)), []);
}

#[test]
fn end_of_control_does_not_wait_for_a_draining_standby() {
    let mut hooks = ushering();
    assert_eq!(told(&hooks.drain(at(12), TERM, at(42))), [empty(12)]);
    assert_eq!(hooks.kill(at(13)), [], "and once");
    assert_eq!(hooks.stand_by(at(13)), []);
    hooks.on_event(at(14), WorkloadEvent::Exited(Exit::Signal(TERM)));
    assert_eq!(
        launched(&hooks.on_event(at(14), empty(14))),
        Some(Role::Standby)
    );
    let mut hooks = ushering();
    assert_eq!(told(&hooks.kill(at(90))), [empty(58)], "after a long pause");
}

#[test]
fn regained_control_waits_for_a_draining_standby() {
    let mut hooks = ushering();
    hooks.drain(at(12), TERM, at(42));
    hooks.stand_by(at(13));
    let effects = hooks.start(at(15), term(15));
    assert_eq!(drained(&effects), None, "its grace has begun already");
    assert_eq!(
        launched(&hooks.on_event(at(16), empty(16))),
        Some(Role::OnAcquire)
    );
}

#[test]
fn guardian_death_while_standby_drains_leaves_nothing_under_the_lease() {
    let mut hooks = ushering();
    assert_eq!(
        told(&hooks.on_event(at(12), WorkloadEvent::Lost)),
        [WorkloadEvent::Lost, empty(12)]
    );
    assert!(!hooks.is_clear());
    assert_eq!(hooks.on_event(at(13), empty(13)), []);
    assert!(hooks.is_clear());
    let effects = hooks.start(at(14), term(14));
    let errno = libc::EBUSY;
    assert_eq!(told(&effects), [WorkloadEvent::NotStarted { errno }]);
}

#[test]
fn guardian_death_under_the_lease_waits_for_an_empty_tree() {
    for mut hooks in [preparing(), playing()] {
        assert_eq!(
            told(&hooks.on_event(at(13), WorkloadEvent::Lost)),
            [WorkloadEvent::Lost]
        );
        assert_eq!(hooks.start(at(13), term(13)), [], "nothing beside it");
        assert_eq!(told(&hooks.on_event(at(14), empty(14))), [empty(14)]);
    }
}

#[test]
fn guardian_death_without_a_tree_is_reported() {
    let mut hooks = HookSequencer::new(ALL);
    assert_eq!(
        told(&hooks.on_event(BEGIN, WorkloadEvent::Lost)),
        [WorkloadEvent::Lost]
    );
    assert_eq!(hooks.on_event(at(1), empty(1)), []);
}

#[test]
fn stuck_standby_keeps_the_command_from_starting() {
    let mut hooks = ushering();
    let effects = hooks.on_event(at(50), WorkloadEvent::TreeStuck);
    let errno = libc::EBUSY;
    assert_eq!(told(&effects), [WorkloadEvent::NotStarted { errno }]);
    assert!(effects.contains(&Effect::Say(HookNotice::StandbyStuck)));
    assert_eq!(launched(&hooks.stand_by(at(51))), None);
}

#[test]
fn stuck_tree_under_the_lease_is_reported() {
    for mut hooks in [preparing(), playing()] {
        assert_eq!(
            told(&hooks.on_event(at(13), WorkloadEvent::TreeStuck)),
            [WorkloadEvent::TreeStuck]
        );
    }
}

#[test]
fn failed_standby_restarts_after_a_growing_back_off() {
    let mut hooks = standing(ALL);
    let mut now = at(1);
    for wait in [1, 2, 4, 8, 16, 30, 30] {
        hooks.on_event(now, exited(3));
        let effects = hooks.on_event(now, WorkloadEvent::TreeEmpty { at: now });
        assert_eq!(launched(&effects), None);
        assert_eq!(hooks.wake_at(), now + Duration::from_secs(wait));
        now = hooks.wake_at();
        assert_eq!(launched(&hooks.woke(now)), Some(Role::Standby));
    }
}

#[test]
fn successful_standby_does_not_restart_in_the_same_wait() {
    let mut hooks = standing(ALL);
    hooks.on_event(at(1), exited(0));
    let effects = hooks.on_event(at(1), empty(1));
    assert_eq!(effects, [Effect::Say(HookNotice::StandbyDone)]);
    assert_eq!(hooks.wake_at(), Instant::FOREVER);
    assert_eq!(
        launched(&hooks.start(at(2), term(2))),
        Some(Role::OnAcquire)
    );
}

#[test]
fn control_does_not_wait_for_a_back_off() {
    let mut hooks = standing(ALL);
    hooks.on_event(at(1), exited(3));
    hooks.on_event(at(1), empty(1));
    assert_eq!(
        launched(&hooks.start(at(1), term(1))),
        Some(Role::OnAcquire)
    );
    assert_eq!(hooks.wake_at(), Instant::FOREVER);
}

#[test]
fn finish_drains_the_standby_for_good() {
    let mut hooks = standing(ALL);
    assert_eq!(drained(&hooks.finish(at(30))), Some(at(30)));
    assert_eq!(hooks.finish(at(40)), [], "its grace is fixed");
    hooks.on_event(at(1), exited(3));
    assert_eq!(launched(&hooks.on_event(at(1), empty(1))), None);
    assert!(hooks.is_clear() && hooks.wake_at() == Instant::FOREVER);
}

#[test]
fn late_start_is_doubt_and_no_bad_command() {
    let late = WorkloadEvent::NotStarted { errno: libc::ETIME };
    for mut hooks in [preparing(), playing()] {
        assert_eq!(told(&hooks.on_event(at(59), late)), [empty(58)]);
    }
}

#[test]
fn without_hooks_only_the_command_runs() {
    let mut hooks = HookSequencer::new(HookConfig {
        standby: false,
        on_acquire: false,
        ..ALL
    });
    assert_eq!(hooks.stand_by(BEGIN), []);
    let effects = hooks.start(at(1), term(1));
    assert_eq!(launched(&effects), Some(Role::Command));
    for event in [
        WorkloadEvent::Started { pid: 1 },
        WorkloadEvent::LeftBehind,
        exited(0),
        empty(2),
    ] {
        assert_eq!(told(&hooks.on_event(at(2), event)), [event]);
    }
}
