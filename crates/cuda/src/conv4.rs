//! Conv4 on the GPU: training with the loss of nearest prototypes.
//!
//! Start with [`Conv4Training`]. The host passes the inputs of up to [`STEP_SLOTS`] steps at a time; the device runs one
//! graph per step and keeps everything else: parameters, moments of the optimiser, activations, and the images of the data
//! set.
//!
//! Activations and filters are 16-bit floats, sums and parameters are f32. The loss is multiplied by a scale so that small
//! gradients do not underflow. If a gradient overflows, the device halves the scale and repeats the step, so no step is
//! skipped; after [`GOOD_STEPS_BEFORE_GROWTH`] steps without an overflow it doubles the scale.

mod embedding;

use bytemuck::{Pod, Zeroable};
use trueshot_nn::adamw::AdamWConfig;
use trueshot_nn::conv4::{BLOCKS, Shape, WIDTH, layout};

use crate::Divider;
use crate::driver::{Argument, Buffer, Device, Graph, Grid, KernelTimes, Null, Queue, Value};
use crate::error::Result;

pub use embedding::Conv4Embedding;

/// The number of steps that the device holds inputs and results of (`kernels/common.cuh`).
pub const STEP_SLOTS: usize = 64;
/// The number of steps without an overflow after which the loss scale is doubled (`kernels/optimiser.cu`).
pub const GOOD_STEPS_BEFORE_GROWTH: u32 = 1000;
/// The loss scale of a new run.
const INITIAL_SCALE: f32 = 16_384.0;
/// The loss scale at which a step that still overflows is given up: its loss or gradient is not finite.
const SMALLEST_SCALE: f32 = 1.0 / 1024.0;

/// Values of a 3x3 filter bank 64 -> 64.
const FILTER_LEN: usize = 9 * WIDTH * WIDTH;
/// Values of a patch of block 1 (`kernels/first_block.cu`).
const PATCH_LEN: usize = 48;
/// Bytes of a patch in shared memory.
const PATCH_PITCH: usize = 112;
/// Rows of a tile of the filter gradient, and its threads.
const GRADIENT_ROWS: usize = 128;
const GRADIENT_THREADS: u32 = 384;
/// Steps of Weiszfeld's algorithm for the median.
const MEDIAN_ITERATIONS: usize = 5;
/// Bytes of shared memory that every supported GPU has for one block.
const SHARED_LEN: usize = 99 << 10;

/// How prototypes are computed from the support items of a class.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Prototypes {
    /// The mean.
    Mean,
    /// The geometric median: five steps of Weiszfeld's algorithm from the mean.
    Median,
}

/// The sizes and options of a training run.
#[derive(Debug, Clone)]
pub struct Conv4Options {
    /// Size and channels of the images.
    pub shape: Shape,
    /// Classes of an episode.
    pub classes: usize,
    /// Support items of an episode.
    pub support: usize,
    /// Queries of an episode.
    pub queries: usize,
    /// How prototypes are computed.
    pub prototypes: Prototypes,
    /// Hyperparameters of the optimiser.
    pub optimiser: AdamWConfig,
    /// The largest norm of the gradient; 0: no clipping.
    pub clip: f64,
}

impl Conv4Options {
    /// Images of an episode.
    pub fn images(&self) -> usize {
        self.support + self.queries
    }
}

/// Which image of the data set an episode contains, and how it is changed (`ImageRequest` in `kernels/augment.cu`).
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Pod, Zeroable)]
pub struct ImageRequest {
    /// The number of the image.
    pub image: u32,
    /// The crop in pixels: left, top, width, height.
    pub crop: [u16; 4],
    /// 1 if the image is mirrored.
    pub flip: u32,
    /// The kinds of the four colour jitters (0 brightness, 1 contrast, 2 saturation, 3 hue), 2 bits each, in the order of
    /// application, the first in the lowest bits.
    pub jitters: u32,
    /// The values of the jitters, in the same order: factors, or the shift of the hue in sixths of the circle.
    pub values: [f32; 4],
}

/// The input of one step.
#[derive(Debug, Clone)]
pub struct StepInput {
    /// The learning rate.
    pub rate: f32,
    /// The given class of each support item, then the class of each query.
    pub labels: Vec<u32>,
    /// The images.
    pub images: StepImages,
}

/// The images of one step: support items first, then queries.
#[derive(Debug, Clone)]
pub enum StepImages {
    /// Normalised images, `[image][row][column][channel]`.
    Prepared(Vec<f32>),
    /// Images of the data set on the device.
    Requests(Vec<ImageRequest>),
}

/// Everything that later steps of a run depend on.
#[derive(Debug, Clone, PartialEq)]
pub struct Conv4State {
    /// The parameters, running statistics included.
    pub parameters: Vec<f32>,
    /// Running means of the gradients.
    pub first_moments: Vec<f32>,
    /// Running means of the squared gradients.
    pub second_moments: Vec<f32>,
    /// The number of updates so far.
    pub updates: u64,
    /// The loss scale.
    pub scale: f32,
    /// The number of steps since the loss scale changed.
    pub good_steps: u32,
}

