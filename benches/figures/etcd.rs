//! An etcd of one's own for the time of the figures. Used by `tools`; ends with this process, however
//! that ends.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};

use crate::instance::await_for;
use crate::programs;

/// A running server.
pub(crate) struct Etcd {
    /// Where clients find it, on 127.0.0.1.
    pub(crate) port: u16,
    /// Holds the pipe that the kernel closes when this process ends.
    _life: Child,
    _directory: tempfile::TempDir,
}

/// Starts one, and tells its version.
///
/// # Errors
/// What is missing.
pub(crate) fn start() -> Result<(String, Etcd), String> {
    let version = programs::version("etcd").ok_or("etcd (etcd-server) is not installed")?;
    if Command::new("etcdctl")
        .env("ETCDCTL_API", "3")
        .arg("version")
        .output()
        .is_err()
    {
        return Err("etcdctl (etcd-client) is not installed".to_owned());
    }
    let failed = |error: std::io::Error| format!("etcd does not start: {error}");
    // It can be told no port 0; both are free while we look.
    let free =
        || Ok::<_, std::io::Error>(TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port());
    let (port, peers) = (free().map_err(failed)?, free().map_err(failed)?);
    let directory = tempfile::tempdir().map_err(failed)?;
    let (client, peer) = (
        format!("http://127.0.0.1:{port}"),
        format!("http://127.0.0.1:{peers}"),
    );
    let life = Command::new("sh")
        .args([
            "-c",
            "exec 3<&0; etcd \"$@\" </dev/null 3<&- & cat <&3; kill -9 $!",
            "etcd",
        ])
        .arg("--data-dir")
        .arg(directory.path().join("data"))
        .args(["--listen-client-urls", &client])
        .args(["--advertise-client-urls", &client])
        .args(["--listen-peer-urls", &peer])
        .args(["--initial-advertise-peer-urls", &peer])
        .args(["--initial-cluster", &format!("default={peer}")])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .map_err(failed)?;
    let etcd = Etcd {
        port,
        _life: life,
        _directory: directory,
    };
    await_for("etcd to have a leader", || {
        let status = etcd.client(None).args(["endpoint", "health"]).output();
        status
            .is_ok_and(|output| output.status.success())
            .then_some(())
    })?;
    Ok((version, etcd))
}

impl Etcd {
    /// Its client, perhaps by another port.
    pub(crate) fn client(&self, port: Option<u16>) -> Command {
        let mut command = Command::new("etcdctl");
        let port = port.unwrap_or(self.port);
        command
            .env("ETCDCTL_API", "3")
            .arg(format!("--endpoints=http://127.0.0.1:{port}"));
        command
    }

    /// How many messages it has had from clients, keep-alives included.
    pub(crate) fn requests(&self) -> Option<f64> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).ok()?;
        stream
            .write_all(b"GET /metrics HTTP/1.0\r\nHost: localhost\r\n\r\n")
            .ok()?;
        let mut text = String::new();
        stream.read_to_string(&mut text).ok()?;
        let counts = text.lines().filter_map(|line| {
            let rest = line.strip_prefix("grpc_server_msg_received_total{")?;
            rest.rsplit(' ').next()?.parse::<f64>().ok()
        });
        Some(counts.sum())
    }
}
