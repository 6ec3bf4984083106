use std::fs;
use std::io::Write as _;

use nix::sys::stat::Mode;
use nix::unistd::mkfifo;

use super::super::credential::STORAGE;
use super::*;

fn entra(file: &str) -> Entra {
    let env = |name: &str| match name {
        TOKEN_FILE => Some(file.to_owned()),
        CLIENT | TENANT => Some("contoso".to_owned()),
        _ => None,
    };
    let endpoint = Url::parse("https://contoso.blob.core.windows.net").expect("a URL");
    let client = Arc::new(Client::new(true, 1, Default::default(), None));
    Entra::new(Auth::Workload, &env, &endpoint, client, STORAGE).expect("a credential")
}

async fn make(entra: &Entra, limit: Duration) -> Result<(), String> {
    let give_up_at = Instant::now() + limit;
    let options = ClientOptions {
        transport: Some(Transport::new(Arc::clone(&entra.client) as _)),
        ..ClientOptions::default()
    };
    let made = entra.make(&entra.sources[0], options, give_up_at).await;
    let made = made.map_err(|error| {
        assert_eq!(error.kind, NoTokenKind::Doubt, "{error:?}");
        error.why
    })?;
    made.map(drop).map_err(|error| error.to_string())
}

fn readers() -> usize {
    let threads = fs::read_dir("/proc/self/task").expect("our threads");
    let name = |thread: fs::DirEntry| fs::read_to_string(thread.path().join("comm")).ok();
    let names = threads.filter_map(|thread| name(thread.ok()?));
    names.filter(|name| name == "credential\n").count()
}

#[tokio::test]
async fn hanging_token_file_blocks_one_thread_for_any_number_of_requests() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("federated");
    mkfifo(&file, Mode::S_IRWXU).expect("a fifo");
    let entra = entra(file.to_str().expect("text"));
    let in_vain = "AZURE_FEDERATED_TOKEN_FILE: its file cannot be read in time";
    let asks_in_vain = async || {
        let made = make(&entra, Duration::from_millis(100)).await;
        assert_eq!(made, Err(in_vain.to_owned()));
    };
    asks_in_vain().await;
    // open(2) for writing returns as soon as the other thread reads.
    let mut writer = fs::File::options().write(true).open(&file).expect("a fifo");
    for _ in 0..3 {
        asks_in_vain().await;
    }
    assert_eq!(readers(), 1);
    let renewed = directory.path().join("renewed");
    fs::write(&renewed, "t0k3n").expect("a file");
    fs::rename(&renewed, &file).expect("ours");
    writer.write_all(b"t0k3n").expect("a reader");
    drop(writer);
    assert_eq!(make(&entra, Duration::from_secs(60)).await, Ok(()));
}