impl Default for Conv4State {
    /// No parameters, and the loss scale of a new run.
    fn default() -> Self {
        Conv4State {
            parameters: Vec::new(),
            first_moments: Vec::new(),
            second_moments: Vec::new(),
            updates: 0,
            scale: INITIAL_SCALE,
            good_steps: 0,
        }
    }
}

/// Decoded images that stay on the device.
pub struct DeviceImages {
    pixels: Buffer<u8>,
    sources: Buffer<SourceImage>,
    largest: usize,
    /// `value * scale + shift` normalises a value in [0, 1], per channel.
    normalisation: [[f32; 2]; 3],
}

#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
struct SourceImage {
    offset: u64,
    width: u32,
    height: u32,
}

impl DeviceImages {
    /// Copies images to the device: `[row][column][channel]` bytes with width and height.
    pub fn upload<'a>(
        device: &Device,
        images: impl Iterator<Item = (&'a [u8], usize, usize)> + Clone,
        normalisation: [[f32; 2]; 3],
    ) -> Result<Self> {
        let bytes: usize = images.clone().map(|(pixels, ..)| pixels.len()).sum();
        let mut pixels = device.zeros::<u8>(bytes)?;
        let (mut sources, mut staged, mut written, mut largest) = (Vec::new(), Vec::new(), 0, 1);
        for (image, width, height) in images {
            let offset = (written + staged.len()) as u64;
            sources.push(SourceImage { offset, width: width as u32, height: height as u32 });
            largest = largest.max(width).max(height);
            staged.extend_from_slice(image);
            if staged.len() > 64 << 20 {
                pixels.write(written, &staged)?;
                written += staged.len();
                staged.clear();
            }
        }
        pixels.write(written, &staged)?;
        Ok(DeviceImages { pixels, sources: device.upload(&sources)?, largest, normalisation })
    }
}

#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
struct TrainingState {
    step: u32,
    updates: u32,
    scale: f32,
    good_steps: u32,
    overflow: u32,
}

#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
struct ConvolutionShape {
    positions: i32,
    side: i32,
    stride: i32,
    pitch: Divider,
}

#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
struct PoolShape {
    side: i32,
    windows: i32,
    divider: Divider,
    count: f32,
}

#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
struct FirstShape {
    images: i32,
    side: i32,
    windows: i32,
    divider: Divider,
}

#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
struct EpisodeShape {
    classes: i32,
    support: i32,
    queries: i32,
    chunks: i32,
    side: i32,
    by_side: Divider,
    iterations: i32,
}

#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
struct AugmentShape {
    size: i32,
    channels: i32,
    taps: i32,
    scale: [f32; 3],
    shift: [f32; 3],
}

#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
struct FilterPartials {
    first: u64,
    counts: [i32; 3],
    padding: u32,
}

#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
struct NormSums {
    sums: u64,
    d_sums: u64,
    moments: u64,
    d_patches: u64,
    norm: u64,
    weighted: u64,
    weights: u64,
    counts: [f32; 4],
}

#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
struct AdamWOptions {
    beta1: f32,
    beta2: f32,
    epsilon: f32,
    weight_decay: f32,
    l2: f32,
    clip: f32,
}

/// The 16-byte chunk of 8 channels that planes consist of.
type Chunk = [u32; 4];

/// Buffers and shapes of block 2, 3 or 4.
struct Block {
    shape: ConvolutionShape,
    /// Output of the convolution, and its gradient.
    z: Buffer<Chunk>,
    dz: Buffer<Chunk>,
    /// Output of the block, its value before gamma and beta, and its gradient.
    y: Buffer<Chunk>,
    normalised: Buffer<Chunk>,
    dy: Buffer<Chunk>,
    /// Thread blocks of the filter gradient, and the tiles of each.
    gradient_blocks: usize,
    gradient_tiles: usize,
    /// The first partial filter gradient of this block.
    first_partial: usize,
}

/// All buffers of a training run.
struct Memory {
    image: Buffer<[u32; 2]>,
    prepared: Buffer<f32>,
    requests: Buffer<ImageRequest>,
    labels: Buffer<u32>,
    rates: Buffer<f32>,
    parameters: Buffer<f32>,
    first_moments: Buffer<f32>,
    second_moments: Buffer<f32>,
    gradients: Buffer<f32>,
    squares: Buffer<f64>,
    /// Sums of blocks 2 to 4 `[3][2][64]`, of their gradients `[3][2][64]`, moments `[48][48]`, d_patches `[64][48]`.
    sums: Buffer<i64>,
    norm: Buffer<f32>,
    weighted: Buffer<f32>,
    first_filters: Buffer<[u32; 2]>,
    first_weights: Buffer<f32>,
    filters: Buffer<u16>,
    transposed: Buffer<u16>,
    partials: Buffer<f32>,
    y1: Buffer<Chunk>,
    dy1: Buffer<Chunk>,
    blocks: Vec<Block>,
    points: Buffer<f32>,
    d_points: Buffer<f32>,
    weights: Buffer<f32>,
    d_weights: Buffer<f32>,
    d_items: Buffer<f32>,
    d_logits: Buffer<f32>,
    losses: Buffer<f32>,
    mean_losses: Buffer<f32>,
    state: Buffer<TrainingState>,
}

