//! Runs an ONNX model in the library rten: chooses its input layout, image size and output, and embeds normalised
//! images one at a time. Start with [`LoadedModel::load`]. Used only in the worker process.

use std::sync::Arc;

use rten::{DataType, Dimension, Model, ModelOptions, NodeId, RunOptions, ThreadPool, Value, ValueType};
use rten_tensor::{AsView, Layout as _};
use trueshot::guard::caught;

use super::protocol::{LoadRequest, ModelDescription};
use crate::decoded_image::Channels;

/// The largest height and width of a model's input.
const MAX_SIZE: usize = 2048;
/// The longest embedding.
pub(super) const MAX_DIM: usize = 1 << 16;

/// The position of the channel axis in a model's input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TensorLayout {
    /// `[image, channel, row, column]`, as PyTorch exports.
    ChannelsFirst,
    /// `[image, row, column, channel]`, as TensorFlow exports.
    ChannelsLast,
}

/// A model whose input and output have been chosen.
pub(super) struct LoadedModel {
    model: Model,
    input: NodeId,
    /// The output that becomes the embedding.
    output: NodeId,
    layout: TensorLayout,
    /// Height and width of images.
    size: usize,
    /// Channels of images, 1 or 3.
    channels: usize,
}

impl LoadedModel {
    /// Loads a model, chooses its input and output, and runs it once on a grey image to find the length of an embedding
    /// and to make the execution plan, which later runs share.
    pub fn load(bytes: Vec<u8>, request: &LoadRequest) -> Result<(Self, ModelDescription), String> {
        let model = caught(|| ModelOptions::with_all_ops().prepack_weights(true).load(bytes))
            .ok_or("rten panicked while loading it")?
            .map_err(|problem| first_line(&problem))?;
        let ModelInput { node, layout, size, channels, is_batch_fixed } =
            ModelInput::find(&model, request.size)?;
        let output = choose_output(&model, request.output.as_deref())?;
        let loaded = LoadedModel { model, input: node, output, layout, size, channels: channels.count() };
        let grey = vec![0.0; size * size * channels.count()];
        let (row, output_rank) = loaded.run_with_rank(&grey, &single_thread_pool())?;
        if !(1..=MAX_DIM).contains(&row.len()) {
            return Err(format!("its output has {} values per image; allowed: 1 to {MAX_DIM}", row.len()));
        }
        let description = ModelDescription {
            size,
            channels: channels.count(),
            dim: row.len(),
            input: node_name(&loaded.model, node),
            has_channels_first: layout == TensorLayout::ChannelsFirst,
            is_batch_fixed,
            output: node_name(&loaded.model, output),
            output_rank,
        };
        Ok((loaded, description))
    }

    /// The number of values in one input image.
    pub fn input_len(&self) -> usize {
        self.size * self.size * self.channels
    }

    /// Embeds one normalised image (`[row, column, channel]`).
    pub fn run(&self, image: &[f32], pool: &Arc<ThreadPool>) -> Result<Vec<f32>, String> {
        Ok(self.run_with_rank(image, pool)?.0)
    }

    /// [`Self::run`] that also returns the number of axes of the output.
    fn run_with_rank(&self, image: &[f32], pool: &Arc<ThreadPool>) -> Result<(Vec<f32>, usize), String> {
        let (size, channels) = (self.size, self.channels);
        let (shape, values) = match self.layout {
            TensorLayout::ChannelsLast => ([1, size, size, channels], image.to_vec()),
            TensorLayout::ChannelsFirst => {
                let plane = |channel: usize| image.iter().skip(channel).step_by(channels).copied();
                ([1, channels, size, size], (0..channels).flat_map(plane).collect())
            }
        };
        let input = Value::from_shape(shape, values).map_err(|problem| problem.to_string())?;
        let outcome = caught(|| {
            let options = RunOptions::default().with_thread_pool(Some(pool.clone()));
            self.model.run(vec![(self.input, input.into())], &[self.output], Some(options))
        });
        let values =
            outcome.ok_or("rten panicked while running it")?.map_err(|problem| first_line(&problem))?;
        let value = values.into_iter().next().ok_or("it gives no output")?;
        let rank = value.shape().len();
        Ok((self.to_row(value)?, rank))
    }

