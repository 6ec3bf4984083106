//! `--health https://…`, with servers that are trusted or not.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use rustls::pki_types::PrivateKeyDer;
use rustls::{ServerConfig, ServerConnection, StreamOwned};

use super::{COOL, PATIENT, TOO_LONG, TWO_FAIL, pace, stop};
use crate::authority::authority;
use crate::support::await_for;
use crate::support::azurite::{azurite, connection_string};
use crate::support::blob::Blob;
use crate::support::instance::Run;
use crate::support::scene::Scene;

const WELL: &str = "HTTP/1.1 204 No Content\r\n\r\n";

enum Begins {
    With(Arc<ServerConfig>),
    /// Silence after the connection is accepted.
    Never,
    Plain,
}

/// Server with the number of its answers.
struct Server {
    port: u16,
    answered: Arc<AtomicUsize>,
}

impl Server {
    fn that(begins: Begins, says: &'static str) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("bound").port();
        let answered = Arc::new(AtomicUsize::new(0));
        let (begins, counted) = (Arc::new(begins), Arc::clone(&answered));
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (begins, counted) = (Arc::clone(&begins), Arc::clone(&counted));
                std::thread::spawn(move || match &*begins {
                    Begins::With(config) => {
                        let Ok(connection) = ServerConnection::new(Arc::clone(config)) else {
                            return;
                        };
                        if answer(StreamOwned::new(connection, stream), says).is_some() {
                            counted.fetch_add(1, Ordering::SeqCst);
                        }
                    }
                    Begins::Never => {
                        std::thread::sleep(Duration::from_secs(600));
                        drop(stream);
                    }
                    Begins::Plain => {
                        let mut stream = stream;
                        let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n");
                    }
                });
            }
        });
        Server { port, answered }
    }

    fn url(&self) -> String {
        format!("https://127.0.0.1:{}/healthz", self.port)
    }

    fn await_answers(&self, times: usize) {
        await_for(
            "the server to be asked",
            || (self.answered.load(Ordering::SeqCst) >= times).then_some(()),
            String::new,
        );
    }
}

/// Reads a request and answers it; `None` if the client hangs up.
fn answer(mut stream: StreamOwned<ServerConnection, TcpStream>, says: &str) -> Option<()> {
    let mut reader = BufReader::new(&mut stream);
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).ok()? == 0 {
            return None;
        }
        if line == "\r\n" {
            break;
        }
    }
    stream.write_all(says.as_bytes()).ok()?;
    stream.conn.send_close_notify();
    stream.flush().ok()
}

/// Makes a server with a certificate for this name from an untrusted authority, or, if `is_ca`,
/// with the authority's own. Returns the authority's certificate in PEM, too.
fn other_server(name: &str, is_ca: bool) -> (Arc<ServerConfig>, String) {
    let key = || KeyPair::generate().expect("a key");
    let mut params = CertificateParams::new([]).expect("no names");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params
        .distinguished_name
        .push(DnType::CommonName, "another authority");
    let issuer = CertifiedIssuer::self_signed(params, key()).expect("an authority");
    let server_key = key();
    let mut params = CertificateParams::new([name.to_owned()]).expect("a name");
    if is_ca {
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    }
    let certificate = params
        .signed_by(&server_key, &issuer)
        .expect("a certificate");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let private = PrivateKeyDer::try_from(server_key.serialize_der()).expect("a key");
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_no_client_auth()
        .with_single_cert(vec![certificate.der().clone()], private)
        .expect("a server");
    (Arc::new(config), issuer.pem())
}

fn asked<'a>(run: Run<'a>, url: &str, often: [&str; 4]) -> Run<'a> {
    run.args(["--health", url])
        .args(often)
        .args(TWO_FAIL)
        .args(COOL)
        .command(["sleep", "1000"])
}