/// Where each part of [`Memory::sums`] starts.
const D_SUMS: usize = 6 * WIDTH;
const MOMENTS: usize = 12 * WIDTH;
const D_PATCHES: usize = MOMENTS + PATCH_LEN * PATCH_LEN;
const SUMS_LEN: usize = D_PATCHES + WIDTH * PATCH_LEN;
/// Threads of `collect_gradients`.
const GRADIENT_ELEMENTS: usize = 3 * FILTER_LEN + WIDTH * (PATCH_LEN + 2) + 6 * WIDTH;

/// A Conv4 in training on a GPU.
pub struct Conv4Training {
    device: Device,
    options: Conv4Options,
    memory: Memory,
    images: Option<DeviceImages>,
    scratch: Option<Buffer<f32>>,
    graph: Option<(bool, Graph)>,
    /// Steps that the device has finished.
    done: u32,
}

/// The value of a 16-bit float.
fn half_to_float(bits: u16) -> f32 {
    let (exponent, mantissa) = (i32::from(bits >> 10 & 31), f32::from(bits & 1023) / 1024.0);
    let magnitude = match exponent {
        0 => mantissa * 2f32.powi(-14),
        31 if mantissa == 0.0 => f32::INFINITY,
        31 => f32::NAN,
        _ => (1.0 + mantissa) * 2f32.powi(exponent - 15),
    };
    if bits >> 15 == 0 { magnitude } else { -magnitude }
}

/// The positions of a plane of `images` images.
fn plane_len(images: usize, side: usize) -> usize {
    images * (side + 1) * (side + 1)
}

impl Conv4Training {
    /// A training run that starts from `parameters`, in the layout of [`trueshot_nn::conv4::layout`].
    ///
    /// # Errors
    /// [`OutOfMemory`](crate::Error::OutOfMemory) if activations and images do not fit.
    ///
    /// # Panics
    /// If the shape is not possible or `parameters` has another length.
    pub fn new(
        device: &Device,
        options: Conv4Options,
        parameters: &[f32],
        images: Option<DeviceImages>,
    ) -> Result<Self> {
        assert!(options.shape.is_possible(), "{:?}", options.shape);
        let memory = Memory::new(device, &options, images.is_some())?;
        let scratch = match &images {
            Some(images) => {
                let shape = augment_shape(&options, images);
                let planes = options.shape.pixels() * size_of::<f32>();
                let fits = augment_shared_len(&shape) + planes <= SHARED_LEN;
                (!fits).then(|| device.zeros(options.images() * options.shape.pixels())).transpose()?
            }
            None => None,
        };
        let mut training =
            Conv4Training { device: device.clone(), options, memory, images, scratch, graph: None, done: 0 };
        let zeros = vec![0.0; parameters.len()];
        training.load(&Conv4State {
            parameters: parameters.to_vec(),
            first_moments: zeros.clone(),
            second_moments: zeros,
            ..Conv4State::default()
        })?;
        Ok(training)
    }

    /// The parameters, running statistics included.
    pub fn parameters(&self) -> Result<Vec<f32>> {
        self.memory.parameters.read()
    }

    /// The gradient of the last step.
    pub fn gradient(&self) -> Result<Vec<f32>> {
        self.memory.gradients.read()
    }

    /// Everything that later steps depend on.
    pub fn state(&self) -> Result<Conv4State> {
        let TrainingState { updates, scale, good_steps, .. } = self.memory.state.read()?[0];
        Ok(Conv4State {
            parameters: self.memory.parameters.read()?,
            first_moments: self.memory.first_moments.read()?,
            second_moments: self.memory.second_moments.read()?,
            updates: u64::from(updates),
            scale,
            good_steps,
        })
    }

    /// The features of the last step's images, `[image][64][side][side]`.
    pub fn features(&self) -> Result<Vec<f32>> {
        let images = self.options.images();
        let out = self.device.zeros::<f32>(images * self.options.shape.features())?;
        let shape = self.episode_shape();
        let grid = Grid::new((shape.chunks as usize).div_ceil(256), 256).rows(images);
        let features = &self.memory.blocks[2].y;
        self.device.launch(Queue::Main, "write_features", grid, &[features, &out, &Value(shape)])?;
        out.read()
    }

