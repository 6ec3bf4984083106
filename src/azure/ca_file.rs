//! The certificates of `--ca-file`: whom an https endpoint may be vouched for by, besides the
//! system's own authorities.
//!
//! Read once, before anything starts, so that a file that will not do is refused and does not fail
//! a renewal. Reading it never loads the system's certificates: those are loaded by the transport
//! with its first request, and for Service Bus when its address has been made sense of.

use std::fmt;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;

use super::account_error::{AccountError, malformed};

/// All authorities of a Linux distribution are a quarter of this.
const LIMIT: u64 = 1024 * 1024;

/// Additional authorities; none by default.
#[derive(Clone, Default)]
pub(super) struct CaCertificates(Vec<CertificateDer<'static>>);

impl CaCertificates {
    /// Reads a file of certificates in PEM.
    ///
    /// # Errors
    /// A file that cannot be read, holds none, or holds what cannot be an authority's.
    pub(super) fn read(path: &Path) -> Result<CaCertificates, AccountError> {
        let refuse = |why: String| malformed(format!("--ca-file {}", path.display()), why);
        let unreadable = |why: std::io::Error| refuse(format!("cannot be read: {why}"));
        // Opening a named pipe would wait for its writer.
        if !path.metadata().map_err(unreadable)?.is_file() {
            return Err(refuse("is not a file: name one in PEM".to_owned()));
        }
        let mut text = Vec::new();
        let file = File::open(path).map_err(unreadable)?;
        file.take(LIMIT + 1)
            .read_to_end(&mut text)
            .map_err(unreadable)?;
        if text.len() as u64 > LIMIT {
            return Err(refuse(
                "is longer than a megabyte: name a file of certificates in PEM".to_owned(),
            ));
        }
        let mut authorities = rustls::RootCertStore::empty();
        let mut trust = Vec::new();
        for (at, found) in CertificateDer::pem_slice_iter(&text).enumerate() {
            let broken = || {
                refuse(format!(
                    "holds a certificate that cannot be read (number {}): make it anew, in PEM",
                    at + 1
                ))
            };
            let der = found.map_err(|_| broken())?;
            reqwest::Certificate::from_der(&der).map_err(|_| broken())?;
            authorities.add(der.clone()).map_err(|_| broken())?;
            trust.push(der);
        }
        if trust.is_empty() {
            return Err(refuse(
                "holds no certificate: it must be in PEM (-----BEGIN CERTIFICATE-----)".to_owned(),
            ));
        }
        Ok(CaCertificates(trust))
    }

    /// The certificates, for the transport.
    pub(super) fn certificates(&self) -> impl Iterator<Item = reqwest::Certificate> {
        // Each was one when it was read.
        let certificate = |der| reqwest::Certificate::from_der(der).ok();
        self.0.iter().filter_map(move |der| certificate(der))
    }

    /// The same trust as the transport's, for a connection that speaks no HTTP. Loads the system's
    /// authorities.
    ///
    /// # Errors
    /// Where none can be had.
    #[cfg(feature = "service-bus")]
    pub(super) fn tls(&self) -> Result<rustls::ClientConfig, AccountError> {
        use rustls_platform_verifier::Verifier;
        use std::sync::Arc;
        let refuse = |why: rustls::Error| {
            malformed(
                "TLS",
                format!(
                    "cannot be set up: {why} (install the system's CA certificates, or name a file \
                     of them in --ca-file or SSL_CERT_FILE)"
                ),
            )
        };
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let verifier =
            Verifier::new_with_extra_roots(self.0.iter().cloned(), Arc::clone(&provider))
                .map_err(refuse)?;
        let config = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(refuse)?;
        Ok(config
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(verifier))
            .with_no_client_auth())
    }
}

impl fmt::Debug for CaCertificates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CaCertificates({})", self.0.len())
    }
}
