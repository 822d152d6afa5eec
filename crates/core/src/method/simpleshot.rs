//! The method `simpleshot` (Wang et al., 2019): class means of centred rows of unit length.
//!
//! A vector is subtracted from every row and the row is scaled to unit length (CL2N in the paper); a query gets the
//! class whose mean has the largest cosine with it, as in easyfsl (a PyTorch library of few-shot methods), or the
//! nearest mean, as in the paper (`metric=euclidean`). The paper subtracts the mean over the classes that the backbone
//! was trained on. Users who do not have the embeddings of these classes subtract the mean of the support set, which is
//! the default.

use trueshot_nn::products;

use super::centring::Centre;
use super::registry::{MethodInfo, Parameter, Parameters};
use super::{Fitted, Method};
use crate::classifier::{Classifier, centred_unit};
use crate::error::Result;
use crate::rng::Rng;
use crate::task::Task;

pub(super) const INFO: MethodInfo = MethodInfo {
    name: "simpleshot",
    summary: "class means after centring and scaling rows to unit length",
    parameters: &[
        Centre::parameter("support"),
        Parameter { name: "metric", default: "cosine", meaning: "cosine, or euclidean as in the paper" },
    ],
    transductive: false,
    build: |given: &Parameters| {
        let metrics = [("cosine", true), ("euclidean", false)];
        let by_cosine = given.choice("metric", "cosine or euclidean", &metrics)?;
        Ok(Box::new(SimpleShot { centre: Centre::parse(given)?, by_cosine }))
    },
};

struct SimpleShot {
    /// The vector that is subtracted from every row.
    centre: Centre,
    /// Whether the largest cosine wins instead of the smallest distance.
    by_cosine: bool,
}

impl Method for SimpleShot {
    fn fit(&self, task: &Task<'_>, _rng: &mut Rng) -> Result<Fitted> {
        self.centre.check(task)?;
        let mean = self.centre.vector(task);
        let rows: Vec<Vec<f32>> = task.support.rows().iter().map(|row| centred_unit(row, &mean)).collect();
        let vectors = task.support.members().iter().map(|items| self.prototype(&rows, items, mean.len()));
        let vectors = vectors.collect();
        Ok(Fitted { classifier: Classifier::CentredVectors { mean, vectors }, assessments: None })
    }
}

impl SimpleShot {
    /// The mean `[dim]` of the transformed rows of one class, whose indices are `items`. With `metric=cosine` the mean
    /// is scaled to unit length, because [`Classifier::CentredVectors`] looks for the nearest vector: among vectors of
    /// unit length, the one nearest to a query of unit length is the one with the largest cosine.
    fn prototype(&self, rows: &[Vec<f32>], items: &[u32], dim: usize) -> Vec<f32> {
        let members: Vec<&[f32]> = items.iter().map(|&item| rows[item as usize].as_slice()).collect();
        let mut mean = vec![0.0; dim];
        products::weighted_sum(&members, &vec![1.0 / items.len() as f32; items.len()], &mut mean);
        if self.by_cosine { centred_unit(&mean, &vec![0.0; dim]) } else { mean }
    }
}
