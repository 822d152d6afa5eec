//! The command `trueshot`: one file per command. Data goes to standard output, progress and messages to
//! standard error. A library, so that the Python package has the same command.

mod attention;
mod audit;
mod backbone_argument;
mod bench;
mod confirmed;
mod dataset;
mod demo;
mod embed;
mod episode;
mod eval;
mod fit;
mod inspect;
mod messages;
mod output;
mod pictures_argument;
mod predict;
mod progress;
mod repair;
mod reproduce;
mod serve;
mod support;
mod threads;
mod train;

use std::ffi::OsString;

use clap::{Parser, Subcommand};

/// Learn from a handful of labelled examples when some labels are wrong.
#[derive(Parser)]
#[command(name = "trueshot", version, about, max_term_width = 100, arg_required_else_help = true)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Demo(demo::Arguments),
    Inspect(inspect::Arguments),
    Dataset(dataset::Arguments),
    Embed(embed::Arguments),
    Audit(Box<audit::Arguments>),
    Repair(repair::Arguments),
    Eval(Box<eval::Arguments>),
    Fit(Box<fit::Arguments>),
    Predict(Box<predict::Arguments>),
    Episode(episode::Arguments),
    Train(train::Arguments),
    Attention(attention::Arguments),
    Reproduce(reproduce::Arguments),
    Serve(serve::Arguments),
    Bench(bench::Arguments),
}

/// Runs the command with these arguments, the first of which names the program, and says how it ended: 0 done, 1 failed,
/// 2 asked for wrongly, 3 looked for something wrong and found it.
pub fn main_from(arguments: impl IntoIterator<Item = impl Into<OsString> + Clone>) -> u8 {
    let arguments = match Arguments::try_parse_from(arguments) {
        Ok(arguments) => arguments,
        Err(asked_or_refused) => {
            // Help and version are answers; a closed pipe is nobody's fault.
            let _ = asked_or_refused.print();
            return asked_or_refused.exit_code() as u8;
        }
    };
    let run = || -> anyhow::Result<()> {
        trueshot::check_instructions()?;
        match arguments.command {
            Command::Demo(arguments) => demo::run(&arguments),
            Command::Inspect(arguments) => inspect::run(&arguments),
            Command::Dataset(arguments) => dataset::run(&arguments),
            Command::Embed(arguments) => embed::run(&arguments),
            Command::Audit(arguments) => audit::run(&arguments),
            Command::Repair(arguments) => repair::run(&arguments),
            Command::Eval(arguments) => eval::run(&arguments),
            Command::Fit(arguments) => fit::run(&arguments),
            Command::Predict(arguments) => predict::run(&arguments),
            Command::Episode(arguments) => episode::run(&arguments),
            Command::Train(arguments) => train::run(&arguments),
            Command::Attention(arguments) => attention::run(&arguments),
            Command::Reproduce(arguments) => reproduce::run(&arguments),
            Command::Serve(arguments) => serve::run(&arguments),
            Command::Bench(arguments) => bench::run(&arguments),
        }
    };
    messages::exit_status(run())
}
