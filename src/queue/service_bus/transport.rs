//! The stream under AMQP: TCP without delay, and TLS from the first byte.
//!
//! Called by the engine for each connection. What is wrong with whom we speak to is said in words
//! that help, because it is what a new user meets first. Must never go on without TLS where TLS was
//! meant.

use std::io;
use std::sync::Arc;

use rustls::pki_types::ServerName;
use rustls::{CertificateError, ClientConfig, Error as TlsError};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::error::BusError;
use crate::azure::addresses;

/// A stream of bytes, whatever is under it.
pub(super) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// Connects, with TLS if there is a configuration for it.
pub(super) async fn connect(
    host: &str,
    port: u16,
    tls: Option<&Arc<ClientConfig>>,
) -> Result<Box<dyn Stream>, BusError> {
    let unsent = |why: io::Error| BusError::Unsent(format!("{host}:{port}: {why}"));
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    let addresses = addresses(bare, port).await.map_err(unsent)?;
    let stream = TcpStream::connect(&*addresses).await.map_err(unsent)?;
    // RequestLink are short and waited for: each would be held back for the answer to the one before.
    stream.set_nodelay(true).map_err(unsent)?;
    let Some(tls) = tls else {
        return Ok(Box::new(stream));
    };
    let name = ServerName::try_from(bare.to_owned()).map_err(|_| {
        BusError::HandOverReason(format!("`{host}` is no name that a certificate can be for"))
    })?;
    let connector = TlsConnector::from(Arc::clone(tls));
    match connector.connect(name, stream).await {
        Ok(stream) => Ok(Box::new(stream)),
        Err(why) => Err(explain(host, port, &why)),
    }
}

/// Why there is no TLS.
fn explain(host: &str, port: u16, why: &io::Error) -> BusError {
    let inner = why.get_ref().and_then(|inner| inner.downcast_ref());
    let Some(error): Option<&TlsError> = inner else {
        return BusError::Unsent(format!("{host}:{port}: TLS: {why}"));
    };
    use CertificateError as Bad;
    BusError::HandOverReason(match error {
        // The second, where another authority has the name of one that is trusted.
        TlsError::InvalidCertificate(Bad::UnknownIssuer | Bad::BadSignature) => format!(
            "TLS: nobody whom this machine trusts vouches for {host}:{port} (unknown issuer): name \
             the authority's certificate with --ca-file"
        ),
        TlsError::InvalidCertificate(Bad::NotValidForName | Bad::NotValidForNameContext { .. }) => {
            format!(
                "TLS: the certificate of {host}:{port} is for another name: use the name that it is \
                 for"
            )
        }
        TlsError::InvalidMessage(_) => format!(
            "{host}:{port} does not speak TLS, so it is not a Service Bus (its port is 5671): look \
             at the endpoint, or say UseDevelopmentEmulator=true if it is the emulator"
        ),
        _ => format!("TLS with {host}:{port} failed: {error}"),
    })
}

/// What the other side is, by the first bytes that it said instead of AMQP's.
pub(super) fn stranger(host: &str, port: u16, said: &[u8]) -> BusError {
    let what = if said.starts_with(b"HTTP") {
        "it speaks HTTP"
    } else if said.first() == Some(&0x15) || said.first() == Some(&0x16) {
        "it speaks TLS, and was spoken to without"
    } else {
        "it speaks something else"
    };
    BusError::HandOverReason(format!(
        "{host}:{port} is not an AMQP server: {what}: look at the endpoint and its port"
    ))
}
