//! Runs a project's build command.

use crate::error::Problem;
use crate::output::OutputSettings;
use anyhow::Result;
use parking_lot::{Mutex, MutexGuard};
use rustix::process::{Pid, Signal, kill_process_group};
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;
use weir_provision::{NodeModules, PackagesError, PythonEnvironment, SharedEnvironments, Toolchain};

/// Poll interval for the end of a stoppable build.
const POLL: Duration = Duration::from_millis(20);

/// Handle to end a running build from another thread, such as the watcher's during a shutdown.
#[derive(Debug, Clone, Default)]
pub(crate) struct BuildStop(Arc<Mutex<BuildState>>);

#[derive(Debug, Default)]
struct BuildState {
    stopped: bool,
    child: Option<Child>,
}

impl BuildStop {
    /// Ends the running build and prevents further builds.
    pub(crate) fn stop(&self) {
        let mut state = self.state();
        state.stopped = true;
        if let Some(group) = state.child.as_ref().and_then(|child| Pid::from_raw(child.id().cast_signed())) {
            // The build may have exited already.
            let _ = kill_process_group(group, Signal::TERM);
        }
    }

    /// Whether [`Self::stop`] was called.
    pub(crate) fn is_stopped(&self) -> bool {
        self.state().stopped
    }

    fn run(&self, command: &mut Command) -> io::Result<ExitStatus> {
        {
            let mut state = self.state();
            if state.stopped {
                return Err(io::ErrorKind::Interrupted.into());
            }
            // A new process group, so that the signal reaches the shell's children too.
            state.child = Some(command.process_group(0).spawn()?);
        }
        loop {
            // Reap under the lock, so that `stop` never signals a process that reused the PID.
            let mut state = self.state();
            let Some(child) = &mut state.child else { return Err(io::ErrorKind::NotFound.into()) };
            if let Some(status) = child.try_wait()? {
                state.child = None;
                return Ok(status);
            }
            drop(state);
            std::thread::sleep(POLL);
        }
    }

    fn state(&self) -> MutexGuard<'_, BuildState> {
        self.0.lock()
    }
}

/// Runs `command` in `folder` with the toolchains that the project's files require: `Cargo.toml`
/// for Rust, `toolchain.txt` for PyPI packages, `package.json` for npm packages. The command gets
/// `variables` in its environment. Its output goes to standard error, because standard output is for
/// results.
pub(super) fn run(
    command: &str,
    variables: &[(&str, &OsStr)],
    folder: &Path,
    output: OutputSettings,
    stop: Option<&BuildStop>,
) -> Result<()> {
    let mut shell = Command::new("sh");
    // weir.toml has the path of the component; a custom target folder would change it.
    shell.args(["-c", command]).current_dir(folder).env_remove("CARGO_TARGET_DIR");
    shell.envs(variables.iter().copied()).stdin(Stdio::null()).stdout(io::stderr());
    if folder.join("Cargo.toml").is_file() {
        let mut note = |step: &str| output.note(format_args!("  {step}"));
        let toolchain = Toolchain::find_or_install(folder, &mut note)
            .map_err(|error| Problem::new(error.to_string()).hint(error.hint()))?;
        toolchain.configure(&mut shell);
    }
    let packages = packages(folder, output)?;
    if !packages.programs.is_empty() {
        shell.env("PATH", before_path(packages.programs)?);
    }
    output.note(format_args!("building: {command}"));
    let status = match stop {
        Some(stop) => stop.run(&mut shell),
        None => shell.status(),
    };
    let status = status.map_err(|error| Problem::new("the build command did not run").because(error))?;
    if status.success() {
        return Ok(());
    }
    let file = folder.join("weir.toml");
    let problem = Problem::new(format!("the build failed ({status})"));
    let remedy = native_remedy(&packages.native).map_or_else(String::new, |remedy| format!("{remedy}; "));
    let hint = format!("its output is above; {remedy}the command in {}: {command}", file.display());
    Err(problem.hint(hint).into())
}

/// Installed packages of a project.
#[derive(Debug, Default)]
struct ProjectPackages {
    /// Folders of their programs, those that come first in `PATH` first.
    programs: Vec<PathBuf>,
    /// Names of the packages of `requirements.txt` with machine code.
    native: Vec<String>,
}

