//! TLS from the first byte, with an authority of this test; and peers without TLS.

use super::*;
use std::io::{Read as _, Write as _};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use rustls::pki_types::CertificateDer;
use rustls::{ClientConfig, RootCertStore};
use service_bus_stand_in::Tls;

const NAME: &str = "an authority";

struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    fn fresh() -> Authority {
        Authority::named(NAME)
    }

    fn named(name: &str) -> Authority {
        let mut params = CertificateParams::new(Vec::new()).expect("parameters");
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key");
        Authority(CertifiedIssuer::self_signed(params, key).expect("an authority"))
    }

    fn server(&self, name: &str) -> Arc<Broker> {
        let key = KeyPair::generate().expect("a key");
        let params = CertificateParams::new([name.to_owned()]).expect("parameters");
        let certificate = params.signed_by(&key, &self.0).expect("a certificate");
        let tls = Tls::from_pem(certificate.pem().as_bytes(), key.serialize_pem().as_bytes());
        let settings = Settings {
            tls: Some(tls.expect("a server's configuration")),
            ..Settings::default()
        };
        broker(settings, super::settings(30))
    }

    fn trusted(&self) -> Arc<ClientConfig> {
        let mut roots = RootCertStore::empty();
        let authority: CertificateDer<'static> = self.0.der().clone();
        roots.add(authority).expect("an authority");
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_root_certificates(roots)
            .with_no_client_auth();
        Arc::new(config)
    }
}

fn through_tls(port: u16, tls: Arc<ClientConfig>) -> ServiceBusQueue {
    let mut config = config(port);
    config.target.host = "localhost".into();
    config.target.tls = Some(tls);
    ServiceBusQueue::open(config)
}

async fn unfit(queue: &ServiceBusQueue) -> String {
    let why = queue
        .prepare(patiently())
        .await
        .expect_err("it will not do");
    let fatal = matches!(why, Missing::Failed(Failure::Fatal { denied: false, .. }));
    assert!(fatal, "{why:?}");
    why.to_string()
}

#[tokio::test]
async fn messages_come_over_tls() {
    let authority = Authority::fresh();
    let broker = authority.server("localhost");
    let queue = through_tls(broker.address().port(), authority.trusted());
    let big: Vec<u8> = (0..300 * 1024_u32).map(|at| (at / 5) as u8).collect();
    broker.put(JOBS, Sent::data(&big));
    let message = one(&queue).await;
    assert!(body(&message) == big);
    renew(&message).await.expect("renewed");
    complete(&message).await.expect("completed");
    queue.stop(patiently()).await;
    queue.close(patiently()).await;
}

#[tokio::test]
async fn untrusted_server_is_refused() {
    let authority = Authority::fresh();
    let broker = authority.server("localhost");
    let stranger = Authority::fresh().trusted();
    let why = unfit(&through_tls(broker.address().port(), stranger)).await;
    assert!(
        why.contains("is not trusted") && why.contains("--ca-file"),
        "{why}"
    );
    let broker = authority.server("elsewhere.example");
    let why = unfit(&through_tls(broker.address().port(), authority.trusted())).await;
    assert!(why.contains("another name"), "{why}");
}

#[tokio::test]
async fn a_server_without_tls_is_not_spoken_to() {
    let plain = broker(Settings::default(), settings(30));
    let queue = through_tls(plain.address().port(), Authority::fresh().trusted());
    let why = queue.prepare(patiently()).await.expect_err("no TLS");
    assert!(why.to_string().contains("TLS"), "{why}");
    let put = plain.look(|view| count(view, &|event| matches!(event, Event::TokenPut { .. })));
    assert_eq!(put, 0);
    let secure = Authority::fresh().server("localhost");
    let queue = ServiceBusQueue::open(config(secure.address().port()));
    let why = queue.prepare(patiently()).await.expect_err("TLS");
    assert!(matches!(why, Missing::Failed(_)), "{why}");
}

#[tokio::test]
async fn a_web_server_is_recognised() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("its address").port();
    // Two callers, then the end.
    let server = std::thread::spawn(move || {
        for _ in 0..2 {
            let (mut caller, _) = listener.accept().expect("a caller");
            let mut said = [0; 8];
            let _ = caller.read(&mut said).expect("bytes");
            let answer = "HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n";
            let _ = caller.write_all(answer.as_bytes());
        }
    });
    let why = unfit(&ServiceBusQueue::open(config(port))).await;
    assert!(
        why.contains("not an AMQP server") && why.contains("HTTP"),
        "{why}"
    );
    let why = unfit(&through_tls(port, Authority::fresh().trusted())).await;
    assert!(why.contains("does not speak TLS"), "{why}");
    server.join().expect("the server ended");
}
