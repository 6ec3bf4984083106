//! The configuration of `elect`.

use std::path::PathBuf;
use std::time::Duration;

use super::{Ask, Config, Host, Roles, UsageError, quoted};
use crate::args;
use crate::guardian::Contain;
use crate::notify::Ready;

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
        let telling = Telling {
            json: typed.json,
            control_file: typed.control_file,
        };
        let run = args::Run {
            common: typed.common,
            grace: Some(typed.grace.unwrap_or(Ok(DEFAULT_GRACE))),
            stopping: args::Stopping {
                contain: Contain::None,
                ..args::Stopping::default()
            },
            no_credentials: false,
            hold_policy: args::HoldPolicy {
                max_hold: typed.max_hold,
                cooldown: typed.cooldown,
                ..args::HoldPolicy::default()
            },
            once: args::Once::default(),
            health: args::Health {
                checks: typed.checks,
                ..args::Health::default()
            },
            roles: Roles::default(),
            scheduled_events: typed.scheduled_events,
            ready: Ready::Standby,
            listen: args::Listen::default(),
            command: Vec::new(),
        };
        // The control file is linked when the instance competes already.
        let link = telling.control_file.as_ref();
        let config = Config::checked(run, link, COMMAND.to_owned(), host)?;
        // The reader is no child.
        if let Some(Ask::Command(_)) = config.health.ask {
            refuse!("--health: elect asks a URL: take one like http://127.0.0.1:8080/healthz");
        }
        // Even on a local file: standbys look at it to name the holder.
        config.refuse_short_cooldown()?;
        Ok((config, telling))
    }
}
