use clap_mangen::roff::{Roff, bold, roman};
use trafficcop::internals::work::message_io;
use trafficcop::internals::{args, exit};

use crate::documents::definition;
use crate::documents::making::{
    by_variable, definition_of, examples, page, rows, section, see_also,
};
use crate::documents::verbs::VERBS;

pub(crate) fn page_of_trafficcop() -> Vec<u8> {
    let mut rest = Roff::new();
    section(&mut rest, "EXIT STATUS", exit::TABLE);
    let verbs = VERBS.map(|verb| format!("trafficcop-{}", verb.0));
    let before = ["run", "work", "elect", "check"].map(|verb| format!("trafficcop-{verb}"));
    let pages = before.iter().chain(&verbs).map(|name| (name.as_str(), "1"));
    let after = [
        ("trafficcop-timeline", "1"),
        ("trafficcop-completions", "1"),
        ("trafficcop-man", "1"),
        ("trafficcop-formats", "5"),
        ("trafficcop-guarantees", "7"),
        ("flock", "1"),
        ("timeout", "1"),
    ];
    let pages: Vec<_> = pages.chain(after).collect();
    see_also(&mut rest, &pages);
    page(definition().after_help(""), None, &rest)
}

pub(crate) fn page_of_run() -> Vec<u8> {
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
    let mut rest = Roff::new();
    section(&mut rest, "EXIT STATUS", exit::TABLE);
    section(&mut rest, "ENVIRONMENT", args::FOR_THE_STORE);
    rest.control("PP", []);
    rest.text([roman(by_variable("--grace-on-loss") + THE_COMMAND_FINDS)]);
    rows(&mut rest, args::FOR_THE_COMMAND);
    examples(&mut rest, args::EXAMPLES);
    see_also(
        &mut rest,
        &[
            ("trafficcop", "1"),
            ("trafficcop-check", "1"),
            ("trafficcop-timeline", "1"),
            ("trafficcop-formats", "5"),
            ("trafficcop-guarantees", "7"),
            ("trafficcop-store", "7"),
            ("flock", "1"),
            ("timeout", "1"),
            ("systemd.service", "5"),
        ],
    );
    page(definition_of("run"), Some(&synopsis), &rest)
}

const THE_COMMAND_FINDS: &str = " The command finds in its own environment:";

pub(crate) fn page_of_elect() -> Vec<u8> {
    let mut synopsis = Roff::new();
    synopsis.control("SH", ["SYNOPSIS"]);
    synopsis.text([
        bold("trafficcop elect --blob"),
        roman(" CONTAINER/NAME [OPTIONS]"),
    ]);
    synopsis.control("br", []);
    synopsis.text([bold("trafficcop elect --file"), roman(" PATH [OPTIONS]")]);
    let mut rest = Roff::new();
    section(&mut rest, "JSON", args::FIELDS);
    section(&mut rest, "EXIT STATUS", args::ELECT_STATUS);
    section(&mut rest, "ENVIRONMENT", args::FOR_THE_STORE);
    rest.control("PP", []);
    rest.text([roman(by_variable("--grace-on-loss"))]);
    examples(&mut rest, args::ELECT_EXAMPLES);
    see_also(
        &mut rest,
        &[
            ("trafficcop-run", "1"),
            ("trafficcop-check", "1"),
            ("trafficcop-guarantees", "7"),
        ],
    );
    page(definition_of("elect"), Some(&synopsis), &rest)
}

pub(crate) fn page_of_work() -> Vec<u8> {
    let mut synopsis = Roff::new();
    synopsis.control("SH", ["SYNOPSIS"]);
    synopsis.text([
        bold("trafficcop work --queue"),
        roman("|"),
        bold("--service-bus"),
        roman(" NAME|URL [OPTIONS] -- COMMAND [ARG]..."),
    ]);
    let mut rest = Roff::new();
    section(&mut rest, "WHAT BECOMES OF A MESSAGE", args::SETTLED);
    section(&mut rest, "EXIT STATUS", args::WORK_STATUS);
    let variables = [args::FOR_SERVICE_BUS, args::FOR_THE_QUEUE].concat();
    section(&mut rest, "ENVIRONMENT", &variables);
    rest.control("PP", []);
    rest.text([roman(by_variable("--lock-time") + THE_COMMAND_FINDS)]);
    rows(&mut rest, args::FOR_THE_MESSAGE);
    section(&mut rest, "MESSAGE.JSON", message_io::FIELDS);
    examples(&mut rest, args::WORK_EXAMPLES);
    see_also(
        &mut rest,
        &[
            ("trafficcop-run", "1"),
            ("trafficcop-check", "1"),
            ("trafficcop-formats", "5"),
            ("trafficcop-guarantees", "7"),
        ],
    );
    page(definition_of("work"), Some(&synopsis), &rest)
}
