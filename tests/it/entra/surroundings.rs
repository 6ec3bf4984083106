//! Trust and proxies of https, and settings refused before anything starts.

use std::fs::Permissions;
use std::io::{BufRead, BufReader, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::sync::{Arc, Mutex};

use super::*;

#[test]
fn an_authority_s_file_that_will_not_do_is_refused_before_anything_starts() {
    let stage = Stage::new("ca-bad");
    let good = std::fs::read_to_string(&authority().file).expect("a file");
    let body = good.lines().nth(2).expect("a line");
    for (name, text, word) in [
        ("empty", String::new(), "has no certificate"),
        ("garbage", "no certificate".into(), "has no certificate"),
        (
            "key",
            std::fs::read_to_string(&authority().key).expect("a file"),
            "has no certificate",
        ),
        ("broken", good.replace(body, ""), "number 1"),
        ("second", good.clone() + &good.replace(body, ""), "number 2"),
    ] {
        let file = stage.scene.path(name);
        std::fs::write(&file, text).expect("a file");
        let run = stage
            .with_secret(stage.run())
            .env("TRAFFICCOP_CA_FILE", &file);
        refused(&run.shell("echo run").finish(), 64, &[name, word]);
    }
    let file = stage.scene.path("private");
    std::fs::write(&file, &good).expect("a file");
    std::fs::set_permissions(&file, Permissions::from_mode(0o000)).expect("ours");
    let run = stage.with_secret(stage.run()).bound_by_permissions();
    let run = run.env("TRAFFICCOP_CA_FILE", &file);
    let words = ["private", "cannot be read", "ermission denied"];
    refused(&run.shell("echo run").finish(), 64, &words);
    for (file, word) in [
        (stage.scene.path("nowhere"), "cannot be read"),
        (stage.scene.directory().to_owned(), "is not a file"),
    ] {
        let run = stage
            .with_secret(stage.verb("status"))
            .env("TRAFFICCOP_CA_FILE", &file);
        refused(&run.finish(), 64, &[word]);
    }
    assert!(stage.desk.asked().is_empty());
}

#[test]
fn unknown_authority_is_refused_unless_in_ssl_cert_file() {
    let stage = Stage::new("ca-none");
    let run = stage.with_secret(stage.run()).env("TRAFFICCOP_CA_FILE", "");
    // None of the machine's own has signed it.
    let run = run.env("SSL_CERT_FILE", &authority().file);
    let finished = run.shell("echo run").finish();
    assert_eq!(finished.ended, Ended::Code(0), "{finished:?}");
    let other = rcgen::generate_simple_self_signed(["other.example".to_owned()]);
    let file = stage.scene.path("other.pem");
    std::fs::write(&file, other.expect("a certificate").cert.pem()).expect("a file");
    let run = stage
        .with_secret(stage.verb("status"))
        .env("TRAFFICCOP_CA_FILE", &file);
    refused(&run.finish(), 69, &["certificate"]);
}

#[test]
fn options_for_blobs_are_refused_on_a_file() {
    let scene = Scene::new();
    for flags in [["--auth", "entra"], ["--ca-file", "/etc/hostname"]] {
        let run = scene.run_on_file().args(flags).shell("echo run");
        refused(
            &run.finish(),
            64,
            &[flags[0], "--file: it is for a lock on a blob"],
        );
    }
    let status = |flags: [&str; 2]| {
        let status = scene.verb("status").arg("--file").arg(scene.lock());
        status.args(flags).finish()
    };
    refused(
        &status(["--auth", "entra"]),
        64,
        &["--auth", "--file: it is for a lock on a blob"],
    );
    // In a unit's environment this is for the checks of `--health`.
    let finished = status(["--ca-file", "/etc/hostname"]);
    assert_eq!(finished.ended, Ended::Code(1), "{finished:?}");
    // Other stores' settings are not read.
    let run = scene.run_on_file().env("AZURE_CLIENT_SECRET", SECRET);
    let run = run
        .env("AZURE_AUTHORITY_HOST", "nonsense://")
        .env("SSL_CERT_FILE", "/nowhere")
        .env("HTTPS_PROXY", "http://127.0.0.1:1");
    assert_eq!(run.shell("true").finish().ended, Ended::Code(0));
}

/// Starts a proxy that connects where it is told to, and records where.
fn proxy() -> (u16, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
    let port = listener.local_addr().expect("it is bound").port();
    let told = Arc::new(Mutex::new(Vec::new()));
    let ours = Arc::clone(&told);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(stream) = stream else { return };
            let ours = Arc::clone(&ours);
            std::thread::spawn(move || tunnel(stream, &ours));
        }
    });
    (port, told)
}

fn tunnel(mut stream: TcpStream, told: &Mutex<Vec<String>>) -> Option<()> {
    let mut reader = BufReader::new(stream.try_clone().ok()?);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        (reader.read_line(&mut head).ok()? > 0).then_some(())?;
    }
    let first = head.lines().next()?.to_owned();
    told.lock().expect("a list").push(first.clone());
    let target = first
        .strip_prefix("CONNECT ")?
        .split(' ')
        .next()?
        .to_owned();
    let mut upstream = TcpStream::connect(target).ok()?;
    stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").ok()?;
    let mut up = upstream.try_clone().ok()?;
    std::thread::spawn(move || {
        let _ = std::io::copy(&mut reader, &mut up);
        let _ = up.shutdown(Shutdown::Both);
    });
    let _ = std::io::copy(&mut upstream, &mut stream);
    let _ = stream.shutdown(Shutdown::Both);
    Some(())
}

#[test]
fn https_takes_the_way_that_the_environment_says() {
    let stage = Stage::new("by-proxy");
    let (port, told) = proxy();
    let run = || {
        let run = stage.with_secret(stage.run());
        run.env("HTTPS_PROXY", format!("http://127.0.0.1:{port}"))
    };
    let finished = run().shell("echo run").finish();
    assert_eq!(finished.ended, Ended::Code(0), "{finished:?}");
    let seen = told.lock().expect("a list").clone();
    for to in [store().port, stage.desk.port] {
        let line = format!("CONNECT 127.0.0.1:{to} HTTP/1.1");
        assert!(seen.contains(&line), "no {line} in {seen:?}");
    }
    // A proxy sees nothing more.
    no_secret(&seen.join("\n"));

    told.lock().expect("a list").clear();
    let finished = run()
        .env("NO_PROXY", "127.0.0.1")
        .shell("echo run")
        .finish();
    assert_eq!(finished.ended, Ended::Code(0), "{finished:?}");
    let seen = told.lock().expect("a list").clone();
    assert_eq!(seen, [""; 0]);
}
