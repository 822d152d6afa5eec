//! Where results go: standard output, or a file that appears whole.

use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::Args;

/// Where to put a result.
#[derive(Args)]
pub struct Output {
    /// Write the result to FILE instead of standard output
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
}

impl Output {
    /// Writes text to where it should go.
    pub fn write(&self, text: &str) -> anyhow::Result<()> {
        match &self.output {
            Some(path) => write_file(path, text),
            None => print(text),
        }
    }
}

/// Writes text to standard output. Unlike `print!`, it can fail without a panic: pipes are closed and disks full.
pub fn print(text: &str) -> anyhow::Result<()> {
    let mut stdout = std::io::stdout().lock();
    stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()).context("cannot write to standard output")
}

/// Writes a text file that appears whole or not at all.
pub fn write_file(path: &Path, text: &str) -> anyhow::Result<()> {
    trueshot::atomic::write_atomically(path, |file| file.write_all(text.as_bytes()))?;
    Ok(())
}

/// An hour of work must not end in a folder that does not exist.
pub fn check_writable<'a>(paths: impl IntoIterator<Item = &'a PathBuf>) -> anyhow::Result<()> {
    Ok(paths.into_iter().try_for_each(|path| trueshot::atomic::check_writable(path))?)
}
