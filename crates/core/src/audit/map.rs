//! The map of an audit ([`map`]): positions of items in the plane, with similar items close to each other.
//!
//! Collections of up to 1,000 items use exact t-SNE, initialised with the first two principal components. t-SNE
//! compares all pairs, so larger collections use the principal components alone. The order of all computations is fixed
//! by the data: the same items give the same map.

use rayon::prelude::*;
use trueshot_nn::products;

use super::Poll;
use super::rows::centred;
use crate::embeddings::Embeddings;
use crate::error::Result;
use crate::progress::Progress;

/// A position in the plane: x and y.
pub type Point = [f32; 2];

/// The largest collection for t-SNE.
const MAX_TSNE_ITEMS: usize = 1000;
/// Iterations of the power method, which finds the principal components.
const POWER_ITERATIONS: usize = 30;

/// The position of every item, in arbitrary units. `progress` is called in every iteration, so that the work can be
/// stopped.
pub fn map(data: &Embeddings, progress: &dyn Progress) -> Result<Vec<Point>> {
    let poll = Poll::at_end(data, progress);
    // Centred and scaled to unit length, so inner products are cosines.
    let values = centred(data);
    let rows: Vec<&[f32]> = values.chunks_exact(data.dim()).collect();
    let components = components(&rows, &poll)?;
    match rows.len() {
        // Fewer items are too few for the perplexity of t-SNE.
        6..=MAX_TSNE_ITEMS => tsne(&rows, components, &poll),
        _ => Ok(components),
    }
}

/// The projections of every row on the first two principal components, by power iterations from two fixed vectors.
/// `rows` are centred and of unit length.
fn components(rows: &[&[f32]], poll: &Poll<'_>) -> Result<Vec<Point>> {
    let dim = rows[0].len();
    // Any irregular numbers: a start works if it is not orthogonal to the components.
    let start = |seed: usize| -> Vec<f32> {
        (0..dim).map(|column| ((column * 2 + seed) as f32 * 12.9898).sin() + 0.01).collect()
    };
    let mut axes = [start(0), start(1)];
    for _ in 0..POWER_ITERATIONS {
        poll.check()?;
        orthonormal(&mut axes);
        let projections = project(rows, &axes);
        axes = power_iteration(rows, &projections);
    }
    orthonormal(&mut axes);
    for axis in &mut axes {
        // The sign of a component is arbitrary; the largest coefficient is made positive.
        let largest =
            axis.iter().fold(0.0f32, |best, value| if value.abs() > best.abs() { *value } else { best });
        if largest < 0.0 {
            axis.iter_mut().for_each(|value| *value = -*value);
        }
    }
    Ok(project(rows, &axes))
}

/// The inner products of every row with both axes.
fn project(rows: &[&[f32]], axes: &[Vec<f32>; 2]) -> Vec<Point> {
    let views = [axes[0].as_slice(), axes[1].as_slice()];
    let projection = |row: &&[f32]| {
        let mut point = [0.0; 2];
        products::products(&views, &[*row], &mut point);
        point
    };
    rows.par_iter().map(projection).collect()
}

/// One power iteration: the sums of the rows, weighted by their projections on each axis.
fn power_iteration(rows: &[&[f32]], projections: &[Point]) -> [Vec<f32>; 2] {
    let weighted_sum = |axis: usize| {
        let weights: Vec<f32> = projections.iter().map(|point| point[axis]).collect();
        let mut sum = vec![0.0; rows[0].len()];
        products::weighted_sum(rows, &weights, &mut sum);
        sum
    };
    let (first, second) = rayon::join(|| weighted_sum(0), || weighted_sum(1));
    [first, second]
}

/// Scales both axes to unit length, and makes the second one orthogonal to the first.
fn orthonormal(axes: &mut [Vec<f32>; 2]) {
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>();
    let unit = |axis: &mut Vec<f32>| {
        let length = dot(axis, axis).sqrt();
        let scale = if length > 1e-12 { length.recip() } else { 0.0 };
        axis.iter_mut().for_each(|value| *value *= scale);
    };
    let [first, second] = axes;
    unit(first);
    let shared = dot(first, second);
    second.iter_mut().zip(first.iter()).for_each(|(value, first)| *value -= shared * first);
    unit(second);
}

/// Iterations of t-SNE.
const ITERATIONS: usize = 400;
/// In the first iterations, the affinities are multiplied by [`EXAGGERATION`], so that clusters form before the points
/// are spread out (the "early exaggeration" of t-SNE).
const EXAGGERATED_ITERATIONS: usize = 120;
const EXAGGERATION: f32 = 12.0;

