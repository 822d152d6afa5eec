//! Networks on a GPU: [`GpuNetwork`] implements [`EmbeddingNetwork`] for Conv4 and EfficientNet-Lite0. A
//! [`Backbone`](crate::Backbone) has one after [`Backbone::move_to_gpu`](crate::Backbone::move_to_gpu).
//!
//! Images are bytes, `[row][column][channel]`, which all threads submit to one [`BatchQueue`]; the GPU normalises them.

use std::sync::Arc;

use trueshot_cuda::conv4::Conv4Embedding;
use trueshot_cuda::efficientnet::EfficientNetEmbedding;
use trueshot_cuda::{Device, Error as GpuError};
use trueshot_nn::conv4::Shape;
use trueshot_nn::efficientnet;

use crate::backbone::Parameters;
use crate::batch_queue::{BatchQueue, BatchShape, DeviceFailure, EmbedBatch, PendingRow};
use crate::error::Unreadable;
use crate::network::{EmbeddingNetwork, EmbeddingSession};
use crate::preprocess::Preprocessing;

/// Images per batch: the GPU is far faster than the decoding threads, so larger batches would only take memory.
const BATCH: usize = 64;

/// A network on a GPU, which all threads share.
pub(crate) struct GpuNetwork {
    queue: Arc<BatchQueue>,
    /// Scale and shift of each channel: `byte * scale + shift` is a normalised value.
    normalisation: [[f32; 2]; 3],
    /// Channels of an image, 1 or 3; only the first of `normalisation` are used.
    channels: usize,
    /// Whether the network takes long enough for its rows to be cached by default.
    is_costly: bool,
}

impl GpuNetwork {
    /// Opens the GPU with `open` and uploads the network, on the thread of the queue.
    pub fn start(
        parameters: Parameters,
        preprocessing: &Preprocessing,
        open: impl FnOnce() -> Result<Device, GpuError> + Send + 'static,
    ) -> Self {
        // The closure runs on the thread of the queue and takes the originals; `with_queue` borrows copies.
        let preprocessing = preprocessing.clone();
        Self::with_queue(&parameters.clone(), &preprocessing.clone(), move || {
            let uploaded = open().and_then(|device| upload(&device, &parameters, &preprocessing));
            Ok(uploaded.map_err(device_failure)?.into_closure(preprocessing.input_len()))
        })
    }

    /// Uploads the network to an open GPU.
    pub fn new(
        device: &Device,
        parameters: &Parameters,
        preprocessing: &Preprocessing,
    ) -> Result<Self, DeviceFailure> {
        let network = upload(device, parameters, preprocessing).map_err(device_failure)?;
        let image_len = preprocessing.input_len();
        Ok(Self::with_queue(parameters, preprocessing, move || Ok(network.into_closure(image_len))))
    }

    /// Starts the queue; `open` runs on its thread and returns the function that embeds a batch.
    fn with_queue(
        parameters: &Parameters,
        preprocessing: &Preprocessing,
        open: impl FnOnce() -> Result<EmbedBatch, DeviceFailure> + Send + 'static,
    ) -> Self {
        let dim = match parameters {
            Parameters::Conv4(_) => conv4_shape(preprocessing).features(),
            Parameters::EfficientNet(_) => efficientnet::FEATURES,
        };
        let shape = BatchShape { image_len: preprocessing.input_len(), dim, batch: BATCH };
        GpuNetwork {
            queue: Arc::new(BatchQueue::start(shape, open)),
            normalisation: preprocessing.scale_and_shift(255.0),
            channels: preprocessing.channels.count(),
            is_costly: matches!(parameters, Parameters::EfficientNet(_)),
        }
    }
}

/// The shape of the images of a Conv4.
fn conv4_shape(preprocessing: &Preprocessing) -> Shape {
    Shape { size: preprocessing.size, channels: preprocessing.channels.count() }
}

/// The failure for an error of the GPU, with a hint for the user.
fn device_failure(error: GpuError) -> DeviceFailure {
    let message = error.to_string();
    let hint = match error {
        GpuError::OutOfMemory { .. } => {
            "use the CPU or smaller images; other programs may be using the GPU".into()
        }
        error => trueshot::Error::from(error).hint().unwrap_or_default(),
    };
    DeviceFailure { message, hint }
}

/// A network in the memory of a GPU.
enum Uploaded {
    Conv4(Conv4Embedding),
    EfficientNet(EfficientNetEmbedding),
}

