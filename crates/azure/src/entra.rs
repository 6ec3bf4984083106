//! Tokens of Entra ID from the official `azure_identity`, with trafficcop's transport and time limits, without
//! retries (the crate would ask a metadata service for 72 seconds).

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use azure_core::cloud::{CloudConfiguration, CustomConfiguration};
use azure_core::credentials::{Secret, TokenCredential};
use azure_core::error::Error;
use azure_core::http::{ClientOptions, RetryOptions, Transport};
use azure_core::time::OffsetDateTime;
use azure_identity::{
    AzureCliCredential, AzureCliCredentialOptions, ClientAssertionCredentialOptions,
    ClientSecretCredential, ClientSecretCredentialOptions, ManagedIdentityCredential,
    ManagedIdentityCredentialOptions, UserAssignedId, WorkloadIdentityCredential,
    WorkloadIdentityCredentialOptions,
};
use url::Url;

use super::account::{AccountError, malformed, missing};
use super::address::parsed;
use super::credential::{
    Auth, CLIENT, CLIENT_SECRET, Env, IDENTITY_ENDPOINT, Purpose, TENANT, TOKEN_FILE,
};
use super::identity_http::{Cli, IdentityHttp, NoToken, NoTokenKind, is_near, one_line};
use super::token_cache::{Issued, Issuer, Unissued};
use super::transport::{Client, before};
use super::variables::{self, CHAIN};
use trafficcop_core::clock::Instant;
use trafficcop_core::machine::background_writer;

const AUTHORITY: &str = "AZURE_AUTHORITY_HOST";
const METADATA: &str = "AZURE_POD_IDENTITY_AUTHORITY_HOST";

// No request waits for this: the cache renews a token half-way through its life.
const LIMIT: Duration = Duration::from_secs(10);
// The Azure CLI starts Python first, perhaps from a cold disk.
const CLI_LIMIT: Duration = Duration::from_secs(30);
// For a token that has expired on arrival: this machine's clock is wrong, not the token.
const LEFT_AT_LEAST: Duration = Duration::from_secs(60);

#[derive(Clone)]
enum Source {
    Workload {
        tenant: String,
        client: String,
        file: String,
    },
    Secret {
        tenant: String,
        client: String,
        secret: Secret,
    },
    Managed {
        // Of a user-assigned identity; `None` is the machine's own.
        client: Option<String>,
    },
    Cli,
}

impl Source {
    /// Names for errors and for the log, and the advice for a refusal.
    fn words(&self) -> (&'static str, &'static str, &'static str) {
        match self {
            Source::Workload { .. } => (
                "workload identity",
                "Entra ID (workload identity)",
                "check AZURE_CLIENT_ID, AZURE_TENANT_ID, AZURE_FEDERATED_TOKEN_FILE and the \
                 identity's federated credential",
            ),
            Source::Secret { .. } => (
                "client secret",
                "Entra ID (client secret)",
                "check AZURE_CLIENT_ID, AZURE_TENANT_ID and AZURE_CLIENT_SECRET",
            ),
            Source::Managed { client } => (
                "managed identity",
                match client {
                    None => "Entra ID (managed identity)",
                    Some(_) => "Entra ID (user-assigned managed identity)",
                },
                "assign an identity to this machine; set AZURE_CLIENT_ID for a user-assigned one",
            ),
            Source::Cli => ("Azure CLI", "Entra ID (Azure CLI)", "run 'az login'"),
        }
    }
}

/// Sources of tokens; the first that succeeds stays.
#[derive(Clone)]
pub(super) struct Entra {
    sources: Vec<Source>,
    cloud: Arc<CloudConfiguration>,
    metadata: Option<Url>,
    client: Arc<Client>,
    picked: OnceLock<usize>,
    purpose: Purpose,
    reading: Arc<tokio::sync::Mutex<()>>,
}

