//! The training session of a head (TraNFS or Relabel) on the CPU: [`CpuHeadSession`] computes the losses and updates of
//! a [`HeadBatch`], the episodes of one step.
//!
//! The episodes of a step are divided into a fixed number of parts. Each part gathers the rows of its episodes right
//! before it computes, so that they are still in the cache, and adds to a gradient of its own; the gradients are added
//! in the order of the parts. So the number of threads changes the speed of a step and never its result.

use std::sync::Arc;

use rayon::prelude::*;
use trueshot_nn::Isa;

use super::LearnedHead;
use super::episodes::{RowBuffer, TrainingEpisode, TrainingEpisodes};
use crate::error::Result;
use crate::training::{CpuSession, CpuWeights};

/// The episodes of one step, divided into parts.
pub struct HeadBatch {
    /// The episodes of each part, as indices into the data.
    pub parts: Vec<Vec<TrainingEpisode>>,
    /// The seed of the dropout masks of each part.
    pub dropout_seeds: Vec<u64>,
}

/// A head in training on the CPU.
pub struct CpuHeadSession<'a> {
    head: Arc<dyn LearnedHead>,
    episodes: Arc<TrainingEpisodes<'a>>,
    weights: CpuWeights,
    /// Buffers for the rows of the episodes, one list per part.
    buffers: Vec<Vec<RowBuffer>>,
}

impl<'a> CpuHeadSession<'a> {
    /// A session for batches with as many parts as `weights` has gradients. Rows are read from the data of `episodes`.
    pub fn new(head: Arc<dyn LearnedHead>, episodes: Arc<TrainingEpisodes<'a>>, weights: CpuWeights) -> Self {
        let buffers = weights.gradients.iter().map(|_| Vec::new()).collect();
        CpuHeadSession { head, episodes, weights, buffers }
    }

    /// Computes the sum of each loss term over all episodes of a batch, `[terms]`. Adds the gradient of each part to
    /// the gradient of the weights that belongs to this part.
    fn losses(&mut self, batch: &HeadBatch) -> Vec<f64> {
        // The instruction set of the caller, which the threads of the pool must use, too.
        let isa = Isa::current();
        let (head, parameters, episodes) = (self.head.head(), &self.weights.parameters, &self.episodes);
        let inputs = batch.parts.par_iter().zip(&batch.dropout_seeds);
        let sums: Vec<Vec<f64>> = inputs
            .zip(self.buffers.par_iter_mut().zip(&mut self.weights.gradients))
            .map(|((drawn, &dropout), (buffers, gradient))| {
                episodes.with_rows(drawn, buffers, |episodes| {
                    isa.scope(|| head.losses(parameters, episodes, dropout, gradient))
                })
            })
            .collect();
        let mut terms = vec![0.0; head.loss_terms().len()];
        for part_sums in sums {
            terms.iter_mut().zip(part_sums).for_each(|(term, sum)| *term += sum);
        }
        terms
    }
}

impl CpuSession for CpuHeadSession<'_> {
    type Batch = HeadBatch;

    fn weights(&self) -> &CpuWeights {
        &self.weights
    }

    fn weights_mut(&mut self) -> &mut CpuWeights {
        &mut self.weights
    }

    fn train_step(&mut self, step: u64, batch: &HeadBatch) -> Result<Vec<f64>> {
        let episodes = batch.parts.iter().map(Vec::len).sum::<usize>() as f64;
        let terms: Vec<f64> = self.losses(batch).into_iter().map(|sum| sum / episodes).collect();
        if terms.iter().all(|term| term.is_finite()) {
            self.weights.update(step, 1.0 / episodes)?;
        }
        Ok(terms)
    }
}
