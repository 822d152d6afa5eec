//! The interface between images and the networks that embed them: [`EmbeddingNetwork`] and [`EmbeddingSession`].
//!
//! A [`Backbone`](crate::Backbone) owns one network and its preprocessing. Threads share the network; each has its own
//! session, which holds its working memory and takes a batch per call. The traits are implemented here for Conv4 and
//! EfficientNet-Lite0, in [`onnx`](crate::onnx) for ONNX models, and in `gpu_network` for networks on a GPU, which take
//! images through one [`BatchQueue`].

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

    /// The best number of images per call of [`EmbeddingSession::embed`]; more would not be faster. The session takes
    /// any number.
    fn batch_size(&self) -> usize;

    /// Whether embedding an image takes longer than reading it, so that caching embeddings saves time.
    fn is_costly(&self) -> bool;

    /// A session for one thread.
    fn session(&self) -> Box<dyn EmbeddingSession>;

    /// The queue of a network that takes images as bytes from all threads: not normalised, in the size and channels of
    /// the preprocessing. `None` if every thread embeds its own images.
    fn queue(&self) -> Option<&BatchQueue> {
        None
    }

    /// The error after which the network embeds nothing more, such as a lost GPU. It ends the whole work, whereas an
    /// error of a session concerns only its images.
    fn failure(&self) -> Option<trueshot::Error> {
        None
    }
}

/// The network and the working memory of one thread.
pub trait EmbeddingSession: Send {
    /// Embeds a batch: `images` is `[image, row, column, channel]`, normalised, and `out` is `[image, dim]`. An
    /// embedding depends on its own image only, not on the other images of the batch.
    ///
    /// # Errors
    /// If the network fails on one of the images. Conv4 and EfficientNet-Lite0 do not fail.
    ///
    /// # Panics
    /// If the lengths do not match.
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
