//! Layer norm: each row is shifted and scaled to mean 0 and variance 1, then multiplied by `scale` and moved by
//! `shift`, which are trained. [`forward`] and [`backward`] are the functions; [`LayerNorm`] is the layer of a model.
//!
//! Shapes: R rows of W numbers; x, y and `normalised` `[R, W]`, scale and shift `[W]`, `inverse_std` `[R]` (one over
//! the standard deviation of each row). The normalised rows are kept for the backward pass instead of the input. `d_x`
//! is the gradient of the loss with respect to x.

use std::ops::Range;

use crate::kernel::kernel;
use crate::layers::linear::disjoint_mut;
use crate::parameters::{ParameterLayout, Role};
use crate::real::{Real, dot, sum};

/// Added to the variance, as in PyTorch.
const EPSILON: f64 = 1e-5;

kernel! {
    /// `y = normalised * scale + shift`, with `normalised` the rows of x at mean 0 and variance 1. Keeps `normalised`
    /// and `inverse_std`.
    pub fn forward<'a, T>(
        x: &'a [T],
        scale: &'a [T],
        shift: &'a [T],
        normalised: &'a mut [T],
        inverse_std: &'a mut [T],
        y: &'a mut [T],
    ) {
        let width = scale.len();
        let rows = x.chunks_exact(width).zip(normalised.chunks_exact_mut(width));
        for (((x, normalised), inverse_std), y) in rows.zip(inverse_std).zip(y.chunks_exact_mut(width)) {
            normalised.copy_from_slice(x);
            *inverse_std = normalise_row(normalised, scale, shift, y);
        }
    }
}

kernel! {
    /// [`forward`] of `x + residual`.
    pub fn forward_residual<'a, T>(
        x: &'a [T],
        residual: &'a [T],
        scale: &'a [T],
        shift: &'a [T],
        normalised: &'a mut [T],
        inverse_std: &'a mut [T],
        y: &'a mut [T],
    ) {
        let width = scale.len();
        let inputs = x.chunks_exact(width).zip(residual.chunks_exact(width));
        let rows = inputs.zip(normalised.chunks_exact_mut(width));
        for ((((x, residual), normalised), inverse_std), y) in
            rows.zip(inverse_std).zip(y.chunks_exact_mut(width))
        {
            for ((normalised, &x), &residual) in normalised.iter_mut().zip(x).zip(residual) {
                *normalised = x + residual;
            }
            *inverse_std = normalise_row(normalised, scale, shift, y);
        }
    }
}

/// Normalises a row in place, writes the output to `y`, and returns one over the row's standard deviation.
#[inline(always)]
fn normalise_row<T: Real>(row: &mut [T], scale: &[T], shift: &[T], y: &mut [T]) -> T {
    let inverse_width = T::ONE / T::from_f64(row.len() as f64);
    let mean = sum(row) * inverse_width;
    for value in &mut *row {
        *value -= mean;
    }
    let variance = dot(row, row) * inverse_width;
    let inverse_std = T::ONE / (variance + T::from_f64(EPSILON)).sqrt();
    for (((value, y), &scale), &shift) in row.iter_mut().zip(y).zip(scale).zip(shift) {
        *value *= inverse_std;
        *y = *value * scale + shift;
    }
    inverse_std
}

kernel! {
    /// Backward pass of [`forward`] and [`forward_residual`], given `d_y`: adds to `d_scale` and `d_shift` (`[W]`), and
    /// sets `d_x` (`[R, W]`), the gradient of the input; with a residual, that of both summands.
    pub fn backward<'a, T>(
        scale: &'a [T],
        normalised: &'a [T],
        inverse_std: &'a [T],
        d_y: &'a [T],
        d_scale: &'a mut [T],
        d_shift: &'a mut [T],
        d_x: &'a mut [T],
    ) {
        let width = scale.len();
        let rows = normalised.chunks_exact(width).zip(inverse_std).zip(d_y.chunks_exact(width));
        for (((normalised, &inverse_std), d_y), d_x) in rows.zip(d_x.chunks_exact_mut(width)) {
            for (((d_scale, d_shift), &d_y), &normalised) in
                d_scale.iter_mut().zip(&mut *d_shift).zip(d_y).zip(normalised)
            {
                *d_scale += d_y * normalised;
                *d_shift += d_y;
            }
            // The gradient of the normalised row. Its mean and its component along the normalised row are then removed,
            // because shifting or scaling the input does not change the normalised row.
            for ((d_x, &d_y), &scale) in d_x.iter_mut().zip(d_y).zip(scale) {
                *d_x = d_y * scale;
            }
            let inverse_width = T::ONE / T::from_f64(width as f64);
            let (mean, along) = (sum(d_x) * inverse_width, dot(d_x, normalised) * inverse_width);
            for (d_x, &normalised) in d_x.iter_mut().zip(normalised) {
                *d_x = inverse_std * (*d_x - mean - normalised * along);
            }
        }
    }
}

