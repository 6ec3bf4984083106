use super::*;
use crate::Auth;

const KEY: &str = "c2VjcmV0LWtleS0wMTIzNDU2Nzg5";

fn find(entity: &str, vars: &[(&str, &str)], auth: Auth) -> Result<ServiceBus, AccountError> {
    let get = |name: &str| {
        let found = vars.iter().find(|(known, _)| *known == name);
        found.map(|(_, value)| (*value).to_owned())
    };
    let options = AuthOptions {
        auth,
        ..AuthOptions::default()
    };
    let asked = ServiceBusOptions {
        entity: entity.to_owned(),
        ..ServiceBusOptions::default()
    };
    ServiceBus::find(&get, &options, &asked)
}

fn string(endpoint: &str, more: &str) -> String {
    format!("Endpoint={endpoint};SharedAccessKeyName=listen;SharedAccessKey={KEY}={more}")
}

fn with(entity: &str, text: &str) -> Result<ServiceBus, AccountError> {
    find(entity, &[(STRING, text)], Auth::Auto)
}

fn refused(entity: &str, vars: &[(&str, &str)], auth: Auth) -> String {
    let said = find(entity, vars, auth).expect_err(entity).to_string();
    assert!(!said.contains('\n') && !said.contains(KEY), "{said}");
    said
}

#[test]
fn connection_string_is_parsed_as_by_microsofts_clients() {
    for (text, name, tls) in [
        (
            string("sb://contoso.servicebus.windows.net/", ""),
            "sb://contoso.servicebus.windows.net/jobs",
            true,
        ),
        (
            string("sb://Contoso.ServiceBus.Windows.Net", ";EntityPath=JOBS;"),
            "sb://contoso.servicebus.windows.net/jobs",
            true,
        ),
        (
            string(
                "sb://ns.servicebus.chinacloudapi.cn/",
                ";OperationTimeout=00:01:00;TransportType=Amqp",
            ),
            "sb://ns.servicebus.chinacloudapi.cn/jobs",
            true,
        ),
        (
            string("sb://localhost", ";UseDevelopmentEmulator=true"),
            "sb://localhost/jobs",
            false,
        ),
        (
            string("sb://127.0.0.1:5999/", ";UseDevelopmentEmulator=True;"),
            "sb://127.0.0.1:5999/jobs",
            false,
        ),
        (
            string("sb://[::1]:5999", "; UseDevelopmentEmulator = true"),
            "sb://[::1]:5999/jobs",
            false,
        ),
        (
            string("sb://localhost:7443", ";UseDevelopmentEmulator=false"),
            "sb://localhost:7443/jobs",
            true,
        ),
    ] {
        let bus = with("jobs", &text).expect(&text);
        assert_eq!(bus.name(), name);
        assert_eq!(bus.tls.is_some(), tls, "{name}");
        // The key keeps its '='.
        let Credential::Key { name, key } = &bus.credential else {
            panic!("{bus:?}");
        };
        assert_eq!((&**name, key.secret()), ("listen", &*format!("{KEY}=")));
        assert!(!format!("{bus:?}").contains(KEY));
    }
    let ports = |text: &str| with("jobs", &string(text, "")).expect(text).port;
    assert_eq!(
        (ports("sb://h.example"), ports("sb://h.example:99")),
        (5671, 99)
    );
    let emulator = string("sb://h", ";UseDevelopmentEmulator=true");
    let emulator = with("jobs", &emulator).expect("the emulator");
    assert_eq!(emulator.port, 5672);
    assert!(emulator.is_open_to_others());
}

#[test]
fn signature_is_kept_unchanged() {
    let sas = "SharedAccessSignature sr=sb%3A%2F%2Fh&sig=s3cret%3D&se=1900000000&skn=listen";
    let text = format!("Endpoint=sb://h.example/;SharedAccessSignature={sas}");
    let bus = with("jobs", &text).expect("a bus");
    assert!(matches!(&bus.credential, Credential::Sas(text) if text.secret() == sas));
    assert!(!format!("{bus:?}").contains("s3cret"));
    let whole = string("sb://h.example", "");
    let both = format!("{whole};SharedAccessSignature={sas}");
    assert!(refused("jobs", &[(STRING, &both)], Auth::Auto).contains("not two"));
}

#[test]
fn queue_name_is_parsed_in_every_form() {
    let text = string("sb://contoso.servicebus.windows.net/", "");
    for (entity, path) in [
        ("jobs", "jobs"),
        ("contoso/jobs", "jobs"),
        ("contoso.servicebus.windows.net/jobs", "jobs"),
        ("sb://contoso.servicebus.windows.net/jobs", "jobs"),
        ("sb://contoso.servicebus.windows.net/jobs/", "jobs"),
        ("sb://contoso.servicebus.windows.net/eu/jobs", "eu/jobs"),
        ("news/subscriptions/web", "news/Subscriptions/web"),
        ("contoso/news/Subscriptions/web", "news/Subscriptions/web"),
        (
            "amqps://contoso.servicebus.windows.net/a/news/SUBSCRIPTIONS/web",
            "a/news/Subscriptions/web",
        ),
    ] {
        let bus = with(entity, &text).expect(entity);
        assert_eq!(bus.entity, path);
        assert_eq!(bus.host, "contoso.servicebus.windows.net");
    }
    let asked = ServiceBusOptions {
        entity: "news/Subscriptions/web".into(),
        dead_letters: true,
        string_in: Some("BUS".into()),
    };
    let get = |name: &str| (name == "BUS").then(|| format!("{text};EntityPath=news"));
    let bus = ServiceBus::find(&get, &AuthOptions::default(), &asked).expect("a bus");
    assert_eq!(bus.entity, "news/Subscriptions/web/$DeadLetterQueue");
    let said = ServiceBus::find(&|_| None, &AuthOptions::default(), &asked).expect_err("not set");
    assert!(said.to_string().contains("BUS, which is not set"), "{said}");
}