#[test]
fn a_server_whose_authority_is_trusted_keeps_control() {
    let server = Server::that(Begins::With(Arc::clone(&authority().server)), WELL);
    let scene = Scene::new();
    let blob = Blob::named("health-https/singleton");
    let by_environment = scene.run_on_file().env("SSL_CERT_FILE", &authority().file);
    let by_flag = scene
        .run()
        .env(
            "AZURE_STORAGE_CONNECTION_STRING",
            connection_string(azurite().port),
        )
        .args(["--blob", &blob.name, "--ca-file"])
        .arg(&authority().file);
    let on_file = scene.run_on_file().arg("--ca-file").arg(&authority().file);
    let by_variable = scene
        .run_on_file()
        .env("TRAFFICCOP_CA_FILE", &authority().file);
    let by_name = scene.run_on_file().env("SSL_CERT_FILE", &authority().file);
    for (run, url) in [
        (by_environment, server.url()),
        (by_flag, server.url()),
        (on_file, server.url()),
        (by_variable, server.url()),
        (by_name, format!("https://localhost:{}/", server.port)),
    ] {
        let before = server.answered.load(Ordering::SeqCst);
        let mut one = asked(run, &url, PATIENT).start();
        server.await_answers(before + 2);
        assert!(!one.stderr().contains("--health"), "{}", one.stderr());
        stop(&mut one);
    }
}

/// Checks that two failing checks, the second of which is one too many, cost control.
fn costs_control(run: Run<'_>, url: &str, why: &str) {
    let mut one = asked(run, url, pace(why)).start();
    one.await_log(&format!("--health {why}"));
    one.await_log(&format!("2 times in a row; the last time it {why}"));
    one.await_log("cooling down");
    stop(&mut one);
}

#[test]
fn untrusted_server_fails_the_check_with_advice() {
    let scene = Scene::new();
    let server = Server::that(Begins::With(Arc::clone(&authority().server)), WELL);
    let untrusted = "met a certificate whose issuer is not trusted on this machine: name the authority's in \
        SSL_CERT_FILE";
    costs_control(scene.run_on_file(), &server.url(), untrusted);
    assert_eq!(
        server.answered.load(Ordering::SeqCst),
        0,
        "it was told nothing"
    );
    let trusting = |pem: &str| {
        let path = scene.path("authority.pem");
        std::fs::write(&path, pem).expect("a file");
        path
    };
    let trusts = |path: &Path| scene.run_on_file().env("SSL_CERT_FILE", path);
    for (name, is_ca, why) in [
        (
            "elsewhere.example",
            false,
            "met a certificate for another name",
        ),
        (
            "127.0.0.1",
            true,
            "met the certificate of an authority (CA:TRUE)",
        ),
    ] {
        let (config, pem) = other_server(name, is_ca);
        let server = Server::that(Begins::With(config), WELL);
        costs_control(trusts(&trusting(&pem)), &server.url(), why);
        assert_eq!(server.answered.load(Ordering::SeqCst), 0, "{why}");
    }
}

#[test]
fn a_server_that_is_trusted_and_does_not_answer_well_costs_control() {
    let scene = Scene::new();
    let run = || scene.run_on_file().env("SSL_CERT_FILE", &authority().file);
    let with = || Begins::With(Arc::clone(&authority().server));
    let redirect =
        "HTTP/1.1 302 Found\r\nlocation: https://localhost/\r\ncontent-length: 0\r\n\r\n";
    for (begins, says, why) in [
        (
            with(),
            redirect,
            "was answered 302, a redirect, which is not followed",
        ),
        (with(), "HTTP/1.1 503 Busy\r\n\r\n", "was answered 503"),
        // The time of a check includes its handshake.
        (Begins::Never, "", TOO_LONG),
        (
            Begins::Plain,
            "",
            "met a server that does not speak TLS: use http://",
        ),
    ] {
        let server = Server::that(begins, says);
        costs_control(run(), &server.url(), why);
    }
}
