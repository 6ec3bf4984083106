//! Subcommands that ask no store: `check`, `completions` and `man`.
//!
//! `check` reads only the control file of the command that it is a part of.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;

use super::answer;
use crate::args;
use crate::config::UsageError;
use crate::deadline::{Deadline, DeadlineError, wait_while};
use crate::exit::{self, ExitAction};

macro_rules! pages {
    ($($name:literal)*) => {
        [$(($name, include_str!(concat!("../../man/", $name)))),*]
    };
}

/// Pages as packages have them; a test compares them with `man/`.
static PAGES: [(&str, &str); 17] = pages! {
    "trafficcop.1"
    "trafficcop-break.1"
    "trafficcop-check.1"
    "trafficcop-completions.1"
    "trafficcop-doctor.1"
    "trafficcop-elect.1"
    "trafficcop-formats.5"
    "trafficcop-guarantees.7"
    "trafficcop-store.7"
    "trafficcop-list.1"
    "trafficcop-man.1"
    "trafficcop-reset.1"
    "trafficcop-run.1"
    "trafficcop-status.1"
    "trafficcop-timeline.1"
    "trafficcop-watch.1"
    "trafficcop-work.1"
};

pub(crate) fn man(typed: &args::Man) -> anyhow::Result<ExitAction> {
    let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    let dir = match &typed.dir {
        Some(dir) => dir.clone(),
        None => of_this_user(variable("XDG_DATA_HOME"), variable("HOME")).ok_or_else(|| {
            UsageError::new(
                "no directory for the pages, and HOME is not set: name one, \
                as in 'trafficcop man /usr/local/share/man'",
            )
        })?,
    };
    for (name, text) in &PAGES {
        write(&dir, name, text)?;
    }
    let (number, dir) = (PAGES.len(), dir.display());
    let said =
        format!("{number} pages written to {dir}; read them with: man -M {dir} trafficcop-run\n");
    answer(&said, ExitAction::Status(0))
}

pub(crate) fn completions(typed: &args::Completions) -> anyhow::Result<ExitAction> {
    answer(&typed.script(), ExitAction::Status(0))
}

/// Returns where `man` looks for one user's pages (XDG base directories).
fn of_this_user(data: Option<OsString>, home: Option<OsString>) -> Option<PathBuf> {
    // The specification says to ignore a relative path.
    let data = data.map(PathBuf::from).filter(|data| data.is_absolute());
    let data = data.or_else(|| Some(PathBuf::from(home?).join(".local/share")))?;
    Some(data.join("man"))
}

fn write(dir: &Path, name: &str, text: &str) -> anyhow::Result<()> {
    let (_, section) = name.rsplit_once('.').unwrap_or_default();
    let dir = dir.join(format!("man{section}"));
    let page = dir.join(name);
    fs::create_dir_all(&dir)
        .and_then(|()| fs::write(&page, text))
        .with_context(|| {
            format!(
                "cannot write {}: take another directory, or make this one writable",
                page.display()
            )
        })
}

/// Answer without a deadline: the greatest value that the control file can hold.
const FOR_EVER: Duration = Duration::from_nanos(u64::MAX);

pub(crate) fn check(typed: &args::Check) -> anyhow::Result<ExitAction> {
    let deadline = Deadline::from_env().map_err(|why| match why {
        DeadlineError::Outside => UsageError::new(why.to_string()).into(),
        DeadlineError::None | DeadlineError::Unreadable { .. } => anyhow::Error::new(why),
    })?;
    let limit = typed.wait.clone().transpose()?.unwrap_or_default();
    let yes = wait_while(limit, || match typed.control {
        true => deadline.in_control(),
        false => deadline.may_begin(),
    });
    let leave = ExitAction::Status(if yes { 0 } else { exit::NOT_IN_CONTROL });
    match typed.remaining {
        true => {
            let remaining = deadline.remaining().min(FOR_EVER);
            answer(&format!("{}\n", remaining.as_secs()), leave)
        }
        false => Ok(leave),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_of_a_user_go_where_man_looks_for_them() {
        let text = |text: &str| Some(OsString::from(text));
        let dir = |data, home| of_this_user(data, home);
        assert_eq!(
            dir(text("/data"), text("/home/me")),
            Some("/data/man".into())
        );
        let usual = Some(PathBuf::from("/home/me/.local/share/man"));
        assert_eq!(dir(None, text("/home/me")), usual);
        assert_eq!(dir(text("data"), text("/home/me")), usual);
        assert_eq!(dir(None, None), None);
    }
}
