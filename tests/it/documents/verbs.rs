//! Man pages of the verbs that look or intervene, and of the formats.

use clap_mangen::roff::{Roff, roman};
use trafficcop::internals::{args, report, status};
use trafficcop_timeline::record;

use crate::documents::making::{
    definition_of, examples, inlines, page, page_of, rows, section, see_also,
};

pub(crate) fn page_of_check() -> Vec<u8> {
    let mut rest = Roff::new();
    section(&mut rest, "EXIT STATUS", args::CHECK_STATUS);
    let control = args::FOR_THE_COMMAND.iter();
    let control: Vec<_> = control
        .filter(|(name, _)| *name == "TRAFFICCOP_CONTROL")
        .copied()
        .collect();
    section(&mut rest, "ENVIRONMENT", &control);
    examples(&mut rest, args::CHECK_EXAMPLES);
    let others = [("trafficcop-run", "1"), ("trafficcop-guarantees", "7")];
    see_also(&mut rest, &others);
    page(definition_of("check"), None, &rest)
}

/// A verb that looks or intervenes: its name, own lists, exit statuses, examples.
type Verb<'a> = (
    &'a str,
    &'a [(&'a str, &'a [(&'a str, &'a str)])],
    &'a [(&'a str, &'a str)],
    &'a [(&'a str, &'a str)],
);

pub(crate) const VERBS: [Verb<'_>; 6] = [
    (
        "status",
        &[("JSON", args::STATUS_JSON)],
        args::STATUS_STATUS,
        args::STATUS_EXAMPLES,
    ),
    (
        "list",
        &[("EACH ELEMENT OF THE JSON ARRAY", args::STATUS_JSON)],
        args::LIST_STATUS,
        args::LIST_EXAMPLES,
    ),
    (
        "watch",
        &[
            ("EACH LINE OF JSON", args::STATUS_JSON),
            ("AND", args::WATCH_JSON),
        ],
        args::WATCH_STATUS,
        args::WATCH_EXAMPLES,
    ),
    ("break", &[], args::BREAK_STATUS, args::BREAK_EXAMPLES),
    ("reset", &[], args::RESET_STATUS, args::RESET_EXAMPLES),
    (
        "doctor",
        &[("JSON", args::DOCTOR_JSON)],
        args::DOCTOR_STATUS,
        args::DOCTOR_EXAMPLES,
    ),
];

pub(crate) fn page_of_verb((verb, lists, statuses, commands): Verb<'_>) -> Vec<u8> {
    let mut rest = Roff::new();
    for (title, rows) in lists {
        section(&mut rest, title, rows);
    }
    section(&mut rest, "EXIT STATUS", statuses);
    section(&mut rest, "ENVIRONMENT", args::FOR_THE_STORE);
    examples(&mut rest, commands);
    see_also(
        &mut rest,
        &[
            ("trafficcop", "1"),
            ("trafficcop-run", "1"),
            ("trafficcop-guarantees", "7"),
        ],
    );
    page(definition_of(verb), None, &rest)
}

pub(crate) fn page_of_completions() -> Vec<u8> {
    let mut rest = Roff::new();
    section(&mut rest, "EXIT STATUS", args::COMPLETIONS_STATUS);
    examples(&mut rest, args::COMPLETIONS_EXAMPLES);
    see_also(&mut rest, &[("trafficcop", "1")]);
    page(definition_of("completions"), None, &rest)
}

pub(crate) fn page_of_man() -> Vec<u8> {
    let mut rest = Roff::new();
    section(&mut rest, "EXIT STATUS", args::MAN_STATUS);
    examples(&mut rest, args::MAN_EXAMPLES);
    see_also(&mut rest, &[("trafficcop", "1"), ("manpath", "1")]);
    page(definition_of("man"), None, &rest)
}

pub(crate) fn page_of_timeline() -> Vec<u8> {
    let mut rest = Roff::new();
    rest.control("SH", ["HOW TO READ IT"]);
    for paragraph in TIMELINE {
        rest.control("PP", []);
        rest.text(inlines(paragraph));
    }
    section(&mut rest, "JSON", trafficcop_timeline::FIELDS);
    section(&mut rest, "EXIT STATUS", args::TIMELINE_STATUS);
    examples(&mut rest, args::TIMELINE_EXAMPLES);
    let others = [("trafficcop-run", "1"), ("trafficcop-formats", "5")];
    see_also(&mut rest, &others);
    page(definition_of("timeline"), None, &rest)
}

const TIMELINE: &[&str] = &[
    "A tenure begins when its instance reports control, and ends when the lease was given back. Two tenures overlap \
     if one begins before the last process of the other's command was gone. The moments are those of the machine's \
     boot clock, so on one machine they are exact, whatever happened to its wall clock. Machines are compared by \
     their wall clocks; see `--skew`.",
    "No log has the end of an instance that was killed, or whose machine died. Of such a tenure only the last line is \
     certain, and lines of its last moment may be missing, because trafficcop does not wait for the log. The timeline \
     ends it at its last known deadline, at which the guardian has killed its command, or earlier when the next \
     instance was given control: a guardian that outlives trafficcop gives the lease back as soon as no process of \
     the command lives. A later line in the logs would still show an overlap.",
    "If an instance reports that an overlap cannot be excluded (exit status 71), the timeline counts one, whatever \
     the other logs contain.",
];

pub(crate) fn page_of_formats() -> Vec<u8> {
    let mut page = Roff::new();
    page.control("TH", ["trafficcop-formats", "5"]);
    page.control("SH", ["NAME"]);
    page.text([roman(
        "trafficcop-formats - the fields of the event log, the JSON log and the status file",
    )]);
    page.control("SH", ["DESCRIPTION"]);
    page.text([roman("The names of the fields below, and what they mean, do not change. New ones may be added, so \
        ignore fields that you do not know.")]);
    let about = |page: &mut Roff, title: &str, text: &str, fields: &[(&str, &str)]| {
        page.control("SH", [title]);
        page.text(inlines(text));
        rows(page, fields);
    };
    about(
        &mut page,
        "EVENT LOG (--event-log F)",
        "One JSON object a line, appended with one write each, so that any number of instances on a machine can share \
         a file. Fields that do not apply are left out. A line with which control changes hands is on the disk before \
         the next is written. After a rename trafficcop begins a new file. A line that cannot be written is lost, \
         with one warning; trafficcop does not wait.",
        record::FIELDS,
    );
    about(
        &mut page,
        "EVENTS",
        "The words of the field `event`:",
        record::WORDS,
    );
    about(
        &mut page,
        "JSON LOG (--log json)",
        "One JSON object a line on stderr. Fields that do not apply are left out.",
        report::FIELDS,
    );
    about(
        &mut page,
        "STATUS FILE (--status-file F)",
        "One JSON object, replaced as a whole at every change. Fields that do not apply are null.",
        status::FIELDS,
    );
    let others = [("trafficcop-run", "1"), ("trafficcop-timeline", "1")];
    see_also(&mut page, &others);
    page_of(&page)
}
