//! The method `bd-cspn` (Liu et al., 2020): a query gets the class of the prototype with the largest cosine, after the
//! prototypes (class means) have been rectified with the queries. It is transductive: it uses all queries of a task
//! together.
//!
//! 1. Queries are shifted by the difference between the mean of the items and the mean of the queries.
//! 2. Every shifted query gets the class of the prototype (the class mean) with the largest cosine as its pseudo-label.
//! 3. The prototype of a class becomes the weighted mean of its items and of the shifted queries with its pseudo-label,
//!    with weights `exp(scale * cosine)`, where the cosine is that with the old prototype.
//! 4. A query, not shifted, gets the class of the new prototype with the largest cosine.
//!
//! `scale` is 1 in easyfsl (a PyTorch library of few-shot methods) and 10 in the paper, which also adds only the most
//! confident queries of a class. Prototypes are linear combinations of items and queries, stored as the coefficients of
//! these rows, so everything follows from the inner products of the rows ([`JointGram`]).

use super::centring::{Centre, JointGram, Preparation, PresentClasses, Transductive, dot, inverse_length};
use super::registry::{MethodInfo, Parameter, Parameters};
use crate::classifier::TransductiveScorer;
use crate::task::{Queries, Task};

/// The description of the parameter `scale`, which `laplacianshot` shares.
pub(super) const SCALE: Parameter = Parameter {
    name: "scale",
    default: "1",
    meaning: "factor of the cosines in the weights of items and queries (10 in the paper)",
};

pub(super) const INFO: MethodInfo = MethodInfo {
    name: "bd-cspn",
    summary: "class means rectified with pseudo-labelled queries, by cosine",
    parameters: &[SCALE, Centre::parameter("none"), Preparation::NORMALISE],
    transductive: true,
    build: |given: &Parameters| {
        let scale = f64::from(given.not_negative("scale")?);
        let scorer = BdCspn { scale, preparation: Preparation::parse(given)? };
        Ok(Transductive::boxed(scorer, |scorer| &scorer.preparation))
    },
};

#[derive(Debug)]
struct BdCspn {
    /// Factor of the cosines in the weights.
    scale: f64,
    preparation: Preparation,
}

impl TransductiveScorer for BdCspn {
    fn scores(&self, task: &Task<'_>, queries: &Queries<'_>, products: &[f32]) -> Vec<Vec<f32>> {
        let classes = PresentClasses::new(task);
        let gram = self.preparation.gram(task, queries, products);
        // One over the length of every query, then the cosines `[queries]` of one prototype with all queries.
        let inverse_lengths: Vec<f64> =
            query_rows(&gram).map(|row| inverse_length(gram.at(row, row), 0.0)).collect();
        let cosines = |prototype: Vec<f64>| {
            let with_rows = gram.times(&prototype);
            let prototype_scale = inverse_length(dot(&with_rows, &prototype), 0.0);
            query_rows(&gram)
                .zip(&inverse_lengths)
                .map(|(row, query_scale)| with_rows[row] * query_scale * prototype_scale)
                .collect()
        };
        let scores: Vec<Vec<f64>> =
            rectified_prototypes(&gram, &classes, self.scale).into_iter().map(cosines).collect();
        classes.all_scores(&scores, queries.len())
    }
}

/// The row numbers of a joint Gram matrix that are queries: they follow the items.
pub(super) fn query_rows(gram: &JointGram) -> std::ops::Range<usize> {
    gram.items()..gram.rows()
}

/// The rectified prototypes (steps 1 to 3 above) as coefficients `[classes][rows]` of the items and queries.
pub(super) fn rectified_prototypes(gram: &JointGram, classes: &PresentClasses, scale: f64) -> Vec<Vec<f64>> {
    let shift = shift(gram);
    let cosines = shifted_cosines(gram, &classes.means(gram.rows()), &shift);
    // The pseudo-label of every query.
    let labels: Vec<usize> = query_rows(gram).map(|row| argmax(&cosines, row)).collect();
    let prototype = |(class, items): (usize, &[usize])| {
        let mut coefficients = vec![0.0; gram.rows()];
        for &item in items {
            coefficients[item] = (scale * cosines[class][item]).exp();
        }
        // The queries with this pseudo-label, and the sum of their weights.
        let mut query_weight = 0.0;
        for (row, _) in query_rows(gram).zip(&labels).filter(|&(_, &label)| label == class) {
            coefficients[row] = (scale * cosines[class][row]).exp();
            query_weight += coefficients[row];
        }
        let total: f64 = coefficients.iter().sum();
        // Every query enters the mean with the shift added, so the shift enters once per unit of query weight.
        let shifted = coefficients.iter().zip(&shift).map(|(weight, shift)| weight + query_weight * shift);
        shifted.map(|weight| weight / total).collect()
    };
    classes.members().enumerate().map(prototype).collect()
}

/// The mean of the items minus the mean of the queries, as coefficients `[rows]`.
fn shift(gram: &JointGram) -> Vec<f64> {
    let (of_item, of_query) = (1.0 / gram.items() as f64, -1.0 / gram.queries() as f64);
    (0..gram.rows()).map(|row| if row < gram.items() { of_item } else { of_query }).collect()
}

/// Cosines `[classes][rows]` of prototypes with the items and with the shifted queries; `prototypes` and `shift` are
/// coefficients `[classes][rows]` and `[rows]`.
fn shifted_cosines(gram: &JointGram, prototypes: &[Vec<f64>], shift: &[f64]) -> Vec<Vec<f64>> {
    let with_shift = gram.times(shift);
    let shift_square = dot(&with_shift, shift);
    // One over the length of item x or shifted query q: |q + shift|^2 = |q|^2 + 2 <q, shift> + |shift|^2.
    let inverse_length_of = |row: usize| {
        let square = gram.at(row, row);
        match row < gram.items() {
            true => inverse_length(square, 0.0),
            false => inverse_length(square + 2.0 * with_shift[row] + shift_square, square + shift_square),
        }
    };
    let scales: Vec<f64> = (0..gram.rows()).map(inverse_length_of).collect();
    let cosines = |prototype: &Vec<f64>| {
        let with_rows = gram.times(prototype);
        let prototype_scale = inverse_length(dot(&with_rows, prototype), 0.0);
        // <p, q + shift> = <p, q> + <p, shift>
        let of_shift = dot(&with_rows, shift);
        let product = |row: usize| with_rows[row] + if row < gram.items() { 0.0 } else { of_shift };
        (0..gram.rows()).map(|row| product(row) * scales[row] * prototype_scale).collect()
    };
    prototypes.iter().map(cosines).collect()
}

/// The class with the largest value for one row; of equal values, the first.
fn argmax(values: &[Vec<f64>], row: usize) -> usize {
    (0..values.len()).fold(0, |best, class| if values[class][row] > values[best][row] { class } else { best })
}
