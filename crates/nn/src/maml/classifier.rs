//! The network of MAML, a Conv4 with a linear layer, over one batch of labelled images: loss and gradient
//! ([`ClassifierPass`]), and Hessian-vector product ([`ClassifierTangent`]).
//!
//! Shapes: R images, D features (length of a Conv4 embedding), N classes; features `[R, D]`, weight `[D, N]`, bias
//! `[N]`, logits `[R, N]`. A tangent is a derivative along a direction of the parameters, marked by a dot in formulas.
//! `d_x` is the gradient of the loss with respect to x.

use std::ops::Range;

use super::ModelSize;
use crate::conv4::{TangentPass, TrainingPass, layout as conv4_layout};
use crate::layers::linear;
use crate::layers::loss::cross_entropy;
use crate::matmul::{Matrix, MatrixMut, Write, multiply};

/// Forward and backward passes over batches of a fixed number of images. Owns the activations.
pub(super) struct ClassifierPass {
    training: TrainingPass,
    images: usize,
    ways: usize,
    /// The range of the linear layer's weight in the parameters.
    weight: Range<usize>,
    /// The range of its bias, the last tensor of the parameters.
    bias: Range<usize>,
    features: Vec<f32>,
    logits: Vec<f32>,
    d_logits: Vec<f32>,
    d_features: Vec<f32>,
}

