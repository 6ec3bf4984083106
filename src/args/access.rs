//! What can be typed of how we prove who we are to an Azure service, with its help.

use std::path::PathBuf;

use clap::Args;

use super::common::path;
use crate::azure::Auth;

/// The flags.
#[derive(Clone, Debug, Default, Args)]
pub struct Access {
    /// Which credential to use, of those in the environment
    ///
    /// auto takes the one that is there: an account key or a SAS; else a token of Entra ID by workload
    /// identity (AZURE_FEDERATED_TOKEN_FILE), by a client secret (AZURE_CLIENT_SECRET), by the
    /// machine's managed identity, or of the Azure CLI, in that order. Two that contradict each other
    /// are refused, and this flag says which. Tokens are renewed in the background, never while the
    /// lock is waiting for it.
    #[arg(
        long,
        value_name = "KIND",
        env = "TRAFFICCOP_AUTH",
        value_enum,
        default_value_t,
        help_heading = "With --blob"
    )]
    pub auth: Auth,

    /// Trust the certificates in this file (PEM) too, besides the system's
    ///
    /// For https to the storage and to Entra ID, through a proxy that looks inside, say.
    #[arg(
        long,
        value_name = "PEM",
        env = "TRAFFICCOP_CA_FILE",
        value_parser = path(),
        help_heading = "With --blob"
    )]
    pub ca_file: Option<PathBuf>,
}
