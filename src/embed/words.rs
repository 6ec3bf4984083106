//! Messages in the terms of a program.

use crate::core::Failure;

const ADVICE: &[(&str, &str)] = &[
    (
        "; or use --emulator",
        "; UseDevelopmentStorage=true as the connection string is Azurite",
    ),
    (
        "for the emulator use --emulator",
        "UseDevelopmentStorage=true as the connection string is Azurite",
    ),
    ("--ca-file or SSL_CERT_FILE", "SSL_CERT_FILE"),
    ("--ca-file", "SSL_CERT_FILE"),
    ("--auth auto: ", ""),
    (
        "two credentials: choose with --auth key, sas or entra",
        "unset one of the two",
    ),
    ("use --auth entra", "use a token credential"),
    (
        "refused for as long as --auth-patience",
        "refused for five minutes",
    ),
    ("but SIGTERM is due after", "but control ends after"),
    ("and a SIGKILL need", "and the end of the work need"),
    ("add --shared, or name another file", "name another file"),
    ("or add --create", "or call create()"),
];

/// Returns the message with methods and fields in place of flags, such as `lock_time`.
pub(super) fn of_a_program(text: &str) -> String {
    let text = ADVICE.iter().fold(text.to_owned(), |text, (flags, words)| {
        text.replace(flags, words)
    });
    let mut words = String::with_capacity(text.len());
    let mut rest = text.as_str();
    while let Some(at) = rest.find("--") {
        let (before, flag) = (&rest[..at], &rest[at + 2..]);
        let length = flag.find(|c: char| !c.is_ascii_lowercase() && c != '-');
        let name = &flag[..length.unwrap_or(flag.len())];
        words.push_str(before);
        // A user's name may contain two hyphens.
        match name.is_empty()
            || name.starts_with('-')
            || before.ends_with(|c: char| c.is_alphanumeric())
        {
            true => words.extend(["--", name]),
            false => words.push_str(&name.replace('-', "_")),
        }
        rest = &flag[name.len()..];
    }
    words.push_str(rest);
    words
}

pub(super) fn of_a_failure(mut failure: Failure) -> Failure {
    if let Failure::Lost { why, .. } | Failure::Transient { why, .. } | Failure::Fatal { why, .. } =
        &mut failure
    {
        *why = of_a_program(why);
    }
    failure
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_become_methods_and_fields_and_names_stay() {
        for (text, words) in [
            (
                "--margin 1.399 s is too short for --lease 60 s",
                "margin 1.399 s is too short for lease 60 s",
            ),
            ("pass --mkdir-is-exclusive if", "pass mkdir_is_exclusive if"),
            (
                "no such queue q: make it, or add --create",
                "no such queue q: make it, or call create()",
            ),
            (
                "`lo--cks` cannot be a queue -- at all",
                "`lo--cks` cannot be a queue -- at all",
            ),
            ("the end --", "the end --"),
            ("", ""),
        ] {
            assert_eq!(of_a_program(text), words);
        }
    }
}
