//! The function `train_head`: training of heads on arrays. A head is a network that judges the labels of a support set
//! (Relabel, TraNFS). With the same data and seed, the files are byte-identical to those of `trueshot train`.
//!
//! `trueshot train` reads a configuration with lists of files. Here the data are arrays, and the configuration gets a
//! placeholder for each ([`resolve_configuration`]); everything else is the same.

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::time::Duration;
use trueshot::progress::Progress;

use pyo3::prelude::*;
use pyo3::types::PyDict;
use toml::Table;
use trueshot::Embeddings;
use trueshot::Error;
use trueshot::episode::EpisodeData;
use trueshot::method::{RelabelOptions, TranfsOptions};
use trueshot::training::configuration;
use trueshot::training::heads::configuration::{Configuration, training_outliers};
use trueshot::training::heads::{self, HeadOptions, HeadTrainee};
use trueshot::training::{Event, Observer, Outcome, Record, RunOptions, Start, Trainee, train};
use trueshot_cuda::DeviceChoice;

use crate::audit::NumberedRows;
use crate::evaluation::{LabelledArrays, check_argument, to_numbered_rows};
use crate::exceptions::{to_exception, value_error};
use crate::interruptible::{Channel, run_interruptible};
use crate::thread_pools::own_pool;

/// The data sets of a run by their role, in the order of [`ROLES`].
type SetsByRole<T> = [Vec<T>; 4];

/// The roles of data sets, which are the names of the arguments of `trueshot.train`. `outliers` are rows of other
/// classes, which replace support items under outlier noise.
const ROLES: [&str; 4] = ["data", "outliers", "validation", "validation_outliers"];

/// What the training threads tell the calling thread, which passes it to Python.
enum TrainingMessage {
    /// `done` of `steps` steps have finished, the last one with this loss.
    Step {
        done: u64,
        steps: u64,
        loss: f64,
    },
    /// A line of metrics, and whether the model is the best so far.
    Record(Record, bool),
    Warning(String),
}

/// Sends the events of a training as messages, and passes on the request to stop.
struct TrainingObserver<'a> {
    channel: &'a Channel<'a, TrainingMessage>,
    /// The number of steps of the whole run.
    steps: u64,
}

impl Observer for TrainingObserver<'_> {
    fn event(&mut self, event: &Event<'_>) {
        match event {
            Event::Begins { steps, .. } => self.steps = *steps,
            Event::Stepped { done, terms } => {
                self.channel.send(TrainingMessage::Step {
                    done: *done,
                    steps: self.steps,
                    loss: terms.iter().sum(),
                });
            }
            Event::Recorded { record, is_best } => {
                self.channel.send(TrainingMessage::Record((*record).clone(), *is_best));
            }
            Event::Warning(text) => self.channel.send(TrainingMessage::Warning(text.to_string())),
            Event::Saved { .. } => {}
        }
    }
}

impl Progress for TrainingObserver<'_> {
    fn update(&self, _done: u64, _total: u64) -> ControlFlow<()> {
        self.channel.check_stopped()
    }
}

/// The settings of a run that are not part of the configuration, read from the attributes of a `_training._Run`.
#[derive(FromPyObject)]
pub struct RunSettings {
    /// The model file to write.
    output: PathBuf,
    /// What to do about an earlier run: `fresh` (refuse to start), `resume` or `overwrite`.
    start: String,
    /// The largest number of seconds between checkpoints.
    save_every: f64,
    /// Steps between lines of metrics; each validation writes one too.
    record_every: u64,
    threads: Option<i64>,
    /// `auto`, `cpu`, `cuda` or `cuda:N`.
    device: String,
}

/// Trains a head (`kind`: `tranfs` or `relabel`) on rows. `options` is a configuration as JSON, with the sections and
/// keys of the TOML file of `trueshot train`.
///
/// `on_message` is called with `("step", done, steps, loss)`, `("record", line of JSON, is_best)` or `("warning",
/// text)`. Returns the outcome as a dictionary with the fields of the Python class `Training`, except `path`.
#[pyfunction]
pub fn train_head<'py>(
    py: Python<'py>,
    kind: &str,
    data: SetsByRole<LabelledArrays<'py>>,
    options: &str,
    run: RunSettings,
    on_message: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyDict>> {
    let given: Table =
        serde_json::from_str(options).map_err(|problem| value_error(format!("options: {problem}")))?;
    let (outcome, device) = match kind {
        "tranfs" => run_training::<TranfsOptions>(py, Configuration::tranfs(), data, given, run, on_message)?,
        "relabel" => {
            run_training::<RelabelOptions>(py, Configuration::relabel(), data, given, run, on_message)?
        }
        other => return Err(value_error(format!("unknown head '{other}'; known: tranfs, relabel"))),
    };
    let result = PyDict::new(py);
    result.set_item("done", outcome.done)?;
    result.set_item("finished", outcome.finished)?;
    result.set_item("best_step", outcome.best_step)?;
    result.set_item("best_score", outcome.best_score)?;
    result.set_item("device", device)?;
    Ok(result)
}

