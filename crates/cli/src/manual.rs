//! `trueshot man`: manual pages, one per command, made from the help.

use std::path::PathBuf;

use anyhow::Context;
use clap::Args;
use clap_mangen::Man;

use crate::messages::say;
use crate::output::{print_data, write_file};

/// Write manual pages for `man`
///
/// Without --out, the main page is printed. With --out, one page per command is written to a folder.
#[derive(Args)]
#[command(after_help = "Examples:
  trueshot man | man -l -
  trueshot man --out ~/.local/share/man/man1")]
pub struct Arguments {
    /// Write one page per command to DIR, such as trueshot-audit.1
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

/// Writes or prints the pages. `command` is the whole command line of trueshot.
pub fn run(arguments: &Arguments, command: clap::Command) -> anyhow::Result<()> {
    // Without pages for `trueshot help audit` and the like, which would repeat those of the commands.
    let mut command = command.disable_help_subcommand(true);
    command.build();
    let Some(folder) = &arguments.out else { return print_data(&page(&command)?) };
    std::fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
    let written = write_pages(&command, folder)?;
    say!("{}: {written} manual pages", folder.display());
    Ok(())
}

/// Writes the pages of a command and its subcommands, and returns their number.
fn write_pages(command: &clap::Command, folder: &std::path::Path) -> anyhow::Result<usize> {
    let name = command.get_display_name().unwrap_or_else(|| command.get_name());
    let path = folder.join(format!("{name}.1"));
    write_file(&path, &page(command)?)?;
    command.get_subcommands().try_fold(1, |pages, subcommand| Ok(pages + write_pages(subcommand, folder)?))
}

/// The page of one command in the format of `man` (roff).
fn page(command: &clap::Command) -> anyhow::Result<String> {
    let mut page = Vec::new();
    Man::new(command.clone()).manual("trueshot").render(&mut page)?;
    let page = String::from_utf8(page)?;
    // clap names the section after the options EXTRA. It contains examples and tables: with .nf, their lines stay as
    // they are.
    let Some((before, extra)) = page.split_once(".SH EXTRA\n") else { return Ok(page) };
    let (examples, after) = extra.split_at(extra.find("\n.SH ").map_or(extra.len(), |end| end + 1));
    Ok(format!("{before}.SH EXAMPLES\n.nf\n{}\n.fi\n{after}", examples.trim_end()))
}
