//! Test programs of the workspace, run several at a time.
//!
//! `cargo test` runs one program after the other: at the end of each, the processors wait for its
//! last test.

use crate::parallel;
use crate::process;
use crate::progress::{StepProgress, elapsed};
use crate::repo::Repo;
use anyhow::{Context as _, Result, bail};
use serde::Deserialize;
use std::ffi::OsString;
use std::io::Seek as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Instant;

/// Number of programs that run at once.
const PROGRAMS_AT_ONCE: usize = 2;

/// Variable with the number of tests that run at once in a program.
const TEST_THREADS: &str = "RUST_TEST_THREADS";

/// Programs that take longest. They start first, so that the others fill the remaining time.
const LONGEST: [&str; 8] = [
    "node",
    "languages",
    "pressure",
    "cluster",
    "weir_cuda (unit tests)",
    "weir_gpu_check (unit tests)",
    "gpu_kit",
    "book",
];

/// Lines of a failed test's panic that are repeated at the end.
const PANIC_LINES_MAX: usize = 5;

/// Environment variables for all programs.
type Variables = [(&'static str, OsString)];

/// A program that runs tests.
pub(super) struct TestProgram {
    name: String,
    program: PathBuf,
    folder: PathBuf,
    args: Vec<String>,
}

impl TestProgram {
    /// The documentation tests of all crates.
    pub(super) fn documentation(repo: &Repo, filter: Option<&str>) -> Self {
        let args = ["test", "--workspace", "--doc", "--quiet"].into_iter().chain(filter);
        Self {
            name: "documentation tests".to_owned(),
            program: repo.cargo(".").get_program().into(),
            folder: repo.root().to_owned(),
            args: args.map(str::to_owned).collect(),
        }
    }

    /// Compiles the tests of the workspace. Returns their programs, those that take longest first.
    ///
    /// # Errors
    /// Fails if the tests do not compile.
    pub(super) fn build(repo: &Repo, filter: Option<&str>) -> Result<Vec<Self>> {
        let mut cargo = repo.cargo(".");
        cargo.args(["test", "--workspace", "--no-run", "--message-format", "json-render-diagnostics"]);
        let output = cargo.stderr(Stdio::inherit()).output();
        let output = output.with_context(|| format!("cannot start `{}`", process::line(&cargo)))?;
        if !output.status.success() {
            bail!("`{}` failed ({})", process::line(&cargo), output.status);
        }
        let messages = String::from_utf8_lossy(&output.stdout);
        let mut programs = Vec::new();
        for line in messages.lines() {
            programs.extend(CargoMessage::parse(line)?.and_then(|message| message.test_program(filter)));
        }
        let rank = |program: &Self| LONGEST.iter().position(|name| *name == program.name);
        programs.sort_by_key(|program| rank(program).unwrap_or(LONGEST.len()));
        Ok(programs)
    }

    /// Runs the program. Returns a summary of its tests.
    ///
    /// # Errors
    /// Fails if the program cannot be started, or fails; the error then contains its output.
    fn run(&self, variables: &Variables) -> Result<String> {
        let mut output = tempfile::tempfile().context("cannot create a file for the output")?;
        let copy = || output.try_clone().context("cannot capture the output");
        let mut command = Command::new(&self.program);
        command.args(&self.args).current_dir(&self.folder);
        command.env(TEST_THREADS, threads()).envs(variables.iter().cloned());
        command.stdin(Stdio::null()).stdout(copy()?).stderr(copy()?);
        let start = Instant::now();
        let status =
            command.status().with_context(|| format!("cannot start `{}`", process::line(&command)))?;
        output.rewind().context("cannot read the output")?;
        let text = std::io::read_to_string(&mut output).context("cannot read the output")?;
        if !status.success() {
            bail!("`{}` failed ({status}):\n{}", process::line(&command), text.trim_end());
        }
        Ok(format!("{} passed in {}", passed(&text), elapsed(start)))
    }
}

/// Number of tests that run at once in a program.
///
/// End-to-end tests wait for half of their time, so twice as many run as there are processors.
fn threads() -> String {
    std::env::var(TEST_THREADS)
        .unwrap_or_else(|_| (2 * parallel::processors()).div_ceil(PROGRAMS_AT_ONCE).to_string())
}

/// Runs all programs to their end, several at a time. Prints a line for each, and the output of
/// those that fail.
///
/// # Errors
/// Fails if a program fails. The error names all of these programs, and their failed tests with
/// what each said.
pub(super) fn run_all(programs: &[TestProgram], variables: &Variables) -> Result<()> {
    let progress = StepProgress::new(programs.len());
    let run = |program: &TestProgram| {
        let result = program.run(variables);
        match &result {
            Ok(summary) => progress.step(&format!("{}: {summary}", program.name)),
            Err(error) => progress.step(&format!("{}: {error:#}", program.name)),
        }
        Ok((program.name.clone(), result.err()))
    };
    let results = parallel::all(programs, PROGRAMS_AT_ONCE, run)?;
    let failed = results.into_iter().filter_map(|(name, error)| Some((name, error?)));
    let failed: Vec<String> =
        failed.map(|(name, error)| format!("{name}{}", failed_tests(&format!("{error:#}")))).collect();
    if failed.is_empty() {
        return Ok(());
    }
    bail!("{} test programs failed; their output is above:\n{}", failed.len(), failed.join("\n"))
}

/// The failed tests in the output of a test program, each on a line with its panic.
fn failed_tests(output: &str) -> String {
    let lines: Vec<&str> = output.lines().map(str::trim_end).collect();
    let list = lines.iter().rposition(|line| *line == "failures:").map_or(lines.len(), |at| at + 1);
    let names = lines[list..].iter().map_while(|line| line.strip_prefix("    "));
    let failed = names.map(|name| {
        let panic = lines.iter().position(|line| line.starts_with(&format!("thread '{name}'")));
        let message = panic.map(|at| &lines[at + 1..]).unwrap_or_default().iter();
        let message = message.take_while(|line| **line != "stack backtrace:" && !line.starts_with("note: "));
        let message: Vec<&str> = message.take(PANIC_LINES_MAX).copied().collect();
        format!("\n    {name}: {}", message.join("\n        "))
    });
    failed.collect()
}

/// Number of passed tests in the output of test programs.
fn passed(output: &str) -> usize {
    let summaries = output.lines().filter_map(|line| line.strip_prefix("test result: ok. "));
    summaries.filter_map(|line| line.split(' ').next()?.parse::<usize>().ok()).sum()
}

/// A message of cargo about a compiled target.
#[derive(Debug, Deserialize)]
struct CargoMessage {
    manifest_path: PathBuf,
    target: CargoTarget,
    profile: CargoProfile,
    executable: Option<PathBuf>,
}

#[derive(Debug, Deserialize)]
struct CargoTarget {
    name: String,
    kind: Vec<String>,
}

#[derive(Debug, Deserialize)]
struct CargoProfile {
    test: bool,
}

impl CargoMessage {
    /// Parses a line of cargo's output. `None` for messages about other things than targets.
    fn parse(line: &str) -> Result<Option<Self>> {
        #[derive(Deserialize)]
        struct Kind {
            reason: String,
        }
        let unexpected = || format!("unexpected message of cargo: {line}");
        let kind: Kind = serde_json::from_str(line).with_context(unexpected)?;
        if kind.reason != "compiler-artifact" {
            return Ok(None);
        }
        serde_json::from_str(line).map(Some).with_context(unexpected)
    }

    /// The program of a target with tests.
    fn test_program(self, filter: Option<&str>) -> Option<TestProgram> {
        let program = self.executable.filter(|_| self.profile.test)?;
        let folder = self.manifest_path.parent()?.to_owned();
        let is_integration_test = self.target.kind.iter().any(|kind| kind == "test");
        let name = match is_integration_test {
            true => self.target.name,
            false => format!("{} (unit tests)", self.target.name),
        };
        Some(TestProgram { name, program, folder, args: filter.map(str::to_owned).into_iter().collect() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(name: &str, script: &str) -> TestProgram {
        TestProgram {
            name: name.to_owned(),
            program: "sh".into(),
            folder: ".".into(),
            args: vec!["-c".to_owned(), script.to_owned()],
        }
    }

    #[test]
    fn every_failed_program_is_named() {
        let programs = [shell("first", "exit 1"), shell("second", "exit 0"), shell("third", "kill -9 $$")];
        let error = run_all(&programs, &[]).unwrap_err().to_string();
        assert!(error.starts_with("2 test programs failed; ") && !error.contains("second"), "{error}");
        assert!(error.contains("first") && error.contains("third"), "{error}");
        run_all(&programs[1..2], &[]).unwrap();
    }

    #[test]
    fn failed_tests_are_repeated_with_their_panics() {
        let output = "test a::b ... FAILED\n\nfailures:\n\n---- a::b stdout ----\n\n\
            thread 'a::b' (3) panicked at src/a.rs:1:2:\nassertion failed\n  left: 1\nnote: run with\n\n\
            \nfailures:\n    a::b\n    c\n\ntest result: FAILED. 0 passed";
        assert_eq!(failed_tests(output), "\n    a::b: assertion failed\n          left: 1\n    c: ");
        assert_eq!(failed_tests("killed by a signal"), "");
    }

    #[test]
    fn failure_contains_both_streams_and_success_counts_tests() {
        let error = shell("a", "echo out; echo err >&2; exit 1").run(&[]).unwrap_err().to_string();
        assert!(error.contains("out\nerr"), "{error}");
        let result =
            "test result: ok. 2 passed; 0 failed; 0 ignored; 0 measured; 1 filtered out; finished in 0.1s";
        let summary = shell("a", &format!("echo '{result}'; echo '{result}'")).run(&[]).unwrap();
        assert!(summary.starts_with("4 passed in "), "{summary}");
    }

    #[test]
    fn programs_of_tests_are_found_in_messages_of_cargo() {
        let message = |kind: &str, test: bool| {
            format!(
                r#"{{"reason":"compiler-artifact","manifest_path":"/src/a/Cargo.toml","target":{{"name":"a","kind":["{kind}"]}},"profile":{{"test":{test}}},"executable":"/target/a-0"}}"#
            )
        };
        let program = |line: &str| {
            CargoMessage::parse(line).unwrap().and_then(|message| message.test_program(Some("part")))
        };
        let found = program(&message("test", true)).unwrap();
        assert_eq!((found.name.as_str(), found.folder), ("a", PathBuf::from("/src/a")));
        assert_eq!((found.program, found.args), (PathBuf::from("/target/a-0"), vec!["part".to_owned()]));
        assert_eq!(program(&message("lib", true)).unwrap().name, "a (unit tests)");
        assert!(program(&message("bin", false)).is_none());
        assert!(program(r#"{"reason":"build-finished","success":true}"#).is_none());
        assert!(CargoMessage::parse("warning").is_err());
    }
}
