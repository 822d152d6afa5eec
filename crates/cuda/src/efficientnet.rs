//! Embedding of photographs with EfficientNet-Lite0: [`EfficientNetEmbedding`].
//!
//! The network is a 3x3 convolution (the stem), a sequence of bottlenecks, a pointwise convolution (the head), and the
//! mean over all positions (pixels of an activation). A bottleneck expands its channels with a pointwise convolution
//! (1x1, mixes channels), filters every channel with a depthwise convolution (one filter per channel), and projects to
//! fewer channels with a second pointwise one. The kernels are in `kernels/efficientnet.cu` and
//! `kernels/efficientnet_pointwise.cu`.
//!
//! Images are bytes of the right size. Activations and the weights of pointwise convolutions are 16-bit floats; sums
//! and all other weights are 32-bit floats. Batch norm is folded into the weights, as in [`trueshot_nn::efficientnet`].
//! An embedding depends on its own image only: not on the other images of the batch, the position in the batch or the
//! size of the batch.
//!
//! One CUDA graph (recorded kernel launches) embeds a batch. There are graphs for powers of two and for the largest
//! batch; any other batch is rounded up to the next of these, and images that are left in memory from earlier batches
//! are embedded with it and ignored.

mod layers;
#[cfg(all(test, any(feature = "emulator", feature = "gpu-tests")))]
mod tests;

use trueshot_nn::efficientnet::{FEATURES, LARGEST, SMALLEST, STEM, bottlenecks, layout};

use crate::driver::{Buffer, Device, Graph, KernelTimes};
use crate::error::Result;
use layers::{CHUNK_CHANNELS, Chunk, Depthwise, Pointwise, Stem, padded, record_mean};

/// An EfficientNet-Lite0 that embeds batches of images on a GPU.
pub struct EfficientNetEmbedding {
    device: Device,
    /// Height and width of the images in pixels.
    size: usize,
    /// The largest number of images of a batch.
    max_batch: usize,
    /// The input, `[image][row][column][3]`.
    bytes: Buffer<u8>,
    /// The output, `[image][1280]`.
    features: Buffer<f32>,
    network: Network,
    activations: Activations,
    /// The graphs that were needed so far, with the number of images of each.
    graphs: Vec<(usize, Graph)>,
}

/// The layers of the network, with their weights on the device.
struct Network {
    stem: Stem,
    bottlenecks: Vec<Bottleneck>,
    head: Pointwise,
}

/// A bottleneck: expansion, depthwise convolution and projection.
struct Bottleneck {
    /// Height and width of the input.
    side: usize,
    /// `None` if the bottleneck does not expand its channels.
    expand: Option<Pointwise>,
    depthwise: Depthwise,
    project: Pointwise,
    /// Whether the input is added to the output.
    adds_input: bool,
}

/// The activations of a batch, `[image][row][column][channel]` with the channels rounded up to a multiple of 16.
struct Activations {
    /// Input and output of the current bottleneck.
    pixels: [Buffer<Chunk>; 2],
    /// After the first pointwise convolution of a bottleneck, and after the last one of the network.
    expanded: Buffer<Chunk>,
    /// After the depthwise convolution.
    filtered: Buffer<Chunk>,
}

impl EfficientNetEmbedding {
    /// An embedder of batches of up to `max_batch` images of height and width `size`, with `parameters` in the layout
    /// of [`trueshot_nn::efficientnet::layout`]. `normalisation` is scale and shift per channel: `byte * scale + shift`
    /// is a value that the network takes.
    ///
    /// # Errors
    /// [`OutOfMemory`](crate::Error::OutOfMemory) if the batch does not fit, and
    /// [`WeightRange`](crate::Error::WeightRange) if a weight of a pointwise convolution does not fit into a 16-bit
    /// float.
    ///
    /// # Panics
    /// If the size is not possible, or `parameters` has another length.
    pub fn new(
        device: &Device,
        size: usize,
        max_batch: usize,
        parameters: &[f32],
        normalisation: [[f32; 2]; 3],
    ) -> Result<Self> {
        assert!((SMALLEST..=LARGEST).contains(&size) && max_batch > 0, "{max_batch} images of {size} px");
        let network = Network::new(device, size, parameters, normalisation)?;
        let activations = Activations::new(device, max_batch, &network)?;
        let bytes = device.zeros(max_batch * size * size * 3)?;
        let features = device.zeros(max_batch * FEATURES)?;
        let (device, graphs) = (device.clone(), Vec::new());
        Ok(EfficientNetEmbedding { device, size, max_batch, bytes, features, network, activations, graphs })
    }

    /// Maximum number of images per batch.
    pub fn max_batch(&self) -> usize {
        self.max_batch
    }

    /// The embeddings, `[image][1280]`, of images, `[image][row][column][3]`.
    ///
    /// # Panics
    /// If there are more images than the embedder was made for, or a part of one.
    pub fn embed(&mut self, images: &[u8]) -> Result<Vec<f32>> {
        let pixels = self.size * self.size * 3;
        let count = images.len() / pixels;
        assert!(count <= self.max_batch && images.len() == count * pixels, "{} bytes", images.len());
        if count == 0 {
            return Ok(Vec::new());
        }
        self.bytes.write(0, images)?;
        self.launch(count)?;
        let mut features = vec![0.0; count * FEATURES];
        self.features.read_into(0, &mut features)?;
        Ok(features)
    }

