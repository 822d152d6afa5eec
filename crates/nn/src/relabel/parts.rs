//! Pieces of the network: where their parameters lie, and how they start.
//!
//! Weights are I x O (see [`crate::layers::linear`]). A piece takes the model's whole parameters, or gradient,
//! and finds its own numbers; gradients of parameters are added, those of activations set.

use std::ops::Range;

use super::buffer::Buffer;
use crate::initial::{fill_uniform, orthogonal};
use crate::isa::Isa;
use crate::layers::linear::{Linear, disjoint};
use crate::layers::norm;
use crate::matmul::{View, ViewMut, Write, multiply};
use crate::parameters::{Layout, Role};
use crate::real::Real;

/// How the numbers of a tensor start.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Start {
    /// All the same.
    Fill(f64),
    /// As listed.
    Values(Vec<f64>),
    /// Uniform between minus and plus this.
    Uniform(f64),
    /// Orthogonal columns of unit length (rows where there are fewer of them).
    Orthogonal,
}

/// Lays out a model's tensors and remembers how each one starts.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Plan {
    pub(super) layout: Layout,
    pub(super) starts: Vec<Start>,
}

impl Plan {
    pub(super) fn add(&mut self, name: String, shape: &[usize], start: Start) -> Range<usize> {
        self.starts.push(start);
        self.layout.add(name, shape, Role::Trained)
    }

    /// Numbers that training leaves alone.
    pub(super) fn constant(&mut self, name: &str, size: usize) -> Range<usize> {
        self.starts.push(Start::Fill(0.0));
        self.layout.add(name, &[size], Role::Constant)
    }

    /// A weight whose outputs also sum over other inputs, `fan_in` in all.
    pub(super) fn product(&mut self, name: &str, inputs: usize, outputs: usize, fan_in: usize) -> Product {
        self.product_from(name, inputs, outputs, Start::Uniform((fan_in as f64).sqrt().recip()))
    }

    pub(super) fn product_from(
        &mut self,
        name: &str,
        inputs: usize,
        outputs: usize,
        start: Start,
    ) -> Product {
        Product { weight: self.add(format!("{name}.weight"), &[inputs, outputs], start), outputs }
    }

    pub(super) fn dense(&mut self, name: &str, inputs: usize, outputs: usize, fan_in: usize) -> Linear {
        let Product { weight, .. } = self.product(name, inputs, outputs, fan_in);
        Linear { weight, bias: self.add(format!("{name}.bias"), &[outputs], Start::Fill(0.0)) }
    }

    pub(super) fn norm(&mut self, name: &str, width: usize) -> Norm {
        Norm {
            scale: self.add(format!("{name}.scale"), &[width], Start::Fill(1.0)),
            shift: self.add(format!("{name}.shift"), &[width], Start::Fill(0.0)),
        }
    }
}

impl Plan {
    /// Fresh parameters; `random` yields uniform numbers in [0, 1).
    pub(super) fn initial(&self, random: &mut dyn FnMut() -> f64) -> Vec<f32> {
        let mut numbers = vec![0.0; self.layout.len()];
        for (tensor, start) in self.layout.tensors().iter().zip(&self.starts) {
            let own = &mut numbers[tensor.range.clone()];
            match start {
                Start::Fill(value) => own.fill(*value as f32),
                Start::Values(values) => {
                    own.iter_mut().zip(values).for_each(|(own, &value)| *own = value as f32)
                }
                Start::Uniform(bound) => fill_uniform(own, *bound, random),
                Start::Orthogonal => orthogonal(own, tensor.shape[0], tensor.shape[1], random),
            }
        }
        numbers
    }
}

/// `y = x W`
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Product {
    pub(super) weight: Range<usize>,
    outputs: usize,
}

impl Product {
    fn inputs(&self) -> usize {
        self.weight.len() / self.outputs
    }

    pub(super) fn forward<T: Real>(&self, isa: Isa, parameters: &[T], x: &[T], write: Write, y: &mut [T]) {
        let rows = y.len() / self.outputs;
        let weight = View::new(&parameters[self.weight.clone()], self.inputs(), self.outputs);
        multiply(isa, View::new(x, rows, self.inputs()), weight, write, ViewMut::new(y, rows, self.outputs));
    }

    /// `d_x` is written or added to.
    pub(super) fn backward<T: Real>(
        &self,
        isa: Isa,
        parameters: &[T],
        x: &[T],
        d_y: &[T],
        gradient: &mut [T],
        d_x: Option<(Write, &mut [T])>,
    ) {
        let (rows, inputs) = (d_y.len() / self.outputs, self.inputs());
        let d_y = View::new(d_y, rows, self.outputs);
        let d_weight = ViewMut::new(&mut gradient[self.weight.clone()], inputs, self.outputs);
        multiply(isa, View::new(x, rows, inputs).transposed(), d_y, Write::Add, d_weight);
        if let Some((write, d_x)) = d_x {
            let weight = View::new(&parameters[self.weight.clone()], inputs, self.outputs);
            multiply(isa, d_y, weight.transposed(), write, ViewMut::new(d_x, rows, inputs));
        }
    }
}

/// Layer norm.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Norm {
    scale: Range<usize>,
    shift: Range<usize>,
}

/// A layer norm's output, and what its way back needs.
#[derive(Debug)]
pub(super) struct Normed<T: Real> {
    normalised: Buffer<T>,
    inverse: Buffer<T>,
    pub(super) out: Buffer<T>,
}

impl Norm {
    pub(super) fn forward<T: Real>(&self, isa: Isa, parameters: &[T], x: &[T]) -> Normed<T> {
        let mut normed = Normed {
            normalised: Buffer::new(x.len()),
            inverse: Buffer::new(x.len() / self.scale.len()),
            out: Buffer::new(x.len()),
        };
        let (scale, shift) = (&parameters[self.scale.clone()], &parameters[self.shift.clone()]);
        norm::forward(isa, x, scale, shift, &mut normed.normalised, &mut normed.inverse, &mut normed.out);
        normed
    }

    pub(super) fn backward<T: Real>(
        &self,
        isa: Isa,
        parameters: &[T],
        normed: &Normed<T>,
        d_y: &[T],
        gradient: &mut [T],
        d_x: &mut [T],
    ) {
        let (d_scale, d_shift) = disjoint(gradient, &self.scale, &self.shift);
        let scale = &parameters[self.scale.clone()];
        norm::backward(isa, scale, &normed.normalised, &normed.inverse, d_y, d_scale, d_shift, d_x);
    }
}
