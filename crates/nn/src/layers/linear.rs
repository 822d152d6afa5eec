//! Linear layers: `y = x W + b`. [`forward`] and [`backward`] are the functions; [`Linear`] is the layer of a model.
//!
//! Shapes: R rows, I inputs, O outputs; x `[R, I]`, weight W `[I, O]`, bias b `[O]`, y `[R, O]`. The weight is stored
//! in the order in which the product reads it, so the forward pass and the gradient of the weight use it as it is.
//! `d_x` is the gradient of the loss with respect to x.

use std::ops::Range;

use crate::kernel::kernel;
use crate::matmul::{Matrix, MatrixMut, Write, multiply, multiply_and_add_row};
use crate::parameters::{ParameterLayout, Role};
use crate::real::Real;

/// `y = x W + b`
///
/// # Panics
/// If the shapes disagree.
pub fn forward<T: Real>(x: &[T], weight: &[T], bias: &[T], y: &mut [T]) {
    let outputs = bias.len();
    let (rows, inputs) = (y.len() / outputs, weight.len() / outputs);
    let (x, weight) = (Matrix::new(x, rows, inputs), Matrix::new(weight, inputs, outputs));
    multiply_and_add_row(x, weight, bias, MatrixMut::new(y, rows, outputs));
}

/// `d_W += x^T d_y`, `d_b += sum over rows of d_y`, and, if `d_x` is given, `d_x = d_y W^T`.
///
/// # Panics
/// If the shapes disagree.
pub fn backward<T: Real>(
    x: &[T],
    weight: &[T],
    d_y: &[T],
    d_weight: &mut [T],
    d_bias: &mut [T],
    d_x: Option<&mut [T]>,
) {
    backward_parameters(x, d_y, d_weight, d_bias);
    if let Some(d_x) = d_x {
        backward_input(weight, d_y, d_bias.len(), Write::Set, d_x);
    }
}

/// The part of the backward pass that adds to the gradients of weight and bias: `d_W += x^T d_y`, `d_b += sum of d_y`.
///
/// # Panics
/// If the shapes disagree.
pub fn backward_parameters<T: Real>(x: &[T], d_y: &[T], d_weight: &mut [T], d_bias: &mut [T]) {
    let outputs = d_bias.len();
    let (rows, inputs) = (d_y.len() / outputs, d_weight.len() / outputs);
    add_columns(d_y, d_bias);
    let (x, d_y) = (Matrix::new(x, rows, inputs).transposed(), Matrix::new(d_y, rows, outputs));
    multiply(x, d_y, Write::Add, MatrixMut::new(d_weight, inputs, outputs));
}

/// The part of the backward pass that sets the gradient of the input, `d_x = d_y W^T`, or adds to it, as `write` says.
/// `outputs` is O.
///
/// # Panics
/// If the shapes disagree.
pub fn backward_input<T: Real>(weight: &[T], d_y: &[T], outputs: usize, write: Write, d_x: &mut [T]) {
    let (rows, inputs) = (d_y.len() / outputs, weight.len() / outputs);
    let weight = Matrix::new(weight, inputs, outputs).transposed();
    multiply(Matrix::new(d_y, rows, outputs), weight, write, MatrixMut::new(d_x, rows, inputs));
}

/// A linear layer of a model: the ranges of its parameters in the flat buffer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Linear {
    /// `[I, O]`
    pub weight: Range<usize>,
    /// `[O]`
    pub bias: Range<usize>,
}

impl Linear {
    /// Adds `name.weight` and `name.bias` to a layout.
    pub fn add(layout: &mut ParameterLayout, name: &str, inputs: usize, outputs: usize) -> Self {
        let weight = layout.add(format!("{name}.weight"), &[inputs, outputs], Role::Trained);
        Linear { weight, bias: layout.add(format!("{name}.bias"), &[outputs], Role::Trained) }
    }

    /// [`forward`] with the layer's parameters.
    pub fn forward<T: Real>(&self, parameters: &[T], x: &[T], y: &mut [T]) {
        forward(x, &parameters[self.weight.clone()], &parameters[self.bias.clone()], y);
    }

    /// [`backward_parameters`] into the layer's part of `gradient`.
    pub fn backward_parameters<T: Real>(&self, x: &[T], d_y: &[T], gradient: &mut [T]) {
        let (d_weight, d_bias) = disjoint_mut(gradient, &self.weight, &self.bias);
        backward_parameters(x, d_y, d_weight, d_bias);
    }

    /// [`backward_input`] with the layer's parameters.
    pub fn backward_input<T: Real>(&self, parameters: &[T], d_y: &[T], write: Write, d_x: &mut [T]) {
        backward_input(&parameters[self.weight.clone()], d_y, self.bias.len(), write, d_x);
    }
}

/// Mutable slices of two ranges of a buffer.
///
/// # Panics
/// If the ranges overlap or lie outside.
pub(crate) fn disjoint_mut<'a, T>(
    buffer: &'a mut [T],
    first: &Range<usize>,
    second: &Range<usize>,
) -> (&'a mut [T], &'a mut [T]) {
    let [first, second] = buffer
        .get_disjoint_mut([first.clone(), second.clone()])
        .expect("the tensors of a layout do not overlap");
    (first, second)
}

kernel! {
    /// `sums += sum over rows`
    fn add_columns<'a, T>(rows: &'a [T], sums: &'a mut [T]) {
        for row in rows.chunks_exact(sums.len()) {
            for (sum, &value) in sums.iter_mut().zip(row) {
                *sum += value;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gradient_check::{TestRng, check_gradient};
    use crate::real::dot;

    #[test]
    fn the_gradients_agree_with_central_differences() {
        for (rows, inputs, outputs) in [(1, 1, 1), (5, 7, 3), (4, 17, 20)] {
            let mut rng = TestRng::new(rows as u64);
            let (x, weight) = (rng.f64s(rows * inputs), rng.f64s(inputs * outputs));
            let (bias, d_y) = (rng.f64s(outputs), rng.f64s(rows * outputs));
            let loss = |x: &[f64], weight: &[f64], bias: &[f64]| {
                let mut y = vec![0.0; rows * outputs];
                forward(x, weight, bias, &mut y);
                dot(&y, &d_y)
            };
            let (mut d_weight, mut d_bias) = (vec![0.0; weight.len()], vec![0.0; outputs]);
            let mut d_x = vec![9.0; x.len()];
            backward(&x, &weight, &d_y, &mut d_weight, &mut d_bias, Some(&mut d_x));
            check_gradient("x", &x, &d_x, |x| loss(x, &weight, &bias));
            check_gradient("weight", &weight, &d_weight, |weight| loss(&x, weight, &bias));
            check_gradient("bias", &bias, &d_bias, |bias| loss(&x, &weight, bias));
        }
    }
}