    /// Prepares the images of the next step as [`Conv4Training::run`] does, without running the step, and returns them as
    /// the network gets them: normalised, rounded to f16, `[image][row][column][channel]`.
    ///
    /// # Panics
    /// If the input has the wrong length.
    pub fn prepared_images(&mut self, step: &StepInput) -> Result<Vec<f32>> {
        self.write_slots(std::slice::from_ref(step))?;
        match &step.images {
            StepImages::Prepared(images) => {
                self.memory.prepared.write(0, images)?;
                self.pack_prepared()?;
            }
            StepImages::Requests(_) => self.augment()?,
        }
        let Shape { size, channels } = self.options.shape;
        let pitch = size + 1;
        let plane = self.memory.image.read()?;
        let rows = (0..self.options.images() * pitch).filter(|row| row % pitch < size);
        let positions = rows.flat_map(|row| &plane[row * pitch..row * pitch + size]);
        let values = positions.flat_map(|pairs| (0..channels).map(|c| pairs[c / 2] >> (16 * (c % 2))));
        Ok(values.map(|bits| half_to_float(bits as u16)).collect())
    }

    /// Replaces parameters and the state of the optimiser.
    ///
    /// # Panics
    /// If a length is not that of the layout.
    pub fn load(&mut self, state: &Conv4State) -> Result<()> {
        let memory = &mut self.memory;
        assert_eq!(state.parameters.len(), memory.parameters.len(), "parameters of this layout");
        memory.parameters.write(0, &state.parameters)?;
        memory.first_moments.write(0, &state.first_moments)?;
        memory.second_moments.write(0, &state.second_moments)?;
        let Conv4State { updates, scale, good_steps, .. } = *state;
        let state =
            TrainingState { step: self.done, updates: updates as u32, scale, good_steps, overflow: 0 };
        memory.state.write(0, &[state])?;
        let layout = Value(self.options.shape.channels as i32);
        self.device.launch(
            Queue::Main,
            "pack_filters",
            Grid::new(64, 256),
            &[
                &memory.parameters,
                &memory.filters,
                &memory.transposed,
                &memory.first_filters,
                &memory.first_weights,
                &layout,
            ],
        )
    }

    /// Runs steps and returns their losses.
    ///
    /// # Errors
    /// [`Lost`](crate::Error::Lost) if the GPU stopped working. A loss that is not finite is returned, and no later step is run.
    ///
    /// # Panics
    /// If there are more than [`STEP_SLOTS`] steps, or an input has the wrong length.
    pub fn run(&mut self, steps: &[StepInput]) -> Result<Vec<f32>> {
        assert!(steps.len() <= STEP_SLOTS, "{} steps at a time", steps.len());
        let Some(first) = steps.first() else { return Ok(Vec::new()) };
        if matches!(first.images, StepImages::Prepared(_)) {
            return self.run_prepared(steps);
        }
        self.write_slots(steps)?;
        self.launch_steps(false, steps.len())
    }

    fn run_prepared(&mut self, steps: &[StepInput]) -> Result<Vec<f32>> {
        let mut losses = Vec::new();
        for step in steps {
            let StepImages::Prepared(images) = &step.images else { panic!("one kind of images per call") };
            assert_eq!(images.len(), self.memory.prepared.len(), "images of one episode");
            self.memory.prepared.write(0, images)?;
            self.write_slots(std::slice::from_ref(step))?;
            losses.extend(self.launch_steps(true, 1)?);
        }
        Ok(losses)
    }

    /// Launches the graph of one step, with images that were prepared before, and does not wait. For measurements.
    pub fn launch_prepared(&mut self) -> Result<()> {
        self.graph(true)?.launch()
    }

    /// The times of the kernels of a step. The run cannot go on afterwards.
    pub fn kernel_times(self, prepared: bool) -> Result<KernelTimes> {
        self.device.kernel_times(|| self.record_step(prepared))
    }

    /// Waits for the device.
    pub fn synchronise(&self) -> Result<()> {
        self.device.synchronise()
    }

    /// Copies the inputs of the next steps to their slots: one copy per kind, two where the ring ends.
    fn write_slots(&mut self, steps: &[StepInput]) -> Result<()> {
        let first = self.done as usize % STEP_SLOTS;
        let (before_end, after_end) = steps.split_at(steps.len().min(STEP_SLOTS - first));
        for (slot, steps) in [(first, before_end), (0, after_end)] {
            self.write_adjacent_slots(slot, steps)?;
        }
        Ok(())
    }

    fn write_adjacent_slots(&mut self, slot: usize, steps: &[StepInput]) -> Result<()> {
        let images = self.options.images();
        let (mut labels, mut rates, mut requests) = (Vec::new(), Vec::new(), Vec::new());
        for step in steps {
            assert_eq!(step.labels.len(), images, "labels of one episode");
            labels.extend_from_slice(&step.labels);
            rates.push(step.rate);
            if let StepImages::Requests(of_step) = &step.images {
                assert_eq!(of_step.len(), images, "images of one episode");
                requests.extend_from_slice(of_step);
            }
        }
        self.memory.labels.write(slot * images, &labels)?;
        self.memory.rates.write(slot, &rates)?;
        if requests.is_empty() {
            return Ok(());
        }
        self.memory.requests.write(slot * images, &requests)
    }

