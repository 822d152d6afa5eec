//! `trueshot inspect`: shows the contents of an embeddings file and checks it for problems.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use trueshot::report;

use crate::output::{OutputArgument, WidthArgument, check_not_read};
use crate::support_argument::read_embeddings;

/// Show the contents of an embeddings file and check it for problems
///
/// Reads .safetensors, .npy (with a second .npy file of labels), .npz, .parquet, .arrow and .feather. Shows shape,
/// precision, classes and their sizes, norms of the rows, duplicates, values that are not finite, and the fingerprint:
/// a hash of the data, by which results name the data they were computed from.
#[derive(Args)]
pub struct Arguments {
    /// Embeddings file
    #[arg(value_name = "PATH")]
    path: PathBuf,
    /// Read the labels of a .npy file from FILE (.npy) [default: NAME.labels.npy or NAME_labels.npy next to it; y.npy for X.npy]
    #[arg(long = "labels-of-rows", alias = "labels", value_name = "FILE", help_heading = "Other options")]
    labels: Option<PathBuf>,
    /// Print the result in this format
    #[arg(long, value_enum, default_value_t = Format::Table)]
    format: Format,
    #[command(flatten)]
    output: OutputArgument,
    #[command(flatten)]
    width: WidthArgument,
}

#[derive(Clone, Copy, ValueEnum)]
enum Format {
    Table,
    Json,
}

/// Runs `trueshot inspect`.
pub fn run(arguments: &Arguments) -> anyhow::Result<()> {
    check_not_read(&arguments.output.output, [&arguments.path].into_iter().chain(&arguments.labels))?;
    let embeddings = read_embeddings(&arguments.path, arguments.labels.as_deref())?;
    let inspection = trueshot::embeddings::inspect(&embeddings);
    match arguments.format {
        Format::Table => {
            let width = arguments.width.limit(arguments.output.output.as_ref());
            arguments.output.write_text(&report::inspection_text(&inspection, width))
        }
        Format::Json => arguments.output.write_data(&(serde_json::to_string_pretty(&inspection)? + "\n")),
    }
}
