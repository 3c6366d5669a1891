//! `vmemkv completions`: a script that completes commands in a shell.

use clap::{Args, CommandFactory as _};
use clap_complete::Shell;

use crate::args::Cli;
use crate::context::Context;
use crate::failure::Result;

const EXAMPLES: &str = "\
Examples:
  vmemkv completions bash > ~/.local/share/bash-completion/completions/vmemkv
  vmemkv completions zsh > ~/.zfunc/_vmemkv
  vmemkv completions fish > ~/.config/fish/completions/vmemkv.fish";

/// Flags of `vmemkv completions`.
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub struct CompletionsArgs {
    /// The shell
    #[arg(value_enum)]
    pub shell: Shell,
}

/// Runs the command.
pub fn run(args: &CompletionsArgs, context: &Context) -> Result {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "vmemkv", &mut script);
    let mut lines = context.output.writer();
    lines.bytes(&script)?;
    lines.finish()
}
