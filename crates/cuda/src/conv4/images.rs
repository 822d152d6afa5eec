//! The images of training steps. Decoded images of a data set ([`DeviceImages`]) stay on the device; a step only names
//! them, with a crop, a flip and colour changes ([`ImageRequest`]), and the kernels of an [`ImageFeed`]
//! (`kernels/augment.cu`) crop, resize, change and normalise them. Alternatively, the host prepares the images of every
//! step itself.

use std::sync::Arc;

use bytemuck::{Pod, Zeroable};
use trueshot_nn::conv4::Shape;

use super::{STEP_SLOTS, TrainingState};
use crate::driver::{Address, Argument, Buffer, Device, Grid, Null, Queue, Value};
use crate::error::Result;

/// Bytes of shared memory that a thread block can have on every supported GPU.
const SHARED_LEN: usize = 99 << 10;

/// An image of an episode: its number in the data set and its augmentation (`ImageRequest` in `kernels/augment.cu`).
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Pod, Zeroable)]
pub struct ImageRequest {
    /// The number of the image.
    pub image: u32,
    /// The crop in pixels: left, top, width, height.
    pub crop: [u16; 4],
    /// 1 if the image is mirrored.
    pub flip: u32,
    /// The kinds of the four colour jitters (0 brightness, 1 contrast, 2 saturation, 3 hue), 2 bits each, in the order
    /// of application, the first in the lowest bits.
    pub jitters: u32,
    /// The values of the jitters, in the same order: factors, or the shift of the hue in sixths of the circle.
    pub values: [f32; 4],
}

/// The images of one step: support items first, then queries.
#[derive(Debug, Clone)]
pub enum StepImages {
    /// Normalised images, `[image][row][column][channel]`.
    Prepared(Vec<f32>),
    /// Images of the data set on the device.
    Requests(Vec<ImageRequest>),
}

impl StepImages {
    /// The number of images of this shape.
    pub(crate) fn count(&self, shape: Shape) -> usize {
        match self {
            StepImages::Prepared(values) => values.len() / shape.pixels(),
            StepImages::Requests(requests) => requests.len(),
        }
    }
}

/// Decoded images that stay on the device. Clones share the memory.
#[derive(Clone)]
pub struct DeviceImages {
    /// The bytes of all images, one after the other.
    pixels: Arc<Buffer<u8>>,
    /// Where each image is in `pixels`.
    sources: Arc<Buffer<SourceImage>>,
    /// The largest height or width of an image.
    largest: usize,
    /// `value * scale + shift` normalises a value in [0, 1], per channel.
    normalisation: [[f32; 2]; 3],
}

/// The place and size of an image in the memory of its data set (`SourceImage` in `kernels/augment.cu`).
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
struct SourceImage {
    /// The position of the first byte.
    offset: u64,
    width: u32,
    height: u32,
}

impl DeviceImages {
    /// Copies images to the device: `[row][column][channel]` bytes with width and height. `normalisation` is scale and
    /// shift per channel: `value * scale + shift` normalises a value in [0, 1].
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
            // Copies of 64 MiB, so that the host does not hold a second copy of the whole data set.
            if staged.len() > 64 << 20 {
                pixels.write(written, &staged)?;
                written += staged.len();
                staged.clear();
            }
        }
        pixels.write(written, &staged)?;
        let (pixels, sources) = (Arc::new(pixels), Arc::new(device.upload(&sources)?));
        Ok(DeviceImages { pixels, sources, largest, normalisation })
    }

    /// The same images for a network with another normalisation.
    pub fn with_normalisation(&self, normalisation: [[f32; 2]; 3]) -> Self {
        DeviceImages { normalisation, ..self.clone() }
    }
}

/// The sizes of images in preparation, and their normalisation (`AugmentShape` in `kernels/augment.cu`).
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub(super) struct AugmentShape {
    /// Height and width of the prepared images.
    pub size: i32,
    pub channels: i32,
    /// The largest number of source pixels, each with a weight, that an output row or column is resampled from.
    pub taps: i32,
    /// Requests per slot.
    pub slot_len: i32,
    /// `value * scale + shift` normalises a value in [0, 1], per channel.
    pub scale: [f32; 3],
    pub shift: [f32; 3],
}

