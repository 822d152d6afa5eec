//! The pictures of a training step: one episode, drawn, changed and normalised.

use std::sync::Arc;

use trueshot::episode::{EpisodeSpec, Episodes, Sampler};
use trueshot::noise::Noise;
use trueshot::rng::{Purpose, Rng, Urn};
use trueshot_nn::Isa;

use crate::augment::{Augmentation, Augmenter};
use crate::dataset::Dataset;
use crate::loader::Make;
use crate::preprocess::Preprocessing;

/// An episode ready for the network.
pub(super) struct Batch {
    /// Support items, then queries: `[picture][row][column][channel]`, normalised.
    pub images: Vec<f32>,
    /// The class that each support item is filed under.
    pub given: Vec<u32>,
    /// The class of each query.
    pub query_classes: Vec<u32>,
}

/// Draws episodes and makes their pictures.
pub(super) struct Batches {
    pub dataset: Arc<Dataset>,
    pub preprocessing: Preprocessing,
    pub augmentation: Option<Augmentation>,
    pub spec: EpisodeSpec,
    pub noises: Vec<Noise>,
}

/// Working memory of one thread.
pub(super) struct Scratch {
    urn: Urn,
    augmenter: Augmenter,
    isa: Isa,
}

impl Batches {
    /// Checks once that every episode can be drawn.
    pub fn check(&self) -> trueshot::Result<()> {
        Sampler::new(self.dataset.labels(), None, self.spec, self.noises.clone()).map(drop)
    }

    /// Pictures of an episode.
    pub fn images(&self) -> usize {
        self.spec.ways * (self.spec.shots.max + self.spec.queries)
    }

    fn draw(&self, step: u64, urn: &mut Urn) -> (Vec<u32>, Vec<u32>, Vec<u32>) {
        let chosen = Rng::new(self.spec.seed, Purpose::Training, step).below(self.noises.len());
        let noise = vec![self.noises[chosen]];
        let sampler = Sampler::new(self.dataset.labels(), None, self.spec, noise).expect("checked before");
        let drawn = sampler.draw(step, urn).expect("a possible noise has a draw");
        let (mut rows, mut given, mut query_classes) = (Vec::new(), Vec::new(), Vec::new());
        for item in &drawn.supports[0] {
            rows.push(item.row);
            given.push(item.given);
        }
        for (class, drawn) in drawn.episode.classes.iter().enumerate() {
            rows.extend(&drawn.queries);
            query_classes.extend(drawn.queries.iter().map(|_| class as u32));
        }
        (rows, given, query_classes)
    }
}

impl Make for Batches {
    type Batch = Batch;
    type Scratch = Scratch;

    fn scratch(&self) -> Scratch {
        Scratch { urn: Urn::default(), augmenter: Augmenter::default(), isa: Isa::current() }
    }

    fn make(&self, step: u64, scratch: &mut Scratch, old: Option<Batch>) -> Batch {
        let (rows, given, query_classes) = self.draw(step, &mut scratch.urn);
        let values = self.preprocessing.values();
        let mut images = old.map(|batch| batch.images).unwrap_or_default();
        images.resize(rows.len() * values, 0.0);
        for (&row, image) in rows.iter().zip(images.chunks_exact_mut(values)) {
            let picture = &self.dataset.pictures()[row as usize];
            match &self.augmentation {
                None => self.preprocessing.normalise(picture, image),
                Some(augmentation) => {
                    let key = self.dataset.key(row as usize);
                    let change = augmentation.draw(self.spec.seed, key, step, picture.width, picture.height);
                    scratch.augmenter.apply(scratch.isa, picture, &change, &self.preprocessing, image);
                }
            }
        }
        Batch { images, given, query_classes }
    }
}
