//! The command line of trueshot: one module per command, and shared arguments and output. Start with [`main_from`].
//!
//! Data goes to standard output, progress and messages to standard error. The command line is a library because the
//! Python package has the same command.

mod attention;
mod audit;
mod backbone_argument;
mod bench;
mod completions;
mod confirmed_labels;
mod dataset;
mod demo;
mod device_argument;
mod embed;
mod episode;
mod eval;
mod export;
mod fit;
mod images_argument;
mod inspect;
mod manual;
mod messages;
mod output;
mod predict;
mod progress;
mod repair;
mod reproduce;
mod serve;
mod subprocess;
mod support_argument;
mod threads;
mod time_limit;
mod train;

use std::ffi::OsString;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

/// Find wrong labels in small labelled data sets, and train few-shot classifiers that stay accurate despite them.
#[derive(Parser)]
#[command(
    name = "trueshot",
    version,
    max_term_width = 100,
    after_help = "Start with one of these:
  trueshot audit photos/ --html audit.html     find photos in the wrong folder
  trueshot fit photos/ -o photos.safetensors   build a classifier
  trueshot serve                               the same on a page in the browser

`trueshot COMMAND -h` lists the options in short, --help explains them.
The commands from embed to bench are for research with embeddings and networks."
)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Demo(demo::Arguments),
    Audit(Box<audit::Arguments>),
    Repair(repair::Arguments),
    Fit(Box<fit::Arguments>),
    Predict(Box<predict::Arguments>),
    Export(Box<export::Arguments>),
    Serve(serve::Arguments),
    Embed(embed::Arguments),
    Inspect(inspect::Arguments),
    Eval(Box<eval::Arguments>),
    Train(train::Arguments),
    Episode(episode::Arguments),
    Attention(attention::Arguments),
    Dataset(dataset::Arguments),
    Reproduce(reproduce::Arguments),
    Bench(bench::Arguments),
    Completions(completions::Arguments),
    Man(manual::Arguments),
}

/// Runs the command with these arguments, the first of which names the program, and returns its exit status: 0 success,
/// 1 failure, 2 wrong usage, 3 a check found problems, 130 stopped by Ctrl-C or a time limit.
pub fn main_from(arguments: impl IntoIterator<Item = impl Into<OsString> + Clone>) -> u8 {
    let arguments: Vec<OsString> = arguments.into_iter().map(Into::into).collect();
    // Not for users: this program starts itself with this argument as the process that runs an ONNX model.
    if arguments.len() == 2 && arguments[1] == subprocess::ONNX_WORKER {
        return trueshot_vision::onnx::serve();
    }
    // Besides the parsed arguments, the names of the command's options: hints of errors name only these.
    let parsed = command().try_get_matches_from(&arguments).and_then(|matches| {
        let options = option_names(&command(), &matches);
        Ok((Arguments::from_arg_matches(&matches)?, options))
    });
    let (arguments, options) = match parsed {
        Ok(parsed) => parsed,
        Err(help_or_error) => return messages::print_usage(&help_or_error, &arguments),
    };
    let run = || -> anyhow::Result<()> {
        // The environment variable TRUESHOT_ISA may name an instruction set that this processor does not have.
        trueshot::check_instructions()?;
        subprocess::configure_onnx_worker()?;
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
            Command::Export(arguments) => export::run(&arguments),
            Command::Episode(arguments) => episode::run(&arguments),
            Command::Train(arguments) => train::run(&arguments),
            Command::Attention(arguments) => attention::run(&arguments),
            Command::Reproduce(arguments) => reproduce::run(&arguments),
            Command::Serve(arguments) => serve::run(&arguments),
            Command::Bench(arguments) => bench::run(&arguments),
            Command::Completions(arguments) => completions::run(&arguments, command()),
            Command::Man(arguments) => manual::run(&arguments, command()),
        }
    };
    messages::exit_status(run(), &options)
}

/// The command line for clap.
fn command() -> clap::Command {
    with_negative_values(Arguments::command())
}

/// Lets the options of a command and its subcommands take negative numbers. An option that does not allow them then says
/// which values it allows; otherwise, clap takes `-1` for an option that does not exist.
fn with_negative_values(command: clap::Command) -> clap::Command {
    let allow = |argument: clap::Arg| {
        let takes_values = !argument.is_positional() && argument.get_action().takes_values();
        if takes_values { argument.allow_negative_numbers(true) } else { argument }
    };
    command.mut_args(allow).mut_subcommands(with_negative_values)
}

/// The long options of the command that the user gave, which may be a subcommand of a command, such as `train
/// backbone`.
fn option_names(command: &clap::Command, matches: &clap::ArgMatches) -> messages::OptionNames {
    let subcommand =
        matches.subcommand().and_then(|(name, matches)| Some((command.find_subcommand(name)?, matches)));
    match subcommand {
        Some((command, matches)) => option_names(command, matches),
        None => command.get_arguments().filter_map(|option| option.get_long()).map(str::to_owned).collect(),
    }
}
