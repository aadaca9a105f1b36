//! Known failures of a suite.
//!
//! ```text
//! [infer: no-capacity] Why these cases fail.
//! test_case
//! ```
//!
//! A section has the cases that fail in the same way for the same reason.

use super::{Outcome, PASS};
use anyhow::{Result, bail};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// The placeholder for the reason of new failures without a message of the node.
const UNEXPLAINED: &str = "UNEXPLAINED: write the reason here";

/// The known failures of a suite.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Expectations(BTreeMap<Failure, BTreeSet<String>>);

/// The failure that the cases of a section have in common.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Failure {
    /// Outcome of the cases, as the suite prints it.
    pub(super) outcome: String,
    /// Why the cases fail.
    pub(super) reason: String,
}

/// A case whose outcome is not the expected one.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Difference {
    case: String,
    expected: String,
    found: String,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { case, expected, found } = self;
        write!(f, "{case}: {found}, expected {expected}")
    }
}

impl Expectations {
    /// Parses a file.
    pub(super) fn parse(text: &str) -> Result<Self> {
        let mut sections = BTreeMap::<Failure, BTreeSet<String>>::new();
        let mut known = BTreeSet::new();
        let mut current: Option<Failure> = None;
        for (place, line) in text.lines().enumerate() {
            let number = place + 1;
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            if let Some(rest) = line.strip_prefix('[') {
                let Some((outcome, reason)) = rest.split_once("] ") else {
                    bail!("line {number}: a section begins with [OUTCOME] and its reason");
                };
                let failure = Failure { outcome: outcome.to_owned(), reason: reason.trim().to_owned() };
                if sections.insert(failure.clone(), BTreeSet::new()).is_some() {
                    bail!("line {number}: the section is there twice");
                }
                current = Some(failure);
                continue;
            }
            let Some(cases) = current.as_ref().and_then(|failure| sections.get_mut(failure)) else {
                bail!("line {number}: the case {line} is in no section");
            };
            if !known.insert(line.to_owned()) {
                bail!("line {number}: the case {line} is there twice");
            }
            cases.insert(line.to_owned());
        }
        Ok(Self(sections))
    }

    /// The failures with the number of their cases, the most frequent ones first.
    pub(super) fn failures(&self) -> Vec<(&Failure, usize)> {
        let mut failures: Vec<_> = self.0.iter().map(|(failure, cases)| (failure, cases.len())).collect();
        failures.sort_by_key(|(failure, cases)| (std::cmp::Reverse(*cases), *failure));
        failures
    }

    /// The outcomes with cases whose failure has no reason.
    pub(super) fn unexplained(&self) -> impl Iterator<Item = &str> {
        let failures = self.0.keys().filter(|failure| failure.reason == UNEXPLAINED);
        failures.map(|failure| failure.outcome.as_str())
    }

    /// The cases whose outcome differs. A complete run also misses the cases that were not run.
    pub(super) fn differences(
        &self,
        outcomes: &BTreeMap<String, Outcome>,
        is_complete: bool,
    ) -> Vec<Difference> {
        let expected = self.by_case();
        let mut differences = Vec::new();
        let mut note = |case: &str, expected: &str, found: String| {
            differences.push(Difference { case: case.to_owned(), expected: expected.to_owned(), found });
        };
        for (case, found) in outcomes {
            let expected = expected.get(case.as_str()).map_or(PASS, |failure| &failure.outcome);
            if expected != found.outcome {
                note(case, expected, found.to_string());
            }
        }
        if is_complete {
            for (case, expected) in &expected {
                if !outcomes.contains_key(*case) {
                    note(case, &expected.outcome, "not in the suite".to_owned());
                }
            }
        }
        differences
    }

    /// The failures of a run. Known failures keep their reasons; the reason of a new failure is the
    /// node's message.
    pub(super) fn updated(&self, outcomes: &BTreeMap<String, Outcome>) -> Self {
        let known = self.by_case();
        let mut sections = BTreeMap::<Failure, BTreeSet<String>>::new();
        for (case, Outcome { outcome, why }) in outcomes.iter().filter(|(_, found)| found.outcome != PASS) {
            let known = known.get(case.as_str()).copied().filter(|failure| failure.outcome == *outcome);
            let failure = known.cloned().unwrap_or_else(|| {
                let reason = if why.is_empty() { UNEXPLAINED } else { why };
                Failure { outcome: outcome.clone(), reason: reason.to_owned() }
            });
            sections.entry(failure).or_default().insert(case.clone());
        }
        Self(sections)
    }

