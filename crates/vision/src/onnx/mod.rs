//! Image models in ONNX, as other programs export them.
//!
//! What a model wants is found from the shape of its input: which axis the channels are on, the size of a picture where
//! it is fixed. What is not in the file (mean, deviation, which output) comes from options or from a TOML file
//! beside the model, and is as usual for ImageNet otherwise. One picture goes through the network at a time, on one
//! thread, so that an embedding depends on nothing but its picture; who has more threads gives each a picture.
//!
//! The model is run once when it is opened: that settles how long an embedding is, and a model that cannot be run is
//! refused before any work is done.

mod gate;

use std::path::Path;
use std::sync::Arc;

use rten::{DataType, Dimension, Model, ModelOptions, NodeId, RunOptions, ThreadPool, Value, ValueType};
use rten_tensor::{AsView, Layout as _};

use crate::backbone::Options;
use crate::error::{Error, Result, Unreadable};
use crate::picture::Channels;
use crate::preprocess::Preprocessing;

/// The largest file that is read as a model.
const MOST_BYTES: u64 = 2 << 30;
/// The largest picture that a model is given.
const LARGEST: usize = 2048;
/// The most numbers of an embedding.
const WIDEST: usize = 1 << 16;
/// Numbers of classes that ImageNet's classifiers have: with or without a background, of 1k, 21k and 22k.
const CLASS_COUNTS: [usize; 5] = [1000, 1001, 21_841, 21_843, 11_221];

/// Where the channels of a model's input are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Layout {
    /// [picture, channel, row, column], as PyTorch exports.
    ChannelsFirst,
    /// [picture, row, column, channel], as TensorFlow does.
    ChannelsLast,
}

/// A model ready to run.
pub(crate) struct Network {
    model: Model,
    input: NodeId,
    output: NodeId,
    layout: Layout,
    size: usize,
    channels: usize,
    dim: usize,
}

/// What a model turned out to be.
pub(crate) struct Opened {
    pub network: Network,
    pub preprocessing: Preprocessing,
    /// What the output is called.
    pub output: String,
    /// The first digits of the hash of the file.
    pub hash: String,
    /// What its user should know.
    pub warning: Option<String>,
}

/// Working memory of one thread: a pool of a single one, as the library wants a pool.
pub(crate) struct Scratch(Arc<ThreadPool>);

impl Scratch {
    pub fn new() -> Self {
        Scratch(Arc::new(ThreadPool::with_num_threads(1)))
    }
}

/// Reads a file, with the options beside it for what is not given.
pub(crate) fn open(path: &Path, given: &Options) -> Result<Opened> {
    let failed = |source| trueshot::Error::Read { path: path.into(), source };
    let length = std::fs::metadata(path).map_err(failed)?.len();
    if length > MOST_BYTES {
        return Err(bad(path, format!("it has {length} bytes; the most is {MOST_BYTES}")));
    }
    let options = given.clone().or(beside(path)?);
    read(std::fs::read(path).map_err(failed)?, path, &options)
}

/// What stands in `model.toml` beside `model.onnx`.
fn beside(path: &Path) -> Result<Options> {
    let path = path.with_extension("toml");
    let text = match std::fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Options::default()),
        Err(source) => return Err(trueshot::Error::Read { path, source }.into()),
    };
    toml::from_str(&text).map_err(|problem| Error::BadModel {
        problem: problem.to_string().trim().replace('\n', " "),
        hint: Some("known are size, mean, std, fit, resampling and output".into()),
        path,
    })
}

/// Takes the bytes of a file; `path` stands for it in messages.
pub(crate) fn read(bytes: Vec<u8>, path: &Path, options: &Options) -> Result<Opened> {
    gate::check(&bytes).map_err(|problem| bad(path, problem.to_string()))?;
    let hash = blake3::hash(&bytes).to_hex()[..16].to_owned();
    let model = trueshot::guard::caught(|| ModelOptions::with_all_ops().prepack_weights(true).load(bytes))
        .ok_or_else(|| bad(path, "its contents contradict each other"))?
        .map_err(|problem| bad(path, first_line(&problem)))?;
    let wanted = Wanted::of(&model, options).map_err(|problem| bad(path, problem))?;
    let output = choose_output(&model, options).map_err(|problem| bad(path, problem))?;
    let preprocessing = wanted.preprocessing(options)?;
    let Wanted { input, layout, size, channels } = wanted;
    let mut network = Network { model, input, output, layout, size, channels: channels.count(), dim: 0 };
    network.dim = network.try_out().map_err(|problem| bad(path, problem))?;
    let output = name(&network.model, output);
    let warning = network.warning(&output);
    Ok(Opened { network, preprocessing, output, hash, warning })
}

fn bad(path: &Path, problem: impl Into<String>) -> Error {
    Error::BadModel { path: path.into(), problem: problem.into(), hint: None }
}

