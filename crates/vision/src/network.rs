//! The seam between images and the networks that embed them: [`EmbeddingNetwork`] and [`EmbeddingSession`].
//!
//! A [`Backbone`](crate::Backbone) owns one network and its preprocessing. Threads share the network; each has its own
//! session, which holds the memory it computes in and takes a whole batch per call. Conv4 and EfficientNet-Lite0
//! implement the traits here, an ONNX model in [`onnx`](crate::onnx), and the networks on a GPU in `gpu_network`. A GPU
//! takes images through one [`BatchQueue`], so that no thread waits for it.

use trueshot_nn::conv4::{Conv4Embedder, Conv4Session};
use trueshot_nn::efficientnet::{self, EfficientNetEmbedder, EfficientNetSession};

use crate::batch_queue::BatchQueue;
use crate::error::Unreadable;

/// A network that turns normalised images into embeddings.
pub trait EmbeddingNetwork: Send + Sync {
    /// Length of an embedding.
    fn dim(&self) -> usize;

    /// Values of one input image: height x width x channels.
    fn input_len(&self) -> usize;

    /// Number of images that a caller should pass to one call of [`EmbeddingSession::embed`]; more would not be faster.
    fn batch_size(&self) -> usize;

    /// Whether embedding an image takes longer than reading it, so that caching embeddings saves time.
    fn is_costly(&self) -> bool;

    /// A session for one thread.
    fn session(&self) -> Box<dyn EmbeddingSession>;

    /// The queue of a network that takes images as bytes from all threads: not normalised, and of the size and channels of
    /// its preprocessing. `None` if every thread embeds its own images.
    fn queue(&self) -> Option<&BatchQueue> {
        None
    }

    /// The error after which the network embeds nothing any more, such as a lost GPU. The whole work stops then, whereas an
    /// error of a session is about its images only.
    fn failure(&self) -> Option<trueshot::Error> {
        None
    }
}

/// The state of one thread that embeds: the network and the memory that it computes in.
pub trait EmbeddingSession: Send {
    /// Embeds a batch: `images` is `[image, row, column, channel]`, normalised, and `out` is `[image, dim]`. An embedding
    /// depends on its own image only, not on the other images of the batch.
    ///
    /// # Errors
    /// If the network fails on one of the images, which only networks from elsewhere do.
    ///
    /// # Panics
    /// If the lengths are not those of whole images and their embeddings.
    fn embed(&mut self, images: &[f32], out: &mut [f32]) -> Result<(), Unreadable>;
}

impl EmbeddingNetwork for Conv4Embedder {
    fn dim(&self) -> usize {
        self.shape().features()
    }

    fn input_len(&self) -> usize {
        self.shape().pixels()
    }

    fn batch_size(&self) -> usize {
        16
    }

    fn is_costly(&self) -> bool {
        false
    }

    fn session(&self) -> Box<dyn EmbeddingSession> {
        Box::new(Conv4Embedder::session(self))
    }
}

impl EmbeddingSession for Conv4Session {
    fn embed(&mut self, images: &[f32], out: &mut [f32]) -> Result<(), Unreadable> {
        Conv4Session::embed(self, images, out);
        Ok(())
    }
}

impl EmbeddingNetwork for EfficientNetEmbedder {
    fn dim(&self) -> usize {
        efficientnet::FEATURES
    }

    fn input_len(&self) -> usize {
        3 * self.size() * self.size()
    }

    fn batch_size(&self) -> usize {
        1
    }

    fn is_costly(&self) -> bool {
        true
    }

    fn session(&self) -> Box<dyn EmbeddingSession> {
        Box::new(EfficientNetEmbedder::session(self))
    }
}

impl EmbeddingSession for EfficientNetSession {
    fn embed(&mut self, images: &[f32], out: &mut [f32]) -> Result<(), Unreadable> {
        EfficientNetSession::embed(self, images, out);
        Ok(())
    }
}
