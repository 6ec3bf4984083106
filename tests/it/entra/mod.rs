//! Tokens of Entra ID: Azurite over https with `--oauth basic`, an authority of the tests, and a
//! token endpoint that fails on command.
//!
//! Azurite checks a token's format and time, not its signature.

mod desk;
mod guardian;
mod secrets;
mod surroundings;
mod trouble;
mod verbs;
mod ways;

use std::fs::File;
use std::sync::OnceLock;

use crate::authority::authority;
use crate::support::azurite::{ACCOUNT, Azurite, start_with};
use crate::support::instance::{Ended, Finished, Instance, Run};
use crate::support::journal::What;
use crate::support::scene::Scene;
use desk::Desk;

const TENANT: &str = "contoso.example";
const CLIENT: &str = "0f0f0f0f-aaaa-bbbb-cccc-121212121212";
/// Secret of the client, and content of Kubernetes' federated token file.
const SECRET: &str = "cl13nt~s3cr3t";
const ASSERTION: &str = "f3d3rat3d.t0k3n.0f-kub3rn3t3s";
/// The platform's identity endpoint requires it.
const HEADER: &str = "pl4tf0rm-h3ad3r";
const HOUR: u64 = 3600;
const SECOND: u64 = 1_000_000_000;

fn store() -> &'static Azurite {
    static RUNNING: OnceLock<Azurite> = OnceLock::new();
    RUNNING.get_or_init(|| {
        let authority = authority();
        let (cert, key) = (&authority.certificate, &authority.key);
        let words = ["--oauth", "basic", "--cert"].map(AsRef::as_ref);
        let [oauth, basic, flag] = words;
        start_with(
            "blob",
            &[
                oauth,
                basic,
                flag,
                cert.as_os_str(),
                "--key".as_ref(),
                key.as_os_str(),
            ],
        )
    })
}

struct Stage {
    scene: Scene,
    desk: Desk,
    blob: String,
}

impl Stage {
    fn new(container: &str) -> Stage {
        Stage::with(container, Desk::secure())
    }

    fn local(container: &str) -> Stage {
        Stage::with(container, Desk::plain())
    }

    fn with(container: &str, desk: Desk) -> Stage {
        let port = store().port;
        Stage {
            scene: Scene::new(),
            desk,
            blob: format!("https://127.0.0.1:{port}/{ACCOUNT}/{container}/singleton"),
        }
    }

    fn verb(&self, verb: &str) -> Run<'_> {
        self.scene
            .verb(verb)
            .env("TRAFFICCOP_CA_FILE", &authority().file)
            .env("AZURE_AUTHORITY_HOST", self.desk.address())
            .args(["--blob", &self.blob])
    }

    fn run(&self) -> Run<'_> {
        self.verb("run")
            .env("TRAFFICCOP_LEASE", "15s")
            .env("TRAFFICCOP_POLL", "500ms")
    }

    fn with_secret<'a>(&self, run: Run<'a>) -> Run<'a> {
        run.env("AZURE_TENANT_ID", TENANT)
            .env("AZURE_CLIENT_ID", CLIENT)
            .env("AZURE_CLIENT_SECRET", SECRET)
    }

    fn with_workload<'a>(&self, run: Run<'a>) -> Run<'a> {
        let file = self.scene.path("federated");
        std::fs::write(&file, ASSERTION).expect("a file");
        run.env("AZURE_TENANT_ID", TENANT)
            .env("AZURE_CLIENT_ID", CLIENT)
            .env("AZURE_FEDERATED_TOKEN_FILE", file)
    }

    fn with_endpoint<'a>(&self, run: Run<'a>) -> Run<'a> {
        run.env("IDENTITY_ENDPOINT", self.desk.address() + "/msi/token")
            .env("IDENTITY_HEADER", HEADER)
    }

    /// Starts an instance whose command writes into the journal until [`Stage::let_end`].
    fn instance(&self, run: Run<'_>, name: &str, command: &[&str]) -> Instance {
        let done = self.scene.path(&format!("{name}.done"));
        let mut words = vec!["--until", done.to_str().expect("text")];
        words.extend(command);
        let run = run.args(["--identity", name]);
        run.journalist(name, &words).start()
    }

    fn let_end(&self, name: &str) {
        File::create(self.scene.path(&format!("{name}.done"))).expect("a file");
    }

    fn assert_undisturbed(&self) {
        let journal = &self.scene.journal;
        let term = |line: &crate::support::journal::Line| line.what == What::Term;
        assert!(!journal.lines().iter().any(term), "{journal}");
    }
}

/// Checks a refusal: this status, one line with all these words, and no secret.
fn refused(finished: &Finished, status: i32, words: &[&str]) {
    assert_eq!(finished.ended, Ended::Code(status), "{finished:?}");
    let lines = finished.stderr.lines();
    let errors: Vec<&str> = lines.filter(|line| line.contains(" error: ")).collect();
    let [line] = errors[..] else {
        panic!("not one line that says why: {finished:?}");
    };
    for word in words {
        assert!(line.contains(word), "no {word:?} in {line}");
    }
    no_secret(&finished.stderr);
}

fn no_secret(text: &str) {
    for secret in [SECRET, ASSERTION, HEADER, desk::MARK] {
        assert!(!text.contains(secret), "{secret} is shown:\n{text}");
    }
}
