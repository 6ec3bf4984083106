//! Gives the lease back after the supervisor's death, from the guardian.
//!
//! `prepare_orphan_release` is called before the guardian is forked, `release_orphaned` in the guardian when
//! the supervisor is dead and the tree is empty. Must never send anything anywhere but to the
//! account it was prepared with.

use std::sync::OnceLock;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use url::Url;

use super::client::BlobApi;
use super::{Blob, Spent};
use trafficcop_azure::{Account, ServiceClock};
use trafficcop_core::clock::Instant;
use trafficcop_core::machine::runtime::runtime;

// How long the guardian tries: a lease of 15 s has little more left by then, and whoever waits for the guardian
// waits for this as well.
const LIMIT: Duration = Duration::from_secs(10);

// Memory that the guardian has from its fork: the account holds secrets, which go through no socket, no
// environment and no file.
static PREPARED: OnceLock<Account> = OnceLock::new();

/// What the guardian needs to know, besides the account: no secret.
#[derive(Serialize, Deserialize)]
pub(super) struct ReleaseInfo {
    /// The blob's address without a query.
    pub(super) blob: String,
    /// The lease.
    pub(super) lease: String,
    /// What the supervisor knew of the service's clock: the request is dated by it.
    #[serde(default)]
    pub(super) clock: Option<i64>,
}

/// Keeps the account for [`release_orphaned`]; the first call counts. Call it before the fork.
pub fn prepare_orphan_release(account: Account) {
    let _ = PREPARED.set(account);
}

/// Releases the lease that is named there. Takes ten seconds at most; whatever goes wrong, the lease
/// runs out by itself.
pub(crate) fn release_orphaned(release_info: &[u8]) {
    if let Some(account) = PREPARED.get()
        && let Ok(runtime) = runtime()
    {
        runtime.block_on(release_orphaned_with(account, release_info));
    }
}

/// What [`release_orphaned`] does, for whoever has a runtime and the account.
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
    // A client of our own: the supervisor's connections must not be used by two processes.
    let account = account.in_another_process(ServiceClock::of_another(release_info.clock));
    let give_up_at = Instant::now() + LIMIT;
    let url = account.authorised(&blob);
    if let Ok(client) = BlobApi::new(url.clone(), url, &account.client_options()) {
        // Not as a lease that we had for certain: that it is another's by now is no news to anybody here.
        let spent = Spent::new(release_info.lease, false);
        let _ = Blob::release_until(&client, &spent, give_up_at).await;
    }
}

/// `blob` is an address under `endpoint`.
fn is_within(endpoint: &Url, blob: &Url) -> bool {
    // With the slash: /acct is not the beginning of /acct2. Signed requests go to our own account only.
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
