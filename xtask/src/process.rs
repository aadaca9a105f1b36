//! Subprocesses, with errors that contain the command line and advice.

use anyhow::{Context as _, Result, bail};
use std::io::ErrorKind;
use std::process::{Command, Output, Stdio};

/// Runs `command` to its end with visible output.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let status = command.status().with_context(|| not_started(command))?;
    if status.success() {
        return Ok(());
    }
    bail!("`{}` failed ({status}); what it wrote is above", line(command))
}

/// Runs `command` to its end and returns standard output. The output is shown only if the command
/// fails.
pub(crate) fn answer(command: &mut Command) -> Result<String> {
    let Output { status, stdout, stderr } =
        command.stdin(Stdio::null()).output().with_context(|| not_started(command))?;
    if status.success() {
        return Ok(String::from_utf8_lossy(&stdout).trim_end().to_owned());
    }
    let said = [stderr, stdout].concat();
    bail!("`{}` failed ({status}):\n{}", line(command), String::from_utf8_lossy(&said).trim_end())
}

/// Whether `command` runs and succeeds. The output is hidden.
pub(crate) fn succeeds(command: &mut Command) -> bool {
    command.stdin(Stdio::null()).output().is_ok_and(|output| output.status.success())
}

/// Wraps `command` in `nice`, so that it uses only otherwise idle CPU time.
pub(crate) fn in_background(command: &Command) -> Command {
    let mut nice = Command::new("nice");
    nice.args(["-n", "10"]).arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => nice.env(name, value),
            None => nice.env_remove(name),
        };
    }
    if let Some(folder) = command.get_current_dir() {
        nice.current_dir(folder);
    }
    nice
}

/// The command line in shell syntax.
pub(crate) fn line(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| quoted(&word.to_string_lossy())).collect::<Vec<_>>().join(" ")
}

fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:,@+%".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

fn not_started(command: &Command) -> String {
    let program = command.get_program().to_string_lossy().into_owned();
    let missing = Command::new(&program).arg("--version").output();
    let hint = match missing {
        Err(error) if error.kind() == ErrorKind::NotFound => match program.as_str() {
            "python3" => {
                "; install it (Debian and Ubuntu: `apt-get install python3 python3-venv python3-pip`)"
            }
            "curl" => "; install it (Debian and Ubuntu: `apt-get install curl`)",
            _ => "; is it installed?",
        },
        _ => "",
    };
    format!("cannot start `{program}`{hint}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failure_includes_command_line_and_output() {
        let error = answer(Command::new("sh").args(["-c", "echo why; echo it broke >&2; exit 3"]))
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("sh -c 'echo why; echo it broke >&2; exit 3'") && error.ends_with("it broke\nwhy"),
            "{error}"
        );
        assert_eq!(answer(Command::new("echo").arg("hi")).unwrap(), "hi");
    }

    #[test]
    fn command_in_background_keeps_its_folder_and_environment() {
        let folder = tempfile::tempdir().unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", "pwd; echo $WEIR_SET-$HOME; nice"]).current_dir(folder.path());
        command.env("WEIR_SET", "set").env_remove("HOME");
        let here: i32 = answer(&mut Command::new("nice")).unwrap().parse().unwrap();
        let there = (here + 10).min(19);
        let answer = answer(&mut in_background(&command)).unwrap();
        let folder = folder.path().canonicalize().unwrap();
        assert_eq!(answer, format!("{}\nset-\n{there}", folder.display()));
    }

    #[test]
    fn missing_program_is_named() {
        let error = run(&mut Command::new("no-such-program")).unwrap_err().to_string();
        assert!(error.contains("no-such-program") && error.contains("is it installed"), "{error}");
    }

    #[test]
    fn words_are_quoted_for_the_shell() {
        assert_eq!(quoted("a-b/c=1"), "a-b/c=1");
        assert_eq!(quoted("it's"), r"'it'\''s'");
        assert_eq!(quoted(""), "''");
    }
}