impl Entra {
    /// Collects the sources that the environment and `auth` allow; does no I/O. Without an authority the
    /// `endpoint` tells the cloud.
    pub(super) fn new(
        auth: Auth,
        env: &Env<'_>,
        endpoint: &Url,
        client: Arc<Client>,
        purpose: Purpose,
    ) -> Result<Entra, AccountError> {
        let sources = sources(auth, env)?;
        if sources
            .iter()
            .any(|source| matches!(source, Source::Managed { .. }))
        {
            variables::refuse_hosts(env)?;
        }
        // `azure_identity` reads it later: a refusal now beats one in the middle of a tenure.
        nearby(env, IDENTITY_ENDPOINT)?;
        Ok(Entra {
            sources,
            cloud: cloud(env, endpoint)?,
            metadata: nearby(env, METADATA)?,
            client,
            picked: OnceLock::new(),
            purpose,
            reading: Arc::default(),
        })
    }

    async fn ask(&self, source: &Source) -> Result<Issued, NoToken> {
        let limit = match source {
            Source::Cli => CLI_LIMIT,
            _ => LIMIT,
        };
        let give_up_at = Instant::now() + limit;
        let asking = Arc::new(IdentityHttp::new(
            Arc::clone(&self.client),
            self.metadata.clone(),
        ));
        let options = ClientOptions {
            retry: RetryOptions::none(),
            transport: Some(Transport::new(Arc::clone(&asking) as _)),
            cloud: Some(Arc::clone(&self.cloud)),
            ..ClientOptions::default()
        };
        let credential = self.make(source, options, give_up_at).await?;
        let asked = async { credential?.get_token(&[self.purpose.scope], None).await };
        let mut error = match before(give_up_at, asked).await {
            Some(Ok(token)) => {
                let left = token.expires_on - OffsetDateTime::now_utc();
                let left = Duration::try_from(left).unwrap_or_default();
                return Ok(Issued {
                    secret: token.token,
                    left: if left.is_zero() { LEFT_AT_LEAST } else { left },
                });
            }
            Some(Err(error)) => asking.error().unwrap_or_else(|| of_the_crate(&error)),
            None => asking
                .error()
                .unwrap_or_else(|| doubt(&format!("no answer within {} s", limit.as_secs()))),
        };
        // The answer may repeat what was sent.
        if let Source::Secret { secret, .. } = source {
            error.why = error.why.replace(secret.secret(), "...");
        }
        Err(error)
    }

    /// Creates a new credential for each request: the crate's cache would keep token and federated file even
    /// after a refusal.
    async fn make(
        &self,
        source: &Source,
        options: ClientOptions,
        give_up_at: Instant,
    ) -> Result<azure_core::Result<Arc<dyn TokenCredential>>, NoToken> {
        let making = source.clone();
        if !matches!(source, Source::Workload { .. }) {
            return Ok(credential(making, options));
        }
        // The file may be on a mount that hangs, so the thread that renews the lease must not read it. The
        // mutex stops each request from adding another such thread.
        let made = async {
            let reading = Arc::clone(&self.reading).lock_owned().await;
            let made = background_writer::spawn_job("credential", move || {
                let _reading = reading;
                credential(making, options)
            });
            match made {
                Ok(made) => made.await.map_err(|_| doubt("no answer")),
                Err((why, _)) => Err(doubt(&format!(
                    "the token's file: no thread can be started: {why}"
                ))),
            }
        };
        before(give_up_at, made).await.unwrap_or_else(|| {
            Err(doubt(&format!(
                "{TOKEN_FILE}: its file cannot be read in time"
            )))
        })
    }
}