/// Installs the project's packages. All projects of the user share toolchains from PyPI, which
/// `.weir/toolchain` links to.
fn packages(folder: &Path, output: OutputSettings) -> Result<ProjectPackages> {
    let explained = |error: PackagesError| Problem::new(error.to_string()).hint(error.hint());
    let mut note = |step: &str| output.note(format_args!("  {step}"));
    let mut project = ProjectPackages::default();
    let pinned = folder.join("toolchain.txt");
    if pinned.is_file() {
        let local = folder.join(".weir");
        std::fs::create_dir_all(&local)?;
        let cache = weir_provision::cache_folder().filter(|cache| is_writable(cache));
        let shared = SharedEnvironments::new(cache.as_ref().unwrap_or(&local).join("toolchains"));
        let toolchain = shared.install(&pinned, &mut note).map_err(explained)?;
        if let Err(error) = link(toolchain.folder(), &local) {
            note(&format!("no link to the toolchain in {}: {error}", local.display()));
        }
        let packages = PythonEnvironment::resolved(local.join("python"), folder.join("requirements.txt"));
        if let Some(packages) = packages.map_err(explained)? {
            packages.install(&mut note).map_err(explained)?;
            packages.include(&toolchain).map_err(explained)?;
            project.native = packages.native_packages().map_err(explained)?;
            // Only a note: some packages use machine code only where they can load it.
            if let Some(remedy) = native_remedy(&project.native) {
                output.note(format_args!("warning: {remedy}"));
            }
            // First, because a compiler looks for packages through the first Python in PATH.
            project.programs.push(packages.programs());
        }
        project.programs.push(toolchain.programs());
    }
    if folder.join("package.json").is_file() {
        let modules = NodeModules::new(folder);
        modules.install(&mut note).map_err(explained)?;
        project.programs.push(modules.programs());
    }
    Ok(project)
}

/// The remedy for packages with machine code; `None` without such packages.
fn native_remedy(native: &[String]) -> Option<String> {
    let have = match native.len() {
        0 => return None,
        1 => "has",
        _ => "have",
    };
    let names = native.join(", ");
    Some(format!(
        "{names} in requirements.txt {have} machine code, which components cannot run: functions can use packages in pure Python, and builds for WASI"
    ))
}

/// Makes `toolchain` in the folder `local` a symbolic link to `target`, for people who run the
/// toolchain's programs themselves.
fn link(target: &Path, local: &Path) -> io::Result<()> {
    let link = local.join("toolchain");
    if std::fs::read_link(&link).is_ok_and(|is| is == target) {
        return Ok(());
    }
    // Another build of the project may do the same.
    let folder = tempfile::tempdir_in(local)?;
    let new = folder.path().join("toolchain");
    std::os::unix::fs::symlink(target, &new)?;
    std::fs::rename(new, link)
}

/// Whether files can be created in `folder`.
fn is_writable(folder: &Path) -> bool {
    std::fs::create_dir_all(folder).and_then(|()| tempfile::tempfile_in(folder)).is_ok()
}

fn before_path(programs: Vec<PathBuf>) -> Result<OsString> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    Ok(std::env::join_paths(programs.into_iter().chain(std::env::split_paths(&path)))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUIET: OutputSettings = OutputSettings { json: false, quiet: true };

    #[test]
    fn failed_build_reports_the_exit_status() {
        let folder = tempfile::tempdir().unwrap();
        run("test -d .", &[], folder.path(), QUIET, None).unwrap();
        assert!(
            run("exit 3", &[], folder.path(), QUIET, None)
                .unwrap_err()
                .to_string()
                .contains("exit status: 3")
        );
    }

    #[test]
    fn remedy_names_packages_with_machine_code() {
        assert_eq!(native_remedy(&[]), None);
        let remedy = |names: &[&str]| {
            native_remedy(&names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>()).unwrap()
        };
        assert!(remedy(&["numpy"]).starts_with("numpy in requirements.txt has machine code"));
        assert!(remedy(&["numpy", "orjson"]).starts_with("numpy, orjson in requirements.txt have"));
    }

    #[test]
    fn project_programs_come_first_in_path() {
        let path = before_path(vec!["/project/bin".into()]).unwrap();
        assert!(path.to_string_lossy().starts_with("/project/bin:"), "{}", path.display());
        let folder = tempfile::tempdir().unwrap();
        assert!(packages(folder.path(), QUIET).unwrap().programs.is_empty());
    }

    #[test]
    fn stopping_a_build_kills_its_process_group_and_prevents_new_builds() {
        let folder = tempfile::tempdir().unwrap();
        let stop = BuildStop::default();
        let started = folder.path().join("started");
        let build = {
            let stop = stop.clone();
            let folder = folder.path().to_owned();
            // Two processes: signalling only the shell would leave the other running, as the pipe
            // keeps `cat` alive.
            std::thread::spawn(move || {
                run("touch started; sleep 600 | cat", &[], &folder, QUIET, Some(&stop))
            })
        };
        while !started.exists() {
            std::thread::yield_now();
        }
        stop.stop();
        assert!(build.join().unwrap().is_err());
        assert!(run("true", &[], folder.path(), QUIET, Some(&stop)).is_err());
    }
}