    /// The output as an embedding: feature maps are averaged over their positions; of a sequence of tokens, the first
    /// is taken.
    fn to_row(&self, value: Value) -> Result<Vec<f32>, String> {
        let kind = value.dtype();
        let tensor = value.into_tensor::<f32>();
        let tensor = tensor.ok_or_else(|| format!("its output is of type {kind:?}; features are floats"))?;
        let (shape, values) = (tensor.shape().to_vec(), tensor.to_vec());
        if shape.first() != Some(&1) {
            return Err(format!(
                "its output has shape {shape:?} for one image; the first axis must be the batch"
            ));
        }
        match (&shape[1..], self.layout) {
            // A row.
            ([_], _) => Ok(values),
            // Tokens, as of a vision transformer; the first is usually the class token.
            ([tokens, width], _) if *tokens > 0 => Ok(values[..*width].to_vec()),
            // Feature maps.
            ([channels, rows, columns], TensorLayout::ChannelsFirst) if rows * columns > 0 => {
                let mean = |plane: &[f32]| plane.iter().sum::<f32>() / plane.len() as f32;
                Ok(values.chunks_exact(rows * columns).take(*channels).map(mean).collect())
            }
            ([rows, columns, channels], TensorLayout::ChannelsLast) if rows * columns > 0 => {
                let positions = (rows * columns) as f32;
                let mean = |channel| values.iter().skip(channel).step_by(*channels).sum::<f32>() / positions;
                Ok((0..*channels).map(mean).collect())
            }
            _ => Err(format!("its output has shape {shape:?}; expected one row, tokens or planes per image")),
        }
    }
}

/// A pool of one thread: an embedding must not depend on how work is divided.
pub(super) fn single_thread_pool() -> Arc<ThreadPool> {
    Arc::new(ThreadPool::with_num_threads(1))
}

/// The first line of an error, at most 300 characters of it.
fn first_line(problem: &dyn std::fmt::Display) -> String {
    problem.to_string().lines().next().unwrap_or_default().chars().take(300).collect()
}

/// The name of an input or output; empty if it has none.
fn node_name(model: &Model, node: NodeId) -> String {
    model.node_info(node).and_then(|info| info.name().map(str::to_owned)).unwrap_or_default()
}

/// Formats a shape: `[N, 3, 224, 224]`.
fn shape_text(shape: &[Dimension]) -> String {
    let text = |dimension: &Dimension| match dimension {
        Dimension::Fixed(length) => length.to_string(),
        Dimension::Symbolic(name) if name.is_empty() => "?".into(),
        Dimension::Symbolic(name) => name.clone(),
    };
    format!("[{}]", shape.iter().map(text).collect::<Vec<_>>().join(", "))
}

/// The input of a model and the images that it takes.
struct ModelInput {
    node: NodeId,
    layout: TensorLayout,
    size: usize,
    channels: Channels,
    /// Whether the model takes one image at a time.
    is_batch_fixed: bool,
}