impl AugmentShape {
    /// The shape for images of a data set; `slot_len`: requests per slot.
    fn new(shape: Shape, slot_len: usize, images: &DeviceImages) -> Self {
        // A bilinear filter reaches one source pixel to either side, or more where images shrink.
        let stretch = (images.largest as f64 / shape.size as f64).max(1.0);
        AugmentShape {
            size: shape.size as i32,
            channels: shape.channels as i32,
            taps: (2.0 * stretch).ceil() as i32 + 1,
            slot_len: slot_len as i32,
            scale: images.normalisation.map(|[scale, _]| scale),
            shift: images.normalisation.map(|[_, shift]| shift),
        }
    }

    /// Bytes of shared memory for the resampling: for every output row and column its first source pixel and its
    /// weights.
    fn shared_len(&self) -> usize {
        2 * self.size as usize * (1 + self.taps as usize) * 4
    }
}

/// Images of a group of MAML's tasks (classification problems that run at the same time, each of them in its own
/// memory, see `kernels/tasks.cu`).
#[derive(Debug, Clone, Copy)]
pub(crate) struct TaskImages {
    /// The number of the group's first task in the step.
    pub first_task: usize,
    /// Tasks of the group.
    pub tasks: usize,
    /// Images per task.
    pub images: usize,
    /// Bytes from the plane of a task to that of the next.
    pub stride: u64,
}

/// Fills the input plane of a network, in each step with at most `capacity` images.
pub(crate) struct ImageFeed {
    device: Device,
    /// The shape of the network's input.
    shape: Shape,
    /// The largest number of images of a step.
    capacity: usize,
    source: Source,
}

/// Where the images of the steps come from.
enum Source {
    /// The images of the next step, as the host prepared them, `[image][row][column][channel]`.
    Prepared(Buffer<f32>),
    /// Images on the device, selected by requests.
    DataSet {
        images: DeviceImages,
        /// The images of each step, `[slot][capacity]`.
        requests: Buffer<ImageRequest>,
        /// Memory for images in preparation, `[capacity][channel][size²]`; `None` if they fit into shared memory.
        scratch: Option<Buffer<f32>>,
    },
}

impl ImageFeed {
    /// A feed for steps of at most `capacity` images of this shape, from `images`, or prepared by the host if that is
    /// `None`.
    pub fn new(device: &Device, shape: Shape, capacity: usize, images: Option<DeviceImages>) -> Result<Self> {
        let source = match images {
            None => Source::Prepared(device.zeros(capacity * shape.pixels())?),
            Some(images) => {
                let image_bytes = shape.pixels() * size_of::<f32>();
                let shared_len = AugmentShape::new(shape, capacity, &images).shared_len();
                let fits = shared_len + image_bytes <= SHARED_LEN;
                let scratch = (!fits).then(|| device.zeros(capacity * shape.pixels())).transpose()?;
                Source::DataSet { images, requests: device.zeros(STEP_SLOTS * capacity)?, scratch }
            }
        };
        Ok(ImageFeed { device: device.clone(), shape, capacity, source })
    }