/// Exact t-SNE with momentum and adaptive gains (van der Maaten and Hinton, "Visualizing Data using t-SNE", 2008), from
/// the given points. The momenta 0.5 and 0.8 and the gains are those of that paper and of its authors' program.
fn tsne(rows: &[&[f32]], start: Vec<Point>, poll: &Poll<'_>) -> Result<Vec<Point>> {
    let items = rows.len();
    let affinities = affinities(rows);
    // Start with a root mean square of 0.01 along x: small compared with the result.
    let spread = (start.iter().map(|point| point[0] * point[0]).sum::<f32>() / items as f32).sqrt();
    let scale = if spread > 0.0 { 1e-2 / spread } else { 0.0 };
    let mut points: Vec<Point> = start.iter().map(|point| point.map(|value| value * scale)).collect();
    let mut velocities = vec![[0.0f32; 2]; items];
    let mut gains = vec![[1.0f32; 2]; items];
    // The learning rate is the default of scikit-learn, whose minimum is 50 instead of 12.
    let rate = (items as f32 / EXAGGERATION / 4.0).max(12.0);
    for iteration in 0..ITERATIONS {
        poll.check()?;
        let (exaggeration, momentum) =
            if iteration < EXAGGERATED_ITERATIONS { (EXAGGERATION, 0.5) } else { (1.0, 0.8) };
        let gradients = gradients(&points, &affinities, exaggeration);
        for item in 0..items {
            for axis in 0..2 {
                let (gradient, velocity) = (gradients[item][axis], &mut velocities[item][axis]);
                let gain = &mut gains[item][axis];
                // The velocity points against the gradient. Equal signs mean that the gradient has turned: then steps
                // become shorter, and otherwise longer.
                *gain =
                    if (gradient > 0.0) == (*velocity > 0.0) { (*gain * 0.8).max(0.01) } else { *gain + 0.2 };
                *velocity = momentum * *velocity - rate * *gain * gradient;
                points[item][axis] += *velocity;
            }
        }
    }
    Ok(points)
}

/// The symmetric affinities of t-SNE, `[items, items]`, which sum to 1: large for similar rows. The perplexity is the
/// effective number of neighbours of an item: the exponential of the entropy of its affinities. It is 30 here, or a
/// third of the other items if that is less.
fn affinities(rows: &[&[f32]]) -> Vec<f32> {
    let items = rows.len();
    let perplexity = 30.0f32.min((items - 1) as f32 / 3.0);
    // Row by row, the affinities of all items to one item, which sum to 1 per row.
    let mut conditional = vec![0.0; items * items];
    conditional.par_chunks_exact_mut(items).enumerate().for_each(|(item, out)| {
        products::products(rows, &[rows[item]], out);
        // Squared distances of rows of unit length.
        let distances: Vec<f32> = out.iter().map(|cosine| (2.0 - 2.0 * cosine).max(0.0)).collect();
        conditional_affinities(&distances, item, perplexity.ln(), out);
    });
    // The mean of both directions. All rows sum to `items`, so the division by `items` makes the sum 1.
    let symmetric = |(index, affinity): (usize, &f32)| {
        let (row, column) = (index / items, index % items);
        (affinity + conditional[column * items + row]) / (2.0 * items as f32)
    };
    conditional.iter().enumerate().map(symmetric).collect()
}

/// Writes to `out` the Gaussian weights `exp(-precision * distance)` of all items, seen from `item`, scaled to sum 1.
/// `distances` are the squared distances of all items from `item`. The precision is found by bisection, so that the
/// weights have the given entropy. The smallest distance is subtracted from all, which changes no scaled weight but
/// keeps their sum above 0.
fn conditional_affinities(distances: &[f32], item: usize, entropy: f32, out: &mut [f32]) {
    let nearest = distances
        .iter()
        .enumerate()
        .filter(|(other, _)| *other != item)
        .map(|(_, d)| *d)
        .fold(f32::MAX, f32::min);
    let (mut low, mut high, mut precision) = (0.0f32, f32::INFINITY, 1.0f32);
    for _ in 0..50 {
        let (mut total, mut weighted) = (0.0, 0.0);
        for (other, (out, distance)) in out.iter_mut().zip(distances).enumerate() {
            *out = if other == item { 0.0 } else { (-(distance - nearest) * precision).exp() };
            total += *out;
            weighted += *out * (distance - nearest);
        }
        out.iter_mut().for_each(|value| *value /= total);
        // The entropy of the scaled weights: `total` is the sum of the weights before scaling, and `weighted / total`
        // the mean of `distance - nearest`.
        let current = total.ln() + precision * weighted / total;
        if (current - entropy).abs() < 1e-4 {
            break;
        }
        if current > entropy {
            low = precision
        } else {
            high = precision
        }
        precision = if high.is_finite() { (low + high) / 2.0 } else { precision * 2.0 };
    }
}

