//! The configuration of `elect`.

use std::path::PathBuf;
use std::time::Duration;

use super::azure::scheduled_events;
use super::health::of_a_reader;
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
            refuse!(
                "elect takes no command, it reports on stdout who is in control: pipe it into the reader, \
                 or run the command with 'trafficcop run ... -- {}'",
                quoted(&typed.command)
            );
        }
        let common = &typed.common;
        let basis = Basis::new(common)?;
        let turns = args::HoldPolicy {
            max_hold: typed.max_hold,
            cooldown: typed.cooldown,
            ..args::HoldPolicy::default()
        };
        let grace = typed.grace.unwrap_or(Ok(DEFAULT_GRACE));
        let rules = basis.rules(common, grace, Ok(libc::SIGTERM), &turns, host)?;
        let link = typed.control_file.as_ref();
        let mut config = basis.config(common, None, link, rules, COMMAND.to_owned(), host)?;
        config.health = of_a_reader(&typed.checks, &common.access)?;
        config.scheduled_events = scheduled_events(&typed.scheduled_events, host)?;
        // Even on a local file: standbys look at it to name the holder.
        config.refuse_short_cooldown()?;
        let telling = Telling {
            json: typed.json,
            control_file: typed.control_file,
        };
        Ok((config, telling))
    }
}
