//! Vectors as short as a support set: choosing instructions at run time would cost more than it gains.

const LANES: usize = 8;

/// `a . b`, in eight sums that the compiler keeps in vectors of any instruction set.
///
/// # Panics
/// If the lengths differ.
pub fn dot(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    let mut sums = [0.0; LANES];
    let (a_whole, a_rest) = a.as_chunks::<LANES>();
    let (b_whole, b_rest) = b.as_chunks::<LANES>();
    for (a, b) in a_whole.iter().zip(b_whole) {
        for lane in 0..LANES {
            sums[lane] += a[lane] * b[lane];
        }
    }
    for (sum, (a, b)) in sums.iter_mut().zip(a_rest.iter().zip(b_rest)) {
        *sum += a * b;
    }
    sums.iter().sum()
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_dot_product_of_any_length_is_the_sum_of_products() {
        for n in 0..40 {
            let a: Vec<f32> = (0..n).map(|i| i as f32 - 3.0).collect();
            let b: Vec<f32> = (0..n).map(|i| 2.0 * i as f32 + 1.0).collect();
            let expected: f32 = a.iter().zip(&b).map(|(a, b)| a * b).sum();
            assert_eq!(super::dot(&a, &b), expected, "whole numbers of this size are exact");
        }
    }
}
