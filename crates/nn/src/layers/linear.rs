//! A linear layer.
//!
//! Shapes: x R x I, weight I x O, bias O, y R x O. The weight lies as the product reads it, so that the forward
//! pass and the weight's gradient take it as it is.

use std::ops::Range;

use crate::isa::Isa;
use crate::kernel::kernel;
use crate::matmul::{View, ViewMut, Write, multiply, multiply_and_add_row};
use crate::parameters::{Layout, Role};
use crate::real::Real;

/// `y = x W + b`
///
/// # Panics
/// If the shapes disagree.
pub fn forward<T: Real>(isa: Isa, x: &[T], weight: &[T], bias: &[T], y: &mut [T]) {
    let outputs = bias.len();
    let (rows, inputs) = (y.len() / outputs, weight.len() / outputs);
    let (x, weight) = (View::new(x, rows, inputs), View::new(weight, inputs, outputs));
    multiply_and_add_row(isa, x, weight, bias, ViewMut::new(y, rows, outputs));
}

/// `d_W += x^T d_y`, `d_b += sum of d_y`, `d_x = d_y W^T` where it is wanted.
///
/// # Panics
/// If the shapes disagree.
pub fn backward<T: Real>(
    isa: Isa,
    x: &[T],
    weight: &[T],
    d_y: &[T],
    d_weight: &mut [T],
    d_bias: &mut [T],
    d_x: Option<&mut [T]>,
) {
    backward_parameters(isa, x, d_y, d_weight, d_bias);
    if let Some(d_x) = d_x {
        backward_input(isa, weight, d_y, d_bias.len(), Write::Set, d_x);
    }
}

/// The part of the backward pass that adds to the gradients of weight and bias.
///
/// # Panics
/// If the shapes disagree.
pub fn backward_parameters<T: Real>(isa: Isa, x: &[T], d_y: &[T], d_weight: &mut [T], d_bias: &mut [T]) {
    let outputs = d_bias.len();
    let (rows, inputs) = (d_y.len() / outputs, d_weight.len() / outputs);
    add_columns(isa, d_y, d_bias);
    let (x, d_y) = (View::new(x, rows, inputs).transposed(), View::new(d_y, rows, outputs));
    multiply(isa, x, d_y, Write::Add, ViewMut::new(d_weight, inputs, outputs));
}

/// The part of the backward pass that sets the gradient of the input, or adds to it.
///
/// # Panics
/// If the shapes disagree.
pub fn backward_input<T: Real>(
    isa: Isa,
    weight: &[T],
    d_y: &[T],
    outputs: usize,
    write: Write,
    d_x: &mut [T],
) {
    let (rows, inputs) = (d_y.len() / outputs, weight.len() / outputs);
    let weight = View::new(weight, inputs, outputs).transposed();
    multiply(isa, View::new(d_y, rows, outputs), weight, write, ViewMut::new(d_x, rows, inputs));
}

/// Where a linear layer finds its parameters in a model's flat buffer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Linear {
    /// I x O
    pub weight: Range<usize>,
    /// O
    pub bias: Range<usize>,
}

impl Linear {
    /// Lays out `name.weight` and `name.bias`.
    pub fn add(layout: &mut Layout, name: &str, inputs: usize, outputs: usize) -> Self {
        let weight = layout.add(format!("{name}.weight"), &[inputs, outputs], Role::Trained);
        Linear { weight, bias: layout.add(format!("{name}.bias"), &[outputs], Role::Trained) }
    }

    /// [`forward`]
    pub fn forward<T: Real>(&self, isa: Isa, parameters: &[T], x: &[T], y: &mut [T]) {
        forward(isa, x, &parameters[self.weight.clone()], &parameters[self.bias.clone()], y);
    }

    /// [`backward_parameters`]
    pub fn backward_parameters<T: Real>(&self, isa: Isa, x: &[T], d_y: &[T], gradient: &mut [T]) {
        let (d_weight, d_bias) = disjoint(gradient, &self.weight, &self.bias);
        backward_parameters(isa, x, d_y, d_weight, d_bias);
    }

    /// [`backward_input`]
    pub fn backward_input<T: Real>(
        &self,
        isa: Isa,
        parameters: &[T],
        d_y: &[T],
        write: Write,
        d_x: &mut [T],
    ) {
        backward_input(isa, &parameters[self.weight.clone()], d_y, self.bias.len(), write, d_x);
    }
}

/// Two ranges of a buffer at once.
///
/// # Panics
/// If they overlap or lie outside.
pub(crate) fn disjoint<'a, T>(
    buffer: &'a mut [T],
    one: &Range<usize>,
    other: &Range<usize>,
) -> (&'a mut [T], &'a mut [T]) {
    let [one, other] =
        buffer.get_disjoint_mut([one.clone(), other.clone()]).expect("tensors lie apart in the buffer");
    (one, other)
}

kernel! {
    /// Adds all rows to one.
    pub fn add_columns<'a, T>(rows: &'a [T], sums: &'a mut [T]) {
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
    use crate::differences::{Numbers, check};
    use crate::real::dot;

    #[test]
    fn the_gradients_are_those_of_central_differences() {
        for (rows, inputs, outputs) in [(1, 1, 1), (5, 7, 3), (4, 17, 20)] {
            let mut numbers = Numbers::new(rows as u64);
            let (x, weight) = (numbers.doubles(rows * inputs), numbers.doubles(inputs * outputs));
            let (bias, d_y) = (numbers.doubles(outputs), numbers.doubles(rows * outputs));
            let loss = |x: &[f64], weight: &[f64], bias: &[f64]| {
                let mut y = vec![0.0; rows * outputs];
                forward(Isa::current(), x, weight, bias, &mut y);
                dot(&y, &d_y)
            };
            let (mut d_weight, mut d_bias) = (vec![0.0; weight.len()], vec![0.0; outputs]);
            let mut d_x = vec![9.0; x.len()];
            backward(Isa::current(), &x, &weight, &d_y, &mut d_weight, &mut d_bias, Some(&mut d_x));
            check("x", &x, &d_x, |x| loss(x, &weight, &bias));
            check("weight", &weight, &d_weight, |weight| loss(&x, weight, &bias));
            check("bias", &bias, &d_bias, |bias| loss(&x, &weight, bias));
        }
    }
}