/// A layer norm of a model: the ranges of its parameters in the flat buffer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LayerNorm {
    /// `[W]`
    pub scale: Range<usize>,
    /// `[W]`
    pub shift: Range<usize>,
}

/// Activations kept for the backward pass. Reused from call to call.
#[derive(Debug, Clone, Default)]
pub struct LayerNormCache<T> {
    normalised: Vec<T>,
    inverse_std: Vec<T>,
}

impl<T: Real> LayerNormCache<T> {
    /// Makes space for the rows of an input of `length` numbers.
    fn resize(&mut self, length: usize, width: usize) {
        self.normalised.resize(length, T::ZERO);
        self.inverse_std.resize(length / width, T::ZERO);
    }
}

impl LayerNorm {
    /// Adds `name.scale` and `name.shift` to a layout.
    pub fn add(layout: &mut ParameterLayout, name: &str, width: usize) -> Self {
        let scale = layout.add(format!("{name}.scale"), &[width], Role::Trained);
        LayerNorm { scale, shift: layout.add(format!("{name}.shift"), &[width], Role::Trained) }
    }

    /// [`forward_residual`] with the layer's parameters.
    pub fn forward_residual<T: Real>(
        &self,
        parameters: &[T],
        x: &[T],
        residual: &[T],
        cache: &mut LayerNormCache<T>,
        y: &mut [T],
    ) {
        cache.resize(x.len(), self.scale.len());
        let (scale, shift) = (&parameters[self.scale.clone()], &parameters[self.shift.clone()]);
        forward_residual(x, residual, scale, shift, &mut cache.normalised, &mut cache.inverse_std, y);
    }

    /// [`backward`] with the layer's parameters.
    pub fn backward<T: Real>(
        &self,
        parameters: &[T],
        cache: &LayerNormCache<T>,
        d_y: &[T],
        gradient: &mut [T],
        d_x: &mut [T],
    ) {
        let (d_scale, d_shift) = disjoint_mut(gradient, &self.scale, &self.shift);
        let scale = &parameters[self.scale.clone()];
        backward(scale, &cache.normalised, &cache.inverse_std, d_y, d_scale, d_shift, d_x);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gradient_check::{TestRng, check_gradient};

    #[test]
    fn the_gradients_agree_with_central_differences() {
        for (rows, width) in [(1, 2), (3, 5), (4, 37)] {
            let mut rng = TestRng::new(width as u64);
            let (x, d_y) = (rng.f64s(rows * width), rng.f64s(rows * width));
            let (scale, shift) = (rng.f64s(width), rng.f64s(width));
            let run = |x: &[f64], scale: &[f64], shift: &[f64]| {
                let (mut normalised, mut inverse_std, mut y) = (x.to_vec(), vec![0.0; rows], x.to_vec());
                forward(x, scale, shift, &mut normalised, &mut inverse_std, &mut y);
                (normalised, inverse_std, y)
            };
            let (normalised, inverse_std, y) = run(&x, &scale, &shift);
            let (mut d_scale, mut d_shift) = (vec![0.0; width], vec![0.0; width]);
            let mut d_x = vec![5.0; x.len()];
            backward(&scale, &normalised, &inverse_std, &d_y, &mut d_scale, &mut d_shift, &mut d_x);
            let loss = |x: &[f64], scale: &[f64], shift: &[f64]| dot(&run(x, scale, shift).2, &d_y);
            check_gradient("x", &x, &d_x, |x| loss(x, &scale, &shift));
            check_gradient("scale", &scale, &d_scale, |scale| loss(&x, scale, &shift));
            check_gradient("shift", &shift, &d_shift, |shift| loss(&x, &scale, shift));

            let half: Vec<f64> = x.iter().map(|x| x / 2.0).collect();
            let (mut of_sum, mut normalised, mut inverse_std) = (x.clone(), x.clone(), vec![0.0; rows]);
            forward_residual(&half, &half, &scale, &shift, &mut normalised, &mut inverse_std, &mut of_sum);
            assert_eq!(of_sum, y);
        }
    }
}