    /// Copies the images of steps in adjacent slots to the device.
    ///
    /// # Panics
    /// If the images are not of the feed's kind, or too many.
    pub fn write<'a>(&mut self, slot: usize, steps: impl Iterator<Item = &'a StepImages>) -> Result<()> {
        // The requests of all steps, each filled up to the length of a slot.
        let mut adjacent = Vec::new();
        for (index, step) in steps.enumerate() {
            match (&mut self.source, step) {
                (Source::Prepared(buffer), StepImages::Prepared(images)) => buffer.write(0, images)?,
                (Source::DataSet { .. }, StepImages::Requests(requests)) => {
                    assert!(
                        requests.len() <= self.capacity,
                        "{} of {} images",
                        requests.len(),
                        self.capacity
                    );
                    adjacent.resize(index * self.capacity, ImageRequest::zeroed());
                    adjacent.extend_from_slice(requests);
                }
                _ => panic!("the images of a step are of the kind that the run was made for"),
            }
        }
        match &mut self.source {
            Source::DataSet { requests, .. } => requests.write(slot * self.capacity, &adjacent),
            Source::Prepared(_) => Ok(()),
        }
    }

    /// Whether images come from a data set on the device.
    pub fn has_data_set(&self) -> bool {
        matches!(self.source, Source::DataSet { .. })
    }

    /// Starts the kernel that fills the first `count` images of `plane`, the input of a network, with those of the step
    /// whose number is in `state`.
    pub fn record(
        &self,
        count: usize,
        plane: &Buffer<[u32; 2]>,
        state: &Buffer<TrainingState>,
    ) -> Result<()> {
        let shape = Value(self.augment_shape());
        let (grid, source) = (self.grid(count), &self.source);
        match source {
            Source::Prepared(images) => {
                self.device.launch(Queue::Main, "pack_floats", grid, &[images, plane, &shape])
            }
            Source::DataSet { images, requests, scratch } => {
                let scratch: &dyn Argument = scratch.as_ref().map_or(&Null, |scratch| scratch);
                let arguments: [&dyn Argument; 7] =
                    [&*images.pixels, &*images.sources, requests, scratch, plane, state, &shape];
                self.device.launch(Queue::Main, "augment_images", grid, &arguments)
            }
        }
    }

    /// Starts the kernel that fills the planes of a group of tasks; `plane` is that of its first task.
    pub fn record_tasks(
        &self,
        group: TaskImages,
        plane: Address<[u32; 2]>,
        state: &Buffer<TrainingState>,
    ) -> Result<()> {
        let shape = Value(self.augment_shape());
        let grid = self.grid(group.images).tasks(group.tasks);
        // `TaskImages` of the kernels.
        let task_images = Value([group.first_task as i32, group.images as i32]);
        let stride = Value(group.stride);
        match &self.source {
            Source::Prepared(images) => {
                let arguments: [&dyn Argument; 5] = [images, &plane, &shape, &task_images, &stride];
                self.device.launch(Queue::Main, "task_pack_floats", grid, &arguments)
            }
            Source::DataSet { images, requests, scratch } => {
                let scratch: &dyn Argument = scratch.as_ref().map_or(&Null, |scratch| scratch);
                let arguments: [&dyn Argument; 9] = [
                    &*images.pixels,
                    &*images.sources,
                    requests,
                    scratch,
                    &plane,
                    state,
                    &shape,
                    &task_images,
                    &stride,
                ];
                self.device.launch(Queue::Main, "task_augment_images", grid, &arguments)
            }
        }
    }

    /// The argument of the kernels. The host normalises prepared images, so their scale is 1.
    fn augment_shape(&self) -> AugmentShape {
        let Shape { size, channels } = self.shape;
        match &self.source {
            Source::Prepared(_) => AugmentShape {
                size: size as i32,
                channels: channels as i32,
                taps: 0,
                slot_len: 0,
                scale: [1.0; 3],
                shift: [0.0; 3],
            },
            Source::DataSet { images, .. } => AugmentShape::new(self.shape, self.capacity, images),
        }
    }

    /// The grid of the kernels for `count` images.
    fn grid(&self, count: usize) -> Grid {
        match &self.source {
            Source::Prepared(_) => Grid::new(self.shape.size.pow(2).div_ceil(256), 256).rows(count),
            Source::DataSet { scratch, .. } => {
                // The image in preparation, unless it is in the scratch memory.
                let image_bytes = if scratch.is_some() { 0 } else { self.shape.pixels() * size_of::<f32>() };
                Grid::new(count, 512).shared(self.augment_shape().shared_len() + image_bytes)
            }
        }
    }
}
