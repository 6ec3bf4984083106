//! The man pages of the program and of the verbs that drive a command, and what all pages are made with.

use clap_mangen::Man;
use clap_mangen::roff::{Inline, Roff, bold, italic, roman};
use trafficcop::work::handover;
use trafficcop::{cli, exit};

use crate::definition;
use crate::verbs::VERBS;

pub(crate) fn run_definition() -> clap::Command {
    let definition = definition();
    let run = definition.find_subcommand("run").expect("there is a run");
    // Sections of our own follow; what clap appends to the help would be there twice.
    run.clone()
        .name("trafficcop-run")
        .display_name("trafficcop-run")
        .after_long_help("")
}

pub(crate) fn elect_definition() -> clap::Command {
    let definition = definition();
    let elect = definition.find_subcommand("elect").expect("an elect");
    elect
        .clone()
        .name("trafficcop-elect")
        .display_name("trafficcop-elect")
        .after_long_help("")
}

pub(crate) fn page_of_elect() -> Vec<u8> {
    let man = Man::new(elect_definition()).date("");
    let mut page = Vec::new();
    let write = "a vector takes everything";
    man.render_title(&mut page).expect(write);
    man.render_name_section(&mut page).expect(write);
    let mut synopsis = Roff::new();
    synopsis.control("SH", ["SYNOPSIS"]);
    synopsis.text([
        bold("trafficcop elect --blob"),
        roman(" CONTAINER/NAME [OPTIONS]"),
    ]);
    synopsis.control("br", []);
    synopsis.text([bold("trafficcop elect --file"), roman(" PATH [OPTIONS]")]);
    synopsis.to_writer(&mut page).expect(write);
    man.render_description_section(&mut page).expect(write);
    man.render_options_section(&mut page).expect(write);
    let mut rest = Roff::new();
    section(&mut rest, "JSON", cli::FIELDS);
    section(&mut rest, "EXIT STATUS", cli::ELECT_STATUS);
    section(&mut rest, "ENVIRONMENT", cli::FOR_THE_STORE);
    rest.control("PP", []);
    rest.text([roman("Every option can be set by a variable as well, --grace-on-loss by TRAFFICCOP_GRACE_ON_LOSS, say; the command line wins, and an empty variable counts as unset.")]);
    examples(&mut rest, cli::ELECT_EXAMPLES);
    rest.control("SH", ["SEE ALSO"]);
    rest.text([
        bold("trafficcop-run"),
        roman("(1), "),
        bold("trafficcop-check"),
        roman("(1), "),
        bold("trafficcop-guarantees"),
        roman("(7)"),
    ]);
    rest.to_writer(&mut page).expect(write);
    page
}

pub(crate) fn work_definition() -> clap::Command {
    let definition = definition();
    let work = definition.find_subcommand("work").expect("a work");
    work.clone()
        .name("trafficcop-work")
        .display_name("trafficcop-work")
        .after_long_help("")
}

pub(crate) fn page_of_work() -> Vec<u8> {
    let man = Man::new(work_definition()).date("");
    let mut page = Vec::new();
    let write = "a vector takes everything";
    man.render_title(&mut page).expect(write);
    man.render_name_section(&mut page).expect(write);
    let mut synopsis = Roff::new();
    synopsis.control("SH", ["SYNOPSIS"]);
    synopsis.text([
        bold("trafficcop work --queue"),
        roman("|"),
        bold("--service-bus"),
        roman(" NAME|URL [OPTIONS] -- COMMAND [ARG]..."),
    ]);
    synopsis.to_writer(&mut page).expect(write);
    man.render_description_section(&mut page).expect(write);
    man.render_options_section(&mut page).expect(write);
    let mut rest = Roff::new();
    section(&mut rest, "WHAT BECOMES OF A MESSAGE", cli::SETTLED);
    section(&mut rest, "EXIT STATUS", cli::WORK_STATUS);
    let variables = [cli::FOR_SERVICE_BUS, cli::FOR_THE_STORE].concat();
    section(&mut rest, "ENVIRONMENT", &variables);
    rest.control("PP", []);
    rest.text([roman("Every option can be set by a variable as well, --lock-time by TRAFFICCOP_LOCK_TIME, say; the command line wins, and an empty variable counts as unset. The command finds in its own environment:")]);
    for (name, meaning) in cli::FOR_THE_MESSAGE {
        rest.control("TP", []);
        rest.text([bold(*name)]);
        rest.text([roman(*meaning)]);
    }
    section(&mut rest, "MESSAGE.JSON", handover::FIELDS);
    examples(&mut rest, cli::WORK_EXAMPLES);
    see_also(
        &mut rest,
        &[
            ("trafficcop-run", "1"),
            ("trafficcop-check", "1"),
            ("trafficcop-formats", "5"),
            ("trafficcop-guarantees", "7"),
        ],
    );
    rest.to_writer(&mut page).expect(write);
    page
}

/// `bold` references, with their sections.
pub(crate) fn see_also(page: &mut Roff, pages: &[(&str, &str)]) {
    page.control("SH", ["SEE ALSO"]);
    let mut text = Vec::new();
    for (number, (name, section)) in pages.iter().enumerate() {
        let comma = if number + 1 < pages.len() { ", " } else { "" };
        text.push(bold(*name));
        text.push(roman(format!("({section}){comma}")));
    }
    page.text(text);
}