#[async_trait]
impl Issuer for Entra {
    fn kind(&self) -> &'static str {
        let picked = self.picked.get().map(|at| &self.sources[*at]);
        match (picked, &self.sources[..]) {
            (Some(source), _) | (None, [source]) => source.words().1,
            _ => "Entra ID (managed identity, else Azure CLI)",
        }
    }

    async fn issue(&self) -> Result<Issued, Unissued> {
        // The machine's identity must not give way to a person's login because the metadata service hung for a
        // moment.
        let range = match self.picked.get() {
            Some(at) => *at..*at + 1,
            None => 0..self.sources.len(),
        };
        let mut errors = Vec::new();
        for at in range {
            let source = &self.sources[at];
            match self.ask(source).await {
                Ok(issued) => {
                    if self.picked.set(at).is_ok() && self.sources.len() > 1 {
                        tracing::info!("credential: {}", source.words().1);
                    }
                    return Ok(issued);
                }
                Err(error) => errors.push((source, error)),
            }
        }
        let alone = self.sources.len() == 1;
        let refused = errors.iter().all(|(source, error)| match error.kind {
            NoTokenKind::Refused => true,
            // Outside Azure there is no managed identity: only the CLI decides.
            NoTokenKind::Absent => !alone && matches!(source, Source::Managed { .. }),
            NoTokenKind::Doubt => false,
        });
        let told = errors.iter().map(|(source, error)| {
            let (name, _, advice) = source.words();
            let (joint, advice) = if refused { (": ", advice) } else { ("", "") };
            format!("{name}: {}{joint}{advice}", error.why)
        });
        let told = told.collect::<Vec<_>>().join("; ");
        let more = if alone || !refused {
            String::new()
        } else {
            format!("; or {}", self.purpose.alternative)
        };
        Err(Unissued {
            why: format!("no token of Entra ID, {told}{more}"),
            refused,
        })
    }

    fn in_another_process(&self, client: Arc<Client>) -> Arc<dyn Issuer> {
        Arc::new(Entra {
            client,
            // fork() does not copy threads.
            reading: Arc::default(),
            ..self.clone()
        })
    }
}

fn doubt(why: &str) -> NoToken {
    NoToken {
        why: why.to_owned(),
        kind: NoTokenKind::Doubt,
    }
}

/// Converts an error that the transport does not know.
fn of_the_crate(error: &Error) -> NoToken {
    let text = error.to_string();
    let first = text
        .split("\nTo troubleshoot")
        .next()
        .unwrap_or_default()
        .split_once("authentication failed.")
        .map_or(&*text, |(_, rest)| rest);
    let why = one_line(first);
    // Phrases of the crate and of `az`. Anything else is doubt, which is retried for half a minute at the
    // start: a refusal ends the instance at once.
    let refused = [
        "failed to read",
        "not found",
        "wasn't found",
        "isn't supported",
        "az login",
    ]
    .iter()
    .any(|words| why.contains(words));
    let kind = match refused {
        true => NoTokenKind::Refused,
        false => NoTokenKind::Doubt,
    };
    NoToken { why, kind }
}

fn credential(
    source: Source,
    client_options: ClientOptions,
) -> azure_core::Result<Arc<dyn TokenCredential>> {
    Ok(match source {
        Source::Workload {
            tenant,
            client,
            file,
        } => WorkloadIdentityCredential::new(Some(WorkloadIdentityCredentialOptions {
            credential_options: ClientAssertionCredentialOptions { client_options },
            client_id: Some(client),
            tenant_id: Some(tenant),
            token_file_path: Some(file.into()),
        }))?,
        Source::Secret {
            tenant,
            client,
            secret,
        } => {
            let options = ClientSecretCredentialOptions { client_options };
            ClientSecretCredential::new(&tenant, client, secret, Some(options))?
        }
        Source::Managed { client } => {
            ManagedIdentityCredential::new(Some(ManagedIdentityCredentialOptions {
                user_assigned_id: client.map(UserAssignedId::ClientId),
                client_options,
            }))?
        }
        Source::Cli => AzureCliCredential::new(Some(AzureCliCredentialOptions {
            executor: Some(Arc::new(Cli)),
            ..AzureCliCredentialOptions::default()
        }))?,
    })
}

fn needed(env: &Env<'_>, name: &str, by: &str) -> Result<String, AccountError> {
    env(name).ok_or_else(|| missing(name, format!("{by} needs it: set it")))
}

fn tenant(env: &Env<'_>, by: &str) -> Result<String, AccountError> {
    let tenant = needed(env, TENANT, by)?;
    // It becomes part of a URL that receives a secret.
    let fits = tenant
        .bytes()
        .all(|byte| byte.is_ascii_alphanumeric() || byte == b'.' || byte == b'-');
    match fits {
        true => Ok(tenant),
        false => Err(malformed(
            TENANT,
            "is neither a tenant's id nor its domain: letters, digits, dots and hyphens",
        )),
    }
}

