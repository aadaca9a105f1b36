//! `weir completions`.

use crate::args::Args;
use crate::output::OutputSettings;
use anyhow::Result;
use clap::CommandFactory as _;

/// Print a shell completion script
///
/// bash:  weir completions bash > ~/.local/share/bash-completion/completions/weir
/// zsh:   weir completions zsh > "${fpath[1]}/_weir"
/// fish:  weir completions fish > ~/.config/fish/completions/weir.fish
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct CompletionsArgs {
    /// Shell to print the script for
    shell: clap_complete::Shell,
}

pub(crate) fn run(args: &CompletionsArgs, output: OutputSettings) -> Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Args::command(), "weir", &mut script);
    output.bytes(&script)
}
