//! The guarantees: the effect of each fault, how long it takes, and the test that shows it; and the
//! limits of what a machine can promise. `promises.rs` writes the tables in `docs/guarantees.md`
//! and `man/trafficcop-guarantees.7` from it.
//!
//! Text between backticks is set as typed. Every claim needs a named test: `promises.rs` looks for
//! each.

/// A folder of `tests/it/` or a binary of `tests/` (`lib`: the crate itself; `faults`: the suite's
/// faults), and tests in it.
pub(crate) type Shown = (&'static str, &'static [&'static str]);

pub(crate) struct Guarantee {
    pub(crate) fault: &'static str,
    pub(crate) happens: &'static str,
    pub(crate) how_long: &'static str,
    pub(crate) shown: &'static [Shown],
}

/// A gap that no local process can close, and the remedy.
pub(crate) struct Limit {
    pub(crate) what: &'static str,
    pub(crate) answer: &'static str,
    pub(crate) shown: &'static [Shown],
}

/// Effect of settings that differ between two instances on one lock.
pub(crate) struct Setting {
    pub(crate) flags: &'static str,
    pub(crate) may_differ: bool,
    pub(crate) follows: &'static str,
    pub(crate) shown: &'static [Shown],
}

/// Rows of the promise in the fault suite's last full run; `INJECTED_FAULTS` counts their faults
/// (the line "the promise" at its end).
pub(crate) const PROMISE_ROWS: usize = 550;
pub(crate) const INJECTED_FAULTS: usize = 602;
/// Schedules of the fleet's last full run, from seed 1.
pub(crate) const SCHEDULES: u64 = 20_000;

pub(crate) fn proof() -> String {
    let mut schedules = SCHEDULES.to_string();
    schedules.insert(schedules.len() - 3, ',');
    format!(
        "Counted: no overlap in {PROMISE_ROWS} rows of the fault suite ({INJECTED_FAULTS} injected faults) and in \
         {schedules} schedules of the simulated fleet (seeds 1 to {SCHEDULES}). Run them again with `cargo test \
         --test faults` and `FLEET_COUNT={SCHEDULES} cargo test --test fleet`."
    )
}

pub(crate) const TIMES: &str = "`t0` is the moment just before the last good renewal was sent. With the default lease \
    of 60 s the command gets the stop signal at `t0`+48 s and SIGKILL at `t0`+58 s; of 30 s at `t0`+24 s and `t0`+29 \
    s; of 15 s at `t0`+11 s and `t0`+14 s. Another instance can get control from `t0` + lease on. A file on a local \
    disk has no such deadline: its lock lasts as long as the processes that hold it.";

pub(crate) const TESTS: &str = "Run a test with `cargo test --test it -- NAME` (`lib`: `cargo test --workspace --lib \
    NAME`; `fleet` and `supervise` instead of `it` for theirs). A name under `faults` is a fault that the suite plays \
    on every lock, against a plain, a TERM-ignoring, a daemonising and a forking command, with `--contain` `none`, \
    `cgroup` and `pidns`. The suite names rows that it cannot run on a machine.";

pub(crate) const GUARANTEES: &[Guarantee] = &[
    Guarantee {
        fault: "trafficcop (the supervisor) is SIGKILLed or crashes",
        happens: "The guardian sends the stop signal, and SIGKILL after the grace. When the tree is gone it gives the \
            lock back.",
        how_long: "At most `--grace-on-loss` (on a local file `--grace`). Where trafficcop is process 1 of a killed \
            container, see L2.",
        shown: &[
            ("faults", &["KillSupervisor"]),
            (
                "run_blob",
                &[
                    "the_death_of_the_supervisor_hands_over_because_the_guardian_gives_the_lease_back",
                ],
            ),
        ],
    },
    Guarantee {
        fault: "trafficcop itself panics",
        happens: "The guardian does the same. trafficcop waits for it and exits 70.",
        how_long: "As above.",
        shown: &[(
            "run_blob",
            &["a_supervisor_that_panics_leaves_a_drained_command_and_a_released_lease"],
        )],
    },
    Guarantee {
        fault: "The machine has no thread or process to spare, or files may not grow (`ulimit`)",
        happens: "A holder keeps control. Before the start, trafficcop names what is missing and exits 69.",
        how_long: "trafficcop retries the start of a process for 0.3 s.",
        shown: &[
            ("run_blob", &["store_is_resolved_without_a_spare_thread"]),
            (
                "service_bus",
                &["a_machine_without_a_thread_to_spare_keeps_its_message"],
            ),
            (
                "run_file",
                &[
                    "a_limit_of_the_size_of_files_costs_the_event_log_and_not_the_command",
                    "too_few_descriptors_are_reported_before_anything_starts",
                    "a_process_that_cannot_be_had_for_a_moment_is_asked_for_again",
                ],
            ),
        ],
    },
    Guarantee {
        fault: "The guardian is SIGKILLed",
        happens: "The kernel kills the command and the supervisor the rest of the tree. The supervisor gives the lock \
            back and exits 70.",
        how_long: "At once.",
        shown: &[
            ("faults", &["KillGuardian"]),
            (
                "run_file",
                &["the_death_of_the_guardian_hands_over_when_the_tree_is_gone_and_is_status_70"],
            ),
        ],
    },
    Guarantee {
        fault: "The guardian is stopped or hangs",
        happens: "The same, by the supervisor alone.",
        how_long: "1 s without an answer (10 s while a command starts), 0.1 s once SIGKILL is due.",
        shown: &[
            ("faults", &["StopGuardian"]),
            (
                "supervise",
                &["the_supervisor_finishes_for_a_stopped_guardian"],
            ),
        ],
    },
    Guarantee {
        fault: "Shared drive: the server hangs, restarts or is in its grace period, for less than the room for \
            retries; or an answer is lost",
        happens: "Nothing. An instance recognises its own version by its content, and steps over it.",
        how_long: "Room for retries: 28 s of a lease of 60 s, 14 of 30, 6 of 15.",
        shown: &[(
            "shared_file",
            &[
                "a_drive_that_hangs_for_less_than_the_room_costs_nothing",
                "opens_that_hang_for_longer_than_the_lease_stop_nothing",
                "lost_answers_to_the_making_of_a_renewal_stop_nothing",
                "errors_for_less_than_the_room_stop_nothing",
            ],
        )],
    },
    Guarantee {
        fault: "Shared drive: the machine is cut off, or the drive hangs past the lease",
        happens: "The tree is dead before the lease ends: the guardian needs no file of the share. Another instance \
            takes over once the last version is unchanged for a whole lease.",
        how_long: "The lease and a poll; 60 s where the last record was not written.",
        shown: &[(
            "shared_file",
            &[
                "a_drive_that_hangs_past_the_lease_ends_the_tree_in_time_and_its_instance_competes_again",
                "answer_after_the_lease_grants_no_control",
                "sigterm_ends_an_instance_whose_drive_hangs",
                "a_maker_that_dies_before_its_record_is_followed_after_the_longest_lease",
                "a_holder_that_dies_with_its_machine_is_followed_within_a_lease_and_a_poll",
            ],
        )],
    },
    Guarantee {
        fault: "Shared drive: a cache shows an old state, a machine comes back after hours, or records are torn or \
            forged",
        happens: "The instance finds newer versions and withdraws. An unreadable record counts as held for 60 s.",
        how_long: "One lease more, or 60 s.",
        shown: &[(
            "shared_file",
            &[
                "a_standby_with_old_news_never_takes_over_from_who_lives_and_does_when_it_hears",
                "whatever_is_no_record_is_held_for_the_longest_lease",
                "an_instance_whose_view_is_older_than_what_is_kept_withdraws",
                "a_lock_of_which_but_the_last_version_is_left_is_taken_over",
                "a_version_that_an_old_view_has_left_is_not_taken_for_all_that_is_left",
            ],
        )],
    },
    Guarantee {
        fault: "The supervisor is stopped or starved",
        happens: "The guardian ends the tree by its own timer. A supervisor that continues checks the clock first and \
            competes again; on a local file nothing happens.",
        how_long: "Stop signal and SIGKILL at their times after `t0`.",
        shown: &[
            ("faults", &["StopSupervisor"]),
            (
                "run_blob",
                &["a_stopped_supervisor_s_tree_is_gone_in_time_and_it_stands_by_when_continued"],
            ),
            (
                "run_file",
                &["a_stopped_supervisor_costs_a_local_lock_nothing"],
            ),
        ],
    },
    Guarantee {
        fault: "The supervisor is stopped, then SIGKILLed",
        happens: "As if it was SIGKILLed.",
        how_long: "As if it was SIGKILLed.",
        shown: &[("faults", &["StopThenKillSupervisor"])],
    },
    Guarantee {
        fault: "The guardian is stopped, the supervisor SIGKILLed, and the guardian continues",
        happens: "The guardian ends the tree and gives the lock back. The kernel continues it, unless a child \
            subreaper of its session adopts it.",
        how_long: "As above, from when it continues.",
        shown: &[
            ("faults", &["StopGuardianKillSupervisor"]),
            (
                "supervise",
                &[
                    "a_stopped_guardian_and_a_killed_supervisor",
                    "a_guardian_that_stays_stopped_and_a_killed_supervisor",
                ],
            ),
        ],
    },
    Guarantee {
        fault: "The store hangs, resets connections, or answers too late or with errors, for longer than the lease \
            allows",
        happens: "The command gets the stop signal, then SIGKILL. The instance competes again, or exits 70 with \
            `--if-lost exit`.",
        how_long: "Stop signal and SIGKILL at their times after `t0`.",
        shown: &[
            (
                "faults",
                &["Freeze", "Cut", "Delay", "Busy", "LateThenFreeze"],
            ),
            (
                "run_blob",
                &["a_holder_cut_off_from_the_store_is_drained_and_gone_before_another_runs"],
            ),
        ],
    },
    Guarantee {
        fault: "The same for a short time; 401 or 403 during a tenure; an account that is read-only for a while",
        happens: "Nothing. trafficcop retries the renewal every 2 s (±20 %).",
        how_long: "Up to 28 s of a lease of 60 s, 14 s of 30 s, 6 s of 15 s.",
        shown: &[
            (
                "faults",
                &["BriefFreeze", "BriefCut", "BriefDelay", "BriefBusy"],
            ),
            (
                "run_blob",
                &[
                    "a_refusal_in_mid_tenure_is_doubt_and_costs_nothing",
                    "an_account_that_is_read_only_for_a_while_costs_nothing",
                ],
            ),
        ],
    },
    Guarantee {
        fault: "Entra ID: the token endpoint hangs, fails or refuses during a tenure",
        happens: "Nothing while the present token is valid, because no renewal waits for a new one. Then as if the \
            store did not answer.",
        how_long: "At least half of the token's time, usually half an hour or more.",
        shown: &[(
            "entra",
            &[
                "an_endpoint_that_hangs_costs_nothing_while_the_token_is_good_and_is_doubt_after",
                "an_endpoint_that_answers_500_costs_nothing_while_the_token_is_good_and_is_doubt_after",
                "a_credential_that_is_revoked_in_mid_tenure_is_doubt",
                "a_credential_that_stays_away_lets_the_command_run_until_its_time_is_up",
                "short_lived_tokens_are_renewed_unnoticed",
                "guardian_releases_although_no_new_token_is_available",
            ],
        )],
    },
    Guarantee {
        fault: "One of several standbys is SIGKILLed, or stopped and continued",
        happens: "Nothing. Each standby looks at the lock by itself.",
        how_long: "A take-over takes at most 2.4 s with the default `--poll`, 0.3 s while the holder drains.",
        shown: &[
            (
                "run_blob",
                &[
                    "stopped_standby_is_passed_over_and_harmless_when_continued",
                    "a_standby_that_is_killed_leaves_nothing_behind_and_another_takes_over",
                ],
            ),
            (
                "fleet",
                &["a_hand_over_takes_no_longer_than_an_eighth_of_a_poll_and_a_crash_than_a_poll"],
            ),
        ],
    },
    Guarantee {
        fault: "The reply to an acquire, a renewal or a release is lost",
        happens: "Nothing. trafficcop asks again with its own lease id.",
        how_long: "The next attempt.",
        shown: &[("faults", &["LoseAcquire", "LoseRenew", "LoseRelease"])],
    },
    Guarantee {
        fault: "An acquire is answered slowly",
        happens: "An answer after half the lease is renewed before the command starts; one that came too late starts \
            nothing.",
        how_long: "One renewal.",
        shown: &[(
            "lib",
            &[
                "slow_acquire_is_renewed_before_the_command_starts",
                "grant_that_came_too_late_never_starts_anything",
            ],
        )],
    },
    Guarantee {
        fault: "An operator breaks the lease at its end, or with a period of half the lease or more",
        happens: "The holder asks the store what remains, each second, and ends the command before that.",
        how_long: "Noticed with the next renewal, after at most a third of the lease.",
        shown: &[
            ("faults", &["BreakAtItsEnd", "BreakWithPeriod"]),
            (
                "run_blob",
                &[
                    "a_lease_broken_with_a_period_drains_within_it",
                    "a_lease_that_is_broken_again_while_the_command_drains_kills_at_once",
                ],
            ),
            (
                "shared_file",
                &[
                    "break_at_the_leases_end_stops_the_command_without_an_overlap",
                    "break_with_a_period_leaves_no_more_than_the_period",
                ],
            ),
        ],
    },
    Guarantee {
        fault: "The wall clock jumps, or the machine sleeps",
        happens: "Deadlines are on a clock that counts sleep. After a jump trafficcop verifies the lease at once.",
        how_long: "What is overdue is done first.",
        shown: &[(
            "lib",
            &[
                "clock_comes_before_a_reply_that_waited_during_a_long_pause",
                "clock_jump_verifies_the_lease_at_once",
            ],
        )],
    },
    Guarantee {
        fault: "The wall clock is wrong by hours, or is set while the command runs (blob with an account key)",
        happens: "Nothing. Requests carry the service's own time.",
        how_long: "One more request.",
        shown: &[
            (
                "run_blob",
                &["a_clock_that_is_an_hour_off_and_then_on_the_other_side_costs_nothing"],
            ),
            (
                "blob_store",
                &[
                    "a_clock_that_is_an_hour_off_costs_one_refusal_and_nothing_else",
                    "a_clock_that_jumps_in_mid_tenure_is_no_doubt",
                ],
            ),
        ],
    },
    Guarantee {
        fault: "The command ignores the stop signal, daemonises, or forks while it is killed",
        happens: "trafficcop sends SIGKILL until nothing of the tree is left. Only then it gives the lock back.",
        how_long: "After `--grace` (requested stop) or `--grace-on-loss`.",
        shown: &[
            (
                "run_file",
                &[
                    "a_tree_that_ignores_sigterm_is_killed_before_the_hand_over",
                    "the_end_of_a_command_that_leaves_a_daemon_hands_over_when_the_daemon_is_gone",
                ],
            ),
            (
                "contain",
                &["a_cgroup_dies_as_one_with_its_daemons_and_sub_cgroups"],
            ),
        ],
    },
    Guarantee {
        fault: "A stop by TERM, INT, HUP or QUIT",
        happens: "The command gets `--stop-signal`, the grace, and SIGKILL under a renewed lease. Then trafficcop \
            gives the lease back.",
        how_long: "At most `--grace`. A second TERM or INT kills at once.",
        shown: &[
            (
                "run_file",
                &[
                    "interrupt_hands_over",
                    "hangup_hands_over",
                    "quit_hands_over",
                    "a_second_sigterm_kills_at_once",
                ],
            ),
            (
                "run_blob",
                &["a_drain_may_last_longer_than_the_lease_because_renewals_go_on"],
            ),
        ],
    },
    Guarantee {
        fault: "The runner of a task (`--once`) crashes before, during or after the command",
        happens: "The next candidate runs the task again, unless its success was recorded.",
        how_long: "As for the crash of any holder. A recorded result is read at once.",
        shown: &[(
            "run_once",
            &[
                "before_the_command_another_runs_it",
                "during_the_command_another_runs_it",
                "after_a_success_that_was_not_recorded_another_runs_it_again",
                "recorded_task_on_a_blob_does_not_run_again_without_a_release",
                "recorded_task_on_a_file_does_not_run_again_without_a_release",
                "a_result_survives_every_later_record_and_a_crash_while_it_is_written",
            ],
        )],
    },
    Guarantee {
        fault: "`work`: the worker is SIGKILLed, or its machine dies, while it holds messages",
        happens: "The guardian ends each command. The message comes again, to any worker, as its next attempt.",
        how_long: "The message comes when its lock has expired, after at most `--lock-time`.",
        shown: &[(
            "work",
            &[
                "a_killed_worker_s_message_comes_again_after_its_lock_and_its_command_is_dead_before",
                "message_directory_of_a_killed_worker_is_swept_by_the_next",
            ],
        )],
    },
    Guarantee {
        fault: "`work`: a guardian is SIGKILLed",
        happens: "Its command dies with it, and its message is given back. The worker lets the other commands finish \
            and exits 70.",
        how_long: "At once; the others `--grace` at most.",
        shown: &[(
            "work",
            &["a_killed_guardian_takes_its_command_with_it_and_the_message_is_given_back"],
        )],
    },
    Guarantee {
        fault: "`work`: the queue does not answer until a message's lock is about to end, or reports that the lock is \
            lost",
        happens: "The command is killed, and nothing is settled. The message comes again.",
        how_long: "Before the end of the lock; at once where the lock is lost.",
        shown: &[
            (
                "work",
                &["a_lock_that_is_lost_or_in_doubt_ends_the_command_and_settles_nothing"],
            ),
            (
                "storage_queue",
                &["a_message_that_another_has_taken_is_lost_without_a_term"],
            ),
        ],
    },
    Guarantee {
        fault: "`work`: the answer to a renewal is lost, and the receipt with it",
        happens: "The command gets the stop signal, then SIGKILL; the message comes again.",
        how_long: "Before the end of the last confirmed lock.",
        shown: &[
            (
                "storage_queue",
                &[
                    "a_renewal_whose_answer_was_lost_loses_the_message_but_not_before_its_confirmed_end",
                    "after_a_renewal_whose_answer_was_lost_nothing_is_settled_by_chance",
                ],
            ),
            (
                "work",
                &["a_command_that_ends_while_its_lock_is_being_renewed_is_completed"],
            ),
        ],
    },
    Guarantee {
        fault: "`work`: the answer to a settlement is lost, or the queue is away when the command ends",
        happens: "trafficcop asks again. If the answer stays unknown, the log reports `unconfirmed`.",
        how_long: "As long as the lock lasts, at most a minute.",
        shown: &[
            (
                "storage_queue",
                &[
                    "a_settlement_whose_answer_was_lost_is_done_when_it_is_asked_again",
                    "a_settlement_that_never_arrived_is_done_when_it_is_asked_again",
                ],
            ),
            (
                "work",
                &["a_settlement_that_is_not_answered_is_asked_for_again_and_then_unconfirmed"],
            ),
        ],
    },
    Guarantee {
        fault: "`work`: a message can never be handled, kills its worker, or cannot be read",
        happens: "It is dead-lettered unchanged: first the copy, then the delete. After five refusals in a row the \
            worker exits 69.",
        how_long: "After `--max-attempts`; at once where it cannot be read.",
        shown: &[
            (
                "work",
                &[
                    "failed_message_is_retried_and_dead_lettered_on_the_last_attempt",
                    "message_taken_too_often_is_dead_lettered_unrun",
                    "unusable_body_is_dead_lettered_with_its_reason",
                    "message_that_cannot_be_dead_lettered_is_not_run_and_five_end_the_worker",
                ],
            ),
            (
                "storage_queue",
                &[
                    "dead_letter_is_kept_verbatim_and_for_ever",
                    "a_copy_in_doubt_is_put_again_rather_than_lost",
                ],
            ),
        ],
    },
    Guarantee {
        fault: "`work`: a stop at any moment",
        happens: "The worker takes no more messages and lets commands finish under renewed locks. Nothing stays \
            locked.",
        how_long: "At most `--grace`; a second TERM or INT ends everything at once.",
        shown: &[(
            "work",
            &[
                "running_command_may_finish_while_its_lock_is_renewed",
                "after_the_grace_it_is_stopped_and_its_message_is_there_at_once",
                "the_second_signal_ends_everything_at_once_and_still_gives_back",
                "repeated_stops_leave_no_lock",
            ],
        )],
    },
    Guarantee {
        fault: "`work`: three workers, three hundred messages, and random faults of network and processes",
        happens: "No two runs of one message overlap. Each message is completed or dead-lettered.",
        how_long: "The whole run.",
        shown: &[(
            "work",
            &["no_message_is_run_twice_at_a_time_and_none_is_lost"],
        )],
    },
    Guarantee {
        fault: "Service Bus: a worker is SIGKILLed, stopped past the lock or cut off, or gets answers late, twice, \
            for another request or never",
        happens: "The command is killed before the message's lock ends. Without the service's answer the message is \
            `unconfirmed` and may come again.",
        how_long: "At most the queue's lock time. See `--lock-time` for machines whose clock is behind.",
        shown: &[(
            "service_bus",
            &[
                "no_message_is_run_twice_at_a_time_and_none_is_lost",
                "answers_that_come_late_twice_or_out_of_order_cost_no_lock",
                "an_answer_that_comes_after_its_time_never_stands_for_the_next_one",
                "message_that_arrived_during_a_pause_is_not_run_on_an_old_lock",
                "a_worker_that_is_killed_leaves_its_message_to_the_next_after_its_command_is_dead",
                "a_settlement_whose_answer_is_lost_is_unconfirmed_and_never_failed",
                "repeated_stops_leave_no_lock_and_count_no_attempt",
            ],
        )],
    },
    Guarantee {
        fault: "A machine is not fit to take control (`--if`), or its condition hangs, forks daemons or floods its \
            output",
        happens: "The instance does not compete. A hanging condition is killed with its tree and counts as no.",
        how_long: "An answer is at most one `--poll` old. A condition has 5 s, or `--poll` where that is longer.",
        shown: &[
            (
                "run_if",
                &[
                    "unfit_instance_takes_a_free_lock_only_once_it_is_fit",
                    "standby_that_becomes_unfit_does_not_get_the_lock",
                    "ring_during_the_condition_takes_nothing_before_its_answer",
                    "a_holder_that_turns_unfit_keeps_control_and_is_not_asked",
                    "hanging_condition_is_killed_with_its_tree_and_counts_as_no",
                    "leftovers_of_a_condition_are_killed_before_its_answer_counts",
                    "condition_does_not_outlive_a_killed_supervisor",
                ],
            ),
            ("lib", &["the_promise_holds_whatever_happens"]),
        ],
    },
    Guarantee {
        fault: "The command is alive and does not work, with `--watchdog` or `--health`",
        happens: "trafficcop stops it while it renews the lease. `--restart` then decides as for a failure, or \
            another instance gets control.",
        how_long: "The watchdog's time or the failed checks, then `--grace` and a poll.",
        shown: &[
            (
                "health",
                &[
                    "a_command_that_was_stopped_loses_control_to_another_instance",
                    "a_command_that_waits_for_itself_loses_control_of_a_blob",
                    "a_command_whose_checks_fail_loses_control_to_another_instance",
                    "a_supervisor_that_was_stopped_does_not_take_that_for_its_command_s_silence",
                ],
            ),
            (
                "run_once",
                &["hung_command_has_failed_and_the_next_candidate_runs_it"],
            ),
            ("faults", &["Hang"]),
            (
                "lib",
                &[
                    "no_needless_stop_in_a_thousand_hours_with_answers_late_up_to_the_timeout",
                    "command_that_stops_speaking_is_found_in_its_period_despite_pauses",
                ],
            ),
        ],
    },
    Guarantee {
        fault: "A check of `--health` hangs, forks daemons or floods its output, or trafficcop dies during a check",
        happens: "The check is killed with its tree before control is given back. If that fails, the lease is left to \
            expire.",
        how_long: "At most `--health-timeout`.",
        shown: &[
            (
                "health",
                &[
                    "hanging_check_is_killed_with_its_tree_at_its_time_limit",
                    "a_check_that_runs_when_the_command_is_to_end_is_gone_before_control_is",
                    "leftovers_of_a_successful_check_are_killed",
                    "output_of_a_check_is_discarded_in_any_amount",
                    "a_supervisor_that_is_killed_takes_the_check_with_it_before_control_is_given_back",
                ],
            ),
            (
                "shared_file",
                &["a_check_that_cannot_be_killed_costs_control_and_the_lock_is_left_to_run_out"],
            ),
        ],
    },
    Guarantee {
        fault: "Service Bus sessions: a worker loses its connection or the session's lock, is SIGKILLed, or gets \
            wrong answers",
        happens: "The command is killed within 1 s, and nothing is settled. The next worker begins with the same \
            message after `--lock-delay`, so a session's order is kept.",
        how_long: "`--lock-delay` (2 s); before the lock's end where the worker cannot notice the loss.",
        shown: &[(
            "service_bus",
            &[
                "no_session_is_at_two_workers_its_order_is_kept_and_no_message_is_lost",
                "a_session_whose_connection_is_cut_is_lost_at_once",
                "a_session_whose_link_is_ended_is_lost_at_once",
                "a_session_whose_lock_the_service_ends_is_lost_at_once",
                "a_service_that_falls_silent_costs_the_command_before_its_lock_has_ended",
                "a_settlement_that_is_not_confirmed_ends_the_session_and_the_next_begins_with_it",
                "a_worker_that_is_killed_has_its_command_dead_before_the_next_one_begins",
                "a_worker_that_is_killed_while_its_command_ends_has_it_dead_before_the_next_one_begins",
                "worker_with_a_longer_lock_delay_has_its_command_dead_before_a_worker_with_the_default_begins",
                "failed_message_is_retried_before_the_next_and_dead_lettered_at_last",
                "state_is_stored_just_before_the_completion_if_it_changed",
            ],
        )],
    },
    Guarantee {
        fault: "A proxy gives a holder the answer to an earlier request",
        happens: "The request's id shows it; the renewal is sent again at once.",
        how_long: "One more request.",
        shown: &[
            (
                "run_blob",
                &[
                    "answer_to_the_renewal_before_makes_no_lease_longer",
                    "answer_to_the_renewal_before_is_known_by_its_date_where_it_bears_no_id",
                    "one_answer_to_an_earlier_renewal_costs_a_healthy_holder_nothing",
                    "date_that_becomes_late_in_mid_tenure_stops_no_healthy_holder",
                ],
            ),
            (
                "storage_queue",
                &["answer_to_an_earlier_renewal_or_take_is_doubt"],
            ),
        ],
    },
    Guarantee {
        fault: "Another program replaces the metadata of a lock's blob between two tenures",
        happens: "The fencing token continues from the seconds since 1970. Results of `--once` are lost, with a \
            warning.",
        how_long: "At once.",
        shown: &[(
            "run_blob",
            &["replaced_metadata_never_take_the_token_back_and_are_reported"],
        )],
    },
    Guarantee {
        fault: "Any drain begins while the command has a piece of work in hand (a stop, a hand-over, a hang, a doubt, \
            the supervisor's death)",
        happens: "`check` says no before the first signal. A piece that `check` allowed and that fits into `--grace` \
            and `check --remaining` is cut short only by the lease's loss, a second stop signal, or the guardian's \
            death.",
        how_long: "`--grace`; `--grace-on-loss` if the supervisor dies under a lease.",
        shown: &[
            (
                "check",
                &[
                    "every_drain_is_told_before_its_first_signal",
                    "piece_that_check_allowed_is_finished_whenever_a_stop_comes",
                    "examples_finish_their_piece_when_control_is_lost_or_a_stop_is_asked",
                    "wait_lasts_for_its_time_and_ends_when_a_stop_begins",
                ],
            ),
            ("lib", &["no_order_of_events_outlasts_the_deadline"]),
        ],
    },
    Guarantee {
        fault: "A helper's store (`--store`): the helper hangs, fails, floods its output, leaves processes behind or \
            loses answers, or the store hangs or loses the entry",
        happens: "As on a shared drive. A call is killed with its process group at its deadline, and after \
            trafficcop's death; a write that comes later fails by its tag.",
        how_long: "The lease and a poll; at once after trafficcop's death.",
        shown: &[
            ("faults", &["KillSupervisor"]),
            (
                "helper_store",
                &[
                    "store_that_hangs_for_its_holder_costs_control_before_another_gets_it",
                    "helper_of_a_killed_supervisor_is_killed_with_what_it_started",
                    "lost_answer_of_a_write_ends_no_tenure_and_no_attempt",
                    "answers_that_break_the_contract_are_doubt_and_name_the_helper",
                    "noise_on_stderr_and_a_daemon_with_open_pipes_delay_nothing",
                    "deleted_entry_ends_the_tenure_and_is_not_begun_anew",
                ],
            ),
        ],
    },
];

pub(crate) const DIFFERENT: &str = "An instance relies only on what every instance does. Where the table says yes, \
    you can change a setting on one machine after another. All instances must name the same lock; on a shared drive \
    they must also run as the same user.";

/// Those that may differ between instances.
pub(crate) const SETTINGS: &[Setting] = &[
    Setting {
        flags: "`--lease`",
        may_differ: true,
        follows: "Azure counts the time that it granted. On a shared drive a standby waits for the lease in the \
            holder's record, and for 60 s where it cannot read that record",
        shown: &[
            (
                "shared_file",
                &["standby_with_a_shorter_lease_and_poll_waits_for_the_lease_of_the_holder"],
            ),
            (
                "run_blob",
                &[
                    "standby_with_another_lease_margin_grace_and_poll_starts_after_the_tree_of_the_holder_is_gone",
                ],
            ),
            (
                "lib",
                &["held_version_is_waited_for_by_its_own_lease_and_each_new_one_from_the_start"],
            ),
        ],
    },
    Setting {
        flags: "`--grace-on-loss`, `--margin`",
        may_differ: true,
        follows: "Both divide the holder's own lease. No other instance relies on them",
        shown: &[
            (
                "shared_file",
                &["standby_with_a_shorter_lease_and_poll_waits_for_the_lease_of_the_holder"],
            ),
            (
                "run_blob",
                &[
                    "standby_with_another_lease_margin_grace_and_poll_starts_after_the_tree_of_the_holder_is_gone",
                ],
            ),
        ],
    },
    Setting {
        flags: "`--poll`",
        may_differ: true,
        follows: "A standby that looks less often than the holder's `--cooldown` lasts can miss its turn",
        shown: &[
            (
                "shared_file",
                &["standby_with_a_shorter_lease_and_poll_waits_for_the_lease_of_the_holder"],
            ),
            (
                "run_blob",
                &[
                    "standby_with_another_lease_margin_grace_and_poll_starts_after_the_tree_of_the_holder_is_gone",
                ],
            ),
        ],
    },
    Setting {
        flags: "`--shared`",
        may_differ: false,
        follows: "The lock file names its protocol, so no two commands overlap. An instance with the flag refuses a \
            file that has the kernel's lock (69)",
        shown: &[(
            "shared_file",
            &[
                "instance_without_shared_stands_by_while_one_with_it_is_in_control",
                "the_other_protocol_at_one_path_is_refused_by_both",
                "two_protocols_at_one_path_refuse_each_other",
            ],
        )],
    },
    Setting {
        flags: "`--once-attempts`, `--once-on-failure`",
        may_differ: true,
        follows: "The first instance that reaches its own limit records the end, and all exit with that status",
        shown: &[(
            "run_once",
            &[
                "smallest_number_of_attempts_that_is_reached_ends_the_task_for_all_instances",
                "first_failure_is_final_for_all_with_on_failure_stop",
            ],
        )],
    },
    Setting {
        flags: "`--once-key`, `--once-per`",
        may_differ: false,
        follows: "Another key is another task. With another `--once-per` the command may run more often; two runs \
            never overlap",
        shown: &[
            (
                "run_once",
                &["each_key_is_a_task_of_its_own_whatever_is_in_it"],
            ),
            ("lib", &["results_are_read_with_another_period_length"]),
        ],
    },
    Setting {
        flags: "`--slots`",
        may_differ: false,
        follows: "As many commands run as the greatest N allows, and one more where an instance has no `--slots`",
        shown: &[(
            "run_slots",
            &[
                "instances_with_different_numbers_of_slots_share_those_that_both_name",
                "one_slot_is_the_plain_lock",
            ],
        )],
    },
    Setting {
        flags: "`--lock-delay` (`work --sessions`)",
        may_differ: true,
        follows: "A command lives for at most 1 s after its session is lost. A longer delay adds safety",
        shown: &[
            (
                "service_bus",
                &[
                    "worker_with_a_longer_lock_delay_has_its_command_dead_before_a_worker_with_the_default_begins",
                ],
            ),
            (
                "lib",
                &["lost_session_leaves_its_command_one_second_whatever_the_own_lock_delay_is"],
            ),
        ],
    },
];

pub(crate) const LIMITS: &[Limit] = &[
    Limit {
        what: "Supervisor *and* guardian are stopped past the lease",
        answer: "Use `--contain pidns`, whose init kills by its own timer, or the fencing token. Exit status 71 \
            reports it afterwards.",
        shown: &[
            ("faults", &["StopBoth"]),
            (
                "contain",
                &["a_namespace_dies_at_its_deadline_although_the_guardian_is_stopped"],
            ),
            (
                "fencing",
                &["writer_with_stopped_watchers_is_refused_once_the_next_holder_wrote"],
            ),
        ],
    },
    Limit {
        what: "Supervisor *and* guardian are SIGKILLed at the same time: the command dies, its children may live on",
        answer: "Use `--contain pidns`, or a unit with `KillMode=mixed`. With `cgroup` the next instance on that \
            machine kills the rest first. A killed container is such a case: the next instance gets control when the \
            lease has expired.",
        shown: &[
            ("faults", &["KillBoth"]),
            ("supervise", &["both_killed_at_once"]),
            (
                "contain",
                &["cgroups_of_dead_instances_are_swept_and_of_living_ones_spared"],
            ),
            (
                "run_file",
                &["a_standby_ends_what_a_dead_holder_left_before_its_own_command_starts"],
            ),
        ],
    },
    Limit {
        what: "The command becomes another user's (`sudo`, a setuid-root program) under a trafficcop without root and \
            without a cgroup",
        answer: "Use `--contain cgroup` (with `Delegate=yes` in the unit), or run trafficcop itself by `sudo`. Exit \
            status 71 reports it.",
        shown: &[(
            "supervise",
            &[
                "a_tree_that_may_not_be_signalled_keeps_its_guardian_and_the_lock",
                "a_tree_that_may_not_be_signalled_keeps_the_supervisor_of_a_dead_guardian",
            ],
        )],
    },
    Limit {
        what: "systemd SIGKILLs a unit with `KillMode=mixed`, for example for want of memory",
        answer: "Nothing runs twice, but the command gets no grace. Another instance gets control when the lease has \
            expired (on a local file at once).",
        shown: &[],
    },
    Limit {
        what: "The whole machine is frozen past the lease: after the thaw the command may run until the guardian is \
            scheduled",
        answer: "Use the fencing token. If the machine's clock stopped too, the command may run until the next \
            renewal, for up to a third of the lease.",
        shown: &[(
            "fencing",
            &["the_token_of_an_ended_tenure_is_refused_after_the_next_one_wrote"],
        )],
    },
    Limit {
        what: "A machine is cloned, or restored from a snapshot, while it has control",
        answer: "Stop trafficcop before you copy a machine. Both copies have the same token.",
        shown: &[
            ("run_blob", &["write_of_a_copied_machine_is_reported"]),
            (
                "blob_store",
                &["result_of_a_copy_of_this_machine_is_not_mistaken_for_ones_own"],
            ),
        ],
    },
    Limit {
        what: "The command hands work to another daemon (`at`, `docker run -d`, `systemctl start`)",
        answer: "Do not, or let that work carry the fencing token.",
        shown: &[],
    },
    Limit {
        what: "An operator breaks the lease at once, or deletes the blob or its container",
        answer: "Break without a period, which waits for the command's end. The tree is SIGKILLed with the next \
            renewal (71).",
        shown: &[
            ("faults", &["BreakNow", "Delete"]),
            (
                "run_blob",
                &[
                    "a_lease_broken_at_once_kills_at_once_and_says_that_an_overlap_cannot_be_excluded",
                    "a_lease_that_was_taken_unnoticed_is_found_lost_when_it_is_given_back",
                    "a_deleted_blob_kills_and_is_created_again_with_a_greater_token",
                    "a_deleted_container_kills_and_is_created_again_once_the_store_lets_us",
                ],
            ),
            (
                "shared_file",
                &["broken_holder_makes_no_version_after_the_operators"],
            ),
        ],
    },
    Limit {
        what: "The lock file on a local disk is replaced or deleted: a new instance locks the new one, and its token \
            starts at 1",
        answer: "Never delete it while an instance runs. trafficcop notices when it gives the lock back (71).",
        shown: &[
            ("faults", &["Replace", "Unlink", "ReplaceAndCome"]),
            (
                "run_file",
                &["lock_file_replaced_under_its_holder_is_reported_at_the_release"],
            ),
            ("file_store", &["renewal_notices_a_lost_lock"]),
        ],
    },
    Limit {
        what: "Shared drive: a foreign program, or an operator who removes `PATH.versions`, does not follow the \
            protocol",
        answer: "Remove both, and only when no instance runs. The holder notices with its next renewal and kills its \
            tree.",
        shown: &[(
            "shared_file",
            &[
                "the_removal_of_the_versions_ends_a_tenure_and_is_refused_until_the_path_is_removed",
                "the_other_protocol_at_one_path_is_refused_by_both",
            ],
        )],
    },
    Limit {
        what: "`work`: a message that was handled comes again, because its worker died before it could settle it",
        answer: "Let the handler record `TRAFFICCOP_MESSAGE_ID` in one transaction with its work, or use \
            `--at-most-once`.",
        shown: &[
            (
                "work",
                &["a_settlement_that_is_not_answered_is_asked_for_again_and_then_unconfirmed"],
            ),
            (
                "storage_queue",
                &["a_delete_in_doubt_whose_message_is_gone_after_the_lock_cannot_be_told"],
            ),
        ],
    },
    Limit {
        what: "A process is stuck in the kernel and survives SIGKILL",
        answer: "trafficcop lets the lease expire and exits 71. Use the fencing token.",
        shown: &[("lib", &["stuck_tree_is_never_released"])],
    },
    Limit {
        what: "A helper's `put` compares the tag and then writes, or its store forgets writes (a fail-over of Redis)",
        answer: "Use a store that compares and writes in one step. `trafficcop doctor --store` races writers; a \
            helper that ignores tags is refused.",
        shown: &[(
            "helper_store",
            &[
                "helper_that_ignores_tags_is_refused_before_the_command_starts",
                "doctor_races_writers_and_tells_what_a_helper_lacks",
            ],
        )],
    },
];

pub(crate) const FENCING: &[&str] = &[
    "`TRAFFICCOP_TOKEN` is a number that grows with every tenure. The resource that the command writes to remembers \
     the greatest token it has seen, and refuses every write with a smaller one. It compares and writes in one step \
     (one transaction, one conditional write). A check by the writer before it writes is no fence: the writer can be \
     stopped between the two.",
];