    /// Launches graphs until `count` more steps are finished.
    fn launch_steps(&mut self, prepared: bool, count: usize) -> Result<Vec<f32>> {
        let (before, target) = (self.done, self.done + count as u32);
        while self.done < target {
            for _ in self.done..target {
                self.graph(prepared)?.launch()?;
            }
            let state = self.memory.state.read()?[0];
            self.done = state.step;
            if state.step < target && state.scale < SMALLEST_SCALE {
                break;
            }
        }
        let losses = self.memory.mean_losses.read()?;
        let finished = (before..self.done).map(|step| losses[step as usize % STEP_SLOTS]);
        let failed = (self.done < target).then_some(f32::NAN);
        Ok(finished.chain(failed).collect())
    }

    fn graph(&mut self, prepared: bool) -> Result<&Graph> {
        if self.graph.as_ref().is_none_or(|(kind, _)| *kind != prepared) {
            let graph = self.device.clone().capture(|| self.record_step(prepared))?;
            self.graph = Some((prepared, graph));
        }
        Ok(&self.graph.as_ref().expect("just set").1)
    }

    fn launch(&self, kernel: &'static str, grid: Grid, arguments: &[&dyn Argument]) -> Result<()> {
        self.device.launch(Queue::Main, kernel, grid, arguments)
    }

    /// Starts all kernels of one step.
    fn record_step(&self, prepared: bool) -> Result<()> {
        self.device.clear(&self.memory.sums)?;
        if prepared {
            self.pack_prepared()?
        } else {
            self.augment()?
        }
        self.forward()?;
        self.loss()?;
        self.backward()?;
        self.update()
    }

    fn pack_prepared(&self) -> Result<()> {
        let Shape { size, channels } = self.options.shape;
        let shape = AugmentShape {
            size: size as i32,
            channels: channels as i32,
            taps: 0,
            scale: [1.0; 3],
            shift: [0.0; 3],
        };
        let grid = Grid::new((size * size).div_ceil(256), 256).rows(self.options.images());
        self.launch("pack_floats", grid, &[&self.memory.prepared, &self.memory.image, &Value(shape)])
    }

    fn augment(&self) -> Result<()> {
        let images = self.images.as_ref().expect("a run without prepared images has a data set");
        let shape = augment_shape(&self.options, images);
        let planes = if self.scratch.is_some() { 0 } else { self.options.shape.pixels() * size_of::<f32>() };
        let grid = Grid::new(self.options.images(), 512).shared(augment_shared_len(&shape) + planes);
        let scratch: &dyn Argument = self.scratch.as_ref().map_or(&Null, |scratch| scratch);
        let Memory { requests, image, state, .. } = &self.memory;
        self.launch(
            "augment_images",
            grid,
            &[&images.pixels, &images.sources, requests, scratch, image, state, &Value(shape)],
        )
    }

    fn first_shape(&self, windows: usize) -> FirstShape {
        FirstShape {
            images: self.options.images() as i32,
            side: self.options.shape.size as i32,
            windows: windows as i32,
            divider: Divider::new(windows),
        }
    }

    /// Where gamma of a block is in the parameters; beta follows.
    fn gamma_start(&self, block: usize) -> usize {
        let first = 9 * WIDTH * self.options.shape.channels;
        if block == 0 {
            first + WIDTH
        } else {
            first + 5 * WIDTH + (block - 1) * (FILTER_LEN + 5 * WIDTH) + FILTER_LEN + WIDTH
        }
    }

    fn forward(&self) -> Result<()> {
        let (memory, size, sms) = (&self.memory, self.options.shape.size, self.device.multiprocessors());
        let pixels = (self.options.images() * size * size) as f32;
        let gamma = |block: usize| memory.parameters.at(self.gamma_start(block));
        let beta = |block: usize| memory.parameters.at(self.gamma_start(block) + WIDTH);
        let moments = memory.sums.at(MOMENTS);
        let grid = Grid::new(2 * sms, 256).shared(8 * 32 * PATCH_PITCH);
        self.launch(
            "patch_moments",
            grid,
            &[&memory.image, &moments, &Value(self.first_shape(size.div_ceil(2)))],
        )?;
        let arguments: [&dyn Argument; 7] = [
            &moments,
            &memory.first_weights,
            &gamma(0),
            &beta(0),
            &memory.norm,
            &memory.weighted,
            &Value(pixels),
        ];
        self.launch("first_statistics", Grid::new(1, 1024), &arguments)?;
        let first: [&dyn Argument; 5] = [
            &memory.image,
            &memory.first_filters,
            &memory.norm,
            &memory.y1,
            &Value(self.first_shape(size / 2)),
        ];
        self.launch("first_forward", Grid::new(sms, 256), &first)?;
        for (index, block) in memory.blocks.iter().enumerate() {
            let input = if index == 0 { &memory.y1 } else { &memory.blocks[index - 1].y };
            let sums = memory.sums.at(index * 2 * WIDTH);
            let filters = memory.filters.at(index * FILTER_LEN);
            convolution(
                &self.device,
                Sums::Forward,
                block.shape,
                &[input, &filters, &block.z, &sums, &Null],
            )?;
            let pool = self.pool_shape(block.shape.side as usize, block.shape.side as usize / 2);
            let (gamma, beta) = (gamma(index + 1), beta(index + 1));
            let grid = pool_grid(pool).rows(self.options.images());
            let arguments: [&dyn Argument; 7] =
                [&block.z, &sums, &gamma, &beta, &block.y, &block.normalised, &Value(pool)];
            self.launch("pool_batch", grid, &arguments)?;
        }
        Ok(())
    }