pub(crate) fn examples(page: &mut Roff, examples: &[(&str, &str)]) {
    page.control("SH", ["EXAMPLES"]);
    for (what, command) in examples {
        page.control("PP", []);
        page.text([roman(*what)]);
        page.control("PP", []);
        page.control("RS", ["4"]);
        page.control("nf", []);
        page.text([bold(*command)]);
        page.control("fi", []);
        page.control("RE", []);
    }
}

pub(crate) fn section(page: &mut Roff, title: &str, rows: &[(&str, &str)]) {
    page.control("SH", [title]);
    for (name, meaning) in rows {
        page.control("TP", []);
        page.text([bold(*name)]);
        page.text([roman(*meaning)]);
    }
}

pub(crate) fn page_of_trafficcop() -> Vec<u8> {
    let man = Man::new(definition().after_help("")).date("");
    let mut page = Vec::new();
    let write = "a vector takes everything";
    man.render_title(&mut page).expect(write);
    man.render_name_section(&mut page).expect(write);
    man.render_synopsis_section(&mut page).expect(write);
    man.render_description_section(&mut page).expect(write);
    man.render_options_section(&mut page).expect(write);
    man.render_subcommands_section(&mut page).expect(write);
    let mut rest = Roff::new();
    section(&mut rest, "EXIT STATUS", exit::TABLE);
    rest.control("SH", ["SEE ALSO"]);
    rest.text([
        bold("trafficcop-run"),
        roman("(1), "),
        bold("trafficcop-work"),
        roman("(1), "),
        bold("trafficcop-elect"),
        roman("(1), "),
        bold("trafficcop-check"),
        roman("(1), "),
    ]);
    for verb in VERBS {
        rest.text([bold(format!("trafficcop-{}", verb.0)), roman("(1), ")]);
    }
    rest.text([
        bold("trafficcop-timeline"),
        roman("(1), "),
        bold("trafficcop-completions"),
        roman("(1), "),
        bold("trafficcop-formats"),
        roman("(5), "),
        bold("trafficcop-guarantees"),
        roman("(7), "),
        bold("flock"),
        roman("(1), "),
        bold("timeout"),
        roman("(1)"),
    ]);
    rest.to_writer(&mut page).expect(write);
    page
}

pub(crate) fn page_of_run() -> Vec<u8> {
    let man = Man::new(run_definition()).date("");
    let mut page = Vec::new();
    let write = "a vector takes everything";
    man.render_title(&mut page).expect(write);
    man.render_name_section(&mut page).expect(write);
    let mut synopsis = Roff::new();
    synopsis.control("SH", ["SYNOPSIS"]);
    for (first, lock) in [
        (true, ("--blob", "CONTAINER/NAME")),
        (false, ("--file", "PATH")),
    ] {
        if !first {
            synopsis.control("br", []);
        }
        synopsis.text([
            bold("trafficcop run "),
            bold(lock.0),
            roman(format!(" {} [OPTIONS] -- COMMAND [ARG]...", lock.1)),
        ]);
    }
    synopsis.to_writer(&mut page).expect(write);
    man.render_description_section(&mut page).expect(write);
    man.render_options_section(&mut page).expect(write);
    let mut rest = Roff::new();
    section(&mut rest, "EXIT STATUS", exit::TABLE);
    section(&mut rest, "ENVIRONMENT", cli::FOR_THE_STORE);
    rest.control("PP", []);
    rest.text([roman("Every option can be set by a variable as well, --grace-on-loss by TRAFFICCOP_GRACE_ON_LOSS, say; the command line wins, and an empty variable counts as unset. The command finds in its own environment:")]);
    for (name, meaning) in cli::FOR_THE_COMMAND {
        rest.control("TP", []);
        rest.text([bold(*name)]);
        rest.text([roman(*meaning)]);
    }
    examples(&mut rest, cli::EXAMPLES);
    rest.control("SH", ["SEE ALSO"]);
    rest.text([
        bold("trafficcop"),
        roman("(1), "),
        bold("trafficcop-check"),
        roman("(1), "),
        bold("trafficcop-timeline"),
        roman("(1), "),
        bold("trafficcop-formats"),
        roman("(5), "),
        bold("trafficcop-guarantees"),
        roman("(7), "),
        bold("flock"),
        roman("(1), "),
        bold("timeout"),
        roman("(1), "),
        bold("systemd.service"),
        roman("(5)"),
    ]);
    rest.to_writer(&mut page).expect(write);
    page
}

/// What is between backticks in bold, what is between stars in italics.
pub(crate) fn inlines(text: &str) -> Vec<Inline> {
    let mut inlines = Vec::new();
    for (number, part) in text.split('`').enumerate() {
        if number % 2 == 1 {
            inlines.push(bold(part));
            continue;
        }
        for (number, part) in part.split('*').enumerate() {
            inlines.push(if number % 2 == 1 {
                italic(part)
            } else {
                roman(part)
            });
        }
    }
    inlines
}
