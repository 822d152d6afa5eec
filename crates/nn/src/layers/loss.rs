//! The losses that heads are trained with: cross-entropies and distances. Each returns its value times `weight`, and
//! computes the gradient of that product.
//!
//! A head classifies a query by its distance to one vector per class, the prototype ([`prototype_logits`]). `d_x` is
//! the gradient of the loss with respect to x.

use crate::kernel::kernel;
use crate::matmul::{add_scaled, add_weighted_rows};
use crate::real::{LANES, Real, dot, sum_lanes};

/// Mean cross-entropy over rows of logits, which become their gradient in place.
///
/// Shapes: logits `[R, C]`, targets `[R]`.
///
/// # Panics
/// If the number of logits is not a multiple of the number of targets, or a target is not below C.
pub fn cross_entropy<T: Real>(logits: &mut [T], targets: &[u32], weight: T) -> f64 {
    let classes = logits.len() / targets.len().max(1);
    assert_eq!(logits.len(), classes * targets.len(), "one row of logits per target");
    let row_weight = weight / T::from_f64(targets.len().max(1) as f64);
    let mut total = 0.0;
    for (row, &target) in logits.chunks_exact_mut(classes.max(1)).zip(targets) {
        let target = target as usize;
        let max = row.iter().fold(row[0], |max, &logit| logit.max(max));
        let target_logit = row[target] - max;
        let mut sum = T::ZERO;
        for logit in &mut *row {
            *logit = (*logit - max).exp();
            sum += *logit;
        }
        total += (sum.ln() - target_logit).to_f64();
        // The gradient: the probability, minus 1 for the target, times the weight of a row.
        for logit in &mut *row {
            *logit *= row_weight / sum;
        }
        row[target] -= row_weight;
    }
    total * row_weight.to_f64()
}

/// Mean binary cross-entropy of logits of "true"; they become their gradient in place.
///
/// # Panics
/// If there is not one target per logit.
pub fn binary_cross_entropy<T: Real>(logits: &mut [T], targets: &[bool], weight: T) -> f64 {
    assert_eq!(logits.len(), targets.len());
    let row_weight = weight / T::from_f64(targets.len().max(1) as f64);
    let mut total = 0.0;
    for (logit, &target) in logits.iter_mut().zip(targets) {
        let signed = if target { *logit } else { -*logit };
        // ln(1 + e^-signed) as max(-signed, 0) + ln(1 + e^-|signed|), which cannot overflow.
        let exp = (-signed.abs()).exp();
        total += ((-signed).max(T::ZERO) + (T::ONE + exp).ln()).to_f64();
        *logit = row_weight * (logit.sigmoid() - if target { T::ONE } else { T::ZERO });
    }
    total * row_weight.to_f64()
}

/// `weight ‖p - target‖²`; adds to `d_p`, the gradient of `p`. `target` is taken as constant.
pub fn squared_distance<T: Real>(p: &[T], target: &[T], weight: T, d_p: &mut [T]) -> f64 {
    // The gradient of ‖p - target‖² is 2 (p - target).
    weight.to_f64() * squared_distance_and_gradient(p, target, weight + weight, d_p).to_f64()
}

kernel! {
    /// `‖p - target‖²`; adds `factor (p - target)` to the gradient.
    fn squared_distance_and_gradient<'a, T>(p: &'a [T], target: &'a [T], factor: T, d_p: &'a mut [T]) -> T {
        let mut sums = [T::ZERO; LANES];
        for ((p, target), d_p) in p.chunks(LANES).zip(target.chunks(LANES)).zip(d_p.chunks_mut(LANES)) {
            for (((&p, &target), d_p), sum) in p.iter().zip(target).zip(d_p).zip(&mut sums) {
                let difference = p - target;
                *sum += difference * difference;
                *d_p += factor * difference;
            }
        }
        sum_lanes(sums)
    }
}

