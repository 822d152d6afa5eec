//! MAML (Finn et al., 2017): a Conv4 with a linear layer on top, whose parameters are learnt so that a few steps of
//! gradient descent on a support set make a classifier.
//!
//! Batch norm always uses the statistics of the batch at hand: the support set while adapting, the queries when
//! they are answered. The gradient of the queries' loss by the first parameters goes back through the steps
//! `θ' = θ - α g(θ)` as `v <- v - α H(θ) v`, the Hessian times v being the tangent of the support set's gradient
//! along v ([`conv4::Tangent`]); the first-order version leaves it out. A task is the work of one thread; who has
//! several adds up their gradients in order.

mod classifier;
#[cfg(test)]
mod tests;

use crate::conv4::{self, Shape};
use crate::initial;
use crate::isa::Isa;
use crate::parameters::{Layout, Role};
use classifier::{Pass, PassTangent};

/// What a network is made for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Size {
    /// Its pictures.
    pub shape: Shape,
    /// Classes it tells apart.
    pub ways: usize,
}

/// The named parameters: those of a Conv4, then the linear layer's.
pub fn layout(size: Size) -> Layout {
    let mut layout = conv4::layout(size.shape.channels);
    layout.add("classifier.weight", &[size.shape.features(), size.ways], Role::Trained);
    layout.add("classifier.bias", &[size.ways], Role::Trained);
    layout
}

/// Fresh parameters: those of a Conv4, Xavier-uniform weights, no bias. `random` yields uniform numbers in [0, 1).
pub fn initial(size: Size, random: &mut dyn FnMut() -> f64) -> Vec<f32> {
    let mut parameters = conv4::initial(size.shape.channels, random);
    let mut weights = vec![0.0; size.shape.features() * size.ways];
    initial::fill_uniform(&mut weights, initial::xavier(size.shape.features(), size.ways), random);
    parameters.extend(weights);
    parameters.resize(layout(size).len(), 0.0);
    parameters
}

/// How parameters are adapted to a support set.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Adaptation {
    /// How far a step goes along the gradient.
    pub rate: f32,
    /// Steps.
    pub steps: usize,
}

/// What the gradient through an adaptation takes into account.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// The adapted parameters only, as if the steps did not depend on where they began.
    First,
    /// All of it.
    Second,
}

/// Labelled pictures: normalised, `[picture][row][column][channel]`.
#[derive(Debug, Clone, Copy)]
pub struct Labelled<'a> {
    /// The pictures, one behind the other.
    pub images: &'a [f32],
    /// The class of each.
    pub classes: &'a [u32],
}

/// One thread's working memory for tasks of one size.
pub struct Learner {
    size: Size,
    isa: Isa,
    /// The passes over the support set, one a step; adapting alone needs but one.
    steps: Vec<Pass>,
    queries: Option<Pass>,
    tangent: Option<PassTangent>,
}

impl Learner {
    /// Working memory; it grows with its first use.
    pub fn new(isa: Isa, size: Size) -> Self {
        Learner { size, isa, steps: Vec::new(), queries: None, tangent: None }
    }

    /// The mean loss of the queries after adaptation, and the gradient of it by the parameters that were adapted,
    /// which is added to `gradient`.
    pub fn meta_gradient(
        &mut self,
        parameters: &[f32],
        support: Labelled<'_>,
        queries: Labelled<'_>,
        adaptation: Adaptation,
        order: Order,
        gradient: &mut [f32],
    ) -> f64 {
        let kept = match order {
            Order::First => adaptation.steps.min(1),
            Order::Second => adaptation.steps,
        };
        self.make_room(kept, support.classes.len());
        let (trail, adapted) = self.descend(parameters, support, adaptation, order == Order::Second);
        let pass = pass_for(&mut self.queries, self.isa, self.size, queries.classes.len());
        pass.take_images(queries.images);
        let mut v = vec![0.0; parameters.len()];
        let loss = pass.loss_and_gradient(&adapted, queries.classes, &mut v);
        for (step, at) in trail.iter().enumerate().rev() {
            let pass = &self.steps[step];
            let fits = self.tangent.take().filter(|tangent| tangent.fits(pass));
            let tangent = self.tangent.insert(fits.unwrap_or_else(|| PassTangent::new(pass)));
            let moved = tangent.hessian_times(pass, at, support.classes, &v);
            v.iter_mut().zip(&moved).for_each(|(v, moved)| *v -= adaptation.rate * moved);
        }
        gradient.iter_mut().zip(&v).for_each(|(sum, v)| *sum += v);
        loss
    }

    /// Parameters adapted to a support set.
    pub fn adapt(&mut self, parameters: &[f32], support: Labelled<'_>, adaptation: Adaptation) -> Vec<f32> {
        self.make_room(adaptation.steps.min(1), support.classes.len());
        self.descend(parameters, support, adaptation, false).1
    }

    /// The logits of queries, `[picture][class]`, under adapted parameters and the statistics of these pictures.
    pub fn answer(&mut self, adapted: &[f32], images: &[f32]) -> Vec<f32> {
        let pass = pass_for(&mut self.queries, self.isa, self.size, images.len() / self.size.shape.pixels());
        pass.take_images(images);
        pass.logits(adapted).to_vec()
    }

    fn make_room(&mut self, steps: usize, images: usize) {
        self.steps.retain(|pass| pass.images() == images);
        while self.steps.len() < steps {
            self.steps.push(Pass::new(self.isa, self.size, images));
        }
    }

    /// The parameters before each step, if they are to be kept, and after the last.
    fn descend(
        &mut self,
        parameters: &[f32],
        support: Labelled<'_>,
        adaptation: Adaptation,
        keeps: bool,
    ) -> (Vec<Vec<f32>>, Vec<f32>) {
        let (mut trail, mut at) = (Vec::new(), parameters.to_vec());
        let mut gradient = vec![0.0; at.len()];
        for step in 0..adaptation.steps {
            let place = if keeps { step } else { 0 };
            let (before, rest) = self.steps.split_at_mut(place);
            let pass = &mut rest[0];
            match before.first() {
                None if step == 0 => pass.take_images(support.images),
                None => {}
                Some(first) => pass.share_images(first),
            }
            gradient.fill(0.0);
            pass.loss_and_gradient(&at, support.classes, &mut gradient);
            if keeps {
                trail.push(at.clone());
            }
            at.iter_mut().zip(&gradient).for_each(|(at, slope)| *at -= adaptation.rate * slope);
        }
        (trail, at)
    }
}

/// A pass over so many pictures, made anew where their number changes.
fn pass_for(place: &mut Option<Pass>, isa: Isa, size: Size, images: usize) -> &mut Pass {
    let fits = place.take().filter(|pass| pass.images() == images);
    place.insert(fits.unwrap_or_else(|| Pass::new(isa, size, images)))
}
