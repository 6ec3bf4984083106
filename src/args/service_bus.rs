//! What can be typed of a queue on Azure Service Bus, with its help. It must never decide anything.

use clap::Args;
use clap::builder::BoolishValueParser;

/// The flags.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "The queue")]
pub struct ServiceBus {
    /// The queue: an Azure Service Bus queue or a subscription to a topic
    ///
    /// QUEUE or TOPIC/Subscriptions/NAME, in the namespace of AZURE_SERVICEBUS_CONNECTION_STRING; or with
    /// NAMESPACE/ before it, or as sb://HOST/QUEUE, with Entra ID. A NAMESPACE without a dot is one of
    /// Azure's public cloud. Instead of --queue.
    #[arg(long, value_name = "NAME|URL", env = "TRAFFICCOP_SERVICE_BUS")]
    pub service_bus: Option<String>,

    /// Work on what has been put aside: on the dead-letter queue of --service-bus
    ///
    /// Nothing can be put aside from there: what fails stays, and comes again after --retry-delay.
    #[arg(long, env = "TRAFFICCOP_DEAD_LETTER_QUEUE", value_parser = BoolishValueParser::new())]
    pub dead_letter_queue: bool,

    /// The environment variable with the connection string [default:
    /// AZURE_SERVICEBUS_CONNECTION_STRING]
    ///
    /// The string itself is never an argument: everybody on the machine could read it.
    #[arg(long, value_name = "NAME", env = "TRAFFICCOP_CONNECTION_STRING_ENV")]
    pub connection_string_env: Option<String>,

    /// Settle on the link that brought the message, not by its lock token
    #[arg(long, hide = true, env = "TRAFFICCOP_LINK_SETTLE", value_parser = BoolishValueParser::new())]
    pub link_settle: bool,
}

/// The environment variables of a queue on Service Bus.
pub const FOR_SERVICE_BUS: &[(&str, &str)] = &[(
    "AZURE_SERVICEBUS_CONNECTION_STRING",
    "for --service-bus: a connection string as the portal shows it, with the right to listen; UseDevelopmentEmulator=true means Microsoft's emulator. It is reached directly, by no proxy",
)];
