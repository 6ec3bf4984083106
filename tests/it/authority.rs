//! A certificate authority of the tests.

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::ServerConfig;
use rustls::pki_types::PrivateKeyDer;

pub(crate) struct Authority {
    /// Own certificate in PEM, for `--ca-file`.
    pub(crate) file: PathBuf,
    /// Certificate of 127.0.0.1, in PEM.
    pub(crate) certificate: PathBuf,
    pub(crate) key: PathBuf,
    pub(crate) server: Arc<ServerConfig>,
    _directory: tempfile::TempDir,
}

pub(crate) fn authority() -> &'static Authority {
    static MADE: OnceLock<Authority> = OnceLock::new();
    MADE.get_or_init(make)
}

fn make() -> Authority {
    let key = || KeyPair::generate().expect("a key");
    let mut params = CertificateParams::new([]).expect("no names");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let issuer = CertifiedIssuer::self_signed(params, key()).expect("an authority");
    let names = ["127.0.0.1".to_owned(), "localhost".to_owned()];
    let server_key = key();
    let server = CertificateParams::new(names)
        .and_then(|params| params.signed_by(&server_key, &issuer))
        .expect("a certificate");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let private = PrivateKeyDer::try_from(server_key.serialize_der()).expect("a key");
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_no_client_auth()
        .with_single_cert(vec![server.der().clone()], private)
        .expect("a server");
    let directory = tempfile::tempdir().expect("a directory");
    let file = |name: &str, text: &str| {
        let path = directory.path().join(name);
        std::fs::write(&path, text).expect("a file");
        path
    };
    Authority {
        file: file("ca.pem", &issuer.pem()),
        certificate: file("server.pem", &server.pem()),
        key: file("server.key", &server_key.serialize_pem()),
        server: Arc::new(config),
        _directory: directory,
    }
}