/// Returns the sources to try, in order; `auth` overrides AZURE_TOKEN_CREDENTIALS.
fn sources(auth: Auth, env: &Env<'_>) -> Result<Vec<Source>, AccountError> {
    let managed = || Source::Managed {
        client: env(CLIENT),
    };
    match auth {
        Auth::Workload => return Ok(vec![workload(env)?]),
        Auth::Managed => return Ok(vec![managed()]),
        Auth::Cli => return Ok(vec![Source::Cli]),
        Auth::Auto | Auth::Entra | Auth::Key | Auth::Sas => {}
    }
    let chain = env(CHAIN).map(|text| text.to_ascii_lowercase());
    let of_machine = match chain.as_deref() {
        Some("workloadidentitycredential") => return Ok(vec![workload(env)?]),
        Some("managedidentitycredential") => return Ok(vec![managed()]),
        Some("azureclicredential" | "dev") => return Ok(vec![Source::Cli]),
        // Settings for this workload come first. The CLI is last: it takes seconds, and is a person's login.
        None => vec![managed(), Source::Cli],
        Some("prod") => vec![managed()],
        Some("environmentcredential") => vec![],
        Some(_) => {
            let why = "names a credential that trafficcop does not have: choose with --auth workload, managed or cli";
            return Err(malformed(CHAIN, why));
        }
    };
    variables::refuse_principals(env)?;
    if env(TOKEN_FILE).is_some() && !of_machine.is_empty() {
        Ok(vec![workload(env)?])
    } else if env(CLIENT_SECRET).is_some() || of_machine.is_empty() {
        Ok(vec![with_secret(env)?])
    } else {
        Ok(of_machine)
    }
}

fn workload(env: &Env<'_>) -> Result<Source, AccountError> {
    let by = "workload identity (in AKS the pod's label azure.workload.identity/use sets it)";
    Ok(Source::Workload {
        file: needed(env, TOKEN_FILE, by)?,
        client: needed(env, CLIENT, by)?,
        tenant: tenant(env, by)?,
    })
}

fn with_secret(env: &Env<'_>) -> Result<Source, AccountError> {
    Ok(Source::Secret {
        client: needed(env, CLIENT, CLIENT_SECRET)?,
        tenant: tenant(env, CLIENT_SECRET)?,
        secret: needed(env, CLIENT_SECRET, "a client")?.into(),
    })
}

/// Parses an address that hands out tokens; refuses plain http to another machine.
fn nearby(env: &Env<'_>, variable: &str) -> Result<Option<Url>, AccountError> {
    let Some(text) = env(variable) else {
        return Ok(None);
    };
    let url = parsed(&text, variable)?;
    let near = url.scheme() == "https" || is_near(&url);
    match (near, url.host_str()) {
        (true, Some(_)) => Ok(Some(url)),
        (_, host) => Err(AccountError::PlainHttp {
            host: host.unwrap_or_default().to_owned(),
        }),
    }
}

/// Returns the authority of a variable, or of the endpoint's cloud, whose services refuse the tokens of
/// another.
fn cloud(env: &Env<'_>, endpoint: &Url) -> Result<Arc<CloudConfiguration>, AccountError> {
    let host = endpoint.host_str().unwrap_or_default();
    let cloud = match env(AUTHORITY) {
        Some(text) => {
            let text = match text.contains("://") {
                true => text,
                false => format!("https://{text}"),
            };
            let url = parsed(&text, AUTHORITY)?;
            if url.scheme() != "https" {
                return Err(malformed(AUTHORITY, "does not begin with https://"));
            }
            let mut custom = CustomConfiguration::default();
            custom.authority_host = url.to_string();
            CloudConfiguration::Custom(custom)
        }
        None if host.ends_with(".usgovcloudapi.net") => CloudConfiguration::AzureGovernment,
        None if host.ends_with(".chinacloudapi.cn") => CloudConfiguration::AzureChina,
        None => CloudConfiguration::AzurePublic,
    };
    Ok(Arc::new(cloud))
}

#[cfg(test)]
mod tests;