kernel! {
    /// `-weight cos(p, target)`; adds to the gradient of `p`. 0 if either vector is zero.
    pub fn negative_cosine<'a, T>(p: &'a [T], target: &'a [T], weight: T, d_p: &'a mut [T]) -> f64 {
        let (product, p_square, target_square) = (dot(p, target), dot(p, p), dot(target, target));
        let norms = (p_square * target_square).sqrt();
        if norms <= T::ZERO {
            return 0.0;
        }
        let (target_factor, p_factor) = (weight / norms, weight * product / (norms * p_square));
        for ((d_p, &p), &target) in d_p.iter_mut().zip(p).zip(target) {
            *d_p += p_factor * p - target_factor * target;
        }
        -(weight * product / norms).to_f64()
    }
}

/// Logits of queries by distance to prototypes: `-‖q - p‖² + ‖q‖² = 2 q.p - ‖p‖²`. The term `‖q‖²` is the same for all
/// prototypes, so the softmax over prototypes does not depend on it, and leaving it out saves precision.
///
/// Shapes: Q queries of D numbers, prototypes `[C, D]`, logits `[Q, C]`.
///
/// # Panics
/// If the shapes disagree.
pub fn prototype_logits<T: Real>(queries: &[&[T]], prototypes: &[T], logits: &mut [T]) {
    let Some(dim) = queries.first().map(|query| query.len()) else { return };
    let prototypes: Vec<&[T]> = prototypes.chunks_exact(dim).collect();
    assert_eq!(logits.len(), queries.len() * prototypes.len(), "one logit per query and prototype");
    // The queries are scattered over memory. They are the left rows, because `products` prefetches left rows. The
    // result has one row per right row: `[C, Q]`.
    let mut products = vec![T::ZERO; logits.len()];
    T::products(queries, &prototypes, &mut products);
    let pairs = prototypes.iter().zip(products.chunks_exact(queries.len()));
    for (class, (prototype, products)) in pairs.enumerate() {
        let square = squared_norm(prototype);
        for (logits, &product) in logits.chunks_exact_mut(prototypes.len()).zip(products) {
            logits[class] = product + product - square;
        }
    }
}

/// The backward pass of [`prototype_logits`]: adds `2 sum over q of d_logits[q][c] (q - p_c)` to the gradient of each
/// prototype p_c. Doubles `d_logits` in place.
///
/// # Panics
/// If the shapes disagree.
pub fn prototype_logits_backward<T: Real>(
    queries: &[&[T]],
    prototypes: &[T],
    d_logits: &mut [T],
    d_prototypes: &mut [T],
) {
    let Some(dim) = queries.first().map(|query| query.len()) else { return };
    let classes = prototypes.len() / dim;
    // The sums of the doubled gradients over the queries, one per class.
    let mut totals = vec![T::ZERO; classes];
    for row in d_logits.chunks_exact_mut(classes) {
        for (total, d_logit) in totals.iter_mut().zip(row) {
            *d_logit += *d_logit;
            *total += *d_logit;
        }
    }
    add_weighted_rows(queries, d_logits, d_prototypes);
    for ((total, prototype), d_prototype) in
        totals.iter().zip(prototypes.chunks_exact(dim)).zip(d_prototypes.chunks_exact_mut(dim))
    {
        add_scaled(prototype, -*total, d_prototype);
    }
}

kernel! {
    /// `row . row`
    pub fn squared_norm<'a, T>(row: &'a [T]) -> T {
        dot(row, row)
    }
}

