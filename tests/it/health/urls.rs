use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::{COOL, PATIENT, TOO_LONG, TWO_FAIL, pace, stop};
use crate::support::await_for;
use crate::support::closed_port::ClosedPort;
use crate::support::scene::Scene;

type Responder = fn(TcpStream);

/// Server with the number of its connections.
struct Server {
    url: String,
    came: Arc<AtomicUsize>,
}

impl Server {
    fn that(answers: Responder) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("bound").port();
        let came = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&came);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                counted.fetch_add(1, Ordering::SeqCst);
                std::thread::spawn(move || {
                    let request = BufReader::new(stream.try_clone().expect("a descriptor"));
                    let lines = request.lines().map_while(Result::ok);
                    lines.take_while(|line| !line.is_empty()).for_each(drop);
                    answers(stream);
                });
            }
        });
        Server {
            url: format!("http://127.0.0.1:{port}/healthz?full=1"),
            came,
        }
    }

    fn await_asked(&self, times: usize) {
        await_for(
            "the server to be asked",
            || (self.came.load(Ordering::SeqCst) >= times).then_some(()),
            String::new,
        );
    }
}

fn say(mut stream: TcpStream, text: &str) {
    let _ = stream.write_all(text.as_bytes());
}

#[test]
fn a_server_that_answers_keeps_control_however_long_its_answer_is() {
    for answers in [
        (|stream| say(stream, "HTTP/1.1 204 No Content\r\n\r\n")) as Responder,
        |stream| say(stream, "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"),
        |mut stream| {
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n");
            while stream.write_all(&[b'x'; 4096]).is_ok() {}
        },
    ] {
        let server = Server::that(answers);
        let scene = Scene::new();
        let mut one = scene
            .run_on_file()
            .args(["--health", &server.url])
            .args(PATIENT)
            .args(TWO_FAIL)
            // Checks of this machine do not use a proxy.
            .env("http_proxy", "http://127.0.0.1:1")
            .command(["sleep", "1000"])
            .start();
        server.await_asked(3);
        assert!(!one.stderr().contains("--health"), "{}", one.stderr());
        stop(&mut one);
    }
}

#[test]
fn a_server_that_does_not_answer_well_costs_control() {
    for (answers, why) in [
        (
            (|stream| say(stream, "HTTP/1.1 503 Service Unavailable\r\n\r\n")) as Responder,
            "was answered 503",
        ),
        (
            |stream| say(stream, "HTTP/1.1 302 Found\r\nlocation: /ok\r\n\r\n"),
            "was answered 302, a redirect, which is not followed",
        ),
        (
            |stream| {
                std::thread::sleep(std::time::Duration::from_secs(600));
                drop(stream);
            },
            TOO_LONG,
        ),
        (
            |mut stream| {
                let _ = stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n");
                while stream.write_all(b"x").is_ok() {
                    std::thread::sleep(std::time::Duration::from_millis(50));
                }
            },
            TOO_LONG,
        ),
        (
            |stream| say(stream, "HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nok"),
            "got an incomplete answer",
        ),
        (
            |stream| say(stream, "220 smtp\r\n"),
            "got an incomplete answer",
        ),
    ] {
        let server = Server::that(answers);
        let scene = Scene::new();
        let mut one = scene
            .run_on_file()
            .args(["--health", &server.url])
            .args(pace(why))
            .args(TWO_FAIL)
            .args(COOL)
            .command(["sleep", "1000"])
            .start();
        one.await_log(&format!("--health {why} (1 of 2 in a row)"));
        one.await_log(&format!("2 times in a row; the last time it {why}"));
        one.await_log("cooling down");
        let asked = server.came.load(Ordering::SeqCst);
        assert_eq!(asked, 2, "a redirect was followed, or a check repeated");
        stop(&mut one);
    }
}

#[test]
fn closed_port_costs_control() {
    let closed = ClosedPort::new();
    let url = format!("http://localhost:{}/", closed.port);
    let scene = Scene::new();
    let mut one = scene
        .run_on_file()
        .args(["--health", &url])
        .args(PATIENT)
        .args(TWO_FAIL)
        .args(COOL)
        .command(["sleep", "1000"])
        .start();
    one.await_log("the last time it could not connect");
    one.await_log("cooling down");
    stop(&mut one);
}
