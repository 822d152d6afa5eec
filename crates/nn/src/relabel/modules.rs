//! The building blocks of the Relabel network: parameters with their initial values ([`ParameterBuilder`]), linear maps
//! without bias ([`BiasFreeLinear`]), layer norms ([`LayerNormOutput`]).
//!
//! Weights are `[I, O]`, with I inputs and O outputs (see [`crate::layers::linear`]). R is the number of rows and W
//! their width. A module takes the buffer of all parameters of the model (or of their gradients) and uses only the
//! ranges it has stored. Gradients of parameters are always added; a gradient of activations is overwritten, unless the
//! caller passes `Write::Add`. `d_x` is the gradient of the loss with respect to x.

use std::ops::Range;

use crate::buffer::Buffer;
use crate::initialisation::{fill_orthogonal, fill_uniform};
use crate::kernel::kernel;
use crate::layers::layer_norm::{self, LayerNorm};
use crate::layers::linear::{Linear, disjoint_mut};
use crate::matmul::{Matrix, MatrixMut, Write, multiply};
use crate::parameters::{ParameterLayout, Role};
use crate::real::Real;

/// The initial values of a tensor.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Initialiser {
    /// The same value everywhere.
    Fill(f64),
    /// These values.
    Values(Vec<f64>),
    /// Uniform between minus this bound and this bound.
    Uniform(f64),
    /// Orthonormal columns; orthonormal rows if there are fewer rows than columns.
    Orthogonal,
}

/// Collects the tensors of a model with their initial values.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct ParameterBuilder {
    pub(super) layout: ParameterLayout,
    /// One per tensor of the layout.
    initialisers: Vec<Initialiser>,
}

impl ParameterBuilder {
    /// Adds a trained tensor.
    pub(super) fn tensor(&mut self, name: String, shape: &[usize], initialiser: Initialiser) -> Range<usize> {
        self.initialisers.push(initialiser);
        self.layout.add(name, shape, Role::Trained)
    }

    /// Adds a vector that the optimiser does not update, initially zero; the model sets it itself, for instance to the
    /// mean of the training data.
    pub(super) fn constant(&mut self, name: &str, size: usize) -> Range<usize> {
        self.initialisers.push(Initialiser::Fill(0.0));
        self.layout.add(name, &[size], Role::Constant)
    }

    /// Adds `name.weight`, initially uniform within `1 / sqrt(fan_in)`. `fan_in` is the number of inputs that an output
    /// sums over, which is more than `inputs` if the results of several weights are added together.
    pub(super) fn weight(
        &mut self,
        name: &str,
        inputs: usize,
        outputs: usize,
        fan_in: usize,
    ) -> BiasFreeLinear {
        self.weight_with(name, inputs, outputs, Initialiser::Uniform((fan_in as f64).sqrt().recip()))
    }

    /// Adds `name.weight` with other initial values.
    pub(super) fn weight_with(
        &mut self,
        name: &str,
        inputs: usize,
        outputs: usize,
        initialiser: Initialiser,
    ) -> BiasFreeLinear {
        let weight = self.tensor(format!("{name}.weight"), &[inputs, outputs], initialiser);
        BiasFreeLinear { weight, outputs }
    }

    /// Adds `name.weight` and `name.bias`.
    pub(super) fn linear(&mut self, name: &str, inputs: usize, outputs: usize, fan_in: usize) -> Linear {
        let BiasFreeLinear { weight, .. } = self.weight(name, inputs, outputs, fan_in);
        let bias = self.tensor(format!("{name}.bias"), &[outputs], Initialiser::Fill(0.0));
        Linear { weight, bias }
    }

    /// Adds `name.scale` and `name.shift`.
    pub(super) fn layer_norm(&mut self, name: &str, width: usize) -> LayerNorm {
        LayerNorm {
            scale: self.tensor(format!("{name}.scale"), &[width], Initialiser::Fill(1.0)),
            shift: self.tensor(format!("{name}.shift"), &[width], Initialiser::Fill(0.0)),
        }
    }

