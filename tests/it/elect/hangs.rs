//! Health checks of a reader.

use std::io::Write as _;
use std::net::TcpListener;
use std::path::PathBuf;

use super::*;

/// Starts a server that reports health as long as this file is missing; returns its address.
fn well_without(sick: PathBuf) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        let mut silent = Vec::new();
        for mut stream in listener.incoming().flatten() {
            if sick.exists() {
                silent.push(stream);
                continue;
            }
            let request = BufReader::new(stream.try_clone().unwrap());
            let lines = request.lines().map_while(Result::ok);
            lines.take_while(|line| !line.is_empty()).for_each(drop);
            let _ = stream.write_all(b"HTTP/1.1 204 No Content\r\n\r\n");
        }
    });
    url
}

#[test]
fn a_reader_that_hangs_loses_control_to_another_after_its_grace() {
    let scene = Scene::new();
    let sick = scene.path("sick");
    let url = well_without(sick.clone());
    let asked = |name: &str, url: &str| {
        let run = on_file(&scene)
            .args(["--health", url, "--health-every", "1s"])
            .args(["--cooldown", "1h", "--grace", "4s"]);
        Pair::start(name, run)
    };
    let first = asked("first", &url);
    first.heard.await_line("holder 1");
    let second = asked("second", &well_without(scene.path("never")));
    second.heard.await_line("standby first");
    std::fs::File::create(&sick).unwrap();
    let told = first.heard.await_line("standby unknown");
    let next = second.heard.await_line("holder 2");
    // Half of the grace: the reader may have read late.
    assert!(next - told >= 2 * SECOND, "the grace: {}", next - told);
    first
        .instance
        .await_log("telling the reader to stop: hung: --health failed 3");
    first.instance.await_log("cooling down");
    let mut pairs = [first, second];
    judge(&pairs);
    for pair in &mut pairs {
        pair.instance.signal(Signal::SIGTERM);
        assert_eq!(pair.instance.wait(), TERM);
    }
}
