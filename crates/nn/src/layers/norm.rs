//! Layer norm.
//!
//! Shapes: x, y and `normalised` R x W, scale and shift W, `inverse` R (one over each row's deviation). The
//! normalised rows are kept for the backward pass instead of the input.

use std::ops::Range;

use crate::isa::Isa;
use crate::kernel::kernel;
use crate::layers::linear::disjoint;
use crate::parameters::{Layout, Role};
use crate::real::{Real, dot, sum};

/// Added to the variance, as PyTorch does.
const EPSILON: f64 = 1e-5;

kernel! {
    /// `y = normalised x * scale + shift`; keeps `normalised` and `inverse`.
    pub fn forward<'a, T>(
        x: &'a [T],
        scale: &'a [T],
        shift: &'a [T],
        normalised: &'a mut [T],
        inverse: &'a mut [T],
        y: &'a mut [T],
    ) {
        let width = scale.len();
        let rows = x.chunks_exact(width).zip(normalised.chunks_exact_mut(width));
        for (((x, normalised), inverse), y) in rows.zip(inverse).zip(y.chunks_exact_mut(width)) {
            normalised.copy_from_slice(x);
            *inverse = row(normalised, scale, shift, y);
        }
    }
}

kernel! {
    /// The same of a sum, as where a layer's change joins what it was made from.
    pub fn forward_of_sum<'a, T>(
        x: &'a [T],
        change: &'a [T],
        scale: &'a [T],
        shift: &'a [T],
        normalised: &'a mut [T],
        inverse: &'a mut [T],
        y: &'a mut [T],
    ) {
        let width = scale.len();
        let rows = x.chunks_exact(width).zip(change.chunks_exact(width)).zip(normalised.chunks_exact_mut(width));
        for ((((x, change), normalised), inverse), y) in rows.zip(inverse).zip(y.chunks_exact_mut(width)) {
            for ((normalised, &x), &change) in normalised.iter_mut().zip(x).zip(change) {
                *normalised = x + change;
            }
            *inverse = row(normalised, scale, shift, y);
        }
    }
}

/// Normalises a row in place, and returns one over its deviation.
#[inline(always)]
fn row<T: Real>(row: &mut [T], scale: &[T], shift: &[T], y: &mut [T]) -> T {
    let share = T::ONE / T::from_f64(row.len() as f64);
    let mean = sum(row) * share;
    for value in &mut *row {
        *value -= mean;
    }
    let variance = dot(row, row) * share;
    let inverse = T::ONE / (variance + T::from_f64(EPSILON)).sqrt();
    for (((value, y), &scale), &shift) in row.iter_mut().zip(y).zip(scale).zip(shift) {
        *value *= inverse;
        *y = *value * scale + shift;
    }
    inverse
}

kernel! {
    /// Adds to the gradients of scale and shift, and sets that of the input.
    pub fn backward<'a, T>(
        scale: &'a [T],
        normalised: &'a [T],
        inverse: &'a [T],
        d_y: &'a [T],
        d_scale: &'a mut [T],
        d_shift: &'a mut [T],
        d_x: &'a mut [T],
    ) {
        let width = scale.len();
        let rows = normalised.chunks_exact(width).zip(inverse).zip(d_y.chunks_exact(width));
        for (((normalised, &inverse), d_y), d_x) in rows.zip(d_x.chunks_exact_mut(width)) {
            for (((d_scale, d_shift), &d_y), &normalised) in
                d_scale.iter_mut().zip(&mut *d_shift).zip(d_y).zip(normalised)
            {
                *d_scale += d_y * normalised;
                *d_shift += d_y;
            }
            for ((d_x, &d_y), &scale) in d_x.iter_mut().zip(d_y).zip(scale) {
                *d_x = d_y * scale;
            }
            let share = T::ONE / T::from_f64(width as f64);
            let (mean, slope) = (sum(d_x) * share, dot(d_x, normalised) * share);
            for (d_x, &normalised) in d_x.iter_mut().zip(normalised) {
                *d_x = inverse * (*d_x - mean - normalised * slope);
            }
        }
    }
}