/// Mean cross-entropy of queries, whose true classes are `classes`, under [`prototype_logits`]; adds to the gradient of
/// the prototypes. `logits` is scratch memory for `[Q, C]` numbers, resized as needed; twice the gradient of the logits
/// is left in it.
///
/// # Panics
/// If the shapes disagree or a class has no prototype.
pub fn prototype_cross_entropy<T: Real>(
    queries: &[&[T]],
    classes: &[u32],
    prototypes: &[T],
    weight: T,
    logits: &mut Vec<T>,
    d_prototypes: &mut [T],
) -> f64 {
    let Some(dim) = queries.first().map(|query| query.len()) else { return 0.0 };
    logits.resize(queries.len() * prototypes.len() / dim, T::ZERO);
    prototype_logits(queries, prototypes, logits);
    let loss = cross_entropy(logits, classes, weight);
    prototype_logits_backward(queries, prototypes, logits, d_prototypes);
    loss
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gradient_check::{TestRng, check_gradient};

    #[test]
    fn the_gradients_of_cross_entropies_agree_with_central_differences() {
        let mut rng = TestRng::new(5);
        let logits = rng.f64s(6 * 4);
        let targets = [3, 0, 1, 1, 2, 3];
        let mut d = logits.clone();
        cross_entropy(&mut d, &targets, 0.7);
        check_gradient("cross-entropy", &logits, &d, |at| cross_entropy(&mut at.to_vec(), &targets, 0.7));

        let logits: Vec<f64> = rng.f64s(9).iter().map(|x| 5.0 * x).collect();
        let targets = [true, false, false, true, true, false, true, false, false];
        let mut d = logits.clone();
        binary_cross_entropy(&mut d, &targets, 0.3);
        check_gradient("binary", &logits, &d, |at| binary_cross_entropy(&mut at.to_vec(), &targets, 0.3));
    }

    #[test]
    fn extreme_logits_neither_overflow_nor_lose_precision() {
        let loss = binary_cross_entropy(&mut [200.0f32, -200.0], &[false, true], 1.0);
        assert!((loss - 200.0).abs() < 1e-3, "{loss}");
        let loss = cross_entropy(&mut [80.0f32, -80.0], &[1], 1.0);
        assert!((loss - 160.0).abs() < 1e-3, "{loss}");
    }

    #[test]
    fn the_gradients_of_distances_agree_with_central_differences() {
        let mut rng = TestRng::new(6);
        for dim in [1, 7, 40] {
            let (p, target) = (rng.f64s(dim), rng.f64s(dim));
            let mut d = vec![0.0; dim];
            squared_distance(&p, &target, 1.3, &mut d);
            check_gradient("square", &p, &d, |p| squared_distance(p, &target, 1.3, &mut vec![0.0; dim]));
            let mut d = vec![0.0; dim];
            negative_cosine(&p, &target, 1.3, &mut d);
            check_gradient("cosine", &p, &d, |p| negative_cosine(p, &target, 1.3, &mut vec![0.0; dim]));
        }
    }

    #[test]
    fn the_prototype_loss_is_the_textbook_one_and_its_gradient_agrees_with_central_differences() {
        let mut rng = TestRng::new(7);
        for (count, classes, dim) in [(1, 1, 1), (7, 3, 5), (20, 6, 33)] {
            let prototypes = rng.f64s(classes * dim);
            let owned: Vec<Vec<f64>> = (0..count).map(|_| rng.f64s(dim)).collect();
            let rows: Vec<&[f64]> = owned.iter().map(Vec::as_slice).collect();
            let labels: Vec<u32> = (0..count).map(|_| rng.below(classes) as u32).collect();
            let loss = |prototypes: &[f64], d: &mut [f64]| {
                prototype_cross_entropy(&rows, &labels, prototypes, 0.9, &mut Vec::new(), d)
            };
            let mut d = vec![0.0; prototypes.len()];
            let value = loss(&prototypes, &mut d);
            let textbook: f64 = rows
                .iter()
                .zip(&labels)
                .map(|(row, &label)| {
                    let distance = |c: usize| -> f64 {
                        row.iter().zip(&prototypes[c * dim..]).map(|(a, b)| (a - b) * (a - b)).sum()
                    };
                    distance(label as usize) + (0..classes).map(|c| (-distance(c)).exp()).sum::<f64>().ln()
                })
                .sum();
            assert!((value - 0.9 * textbook / count as f64).abs() < 1e-9);
            check_gradient("prototypes", &prototypes, &d, |at| loss(at, &mut vec![0.0; at.len()]));
        }
    }
}
