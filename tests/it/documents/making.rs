//! Man pages from clap's sections and additional ones.

use clap_mangen::Man;
use clap_mangen::roff::{Inline, Roff, bold, italic, roman};

use crate::documents::definition;

const WRITE: &str = "a vector takes everything";

/// Returns a verb's definition without clap's text after the help, which additional sections
/// contain.
pub(crate) fn definition_of(verb: &str) -> clap::Command {
    let whole = definition();
    let found = whole.find_subcommand(verb);
    let found = found
        .unwrap_or_else(|| panic!("there is no {verb}"))
        .clone();
    let name: &str = format!("trafficcop-{verb}").leak();
    found.name(name).display_name(name).after_long_help("")
}

/// Makes a page: clap's sections of this definition, but with this synopsis, and then the rest.
pub(crate) fn page(command: clap::Command, synopsis: Option<&Roff>, rest: &Roff) -> Vec<u8> {
    let has_verbs = command.has_subcommands();
    // The page shows each flag's variable. A flag hidden from the short help would lose its text
    // here.
    let command = command.mut_args(|arg| arg.hide_env(false).hide_short_help(false));
    let man = Man::new(command).date("");
    let mut page = Vec::new();
    man.render_title(&mut page).expect(WRITE);
    man.render_name_section(&mut page).expect(WRITE);
    match synopsis {
        Some(synopsis) => synopsis.to_writer(&mut page),
        None => man.render_synopsis_section(&mut page),
    }
    .expect(WRITE);
    man.render_description_section(&mut page).expect(WRITE);
    man.render_options_section(&mut page).expect(WRITE);
    if has_verbs {
        man.render_subcommands_section(&mut page).expect(WRITE);
    }
    rest.to_writer(&mut page).expect(WRITE);
    page
}

pub(crate) fn page_of(roff: &Roff) -> Vec<u8> {
    let mut page = Vec::new();
    roff.to_writer(&mut page).expect(WRITE);
    page
}

pub(crate) fn rows(page: &mut Roff, rows: &[(&str, &str)]) {
    for (name, meaning) in rows {
        page.control("TP", []);
        page.text([bold(*name)]);
        page.text([roman(*meaning)]);
    }
}

pub(crate) fn section(page: &mut Roff, title: &str, list: &[(&str, &str)]) {
    page.control("SH", [title]);
    rows(page, list);
}

/// States that each option has a variable, with `option` as the example.
pub(crate) fn by_variable(option: &str) -> String {
    let variable = option.replace("--", "TRAFFICCOP_").replace('-', "_");
    let variable = variable.to_uppercase();
    format!(
        "Every option can be set by a variable as well, {option} by {variable}, say; the command line wins, and an \
         empty variable counts as unset."
    )
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

/// Sets text between backticks in bold, and text between stars in italics.
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