impl ClassifierPass {
    pub fn new(size: ModelSize, images: usize) -> Self {
        let (start, dim) = (conv4_layout(size.shape.channels).len(), size.shape.features());
        let weight = start..start + dim * size.ways;
        ClassifierPass {
            training: TrainingPass::undivided(size.shape, images),
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

    /// R
    pub fn images(&self) -> usize {
        self.images
    }

    /// Sets the images, `[R, rows, columns, channels]`.
    pub fn set_images(&mut self, images: &[f32]) {
        self.training.set_images(images);
    }

    /// Sets the images to those of another pass of the same shape.
    pub fn copy_images(&mut self, other: &ClassifierPass) {
        self.training.copy_images(&other.training);
    }

    /// The logits of the images that are set, `[R, N]`.
    pub fn logits(&mut self, parameters: &[f32]) -> &[f32] {
        self.features.copy_from_slice(self.training.forward_again(parameters));
        let (weight, bias) = (&parameters[self.weight.clone()], &parameters[self.bias.clone()]);
        linear::forward(&self.features, weight, bias, &mut self.logits);
        &self.logits
    }

    /// The mean cross-entropy of the images that are set; adds its gradient to `gradient`.
    pub fn loss_and_gradient(&mut self, parameters: &[f32], classes: &[u32], gradient: &mut [f32]) -> f64 {
        self.logits(parameters);
        self.d_logits.clone_from(&self.logits);
        let loss = cross_entropy(&mut self.d_logits, classes, 1.0);
        let (until_bias, d_bias) = gradient.split_at_mut(self.weight.end);
        linear::backward(
            &self.features,
            &parameters[self.weight.clone()],
            &self.d_logits,
            &mut until_bias[self.weight.clone()],
            &mut d_bias[..self.ways],
            Some(&mut self.d_features),
        );
        self.training.backward(&self.d_features, gradient);
        loss
    }
}

/// The tangents of a [`ClassifierPass`]. Owns its memory.
pub(super) struct ClassifierTangent {
    tangent: TangentPass,
    images: usize,
    /// The tangent of the logits, later that of their gradient.
    logits: Vec<f32>,
    /// The tangent of the gradient of the features.
    d_features: Vec<f32>,
}

impl ClassifierTangent {
    pub fn new(pass: &ClassifierPass) -> Self {
        ClassifierTangent {
            tangent: TangentPass::new(&pass.training),
            images: pass.images,
            logits: vec![0.0; pass.logits.len()],
            d_features: vec![0.0; pass.d_features.len()],
        }
    }

    /// Whether the memory is for passes over as many images as `pass` has.
    pub fn fits(&self, pass: &ClassifierPass) -> bool {
        self.images == pass.images
    }

    /// The Hessian of the loss times `direction`, at the parameters of the last [`ClassifierPass::loss_and_gradient`],
    /// whose activations `pass` holds; `parameters` and `classes` are those of that call.
    pub fn hessian_times(
        &mut self,
        pass: &ClassifierPass,
        parameters: &[f32],
        classes: &[u32],
        direction: &[f32],
    ) -> Vec<f32> {
        let mut tangent_gradient = vec![0.0; parameters.len()];
        let (rows, ways) = (pass.images, pass.ways);
        let dim = pass.features.len() / rows;
        let weight = Matrix::new(&parameters[pass.weight.clone()], dim, ways);
        let tangent_weight = Matrix::new(&direction[pass.weight.clone()], dim, ways);
        // Forward: the tangents of features and logits, and that of the gradient of the logits.
        let tangent_features = self.tangent.forward(&pass.training, parameters, direction);
        // (f W + b)˙ = f Ẇ + ḃ + ḟ W
        let tangent_bias = &direction[pass.bias.clone()];
        linear::forward(&pass.features, &direction[pass.weight.clone()], tangent_bias, &mut self.logits);
        let tangent_features = Matrix::new(tangent_features, rows, dim);
        multiply(tangent_features, weight, Write::Add, MatrixMut::new(&mut self.logits, rows, ways));
        cross_entropy_tangent(&pass.d_logits, classes, &mut self.logits);
        let d_logits = Matrix::new(&pass.d_logits, rows, ways);
        let tangent_d_logits = Matrix::new(&self.logits, rows, ways);
        // Backward through the linear layer, with dl the gradient of the logits: the tangent of the weight's gradient
        // fᵀ dl is fᵀ ḋl + ḟᵀ dl, that of the features' gradient dl Wᵀ is ḋl Wᵀ + dl Ẇᵀ.
        let (until_bias, tangent_d_bias) = tangent_gradient.split_at_mut(pass.weight.end);
        let tangent_d_weight = &mut until_bias[pass.weight.clone()];
        linear::backward_parameters(
            &pass.features,
            &self.logits,
            tangent_d_weight,
            &mut tangent_d_bias[..ways],
        );
        let tangent_d_weight = MatrixMut::new(tangent_d_weight, dim, ways);
        multiply(tangent_features.transposed(), d_logits, Write::Add, tangent_d_weight);
        let out = MatrixMut::new(&mut self.d_features, rows, dim);
        multiply(tangent_d_logits, weight.transposed(), Write::Set, out);
        let out = MatrixMut::new(&mut self.d_features, rows, dim);
        multiply(d_logits, tangent_weight.transposed(), Write::Add, out);
        self.tangent.backward(&pass.training, parameters, &self.d_features, &mut tangent_gradient);
        tangent_gradient
    }
}

/// Turns the tangent l̇ of the logits into that of the gradient of the mean cross-entropy, in place. With probabilities
/// p and R rows that is `p (l̇ - sum p l̇) / R`.
fn cross_entropy_tangent(d_logits: &[f32], classes: &[u32], tangent: &mut [f32]) {
    let rows = classes.len();
    let ways = tangent.len() / rows;
    for ((d_logits, &class), tangent) in
        d_logits.chunks_exact(ways).zip(classes).zip(tangent.chunks_exact_mut(ways))
    {
        // p / R, from the gradient (p - [c is the class]) / R; the bracket is 1 if it is true and 0 otherwise.
        let scaled_probability = |c: usize| {
            let target = if c == class as usize { 1.0 } else { 0.0 };
            d_logits[c] + target / rows as f32
        };
        let products = (0..ways).map(|c| scaled_probability(c) * tangent[c]);
        // Sum of p l̇: the factor R cancels that of the scaled probabilities.
        let mean: f32 = products.sum::<f32>() * rows as f32;
        for (c, tangent) in tangent.iter_mut().enumerate() {
            *tangent = scaled_probability(c) * (*tangent - mean);
        }
    }
}