    /// Embeds `count` images that are on the device already, without waiting or copying: the part of
    /// [`embed`](Self::embed) between the copies, which is public for measurements.
    ///
    /// # Panics
    /// If there are more images than the embedder was made for.
    pub fn launch(&mut self, count: usize) -> Result<()> {
        assert!((1..=self.max_batch).contains(&count), "{count} images");
        // Rounded up to the size of a graph.
        let images = count.next_power_of_two().min(self.max_batch);
        if let Some((_, graph)) = self.graphs.iter().find(|(size, _)| *size == images) {
            return graph.launch();
        }
        let graph = self.device.capture(|| self.record(images))?;
        graph.launch()?;
        self.graphs.push((images, graph));
        Ok(())
    }

    /// Waits for the device.
    pub fn synchronise(&self) -> Result<()> {
        self.device.synchronise()
    }

    /// The times of all kernels for a batch of `count` images.
    pub fn kernel_times(&self, count: usize) -> Result<KernelTimes> {
        assert!((1..=self.max_batch).contains(&count), "{count} images");
        self.device.kernel_times(|| self.record(count))
    }

    /// Launches all kernels for one batch, or records them in a graph during `capture`.
    fn record(&self, images: usize) -> Result<()> {
        let (device, Network { stem, bottlenecks, head }) = (&self.device, &self.network);
        let Activations { pixels, expanded, filtered } = &self.activations;
        let [mut input, mut output] = pixels.each_ref();
        stem.record(device, images, &self.bytes, input)?;
        for bottleneck in bottlenecks {
            bottleneck.record(device, images, input, expanded, filtered, output)?;
            std::mem::swap(&mut input, &mut output);
        }
        let positions = self.network.positions();
        head.record(device, images * positions, input, None, expanded)?;
        record_mean(device, images, positions, FEATURES, expanded, &self.features)
    }
}

impl Network {
    /// Copies the weights to the device, for images of height and width `size`.
    fn new(device: &Device, size: usize, parameters: &[f32], normalisation: [[f32; 2]; 3]) -> Result<Self> {
        let layout = layout();
        assert_eq!(parameters.len(), layout.len(), "parameters of this layout");
        let mut tensors = layout.tensors().iter().map(|tensor| &parameters[tensor.range.clone()]);
        // Weights and bias of the next layer: the layout has the layers in their order in the network.
        let mut next_layer = || {
            let [weights, bias] = [tensors.next(), tensors.next()];
            (weights.expect("weights of a layer"), bias.expect("the bias of a layer"))
        };
        let (weights, bias) = next_layer();
        let stem = Stem::new(device, size, weights, bias, normalisation)?;
        let (mut side, mut layers) = (stem.side, Vec::new());
        for shape in bottlenecks() {
            let expand = if shape.expands() {
                let (weights, bias) = next_layer();
                Some(Pointwise::new(device, shape.input, weights, bias, true)?)
            } else {
                None
            };
            let (weights, bias) = next_layer();
            let depthwise = Depthwise::new(device, shape.kernel, shape.stride, side, weights, bias)?;
            let (weights, bias) = next_layer();
            let project = Pointwise::new(device, shape.inner, weights, bias, false)?;
            let input_side = std::mem::replace(&mut side, depthwise.output_side);
            layers.push(Bottleneck {
                side: input_side,
                expand,
                depthwise,
                project,
                adds_input: shape.adds_input(),
            });
        }
        let (weights, bias) = next_layer();
        let head = Pointwise::new(device, weights.len() / FEATURES, weights, bias, true)?;
        Ok(Network { stem, bottlenecks: layers, head })
    }

    /// The number of positions of the last bottleneck's output.
    fn positions(&self) -> usize {
        self.bottlenecks.last().map_or(0, |bottleneck| bottleneck.depthwise.output_side.pow(2))
    }
}

impl Bottleneck {
    /// Starts the kernels from `input` to `output`; `expanded` and `filtered` are memory for the activations in
    /// between.
    fn record(
        &self,
        device: &Device,
        images: usize,
        input: &Buffer<Chunk>,
        expanded: &Buffer<Chunk>,
        filtered: &Buffer<Chunk>,
        output: &Buffer<Chunk>,
    ) -> Result<()> {
        let input_positions = images * self.side.pow(2);
        let output_positions = images * self.depthwise.output_side.pow(2);
        match &self.expand {
            None => self.depthwise.record(device, images, input, filtered)?,
            Some(expand) => {
                expand.record(device, input_positions, input, None, expanded)?;
                self.depthwise.record(device, images, expanded, filtered)?;
            }
        }
        self.project.record(device, output_positions, filtered, self.adds_input.then_some(input), output)
    }
}

impl Activations {
    /// Memory for batches of up to `max_batch` images.
    fn new(device: &Device, max_batch: usize, network: &Network) -> Result<Self> {
        // All layers share the buffers, so each buffer has the length of the longest activation that it holds. These
        // are values per image.
        let (mut pixels, mut expanded) = (network.stem.side.pow(2) * STEM, network.positions() * FEATURES);
        let mut filtered = 0;
        for (bottleneck, shape) in network.bottlenecks.iter().zip(bottlenecks()) {
            let output_positions = bottleneck.depthwise.output_side.pow(2);
            pixels = pixels.max(output_positions * padded(shape.output));
            // Inner channels are multiples of 16 already; `Depthwise::new` checks it.
            filtered = filtered.max(output_positions * shape.inner);
            if shape.expands() {
                expanded = expanded.max(bottleneck.side.pow(2) * shape.inner);
            }
        }
        let buffer = |values: usize| device.zeros(max_batch * values / CHUNK_CHANNELS);
        Ok(Activations {
            pixels: [buffer(pixels)?, buffer(pixels)?],
            expanded: buffer(expanded)?,
            filtered: buffer(filtered)?,
        })
    }
}
