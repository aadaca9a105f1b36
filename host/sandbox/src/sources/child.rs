//! Makes the table of source locations in a child process with resource limits: `weir __locate`.
//! Debug information can take any time and memory to read.

use super::collect::collect;
use serde::{Deserialize, Serialize};
use std::io::{self, BufWriter, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use weir_child::{ChildCommand, Confinement, Limits};

/// The hidden subcommand that [`main`] serves.
pub const SUBCOMMAND: &str = "__locate";

/// The limits of the child. Debug information that exceeds them is not used.
const LIMITS: Limits = Limits { memory_bytes_max: 1 << 30, cpu_ms_max: 20_000 };

/// A request to the child.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct LocateTask {
    /// The path of the component.
    pub(crate) component: PathBuf,
    /// The path to write the table to. The file stays empty if no locations are known.
    pub(crate) table: PathBuf,
}

/// Makes the table in a child process. Returns whether there are locations. Dropping the future
/// kills the child.
pub(crate) async fn locate(task: &LocateTask) -> Result<bool, String> {
    let ran = ChildCommand::this_program(SUBCOMMAND).run::<Result<bool, String>>(LIMITS, task).await;
    ran.map_err(|failure| failure.to_string()).flatten()
}

/// The child's side of `locate`.
#[must_use]
pub fn main() -> ExitCode {
    let access = |task: &LocateTask| {
        let LocateTask { component, table } = task.clone();
        Some(Confinement { readable: vec![component], writable: vec![table] })
    };
    weir_child::serve(access, |task: LocateTask, _| do_task(&task))
}

fn do_task(task: &LocateTask) -> Result<bool, String> {
    let component = std::fs::read(&task.component).map_err(|error| error.to_string())?;
    let table = collect(&component).map_err(|error| error.to_string())?;
    if table.is_empty() {
        return Ok(false);
    }
    write(&task.table, |to| table.write(to)).map_err(|error| error.to_string())?;
    Ok(true)
}

fn write(path: &Path, table: impl FnOnce(&mut BufWriter<std::fs::File>) -> io::Result<()>) -> io::Result<()> {
    let mut file = BufWriter::new(std::fs::File::create(path)?);
    table(&mut file)?;
    file.flush()
}