    fn pool_shape(&self, side: usize, windows: usize) -> PoolShape {
        PoolShape {
            side: side as i32,
            windows: windows as i32,
            divider: Divider::new(windows),
            count: (self.options.images() * side * side) as f32,
        }
    }

    fn episode_shape(&self) -> EpisodeShape {
        let Conv4Options { shape, classes, support, queries, prototypes, .. } = &self.options;
        let side = shape.side(BLOCKS);
        let iterations = match prototypes {
            Prototypes::Mean => 0,
            Prototypes::Median => MEDIAN_ITERATIONS,
        };
        EpisodeShape {
            classes: *classes as i32,
            support: *support as i32,
            queries: *queries as i32,
            chunks: (side * side * 8) as i32,
            side: side as i32,
            by_side: Divider::new(side),
            iterations: iterations as i32,
        }
    }

    fn loss(&self) -> Result<()> {
        let memory = &self.memory;
        let Conv4Options { classes, queries, .. } = self.options;
        let shape = self.episode_shape();
        let (features, d_features) = (&memory.blocks[2].y, &memory.blocks[2].dy);
        let Memory { labels, points, weights, state, d_logits, losses, d_points, .. } = memory;
        let value = Value(shape);
        let means = Grid::new(classes, 64).rows((shape.chunks as usize).div_ceil(64));
        self.launch("prototype_means", means, &[features, labels, points, state, &value])?;
        if shape.iterations > 0 {
            let grid = Grid::new(classes, 256);
            self.launch("prototype_medians", grid, &[features, labels, points, weights, state, &value])?;
        }
        let grid = Grid::new(queries, 256).shared(9 * classes * size_of::<f32>());
        let arguments: [&dyn Argument; 8] =
            [features, labels, points, d_logits, losses, d_features, state, &value];
        self.launch("query_losses", grid, &arguments)?;
        let grid = Grid::new(classes, 256).rows((shape.side * shape.side) as usize);
        let arguments: [&dyn Argument; 8] =
            [features, labels, points, d_logits, d_points, d_features, state, &value];
        self.launch("prototype_gradients", grid, &arguments)?;
        if shape.iterations > 0 {
            let Memory { d_weights, d_items, .. } = memory;
            let arguments: [&dyn Argument; 10] =
                [features, labels, points, weights, d_points, d_weights, d_items, d_features, state, &value];
            self.launch("median_gradients", Grid::new(classes, 256), &arguments)?;
        }
        Ok(())
    }

    fn backward(&self) -> Result<()> {
        let (memory, size, sms) = (&self.memory, self.options.shape.size, self.device.multiprocessors());
        let images = self.options.images();
        let side = self.options.shape.side(BLOCKS);
        let last = &memory.blocks[2];
        let arguments: [&dyn Argument; 6] = [
            &last.normalised,
            &last.dy,
            &memory.sums.at(D_SUMS + 4 * WIDTH),
            &Value(images as i32),
            &Value(side as i32),
            &Value(Divider::new(side)),
        ];
        let blocks = (images * side * side).div_ceil(128).min(sms);
        self.launch("sum_feature_gradients", Grid::new(blocks, 256), &arguments)?;
        for index in (0..3).rev() {
            let block = &memory.blocks[index];
            let side = block.shape.side as usize;
            let pool = self.pool_shape(side, side.div_ceil(2));
            let sums = memory.sums.at(index * 2 * WIDTH);
            let d_sums = memory.sums.at(D_SUMS + index * 2 * WIDTH);
            let start = self.gamma_start(index + 1);
            let (gamma, beta) = (memory.parameters.at(start), memory.parameters.at(start + WIDTH));
            let arguments: [&dyn Argument; 8] =
                [&block.z, &sums, &d_sums, &gamma, &beta, &block.dy, &block.dz, &Value(pool)];
            self.launch("batch_norm_backward", pool_grid(pool).rows(images), &arguments)?;
            self.device.fork()?;
            let (input, d_input, normalised): (_, _, &dyn Argument) = match index {
                0 => (&memory.y1, &memory.dy1, &Null),
                _ => {
                    let previous = &memory.blocks[index - 1];
                    (&previous.y, &previous.dy, &previous.normalised)
                }
            };
            self.filter_gradient(block, input)?;
            let filters = memory.transposed.at(index * FILTER_LEN);
            let previous_sums = memory.sums.at(D_SUMS + index.saturating_sub(1) * 2 * WIDTH);
            let sums = if index == 0 { Sums::None } else { Sums::Backward };
            convolution(
                &self.device,
                sums,
                block.shape,
                &[&block.dz, &filters, d_input, &previous_sums, normalised],
            )?;
        }
        let shared = 8192 + 8 * 32 * (128 + PATCH_PITCH);
        let arguments: [&dyn Argument; 6] = [
            &memory.image,
            &memory.first_filters,
            &memory.norm,
            &memory.dy1,
            &memory.sums.at(D_PATCHES),
            &Value(self.first_shape(size / 2)),
        ];
        self.launch("first_backward", Grid::new(sms, 256).shared(shared), &arguments)?;
        self.device.join()
    }