    /// Initial parameters; `random` yields uniform numbers in [0, 1).
    pub(super) fn initial(&self, random: &mut dyn FnMut() -> f64) -> Vec<f32> {
        let mut parameters = vec![0.0; self.layout.len()];
        for (tensor, initialiser) in self.layout.tensors().iter().zip(&self.initialisers) {
            let values = &mut parameters[tensor.range.clone()];
            match initialiser {
                Initialiser::Fill(value) => values.fill(*value as f32),
                Initialiser::Values(initial) => {
                    values.iter_mut().zip(initial).for_each(|(value, &initial)| *value = initial as f32)
                }
                Initialiser::Uniform(bound) => fill_uniform(values, *bound, random),
                Initialiser::Orthogonal => fill_orthogonal(values, tensor.shape[0], tensor.shape[1], random),
            }
        }
        parameters
    }
}

/// A linear map without bias: `y = x W`.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct BiasFreeLinear {
    /// `[I, O]`
    pub(super) weight: Range<usize>,
    outputs: usize,
}

impl BiasFreeLinear {
    /// The number of inputs, I.
    fn inputs(&self) -> usize {
        self.weight.len() / self.outputs
    }

    /// Sets `y` (`[R, O]`) to `x W` or adds to it, with x `[R, I]`.
    pub(super) fn forward<T: Real>(&self, parameters: &[T], x: &[T], write: Write, y: &mut [T]) {
        let rows = y.len() / self.outputs;
        let weight = Matrix::new(&parameters[self.weight.clone()], self.inputs(), self.outputs);
        let y = MatrixMut::new(y, rows, self.outputs);
        multiply(Matrix::new(x, rows, self.inputs()), weight, write, y);
    }

    /// Adds to the gradient of the weight and, if `d_x` is given, sets the gradient of the input or adds to it.
    pub(super) fn backward<T: Real>(
        &self,
        parameters: &[T],
        x: &[T],
        d_y: &[T],
        gradient: &mut [T],
        d_x: Option<(Write, &mut [T])>,
    ) {
        let (rows, inputs) = (d_y.len() / self.outputs, self.inputs());
        let d_y = Matrix::new(d_y, rows, self.outputs);
        let d_weight = MatrixMut::new(&mut gradient[self.weight.clone()], inputs, self.outputs);
        multiply(Matrix::new(x, rows, inputs).transposed(), d_y, Write::Add, d_weight);
        if let Some((write, d_x)) = d_x {
            let weight = Matrix::new(&parameters[self.weight.clone()], inputs, self.outputs);
            multiply(d_y, weight.transposed(), write, MatrixMut::new(d_x, rows, inputs));
        }
    }
}

/// The output of a layer norm, with the activations for its backward pass.
#[derive(Debug)]
pub(super) struct LayerNormOutput<T: Real> {
    normalised: Buffer<T>,
    inverse_std: Buffer<T>,
    pub(super) out: Buffer<T>,
}

impl<T: Real> LayerNormOutput<T> {
    /// Normalises the rows of `x`, `[R, W]`.
    pub(super) fn forward(norm: &LayerNorm, parameters: &[T], x: &[T]) -> Self {
        let mut output = LayerNormOutput {
            normalised: Buffer::new(x.len()),
            inverse_std: Buffer::new(x.len() / norm.scale.len()),
            out: Buffer::new(x.len()),
        };
        let LayerNormOutput { normalised, inverse_std, out } = &mut output;
        let (scale, shift) = (&parameters[norm.scale.clone()], &parameters[norm.shift.clone()]);
        layer_norm::forward(x, scale, shift, normalised, inverse_std, out);
        output
    }

    /// Adds to the gradients of scale and shift, and sets that of the input.
    pub(super) fn backward(
        &self,
        norm: &LayerNorm,
        parameters: &[T],
        d_y: &[T],
        gradient: &mut [T],
        d_x: &mut [T],
    ) {
        let (d_scale, d_shift) = disjoint_mut(gradient, &norm.scale, &norm.shift);
        let scale = &parameters[norm.scale.clone()];
        layer_norm::backward(scale, &self.normalised, &self.inverse_std, d_y, d_scale, d_shift, d_x);
    }
}

kernel! {
    /// `to += from`
    pub(super) fn add<'a, T>(to: &'a mut [T], from: &'a [T]) {
        add_row(to, from);
    }
}

/// `to += from`, for the bodies of other kernels, into which it is inlined; [`add`] is for whole slices.
#[inline(always)]
pub(super) fn add_row<T: Real>(to: &mut [T], from: &[T]) {
    for (to, &from) in to.iter_mut().zip(from) {
        *to += from;
    }
}
