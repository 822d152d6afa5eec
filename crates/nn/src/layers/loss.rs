//! What heads are trained for. Each loss returns its value times `weight` and hands on the gradient of just that.

use crate::isa::Isa;
use crate::kernel::kernel;
use crate::matmul::add_weighted_rows;
use crate::real::{Real, dot};

/// Mean cross-entropy over rows of logits, which turn into their gradient in place.
///
/// Shapes: logits R x C, targets R.
///
/// # Panics
/// If there are not `targets` times C logits or a target is not below C.
pub fn cross_entropy<T: Real>(logits: &mut [T], targets: &[u32], weight: T) -> f64 {
    let classes = logits.len() / targets.len().max(1);
    assert_eq!(logits.len(), classes * targets.len(), "logits by row");
    let share = weight / T::from_f64(targets.len().max(1) as f64);
    let mut total = 0.0;
    for (row, &target) in logits.chunks_exact_mut(classes.max(1)).zip(targets) {
        let target = target as usize;
        let highest = row.iter().fold(row[0], |highest, &logit| logit.max(highest));
        let right = row[target] - highest;
        let mut sum = T::ZERO;
        for logit in &mut *row {
            *logit = (*logit - highest).exp();
            sum += *logit;
        }
        total += (sum.ln() - right).to_f64();
        for logit in &mut *row {
            *logit *= share / sum;
        }
        row[target] -= share;
    }
    total * share.to_f64()
}

/// Mean binary cross-entropy; the logits turn into their gradient in place.
///
/// # Panics
/// If there are not as many targets as logits.
pub fn binary_cross_entropy<T: Real>(logits: &mut [T], targets: &[bool], weight: T) -> f64 {
    assert_eq!(logits.len(), targets.len());
    let share = weight / T::from_f64(targets.len().max(1) as f64);
    let mut total = 0.0;
    for (logit, &target) in logits.iter_mut().zip(targets) {
        let signed = if target { *logit } else { -*logit };
        // ln(1 + e^-signed), without overflow.
        let small = (-signed.abs()).exp();
        total += ((-signed).max(T::ZERO) + (T::ONE + small).ln()).to_f64();
        *logit = share * (logit.sigmoid() - if target { T::ONE } else { T::ZERO });
    }
    total * share.to_f64()
}

/// `weight ‖p - target‖²`; adds to the gradient of `p`.
pub fn squared_distance<T: Real>(isa: Isa, p: &[T], target: &[T], weight: T, d_p: &mut [T]) -> f64 {
    weight.to_f64() * pull(isa, p, target, weight + weight, d_p).to_f64()
}

kernel! {
    /// The squared distance; adds `factor (p - target)` to the gradient.
    fn pull<'a, T>(p: &'a [T], target: &'a [T], factor: T, d_p: &'a mut [T]) -> T {
        let mut sums = [T::ZERO; crate::real::LANES];
        let step = crate::real::LANES;
        for ((p, target), d_p) in p.chunks(step).zip(target.chunks(step)).zip(d_p.chunks_mut(step)) {
            for (((&p, &target), d_p), sum) in p.iter().zip(target).zip(d_p).zip(&mut sums) {
                let off = p - target;
                *sum += off * off;
                *d_p += factor * off;
            }
        }
        crate::real::sum_lanes(sums)
    }
}

kernel! {
    /// `-weight cos(p, target)`; adds to the gradient of `p`. 0 if either has no direction.
    pub fn negative_cosine<'a, T>(p: &'a [T], target: &'a [T], weight: T, d_p: &'a mut [T]) -> f64 {
        let (product, square, other) = (dot(p, target), dot(p, p), dot(target, target));
        let norms = (square * other).sqrt();
        if norms <= T::ZERO {
            return 0.0;
        }
        let (toward, back) = (weight / norms, weight * product / (norms * square));
        for ((d_p, &p), &target) in d_p.iter_mut().zip(p).zip(target) {
            *d_p += back * p - toward * target;
        }
        -(weight * product / norms).to_f64()
    }
}

/// Minus the squared distances of queries to prototypes, plus the query's own square: a softmax over the
/// prototypes does not see that, and it would cost precision.
///
/// Shapes: Q queries of D numbers, prototypes C x D, `logits` Q x C.
///
/// # Panics
/// If the shapes disagree.
pub fn closeness<T: Real>(isa: Isa, queries: &[&[T]], prototypes: &[T], logits: &mut [T]) {
    let Some(dim) = queries.first().map(|query| query.len()) else { return };
    let rows: Vec<&[T]> = prototypes.chunks_exact(dim).collect();
    assert_eq!(logits.len(), queries.len() * rows.len(), "queries by prototypes");
    // By prototype first: that way round the queries, which may lie anywhere, are called in early.
    let mut products = vec![T::ZERO; logits.len()];
    T::products(isa, queries, &rows, &mut products);
    for (class, (row, products)) in rows.iter().zip(products.chunks_exact(queries.len())).enumerate() {
        let square = square(isa, row);
        for (logits, &product) in logits.chunks_exact_mut(rows.len()).zip(products) {
            logits[class] = product + product - square;
        }
    }
}

