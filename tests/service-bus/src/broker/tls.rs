//! TLS from the first byte, as the real service has it on port 5671.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection};

use super::wire::Split;

/// A certificate chain and its key.
#[derive(Clone)]
pub struct Tls(Arc<ServerConfig>);

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tls(..)")
    }
}

/// Error of a certificate that cannot be used.
pub type TlsError = Box<dyn std::error::Error + Send + Sync>;

impl Tls {
    /// Parses PEM texts.
    ///
    /// # Errors
    /// If one of them is no PEM, or the key does not belong to the certificate.
    pub fn from_pem(chain: &[u8], key: &[u8]) -> Result<Self, TlsError> {
        let chain = CertificateDer::pem_slice_iter(chain).collect::<Result<Vec<_>, _>>()?;
        let key = PrivateKeyDer::from_pem_slice(key)?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(chain, key)?;
        Ok(Self(Arc::new(config)))
    }

    pub(crate) fn split(&self) -> Split {
        let config = self.0.clone();
        Arc::new(move |socket| {
            let connection = ServerConnection::new(config.clone()).map_err(io::Error::other)?;
            let half = Half {
                connection: Arc::new(Mutex::new(connection)),
                socket,
            };
            Ok((Box::new(half.try_clone()?), Box::new(half)))
        })
    }
}

/// One half of a connection. The reader waits without the lock, so that the writer can continue.
struct Half {
    connection: Arc<Mutex<ServerConnection>>,
    socket: TcpStream,
}

impl Half {
    fn try_clone(&self) -> io::Result<Self> {
        Ok(Self {
            connection: self.connection.clone(),
            socket: self.socket.try_clone()?,
        })
    }

    fn lock(&self) -> MutexGuard<'_, ServerConnection> {
        // A thread that panicked with the lock leaves a broken connection, which the next call
        // reports.
        self.connection
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

fn push(connection: &mut ServerConnection, socket: &mut TcpStream) -> io::Result<()> {
    while connection.wants_write() {
        connection.write_tls(socket)?;
    }
    Ok(())
}

impl Read for Half {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        loop {
            let plain = self.lock().reader().read(out);
            match plain {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                done => return done,
            }
            let mut cipher = [0; 16 * 1024];
            let got = self.socket.read(&mut cipher)?;
            if got == 0 {
                return Ok(0);
            }
            let mut cipher = &cipher[..got];
            while !cipher.is_empty() {
                let mut connection = self
                    .connection
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner);
                connection.read_tls(&mut cipher)?;
                let fine = connection.process_new_packets();
                // Including the alert with the reason, if it is not fine.
                push(&mut connection, &mut self.socket)?;
                fine.map_err(io::Error::other)?;
            }
        }
    }
}

impl Write for Half {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut connection = self
            .connection
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let taken = connection.writer().write(bytes)?;
        push(&mut connection, &mut self.socket)?;
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
