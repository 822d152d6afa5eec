//! MAML (model-agnostic meta-learning, Finn et al., 2017): a Conv4 with a linear layer, whose parameters are trained so
//! that a few steps of gradient descent on a support set make a classifier.
//!
//! Start with [`MamlLearner`]: [`MamlLearner::adapt`] and [`MamlLearner::logits`] classify,
//! [`MamlLearner::meta_gradient`] trains. A *task* is a support set of labelled images with queries. `classifier` has
//! the network and its gradients.
//!
//! Batch norm always uses the statistics of the current batch: the support set while adapting, the queries for their
//! logits. The gradient of the queries' loss with respect to the initial parameters is propagated back through the
//! steps `θ' = θ - α g(θ)`: a gradient v with respect to θ' becomes `v - α H(θ) v`, because the derivative of a step is
//! `I - α H`, with H the Hessian of the support set's loss. The product H v is the tangent of the support set's
//! gradient along v ([`conv4::TangentPass`]); the first-order version omits it. A task runs on one thread; a caller
//! with several threads gives each its own [`MamlLearner`] and adds the gradients in the order of the tasks.

mod classifier;
#[cfg(test)]
mod tests;

use crate::conv4::{self, Shape};
use crate::initialisation;
use crate::parameters::{ParameterLayout, Role};
use classifier::{ClassifierPass, ClassifierTangent};

/// The size of a network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ModelSize {
    /// The shape of the images.
    pub shape: Shape,
    /// The number of classes of a task.
    pub ways: usize,
}

/// Names, shapes and positions of the parameters: those of a Conv4, then those of the linear layer (`[features, ways]`
/// and `[ways]`).
pub fn layout(size: ModelSize) -> ParameterLayout {
    let mut layout = conv4::layout(size.shape.channels);
    layout.add("classifier.weight", &[size.shape.features(), size.ways], Role::Trained);
    layout.add("classifier.bias", &[size.ways], Role::Trained);
    layout
}

/// Initial parameters: those of a Conv4, Xavier-uniform weights and zero biases. `random` yields uniform numbers in
/// [0, 1).
pub fn initial(size: ModelSize, random: &mut dyn FnMut() -> f64) -> Vec<f32> {
    let mut parameters = conv4::initial(size.shape.channels, random);
    let mut weights = vec![0.0; size.shape.features() * size.ways];
    initialisation::fill_uniform(
        &mut weights,
        initialisation::xavier_bound(size.shape.features(), size.ways),
        random,
    );
    parameters.extend(weights);
    parameters.resize(layout(size).len(), 0.0);
    parameters
}

/// The gradient descent that adapts parameters to a support set.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Adaptation {
    /// α: the learning rate.
    pub rate: f32,
    /// The number of steps.
    pub steps: usize,
}

/// Whether the gradient through an adaptation includes second derivatives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GradientOrder {
    /// The gradient at the adapted parameters, as if the steps did not depend on the initial ones.
    First,
    /// The exact gradient.
    Second,
}

/// Normalised images with their labels.
#[derive(Debug, Clone, Copy)]
pub struct LabelledImages<'a> {
    /// `[images, rows, columns, channels]`
    pub images: &'a [f32],
    /// The class of each image, below the number of ways.
    pub classes: &'a [u32],
}

/// Adapts parameters and computes gradients through the adaptation. Owns the memory of one thread, for tasks of one
/// size.
pub struct MamlLearner {
    size: ModelSize,
    /// The passes over the support set: one per step for second-order gradients, whose backward pass needs the
    /// activations of all steps; otherwise one.
    support_passes: Vec<ClassifierPass>,
    /// The pass over the queries of the last call, reused if the next one has the same number of queries.
    query_pass: Option<ClassifierPass>,
    tangent: Option<ClassifierTangent>,
}

impl MamlLearner {
    /// A learner that allocates its memory at first use.
    pub fn new(size: ModelSize) -> Self {
        MamlLearner { size, support_passes: Vec::new(), query_pass: None, tangent: None }
    }

