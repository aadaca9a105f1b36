//! Child processes for work on untrusted input. A child may run out of memory, crash or be killed
//! without harm to the node.
//!
//! The child is the running program, started with a hidden subcommand. [`ChildCommand::run`] is the
//! parent side: it writes one line of JSON with the limits and the task to the child's standard
//! input, and reads JSON from its standard output. Standard input stays open for the lifetime of
//! the child. [`serve`] is the child side: it applies the limits to its process before it reads the
//! task, and exits when its parent dies.

mod confine;
pub use confine::{
    Confinement, Layer, MissingLayer, PROBE_COMMAND, confine_access, confine_process, keep_file_modes,
    missing_layers, probe_main,
};

mod machine;
pub use machine::usable_memory_bytes;

mod limits;
pub use limits::Limits;

mod command;
pub use command::{ChildCommand, ChildFailure};

mod serve;
pub use serve::serve;

mod open_files;
pub use open_files::raise_open_files;
