//! `trueshot train`: the commands that train models, one file per command, and the options and display they share.
//!
//! Heads are networks on embeddings (TraNFS and Relabel, in `heads`); the other commands train on images and share
//! `image_training`. All of them prepare a [`Trainee`], the model with its data, and pass it to
//! [`RunArguments::train`].

mod backbone;
mod display;
mod heads;
mod image_training;
mod joint;
mod maml;
mod negmargin;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::{Args, Subcommand};
use trueshot::training::{Claim, Files, Outcome, RunOptions, Start, Trainee};

use crate::device_argument::DeviceArgument;
use crate::messages::{STOPPED, say};
use crate::output::safetensors_path;
use crate::progress::handle_interrupts;
use crate::threads::Threads;
use crate::time_limit::{parse_minutes, parse_seconds};
use display::TrainingDisplay;

/// Train a backbone or a few-shot model
///
/// A run writes the best model so far and, next to it, the configuration, the metrics and the learning curves. If it is
/// stopped with Ctrl-C or killed, `--resume` continues from the last checkpoint and ends in a byte-identical model.
#[derive(Args)]
pub struct Arguments {
    #[command(subcommand)]
    what: TrainCommand,
}

#[derive(Subcommand)]
enum TrainCommand {
    Backbone(Box<backbone::Arguments>),
    Tranfs(Box<heads::TranfsArguments>),
    Relabel(Box<heads::RelabelArguments>),
    Joint(Box<joint::Arguments>),
    Maml(Box<maml::Arguments>),
    Negmargin(Box<negmargin::Arguments>),
}

/// Runs `trueshot train`.
pub fn run(arguments: &Arguments) -> anyhow::Result<()> {
    match &arguments.what {
        TrainCommand::Backbone(arguments) => backbone::train(arguments),
        TrainCommand::Tranfs(arguments) => heads::train_tranfs(arguments),
        TrainCommand::Relabel(arguments) => heads::train_relabel(arguments),
        TrainCommand::Joint(arguments) => joint::train(arguments),
        TrainCommand::Maml(arguments) => maml::train(arguments),
        TrainCommand::Negmargin(arguments) => negmargin::train(arguments),
    }
}

/// The options of every training command.
#[derive(Args)]
#[command(next_help_heading = "The run")]
pub struct RunArguments {
    /// Write the model to this file (.safetensors), and the other files of the run next to it
    #[arg(short, long, value_name = "MODEL", value_parser = safetensors_path)]
    pub output: PathBuf,
    /// Read options from FILE (TOML); options on the command line take precedence
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Resume from the last checkpoint, if there is one
    #[arg(long, conflicts_with = "overwrite")]
    resume: bool,
    /// Start from step 0 and overwrite an existing model or checkpoint
    #[arg(long)]
    overwrite: bool,
    /// Write a checkpoint after this time, in seconds, and after every validation
    #[arg(long, default_value = "60", value_name = "S", value_parser = parse_seconds)]
    save_every: Duration,
    /// Stop after this time as after Ctrl-C, with a checkpoint and exit status 130; continue with --resume
    #[arg(long, value_name = "MINUTES", value_parser = parse_minutes)]
    minutes: Option<Duration>,
    /// Write a line to the metrics file every N steps
    #[arg(long, default_value_t = 100, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    record_every: u64,
    #[command(flatten)]
    pub device: DeviceArgument,
    #[command(flatten)]
    pub threads: Threads,
}

/// The options of a run that come from the configuration of the model.
pub struct TrainingRun {
    /// The title of the learning curves.
    pub title: String,
    pub steps: u64,
    /// Steps between two validations.
    pub validate_every: u64,
    /// The complete configuration as TOML, which is saved with the model.
    pub configuration: String,
    /// Everything that the result depends on. A checkpoint is resumed only if it was written with the same identity.
    pub identity: toml::Table,
}

impl RunArguments {
    /// Locks the files of the run before anything is read, and refuses to overwrite those of an earlier run.
    pub fn claim(&self) -> anyhow::Result<Claim> {
        Ok(Files::of(&self.output).claim(self.start())?)
    }

    /// What to do with the files of an earlier run.
    fn start(&self) -> Start {
        match (self.resume, self.overwrite) {
            (true, _) => Start::Resume,
            (_, true) => Start::Overwrite,
            _ => Start::Fresh,
        }
    }

    /// Trains with a progress display, until the last step, Ctrl-C or the end of `--minutes`. `claim` is the lock on
    /// the files of the run ([`RunArguments::claim`]).
    pub fn train(
        &self,
        claim: Claim,
        trainee: &mut dyn Trainee,
        training_run: TrainingRun,
    ) -> anyhow::Result<Outcome> {
        let options = RunOptions {
            output: self.output.clone(),
            title: training_run.title,
            steps: training_run.steps,
            validate_every: training_run.validate_every,
            record_every: self.record_every,
            save_every: self.save_every,
            configuration: training_run.configuration,
            identity: training_run.identity,
        };
        if self.resume && !options.output.exists() && !Files::of(&options.output).checkpoint.exists() {
            say!("no checkpoint next to {}: starting from step 0", options.output.display());
        }
        handle_interrupts();
        let mut display = TrainingDisplay::new(self.minutes.map(|limit| Instant::now() + limit));
        let outcome = claim.train(trainee, &options, &mut display);
        display.finish();
        Ok(outcome?)
    }

    /// Prints how the run ended. If it was stopped before its last step, ends this process with status 130.
    pub fn report_and_exit_if_stopped(&self, outcome: &Outcome, steps: u64) {
        let files = Files::of(&self.output);
        let score = outcome.best_score.map_or(String::new(), |score| format!(", validation {score:.2}"));
        if outcome.best_step > 0 {
            say!("{}: the model of step {}{score}", files.model.display(), outcome.best_step);
        }
        if outcome.finished {
            say!("{}: learning curves", files.curves.display());
        } else {
            // clap refuses --resume together with --overwrite.
            let change = match self.start() {
                Start::Resume => "",
                Start::Overwrite => " with --resume in place of --overwrite",
                Start::Fresh => " and --resume",
            };
            say!(
                "stopped after {} of {steps} steps, all saved; resume with the same command{change}",
                outcome.done
            );
            std::process::exit(STOPPED.into());
        }
    }
}