impl ModelInput {
    /// Finds the input, which must be a batch of square images. The channels are the axis of length 1 or 3 after the
    /// batch or at the end; if both lengths are dynamic, three channels after the batch.
    fn find(model: &Model, requested_size: Option<usize>) -> Result<Self, String> {
        let [node] = model.input_ids() else {
            return Err(format!("it has {} inputs; an image model has one", model.input_ids().len()));
        };
        let info = model.node_info(*node);
        if let Some(kind) = info.as_ref().and_then(|info| info.dtype()).filter(|kind| !is_float(*kind)) {
            return Err(format!("its input is of type {kind:?}; images are given as 32-bit floats"));
        }
        let shape = info.and_then(|info| info.shape()).ok_or("the shape of its input is not given")?;
        // Channels, rows, columns or rows, columns, channels.
        let [batch, a, b, c] = &shape[..] else {
            return Err(format!("its input is {}; an image model's has four axes", shape_text(&shape)));
        };
        if let Dimension::Fixed(count) = batch
            && *count != 1
        {
            return Err(format!(
                "its input is {}: a fixed batch size of {count}; it must be 1 or dynamic",
                shape_text(&shape)
            ));
        }
        let channels = |side: &Dimension| match side {
            Dimension::Fixed(1) => Some(Channels::Grey),
            Dimension::Fixed(3) => Some(Channels::Colour),
            _ => None,
        };
        let is_dynamic = |side: &Dimension| matches!(side, Dimension::Symbolic(_));
        let (layout, channels, sides) = match (channels(a), channels(c)) {
            (Some(channels), _) => (TensorLayout::ChannelsFirst, channels, [b, c]),
            (None, Some(channels)) => (TensorLayout::ChannelsLast, channels, [a, b]),
            (None, None) if is_dynamic(a) => (TensorLayout::ChannelsFirst, Channels::Colour, [b, c]),
            _ => return Err(format!("its input is {}: no axis of 1 or 3 channels", shape_text(&shape))),
        };
        let size = choose_size(sides, requested_size)
            .map_err(|problem| format!("its input is {}: {problem}", shape_text(&shape)))?;
        let is_batch_fixed = matches!(batch, Dimension::Fixed(_));
        Ok(ModelInput { node: *node, layout, size, channels, is_batch_fixed })
    }
}

/// Whether values of a type are tensors of 32-bit floats.
fn is_float(kind: ValueType) -> bool {
    matches!(kind, ValueType::Tensor(DataType::Float))
}

/// The height and width of images: those of the input if they are fixed (one fixed side suffices), else `requested`,
/// else 224.
fn choose_size(sides: [&Dimension; 2], requested: Option<usize>) -> Result<usize, String> {
    const DEFAULT_SIZE: usize = 224;
    let fixed = |side: &Dimension| match side {
        Dimension::Fixed(side) => Some(*side),
        Dimension::Symbolic(_) => None,
    };
    let size = match (fixed(sides[0]), fixed(sides[1])) {
        (Some(a), Some(b)) if a != b => return Err("only square inputs are supported".into()),
        (None, None) => requested.unwrap_or(DEFAULT_SIZE),
        (a, b) => {
            let fixed = a.or(b).unwrap_or(DEFAULT_SIZE);
            if let Some(requested) = requested.filter(|requested| *requested != fixed) {
                return Err(format!("its size is fixed, so {requested} px is not possible"));
            }
            fixed
        }
    };
    match size {
        1..=MAX_SIZE => Ok(size),
        _ => Err(format!("allowed image sizes: 1 to {MAX_SIZE} px")),
    }
}

/// The output named `wanted`; without a name the first of rank 2 (one row per image), else the first of rank 4 (feature
/// maps), else the first.
fn choose_output(model: &Model, wanted: Option<&str>) -> Result<NodeId, String> {
    let outputs = model.output_ids();
    if let Some(wanted) = wanted {
        let output = outputs.iter().find(|output| node_name(model, **output) == *wanted);
        let known = || outputs.iter().map(|output| node_name(model, *output)).collect::<Vec<_>>().join(", ");
        return output.copied().ok_or_else(|| format!("it has no output '{wanted}'; it has {}", known()));
    }
    let rank =
        |output: &NodeId| model.node_info(*output).and_then(|info| info.shape()).map(|shape| shape.len());
    let of_rank = |wanted| outputs.iter().find(|output| rank(output) == Some(wanted));
    let chosen = of_rank(2).or_else(|| of_rank(4)).or_else(|| outputs.first());
    chosen.copied().ok_or_else(|| "it has no output".into())
}
