//! Where results go: standard output, or a file that appears whole.

use std::io::Write;
use std::path::{Path, PathBuf};

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
            None => {
                let mut stdout = std::io::stdout().lock();
                stdout.write_all(text.as_bytes())?;
                Ok(stdout.flush()?)
            }
        }
    }
}

/// Writes a text file that appears whole or not at all.
pub fn write_file(path: &Path, text: &str) -> anyhow::Result<()> {
    trueshot::atomic::write_atomically(path, |file| file.write_all(text.as_bytes()))?;
    Ok(())
}
