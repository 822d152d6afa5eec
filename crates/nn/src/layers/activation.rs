//! ReLU and GELU (the exact one, with the error function).

use crate::kernel::kernel;
use crate::real::Real;

kernel! {
    /// `max(x, 0)`, in place.
    pub fn relu<'a, T>(x: &'a mut [T]) {
        for x in x {
            *x = (*x).max(T::ZERO);
        }
    }
}

kernel! {
    /// Turns the gradient of ReLU's output into that of its input, in place; `y` is the output.
    pub fn relu_backward<'a, T>(y: &'a [T], d: &'a mut [T]) {
        for (d, &y) in d.iter_mut().zip(y) {
            *d = if y > T::ZERO { *d } else { T::ZERO };
        }
    }
}

kernel! {
    /// `x P(a normal number is below x)`
    pub fn gelu<'a, T>(x: &'a [T], y: &'a mut [T]) {
        for (y, &x) in y.iter_mut().zip(x) {
            *y = x * below(x);
        }
    }
}

kernel! {
    /// Turns the gradient of GELU's output into that of its input, in place; `x` is the input.
    pub fn gelu_backward<'a, T>(x: &'a [T], d: &'a mut [T]) {
        for (d, &x) in d.iter_mut().zip(x) {
            let density = T::from_f64(0.398_942_280_401_432_7) * (T::from_f64(-0.5) * x * x).exp();
            *d *= below(x) + x * density;
        }
    }
}

/// The normal distribution function.
#[inline(always)]
fn below<T: Real>(x: T) -> T {
    T::from_f64(0.5) * (T::ONE + (x * T::from_f64(std::f64::consts::FRAC_1_SQRT_2)).erf())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::differences::{Numbers, check};
    use crate::isa::Isa;
    use crate::real::dot;

    #[test]
    fn the_gradients_are_those_of_central_differences() {
        let mut numbers = Numbers::new(3);
        let x: Vec<f64> = numbers.doubles(75).iter().map(|x| 4.0 * x).collect();
        let d_y = numbers.doubles(75);
        let isa = Isa::current();
        let (mut y, mut d) = (x.clone(), d_y.clone());
        relu(isa, &mut y);
        relu_backward(isa, &y, &mut d);
        check("relu", &x, &d, |x| {
            let mut y = x.to_vec();
            relu(isa, &mut y);
            dot(&y, &d_y)
        });
        let mut d = d_y.clone();
        gelu_backward(isa, &x, &mut d);
        check("gelu", &x, &d, |x| {
            let mut y = vec![0.0; x.len()];
            gelu(isa, x, &mut y);
            dot(&y, &d_y)
        });
    }

    #[test]
    fn single_precision_agrees_with_double_on_every_instruction_set() {
        let x: Vec<f32> = (-400..400).map(|i| i as f32 / 50.0).collect();
        for isa in Isa::ALL.into_iter().filter(|isa| isa.is_usable()) {
            let mut y = vec![0.0; x.len()];
            gelu(isa, &x, &mut y);
            for (&x, &y) in x.iter().zip(&y) {
                let expected = f64::from(x) * below(f64::from(x));
                assert!((f64::from(y) - expected).abs() < 3e-6, "{isa:?} at {x}: {y} and {expected}");
            }
        }
    }
}
