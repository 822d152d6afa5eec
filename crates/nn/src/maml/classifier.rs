//! Conv4 and a linear layer over one batch of labelled pictures: loss, gradient, and the Hessian times a vector.
//!
//! Shapes: R pictures, D features, N classes; features R x D, weight D x N, bias N, logits R x N.

use std::ops::Range;

use super::Size;
use crate::conv4::{Tangent, Training, layout as conv4_layout};
use crate::isa::Isa;
use crate::layers::linear;
use crate::layers::loss::cross_entropy;
use crate::matmul::{View, ViewMut, Write, multiply};

/// A batch on its way through the network.
pub(super) struct Pass {
    training: Training,
    isa: Isa,
    images: usize,
    ways: usize,
    weight: Range<usize>,
    bias: Range<usize>,
    features: Vec<f32>,
    logits: Vec<f32>,
    d_logits: Vec<f32>,
    d_features: Vec<f32>,
}

impl Pass {
    pub fn new(isa: Isa, size: Size, images: usize) -> Self {
        let (start, dim) = (conv4_layout(size.shape.channels).len(), size.shape.features());
        let weight = start..start + dim * size.ways;
        Pass {
            training: Training::undivided(isa, size.shape, images),
            isa,
            images,
            ways: size.ways,
            bias: weight.end..weight.end + size.ways,
            weight,
            features: vec![0.0; images * dim],
            logits: vec![0.0; images * size.ways],
            d_logits: Vec::new(),
            d_features: vec![0.0; images * dim],
        }
    }

    pub fn images(&self) -> usize {
        self.images
    }

    pub fn take_images(&mut self, images: &[f32]) {
        self.training.take_images(images);
    }

    pub fn share_images(&mut self, other: &Pass) {
        self.training.share_images(&other.training);
    }

    pub fn logits(&mut self, parameters: &[f32]) -> &[f32] {
        self.features.copy_from_slice(self.training.forward_again(parameters));
        let (weight, bias) = (&parameters[self.weight.clone()], &parameters[self.bias.clone()]);
        linear::forward(self.isa, &self.features, weight, bias, &mut self.logits);
        &self.logits
    }

    /// The mean cross-entropy; adds its gradient.
    pub fn loss_and_gradient(&mut self, parameters: &[f32], classes: &[u32], gradient: &mut [f32]) -> f64 {
        self.logits(parameters);
        self.d_logits.clone_from(&self.logits);
        let loss = cross_entropy(&mut self.d_logits, classes, 1.0);
        let (before, bias) = gradient.split_at_mut(self.weight.end);
        linear::backward(
            self.isa,
            &self.features,
            &parameters[self.weight.clone()],
            &self.d_logits,
            &mut before[self.weight.clone()],
            &mut bias[..self.ways],
            Some(&mut self.d_features),
        );
        self.training.backward(parameters, &self.d_features, gradient);
        loss
    }
}

/// Room for the tangents of a pass.
pub(super) struct PassTangent {
    tangent: Tangent,
    images: usize,
    logits: Vec<f32>,
    d_features: Vec<f32>,
}

impl PassTangent {
    pub fn new(of: &Pass) -> Self {
        PassTangent {
            tangent: Tangent::new(&of.training),
            images: of.images,
            logits: vec![0.0; of.logits.len()],
            d_features: vec![0.0; of.d_features.len()],
        }
    }

    pub fn fits(&self, pass: &Pass) -> bool {
        self.images == pass.images
    }

    /// How the gradient of the last [`Pass::loss_and_gradient`] moves along a direction: H v.
    pub fn hessian_times(
        &mut self,
        of: &Pass,
        parameters: &[f32],
        classes: &[u32],
        direction: &[f32],
    ) -> Vec<f32> {
        let mut moved = vec![0.0; parameters.len()];
        let (isa, rows, ways) = (of.isa, of.images, of.ways);
        let dim = of.features.len() / rows;
        let weight = View::new(&parameters[of.weight.clone()], dim, ways);
        let moved_weight = View::new(&direction[of.weight.clone()], dim, ways);
        let moved_features = self.tangent.forward(&of.training, parameters, direction);
        // (f W + b)˙ = f Ẇ + ḃ + ḟ W
        let moved_bias = &direction[of.bias.clone()];
        linear::forward(isa, &of.features, &direction[of.weight.clone()], moved_bias, &mut self.logits);
        let moved_features = View::new(moved_features, rows, dim);
        multiply(isa, moved_features, weight, Write::Add, ViewMut::new(&mut self.logits, rows, ways));
        cross_entropy_tangent(&of.d_logits, classes, &mut self.logits);
        let d_logits = View::new(&of.d_logits, rows, ways);
        let moved_d_logits = View::new(&self.logits, rows, ways);
        let (before, moved_d_bias) = moved.split_at_mut(of.weight.end);
        let moved_d_weight = &mut before[of.weight.clone()];
        linear::backward_parameters(
            isa,
            &of.features,
            &self.logits,
            moved_d_weight,
            &mut moved_d_bias[..ways],
        );
        let moved_d_weight = ViewMut::new(moved_d_weight, dim, ways);
        multiply(isa, moved_features.transposed(), d_logits, Write::Add, moved_d_weight);
        let out = ViewMut::new(&mut self.d_features, rows, dim);
        multiply(isa, moved_d_logits, weight.transposed(), Write::Set, out);
        let out = ViewMut::new(&mut self.d_features, rows, dim);
        multiply(isa, d_logits, moved_weight.transposed(), Write::Add, out);
        self.tangent.backward(&of.training, parameters, &self.d_features, &mut moved);
        moved
    }
}

/// How the gradient of the mean cross-entropy moves: moved logits turn into it in place. With shares p and R rows it
/// is `p (l̇ - sum p l̇) / R`.
fn cross_entropy_tangent(d_logits: &[f32], classes: &[u32], moved: &mut [f32]) {
    let rows = classes.len();
    let ways = moved.len() / rows;
    for ((d_logits, &class), moved) in
        d_logits.chunks_exact(ways).zip(classes).zip(moved.chunks_exact_mut(ways))
    {
        let share = |other: usize| {
            let wanted = if other == class as usize { 1.0 } else { 0.0 };
            d_logits[other] + wanted / rows as f32
        };
        // R times these shares are p, so p's mean needs the factor and the product does not.
        let mean: f32 = (0..ways).map(|other| share(other) * moved[other]).sum::<f32>() * rows as f32;
        for (other, moved) in moved.iter_mut().enumerate() {
            *moved = share(other) * (*moved - mean);
        }
    }
}