#[test]
fn invalid_names_and_parts_are_refused_by_name() {
    let good = string("sb://contoso.servicebus.windows.net/", "");
    for (entity, text, word) in [
        ("jobs", "Endpoint=sb://h;SharedAccessKeyName", "without '='"),
        ("jobs", "just a key", "without '='"),
        (
            "jobs",
            "SharedAccessKeyName=a;SharedAccessKey=b",
            "Endpoint in",
        ),
        ("jobs", "Endpoint=;SharedAccessKeyName=a", "Endpoint in"),
        ("jobs", "Endpoint=h.example", "does not begin with sb://"),
        (
            "jobs",
            "Endpoint=https://h.example",
            "does not begin with sb://",
        ),
        (
            "jobs",
            "Endpoint=amqp://h.example",
            "UseDevelopmentEmulator",
        ),
        ("jobs", "Endpoint=sb://h/jobs", "EntityPath"),
        ("jobs", "Endpoint=sb://", "names no host"),
        ("jobs", "Endpoint=sb://h:0", "port"),
        ("jobs", "Endpoint=sb://h:x", "port"),
        (
            "jobs",
            "Endpoint=sb://h;SharedAccessKeyName=a",
            "SharedAccessKey in",
        ),
        (
            "jobs",
            "Endpoint=sb://h;SharedAccessKey=a",
            "SharedAccessKeyName in",
        ),
        ("jobs", "Endpoint=sb://h;SharedAccessSignature=a", "is none"),
        (
            "jobs",
            "Endpoint=sb://h;UseDevelopmentEmulator=yes",
            "neither",
        ),
        ("jobs", "Endpoint=sb://h;Endpoint=sb://g", "twice"),
        (
            "jobs",
            &format!("{good};TransportType=AmqpWebSockets"),
            "TransportType in",
        ),
        (
            "jobs",
            &format!("{good};Authentication=Managed Identity"),
            "authentication in",
        ),
        ("jobs", &format!("{good};{KEY}=="), "a part of"),
        (
            "jobs",
            "Endpoint=sb://h;UseDevelopmentEmulator=true",
            "SharedAccessKey",
        ),
        ("other", &format!("{good};EntityPath=jobs"), "another queue"),
        ("elsewhere/jobs", &good, "different namespaces"),
        (
            "sb://contoso.servicebus.windows.net:99/jobs",
            &good,
            "different",
        ),
        ("", &good, "names no queue"),
        (
            "sb://contoso.servicebus.windows.net",
            &good,
            "names no queue",
        ),
        ("a/b/c", &good, "neither QUEUE nor"),
        ("jobs/$DeadLetterQueue", &good, "--dead-letter-queue"),
        ("sb://h/jobs/$deadletterqueue", &good, "--dead-letter-queue"),
        ("-jobs", &good, "letter or digit"),
        ("jo bs", &good, "letter or digit"),
        ("jobs\nmore", &good, "letter or digit"),
        ("news/Subscriptions/", &good, "rules for names"),
        ("amqp://h/jobs", &good, "UseDevelopmentEmulator"),
        ("http://h/jobs", &good, "sb://"),
        ("sb://h/jobs?sig=x", &good, "more than an address"),
    ] {
        let said = refused(entity, &[(STRING, text)], Auth::Auto);
        assert!(said.contains(word), "{entity} {text}: {said}");
    }
    let pasted = format!("sb://u:{KEY}@h/jobs");
    refused(&pasted, &[], Auth::Auto);
    refused(&good, &[], Auth::Auto);
    assert!(refused("jobs", &[], Auth::Auto).contains("NAMESPACE/QUEUE"));
}

#[test]
fn auth_flag_and_variables_select_the_credential() {
    let good = string("sb://contoso.servicebus.windows.net/", "");
    let emulator = format!("{good};UseDevelopmentEmulator=true");
    let secret = ("AZURE_CLIENT_SECRET", "s3cret");
    let kind = |vars: &[(&str, &str)], auth| find("contoso/jobs", vars, auth).map(|bus| bus.kind());
    assert_eq!(kind(&[(STRING, &good)], Auth::Key), Ok("shared access key"));
    assert!(refused("jobs", &[(STRING, &good)], Auth::Sas).contains("SharedAccessSignature"));
    assert!(refused("contoso/jobs", &[], Auth::Key).contains("SharedAccessKey"));
    assert!(refused("jobs", &[(STRING, &emulator)], Auth::Managed).contains("plain TCP"));
    if cfg!(feature = "entra") {
        assert!(kind(&[], Auth::Auto).is_ok_and(|kind| kind.starts_with("Entra ID")));
        assert_eq!(
            kind(&[(STRING, &good)], Auth::Managed),
            Ok("Entra ID (managed identity)")
        );
        assert_eq!(
            kind(
                &[(STRING, "Endpoint=sb://contoso.servicebus.windows.net")],
                Auth::Cli
            ),
            Ok("Entra ID (Azure CLI)")
        );
        let two = [(STRING, &*good), secret];
        assert!(refused("jobs", &two, Auth::Auto).contains("--auth"));
        let plain = [(STRING, &*emulator), secret];
        assert_eq!(kind(&plain, Auth::Auto), Ok("shared access key"));
    }
}