    fn by_case(&self) -> BTreeMap<&str, &Failure> {
        let cases =
            self.0.iter().flat_map(|(failure, cases)| cases.iter().map(move |case| (case.as_str(), failure)));
        cases.collect()
    }
}

impl fmt::Display for Expectations {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "# Known failures: [OUTCOME] REASON, and the cases. See `cargo xtask conformance --help`."
        )?;
        for (Failure { outcome, reason }, cases) in &self.0 {
            writeln!(f, "\n[{outcome}] {reason}")?;
            for case in cases {
                writeln!(f, "{case}")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "# comment\n[values] Rounding.\na\nb\n\n[push: x] No operator.\nc\n";

    fn outcomes(pairs: &[(&str, &str)]) -> BTreeMap<String, Outcome> {
        let outcome = |outcome: &str| {
            let (outcome, why) = outcome.split_once('|').unwrap_or((outcome, ""));
            Outcome { outcome: outcome.to_owned(), why: why.to_owned() }
        };
        pairs.iter().map(|(case, text)| ((*case).to_owned(), outcome(text))).collect()
    }

    fn differences(pairs: &[(&str, &str)], is_complete: bool) -> Vec<String> {
        let known = Expectations::parse(TEXT).unwrap();
        known.differences(&outcomes(pairs), is_complete).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn known_failures_are_expected() {
        let all = [("a", "values"), ("b", "values"), ("c", "push: x|whatever"), ("d", "pass")];
        assert_eq!(differences(&all, true), Vec::<String>::new());
        assert_eq!(differences(&all[..1], false), Vec::<String>::new());
    }

    #[test]
    fn new_failures_fixed_cases_and_missing_cases_differ() {
        let run = [("a", "pass"), ("b", "shape"), ("d", "push: x|Too new.")];
        let expected = [
            "a: pass, expected values",
            "b: shape, expected values",
            "d: push: x (Too new.), expected pass",
            "c: not in the suite, expected push: x",
        ];
        assert_eq!(differences(&run, true), expected);
        assert_eq!(differences(&run, false), expected[..3]);
    }

    #[test]
    fn update_keeps_reasons_and_adds_those_of_the_node() {
        let known = Expectations::parse(TEXT).unwrap();
        let run = [("a", "values"), ("b", "push: x|Too new."), ("c", "shape"), ("d", "push: x|Too new.")];
        let updated = known.updated(&outcomes(&run));
        let text = updated.to_string();
        assert!(text.contains("[values] Rounding.\na\n") && text.contains("[shape] UNEXPLAINED"), "{text}");
        assert!(text.contains("[push: x] Too new.\nb\nd\n"), "{text}");
        assert_eq!(updated.unexplained().collect::<Vec<_>>(), ["shape"]);
        assert_eq!(Expectations::parse(&text).unwrap(), updated);
        assert_eq!(known.unexplained().count(), 0);
    }

    #[test]
    fn frequent_failures_come_first() {
        let known = Expectations::parse("[a] r\n1\n[b] s\n2\n3\n[b] r\n4\n").unwrap();
        let counts: Vec<_> =
            known.failures().iter().map(|(failure, cases)| (&*failure.reason, *cases)).collect();
        assert_eq!(counts, [("s", 2), ("r", 1), ("r", 1)]);
    }

    #[test]
    fn files_with_mistakes_are_refused() {
        for (text, why) in [
            ("a\n", "line 1: the case a is in no section"),
            ("[x\n", "line 1: a section begins"),
            ("[x]\n", "line 1: a section begins"),
            ("[x] r\na\n[x] s\na\n", "line 4: the case a is there twice"),
            ("[x] r\n[x] r\n", "line 2: the section is there twice"),
        ] {
            let error = Expectations::parse(text).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
    }
}
