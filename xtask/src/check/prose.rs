//! Clauses and words that hide the noun of a comment.

use super::source::RustFile;

/// Limit on comment lines with a nominal clause, in the whole tree.
const CLAUSES_MAX: usize = 20;
/// Limit on comment lines with one of [`MANNERED`].
const MANNERED_MAX: usize = 20;

/// Words that make a clause of the "what" before them.
const AFTER_WHAT: [&str; 22] = [
    "is", "was", "it", "they", "run", "runs", "has", "have", "came", "become", "becomes", "there", "a", "an",
    "the", "no", "of", "other", "others", "nobody", "somebody", "were",
];
const MANNERED: [&str; 20] = [
    "whoever",
    "nobody",
    "somebody",
    "anybody",
    "anew",
    "as far as",
    "but for",
    "of its own",
    "of their own",
    "of our own",
    "by itself",
    "by themselves",
    "told",
    "tell",
    "tells",
    "let go",
    "lets go",
    "under way",
    "whatsoever",
    "senseless",
];

pub(super) fn check(sources: &[RustFile]) -> Vec<String> {
    let mut findings = counted(sources, "nominal clauses (\"what is ...\")", CLAUSES_MAX, has_clause);
    findings.extend(counted(sources, "words that hide the noun", MANNERED_MAX, is_mannered));
    findings
}

/// Every line that `hits`, if they are more than `max`.
fn counted(sources: &[RustFile], name: &str, max: usize, hits: fn(&str) -> bool) -> Vec<String> {
    let comments = sources
        .iter()
        .flat_map(|source| source.comments.iter().map(move |(line, text)| (&source.path, line, text)));
    let lines: Vec<String> = comments
        .filter(|(_, _, text)| hits(text))
        .map(|(path, line, text)| format!("{path}:{line}: {text}"))
        .collect();
    if lines.len() <= max {
        return Vec::new();
    }
    vec![format!("{} comment lines have {name}; at most {max} may:\n{}", lines.len(), lines.join("\n"))]
}

fn has_clause(text: &str) -> bool {
    let words: Vec<String> = words(text).collect();
    words.windows(2).any(|pair| pair[0] == "what" && AFTER_WHAT.contains(&pair[1].as_str()))
}

fn is_mannered(text: &str) -> bool {
    let text = format!(" {} ", words(text).collect::<Vec<_>>().join(" "));
    MANNERED.iter().any(|word| text.contains(&format!(" {word} ")))
}

fn words(text: &str) -> impl Iterator<Item = String> + '_ {
    text.split(|c: char| !c.is_alphanumeric() && c != '_' && c != '\'')
        .filter(|word| !word.is_empty())
        .map(str::to_lowercase)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clauses_and_words_are_found_whole() {
        assert!(has_clause("/// What is kept of each device"));
        assert!(has_clause("// it is (what: the answer)"));
        assert!(!has_clause("/// Somewhat is not it; what if"));
        assert!(is_mannered("/// Tokens of their own."));
        assert!(!is_mannered("/// A foretold teller"));
    }

    #[test]
    fn only_more_than_the_limit_is_reported() {
        let source = RustFile::new("a.rs", "// what it is\n// what it was\n");
        let sources = [source];
        assert!(counted(&sources, "clauses", 2, has_clause).is_empty());
        let findings = counted(&sources, "clauses", 1, has_clause);
        assert!(findings[0].starts_with("2 comment lines have clauses") && findings[0].contains("a.rs:2:"));
    }
}
