//! Work on untrusted input, done by a process that can run out of memory, crash or be killed without harm to the node.
//!
//! The process is this same program, started with a hidden subcommand. The node's side is [`Command::run`]: it sends one line of JSON
//! with the limits and the task to the child's standard input, which stays open for as long as the child shall live, and reads JSON from
//! its standard output. The child's side is [`serve`]: it limits itself before it looks at its task, and ends with its parent.

mod limits;
pub use limits::Limits;

mod command;
pub use command::{Command, Failure};

mod serve;
pub use serve::serve;

mod open_files;
pub use open_files::raise_open_files;
