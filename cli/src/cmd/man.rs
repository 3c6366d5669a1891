//! `vmemkv man`: the manual pages.
//!
//! Invariant: a page for each command and each command below it, named as `man` looks for them.

use std::path::{Path, PathBuf};

use clap::{Args, CommandFactory as _};
use clap_mangen::Man;

use crate::args::Cli;
use crate::context::Context;
use crate::failure::{Failure, Result};

const EXAMPLES: &str = "\
Examples:
  vmemkv man ~/.local/share/man/man1    then: man vmemkv, man vmemkv-import
  vmemkv man - | man -l -               the page of vmemkv itself";

/// Flags of `vmemkv man`.
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub struct ManArgs {
    /// Where to write the pages; made if it does not exist. `-`: print the page of `vmemkv`
    #[arg(value_name = "DIR|-")]
    pub dir: PathBuf,
}

/// Runs the command.
pub fn run(args: &ManArgs, context: &Context) -> Result {
    let mut command = Cli::command();
    command.build();
    if args.dir.as_os_str() == "-" {
        let mut lines = context.output.writer();
        lines.bytes(&page("vmemkv", &command)?)?;
        return lines.finish();
    }
    std::fs::create_dir_all(&args.dir)
        .map_err(|error| Failure::io(format!("make {}", args.dir.display()), &error))?;
    let mut written = 0;
    write_pages(&args.dir, "vmemkv", &command, &mut written)?;
    context.output.either(
        || serde_json::json!({ "pages": written, "dir": args.dir }),
        || format!("{written} pages in {}", args.dir.display()),
    )
}

fn write_pages(dir: &Path, name: &str, command: &clap::Command, written: &mut u32) -> Result {
    let path = dir.join(format!("{name}.1"));
    std::fs::write(&path, page(name, command)?)
        .map_err(|error| Failure::io(format!("write {}", path.display()), &error))?;
    *written += 1;
    for below in command.get_subcommands().filter(|below| below.get_name() != "help") {
        write_pages(dir, &format!("{name}-{}", below.get_name()), below, written)?;
    }
    Ok(())
}

fn page(name: &str, command: &clap::Command) -> Result<Vec<u8>> {
    let mut page = Vec::new();
    Man::new(command.clone())
        .title(name)
        .render(&mut page)
        .map_err(|error| Failure::io("render a page", &error))?;
    Ok(page)
}
