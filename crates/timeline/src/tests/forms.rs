//! Input, however broken, and the forms of output.

use std::collections::BTreeSet;

use super::*;

#[test]
fn half_lines_rubbish_and_copies_do_no_harm() {
    let (mut one, mut two) = pair();
    one.tenure(10, 50, 1);
    two.tenure(60, 90, 2);
    let whole = lines(&[&one, &two]);
    let text = whole.join("\n");
    let clean = of(&text);
    let torn = format!("{text}\n\n{}", &whole[0][..40]);
    let timeline = of(&torn);
    assert_eq!(timeline.locks, clean.locks);
    assert!(timeline.notes[0].contains("1 line ignored") && timeline.notes[0].contains("log:12"));
    let glued = format!("{}{}\n{}", &whole[3][..30], whole[0], whole[1..].join("\n"));
    assert_eq!(of(&glued).locks, clean.locks);
    let twice = merge(
        &read([("a", text.as_bytes()), ("b", text.as_bytes())]),
        SKEW,
    );
    assert_eq!(twice, clean);
    assert!(of("rubbish\n\u{0}\n{}\n").locks.is_empty());
}

#[test]
fn lost_lines_are_reported() {
    let mut one = Pen::new("web1", "a");
    one.tenure(10, 50, 1);
    one.lines.remove(2);
    let timeline = told(&[&one]);
    assert!(
        timeline.notes[0].contains("1 line missing"),
        "{:?}",
        timeline.notes
    );
}

#[test]
fn json_has_exactly_the_documented_fields() {
    let (mut one, mut two) = pair();
    one.tenure(10, 50, 1).word(51, EventKind::Done);
    two.tenure(40, 90, 2);
    let json = json(&told(&[&one, &two]));
    let keys = |value: &serde_json::Value| -> BTreeSet<String> {
        value.as_object().unwrap().keys().cloned().collect()
    };
    let documented: BTreeSet<String> = FIELDS
        .iter()
        .filter(|(name, _)| !name.contains('.'))
        .map(|(name, _)| (*name).to_owned())
        .collect();
    assert_eq!(keys(&json), documented);
    let lock = &json["locks"][0];
    for key in keys(lock) {
        let name = format!("locks.{key}");
        let (_, meaning) = FIELDS.iter().find(|(field, _)| *field == name).unwrap();
        for inner in lock[&key].as_array().into_iter().flatten().flat_map(keys) {
            assert!(meaning.contains(&inner), "{name}: {inner}");
        }
    }
    assert_eq!(json["overlap"], true);
    assert_eq!(lock["overlaps"][0]["tokens"][1], 2);
    assert_eq!(lock["tenures"][0]["cause"], "stopped by SIGTERM");
}

#[test]
fn names_are_escaped_in_the_picture() {
    let mut one = Pen::new("<script>alert('&\"1\u{1}')</script>", "a");
    one.common.lock = "file:/<x>&".into();
    one.tenure(10, 50, 1);
    let picture = svg(&told(&[&one]));
    assert!(!picture.contains("<script") && !picture.contains('\u{1}'));
    assert!(picture.contains("&lt;script&gt;") && picture.contains("file:/&lt;x&gt;&amp;"));
}

#[test]
fn picture_shows_gaps_overlaps_drains_doubts_and_unseen_ends() {
    let (mut one, mut two) = pair();
    one.holds(10, 1).starts(10, 590).word(20, EventKind::Doubt);
    two.tenure(100, 200, 2).tenure(300, 400, 3);
    let calm = svg(&told(&[&one, &two]));
    for shown in [
        "its end was not seen",
        "no holder for",
        "url(#drain)",
        "class=\"doubt\"",
        "no overlap",
    ] {
        assert!(calm.contains(shown), "{shown}");
    }
    assert!(!calm.contains("OVERLAP") && !calm.contains("script"));
    let mut three = Pen::new("web3", "a");
    three.tenure(399, 500, 4);
    let picture = svg(&told(&[&one, &two, &three]));
    assert!(picture.contains("OVERLAP: two in control for 0.100s"));
    assert!(picture.contains("prefers-color-scheme:dark"));
}

#[test]
fn doorbell_is_marked_on_the_track_that_heard_it() {
    let (mut one, mut two) = pair();
    one.tenure(10, 50, 1);
    two.word(20, EventKind::Competing);
    let silent = svg(&told(&[&one, &two]));
    assert!(!silent.contains("doorbell"));
    two.word(51, EventKind::Rang);
    let heard = told(&[&one, &two]);
    let rings: Vec<usize> = only(&heard).tracks.iter().map(|t| t.rings.len()).collect();
    assert_eq!(rings, [0, 1]);
    assert_eq!(svg(&heard).matches("class=\"bell\"").count(), 2);
}

#[test]
fn tooltip_has_lines_and_a_name_only_one() {
    let mut one = Pen::new("web\n1", "a");
    one.tenure(10, 50, 1);
    let picture = svg(&told(&[&one]));
    assert!(
        picture.contains("web\u{fffd}1@host-of-a (process "),
        "{picture}"
    );
    assert!(picture.contains(", token 1&#10;"), "{picture}");
}

#[test]
fn extreme_times_do_not_panic() {
    let mut one = Pen::new("web1", "a");
    one.tenure(10, 50, 1);
    for (boottime_ns, time) in [
        (u64::MAX, "2261-01-01T00:00:00Z"),
        (0, "0001-01-01T00:00:00Z"),
        (5, "?"),
    ] {
        one.lines[1].boottime_ns = boottime_ns;
        one.lines[1].time = time.into();
        one.lines[1].deadline_ns = Some(u64::MAX);
        let timeline = told(&[&one]);
        let _ = (text(&timeline), json(&timeline), svg(&timeline));
    }
}
