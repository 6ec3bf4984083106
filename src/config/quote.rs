//! Commands and words as a user would type them, in one line: for errors and for the lock's record.

use crate::util::is_unprintable;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

#[must_use]
pub(crate) fn quoted(command: &[OsString]) -> String {
    let words: Vec<String> = command.iter().map(|word| quoted_word(word)).collect();
    words.join(" ")
}

// No crate: those refuse what is not UTF-8, or leave a line break in the word. The log and the record are read
// line by line.
pub(super) fn quoted_word(word: &OsStr) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "_-./=:,@%+^".contains(c);
    match word.to_str() {
        Some(text) if !text.is_empty() && text.chars().all(plain) => return text.to_owned(),
        Some(text) if !text.chars().any(is_unprintable) => {
            return format!("'{}'", text.replace('\'', r"'\''"));
        }
        _ => {}
    }
    let hex = |bytes: &[u8]| -> String { bytes.iter().map(|b| format!("\\x{b:02x}")).collect() };
    let mut spelt = String::from("$'");
    for chunk in word.as_bytes().utf8_chunks() {
        for c in chunk.valid().chars() {
            match c {
                '\'' | '\\' => spelt.extend(['\\', c]),
                '\n' => spelt.push_str("\\n"),
                '\t' => spelt.push_str("\\t"),
                c if is_unprintable(c) => spelt += &hex(c.encode_utf8(&mut [0; 4]).as_bytes()),
                c => spelt.push(c),
            }
        }
        spelt += &hex(chunk.invalid());
    }
    spelt + "'"
}

pub(super) fn cut(text: &str, limit: usize) -> &str {
    let mut end = limit.min(text.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}