/// Trains one kind of head, whose architecture options are `M`. Returns the outcome and the device it was trained on.
fn run_training<M: HeadOptions + Send + Sync>(
    py: Python<'_>,
    defaults: Configuration<M>,
    data: SetsByRole<LabelledArrays<'_>>,
    given: Table,
    run: RunSettings,
    on_message: &Bound<'_, PyAny>,
) -> PyResult<(Outcome, String)> {
    let mut numbered_sets: SetsByRole<NumberedRows> = Default::default();
    for (sets, arrays) in numbered_sets.iter_mut().zip(data) {
        *sets = arrays.into_iter().map(to_numbered_rows).collect::<PyResult<_>>()?;
    }
    let choice: DeviceChoice = run.device.parse().map_err(value_error)?;
    let start = match run.start.as_str() {
        "resume" => Start::Resume,
        "overwrite" => Start::Overwrite,
        _ => Start::Fresh,
    };
    let configuration = resolve_configuration(&defaults, given, &numbered_sets).map_err(to_exception)?;
    let sets = check_sets(py, run.threads, numbered_sets)?;
    let work = |channel: &Channel<'_, TrainingMessage>| {
        let (device, _) = choice.open()?;
        let [train_on, outliers, validation, validation_outliers] = &sets;
        let outliers: Vec<&Embeddings> = outliers.iter().collect();
        // `Configuration::settle` may have taken the training data as outliers for validation. Their rows are then not
        // in `validation_outliers`, which holds only arrays that the user gave.
        let is_from_training =
            validation_outliers.is_empty() && !configuration.data.validation_outliers.is_empty();
        let validation_outliers: Vec<&Embeddings> = match is_from_training {
            true => training_outliers(&train_on.iter().collect::<Vec<_>>(), validation.len()),
            false => validation_outliers.iter().collect(),
        };
        let (training, validation) =
            (episode_data(train_on, &outliers), episode_data(validation, &validation_outliers));
        for overlap in heads::overlaps(&training, &validation) {
            channel.send(TrainingMessage::Warning(overlap.to_string()));
        }
        let run_options = RunOptions {
            output: run.output,
            title: format!(
                "{}, {} steps of {} episodes",
                M::KIND,
                configuration.steps,
                configuration.episodes.per_step
            ),
            steps: configuration.steps,
            validate_every: configuration.validation.every,
            record_every: run.record_every,
            save_every: Duration::from_secs_f64(run.save_every),
            configuration: configuration::text(&configuration),
            identity: heads::identity(&configuration, &[("train", &training), ("validation", &validation)]),
        };
        let on_gpu = device
            .map(|device| HeadTrainee::on_gpu(&configuration, training.clone(), validation.clone(), &device));
        let mut trainee = match on_gpu {
            // A GPU that cannot train this head is an error only if the user asked for it.
            Some(Err(Error::Gpu { message, .. })) if choice == DeviceChoice::Auto => {
                channel.send(TrainingMessage::Warning(format!("training on the CPU: {message}")));
                HeadTrainee::new(&configuration, training, validation)?
            }
            Some(on_gpu) => on_gpu?,
            None => HeadTrainee::new(&configuration, training, validation)?,
        };
        let observer = &mut TrainingObserver { channel, steps: run_options.steps };
        let outcome = train(&mut trainee, &run_options, start, observer)?;
        Ok((outcome, trainee.device().unwrap_or("cpu".into())))
    };
    // A call of trueshot in `on_message` must not wait until the training has finished.
    run_interruptible(py, &own_pool(run.threads)?, work, |message| match message {
        TrainingMessage::Step { done, steps, loss } => {
            on_message.call1(("step", done, steps, loss)).map(drop)
        }
        TrainingMessage::Record(record, is_best) => {
            on_message.call1(("record", record.line(), is_best)).map(drop)
        }
        TrainingMessage::Warning(text) => on_message.call1(("warning", text)).map(drop),
    })
}

/// The defaults with the user's options, completed and checked. Where a configuration has paths of files, it gets the
/// names that the user gives in section `data`, or placeholders such as `array 0`: only the number of data sets is
/// checked.
fn resolve_configuration<M: HeadOptions>(
    defaults: &Configuration<M>,
    given: Table,
    sets: &SetsByRole<NumberedRows>,
) -> trueshot::Result<Configuration<M>> {
    let mut configuration = configuration::read_table(defaults, given)?;
    let data = &mut configuration.data;
    let lists = [&mut data.train, &mut data.outliers, &mut data.validation, &mut data.validation_outliers];
    for (names, sets) in lists.into_iter().zip(sets) {
        // The given names, followed by `None` for data sets without one.
        let named = std::mem::take(names).into_iter().map(Some).chain(std::iter::repeat(None));
        let or_placeholder =
            |(index, name): (usize, Option<PathBuf>)| name.unwrap_or(format!("array {index}").into());
        *names = named.enumerate().map(or_placeholder).take(sets.len()).collect();
    }
    configuration.settle();
    // A TraNFS has a fixed maximum of classes, by default that of the training episodes.
    let ways = configuration.episodes.ways.iter().map(|ways| ways.max).max().unwrap_or(0);
    configuration.model = configuration.model.for_episodes(ways);
    configuration.check()?;
    configuration.model.check()?;
    Ok(configuration)
}

/// Checks the values of all data sets. Errors name the argument, such as `data` or, in a list, `data[1]`.
fn check_sets(
    py: Python<'_>,
    threads: Option<i64>,
    sets: SetsByRole<NumberedRows>,
) -> PyResult<SetsByRole<Embeddings>> {
    let mut checked: SetsByRole<Embeddings> = Default::default();
    for ((checked, sets), role) in checked.iter_mut().zip(sets).zip(ROLES) {
        let is_single = sets.len() == 1;
        for (index, rows) in sets.into_iter().enumerate() {
            let name = if is_single { role.to_string() } else { format!("{role}[{index}]") };
            checked.push(check_argument(py, threads, &name, rows)?);
        }
    }
    Ok(checked)
}

/// The data sets to draw episodes from, each with the outliers of the same index, if there are any.
fn episode_data<'a>(data: &'a [Embeddings], outliers: &[&'a Embeddings]) -> Vec<EpisodeData<'a>> {
    let with_outliers =
        |(index, embeddings)| EpisodeData { embeddings, outliers: outliers.get(index).copied() };
    data.iter().enumerate().map(with_outliers).collect()
}
