//! Cycles between the modules of a crate.

use super::source::RustFile;
use std::collections::{BTreeMap, BTreeSet};

/// Modules that may depend on each other in a cycle: pairs that form one unit.
const CYCLE_MAX: usize = 2;

type Dependencies = BTreeMap<String, BTreeSet<String>>;

pub(super) fn check(sources: &[RustFile]) -> Vec<String> {
    let mut crates: BTreeMap<&str, Vec<&RustFile>> = BTreeMap::new();
    for source in sources.iter().filter(|source| !source.is_test()) {
        if let Some((top, _)) = source.path.split_once("/src/") {
            crates.entry(&source.path[..top.len() + 4]).or_default().push(source);
        }
    }
    crates.iter().filter_map(|(root, sources)| check_crate(root, &dependencies(root, sources))).collect()
}

fn check_crate(root: &str, dependencies: &Dependencies) -> Option<String> {
    let largest = cycles(dependencies).into_iter().max_by_key(Vec::len).unwrap_or_default();
    (largest.len() > CYCLE_MAX).then(|| {
        let modules = largest.join(", ");
        format!(
            "{root}: {} modules depend on each other in a cycle, at most {CYCLE_MAX} may: {modules}",
            largest.len()
        )
    })
}

/// The top-level modules of a crate, each with the modules that it names as `crate::module`.
fn dependencies(root: &str, sources: &[&RustFile]) -> Dependencies {
    let mut dependencies = Dependencies::new();
    for source in sources {
        let path = &source.path[root.len() + 1..];
        let module = path.split('/').next().unwrap_or(path).trim_end_matches(".rs");
        let named = dependencies.entry(module.to_owned()).or_default();
        // The crate's root re-exports names and depends on all modules.
        if module != "lib" {
            let code = source.code.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
            named.extend(names(code).into_iter().filter(|name| name != module));
        }
    }
    dependencies
}

/// The first path segments after `crate::`, also those in braces.
fn names(code: &str) -> Vec<String> {
    let mut names = Vec::new();
    for (at, prefix) in code.match_indices("crate::") {
        let rest = &code[at + prefix.len()..];
        let list = match rest.strip_prefix('{') {
            Some(braced) => braced.split('}').next().unwrap_or_default(),
            None => rest.split(|c: char| !is_name(c)).next().unwrap_or_default(),
        };
        let segments = list.split(',').map(|part| part.trim().split("::").next().unwrap_or_default());
        names.extend(segments.filter(|name| !name.is_empty()).map(str::to_owned));
    }
    names
}

fn is_name(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Sets of modules each of which reaches all others of its set.
fn cycles(dependencies: &Dependencies) -> Vec<Vec<String>> {
    let reached: BTreeMap<&str, BTreeSet<&str>> =
        dependencies.keys().map(|module| (module.as_str(), reach(dependencies, module))).collect();
    let mut cycles: BTreeSet<Vec<String>> = BTreeSet::new();
    for (module, targets) in &reached {
        let cycle =
            targets.iter().filter(|target| reached.get(*target).is_some_and(|set| set.contains(module)));
        let mut cycle: Vec<String> = cycle.map(|target| (*target).to_owned()).collect();
        cycle.push((*module).to_owned());
        cycle.sort();
        cycle.dedup();
        if cycle.len() > 1 {
            cycles.insert(cycle);
        }
    }
    cycles.into_iter().collect()
}

/// The modules that `from` depends on, directly or not.
fn reach<'a>(dependencies: &'a Dependencies, from: &'a str) -> BTreeSet<&'a str> {
    let mut reached = BTreeSet::new();
    let mut open = vec![from];
    while let Some(module) = open.pop() {
        for next in dependencies.get(module).into_iter().flatten() {
            if dependencies.contains_key(next) && reached.insert(next.as_str()) {
                open.push(next);
            }
        }
    }
    reached
}

#[cfg(test)]
mod tests {
    use super::*;

    fn krate(files: &[(&str, &str)]) -> Dependencies {
        let sources: Vec<RustFile> = files.iter().map(|(path, text)| RustFile::new(path, text)).collect();
        dependencies("a/src", &sources.iter().collect::<Vec<_>>())
    }

    #[test]
    fn cycles_are_found_through_other_modules() {
        let modules = krate(&[
            ("a/src/lib.rs", "use crate::one::One;"),
            ("a/src/one.rs", "use crate::{two::Two, Other};"),
            ("a/src/two/deep.rs", "crate::three::run();"),
            ("a/src/three.rs", "use crate::one::One; // crate::four\n"),
            ("a/src/four.rs", "use crate::one::One;"),
        ]);
        assert_eq!(cycles(&modules), [["one", "three", "two"]]);
        let finding = check_crate("a/src", &modules).unwrap();
        assert!(finding.contains("3 modules") && finding.contains("one, three, two"), "{finding}");
    }

    #[test]
    fn pairs_and_tests_are_allowed() {
        let modules = krate(&[
            ("a/src/one.rs", "use crate::two;\n#[cfg(test)]\nmod tests { use crate::three; }"),
            ("a/src/two.rs", "use crate::one;"),
            ("a/src/three.rs", "use crate::one;"),
        ]);
        assert_eq!(cycles(&modules), [["one", "two"]]);
        assert_eq!(check_crate("a/src", &modules), None);
    }
}