fn first_line(problem: &dyn std::fmt::Display) -> String {
    problem.to_string().lines().next().unwrap_or_default().chars().take(300).collect()
}

fn name(model: &Model, node: NodeId) -> String {
    model.node_info(node).and_then(|info| info.name().map(str::to_owned)).unwrap_or_default()
}

/// A shape as people write it: `[N, 3, 224, 224]`.
fn in_words(shape: &[Dimension]) -> String {
    let side = |side: &Dimension| match side {
        Dimension::Fixed(side) => side.to_string(),
        Dimension::Symbolic(name) if name.is_empty() => "?".into(),
        Dimension::Symbolic(name) => name.clone(),
    };
    format!("[{}]", shape.iter().map(side).collect::<Vec<_>>().join(", "))
}

/// What a model's input must be.
struct Wanted {
    input: NodeId,
    layout: Layout,
    size: usize,
    channels: Channels,
}

impl Wanted {
    fn of(model: &Model, options: &Options) -> Result<Self, String> {
        let [input] = model.input_ids() else {
            return Err(format!("it has {} inputs; an image model has one", model.input_ids().len()));
        };
        let info = model.node_info(*input);
        if let Some(kind) = info.as_ref().and_then(|info| info.dtype()).filter(|kind| !is_float(*kind)) {
            return Err(format!("its input is of type {kind:?}; pictures are given as 32-bit floats"));
        }
        let shape = info.and_then(|info| info.shape()).ok_or("the shape of its input is not said")?;
        let [batch, a, b, c] = &shape[..] else {
            return Err(format!("its input is {}; an image model's has four axes", in_words(&shape)));
        };
        if let Dimension::Fixed(count) = batch
            && *count != 1
        {
            return Err(format!(
                "its input is {}: batches of {count}; it must be 1 or free",
                in_words(&shape)
            ));
        }
        let channels = |side: &Dimension| match side {
            Dimension::Fixed(1) => Some(Channels::Grey),
            Dimension::Fixed(3) => Some(Channels::Colour),
            _ => None,
        };
        let free = |side: &Dimension| matches!(side, Dimension::Symbolic(_));
        let (layout, channels, sides) = match (channels(a), channels(c)) {
            (Some(channels), _) => (Layout::ChannelsFirst, channels, [b, c]),
            (None, Some(channels)) => (Layout::ChannelsLast, channels, [a, b]),
            (None, None) if free(a) => (Layout::ChannelsFirst, Channels::Colour, [b, c]),
            _ => return Err(format!("its input is {}: no axis of 1 or 3 channels", in_words(&shape))),
        };
        let size = size(sides, options.size)
            .map_err(|problem| format!("its input is {}: {problem}", in_words(&shape)))?;
        Ok(Wanted { input: *input, layout, size, channels })
    }

    fn preprocessing(&self, options: &Options) -> Result<Preprocessing> {
        let usual = Preprocessing::colour(self.size);
        let (mean, std) = match self.channels {
            Channels::Colour => (usual.mean.clone(), usual.std.clone()),
            Channels::Grey => (vec![0.5], vec![0.5]),
        };
        let preprocessing = Preprocessing {
            channels: self.channels,
            mean: options.mean.clone().unwrap_or(mean),
            std: options.std.clone().unwrap_or(std),
            fit: options.fit.unwrap_or_default(),
            resampling: options.resampling.unwrap_or_default(),
            ..usual
        };
        preprocessing.check()?;
        Ok(preprocessing)
    }
}

fn is_float(kind: ValueType) -> bool {
    matches!(kind, ValueType::Tensor(DataType::Float))
}

fn size(sides: [&Dimension; 2], asked: Option<usize>) -> Result<usize, String> {
    let usual = 224;
    let fixed = |side: &Dimension| match side {
        Dimension::Fixed(side) => Some(*side),
        Dimension::Symbolic(_) => None,
    };
    let size = match (fixed(sides[0]), fixed(sides[1])) {
        (Some(a), Some(b)) if a != b => return Err("pictures are squares here".into()),
        (None, None) => asked.unwrap_or(usual),
        (a, b) => {
            let fixed = a.or(b).unwrap_or(usual);
            if let Some(asked) = asked.filter(|asked| *asked != fixed) {
                return Err(format!("its size is fixed, {asked} px cannot be had"));
            }
            fixed
        }
    };
    match size {
        1..=LARGEST => Ok(size),
        _ => Err(format!("pictures may have 1 to {LARGEST} px")),
    }
}

