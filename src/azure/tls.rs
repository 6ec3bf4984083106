//! Why there is no TLS with a server, in words. Asked by the transport, and by what speaks AMQP. Pure.

use std::error::Error;
use std::io;

use rustls::{CertificateError as Bad, Error as TlsError};

#[cfg(feature = "cli")]
use crate::core::TlsFailure;

/// The TLS error among the causes of this one.
pub(super) fn cause<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a TlsError> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(tls) = error.downcast_ref() {
            return Some(tls);
        }
        // An error of I/O hides what it is made of: its source is that one's.
        let inner = error.downcast_ref().and_then(io::Error::get_ref);
        next = match inner {
            Some(inner) => Some(inner),
            None => error.source(),
        };
    }
    None
}

/// In words, with what to do; `server` is its name, and its port where that is known.
pub(crate) fn explain(server: &str, error: &TlsError) -> String {
    let bad = match error {
        TlsError::InvalidCertificate(bad) => bad,
        TlsError::InvalidMessage(_) => {
            return format!(
                "{server} does not speak TLS: look at its port, and whether its address begins with \
                 http:// (an emulator) and not with https://"
            );
        }
        _ => return format!("TLS with {server} failed: {error}"),
    };
    match bad {
        // The second, where another authority has the name of one that is trusted.
        Bad::UnknownIssuer | Bad::BadSignature => format!(
            "TLS: nobody whom this machine trusts vouches for {server} (unknown issuer): name the \
             authority's certificate with --ca-file"
        ),
        Bad::NotValidForName | Bad::NotValidForNameContext { .. } => format!(
            "TLS: the certificate of {server} is for another name: use the name that it is for"
        ),
        Bad::Expired | Bad::ExpiredContext { .. } => format!(
            "TLS: the certificate of {server} has expired: it has to be renewed, unless this \
             machine's clock is wrong"
        ),
        Bad::NotValidYet | Bad::NotValidYetContext { .. } => {
            format!(
                "TLS: the certificate of {server} is not valid yet: look at this machine's clock"
            )
        }
        Bad::Revoked => format!("TLS: the certificate of {server} was revoked: it needs another"),
        other if is_authority(other) => format!(
            "TLS: {server} shows the certificate of an authority (CA:TRUE, as 'openssl req -x509' \
             makes it) as its own: give it one that the authority has signed, and name the \
             authority's with --ca-file"
        ),
        _ => format!("TLS: the certificate of {server} is refused: {error}"),
    }
}

/// What went wrong, if it is TLS: for who has words of his own.
#[cfg(feature = "cli")]
pub(crate) fn failure(error: &(dyn Error + 'static)) -> Option<TlsFailure> {
    let bad = match cause(error)? {
        TlsError::InvalidCertificate(bad) => bad,
        TlsError::InvalidMessage(_) => return Some(TlsFailure::NotSpoken),
        _ => return Some(TlsFailure::Other),
    };
    Some(match bad {
        Bad::UnknownIssuer | Bad::BadSignature => TlsFailure::UnknownIssuer,
        Bad::NotValidForName | Bad::NotValidForNameContext { .. } => TlsFailure::OtherName,
        Bad::Expired
        | Bad::ExpiredContext { .. }
        | Bad::NotValidYet
        | Bad::NotValidYetContext { .. } => TlsFailure::OutOfDate,
        other if is_authority(other) => TlsFailure::IsAuthority,
        _ => TlsFailure::Other,
    })
}

/// The verifier's own error, of a crate that we do not name.
fn is_authority(bad: &Bad) -> bool {
    format!("{bad:?}").contains("CaUsedAsEndEntity")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_refusal_names_the_server_and_what_to_do() {
        for (error, words) in [
            (
                TlsError::InvalidCertificate(Bad::UnknownIssuer),
                "--ca-file",
            ),
            (
                TlsError::InvalidCertificate(Bad::NotValidForName),
                "another name",
            ),
            (TlsError::InvalidCertificate(Bad::Expired), "clock"),
            (TlsError::InvalidCertificate(Bad::NotValidYet), "clock"),
            (TlsError::InvalidCertificate(Bad::Revoked), "another"),
            (TlsError::InvalidCertificate(Bad::BadEncoding), "refused"),
            (
                TlsError::InvalidMessage(rustls::InvalidMessage::InvalidContentType),
                "http://",
            ),
            (TlsError::HandshakeNotComplete, "failed"),
        ] {
            let text = explain("store.example", &error);
            assert!(
                text.contains("TLS") && text.contains("store.example"),
                "{text}"
            );
            assert!(text.contains(words), "{text}");
            assert!(!text.contains("InvalidCertificate"), "{text}");
        }
    }

    #[test]
    fn it_is_found_however_deep() {
        let tls = || TlsError::InvalidCertificate(Bad::UnknownIssuer);
        assert_eq!(cause(&tls()), Some(&tls()));
        let wrapped = io::Error::other(tls());
        assert_eq!(cause(&wrapped), Some(&tls()));
        let deeper = io::Error::other(io::Error::other(tls()));
        assert_eq!(cause(&deeper), Some(&tls()));
        assert_eq!(cause(&io::Error::other("none")), None);
    }
}
