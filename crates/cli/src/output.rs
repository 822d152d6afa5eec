//! Output of results to standard output, or to a file that is written completely or not at all.

use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::Args;
use trueshot::report::visible_lines;
use trueshot_vision::source::is_image;

/// Where to put a result.
#[derive(Args)]
pub struct OutputArgument {
    /// Write the result to FILE instead of standard output
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
}

impl OutputArgument {
    /// Writes text for people: control characters other than line ends are always escaped.
    pub fn write_text(&self, text: &str) -> anyhow::Result<()> {
        self.write_data(&visible_lines(text))
    }

    /// Writes data for programs unchanged. Control characters are escaped only if standard output is a terminal.
    pub fn write_data(&self, data: &str) -> anyhow::Result<()> {
        match &self.output {
            Some(path) => write_file(path, data),
            None => print_data(data),
        }
    }
}

/// The width of tables for people.
#[derive(Args)]
pub struct WidthArgument {
    /// Shorten names in tables so that lines have N columns [default: COLUMNS or the width of the terminal; whole names in
    /// a pipe or file]
    #[arg(long, value_name = "N", help_heading = "Other options", value_parser = clap::value_parser!(u16).range(MIN_COLUMNS..))]
    columns: Option<u16>,
}

/// The smallest value of `--columns`.
const MIN_COLUMNS: i64 = 20;

impl WidthArgument {
    /// The maximum width of tables in columns, if limited. `output` is the file to which they are written, if not
    /// standard output.
    pub fn limit(&self, output: Option<&PathBuf>) -> Option<usize> {
        let from_variable = || std::env::var("COLUMNS").ok()?.trim().parse().ok();
        let is_possible = |columns: &u16| i64::from(*columns) >= MIN_COLUMNS;
        let of_terminal = || terminal_size::terminal_size_of(std::io::stdout()).map(|(width, _)| width.0);
        // An invalid value of the variable is ignored. Without a terminal, as in a pipe, the width is unlimited.
        let of_stdout = || from_variable().filter(is_possible).or_else(of_terminal);
        let columns = self.columns.or_else(|| if output.is_none() { of_stdout() } else { None });
        columns.map(usize::from)
    }
}

/// Writes text to standard output, with control characters other than line ends escaped.
pub fn print_escaped(text: &str) -> anyhow::Result<()> {
    print_raw(&visible_lines(text))
}

/// Writes data for programs to standard output. Control characters are escaped if it is a terminal.
pub fn print_data(data: &str) -> anyhow::Result<()> {
    if std::io::stdout().is_terminal() { print_escaped(data) } else { print_raw(data) }
}

/// Writes text to standard output unchanged. Unlike `print!`, it returns an error instead of panicking, for example if a
/// pipe is closed or the disk is full.
fn print_raw(text: &str) -> anyhow::Result<()> {
    let mut stdout = std::io::stdout().lock();
    stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()).context("cannot write to standard output")
}

/// Writes a text file, completely or not at all.
pub fn write_file(path: &Path, text: &str) -> anyhow::Result<()> {
    trueshot::atomic::write_atomically(path, |file| file.write_all(text.as_bytes()))?;
    Ok(())
}

/// Parses the path of a file that is written as .safetensors.
pub fn safetensors_path(text: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(text);
    match path.extension().is_some_and(|extension| extension == "safetensors") {
        true => Ok(path),
        false => Err("the file must end in .safetensors".into()),
    }
}

/// Whether two paths lead to the same existing file or folder.
pub fn is_same_file(one: &Path, other: &Path) -> bool {
    let real = |path: &Path| std::fs::canonicalize(path).ok();
    real(one).is_some_and(|one| real(other) == Some(one))
}

/// Refuses to write to a file that the same command reads.
pub fn check_not_read<'a>(
    outputs: impl IntoIterator<Item = &'a PathBuf>,
    inputs: impl IntoIterator<Item = &'a PathBuf>,
) -> anyhow::Result<()> {
    let inputs: Vec<&PathBuf> = inputs.into_iter().collect();
    for output in outputs {
        anyhow::ensure!(
            !inputs.iter().any(|input| is_same_file(input, output)),
            "{} is read by this command: write to another file",
            output.display()
        );
    }
    Ok(())
}

/// Checks that files can be created at the given paths, before long work whose results are written there, that the paths
/// lead to different files, and that none is an existing image, which a mistyped command would replace.
pub fn check_writable<'a>(paths: impl IntoIterator<Item = &'a PathBuf>) -> anyhow::Result<()> {
    let paths: Vec<&PathBuf> = paths.into_iter().collect();
    if let Some(image) = paths.iter().find(|path| is_image(&path.to_string_lossy()) && path.is_file()) {
        anyhow::bail!("{} is an image: write to another file", image.display());
    }
    paths.iter().try_for_each(|path| trueshot::atomic::check_writable(path))?;
    check_distinct(paths)
}

/// Refuses outputs of one command that lead to the same file, which need not exist yet.
pub fn check_distinct<'a>(outputs: impl IntoIterator<Item = &'a PathBuf>) -> anyhow::Result<()> {
    let mut seen = Vec::new();
    for output in outputs {
        let Some(file) = absolute_path(output) else { continue };
        anyhow::ensure!(!seen.contains(&file), "{} is given for two outputs", output.display());
        seen.push(file);
    }
    Ok(())
}

/// The absolute path of a file or folder that is written, without symbolic links. `None` for devices and pipes, to
/// which several results can be written, and if the parent folder does not exist.
fn absolute_path(path: &Path) -> Option<PathBuf> {
    match std::fs::metadata(path) {
        Ok(metadata) if metadata.is_file() || metadata.is_dir() => std::fs::canonicalize(path).ok(),
        Ok(_) => None,
        Err(_) => {
            let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
            Some(std::fs::canonicalize(folder.unwrap_or(Path::new("."))).ok()?.join(path.file_name()?))
        }
    }
}