/// The gradient of the t-SNE objective (the Kullback-Leibler divergence of the similarities in the plane from the
/// affinities) at every point `a`: the sum over all points `b` of `4 (p - s / S) s (a - b)`, with the affinity `p`
/// times `exaggeration`, the similarity `s = 1 / (1 + d^2)` for the distance `d`, and the sum `S` of all similarities.
fn gradients(points: &[Point], affinities: &[f32], exaggeration: f32) -> Vec<Point> {
    let items = points.len();
    let similarity = |a: Point, b: Point| {
        let (x, y) = (a[0] - b[0], a[1] - b[1]);
        1.0 / (1.0 + x * x + y * y)
    };
    // The sum over all pairs, without those of a point with itself, whose similarity is 1.
    let sums: Vec<f32> =
        points.par_iter().map(|a| points.iter().map(|b| similarity(*a, *b)).sum::<f32>() - 1.0).collect();
    let total: f32 = sums.iter().sum::<f32>().max(1e-12);
    let gradient = |(a, affinities): (&Point, &[f32])| {
        let mut gradient = [0.0; 2];
        for (b, affinity) in points.iter().zip(affinities) {
            let similarity = similarity(*a, *b);
            let force = 4.0 * (exaggeration * affinity - similarity / total) * similarity;
            gradient[0] += force * (a[0] - b[0]);
            gradient[1] += force * (a[1] - b[1]);
        }
        gradient
    };
    points.par_iter().zip(affinities.par_chunks_exact(items)).map(gradient).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Clusters in 12 dimensions, each with `items` items.
    fn clusters(clusters: usize, items: usize) -> Embeddings {
        let scatter = |row: usize, column: usize| ((row * 37 + column * 101) as f32 * 0.7).sin() * 0.4;
        let value = |row: usize, column: usize| {
            let centre = if row / items == column % clusters { 2.0 } else { 0.0 };
            centre + scatter(row, column)
        };
        let values =
            (0..clusters * items).flat_map(|row| (0..12).map(move |column| value(row, column))).collect();
        let labels = (0..clusters * items).map(|row| format!("{}", row / items)).collect();
        Embeddings::from_rows(values, 12, labels).unwrap()
    }

    /// The share of points whose nearest point is of the same class.
    fn nearest_neighbour_accuracy(data: &Embeddings, points: &[Point]) -> f64 {
        let distance = |a: Point, b: Point| (a[0] - b[0]).powi(2) + (a[1] - b[1]).powi(2);
        let nearest = |item: usize| {
            let others = (0..points.len()).filter(|other| *other != item);
            others.min_by(|a, b| {
                distance(points[item], points[*a]).total_cmp(&distance(points[item], points[*b]))
            })
        };
        let same = |item: &usize| data.labels()[*item] == data.labels()[nearest(*item).unwrap()];
        (0..points.len()).filter(same).count() as f64 / points.len() as f64
    }

    #[test]
    fn similar_items_lie_close_together() {
        let data = clusters(6, 12);
        let points = map(&data, &()).unwrap();
        assert!(points.iter().flatten().all(|value| value.is_finite()));
        let accuracy = nearest_neighbour_accuracy(&data, &points);
        assert!(accuracy > 0.95, "{accuracy}");
    }

    #[test]
    fn the_map_is_the_same_with_any_number_of_threads() {
        let data = clusters(4, 10);
        let with = |threads| {
            rayon::ThreadPoolBuilder::new()
                .num_threads(threads)
                .build()
                .unwrap()
                .install(|| map(&data, &()).unwrap())
        };
        assert_eq!(with(1), with(3));
    }

    #[test]
    fn few_many_and_equal_items_have_finite_positions() {
        let equal =
            Embeddings::from_rows(vec![1.0; 40], 4, (0..10).map(|row| format!("{}", row / 5)).collect())
                .unwrap();
        for data in [clusters(2, 1), clusters(2, 600), equal] {
            let points = map(&data, &()).unwrap();
            assert_eq!(points.len(), data.len());
            assert!(points.iter().flatten().all(|value| value.is_finite()));
        }
    }
}
