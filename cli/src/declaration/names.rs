//! The nearest known name for an unknown name.

/// Most edits between a mistyped name and the name that was meant.
const EDITS_MAX: usize = 3;

/// Completes serde's message about an unknown field by the nearest known field, and leaves out long
/// lists of fields.
pub(super) fn with_nearest(message: &str) -> String {
    let mut quoted = message.split('`').skip(1).step_by(2);
    let Some(unknown) = quoted.next().filter(|_| message.contains("unknown ")) else {
        return message.to_owned();
    };
    match nearest(unknown, quoted) {
        Some(near) => {
            let start = message.split(", expected").next().unwrap_or(message);
            format!("{start}; did you mean `{near}`?")
        }
        None => message.to_owned(),
    }
}

/// The known name with the fewest edits from `unknown`, if there are few.
fn nearest<'a>(unknown: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let edits = known.map(|name| (strsim::damerau_levenshtein(unknown, name), name));
    // A plural, or a name with a unit, is near although it has many more letters.
    let edits = edits.map(|(edits, name)| (if name.starts_with(unknown) { 1 } else { edits }, name));
    let best = edits.min_by_key(|(edits, _)| *edits)?;
    (best.0 <= EDITS_MAX.min(unknown.len() / 2)).then_some(best.1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_fields_get_the_nearest_known_field() {
        for (message, expected) in [
            (
                "limits: unknown field `deadline`, expected one of `memory_bytes`, `deadline_ms`",
                "limits: unknown field `deadline`; did you mean `deadline_ms`?",
            ),
            (
                "unknown field `fuctions`, expected one of `models`, `functions`, `workflows`",
                "unknown field `fuctions`; did you mean `functions`?",
            ),
            ("unknown field `colour`, expected `a` or `b`", "unknown field `colour`, expected `a` or `b`"),
            ("missing field `file`", "missing field `file`"),
        ] {
            assert_eq!(with_nearest(message), expected);
        }
    }
}
