//! What only `doctor` asks the blob service: what it says of itself and of the container, and to delete a
//! blob that is no lock.

use azure_core::http::headers::Headers;
use azure_core::time::{OffsetDateTime, parse_rfc7231};

use super::client::{BlobApi, view};
use trafficcop_azure::{ServiceError, header, limited, of_the_service};
use trafficcop_core::clock::Instant;

/// What the service says of itself and of the container along the way.
#[derive(Clone, Debug, Default)]
pub struct Around {
    /// The service's clock.
    pub date: Option<OffsetDateTime>,
    /// How the server calls itself.
    pub server: Option<String>,
    /// The blob has versions.
    pub versioned: bool,
    /// The container keeps its blobs as they are: a policy, or a legal hold.
    pub immutable: Option<&'static str>,
}

impl BlobApi {
    /// What the service says of itself with the blob's properties.
    pub async fn look_around(&self, give_up_at: Instant) -> Result<Around, ServiceError> {
        let answer = limited(give_up_at, self.blob.get_properties(None)).await?;
        view(answer.headers())?;
        Ok(around(answer.headers()))
    }

    /// What the service says of itself with the container's properties.
    pub async fn look_at_container(&self, give_up_at: Instant) -> Result<Around, ServiceError> {
        let answer = limited(give_up_at, self.container.get_properties(None)).await?;
        of_the_service(answer.headers())?;
        Ok(around(answer.headers()))
    }

    /// Deletes the blob, whose lease nobody has.
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