/// Where a layer norm finds its parameters in a model's flat buffer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Norm {
    /// W
    pub scale: Range<usize>,
    /// W
    pub shift: Range<usize>,
}

/// What the backward pass needs.
#[derive(Debug, Clone, Default)]
pub struct Kept<T> {
    normalised: Vec<T>,
    inverse: Vec<T>,
}

impl<T: Real> Kept<T> {
    fn fit(&mut self, length: usize, width: usize) {
        self.normalised.resize(length, T::ZERO);
        self.inverse.resize(length / width, T::ZERO);
    }
}

impl Norm {
    /// Lays out `name.scale` and `name.shift`.
    pub fn add(layout: &mut Layout, name: &str, width: usize) -> Self {
        let scale = layout.add(format!("{name}.scale"), &[width], Role::Trained);
        Norm { scale, shift: layout.add(format!("{name}.shift"), &[width], Role::Trained) }
    }

    /// [`forward`]
    pub fn forward<T: Real>(&self, isa: Isa, parameters: &[T], x: &[T], kept: &mut Kept<T>, y: &mut [T]) {
        kept.fit(x.len(), self.scale.len());
        let (scale, shift) = (&parameters[self.scale.clone()], &parameters[self.shift.clone()]);
        forward(isa, x, scale, shift, &mut kept.normalised, &mut kept.inverse, y);
    }

    /// [`forward_of_sum`]
    pub fn forward_of_sum<T: Real>(
        &self,
        isa: Isa,
        parameters: &[T],
        x: &[T],
        change: &[T],
        kept: &mut Kept<T>,
        y: &mut [T],
    ) {
        kept.fit(x.len(), self.scale.len());
        let (scale, shift) = (&parameters[self.scale.clone()], &parameters[self.shift.clone()]);
        forward_of_sum(isa, x, change, scale, shift, &mut kept.normalised, &mut kept.inverse, y);
    }

    /// [`backward`]
    pub fn backward<T: Real>(
        &self,
        isa: Isa,
        parameters: &[T],
        kept: &Kept<T>,
        d_y: &[T],
        gradient: &mut [T],
        d_x: &mut [T],
    ) {
        let (d_scale, d_shift) = disjoint(gradient, &self.scale, &self.shift);
        let scale = &parameters[self.scale.clone()];
        backward(isa, scale, &kept.normalised, &kept.inverse, d_y, d_scale, d_shift, d_x);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::differences::{Numbers, check};

    #[test]
    fn the_gradients_are_those_of_central_differences() {
        for (rows, width) in [(1, 2), (3, 5), (4, 37)] {
            let mut numbers = Numbers::new(width as u64);
            let (x, d_y) = (numbers.doubles(rows * width), numbers.doubles(rows * width));
            let (scale, shift) = (numbers.doubles(width), numbers.doubles(width));
            let isa = Isa::current();
            let run = |x: &[f64], scale: &[f64], shift: &[f64]| {
                let (mut normalised, mut inverse, mut y) = (x.to_vec(), vec![0.0; rows], x.to_vec());
                forward(isa, x, scale, shift, &mut normalised, &mut inverse, &mut y);
                (normalised, inverse, y)
            };
            let (normalised, inverse, y) = run(&x, &scale, &shift);
            let (mut d_scale, mut d_shift) = (vec![0.0; width], vec![0.0; width]);
            let mut d_x = vec![5.0; x.len()];
            backward(isa, &scale, &normalised, &inverse, &d_y, &mut d_scale, &mut d_shift, &mut d_x);
            let loss = |x: &[f64], scale: &[f64], shift: &[f64]| dot(&run(x, scale, shift).2, &d_y);
            check("x", &x, &d_x, |x| loss(x, &scale, &shift));
            check("scale", &scale, &d_scale, |scale| loss(&x, scale, &shift));
            check("shift", &shift, &d_shift, |shift| loss(&x, &scale, shift));

            let half: Vec<f64> = x.iter().map(|x| x / 2.0).collect();
            let (mut again, mut scratch, mut kept) = (x.clone(), x.clone(), vec![0.0; rows]);
            forward_of_sum(isa, &half, &half, &scale, &shift, &mut scratch, &mut kept, &mut again);
            assert_eq!(again, y);
        }
    }
}