impl Uploaded {
    /// The most images per call of [`Self::embed`], by the memory of the GPU.
    fn max_batch(&self) -> usize {
        match self {
            Uploaded::Conv4(network) => network.max_batch(),
            Uploaded::EfficientNet(network) => network.max_batch(),
        }
    }

    /// Embeds the bytes of whole images; returns `[image, dim]`.
    fn embed(&mut self, images: &[u8]) -> Result<Vec<f32>, GpuError> {
        match self {
            Uploaded::Conv4(network) => network.embed(images),
            Uploaded::EfficientNet(network) => network.embed(images),
        }
    }

    /// A function that embeds any number of images of `image_len` bytes each, in batches that fit into the memory of
    /// the GPU.
    fn into_closure(mut self, image_len: usize) -> EmbedBatch {
        Box::new(move |images| {
            let mut rows = Vec::new();
            for batch in images.chunks(self.max_batch() * image_len) {
                rows.extend(self.embed(batch).map_err(device_failure)?);
            }
            Ok(rows)
        })
    }
}

/// Uploads a network, for smaller batches if the memory of the GPU does not suffice.
fn upload(
    device: &Device,
    parameters: &Parameters,
    preprocessing: &Preprocessing,
) -> Result<Uploaded, GpuError> {
    // The kernels of Conv4 normalise values from 0 to 1, those of EfficientNet bytes from 0 to 255.
    match parameters {
        Parameters::Conv4(parameters) => {
            let shape = conv4_shape(preprocessing);
            let normalisation = preprocessing.scale_and_shift(1.0);
            let new = |batch| Conv4Embedding::new(device, shape, batch, parameters, normalisation);
            largest_batch(new).map(Uploaded::Conv4)
        }
        Parameters::EfficientNet(parameters) => {
            let (size, normalisation) = (preprocessing.size, preprocessing.scale_and_shift(255.0));
            let new = |batch| EfficientNetEmbedding::new(device, size, batch, parameters, normalisation);
            largest_batch(new).map(Uploaded::EfficientNet)
        }
    }
}

/// Calls `new` with [`BATCH`], and with half as many images while the memory does not suffice.
fn largest_batch<T>(mut new: impl FnMut(usize) -> Result<T, GpuError>) -> Result<T, GpuError> {
    let mut batch = BATCH;
    loop {
        match new(batch) {
            Err(GpuError::OutOfMemory { .. }) if batch > 1 => batch /= 2,
            outcome => return outcome,
        }
    }
}

impl EmbeddingNetwork for GpuNetwork {
    fn dim(&self) -> usize {
        self.queue.shape().dim
    }

    fn input_len(&self) -> usize {
        self.queue.shape().image_len
    }

    fn batch_size(&self) -> usize {
        BATCH
    }

    fn is_costly(&self) -> bool {
        self.is_costly
    }

    fn session(&self) -> Box<dyn EmbeddingSession> {
        let (queue, normalisation, channels) = (self.queue.clone(), self.normalisation, self.channels);
        Box::new(GpuSession { queue, normalisation, channels })
    }

    fn queue(&self) -> Option<&BatchQueue> {
        Some(&self.queue)
    }

    fn failure(&self) -> Option<trueshot::Error> {
        self.queue.failure().map(Into::into)
    }
}

/// The session of one thread, which submits images to the queue and waits for the rows. It takes normalised images as
/// all sessions do and turns them back into bytes; callers with bytes use the queue directly.
struct GpuSession {
    queue: Arc<BatchQueue>,
    normalisation: [[f32; 2]; 3],
    channels: usize,
}

impl EmbeddingSession for GpuSession {
    fn embed(&mut self, images: &[f32], out: &mut [f32]) -> Result<(), Unreadable> {
        let BatchShape { image_len, dim, .. } = self.queue.shape();
        assert_eq!(images.len() / image_len * dim, out.len(), "one row per image");
        assert!(images.len().is_multiple_of(image_len), "whole images");
        // Reverses the normalisation.
        let byte = |(&value, [scale, shift]): (&f32, &[f32; 2])| ((value - shift) / scale).round() as u8;
        let submit = |image: &[f32]| {
            let channels = self.normalisation.iter().take(self.channels).cycle();
            self.queue.submit(image.iter().zip(channels).map(byte).collect())
        };
        let pending: Vec<PendingRow> = images.chunks_exact(image_len).map(submit).collect();
        for (pending, out) in pending.into_iter().zip(out.chunks_exact_mut(dim)) {
            out.copy_from_slice(&pending.wait()?);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