    fn filter_gradient(&self, block: &Block, input: &Buffer<Chunk>) -> Result<()> {
        let pitch = block.shape.side as usize + 1;
        let stride = pitch.min(GRADIENT_ROWS + 2);
        let shape = ConvolutionShape { stride: stride as i32, ..block.shape };
        let shared = 2 * (2 * GRADIENT_ROWS + 2 + 2 * stride) * 128;
        let grid = Grid::new(block.gradient_blocks, GRADIENT_THREADS).shared(shared);
        let partials = self.memory.partials.at(block.first_partial * FILTER_LEN);
        let arguments: [&dyn Argument; 5] =
            [input, &block.dz, &partials, &Value(block.gradient_tiles as i32), &Value(shape)];
        self.device.launch(Queue::Side, "filter_gradient", grid, &arguments)
    }

    fn update(&self) -> Result<()> {
        let memory = &self.memory;
        let Conv4Options { shape, optimiser, clip, .. } = &self.options;
        let images = self.options.images();
        let layout = Value(shape.channels as i32);
        let counts: [i32; 3] = std::array::from_fn(|index| memory.blocks[index].gradient_blocks as i32);
        let partials = FilterPartials { first: memory.partials.address(), counts, padding: 0 };
        let norms = Value(NormSums {
            sums: memory.sums.address(),
            d_sums: memory.sums.at(D_SUMS).address(),
            moments: memory.sums.at(MOMENTS).address(),
            d_patches: memory.sums.at(D_PATCHES).address(),
            norm: memory.norm.address(),
            weighted: memory.weighted.address(),
            weights: memory.first_weights.address(),
            counts: std::array::from_fn(|block| (images * shape.side(block).pow(2)) as f32),
        });
        let grid = Grid::new(GRADIENT_ELEMENTS.div_ceil(256), 256);
        let arguments: [&dyn Argument; 6] =
            [&Value(partials), &norms, &memory.gradients, &memory.squares, &memory.state, &layout];
        self.launch("collect_gradients", grid, &arguments)?;
        let options = Value(AdamWOptions {
            beta1: optimiser.beta1 as f32,
            beta2: optimiser.beta2 as f32,
            epsilon: optimiser.epsilon as f32,
            weight_decay: optimiser.weight_decay as f32,
            l2: optimiser.l2 as f32,
            clip: *clip as f32,
        });
        let arguments: [&dyn Argument; 14] = [
            &memory.parameters,
            &memory.first_moments,
            &memory.second_moments,
            &memory.gradients,
            &memory.squares,
            &Value(memory.squares.len() as i32),
            &norms,
            &memory.filters,
            &memory.transposed,
            &memory.rates,
            &memory.state,
            &options,
            &layout,
            &Value(memory.parameters.len() as i32),
        ];
        let grid = Grid::new(memory.parameters.len().div_ceil(256), 256);
        self.launch("update_parameters", grid, &arguments)?;
        let arguments: [&dyn Argument; 8] = [
            &memory.losses,
            &Value(self.options.queries as i32),
            &memory.mean_losses,
            &memory.parameters,
            &memory.first_filters,
            &memory.first_weights,
            &memory.state,
            &layout,
        ];
        self.launch("finish_step", Grid::new(1, 256), &arguments)
    }
}

/// Which sums a convolution adds up beside its output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sums {
    Forward,
    Backward,
    None,
}

/// Convolves with the fastest kernel for the shape and the device. The shape is the last argument of the kernel.
fn convolution(
    device: &Device,
    sums: Sums,
    shape: ConvolutionShape,
    arguments: &[&dyn Argument],
) -> Result<()> {
    let sms = device.multiprocessors();
    let positions = shape.positions as usize;
    let pitch = shape.side as usize + 1;
    let wgmma = device.has_wgmma();
    let rows = if !wgmma && positions / 256 >= sms { 256 } else { 128 };
    let stride = pitch.min(rows + 2);
    let buffer = (rows + 2 + 2 * stride) * 128;
    let buffers = if wgmma { 1 } else { 2 };
    let shared = FILTER_LEN * 2 + buffers * buffer;
    let per_sm = if wgmma && 2 * (shared + 1024) <= 227 << 10 { 2 } else { 1 };
    let grid = Grid::new(positions.div_ceil(rows).min(per_sm * sms), 256).shared(shared);
    let kernel = match (sums, wgmma, rows) {
        (Sums::Forward, true, _) => "convolution_forward_wgmma",
        (Sums::Backward, true, _) => "convolution_backward_wgmma",
        (Sums::None, true, _) => "convolution_wgmma",
        (Sums::Forward, false, 128) => "convolution_forward_128",
        (Sums::Forward, false, _) => "convolution_forward_256",
        (Sums::Backward, false, 128) => "convolution_backward_128",
        (Sums::Backward, false, _) => "convolution_backward_256",
        (Sums::None, false, 128) => "convolution_128",
        (Sums::None, false, _) => "convolution_256",
    };
    let shape = Value(ConvolutionShape { stride: stride as i32, ..shape });
    let arguments: Vec<&dyn Argument> = arguments.iter().copied().chain([&shape as &dyn Argument]).collect();
    device.launch(Queue::Main, kernel, grid, &arguments)
}

