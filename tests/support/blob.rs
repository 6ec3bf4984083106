//! A client for the store that acts as an operator or as another program. It is independent of the
//! code under test. An account SAS made once signs it, so that a request is only text.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::OnceLock;

use azure_core::credentials::Secret;
use azure_core::hmac::hmac_sha256;

use super::azurite::{ACCOUNT, KEY, azurite};
use super::{WAIT_LIMIT, await_for};

pub(super) const VERSION: &str = "2021-12-02";

/// Returns an account SAS for everything, without the leading question mark.
pub(crate) fn sas() -> &'static str {
    static MADE: OnceLock<String> = OnceLock::new();
    MADE.get_or_init(|| sas_for("rwdlacup"))
}

#[must_use]
pub(crate) fn sas_for(permissions: &str) -> String {
    account_sas('b', permissions)
}

#[must_use]
pub(crate) fn account_sas(service: char, permissions: &str) -> String {
    let expiry = "2199-01-01T00:00:00Z";
    let text = format!("{ACCOUNT}\n{permissions}\n{service}\nsco\n\n{expiry}\n\n\n{VERSION}\n\n");
    format!(
        "sv={VERSION}&ss={service}&srt=sco&sp={permissions}&se={expiry}&sig={}",
        signature(&text)
    )
}

#[must_use]
pub(crate) fn sas_of_one(blob: &str, permissions: &str) -> String {
    let expiry = "2199-01-01T00:00:00Z";
    let resource = format!("/blob/{ACCOUNT}/{blob}");
    let text = format!("{permissions}\n\n{expiry}\n{resource}\n\n\n\n{VERSION}\nb\n\n\n\n\n\n\n");
    format!(
        "sv={VERSION}&sr=b&sp={permissions}&se={expiry}&sig={}",
        signature(&text)
    )
}

fn signature(text: &str) -> String {
    let signature = hmac_sha256(text, &Secret::new(KEY)).expect("a good key");
    url::form_urlencoded::byte_serialize(signature.as_bytes()).collect()
}

#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    /// Names are in lower case.
    pub(crate) headers: BTreeMap<String, String>,
    pub(crate) body: String,
}

#[derive(Clone)]
pub(crate) struct Blob {
    /// `CONTAINER/NAME`.
    pub(crate) name: String,
}

impl Blob {
    /// Names a blob, which need not exist.
    #[must_use]
    pub(crate) fn named(name: &str) -> Blob {
        Blob { name: name.into() }
    }

    fn container(&self) -> &str {
        self.name.split('/').next().expect("a name")
    }

    fn ask(method: &str, path: &str, query: &str, headers: &[(&str, &str)]) -> Reply {
        Self::ask_with(method, path, query, headers, "")
    }

