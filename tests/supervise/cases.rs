//! The cases. Each name is the fact that it checks.

mod both;
mod command;
mod end;
mod guardian;
mod supervisor;

use std::fs;
use std::time::Duration;

use trafficcop::Instant;
use trafficcop_guardian::Contain;

use super::proc::{self, LONG};
use super::scene::{Deadlines, Props, Scene, Who, await_stopped, sleep_until, word};
use both::*;
use command::*;
use end::*;
use guardian::*;
use supervisor::*;

pub(crate) type Case = fn(Who);

macro_rules! cases {
    ($($name:ident),* $(,)?) => {
        pub(crate) const ALL: &[(&str, Case)] = &[$((stringify!($name), $name)),*];
    };
}

cases![
    an_exit_status_is_told_as_it_was,
    a_deadly_signal_is_told_as_it_was,
    what_cannot_be_run_is_told_by_its_error_number,
    a_script_without_a_first_line_is_run_by_sh,
    the_command_finds_everything_as_we_got_it,
    an_ignored_hangup_stays_ignored,
    a_second_command_is_served_after_the_first,
    an_order_that_comes_too_late_is_not_started,
    the_whole_family_dies_at_the_deadline,
    a_polite_command_ends_within_its_grace,
    the_whole_family_dies_with_the_supervisor,
    the_guardian_survives_the_death_of_the_supervisors_group,
    a_grace_that_was_granted_is_cut_where_the_lock_dies_with_the_supervisor,
    what_a_dead_supervisor_ordered_is_not_begun_where_its_lock_died_with_it,
    a_second_guardian_does_not_hide_the_supervisors_death,
    a_lease_of_two_guardians_is_given_back_after_both_are_gone,
    a_will_is_carried_out_between_two_commands,
    a_dismissed_guardian_carries_out_no_will,
    the_supervisor_finishes_for_a_killed_guardian,
    the_supervisor_finishes_for_a_stopped_guardian,
    who_insists_does_not_wait_for_a_start,
    a_second_guardian_survives_the_rescue,
    the_command_dies_with_its_guardian,
    a_stopped_supervisor_cannot_keep_the_family_alive,
    a_stopped_supervisor_does_not_blame_the_guardian,
    a_renewal_that_waited_past_the_deadline_is_an_expiry,
    a_shorter_deadline_holds,
    a_renewal_while_draining_moves_the_kill,
    a_polite_daemon_that_was_left_behind_is_drained,
    a_deaf_family_that_was_left_behind_is_killed,
    the_lock_lives_as_long_as_the_tree,
    a_tree_that_may_not_be_signalled_keeps_its_guardian_and_the_lock,
    a_tree_that_may_not_be_signalled_keeps_the_supervisor_of_a_dead_guardian,
    without_what_is_to_be_kept_open_nothing_is_started,
    a_stopped_command_is_told_of_and_resumed,
    both_killed_at_once,
    a_stopped_guardian_and_a_killed_supervisor,
    a_guardian_that_stays_stopped_and_a_killed_supervisor,
    both_stopped,
    an_idle_guardian_is_left_in_peace,
    the_guardian_does_not_bear_our_name,
];

const FAR: u64 = 600_000;
