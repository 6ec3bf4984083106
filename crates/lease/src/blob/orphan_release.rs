//! Gives the lease back after the supervisor's death, from the guardian.
//!
//! It must never send anything except to the account that it was prepared with before the fork.

use std::sync::OnceLock;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use url::Url;

use super::client::BlobApi;
use super::{Blob, Spent};
use trafficcop_azure::{Account, ServiceClock};
use trafficcop_core::clock::Instant;
use trafficcop_core::machine::runtime::runtime;

// A lease of 15 s has little more left, and others wait for the guardian.
const LIMIT: Duration = Duration::from_secs(10);

// Inherited at the fork: the secrets go through no socket, environment or file.
static PREPARED: OnceLock<Account> = OnceLock::new();

/// Lease to release, without a secret.
#[derive(Serialize, Deserialize)]
pub(super) struct ReleaseInfo {
    pub(super) blob: String,
    pub(super) lease: String,
    /// Service's clock as the supervisor knew it, to date the request.
    #[serde(default)]
    pub(super) clock: Option<i64>,
}

/// Keeps the account for [`release_orphaned`]. Call it before the fork; only the first call counts.
pub fn prepare_orphan_release(account: Account) {
    let _ = PREPARED.set(account);
}

/// Releases a lease within ten seconds; otherwise it runs out.
pub(crate) fn release_orphaned(release_info: &[u8]) {
    if let Some(account) = PREPARED.get()
        && let Ok(runtime) = runtime()
    {
        runtime.block_on(release_orphaned_with(account, release_info));
    }
}

/// Does the work of [`release_orphaned`], with the caller's runtime and account.
pub async fn release_orphaned_with(account: &Account, release_info: &[u8]) {
    let Ok(release_info) = serde_json::from_slice::<ReleaseInfo>(release_info) else {
        return;
    };
    let Some(blob) = Url::parse(&release_info.blob)
        .ok()
        .filter(|blob| is_within(account.endpoint(), blob))
    else {
        return;
    };
    // Two processes must not use the supervisor's connections.
    let account = account.in_another_process(ServiceClock::of_another(release_info.clock));
    let give_up_at = Instant::now() + LIMIT;
    let url = account.authorised(&blob);
    if let Ok(client) = BlobApi::new(url.clone(), url, &account.client_options()) {
        // Another instance may have it by now.
        let spent = Spent::new(release_info.lease, false);
        let _ = Blob::release_until(&client, &spent, give_up_at).await;
    }
}

fn is_within(endpoint: &Url, blob: &Url) -> bool {
    // /acct is not the beginning of /acct2.
    let base = endpoint.path().trim_end_matches('/');
    endpoint.origin() == blob.origin()
        && blob.username().is_empty()
        && blob.query().is_none()
        && blob
            .path()
            .strip_prefix(base)
            .is_some_and(|rest| rest.starts_with('/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orphan_release_goes_only_to_its_own_account() {
        let url = |text| Url::parse(text).expect("a URL");
        let endpoint = url("http://127.0.0.1:10000/acct");
        assert!(is_within(
            &endpoint,
            &url("http://127.0.0.1:10000/acct/c/b")
        ));
        for other in [
            "http://127.0.0.1:10001/acct/c/b",
            "http://127.0.0.1:10000/acct2/c/b",
            "http://127.0.0.1:10000/acct/c/b?sig=x",
            "https://127.0.0.1:10000/acct/c/b",
        ] {
            assert!(!is_within(&endpoint, &url(other)), "{other}");
        }
    }
}