/// Adds to the gradient of the prototypes, given that of their closeness to the queries.
///
/// # Panics
/// If the shapes disagree.
pub fn closeness_backward<T: Real>(
    isa: Isa,
    queries: &[&[T]],
    prototypes: &[T],
    d_logits: &mut [T],
    d_prototypes: &mut [T],
) {
    let Some(dim) = queries.first().map(|query| query.len()) else { return };
    let classes = prototypes.len() / dim;
    let mut totals = vec![T::ZERO; classes];
    for row in d_logits.chunks_exact_mut(classes) {
        for (total, d_logit) in totals.iter_mut().zip(row) {
            *d_logit += *d_logit;
            *total += *d_logit;
        }
    }
    add_weighted_rows(isa, queries, d_logits, d_prototypes);
    for ((total, prototype), d_prototype) in
        totals.iter().zip(prototypes.chunks_exact(dim)).zip(d_prototypes.chunks_exact_mut(dim))
    {
        subtract_scaled(isa, *total, prototype, d_prototype);
    }
}

kernel! {
    /// `row . row`
    pub fn square<'a, T>(row: &'a [T]) -> T {
        dot(row, row)
    }
}

kernel! {
    fn subtract_scaled<'a, T>(factor: T, row: &'a [T], out: &'a mut [T]) {
        for (out, &value) in out.iter_mut().zip(row) {
            *out -= factor * value;
        }
    }
}

/// Mean cross-entropy of the queries under minus their squared distances to the prototypes; adds to the gradient
/// of the prototypes. `logits` is room to work in.
///
/// # Panics
/// If the shapes disagree or a class has no prototype.
pub fn queries<T: Real>(
    isa: Isa,
    queries: &[&[T]],
    classes: &[u32],
    prototypes: &[T],
    weight: T,
    logits: &mut Vec<T>,
    d_prototypes: &mut [T],
) -> f64 {
    let Some(dim) = queries.first().map(|query| query.len()) else { return 0.0 };
    logits.resize(queries.len() * prototypes.len() / dim, T::ZERO);
    closeness(isa, queries, prototypes, logits);
    let loss = cross_entropy(logits, classes, weight);
    closeness_backward(isa, queries, prototypes, logits, d_prototypes);
    loss
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::differences::{Numbers, check};

    #[test]
    fn the_gradient_of_cross_entropies_is_that_of_central_differences() {
        let mut numbers = Numbers::new(5);
        let logits = numbers.doubles(6 * 4);
        let targets = [3, 0, 1, 1, 2, 3];
        let mut d = logits.clone();
        cross_entropy(&mut d, &targets, 0.7);
        check("cross-entropy", &logits, &d, |at| cross_entropy(&mut at.to_vec(), &targets, 0.7));

        let logits: Vec<f64> = numbers.doubles(9).iter().map(|x| 5.0 * x).collect();
        let targets = [true, false, false, true, true, false, true, false, false];
        let mut d = logits.clone();
        binary_cross_entropy(&mut d, &targets, 0.3);
        check("binary", &logits, &d, |at| binary_cross_entropy(&mut at.to_vec(), &targets, 0.3));
    }

    #[test]
    fn extreme_logits_cost_what_they_should() {
        let loss = binary_cross_entropy(&mut [200.0f32, -200.0], &[false, true], 1.0);
        assert!((loss - 200.0).abs() < 1e-3, "{loss}");
        let loss = cross_entropy(&mut [80.0f32, -80.0], &[1], 1.0);
        assert!((loss - 160.0).abs() < 1e-3, "{loss}");
    }

    #[test]
    fn the_gradient_of_distances_is_that_of_central_differences() {
        let mut numbers = Numbers::new(6);
        let isa = Isa::current();
        for dim in [1, 7, 40] {
            let (p, target) = (numbers.doubles(dim), numbers.doubles(dim));
            let mut d = vec![0.0; dim];
            squared_distance(isa, &p, &target, 1.3, &mut d);
            check("square", &p, &d, |p| squared_distance(isa, p, &target, 1.3, &mut vec![0.0; dim]));
            let mut d = vec![0.0; dim];
            negative_cosine(isa, &p, &target, 1.3, &mut d);
            check("cosine", &p, &d, |p| negative_cosine(isa, p, &target, 1.3, &mut vec![0.0; dim]));
        }
    }

    #[test]
    fn the_gradient_of_the_query_loss_is_that_of_central_differences() {
        let mut numbers = Numbers::new(7);
        for (count, classes, dim) in [(1, 1, 1), (7, 3, 5), (20, 6, 33)] {
            let prototypes = numbers.doubles(classes * dim);
            let owned: Vec<Vec<f64>> = (0..count).map(|_| numbers.doubles(dim)).collect();
            let rows: Vec<&[f64]> = owned.iter().map(Vec::as_slice).collect();
            let labels: Vec<u32> = (0..count).map(|_| numbers.below(classes) as u32).collect();
            let loss = |prototypes: &[f64], d: &mut [f64]| {
                queries(Isa::current(), &rows, &labels, prototypes, 0.9, &mut Vec::new(), d)
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
            check("prototypes", &prototypes, &d, |at| loss(at, &mut vec![0.0; at.len()]));
        }
    }
}
