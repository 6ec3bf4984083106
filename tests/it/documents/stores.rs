//! The manual page of the helper's contract, from its chapter.

use clap_mangen::roff::{Roff, bold, roman};

use crate::documents::making::{inlines, page_of, see_also};
use crate::documents::text;

const CHAPTER: &str = "docs/stores.md";

fn section<'a>(chapter: &'a str, heading: &str) -> &'a str {
    let begin = format!("## {heading}\n");
    let (_, rest) = chapter.split_once(&begin).expect("the section");
    rest.split("\n## ").next().expect("its text").trim()
}

/// Adds paragraphs, lists and tables as they stand in the chapter.
fn add(page: &mut Roff, section: &str) {
    for block in section.split("\n\n") {
        if block.starts_with('|') {
            for row in block.lines().skip(2) {
                let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
                page.control("TP", []);
                page.text([bold(cells[0].replace('`', ""))]);
                page.text(inlines(&format!(
                    "{}. Exit status: {}.",
                    cells[1], cells[2]
                )));
            }
            continue;
        }
        for item in block.replace("\n  ", " ").split("\n- ") {
            page.control("PP", []);
            let item = item
                .trim_start_matches("- ")
                .replace("**", "")
                .replace('*', "");
            page.text(inlines(&item.replace('\n', " ")));
        }
    }
}

pub(crate) fn page_of_store() -> Vec<u8> {
    let chapter = text(CHAPTER);
    let mut page = Roff::new();
    page.control("TH", ["trafficcop-store", "7"]);
    page.control("SH", ["NAME"]);
    page.text([roman(
        "trafficcop-store - helpers that keep locks in any store",
    )]);
    page.control("SH", ["THE CONTRACT"]);
    add(&mut page, section(&chapter, "The contract"));
    page.control("SH", ["WHAT TRAFFICCOP DOES WITH IT"]);
    add(&mut page, section(&chapter, "What trafficcop does with it"));
    see_also(
        &mut page,
        &[("trafficcop-run", "1"), ("trafficcop-doctor", "1")],
    );
    page_of(&page)
}