    /// The mean loss of the queries after adaptation. Adds its gradient with respect to the initial parameters to
    /// `gradient`.
    pub fn meta_gradient(
        &mut self,
        parameters: &[f32],
        support: LabelledImages<'_>,
        queries: LabelledImages<'_>,
        adaptation: Adaptation,
        order: GradientOrder,
        gradient: &mut [f32],
    ) -> f64 {
        let passes = match order {
            GradientOrder::First => adaptation.steps.min(1),
            GradientOrder::Second => adaptation.steps,
        };
        self.allocate(passes, support.classes.len());
        // Adaptation, then the queries' gradient v at the adapted parameters.
        let keep = order == GradientOrder::Second;
        let (trajectory, adapted) = self.descend(parameters, support, adaptation, keep);
        let pass = pass_for(&mut self.query_pass, self.size, queries.classes.len());
        pass.set_images(queries.images);
        let mut v = vec![0.0; parameters.len()];
        let loss = pass.loss_and_gradient(&adapted, queries.classes, &mut v);
        // Back through the steps, the last one first. For the first order the trajectory is empty.
        for (step, before_step) in trajectory.iter().enumerate().rev() {
            let pass = &self.support_passes[step];
            // The memory for tangents is kept from step to step and task to task while the number of images is the
            // same.
            let reusable = self.tangent.take().filter(|tangent| tangent.fits(pass));
            let tangent = self.tangent.insert(reusable.unwrap_or_else(|| ClassifierTangent::new(pass)));
            let hessian_v = tangent.hessian_times(pass, before_step, support.classes, &v);
            v.iter_mut().zip(&hessian_v).for_each(|(v, hv)| *v -= adaptation.rate * hv);
        }
        gradient.iter_mut().zip(&v).for_each(|(sum, v)| *sum += v);
        loss
    }

    /// The parameters after adaptation to a support set.
    pub fn adapt(
        &mut self,
        parameters: &[f32],
        support: LabelledImages<'_>,
        adaptation: Adaptation,
    ) -> Vec<f32> {
        self.allocate(adaptation.steps.min(1), support.classes.len());
        self.descend(parameters, support, adaptation, false).1
    }

    /// The logits of images, `[images, classes]`, with adapted parameters and the batch statistics of these images.
    pub fn logits(&mut self, adapted: &[f32], images: &[f32]) -> Vec<f32> {
        let pass = pass_for(&mut self.query_pass, self.size, images.len() / self.size.shape.pixels());
        pass.set_images(images);
        pass.logits(adapted).to_vec()
    }

    /// Makes sure that there are at least `count` passes over the support set, all of `images` images.
    fn allocate(&mut self, count: usize, images: usize) {
        self.support_passes.retain(|pass| pass.images() == images);
        while self.support_passes.len() < count {
            self.support_passes.push(ClassifierPass::new(self.size, images));
        }
    }

    /// Runs the gradient descent. Returns (the parameters before each step, those after the last step). The first part
    /// is empty unless `keep` is set, and then step i leaves its activations in `self.support_passes[i]`.
    fn descend(
        &mut self,
        parameters: &[f32],
        support: LabelledImages<'_>,
        adaptation: Adaptation,
        keep: bool,
    ) -> (Vec<Vec<f32>>, Vec<f32>) {
        let (mut trajectory, mut current) = (Vec::new(), parameters.to_vec());
        let mut gradient = vec![0.0; current.len()];
        for step in 0..adaptation.steps {
            let index = if keep { step } else { 0 };
            let (previous, remaining) = self.support_passes.split_at_mut(index);
            let pass = &mut remaining[0];
            // All steps have the same images. The first pass pads them and sums up their patches at the first step;
            // later passes copy that. If there is only one pass, it still has them at later steps.
            match previous.first() {
                None if step == 0 => pass.set_images(support.images),
                None => {}
                Some(first) => pass.copy_images(first),
            }
            gradient.fill(0.0);
            pass.loss_and_gradient(&current, support.classes, &mut gradient);
            if keep {
                trajectory.push(current.clone());
            }
            current.iter_mut().zip(&gradient).for_each(|(value, g)| *value -= adaptation.rate * g);
        }
        (trajectory, current)
    }
}

/// The pass in `slot` if it is for this number of images, otherwise a new one.
fn pass_for(slot: &mut Option<ClassifierPass>, size: ModelSize, images: usize) -> &mut ClassifierPass {
    let reusable = slot.take().filter(|pass| pass.images() == images);
    slot.insert(reusable.unwrap_or_else(|| ClassifierPass::new(size, images)))
}
