//! The guarantees: what happens in each fault, how long it takes, and which test shows it; and what
//! nothing on the machine can promise. The one source of the tables in `docs/guarantees.md` and of
//! `man/trafficcop-guarantees.7`, both written by `promises.rs`.
//!
//! Data and nothing else; what is between backticks is typed as it is. It must never claim what no
//! named test shows: `promises.rs` looks for each of them.

/// Tests of one room of `tests/it/` or binary of `tests/` (`lib`: of the crate itself; `faults`: the
/// suite's faults).
pub(crate) type Shown = (&'static str, &'static [&'static str]);

/// A fault and what comes of it.
pub(crate) struct Guarantee {
    pub(crate) fault: &'static str,
    pub(crate) happens: &'static str,
    pub(crate) how_long: &'static str,
    pub(crate) shown: &'static [Shown],
}

/// What cannot be closed locally, and its answer.
pub(crate) struct Limit {
    pub(crate) what: &'static str,
    pub(crate) answer: &'static str,
    pub(crate) shown: &'static [Shown],
}

/// A setting, or several of a kind, and what follows where two instances on one lock have different values.
pub(crate) struct Setting {
    pub(crate) flags: &'static str,
    pub(crate) may_differ: bool,
    pub(crate) follows: &'static str,
    pub(crate) shown: &'static [Shown],
}

/// What was counted when the suites were last run as a whole: rows of the promise in the fault
/// suite and the faults injected in them (the line "the promise" at its end) ...
pub(crate) const PROMISE_ROWS: usize = 530;
pub(crate) const INJECTED_FAULTS: usize = 582;
/// ... and schedules of the simulated fleet, from seed 1 on.
pub(crate) const SCHEDULES: u64 = 20_000;

/// The counted proof. The figures are those above.
pub(crate) fn proof() -> String {
    let mut schedules = SCHEDULES.to_string();
    schedules.insert(schedules.len() - 3, ',');
    format!(
        "Counted: no overlap in the fault suite's {PROMISE_ROWS} promise rows ({INJECTED_FAULTS} \
         injected faults) and in {schedules} schedules of the simulated fleet (seeds 1 to \
         {SCHEDULES}); rerun: `cargo test --test faults`, `cargo test --test fleet`."
    )
}

/// What the columns refer to.
pub(crate) const TIMES: &str = "`t0` is the moment just before the last good renewal was sent. \
    With the default lease of 60 s the command gets the stop signal at `t0`+48 s and SIGKILL at \
    `t0`+58 s, of 30 s at `t0`+24 s and `t0`+29 s, of 15 s at `t0`+11 s and `t0`+14 s; others can \
    have control from `t0` + lease on. A file on a local disk has no such deadline: its lock lasts \
    as long as the processes that hold it.";

/// How what shows them is run.
pub(crate) const TESTS: &str = "A test is run with `cargo test --test it -- NAME` \
    (`lib`: `cargo test --lib NAME`; `fleet` and `supervise` instead of `it` for theirs); a name under \
    `faults` is a fault, played on every lock that can meet it, against a plain, a TERM-ignoring, a \
    daemonising and a forking command, with `--contain` `none`, `cgroup` and `pidns`. A row that \
    cannot run on a machine is named, not skipped.";

/// The table.
pub(crate) const GUARANTEES: &[Guarantee] = &[
    Guarantee {
        fault: "trafficcop (the supervisor) is SIGKILLed or crashes",
        happens: "the guardian sends the stop signal, SIGKILLs after the grace what is left of the tree, then gives the lock back",
        how_long: "the grace (`--grace-on-loss`, on a local file `--grace`) at most, and never later than SIGKILL is due. With none (`--grace-on-loss 0`) a tree of three that ignores TERM was gone after 0.6 ms on a file, 1.1 ms on a blob (median, `cargo bench`)",
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
        fault: "trafficcop itself fails (a panic)",
        happens: "the same, by the guardian; trafficcop waits for it and exits 70, so that a service manager or a container that ends with its main process does not cut it short",
        how_long: "as above",
        shown: &[(
            "run_blob",
            &["a_supervisor_that_panics_leaves_a_drained_command_and_a_released_lease"],
        )],
    },
    Guarantee {
        fault: "the machine has no thread to spare (`RLIMIT_NPROC`, `pids.max`), or files may not grow (`ulimit -f`)",
        happens: "control is kept: whose name was looked up once is looked up without a new thread, and what cannot be written of the event log is lost, with one warning. Before anything started, what is missing (a process, a descriptor) is said, and the exit status is 69",
        how_long: "a command's process is asked for again for 0.3 s",
        shown: &[
            (
                "run_blob",
                &["a_machine_without_a_thread_to_spare_looks_up_the_store_s_name_all_the_same"],
            ),
            (
                "service_bus",
                &["a_machine_without_a_thread_to_spare_keeps_its_message"],
            ),
            (
                "run_file",
                &[
                    "a_limit_of_the_size_of_files_costs_the_event_log_and_not_the_command",
                    "too_few_descriptors_are_said_before_anything_starts",
                    "a_process_that_cannot_be_had_for_a_moment_is_asked_for_again",
                ],
            ),
        ],
    },
    Guarantee {
        fault: "the guardian is SIGKILLed",
        happens: "the kernel kills the command with it, the supervisor the rest of the tree; then it gives the lock back and exits 70, even with `--if-lost compete`",
        how_long: "at once",
        shown: &[
            ("faults", &["KillGuardian"]),
            (
                "run_file",
                &["the_death_of_the_guardian_hands_over_when_the_tree_is_gone_and_is_status_70"],
            ),
        ],
    },
    Guarantee {
        fault: "the guardian is stopped or hangs",
        happens: "the supervisor kills it and the tree, gives the lock back and exits 70, even with `--if-lost compete`",
        how_long: "1 s without an answer (10 s while it starts a command), 0.1 s once SIGKILL is due; it is asked every 4 s, and at once where it was stopped",
        shown: &[
            ("faults", &["StopGuardian"]),
            (
                "supervise",
                &["the_supervisor_finishes_for_a_stopped_guardian"],
            ),
        ],
    },
    Guarantee {
        fault: "a shared drive (NFS, SMB): the server hangs, restarts, or is in its grace period, for less than the room for retries; or an answer to the making of a version is lost",
        happens: "nothing. Making a version is answered in a grace period, and what cannot be opened then is written later; a version of our own whose answer was lost is known as ours and stepped over",
        how_long: "room for retries: 28 s of a lease of 60 s, 14 of 30, 6 of 15",
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
        fault: "a shared drive: the machine is cut off, or the drive hangs past the lease",
        happens: "the tree is dead before the lease ends; the others take over when the last version has stood still for a whole lease on their own clock. Nothing of the share is open in the command or the guardian, so nothing keeps them from ending; cut off, the instance competes again",
        how_long: "the lease and a poll after the last renewal; 60 s where the record of the last version was not written any more",
        shown: &[(
            "shared_file",
            &[
                "a_drive_that_hangs_past_the_lease_ends_the_tree_in_time_and_its_instance_competes_again",
                "an_answer_that_comes_after_the_lease_gives_nobody_control",
                "terminate_ends_an_instance_whose_drive_hangs",
                "a_maker_that_dies_before_its_record_is_followed_after_the_longest_lease",
                "a_holder_that_dies_with_its_machine_is_followed_within_a_lease_and_a_poll",
            ],
        )],
    },
    Guarantee {
        fault: "a shared drive: a cache shows an old state, a machine comes back after hours, records are torn or of a hostile hand",
        happens: "a stale view costs an answer \"it exists\" and a walk forward. Whoever comes with a view that is older than what is kept finds nothing before its own version, and withdraws. What cannot be read is held by somebody for 60 s. Where old versions were removed by hand, the last is enough to go on from",
        how_long: "a lease more, or 60 s",
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
        fault: "the supervisor is stopped, or starved",
        happens: "the guardian ends the tree by its own timer; once continued the supervisor looks at the clock first and competes again. On a local file nothing happens",
        how_long: "stop signal and SIGKILL at their times after `t0`",
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
        fault: "the supervisor is stopped, then SIGKILLed",
        happens: "as if it was SIGKILLed",
        how_long: "as if it was SIGKILLed",
        shown: &[("faults", &["StopThenKillSupervisor"])],
    },
    Guarantee {
        fault: "the guardian is stopped, the supervisor SIGKILLed, and the guardian continued. The kernel continues it, unless a child subreaper of the same session (a supervisor, some CI runners) adopts it: then it stays stopped until somebody continues it",
        happens: "the guardian looks at the clock, ends the tree and gives the lock back",
        how_long: "from when it is continued, as if the supervisor was SIGKILLed; at once where SIGKILL was due",
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
        fault: "the store hangs, resets connections, answers too late or with errors, for longer than the lease has room for",
        happens: "the command is asked to end, then killed; the instance competes again (`--if-lost exit`: exits 70)",
        how_long: "stop signal and SIGKILL at their times after `t0`",
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
        fault: "the same for a while; 401 or 403 in mid-tenure; an account that is read-only for a while",
        happens: "nothing: the renewal is tried again every 2 s (±20 %)",
        how_long: "up to 28 s of a lease of 60 s, 14 s of 30 s, 6 s of 15 s",
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
        fault: "with a token of Entra ID: the token endpoint hangs, fails, or refuses in mid-tenure; a token that ends soon",
        happens: "nothing while the present token is good: no renewal waits for another. After that as if the store did not answer",
        how_long: "half of the token's time at least, half an hour and more of those that Entra ID issues; then as for a store that is away",
        shown: &[(
            "entra",
            &[
                "an_endpoint_that_hangs_costs_nothing_while_the_token_is_good_and_is_doubt_after",
                "an_endpoint_that_answers_500_costs_nothing_while_the_token_is_good_and_is_doubt_after",
                "a_credential_that_is_revoked_in_mid_tenure_is_doubt",
                "a_credential_that_stays_away_lets_the_command_run_until_its_time_is_up",
                "tokens_that_end_soon_are_renewed_and_nobody_notices",
                "the_death_of_the_supervisor_hands_over_though_no_token_is_to_be_had_any_more",
            ],
        )],
    },
    Guarantee {
        fault: "of several standbys one is SIGKILLed, or stopped and continued later",
        happens: "nothing to the command, and nobody is kept from control: each of the others looks for itself",
        how_long: "a take-over as soon as with all of them: within 2.4 s (with the default `--poll`), 0.3 s while the holder drains",
        shown: &[
            (
                "run_blob",
                &[
                    "a_standby_that_stands_still_is_passed_over_and_harms_nobody_when_it_goes_on",
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
        fault: "the reply to an acquire, a renewal or a release is lost",
        happens: "nothing: asked again, under a lease id of our own by which the store knows us",
        how_long: "the next attempt",
        shown: &[("faults", &["LoseAcquire", "LoseRenew", "LoseRelease"])],
    },
    Guarantee {
        fault: "an acquire is answered slowly",
        happens: "after more than half the lease it is renewed before the command starts; one that came too late starts nothing",
        how_long: "one renewal",
        shown: &[(
            "lib",
            &[
                "a_slow_acquire_is_renewed_before_the_command_starts",
                "a_grant_that_came_too_late_never_starts_anything",
            ],
        )],
    },
    Guarantee {
        fault: "an operator breaks the lease at its end (no period), or with a period of half the lease or more",
        happens: "what remains is asked for and used to end the command; it is gone before the lease is. Asked again every second meanwhile: it can be broken once more, and less of it left",
        how_long: "noticed with the next renewal (a third of the lease at most)",
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
                    "who_is_broken_at_the_end_of_its_lease_is_asked_to_end_and_has_nothing_to_own_up_to",
                    "whose_lease_is_broken_with_a_period_has_no_more_than_that",
                ],
            ),
        ],
    },
    Guarantee {
        fault: "the wall clock jumps, or the machine sleeps",
        happens: "deadlines do not move: they are on a clock that no one sets and that counts sleep. It is looked at before anything else, and a jump has the lease verified at once",
        how_long: "what is overdue is done first",
        shown: &[(
            "lib",
            &[
                "after_a_long_pause_the_clock_comes_before_a_reply_that_waited",
                "a_jump_of_the_clock_has_the_lease_verified_at_once",
            ],
        )],
    },
    Guarantee {
        fault: "the machine's wall clock is wrong by hours, or is set while the command runs (a blob with an account key; a SAS is not dated by us)",
        happens: "nothing: requests are dated by the service's own clock, as its answers tell it; one that is refused for its date is sent once more, within the same attempt",
        how_long: "one more request",
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
        fault: "the command ignores the stop signal, daemonises, or forks while it is killed",
        happens: "SIGKILL to all of its tree, until nothing of it is left; not before that the lock is given back",
        how_long: "after `--grace` (of a requested stop) or `--grace-on-loss`",
        shown: &[
            (
                "run_file",
                &[
                    "a_tree_that_ignores_terminate_is_killed_before_the_hand_over",
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
        fault: "a stop by TERM, INT, HUP or QUIT",
        happens: "the command gets `--stop-signal` (TERM, whichever of the four came), a grace, SIGKILL; the lease is renewed meanwhile, then given back",
        how_long: "`--grace` at most, which may be longer than the lease; a second TERM or INT kills at once",
        shown: &[
            (
                "run_file",
                &[
                    "interrupt_hands_over",
                    "hangup_hands_over",
                    "quit_hands_over",
                    "a_second_terminate_kills_at_once",
                ],
            ),
            (
                "run_blob",
                &["a_drain_may_last_longer_than_the_lease_because_renewals_go_on"],
            ),
        ],
    },
    Guarantee {
        fault: "the runner of a task (`--once`) crashes: before the command, during it, after its success and before the record, after the record and before the release",
        happens: "until its success is recorded the next candidate runs the task (again, if it had ended); once it is recorded nobody does. Nobody is told that it is done before that",
        how_long: "as for the crash of any holder; a result that stands in the record is read at once, whoever still has the lease",
        shown: &[(
            "run_once",
            &[
                "before_the_command_another_runs_it",
                "during_the_command_another_runs_it",
                "after_a_success_that_was_not_recorded_another_runs_it_again",
                "after_the_record_and_before_the_release_nobody_runs_it_again_on_a_blob",
                "after_the_record_and_before_the_release_nobody_runs_it_again_on_a_file",
                "a_result_survives_every_later_record_and_a_crash_while_it_is_written",
            ],
        )],
    },
    Guarantee {
        fault: "`work`: the worker is SIGKILLed, or its machine dies, with messages in its hands",
        happens: "the guardian ends each command as for any holder; the message comes again, to any worker, as its next attempt",
        how_long: "the command as above; the message when its lock has run out (`--lock-time` at most)",
        shown: &[(
            "work",
            &[
                "a_killed_worker_s_message_comes_again_after_its_lock_and_its_command_is_dead_before",
                "what_a_killed_worker_left_is_swept_by_the_next_but_not_what_is_in_use",
            ],
        )],
    },
    Guarantee {
        fault: "`work`: a guardian is SIGKILLed",
        happens: "its command dies with it, its message is given back; the worker takes no more, lets the others finish, and exits 70",
        how_long: "at once; the others `--grace` at most",
        shown: &[(
            "work",
            &["a_killed_guardian_takes_its_command_with_it_and_the_message_is_given_back"],
        )],
    },
    Guarantee {
        fault: "`work`: the queue does not answer until a message's lock is about to end, or says that the message is another's",
        happens: "the command is killed and nothing is settled; the message comes again, or is where it was taken to",
        how_long: "before the end of the lock; at once where it is another's already",
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
        fault: "`work`: the answer to a renewal is lost, and with it the receipt by which the message could be settled",
        happens: "the command is asked to end, then killed; the message comes again. A renewal that is under way when the command ends is waited for, and the message settled",
        how_long: "before the end of the last lock that was confirmed",
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
        happens: "it is asked again; the answer to that tells whether it was done. Where nobody can say, the log says `unconfirmed`",
        how_long: "as long as the lock lasts, a minute at most",
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
        fault: "`work`: a message that can never be handled, that takes its worker down with it, or whose body cannot be read",
        happens: "it is dead-lettered (put aside for people) with its text as it was, and is not lost on the way: the copy first, then the delete. Where that is refused it is not run; after five in a row the worker exits 69",
        how_long: "after `--max-attempts`, counted by the queue; at once where it cannot be read",
        shown: &[
            (
                "work",
                &[
                    "it_comes_again_with_the_next_attempt_and_on_the_last_is_put_aside",
                    "a_message_that_was_taken_too_often_is_put_aside_and_not_run",
                    "a_body_that_cannot_be_handed_over_is_put_aside_and_says_why",
                    "a_message_that_cannot_be_put_aside_is_not_run_and_after_five_the_worker_leaves",
                ],
            ),
            (
                "storage_queue",
                &[
                    "what_is_put_aside_is_kept_word_for_word_and_for_ever",
                    "a_copy_in_doubt_is_put_again_rather_than_lost",
                ],
            ),
        ],
    },
    Guarantee {
        fault: "`work`: a stop, whenever it comes",
        happens: "no more is taken, what runs may finish under its renewed lock, what does not is given back: nothing stays locked",
        how_long: "`--grace` at most; a second TERM or INT ends it at once",
        shown: &[(
            "work",
            &[
                "what_runs_may_finish_while_its_lock_is_renewed",
                "after_the_grace_it_is_stopped_and_its_message_is_there_at_once",
                "the_second_signal_ends_everything_at_once_and_still_gives_back",
                "however_often_and_whenever_it_is_stopped_nothing_stays_locked",
            ],
        )],
    },
    Guarantee {
        fault: "`work`: all of this by chance: three workers and three hundred messages, networks that cut, hang, delay and lose answers, workers that are killed and stopped",
        happens: "no two runs of one message overlap, none is run more often than it may, and each is completed or dead-lettered",
        how_long: "–",
        shown: &[(
            "work",
            &["no_message_is_run_twice_at_a_time_and_none_is_lost"],
        )],
    },
    Guarantee {
        fault: "a worker on a queue of Service Bus is SIGKILLed, stands still past the lock, is cut off, or gets its answers late, twice, for another request or never; the service refuses, or its clock is wrong",
        happens: "the command is killed before the message's lock ends, and another worker has the message after that. A message is completed when the service has said so, and never twice at a time; where nobody knows, it is `unconfirmed` and may come again",
        how_long: "the lock of the queue at most, until another has the message; if this machine's clock is behind the service's by less than the longest lock, a short lock can pass for a longer one: see `--lock-time`",
        shown: &[(
            "service_bus",
            &[
                "no_message_is_run_twice_at_a_time_and_none_is_lost",
                "answers_that_come_late_twice_or_out_of_order_cost_no_lock",
                "an_answer_that_comes_after_its_time_never_stands_for_the_next_one",
                "a_message_that_arrived_while_the_worker_stood_still_is_not_run_on_an_old_lock",
                "a_worker_that_is_killed_leaves_its_message_to_the_next_after_its_command_is_dead",
                "a_settlement_whose_answer_is_lost_is_unconfirmed_and_never_failed",
                "however_often_and_whenever_it_is_stopped_nothing_stays_locked_and_nothing_counts",
            ],
        )],
    },
    Guarantee {
        fault: "a machine is not fit to take control (`--if`), or what is to say so hangs, forks daemons or floods its output",
        happens: "it does not compete and keeps nothing from those who are fit. A hanging condition is killed with its tree and counts as a no; what one leaves behind is killed before its answer counts. A holder is never asked and never stopped",
        how_long: "an answer is as old as `--poll` at most when an attempt begins; a condition has 5 s, or `--poll` where that is longer",
        shown: &[
            (
                "run_if",
                &[
                    "one_that_is_not_fit_takes_nothing_that_is_free_and_takes_it_once_it_is_fit",
                    "one_that_waits_and_turns_unfit_is_not_handed_the_lock",
                    "one_that_is_rung_while_it_is_asked_takes_nothing_before_the_answer",
                    "a_holder_that_turns_unfit_keeps_control_and_is_not_asked",
                    "one_that_hangs_is_killed_with_its_tree_and_counts_as_a_no",
                    "what_it_leaves_behind_is_killed_before_its_answer_counts",
                    "nothing_of_it_outlives_a_killed_supervisor",
                ],
            ),
            ("lib", &["the_promise_holds_whatever_happens"]),
        ],
    },
    Guarantee {
        fault: "the command is alive and does not work: stopped, in a dead-lock, without an answer; with `--watchdog` or `--health`",
        happens: "it is stopped like a command that is asked to end, the lease being renewed; then `--restart` decides as for a failure, or another instance has control. A pause of trafficcop or of the machine is not taken for the command's silence",
        how_long: "the watchdog's time (or the checks that may fail), `--grace` and a poll, until another has control",
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
                &[
                    "a_command_that_hangs_has_failed_whatever_it_exits_with_and_the_next_candidate_runs_it",
                ],
            ),
            ("faults", &["Hang"]),
            (
                "lib",
                &[
                    "no_needless_stop_in_a_thousand_hours_with_answers_late_up_to_the_timeout",
                    "a_command_that_stops_speaking_is_found_in_its_period_beside_all_of_that",
                ],
            ),
        ],
    },
    Guarantee {
        fault: "a check of `--health` hangs, forks daemons, floods its output; or trafficcop is SIGKILLed while it runs",
        happens: "it is killed with all it started when its time is over, when the command is to end, and when trafficcop dies; control is given back after nothing of it lives. One that cannot be killed (stuck in the kernel) costs control, and leaves the lock to run out",
        how_long: "`--health-timeout` at most",
        shown: &[
            (
                "health",
                &[
                    "nothing_of_a_check_that_hangs_outlives_its_time_or_control",
                    "a_check_that_runs_when_the_command_is_to_end_is_gone_before_control_is",
                    "what_a_check_leaves_behind_is_killed_and_it_has_succeeded",
                    "what_a_check_prints_is_thrown_away_however_much_it_is",
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
        fault: "a worker with a session of Service Bus (`--sessions`) loses its connection or its link, has the session's lock taken away, is SIGKILLed, or gets its answers late, wrong or never",
        happens: "the command is killed at once (after 1 s at most where its worker was SIGKILLed), nothing is settled, and the next worker begins with the same message, after `--lock-delay`. No two commands of a session at a time, and none before the one before it was done with; a message whose settlement is not confirmed is never followed by the next one",
        how_long: "`--lock-delay` (2 s) until another worker's command; a worker that hears nothing of it (stopped, or cut off without a word) kills its command before the end of the lock's time, so that is the `--lock-delay` to say where this must not overlap either",
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
                "one_that_fails_is_tried_again_before_the_next_and_put_aside_on_its_last_attempt",
                "it_is_stored_before_the_message_is_completed_and_only_then_and_only_if_it_changed",
            ],
        )],
    },
    Guarantee {
        fault: "a proxy gives a holder the answer to an earlier request (a blob, a storage queue)",
        happens: "it counts as no answer, by the id of the request or, where a front end removes that, by its date; a renewal is asked for again at once",
        how_long: "one more request",
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
        fault: "another program replaces the metadata of a lock's blob between two tenures",
        happens: "the fencing token goes on from the seconds since 1970; the results of `--once` are lost, and a warning says so",
        how_long: "at once",
        shown: &[(
            "run_blob",
            &["replaced_metadata_never_take_the_token_back_and_are_reported"],
        )],
    },
    Guarantee {
        fault: "a stop, a hand-over, a command that hangs, a doubt, or the death of the supervisor, while the command has a piece of work in hand",
        happens: "`check` says no before the first signal is sent. A piece that it allowed, that the signal does not end, and that fits into the smaller of `--grace` and `check --remaining`, is not cut short, but for the loss of the lease, a second stop signal, or the guardian's death. Where the supervisor dies under a lease, `--grace-on-loss` counts instead of `--grace`",
        how_long: "`--grace`; where the supervisor dies under a lease, `--grace-on-loss`",
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
];

/// What the table of settings is about.
pub(crate) const DIFFERENT: &str = "An instance relies on nothing but what every instance does. So a setting can be \
    changed on one machine after another (a rolling change) where the table says yes. All instances must name the \
    same lock; on a shared drive they must be the same user, too.";

/// What may differ between instances.
pub(crate) const SETTINGS: &[Setting] = &[
    Setting {
        flags: "`--lease`",
        may_differ: true,
        follows: "Azure counts the time that it granted. On a shared drive a standby waits for the lease that the holder's record names, and for 60 s where it cannot read that record",
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
                &["a_held_version_is_waited_for_by_its_own_lease_and_every_new_one_anew"],
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
        follows: "It decides when an instance looks at the lock, and not what it may take. A standby that looks less often than the holder's `--cooldown` lasts can miss its turn",
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
        follows: "The lock file says which protocol it has, so no two commands overlap. An instance without the flag follows a shared lock; one with it refuses a file that bears the kernel's lock (69)",
        shown: &[(
            "shared_file",
            &[
                "instance_without_shared_stands_by_while_one_with_it_is_in_control",
                "the_other_protocol_at_one_path_is_refused_by_both",
                "of_two_protocols_at_one_path_each_refuses_the_other",
            ],
        )],
    },
    Setting {
        flags: "`--once-attempts`, `--once-on-failure`",
        may_differ: true,
        follows: "Failures are counted with the lock. The first instance that has reached its own limit records the end, and all instances exit with that status",
        shown: &[(
            "run_once",
            &[
                "smallest_number_of_attempts_that_is_reached_ends_the_task_for_all_instances",
                "with_stop_the_first_failure_is_everybody_s_a_signal_as_128_and_its_number",
            ],
        )],
    },
    Setting {
        flags: "`--once-key`, `--once-per`",
        may_differ: false,
        follows: "Another key is another task. With another `--once-per` each instance judges the last success by its own periods, so the command may run more often; two runs never overlap",
        shown: &[
            (
                "run_once",
                &["each_key_is_a_task_of_its_own_whatever_is_in_it"],
            ),
            ("lib", &["another_division_of_time_reads_the_same_results"]),
        ],
    },
    Setting {
        flags: "`--slots`",
        may_differ: false,
        follows: "Each slot is a lock of its own. As many commands run as the greatest N allows, and one more where an instance has no `--slots`",
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
        follows: "A command lives for 1 s at most after its session is lost, whatever its own worker's delay is, and no worker waits for less than 2 s. A longer delay only adds safety",
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

/// What nothing on the machine can promise.
pub(crate) const LIMITS: &[Limit] = &[
    Limit {
        what: "supervisor *and* guardian are stopped past the lease (or one is dead and the other stays stopped)",
        answer: "not with `--contain pidns`: its init kills by its own timer. On a local file they keep the lock. Else the fencing token; exit status 71 says so afterwards",
        shown: &[
            ("faults", &["StopBoth"]),
            (
                "contain",
                &["a_namespace_dies_at_its_deadline_although_the_guardian_is_stopped"],
            ),
            (
                "fencing",
                &["a_writer_whose_watchers_stand_still_is_refused_once_the_next_holder_wrote"],
            ),
        ],
    },
    Limit {
        what: "supervisor *and* guardian are SIGKILLed at once: the command dies with them, what it forked or daemonised lives on",
        answer: "not with `--contain pidns`: the kernel kills all of it. With `cgroup` the next instance on that machine ends the leftovers before its command starts, be it a new one or one that stands by there; a systemd unit (`KillMode=mixed`) does so at once. Else the fencing token",
        shown: &[
            ("faults", &["KillBoth"]),
            ("supervise", &["both_killed_at_once"]),
            (
                "contain",
                &["what_dead_instances_left_is_swept_away_and_the_living_are_spared"],
            ),
            (
                "run_file",
                &["a_standby_ends_what_a_dead_holder_left_before_its_own_command_starts"],
            ),
        ],
    },
    Limit {
        what: "the command becomes another user's (`sudo`, a setuid-root program) under a trafficcop without privilege and without a cgroup: it may not be signalled, and the kernel clears the death signal (PDEATHSIG) of a program whose credentials change, so it outlives its guardian",
        answer: "a cgroup (`--contain cgroup`, with `Delegate=yes` in the unit) or `--contain pidns`, in which it can be killed; or run trafficcop itself by `sudo`. What cannot be killed is said (71) and never given up by us: the guardian, or where that was killed the supervisor, stays until the last of it has ended, and keeps a local file's lock. A lease runs out meanwhile: the fencing token",
        shown: &[(
            "supervise",
            &[
                "a_tree_that_may_not_be_signalled_keeps_its_guardian_and_the_lock",
                "a_tree_that_may_not_be_signalled_keeps_the_supervisor_of_a_dead_guardian",
            ],
        )],
    },
    Limit {
        what: "as a service of systemd with `KillMode=mixed`, as in the examples: trafficcop alone is SIGKILLed (by hand, or for want of memory). systemd then SIGKILLs all that is left of the unit, guardian and command, at once",
        answer: "nothing runs twice, but the command has no grace, and nobody gives the lease back: another has control when it has run out (on a local file at once). Whoever wants the guardian's grace starts trafficcop outside of such a unit",
        shown: &[],
    },
    Limit {
        what: "the whole machine is frozen past the lease: after the thaw the command may run until the guardian is scheduled; where the machine's own clock stood still meanwhile (a VM paused by its host, restored from memory), until the next renewal is answered: at most a third of the lease after the thaw, which is 20 s of the default 60 s (seen: 12.2 s with 60 s, 3 to 4 s with 15 s)",
        answer: "the fencing token",
        shown: &[(
            "fencing",
            &["the_token_of_an_ended_tenure_is_refused_after_the_next_one_wrote"],
        )],
    },
    Limit {
        what: "a machine is cloned, or restored from a snapshot, while it has control: both copies renew one lease under one fencing token, for as long as they run",
        answer: "stop trafficcop before a machine is copied, and never start a copy of one that has control beside it. On a blob a warning tells of the copy with the next renewal after it wrote there (when it drains, or records a result of `--once`), and a result that it recorded is not taken for one's own (70). Until it writes nothing can tell the two apart, the fencing token neither",
        shown: &[
            (
                "run_blob",
                &["a_copy_of_this_machine_is_told_of_as_soon_as_it_writes_under_our_lease"],
            ),
            (
                "blob_store",
                &["a_result_that_a_copy_of_us_has_recorded_is_not_taken_for_ours"],
            ),
        ],
    },
    Limit {
        what: "the command hands work to another daemon (`at`, `docker run -d`, `systemctl start`)",
        answer: "do not, or make that work carry the fencing token",
        shown: &[],
    },
    Limit {
        what: "an operator breaks the lease at once (or with a period shorter than renewals are apart), or deletes the blob or its container: another can have control before we can know",
        answer: "the tree is SIGKILLed when it is noticed, with the next renewal (a third of the lease at most), and exit status or log own up to it (71); so they do if it is found out when the lease is given back. Not to be found out: a break during an outage that outlasts the lease, or where an answer to the release was lost. Break without a period instead: that waits for its end. After a deletion those who knew the blob go on counting its token; for others it starts at 1, unless `--no-create` keeps them from making it anew. On a shared drive a break is noticed likewise, or, where an old view or a server's grace period hides it, when the lease ends that was broken: nobody goes on beyond that",
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
                &[
                    "who_was_broken_makes_nothing_after_an_operator_s_version_whatever_its_client_shows_it",
                ],
            ),
        ],
    },
    Limit {
        what: "the lock file on a local disk is replaced or unlinked: a newcomer locks the new one, and its token starts at 1",
        answer: "never delete it while anybody runs. Those who compete already do not overlap. It is noticed when the lock is given back, and owned up to (71). On a shared drive it costs nothing: the truth is in `PATH.versions`",
        shown: &[
            ("faults", &["Replace", "Unlink", "ReplaceAndCome"]),
            (
                "run_file",
                &["a_lock_file_replaced_under_its_holder_is_owned_up_to_when_it_is_given_back"],
            ),
            (
                "file_store",
                &["it_can_be_told_that_the_lock_is_not_ours_any_more"],
            ),
        ],
    },
    Limit {
        what: "a shared drive: nothing but the protocol keeps others out. A stranger's program, an operator who removes `PATH.versions` while somebody runs, or a trafficcop of before the versions (it locks the file by the kernel) are not bound by it",
        answer: "the holder notices with its next renewal and kills its tree; an older trafficcop refuses the file, and this one refuses a file that bears the kernel's lock. Remove both, and only when nobody runs. Azure Files (SMB and NFS) was not tried on the real service",
        shown: &[(
            "shared_file",
            &[
                "the_removal_of_the_versions_ends_a_tenure_and_is_refused_until_the_path_is_removed",
                "the_other_protocol_at_one_path_is_refused_by_both",
            ],
        )],
    },
    Limit {
        what: "`work`: a message comes again that was handled: its worker died before it could say so, or an answer of the queue was lost",
        answer: "what must not happen twice remembers the message's id (`TRAFFICCOP_MESSAGE_ID`), in one transaction with what it does. Never two at a time, but at least once",
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
        what: "a process is stuck in the kernel and survives SIGKILL",
        answer: "the lease is not given back but left to run out, and exit status 71 says so; the fencing token",
        shown: &[("lib", &["a_stuck_tree_is_never_released"])],
    },
];

/// The recipe of the fencing token, a paragraph each.
pub(crate) const FENCING: &[&str] = &[
    "A number that grows with every tenure, in the command's environment as `TRAFFICCOP_TOKEN`. \
     The resource remembers the greatest token it has seen and refuses every write with a smaller \
     one, and it compares and writes in one step (one transaction, one conditional write). A check \
     by the writer before it writes is no fence: it can be stopped between the two.",
];
