//! The configuration of `elect`.

use std::path::PathBuf;
use std::time::Duration;

use super::azure::scheduled_events;
use super::health::of_a_reader;
use super::outputs::{Outputs, control_file};
use super::policy::HandOvers;
use super::run::Basis;
use super::{Config, Host, UsageError, quoted};
use crate::args;

// A reader is told, not killed: it is quick, or sets its own grace.
const DEFAULT_GRACE: Duration = Duration::from_secs(5);

const COMMAND: &str = "trafficcop elect";

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Telling {
    pub json: bool,
    pub control_file: Option<PathBuf>,
}

impl Config {
    /// Validates the settings. The command stays empty: the driver fills it in.
    pub(crate) fn of_elect(
        typed: args::Elect,
        host: &Host,
    ) -> Result<(Config, Telling), UsageError> {
        if !typed.command.is_empty() {
            return Err(UsageError::new(format!(
                "elect takes no command, it reports on stdout who is in control: pipe it into the reader, \
                 or run the command with 'trafficcop run ... -- {}'",
                quoted(&typed.command)
            )));
        }
        let common = &typed.common;
        let basis = Basis::new(common, typed.checks.is_by_https())?;
        let turns = args::HoldPolicy {
            max_hold: typed.max_hold,
            cooldown: typed.cooldown,
            ..args::HoldPolicy::default()
        };
        let grace = typed.grace.unwrap_or(Ok(DEFAULT_GRACE));
        let hand_overs = HandOvers {
            is_typed: typed.checks.health.is_some(),
            flags: "--max-hold or --health",
        };
        let rules = basis.rules(common, grace, Ok(libc::SIGTERM), &turns, &hand_overs, host)?;
        let beside = basis.beside(&rules);
        let outputs = Outputs::new(&common.operations, beside)?;
        if let Some(path) = &typed.control_file {
            // The link is made when the instance competes already.
            control_file(path, &outputs, beside)?;
        }
        let telling = Telling {
            json: typed.json,
            control_file: typed.control_file,
        };
        let mut config = basis.config(common, rules, outputs, COMMAND.to_owned(), host)?;
        config.health = of_a_reader(&typed.checks, &common.access)?;
        config.scheduled_events = scheduled_events(&typed.scheduled_events, host)?;
        // Even on a local file: standbys look at it to name the holder.
        config.refuse_short_cooldown()?;
        Ok((config, telling))
    }
}