fn pool_grid(shape: PoolShape) -> Grid {
    Grid::new((shape.windows as usize).pow(2).div_ceil(32), 256)
}

fn augment_shape(options: &Conv4Options, images: &DeviceImages) -> AugmentShape {
    let Shape { size, channels } = options.shape;
    let stretch = (images.largest as f64 / size as f64).max(1.0);
    AugmentShape {
        size: size as i32,
        channels: channels as i32,
        taps: (2.0 * stretch).ceil() as i32 + 1,
        scale: images.normalisation.map(|[scale, _]| scale),
        shift: images.normalisation.map(|[_, shift]| shift),
    }
}

/// Bytes of shared memory for the weights of the resampling.
fn augment_shared_len(shape: &AugmentShape) -> usize {
    2 * shape.size as usize * (1 + shape.taps as usize) * 4
}

impl Memory {
    fn new(device: &Device, options: &Conv4Options, has_requests: bool) -> Result<Self> {
        let images = options.images();
        let size = options.shape.size;
        let parameters = layout(options.shape.channels).len();
        let plane = |side: usize| {
            let margin = side + 2;
            device.zeros_with_margin::<Chunk>(plane_len(images, side) * 8, margin * 8, (2 * margin + 512) * 8)
        };
        let mut first_partial = 0;
        let mut blocks = Vec::new();
        for block in 1..BLOCKS {
            let side = options.shape.side(block);
            let positions = plane_len(images, side);
            let tiles = positions.div_ceil(GRADIENT_ROWS);
            let gradient_tiles = tiles.div_ceil(device.multiprocessors()).max(tiles.div_ceil(32).min(6));
            let gradient_blocks = tiles.div_ceil(gradient_tiles);
            let pitch = Divider::new(side + 1);
            blocks.push(Block {
                shape: ConvolutionShape { positions: positions as i32, side: side as i32, stride: 0, pitch },
                z: plane(side)?,
                dz: plane(side)?,
                y: plane(side / 2)?,
                normalised: plane(side / 2)?,
                dy: plane(side / 2)?,
                gradient_blocks,
                gradient_tiles,
                first_partial,
            });
            first_partial += gradient_blocks;
        }
        let features = options.shape.features();
        let (classes, support) = (options.classes, options.support);
        let (iterations, median_items) = match options.prototypes {
            Prototypes::Mean => (0, 0),
            Prototypes::Median => (MEDIAN_ITERATIONS, support),
        };
        let margin = 2 * (size + 2);
        Ok(Memory {
            image: device.zeros_with_margin(plane_len(images, size), margin, margin + 512)?,
            prepared: device.zeros(if has_requests { 0 } else { images * options.shape.pixels() })?,
            requests: device.zeros(if has_requests { STEP_SLOTS * images } else { 0 })?,
            labels: device.zeros(STEP_SLOTS * images)?,
            rates: device.zeros(STEP_SLOTS)?,
            parameters: device.zeros(parameters)?,
            first_moments: device.zeros(parameters)?,
            second_moments: device.zeros(parameters)?,
            gradients: device.zeros(parameters)?,
            squares: device.zeros(GRADIENT_ELEMENTS.div_ceil(256))?,
            sums: device.zeros(SUMS_LEN)?,
            norm: device.zeros(4 * WIDTH)?,
            weighted: device.zeros(WIDTH * PATCH_LEN)?,
            first_filters: device.zeros(3 * 8 * 32)?,
            first_weights: device.zeros(WIDTH * PATCH_LEN)?,
            filters: device.zeros(3 * FILTER_LEN)?,
            transposed: device.zeros(3 * FILTER_LEN)?,
            partials: device.zeros(first_partial * FILTER_LEN)?,
            y1: plane(size / 2)?,
            dy1: plane(size / 2)?,
            blocks,
            points: device.zeros((iterations + 1) * classes * features)?,
            d_points: device.zeros(classes * features)?,
            weights: device.zeros(iterations * support)?,
            d_weights: device.zeros(median_items)?,
            d_items: device.zeros(median_items * features)?,
            d_logits: device.zeros(options.queries * classes)?,
            losses: device.zeros(options.queries)?,
            mean_losses: device.zeros(STEP_SLOTS)?,
            state: device.zeros(1)?,
        })
    }
}

#[cfg(all(test, any(feature = "emulator", feature = "gpu-tests")))]
mod tests;
