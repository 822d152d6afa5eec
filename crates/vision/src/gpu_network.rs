//! Conv4 backbones on a GPU: [`GpuConv4`] implements [`EmbeddingNetwork`].

use std::sync::{Arc, Mutex, PoisonError};

use trueshot_cuda::conv4::Conv4Embedding;
use trueshot_cuda::{Device, Error as GpuError};
use trueshot_nn::conv4::Shape;

use crate::error::Unreadable;
use crate::network::{EmbeddingNetwork, EmbeddingSession};
use crate::preprocess::Preprocessing;

/// Images per call: the GPU is far faster than the threads that decode, so larger batches would only take memory.
const BATCH: usize = 64;

/// A Conv4 on a GPU, which all threads share.
pub(crate) struct GpuConv4 {
    shape: Shape,
    /// `byte * scale + shift` is a normalised value, per channel.
    normalisation: [[f32; 2]; 3],
    gpu: Arc<Mutex<GpuState>>,
}

struct GpuState {
    embedding: Conv4Embedding,
    /// The first error, after which nothing is embedded.
    failure: Option<GpuError>,
}

impl GpuConv4 {
    pub fn new(device: &Device, preprocessing: &Preprocessing, parameters: &[f32]) -> Result<Self, GpuError> {
        let shape = Shape { size: preprocessing.size, channels: preprocessing.channels.count() };
        let scale_and_shift = preprocessing.scale_and_shift(1.0);
        let embedding = Conv4Embedding::new(device, shape, BATCH, parameters, scale_and_shift)?;
        let gpu = Arc::new(Mutex::new(GpuState { embedding, failure: None }));
        Ok(GpuConv4 { shape, normalisation: preprocessing.scale_and_shift(255.0), gpu })
    }
}

impl EmbeddingNetwork for GpuConv4 {
    fn dim(&self) -> usize {
        self.shape.features()
    }

    fn input_len(&self) -> usize {
        self.shape.pixels()
    }

    fn batch_size(&self) -> usize {
        BATCH
    }

    fn is_costly(&self) -> bool {
        false
    }

    fn session(&self) -> Box<dyn EmbeddingSession> {
        let (shape, normalisation, gpu) = (self.shape, self.normalisation, self.gpu.clone());
        Box::new(GpuConv4Session { shape, normalisation, gpu, bytes: Vec::new() })
    }

    fn failure(&self) -> Option<trueshot::Error> {
        let gpu = self.gpu.lock().unwrap_or_else(PoisonError::into_inner);
        gpu.failure.clone().map(Into::into)
    }
}

/// One thread that embeds on the GPU.
struct GpuConv4Session {
    shape: Shape,
    normalisation: [[f32; 2]; 3],
    gpu: Arc<Mutex<GpuState>>,
    bytes: Vec<u8>,
}

impl EmbeddingSession for GpuConv4Session {
    fn embed(&mut self, images: &[f32], out: &mut [f32]) -> Result<(), Unreadable> {
        let (pixels, dim) = (self.shape.pixels(), self.shape.features());
        let channels = self.normalisation.iter().take(self.shape.channels).cycle();
        let byte = |(&value, [scale, shift]): (&f32, &[f32; 2])| ((value - shift) / scale).round() as u8;
        self.bytes.clear();
        self.bytes.extend(images.iter().zip(channels).map(byte));
        let mut gpu = self.gpu.lock().unwrap_or_else(PoisonError::into_inner);
        for (images, out) in self.bytes.chunks(BATCH * pixels).zip(out.chunks_mut(BATCH * dim)) {
            if let Some(failure) = &gpu.failure {
                return Err(Unreadable::File(failure.to_string()));
            }
            match gpu.embedding.embed(images) {
                Ok(features) => out.copy_from_slice(&features),
                Err(error) => gpu.failure = Some(error),
            }
        }
        match &gpu.failure {
            None => Ok(()),
            Some(failure) => Err(Unreadable::File(failure.to_string())),
        }
    }
}
