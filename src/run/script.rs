//! Check for scripts that the kernel cannot start: `execve` would only report a missing file.

use std::ffi::OsString;
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::config::quoted;
use crate::exit::UsageError;

// The kernel reads no more of the first line.
const FIRST_LINE: u64 = 256;

/// Refuses a script with Windows line ends or a missing interpreter.
pub(crate) fn refuse_unusable_script(command: &[OsString]) -> Result<(), UsageError> {
    let script = command.first().and_then(find);
    let Some((script, why)) = script.and_then(|path| Some((path.clone(), problem(&path)?))) else {
        return Ok(());
    };
    let name = quoted(&command[..1]);
    let advice = match why {
        Problem::CarriageReturn => format!(
            "its first line ends in CR LF, as on Windows: convert it, as with sed -i 's/\\r$//' {}",
            quoted(&[script.into()])
        ),
        Problem::NoInterpreter(interpreter) => format!(
            "its interpreter {} does not exist: install it, or change the script's first line",
            interpreter.display()
        ),
    };
    Err(UsageError::of_the_command(format!(
        "cannot run {name}: {advice}"
    )))
}

fn find(name: &OsString) -> Option<PathBuf> {
    let is_file = |path: &PathBuf| path.is_file();
    if name.as_bytes().contains(&b'/') {
        return Some(PathBuf::from(name)).filter(is_file);
    }
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path)
        .map(|folder| folder.join(name))
        .find(is_file)
}

#[derive(Debug, PartialEq, Eq)]
enum Problem {
    CarriageReturn,
    NoInterpreter(PathBuf),
}

fn problem(script: &Path) -> Option<Problem> {
    let mut start = Vec::new();
    let file = File::open(script).ok()?;
    file.take(FIRST_LINE).read_to_end(&mut start).ok()?;
    let line = start.strip_prefix(b"#!")?.split(|b| *b == b'\n').next()?;
    if line.ends_with(b"\r") {
        return Some(Problem::CarriageReturn);
    }
    let interpreter = line.trim_ascii_start();
    let interpreter = interpreter.split(u8::is_ascii_whitespace).next()?;
    let path = Path::new(std::ffi::OsStr::from_bytes(interpreter));
    // A relative path counts from the command's directory, which is this one.
    (!interpreter.is_empty() && matches!(path.try_exists(), Ok(false)))
        .then(|| Problem::NoInterpreter(path.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_line_tells_whether_a_script_can_start() {
        let dir = tempfile::tempdir().unwrap();
        let script = dir.path().join("job");
        for (text, expected) in [
            ("#!/bin/sh\r\necho\r\n", Some(Problem::CarriageReturn)),
            (
                "#! /no/such -e\necho\n",
                Some(Problem::NoInterpreter("/no/such".into())),
            ),
            ("#!/bin/sh\necho\n", None),
            ("#!/usr/bin/env sh\necho\n", None),
            ("#!\n", None),
            ("echo\r\n", None),
        ] {
            std::fs::write(&script, text).unwrap();
            assert_eq!(problem(&script), expected, "{text:?}");
        }
    }
}
