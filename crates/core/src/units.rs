//! Durations, sizes and signals as people write them.

use std::time::Duration;

/// Longer than any person means, and far from the limits of all arithmetic.
const LONGEST: Duration = Duration::from_secs(10 * 365 * 24 * 60 * 60);

/// Size of the largest page blob: 8 TiB.
pub const PAGE_BLOB_LIMIT: u64 = 8 << 40;

/// Reads `10s`, `1m30s`, `500ms`, `2h`, `1d`; a bare number is seconds, and may have decimals.
///
/// # Errors
/// How to write a duration.
pub fn duration(text: &str) -> Result<Duration, String> {
    let malformed =
        || format!("'{text}' is not a duration: write it like 500ms, 10s, 1m30s, 2h, 1d or 7d");
    let mut rest = text.trim();
    let mut total = 0.0_f64;
    let mut smallest = f64::INFINITY;
    if rest.is_empty() {
        return Err(malformed());
    }
    while !rest.is_empty() {
        let digits = rest
            .find(|c: char| !c.is_ascii_digit() && c != '.')
            .unwrap_or(rest.len());
        let (number, tail) = rest.split_at(digits);
        let number: f64 = number.parse().map_err(|_| malformed())?;
        let letters = tail
            .find(|c: char| !c.is_ascii_alphabetic())
            .unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(letters);
        let unit = match unit {
            // `1m30` is more often a slip than a wish.
            "" if smallest.is_infinite() && tail.is_empty() => 1.0,
            "ms" => 1e-3,
            "s" | "sec" => 1.0,
            "m" | "min" => 60.0,
            "h" => 3600.0,
            "d" => 86400.0,
            _ => return Err(malformed()),
        };
        if unit >= smallest {
            return Err(malformed());
        }
        smallest = unit;
        total += number * unit;
        rest = tail;
    }
    Duration::try_from_secs_f64(total)
        .ok()
        .filter(|span| *span <= LONGEST)
        // The rest is an error of the decimals.
        .map(|span| {
            Duration::from_millis(
                u64::try_from((span + Duration::from_micros(500)).as_millis()).unwrap_or(0),
            )
        })
        .ok_or_else(|| format!("'{text}' is longer than ten years"))
}

/// Writes a duration the way [`duration`] reads it.
#[must_use]
pub fn show(span: Duration) -> String {
    let millis = span.as_millis();
    let (hours, minutes, seconds, left) = (
        millis / 3_600_000,
        millis / 60_000 % 60,
        millis / 1000 % 60,
        millis % 1000,
    );
    let mut text = String::new();
    // 90s reads better than 1m30s, and is more often typed.
    if millis < 120_000 && left == 0 {
        return format!("{}s", millis / 1000);
    }
    for (count, unit) in [(hours, "h"), (minutes, "m"), (seconds, "s"), (left, "ms")] {
        if count > 0 {
            text.push_str(&format!("{count}{unit}"));
        }
    }
    text
}

/// Reads the size of a page blob: bytes, or with K, M, G, T (of 1024).
///
/// # Errors
/// How to write a size.
pub fn page_blob_size(text: &str) -> Result<u64, String> {
    let digits = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let scale: u64 = match unit.to_ascii_uppercase().as_str() {
        "" | "B" => 1,
        "K" | "KB" | "KIB" => 1 << 10,
        "M" | "MB" | "MIB" => 1 << 20,
        "G" | "GB" | "GIB" => 1 << 30,
        "T" | "TB" | "TIB" => 1 << 40,
        _ => 0,
    };
    let size = number
        .parse::<u64>()
        .ok()
        .filter(|_| scale > 0)
        .ok_or_else(|| format!("'{text}' is not a size: write it like 512, 64K, 1M or 1G"))?;
    match size.checked_mul(scale) {
        Some(size) if size > 0 && size % 512 == 0 && size <= PAGE_BLOB_LIMIT => Ok(size),
        Some(size) if size <= PAGE_BLOB_LIMIT => Err(format!(
            "a page blob's size is a multiple of 512 bytes, and {size} is not: take {}",
            size.next_multiple_of(512).max(512)
        )),
        _ => Err(format!(
            "'{text}' is too large for a page blob: take 8T at most"
        )),
    }
}

/// Reads a signal: `TERM`, `SIGTERM`, `15`, `RTMIN+3`.
///
/// # Errors
/// How to write a signal; also for signals that stop or continue a process.
pub fn signal(text: &str) -> Result<i32, String> {
    let name = text.trim().to_ascii_uppercase();
    let name = name.strip_prefix("SIG").unwrap_or(&name);
    let number = match name.parse::<i32>() {
        Ok(number) => Some(number),
        Err(_) => named(name),
    };
    // 32 and 33 belong to the C library.
    let number = number
        .filter(|n| (1..=libc::SIGRTMAX()).contains(n) && !(32..libc::SIGRTMIN()).contains(n))
        .ok_or_else(|| {
            format!(
                "'{text}' is not a signal: write it like TERM, INT, QUIT, RTMIN+3 or 15, or none"
            )
        })?;
    match number {
        libc::SIGSTOP | libc::SIGTSTP | libc::SIGTTIN | libc::SIGTTOU | libc::SIGCONT => Err(
            format!("'{text}' does not ask a process to end: use TERM, INT, QUIT, HUP or USR1"),
        ),
        _ => Ok(number),
    }
}

