//! The packaged completion scripts are those that the program writes, and shells accept them.

use std::path::Path;
use std::process::{Command, Stdio};

use super::{fresh, text};

const TRAFFICCOP: &str = env!("CARGO_BIN_EXE_trafficcop");

const SCRIPTS: [(&str, &str); 3] = [
    ("bash", "completions/trafficcop.bash"),
    ("zsh", "completions/_trafficcop"),
    ("fish", "completions/trafficcop.fish"),
];

fn script(shell: &str) -> Vec<u8> {
    let mut command = Command::new(TRAFFICCOP);
    // It would change the definitions, even if empty.
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("TRAFFICCOP_") {
            command.env_remove(name);
        }
    }
    let output = command.args(["completions", shell]).output();
    let output = output.expect("the binary runs");
    assert!(
        output.status.success() && output.stderr.is_empty(),
        "{output:?}"
    );
    output.stdout
}

#[test]
fn the_packaged_completions_are_the_program_s() {
    for (shell, path) in SCRIPTS {
        fresh(path, &script(shell));
    }
}

#[test]
fn completions_offer_every_verb_and_nothing_hidden() {
    for (shell, path) in SCRIPTS {
        let script = text(path);
        for hidden in ["announce", "find-locked", "find__locked"] {
            assert!(!script.contains(hidden), "{shell} offers {hidden}");
        }
        for verb in super::definition().get_subcommands() {
            let name = verb.get_name();
            assert!(
                verb.is_hide_set() || script.contains(name),
                "{shell}: {name}"
            );
        }
    }
    // The other two shells have scripts, too.
    for shell in ["elvish", "powershell"] {
        assert!(!script(shell).is_empty(), "{shell}");
    }
    let unknown = Command::new(TRAFFICCOP)
        .args(["completions", "tcsh"])
        .output();
    assert_eq!(unknown.expect("it runs").status.code(), Some(64));
}

/// Returns a shell's output for this script; `None` without such a shell.
fn shell(name: &str, options: &[&str], said: &str) -> Option<String> {
    let home = tempfile::tempdir().expect("a directory");
    let ran = Command::new(name)
        .args(options)
        .arg(said)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .env("HOME", home.path())
        .env("XDG_CONFIG_HOME", home.path())
        .env("ZDOTDIR", home.path())
        .stdin(Stdio::null())
        .output();
    let Ok(ran) = ran else {
        println!("SKIPPED: {name} is not installed here, its completions were NOT tried");
        return None;
    };
    let text = String::from_utf8_lossy(&ran.stdout).into_owned();
    let errors = String::from_utf8_lossy(&ran.stderr).into_owned();
    assert!(
        ran.status.success() && errors.is_empty(),
        "{name}: {text}{errors}"
    );
    Some(text)
}

#[test]
fn bash_offers_verbs_flags_and_files() {
    let said = "source completions/trafficcop.bash
        complete -p trafficcop
        try() { COMP_WORDS=(\"$@\"); COMP_CWORD=$(($# - 1)); COMPREPLY=();
            _trafficcop trafficcop \"${COMP_WORDS[COMP_CWORD]}\" \"${COMP_WORDS[COMP_CWORD-1]}\"
            printf '<%s>' \"${COMPREPLY[@]}\"; echo; }
        try trafficcop ru
        try trafficcop reset --once
        try trafficcop run --contain ''
        try trafficcop status --file Cargo.t
        try trafficcop run --file x -- basenam
        try trafficcop work --queue x -- cat README.m";
    let Some(text) = shell("bash", &["--norc", "-c"], said) else {
        return;
    };
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines[0].ends_with(" trafficcop"), "{text}");
    assert_eq!(lines[1], "<run>", "{text}");
    assert_eq!(lines[2], "<--once-key>", "{text}");
    assert_eq!(lines[3], "<auto><cgroup><pidns><none>", "{text}");
    assert_eq!(lines[4], "<Cargo.toml>", "{text}");
    // The command's own completion; without one, bash adds files itself.
    assert!(lines[5].starts_with("<basename>"), "{text}");
    assert!(["<>", "<README.md>"].contains(&lines[6]), "{text}");
}

#[test]
fn zsh_takes_its_completions() {
    // As a login shell finds them, in a directory of `fpath`.
    let said = "fpath=($PWD/completions $fpath); autoload -Uz compinit && compinit -u -D
        print -r -- ${_comps[trafficcop]}; autoload +X _trafficcop && print -r -- loaded
        [[ $functions[_trafficcop] == *'*::command'*_cmdambivalent* ]] && print -r -- command";
    if let Some(text) = shell("zsh", &["-f", "-c"], said) {
        assert_eq!(text, "_trafficcop\nloaded\ncommand\n");
        assert!(Path::new("completions/_trafficcop").exists());
    }
}

#[test]
fn fish_offers_verbs_and_flags() {
    let said = "source completions/trafficcop.fish
        complete -C 'trafficcop ru'
        complete -C 'trafficcop reset --once'
        complete -C 'trafficcop run --file x -- basenam'
        complete -C 'trafficcop run --file x -- cat --show-en'";
    if let Some(text) = shell("fish", &["--no-config", "-c"], said) {
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[0].starts_with("run\t"), "{text}");
        assert!(text.contains("--once-key\t"), "{text}");
        assert!(text.contains("basename"), "{text}");
    }
}