/// The output that is asked for; or the first that is a row for each picture, or the first that is a plane of rows.
fn choose_output(model: &Model, options: &Options) -> Result<NodeId, String> {
    let outputs = model.output_ids();
    if let Some(wanted) = &options.output {
        let found = outputs.iter().find(|output| name(model, **output) == *wanted);
        let known = || outputs.iter().map(|output| name(model, *output)).collect::<Vec<_>>().join(", ");
        return found.copied().ok_or_else(|| format!("it has no output '{wanted}'; it has {}", known()));
    }
    let rank =
        |output: &NodeId| model.node_info(*output).and_then(|info| info.shape()).map(|shape| shape.len());
    let of_rank = |wanted| outputs.iter().find(|output| rank(output) == Some(wanted));
    let chosen = of_rank(2).or_else(|| of_rank(4)).or_else(|| outputs.first());
    chosen.copied().ok_or_else(|| "it has no output".into())
}

impl Network {
    pub fn dim(&self) -> usize {
        self.dim
    }

    /// Runs it on grey pictures; how many numbers come out.
    fn try_out(&self) -> Result<usize, String> {
        let input = vec![0.0; self.size * self.size * self.channels];
        let row = self.run(&input, &Scratch::new())?;
        match row.len() {
            1..=WIDEST => Ok(row.len()),
            other => Err(format!("its output has {other} numbers a picture; possible are 1 to {WIDEST}")),
        }
    }

    fn warning(&self, output: &str) -> Option<String> {
        let lower = output.to_lowercase();
        let named = ["logit", "prob", "softmax", "class"].iter().any(|word| lower.contains(word));
        (named || CLASS_COUNTS.contains(&self.dim)).then(|| {
            format!(
                "output '{output}' ({} numbers) looks like a score for each class; features from before the last layer are better",
                self.dim
            )
        })
    }

    /// Embeds one normalised picture (rows x columns x channels).
    pub fn embed(&self, picture: &[f32], out: &mut [f32], scratch: &Scratch) -> Result<(), Unreadable> {
        let row = self.run(picture, scratch).map_err(Unreadable::Network)?;
        if row.len() != out.len() {
            return Err(Unreadable::Network(format!("{} numbers instead of {}", row.len(), out.len())));
        }
        out.copy_from_slice(&row);
        Ok(())
    }

    fn run(&self, picture: &[f32], scratch: &Scratch) -> Result<Vec<f32>, String> {
        let (size, channels) = (self.size, self.channels);
        let (shape, values) = match self.layout {
            Layout::ChannelsLast => ([1, size, size, channels], picture.to_vec()),
            Layout::ChannelsFirst => {
                let plane = |channel: usize| picture.iter().skip(channel).step_by(channels).copied();
                ([1, channels, size, size], (0..channels).flat_map(plane).collect())
            }
        };
        let input = Value::from_shape(shape, values).map_err(|problem| problem.to_string())?;
        // A thread of its own waits for the pool: one of rayon's would take up further pictures meanwhile, each of
        // which starts another network.
        let run = || scratch.0.run(|| trueshot::guard::caught(|| self.run_on(input, &scratch.0)));
        let outcome = std::thread::scope(|scope| scope.spawn(run).join());
        let values = outcome.ok().flatten().ok_or("its contents contradict each other")??;
        self.row(values)
    }

    fn run_on(&self, input: Value, pool: &Arc<ThreadPool>) -> Result<Value, String> {
        let options = RunOptions::default().with_thread_pool(Some(pool.clone()));
        let outcome = self.model.run(vec![(self.input, input.into())], &[self.output], Some(options));
        let values = outcome.map_err(|problem| first_line(&problem))?;
        values.into_iter().next().ok_or_else(|| "it gives no output".into())
    }

    /// The output as a row: planes are averaged, of a list of tokens the first is taken.
    fn row(&self, value: Value) -> Result<Vec<f32>, String> {
        let kind = value.dtype();
        let tensor = value.into_tensor::<f32>();
        let tensor = tensor.ok_or_else(|| format!("its output is of type {kind:?}; features are floats"))?;
        let (shape, values) = (tensor.shape().to_vec(), tensor.to_vec());
        if shape.first() != Some(&1) {
            return Err(format!(
                "its output has shape {shape:?} for one picture; the first axis must be pictures"
            ));
        }
        match (&shape[1..], self.layout) {
            ([_], _) => Ok(values),
            ([tokens, width], _) if *tokens > 0 => Ok(values[..*width].to_vec()),
            ([channels, rows, columns], Layout::ChannelsFirst) if rows * columns > 0 => {
                let mean = |plane: &[f32]| plane.iter().sum::<f32>() / plane.len() as f32;
                Ok(values.chunks_exact(rows * columns).take(*channels).map(mean).collect())
            }
            ([rows, columns, channels], Layout::ChannelsLast) if rows * columns > 0 => {
                let places = (rows * columns) as f32;
                let mean = |channel| values.iter().skip(channel).step_by(*channels).sum::<f32>() / places;
                Ok((0..*channels).map(mean).collect())
            }
            _ => {
                Err(format!("its output has shape {shape:?}; features are a row, tokens or planes a picture"))
            }
        }
    }
}
