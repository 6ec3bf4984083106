//! Exchanges with the blob service, one method each.
//!
//! They must never retry, nor accept an answer that lacks what the service always sends.

use std::collections::HashMap;
use std::time::Duration;

use azure_core::http::headers::Headers;
use azure_core::http::{ClientOptions, Etag, RequestContent, Url};
use azure_storage_blob::models::{
    BlobClientAcquireLeaseOptions, BlobClientBreakLeaseOptions, BlobClientGetPropertiesOptions,
    BlobClientSetMetadataOptions, BlobContainerClientListBlobsOptions,
    BlockBlobClientUploadOptions, ListBlobsIncludeItem, PageBlobClientCreateOptions,
};
use azure_storage_blob::{
    BlobClient, BlobClientOptions, BlobContainerClient, BlobContainerClientOptions,
};
use futures::TryStreamExt as _;

use super::metadata::{self, Metadata};
use trafficcop_azure::{API_VERSION, ServiceError, header, limited, of_the_service};
use trafficcop_core::clock::Instant;

// Each blob of a page can have 8 KiB of metadata. The default of 5000 could be 40 MB, too much for one request.
const PAGE: i32 = 200;

/// State of a blob's lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseState {
    /// Available, expired or broken.
    Free,
    /// Leased.
    Leased,
    /// Leased by another program, without an end.
    Endless,
    /// Broken, and still keeping others out.
    Breaking,
}

/// Properties of the blob.
#[derive(Clone, Debug)]
pub struct View {
    pub lease: LeaseState,
    pub etag: Option<String>,
    pub(super) metadata: Metadata,
    /// Seconds of the Unix epoch.
    pub date: Option<u64>,
    /// Whether it was written after its creation, or has content.
    pub(super) is_used: bool,
    pub content: u64,
    /// Whether it is a page blob, whose content can be all zeros from its creation.
    pub(super) is_page_blob: bool,
}

/// Official clients for one blob.
pub struct BlobApi {
    pub(super) blob: BlobClient,
    pub(super) container: BlobContainerClient,
}

impl BlobApi {
    /// Makes the clients; sends nothing.
    pub fn new(
        blob: Url,
        container: Url,
        options: &ClientOptions,
    ) -> Result<BlobApi, ServiceError> {
        let blob_options = BlobClientOptions {
            client_options: options.clone(),
            version: API_VERSION.to_owned(),
        };
        let container_options = BlobContainerClientOptions {
            client_options: options.clone(),
            version: API_VERSION.to_owned(),
        };
        Ok(BlobApi {
            blob: BlobClient::new(blob, None, Some(blob_options))
                .map_err(|error| ServiceError::of(&error))?,
            container: BlobContainerClient::new(container, None, Some(container_options))
                .map_err(|error| ServiceError::of(&error))?,
        })
    }

    /// Reads the blob's properties; with `lease`, only if it is active.
    pub async fn look(
        &self,
        lease: Option<&str>,
        give_up_at: Instant,
    ) -> Result<View, ServiceError> {
        let options = BlobClientGetPropertiesOptions {
            lease_id: lease.map(str::to_owned),
            ..Default::default()
        };
        match limited(give_up_at, self.blob.get_properties(Some(options))).await {
            Ok(answer) => view(answer.headers()),
            Err(error) => Err(self.reason_of(error, give_up_at).await),
        }
    }

    /// Returns the reason for a refused HEAD, which has no body, from a GET.
    async fn reason_of(&self, error: ServiceError, give_up_at: Instant) -> ServiceError {
        if !error.needs_a_reason() {
            return error;
        }
        match limited(give_up_at, self.blob.get_tags(None)).await {
            Err(asked) if error.is_explained_by(&asked) => asked,
            _ => error,
        }
    }

    /// Returns the bytes of data; 0 for a page blob without a written page.
    pub async fn data(&self, view: &View, give_up_at: Instant) -> Result<u64, ServiceError> {
        if view.content == 0 || !view.is_page_blob {
            return Ok(view.content);
        }
        let told = |error| ServiceError::of(&error);
        let client = self.blob.page_blob_client();
        let mut pages = client.list_page_ranges(None).map_err(told)?;
        let page = limited(give_up_at, pages.try_next()).await?;
        let page = page
            .map(|page| page.into_model().map_err(told))
            .transpose()?;
        let is_written = page.is_some_and(|page| !page.page_ranges.is_empty());
        Ok(if is_written { view.content } else { 0 })
    }