fn named(name: &str) -> Option<i32> {
    if let Ok(signal) = format!("SIG{name}").parse::<nix::sys::signal::Signal>() {
        return Some(signal as i32);
    }
    // `RTMIN+-3` is no signal.
    let offset = |text: &str| match text {
        "" => Some(0),
        _ => text
            .strip_prefix(['+', '-'])
            .filter(|digits| digits.bytes().all(|b| b.is_ascii_digit()))?
            .parse::<i32>()
            .ok(),
    };
    let (min, max) = (libc::SIGRTMIN(), libc::SIGRTMAX());
    let number = match (name.strip_prefix("RTMIN"), name.strip_prefix("RTMAX")) {
        (Some(rest), _) if !rest.starts_with('-') => min.checked_add(offset(rest)?)?,
        (_, Some(rest)) if !rest.starts_with('+') => max.checked_sub(offset(rest)?)?,
        _ => return None,
    };
    (min..=max).contains(&number).then_some(number)
}

/// Returns a signal's name for people: `SIGTERM`, or `signal 40`.
#[must_use]
pub fn signal_name(number: i32) -> String {
    match nix::sys::signal::Signal::try_from(number) {
        Ok(signal) => signal.as_str().to_owned(),
        Err(_) => format!("signal {number}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_as_people_write_them() {
        for (text, millis) in [
            ("10s", 10_000),
            ("10", 10_000),
            ("0", 0),
            ("1m30s", 90_000),
            ("500ms", 500),
            ("2h", 7_200_000),
            ("1.5", 1_500),
            ("0.1s", 100),
            ("1d", 86_400_000),
            ("1h5ms", 3_600_005),
        ] {
            assert_eq!(duration(text), Ok(Duration::from_millis(millis)), "{text}");
        }
        for text in [
            "", " ", "s", "10x", "-1", "1m30", "30s1m", "1s1s", "1..5s", "infinite", "10 s", "ms",
            "1e3", "NaN", "１０",
        ] {
            assert!(duration(text).is_err(), "{text}");
        }
        assert!(duration("99999999999d").unwrap_err().contains("ten years"));
    }

    #[test]
    fn shown_duration_can_be_read_back() {
        for millis in [
            0, 1, 999, 1000, 1500, 60_000, 90_000, 119_999, 120_000, 3_600_000, 7_261_001,
        ] {
            let span = Duration::from_millis(millis);
            assert_eq!(duration(&show(span)), Ok(span), "{}", show(span));
        }
        assert_eq!(show(Duration::from_secs(90)), "90s");
        assert_eq!(show(Duration::from_secs(7200)), "2h");
    }

    #[test]
    fn page_blob_sizes_are_whole_pages() {
        assert_eq!(page_blob_size("512"), Ok(512));
        assert_eq!(page_blob_size("1k"), Ok(1024));
        assert_eq!(page_blob_size("1G"), Ok(1 << 30));
        assert_eq!(page_blob_size("8T"), Ok(8 << 40));
        assert!(page_blob_size("1000").unwrap_err().contains("take 1024"));
        for text in [
            "",
            "0",
            "9T",
            "513",
            "-512",
            "512X",
            "99999999999999999999",
            "20000000000T",
        ] {
            assert!(page_blob_size(text).is_err(), "{text}");
        }
    }

    #[test]
    fn signals_are_read_by_name_and_number() {
        for (text, number) in [
            ("TERM", libc::SIGTERM),
            ("sigint", libc::SIGINT),
            ("SIGHUP", libc::SIGHUP),
            ("9", libc::SIGKILL),
            ("RTMIN", libc::SIGRTMIN()),
            ("SIGRTMIN+3", libc::SIGRTMIN() + 3),
            ("RTMAX-1", libc::SIGRTMAX() - 1),
        ] {
            assert_eq!(signal(text), Ok(number), "{text}");
        }
        for text in [
            "", "0", "-9", "65", "33", "FOO", "RTMIN-1", "RTMAX+1", "RTMIN+99", "RTMIN+-1", "STOP",
            "CONT", "20",
        ] {
            assert!(signal(text).is_err(), "{text}");
        }
        assert_eq!(signal_name(15), "SIGTERM");
        assert_eq!(signal_name(40), "signal 40");
    }
}
