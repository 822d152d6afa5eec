//! `trueshot dataset`: the commands that check and prepare data sets.

mod check;
mod outliers;

use clap::{Args, Subcommand};

/// Check data sets against their published statistics, and build a set of outliers
#[derive(Args)]
pub struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Check(check::Arguments),
    Outliers(outliers::Arguments),
}

/// Runs `trueshot dataset`.
pub fn run(arguments: &Arguments) -> anyhow::Result<()> {
    match &arguments.command {
        Command::Check(arguments) => check::run(arguments),
        Command::Outliers(arguments) => outliers::run(arguments),
    }
}
