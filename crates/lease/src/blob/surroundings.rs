//! Requests that only `doctor` makes.

use azure_core::http::headers::Headers;
use azure_core::time::{OffsetDateTime, parse_rfc7231};

use super::client::{BlobApi, view};
use trafficcop_azure::{ServiceError, header, limited, of_the_service};
use trafficcop_core::clock::Instant;

/// Properties of service and container.
#[derive(Clone, Debug, Default)]
pub struct Around {
    /// Service's clock.
    pub date: Option<OffsetDateTime>,
    /// Name of the server.
    pub server: Option<String>,
    /// Whether the blob has versions.
    pub versioned: bool,
    /// Reason why its blobs cannot be changed.
    pub immutable: Option<&'static str>,
}

impl BlobApi {
    /// Reads the blob's properties.
    pub async fn look_around(&self, give_up_at: Instant) -> Result<Around, ServiceError> {
        let answer = limited(give_up_at, self.blob.get_properties(None)).await?;
        view(answer.headers())?;
        Ok(around(answer.headers()))
    }

    /// Reads the container's properties.
    pub async fn look_at_container(&self, give_up_at: Instant) -> Result<Around, ServiceError> {
        let answer = limited(give_up_at, self.container.get_properties(None)).await?;
        of_the_service(answer.headers())?;
        Ok(around(answer.headers()))
    }

    /// Deletes the blob, which must not be leased.
    pub async fn delete(&self, give_up_at: Instant) -> Result<(), ServiceError> {
        let answer = limited(give_up_at, self.blob.delete(None)).await?;
        of_the_service(answer.headers())
    }
}

fn around(headers: &Headers) -> Around {
    let is = |name| header(headers, name).is_some_and(|text| text.eq_ignore_ascii_case("true"));
    Around {
        date: header(headers, "date").and_then(|text| parse_rfc7231(text).ok()),
        server: header(headers, "server").map(str::to_owned),
        versioned: header(headers, "x-ms-version-id").is_some(),
        immutable: if is("x-ms-has-immutability-policy") {
            Some("an immutability policy")
        } else if is("x-ms-has-legal-hold") {
            Some("a legal hold")
        } else {
            None
        },
    }
}
