//! What can be typed of what the platform announces for this machine: flags of everything that
//! competes, with their help.

use clap::Args;
use clap::builder::BoolishValueParser;

/// The flags.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "On Azure's virtual machines")]
pub struct ScheduledEvents {
    /// Hand control over before this virtual machine is frozen, rebooted, redeployed or taken away
    ///
    /// Asks Azure's metadata service every 5 seconds for its Scheduled Events. On a notice for this
    /// machine the command gets --grace to end (less, if the notice is shorter), the lock is given back,
    /// and not competed for until the event is gone. With -n or -w that is a reason not to obtain control
    /// (exit 75). Where there is no metadata service that is said once, and nothing else changes.
    #[arg(long, env = "TRAFFICCOP_SCHEDULED_EVENTS", value_parser = BoolishValueParser::new())]
    pub scheduled_events: bool,

    /// Approve such an event as soon as the command has ended and the lock was given back
    ///
    /// Azure then begins at once, for all the machines the event names, instead of waiting for its time:
    /// only where nothing else on them needs that time.
    #[arg(long, env = "TRAFFICCOP_ACK_EVENTS", value_parser = BoolishValueParser::new())]
    pub ack_events: bool,

    /// What this machine is called in the events [default: what the metadata service says, else HOST]
    #[arg(long, value_name = "NAME", env = "TRAFFICCOP_VM_NAME")]
    pub vm_name: Option<String>,

    /// Where the metadata service is; for tests.
    #[arg(
        long,
        value_name = "URL",
        env = "TRAFFICCOP_SCHEDULED_EVENTS_ENDPOINT",
        hide = true
    )]
    pub scheduled_events_endpoint: Option<String>,
}