    pub(super) async fn list(
        &self,
        prefix: &str,
        give_up_at: Instant,
    ) -> Result<Vec<(String, LeaseState, Metadata)>, ServiceError> {
        let options = BlobContainerClientListBlobsOptions {
            include: Some(vec![ListBlobsIncludeItem::Metadata]),
            maxresults: Some(PAGE),
            prefix: Some(prefix.to_owned()).filter(|prefix| !prefix.is_empty()),
            ..Default::default()
        };
        let told = |error| ServiceError::of(&error);
        let pages = self.container.list_blobs(Some(options)).map_err(told)?;
        let mut pages = pages.into_pages();
        let mut found = Vec::new();
        while let Some(page) = limited(give_up_at, pages.try_next()).await? {
            let page = page.into_model().map_err(told)?;
            for blob in page.blob_items {
                let known = blob.properties.unwrap_or_default();
                let state = known.lease_state.map(|state| state.to_string());
                let duration = known.lease_duration.map(|duration| duration.to_string());
                let state = lease_state(state.as_deref(), duration.as_deref());
                // An unknown state is not reported as free.
                let (Some(name), Some(state)) = (blob.name, state) else {
                    continue;
                };
                let metadata = blob.metadata.and_then(|all| all.values).unwrap_or_default();
                let metadata =
                    metadata::read(metadata.iter().map(|(k, v)| (k.as_str(), v.as_str())));
                found.push((name, state, metadata));
            }
        }
        Ok(found)
    }

    /// Creates the blob unless it exists; returns its ETag.
    pub async fn create_blob(
        &self,
        page_blob: Option<u64>,
        give_up_at: Instant,
    ) -> Result<Option<String>, ServiceError> {
        match page_blob {
            Some(size) => {
                let options = PageBlobClientCreateOptions::default().if_not_exists();
                let client = self.blob.page_blob_client();
                let answer = limited(give_up_at, client.create(size, Some(options))).await?;
                Ok(etag_of(answer.headers()))
            }
            // One competitor makes the blob, and none replaces one that bears a token.
            None => {
                let options = BlockBlobClientUploadOptions::default().if_not_exists();
                let client = self.blob.block_blob_client();
                let nothing = RequestContent::from(Vec::new());
                let answer = limited(give_up_at, client.upload(nothing, Some(options))).await?;
                Ok(answer.etag.map(|etag| etag.to_string()))
            }
        }
    }

    /// Creates the container.
    pub async fn create_container(&self, give_up_at: Instant) -> Result<(), ServiceError> {
        limited(give_up_at, self.container.create(None))
            .await
            .map(drop)
    }

    /// Acquires the lease; returns the blob's ETag and the service's clock.
    pub async fn acquire(
        &self,
        id: &str,
        seconds: i32,
        give_up_at: Instant,
    ) -> Result<(Option<String>, Option<u64>), ServiceError> {
        let options = BlobClientAcquireLeaseOptions {
            proposed_lease_id: Some(id.to_owned()),
            ..Default::default()
        };
        let answer = limited(give_up_at, self.blob.acquire_lease(seconds, Some(options))).await?;
        let headers = answer.headers();
        // The client takes any 200 for a lease, even a hotel portal's page.
        bears(headers, id)?;
        Ok((etag_of(headers), moment(headers, "date")))
    }

    /// Renews the lease; returns the ETag, which a renewal does not change.
    pub async fn renew(
        &self,
        id: &str,
        give_up_at: Instant,
    ) -> Result<Option<String>, ServiceError> {
        let answer = limited(give_up_at, self.blob.renew_lease(id.to_owned(), None)).await?;
        bears(answer.headers(), id)?;
        Ok(etag_of(answer.headers()))
    }

    /// Gives the lease back.
    pub async fn release(&self, id: &str, give_up_at: Instant) -> Result<(), ServiceError> {
        let answer = limited(give_up_at, self.blob.release_lease(id.to_owned(), None)).await?;
        of_the_service(answer.headers())
    }

    /// Writes the metadata under the lease, if no write came since `etag`; returns the new ETag.
    pub async fn set_metadata(
        &self,
        id: &str,
        etag: Option<&str>,
        metadata: &HashMap<String, String>,
        give_up_at: Instant,
    ) -> Result<Option<String>, ServiceError> {
        let options = BlobClientSetMetadataOptions {
            lease_id: Some(id.to_owned()),
            if_match: etag.map(Etag::from),
            ..Default::default()
        };
        let answer = limited(give_up_at, self.blob.set_metadata(metadata, Some(options))).await?;
        of_the_service(answer.headers())?;
        Ok(etag_of(answer.headers()))
    }

    /// Asks for the rest of a breaking lease: a break without a period changes nothing.
    pub async fn rest_of_breaking(
        &self,
        etag: &str,
        give_up_at: Instant,
    ) -> Result<Duration, ServiceError> {
        self.break_lease(None, Some(etag), give_up_at).await
    }

