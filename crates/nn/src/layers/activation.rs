//! The activation functions [`relu`] and [`gelu`], element by element. GELU is the exact one, with the error function,
//! not the approximation by tanh.
//!
//! The backward pass of ReLU is combined with that of the dropout that follows it:
//! [`Dropout::backward_from_output`](crate::layers::dropout::Dropout::backward_from_output).

use crate::kernel::kernel;
use crate::real::Real;

kernel! {
    /// ReLU: `max(x, 0)`, in place; NaN becomes 0.
    pub fn relu<'a, T>(x: &'a mut [T]) {
        for x in x {
            *x = (*x).max(T::ZERO);
        }
    }
}

kernel! {
    /// GELU: `y = x Φ(x)`, with Φ the distribution function of the standard normal distribution. `x` and `y` have the
    /// same length.
    pub fn gelu<'a, T>(x: &'a [T], y: &'a mut [T]) {
        for (y, &x) in y.iter_mut().zip(x) {
            *y = x * normal_cdf(x);
        }
    }
}

kernel! {
    /// Backward pass of GELU: turns `d`, the gradient of the output, into that of the input `x`, in place:
    /// `d *= Φ(x) + x φ(x)`, with φ the density of the standard normal distribution.
    pub fn gelu_backward<'a, T>(x: &'a [T], d: &'a mut [T]) {
        for (d, &x) in d.iter_mut().zip(x) {
            // φ(x) = exp(-x² / 2) / sqrt(2 π)
            let density = T::from_f64(0.398_942_280_401_432_7) * (T::from_f64(-0.5) * x * x).exp();
            *d *= normal_cdf(x) + x * density;
        }
    }
}

/// Φ(x) = (1 + erf(x / sqrt(2))) / 2, the distribution function of the standard normal distribution.
#[inline(always)]
pub(crate) fn normal_cdf<T: Real>(x: T) -> T {
    T::from_f64(0.5) * (T::ONE + (x * T::from_f64(std::f64::consts::FRAC_1_SQRT_2)).erf())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gradient_check::{TestRng, check_gradient};
    use crate::isa::Isa;
    use crate::real::dot;

    #[test]
    fn the_gradient_of_gelu_agrees_with_central_differences() {
        let mut rng = TestRng::new(3);
        let x: Vec<f64> = rng.f64s(75).iter().map(|x| 4.0 * x).collect();
        let d_y = rng.f64s(75);
        let mut d = d_y.clone();
        gelu_backward(&x, &mut d);
        check_gradient("gelu", &x, &d, |x| {
            let mut y = vec![0.0; x.len()];
            gelu(x, &mut y);
            dot(&y, &d_y)
        });
    }

    #[test]
    fn single_precision_agrees_with_double_on_every_instruction_set() {
        let x: Vec<f32> = (-400..400).map(|i| i as f32 / 50.0).collect();
        for isa in Isa::usable() {
            let mut y = vec![0.0; x.len()];
            isa.scope(|| gelu(&x, &mut y));
            for (&x, &y) in x.iter().zip(&y) {
                let expected = f64::from(x) * normal_cdf(f64::from(x));
                assert!((f64::from(y) - expected).abs() < 3e-6, "{isa:?} at {x}: {y} and {expected}");
            }
            let mut rectified = x.clone();
            isa.scope(|| relu(&mut rectified));
            assert!(x.iter().zip(&rectified).all(|(&x, &y)| y == x.max(0.0)), "{isa:?}");
        }
    }
}