    fn ask_with(
        method: &str,
        path: &str,
        query: &str,
        headers: &[(&str, &str)],
        content: &str,
    ) -> Reply {
        let mut stream = TcpStream::connect(("127.0.0.1", azurite().port)).expect("Azurite");
        stream
            .set_read_timeout(Some(WAIT_LIMIT))
            .expect("a time limit");
        let mut text = format!(
            "{method} /{ACCOUNT}/{path}?{query}{}{} HTTP/1.1\r\nHost: 127.0.0.1\r\n\
             Connection: close\r\nContent-Length: {}\r\nx-ms-version: {VERSION}\r\n",
            if query.is_empty() { "" } else { "&" },
            sas(),
            content.len(),
        );
        for (name, value) in headers {
            text += &format!("{name}: {value}\r\n");
        }
        text += "\r\n";
        text += content;
        stream.write_all(text.as_bytes()).expect("Azurite reads");
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).expect("Azurite answers");
        let answer = String::from_utf8_lossy(&bytes);
        let (head, body) = answer.split_once("\r\n\r\n").expect("a whole answer");
        let mut lines = head.lines();
        let status = lines
            .next()
            .and_then(|line| line.split(' ').nth(1)?.parse().ok());
        Reply {
            status: status.expect("a status"),
            headers: lines
                .filter_map(|line| line.split_once(": "))
                .map(|(name, value)| (name.to_lowercase(), value.into()))
                .collect(),
            body: body.into(),
        }
    }

    fn demand(&self, method: &str, query: &str, headers: &[(&str, &str)]) -> Reply {
        let reply = Self::ask(method, &self.name, query, headers);
        assert!(
            reply.status < 300,
            "{method} {} {query} {headers:?}: {reply:?}",
            self.name
        );
        reply
    }

    pub(crate) fn create(&self, metadata: &[(&str, &str)]) {
        Self::ask("PUT", self.container(), "restype=container", &[]);
        let names: Vec<String> = metadata
            .iter()
            .map(|(name, _)| format!("x-ms-meta-{name}"))
            .collect();
        let mut headers = vec![("x-ms-blob-type", "BlockBlob")];
        headers.extend(
            names
                .iter()
                .map(String::as_str)
                .zip(metadata.iter().map(|pair| pair.1)),
        );
        self.demand("PUT", "", &headers);
    }

    pub(crate) fn create_with_data(&self, data: &str) {
        Self::ask("PUT", self.container(), "restype=container", &[]);
        let headers = [("x-ms-blob-type", "BlockBlob")];
        let reply = Self::ask_with("PUT", &self.name, "", &headers, data);
        assert_eq!(reply.status, 201, "{reply:?}");
    }

    pub(crate) fn create_page_blob(&self, bytes: u32) {
        Self::ask("PUT", self.container(), "restype=container", &[]);
        let length = bytes.to_string();
        let headers = [
            ("x-ms-blob-type", "PageBlob"),
            ("x-ms-blob-content-length", &*length),
        ];
        self.demand("PUT", "", &headers);
    }

    pub(crate) fn write_page(&self) {
        let headers = [("x-ms-page-write", "update"), ("x-ms-range", "bytes=0-511")];
        let reply = Self::ask_with("PUT", &self.name, "comp=page", &headers, &"x".repeat(512));
        assert_eq!(reply.status, 201, "{reply:?}");
    }

    #[must_use]
    pub(crate) fn all_in_its_container(&self) -> Vec<String> {
        let reply = Self::ask("GET", self.container(), "restype=container&comp=list", &[]);
        let names = reply.body.split("<Name>").skip(1);
        names
            .filter_map(|rest| Some(rest.split_once("</Name>")?.0.to_owned()))
            .collect()
    }

    /// Returns the blob's properties and metadata; `None` if it does not exist.
    #[must_use]
    pub(crate) fn look(&self) -> Option<BTreeMap<String, String>> {
        let reply = Self::ask("HEAD", &self.name, "", &[]);
        (reply.status == 200).then_some(reply.headers)
    }

    /// Returns `available`, `leased`, `expired`, `breaking` or `broken`; `missing` without a blob.
    #[must_use]
    pub(crate) fn lease_state(&self) -> String {
        self.look().map_or("missing".into(), |headers| {
            headers["x-ms-lease-state"].clone()
        })
    }

    pub(crate) fn await_lease_state(&self, state: &str) {
        await_for(
            &format!("the lease of {} to be {state}", self.name),
            || (self.lease_state() == state).then_some(()),
            || format!("it is {}: {:?}", self.lease_state(), self.look()),
        );
    }

    #[must_use]
    pub(crate) fn metadata(&self, name: &str) -> Option<String> {
        self.look()?.get(&format!("x-ms-meta-{name}")).cloned()
    }

    /// Takes the lease as a foreign client, for this many seconds.
    pub(crate) fn acquire(&self, id: &str, seconds: i32) {
        let seconds = seconds.to_string();
        self.demand(
            "PUT",
            "comp=lease",
            &[
                ("x-ms-lease-action", "acquire"),
                ("x-ms-proposed-lease-id", id),
                ("x-ms-lease-duration", &seconds),
            ],
        );
    }

    /// Writes metadata as the lease's holder or a copy of it does.
    pub(crate) fn write(&self, id: &str, metadata: &[(&str, &str)]) {
        let names: Vec<String> = metadata
            .iter()
            .map(|(name, _)| format!("x-ms-meta-{name}"))
            .collect();
        let mut headers = vec![("x-ms-lease-id", id)];
        headers.extend(
            names
                .iter()
                .map(String::as_str)
                .zip(metadata.iter().map(|pair| pair.1)),
        );
        self.demand("PUT", "comp=metadata", &headers);
    }

    /// Removes all metadata, as another program does, later than the second in which the blob was
    /// made.
    pub(crate) fn strip(&self) {
        await_for(
            "the blob's times to differ",
            || {
                self.demand("PUT", "comp=metadata", &[]);
                let told = self.look()?;
                (told["last-modified"] != told["x-ms-creation-time"]).then_some(())
            },
            || format!("{:?}", self.look()),
        );
    }

    pub(crate) fn release(&self, id: &str) {
        self.demand(
            "PUT",
            "comp=lease",
            &[("x-ms-lease-action", "release"), ("x-ms-lease-id", id)],
        );
    }

    /// Breaks the lease as an operator does; without a period, at its end.
    pub(crate) fn break_lease(&self, period: Option<u32>) {
        let period = period.map(|seconds| seconds.to_string());
        let mut headers = vec![("x-ms-lease-action", "break")];
        headers.extend(
            period
                .iter()
                .map(|text| ("x-ms-lease-break-period", text.as_str())),
        );
        self.demand("PUT", "comp=lease", &headers);
    }

    /// Deletes the container with everything in it: no lease prevents that.
    pub(crate) fn delete_container(&self) {
        let reply = Self::ask("DELETE", self.container(), "restype=container", &[]);
        assert_eq!(reply.status, 202, "{reply:?}");
    }

    pub(crate) fn delete(&self, id: &str) {
        self.demand("DELETE", "", &[("x-ms-lease-id", id)]);
    }
}