    /// Breaks any lease, after `period` seconds or at its end, if no write came since `etag`. Returns how long
    /// it keeps others out.
    pub async fn break_lease(
        &self,
        period: Option<u8>,
        etag: Option<&str>,
        give_up_at: Instant,
    ) -> Result<Duration, ServiceError> {
        let options = BlobClientBreakLeaseOptions {
            break_period: period.map(i32::from),
            if_match: etag.map(Etag::from),
            ..Default::default()
        };
        let answer = limited(give_up_at, self.blob.break_lease(Some(options))).await?;
        header(answer.headers(), "x-ms-lease-time")
            .and_then(|text| text.trim().parse().ok())
            .map(Duration::from_secs)
            .ok_or_else(|| ServiceError::foreign("the lease's time", answer.headers()))
    }
}

fn lease_state(word: Option<&str>, duration: Option<&str>) -> Option<LeaseState> {
    let is_endless = duration.is_some_and(|word| word.eq_ignore_ascii_case("infinite"));
    match word?.to_ascii_lowercase().as_str() {
        "leased" if is_endless => Some(LeaseState::Endless),
        "leased" => Some(LeaseState::Leased),
        "breaking" => Some(LeaseState::Breaking),
        "available" | "expired" | "broken" => Some(LeaseState::Free),
        _ => None,
    }
}

pub(super) fn view(headers: &Headers) -> Result<View, ServiceError> {
    let metadata = headers.iter().filter_map(|(name, value)| {
        Some((name.as_str().strip_prefix("x-ms-meta-")?, value.as_str()))
    });
    Ok(View {
        lease: lease_state(
            header(headers, "x-ms-lease-state"),
            header(headers, "x-ms-lease-duration"),
        )
        .ok_or_else(|| ServiceError::foreign("a lease state", headers))?,
        etag: etag_of(headers),
        metadata: metadata::read(metadata),
        date: moment(headers, "date"),
        is_used: is_used(headers),
        content: content(headers),
        is_page_blob: is_page_blob(headers),
    })
}

fn etag_of(headers: &Headers) -> Option<String> {
    header(headers, "etag").map(str::to_owned)
}

fn is_used(headers: &Headers) -> bool {
    let created = moment(headers, "x-ms-creation-time");
    let changed = moment(headers, "last-modified");
    let has_content = content(headers) > 0 && !is_page_blob(headers);
    created.is_some_and(|created| changed > Some(created)) || has_content
}

fn content(headers: &Headers) -> u64 {
    let length = header(headers, "content-length").and_then(|length| length.trim().parse().ok());
    length.unwrap_or(0)
}

fn is_page_blob(headers: &Headers) -> bool {
    header(headers, "x-ms-blob-type") == Some("PageBlob")
}

fn moment(headers: &Headers, name: &'static str) -> Option<u64> {
    let at = azure_core::time::parse_rfc7231(header(headers, name)?).ok()?;
    u64::try_from(at.unix_timestamp()).ok()
}

/// Checks that an answer bears this lease id; GUIDs have no case.
fn bears(headers: &Headers, id: &str) -> Result<(), ServiceError> {
    match header(headers, "x-ms-lease-id") {
        Some(theirs) if theirs.trim().eq_ignore_ascii_case(id) => Ok(()),
        // Doubt: an answer that a proxy mixed up tells nothing about this lease.
        Some(_) => Err(ServiceError::Silence(
            "unknown: the answer has another lease id".to_owned(),
        )),
        None => Err(ServiceError::foreign("a lease id", headers)),
    }
}

#[cfg(test)]
mod tests {
    use azure_core::http::headers::HeaderName;

    use super::*;

    #[test]
    fn blob_that_was_written_after_its_creation_or_has_content_is_used() {
        let (then, later) = (
            "Fri, 27 Nov 2026 10:00:00 GMT",
            "Fri, 27 Nov 2026 10:00:01 GMT",
        );
        let is_used = |changed, length, kind| {
            let mut headers = Headers::new();
            for (name, value) in [
                ("x-ms-creation-time", then),
                ("last-modified", changed),
                ("content-length", length),
                ("x-ms-blob-type", kind),
            ] {
                headers.insert(HeaderName::from_static(name), value);
            }
            is_used(&headers)
        };
        assert!(!is_used(then, "0", "BlockBlob"));
        assert!(!is_used(then, "512", "PageBlob"));
        assert!(is_used(later, "0", "BlockBlob"));
        assert!(is_used(later, "512", "PageBlob"));
        assert!(is_used(then, "7", "BlockBlob"));
        let mut old = Headers::new();
        old.insert(HeaderName::from_static("last-modified"), later);
        assert!(!super::is_used(&old), "a service that does not say it");
    }
}
