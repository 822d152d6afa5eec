//! The method `rnnp` (Mazumder et al., 2021): a query gets the class of the nearest centre. Centres start at the class
//! means of the support items and are refined by k-means over the items and their hybrids.
//!
//! A hybrid is a mixture of two items with the same given label. During k-means, items and hybrids are assigned to the
//! nearest centre whatever their labels, so an item under a wrong label can move to the class it resembles. Items,
//! hybrids and centres are all linear combinations of the support items, so k-means runs on their coefficients and the
//! Gram matrix (the inner products of the items) instead of on vectors.

use trueshot_nn::products::short_dot;

use super::registry::{MethodInfo, Parameter, Parameters};
use super::{Fitted, ItemAssessment, Method};
use crate::classifier::{Classifier, Mixture};
use crate::error::Result;
use crate::rng::Rng;
use crate::task::Task;

pub(super) const INFO: MethodInfo = MethodInfo {
    name: "rnnp",
    summary: "class means refined by k-means over items and mixtures of two items",
    parameters: &[
        Parameter { name: "share", default: "0.8", meaning: "share of the first item in a mixture of two" },
        Parameter { name: "rounds", default: "100", meaning: "maximum number of k-means iterations" },
    ],
    transductive: false,
    build: |given: &Parameters| {
        Ok(Box::new(Rnnp { share: given.fraction("share")?, rounds: given.count("rounds")? }))
    },
};

struct Rnnp {
    /// Coefficient of the first item in a hybrid.
    share: f32,
    /// Maximum number of k-means iterations.
    rounds: usize,
}

/// A point of k-means: the hybrid `share * first + (1 - share) * second` of two support items, given by their indices.
/// If both are the same item, the point is that item.
struct Point {
    first: usize,
    second: usize,
}

impl Method for Rnnp {
    fn fit(&self, task: &Task<'_>, _rng: &mut Rng) -> Result<Fitted> {
        let points = points(task);
        let products = self.point_products(task, &points);
        let mut centres = class_means(task);
        // The index of the centre of every point. K-means ends when it no longer changes.
        let mut assignment = Vec::new();
        for _ in 0..self.rounds {
            let next = assign(task, &products, &centres);
            if next == assignment {
                break;
            }
            assignment = next;
            self.move_centres(&points, &assignment, &mut centres);
        }
        let assessments = assessments(task, &centres);
        let mixture = Mixture::across_classes(task, &centres);
        Ok(Fitted { classifier: Classifier::Prototypes(mixture), assessments: Some(assessments) })
    }
}

impl Rnnp {
    /// Inner products `[items][points]` of every item with every point.
    fn point_products(&self, task: &Task<'_>, points: &[Point]) -> Vec<Vec<f32>> {
        let (gram, n) = (task.gram(), task.support.len());
        // The products of one item with all points, from its products `row` with all items.
        let mix = |row: &[f32]| {
            let product = |p: &Point| self.share * row[p.first] + (1.0 - self.share) * row[p.second];
            points.iter().map(product).collect()
        };
        gram.chunks_exact(n).map(mix).collect()
    }

    /// Moves every centre (coefficients `[items]`) to the mean of the points assigned to it; a centre without points
    /// keeps its position.
    fn move_centres(&self, points: &[Point], assignment: &[usize], centres: &mut [Vec<f32>]) {
        for (class, centre) in centres.iter_mut().enumerate() {
            let count = assignment.iter().filter(|&&assigned| assigned == class).count();
            if count == 0 {
                continue;
            }
            centre.fill(0.0);
            let weight = 1.0 / count as f32;
            for (point, _) in points.iter().zip(assignment).filter(|&(_, &assigned)| assigned == class) {
                centre[point.first] += self.share * weight;
                centre[point.second] += (1.0 - self.share) * weight;
            }
        }
    }
}

/// All ordered pairs of items of the same given class, including an item with itself.
fn points(task: &Task<'_>) -> Vec<Point> {
    let pairs = |members: &Vec<u32>| {
        let ordered = members.iter().flat_map(|&i| members.iter().map(move |&j| (i as usize, j as usize)));
        ordered.map(|(first, second)| Point { first, second }).collect::<Vec<_>>()
    };
    task.support.members().iter().flat_map(pairs).collect()
}

/// The coefficients `[classes][items]` of the class means.
fn class_means(task: &Task<'_>) -> Vec<Vec<f32>> {
    let mean = |members: &Vec<u32>| {
        let mut weights = vec![0.0; task.support.len()];
        members.iter().for_each(|&item| weights[item as usize] = 1.0 / members.len() as f32);
        weights
    };
    task.support.members().iter().map(mean).collect()
}

/// The index of the nearest centre for every point; of several at the same distance, the first. `products` are the
/// inner products `[items][points]`, `centres` the coefficients `[classes][items]`.
fn assign(task: &Task<'_>, products: &[Vec<f32>], centres: &[Vec<f32>]) -> Vec<usize> {
    let points = products[0].len();
    // Distance and index of the nearest centre so far.
    let mut nearest = vec![(f32::INFINITY, 0); points];
    for (class, centre) in centres.iter().enumerate() {
        // |centre|^2 - 2 <centre, point>: the squared distance without |point|^2, which is the same for all centres.
        let mut distances = vec![squared_norm(task, centre); points];
        for (&weight, products) in centre.iter().zip(products).filter(|&(&weight, _)| weight != 0.0) {
            distances.iter_mut().zip(products).for_each(|(distance, p)| *distance -= 2.0 * weight * p);
        }
        for (nearest, distance) in nearest.iter_mut().zip(distances) {
            *nearest = if distance < nearest.0 { (distance, class) } else { *nearest };
        }
    }
    nearest.into_iter().map(|(_, class)| class).collect()
}

/// The squared length of a centre, from its coefficients and the Gram matrix.
fn squared_norm(task: &Task<'_>, centre: &[f32]) -> f32 {
    let rows = task.gram().chunks_exact(task.support.len());
    rows.zip(centre)
        .filter(|&(_, &weight)| weight != 0.0)
        .map(|(row, weight)| weight * short_dot(row, centre))
        .sum()
}

/// Assessments that report, for every item, its coefficient in the centre of its given class times the size of that
/// class, so that 1 is the coefficient of an item in the class mean.
fn assessments(task: &Task<'_>, centres: &[Vec<f32>]) -> Vec<ItemAssessment> {
    let weight = |(item, &class): (usize, &u32)| {
        let members = task.support.members()[class as usize].len() as f32;
        ItemAssessment { weight: centres[class as usize][item] * members, p_wrong: None, decision: None }
    };
    task.support.given().iter().enumerate().map(weight).collect()
}
