//! Microsoft's own Python client at both ends: its messages are processed byte for byte, and it
//! reads dead-lettered ones.
//!
//! Needs `azure-storage-queue` from PyPI in the Python that `TRAFFICCOP_TEST_PYTHON` names (default
//! python3). Without it, and in CI, the test is skipped with a message.

use std::process::Command;

use super::*;

const SEND: &str = "
import sys
from azure.storage.queue import *
connection, name = sys.argv[1:]
def queue(encode):
    return QueueClient.from_connection_string(connection, name, message_encode_policy=encode, api_version='2021-12-02')
queue(BinaryBase64EncodePolicy()).send_message(bytes(range(256)) * 100)
queue(TextBase64EncodePolicy()).send_message('gr\\u00fc\\u00dfe <&> in base64')
queue(TextBase64EncodePolicy()).send_message('abcdef')
queue(None).send_message('{\"plain\": \"<&>\"}')
";

const LOOK: &str = "
import sys
from azure.storage.queue import *
connection, name = sys.argv[1:]
queue = QueueClient.from_connection_string(connection, name, api_version='2021-12-02')
print(queue.get_queue_properties().approximate_message_count)
poison = QueueClient.from_connection_string(connection, name + '-poison', api_version='2021-12-02')
for message in poison.peek_messages(32):
    print(message.content)
";

#[test]
fn microsoft_s_client_sends_and_inspects() {
    let python = std::env::var("TRAFFICCOP_TEST_PYTHON").unwrap_or_else(|_| "python3".into());
    let is_there = Command::new(&python)
        .args(["-c", "import azure.storage.queue"])
        .output()
        .is_ok_and(|output| output.status.success());
    if std::env::var_os("CI").is_some() || !is_there {
        println!(
            "SKIPPED: {python} has no azure-storage-queue (pip install azure-storage-queue): not tried against \
             Microsoft's client"
        );
        return;
    }
    let (scene, mailbox) = (Scene::new(), Mailbox::fresh());
    let connection = queue_string(queues().port, KEY);
    let ask = |script: &str| {
        let output = Command::new(&python)
            .args(["-c", script, &connection, &mailbox.name])
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{said}");
        String::from_utf8(output.stdout).unwrap()
    };
    ask(SEND);
    let done = worker(&scene, &mailbox)
        .args(["--encoding", "base64", "--idle-exit", "0s"])
        .current_dir(scene.directory())
        .shell("cat > body; cp body body-$(wc -c < body)")
        .finish();
    assert_ended(&done, 0, "NotBase64");
    let binary: Vec<u8> = (0..=255).cycle().take(25_600).collect();
    assert!(std::fs::read(scene.path("body-25600")).unwrap() == binary);
    for text in ["grüße <&> in base64", "abcdef"] {
        let read = std::fs::read_to_string(scene.path(&format!("body-{}", text.len()))).unwrap();
        assert_eq!(read, text);
    }
    assert_eq!(ask(LOOK), "0\n{\"plain\": \"<&>\"}\n");
}
