//! References to environment variables in the values of `env`.

use std::collections::BTreeSet;

/// Replaces each `${NAME}` in `text` by the variable of that name, and `$$` by `$`. Adds the names
/// that `lookup` does not know to `unset`.
pub(super) fn expand(
    text: &str,
    lookup: &impl Fn(&str) -> Option<String>,
    unset: &mut BTreeSet<String>,
) -> Result<String, String> {
    let mut expanded = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        expanded.push_str(&rest[..at]);
        let after = &rest[at + 1..];
        if let Some(literal) = after.strip_prefix('$') {
            expanded.push('$');
            rest = literal;
        } else if let Some(reference) = after.strip_prefix('{') {
            let (name, end) = reference.split_once('}').ok_or("`${` without `}`; write `$$` for a `$`")?;
            if !is_name(name) {
                return Err(format!(
                    "${{{name}}} is not a variable: a name holds letters, digits and `_`; write `$$` for a `$`"
                ));
            }
            match lookup(name) {
                Some(value) => expanded.push_str(&value),
                None => {
                    unset.insert(name.to_owned());
                }
            }
            rest = end;
        } else {
            expanded.push('$');
            rest = after;
        }
    }
    expanded.push_str(rest);
    Ok(expanded)
}

/// Text that [`expand`] turns into `text`.
#[cfg(test)]
fn escape(text: &str) -> String {
    text.replace('$', "$$")
}

fn is_name(name: &str) -> bool {
    let is_letter = |c: char| c.is_ascii_alphabetic() || c == '_';
    name.starts_with(is_letter) && name.chars().all(|c| is_letter(c) || c.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn expanded(text: &str) -> Result<(String, Vec<String>), String> {
        let mut unset = BTreeSet::new();
        let lookup = |name: &str| (name == "TOKEN").then(|| "s$cret}".to_owned());
        Ok((expand(text, &lookup, &mut unset)?, unset.into_iter().collect()))
    }

    #[test]
    fn variables_are_replaced_and_unset_ones_are_collected() {
        let known = |text: &str| expanded(text).map(|(text, unset)| (text, unset.len()));
        assert_eq!(known("Bearer ${TOKEN}!"), Ok(("Bearer s$cret}!".into(), 0)));
        assert_eq!(known("$$${TOKEN} costs $5 $"), Ok(("$s$cret} costs $5 $".into(), 0)));
        assert_eq!(expanded("${A}${B}${A}").unwrap().1, ["A", "B"]);
        for wrong in ["${", "${TOKEN", "${}", "${A-B}", "${1}", "${TOKEN:-x}"] {
            assert!(expanded(wrong).is_err(), "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn escaped_text_is_unchanged(text: String) {
            prop_assert_eq!(expanded(&escape(&text)), Ok((text, vec![])));
        }
    }
}
