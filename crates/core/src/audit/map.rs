//! A map: items as points in the plane, those alike near each other.
//!
//! The first two principal components say where classes lie; t-SNE, started from them, pulls neighbours together. It
//! looks at all pairs, so larger collections stay with the components. Everything is computed in an order that the data
//! fixes: the same items give the same map.

use rayon::prelude::*;
use trueshot_nn::products;

use super::Poll;
use super::rows::centred;
use crate::embeddings::Embeddings;
use crate::error::Result;
use crate::progress::Progress;

/// A place on the map.
pub type Point = [f32; 2];

/// Up to so many items neighbours are looked at.
const NEIGHBOURS: usize = 1000;
/// Rounds in which components are turned towards the widest spread.
const TURNS: usize = 30;

/// The place of every item, in no particular scale. `progress` is called after every round, so that the work can be stopped.
pub fn map(data: &Embeddings, progress: &dyn Progress) -> Result<Vec<Point>> {
    let poll = Poll::at_end(data, progress);
    let values = centred(data);
    let rows: Vec<&[f32]> = values.chunks_exact(data.dim()).collect();
    let components = components(&rows, &poll)?;
    match rows.len() {
        0..=5 => Ok(components),
        6..=NEIGHBOURS => attract(&rows, components, &poll),
        _ => Ok(components),
    }
}

/// The first two principal components of every row.
fn components(rows: &[&[f32]], poll: &Poll<'_>) -> Result<Vec<Point>> {
    let dim = rows[0].len();
    // Any start will do that is not at right angles to what is looked for.
    let start = |seed: usize| -> Vec<f32> {
        (0..dim).map(|place| ((place * 2 + seed) as f32 * 12.9898).sin() + 0.01).collect()
    };
    let mut axes = [start(0), start(1)];
    for _ in 0..TURNS {
        poll.check()?;
        orthonormal(&mut axes);
        let placed = project(rows, &axes);
        axes = turned(rows, &placed);
    }
    orthonormal(&mut axes);
    for axis in &mut axes {
        // An axis has no sign; the map should have one.
        let largest =
            axis.iter().fold(0.0f32, |best, value| if value.abs() > best.abs() { *value } else { best });
        if largest < 0.0 {
            axis.iter_mut().for_each(|value| *value = -*value);
        }
    }
    Ok(project(rows, &axes))
}

fn project(rows: &[&[f32]], axes: &[Vec<f32>; 2]) -> Vec<Point> {
    let views = [axes[0].as_slice(), axes[1].as_slice()];
    let place = |row: &&[f32]| {
        let mut point = [0.0; 2];
        products::products(&views, &[*row], &mut point);
        point
    };
    rows.par_iter().map(place).collect()
}

/// Sums of rows by their places on each axis: the axes, turned.
fn turned(rows: &[&[f32]], placed: &[Point]) -> [Vec<f32>; 2] {
    let axis = |axis: usize| {
        let weights: Vec<f32> = placed.iter().map(|point| point[axis]).collect();
        let mut sum = vec![0.0; rows[0].len()];
        products::weighted_sum(rows, &weights, &mut sum);
        sum
    };
    let (first, second) = rayon::join(|| axis(0), || axis(1));
    [first, second]
}

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

/// Rounds of t-SNE, the first of which pull harder.
const ROUNDS: usize = 400;
const HARD_ROUNDS: usize = 120;
const HARDER: f32 = 12.0;

/// Exact t-SNE.
fn attract(rows: &[&[f32]], start: Vec<Point>, poll: &Poll<'_>) -> Result<Vec<Point>> {
    let items = rows.len();
    let wanted = affinities(rows);
    let spread = (start.iter().map(|point| point[0] * point[0]).sum::<f32>() / items as f32).sqrt();
    let scale = if spread > 0.0 { 1e-2 / spread } else { 0.0 };
    let mut points: Vec<Point> = start.iter().map(|point| point.map(|value| value * scale)).collect();
    let mut speeds = vec![[0.0f32; 2]; items];
    let mut gains = vec![[1.0f32; 2]; items];
    let rate = (items as f32 / HARDER / 4.0).max(12.0);
    for round in 0..ROUNDS {
        poll.check()?;
        let (pull, momentum) = if round < HARD_ROUNDS { (HARDER, 0.5) } else { (1.0, 0.8) };
        let slopes = slopes(&points, &wanted, pull);
        for item in 0..items {
            for axis in 0..2 {
                let (slope, speed) = (slopes[item][axis], &mut speeds[item][axis]);
                let gain = &mut gains[item][axis];
                *gain = if (slope > 0.0) == (*speed > 0.0) { (*gain * 0.8).max(0.01) } else { *gain + 0.2 };
                *speed = momentum * *speed - rate * *gain * slope;
                points[item][axis] += *speed;
            }
        }
    }
    Ok(points)
}

/// How much every item wants every other beside it; all together 1.
fn affinities(rows: &[&[f32]]) -> Vec<f32> {
    let items = rows.len();
    let perplexity = 30.0f32.min((items - 1) as f32 / 3.0);
    let mut wanted = vec![0.0; items * items];
    wanted.par_chunks_exact_mut(items).enumerate().for_each(|(item, out)| {
        products::products(rows, &[rows[item]], out);
        let distances: Vec<f32> = out.iter().map(|cosine| (2.0 - 2.0 * cosine).max(0.0)).collect();
        weigh(&distances, item, perplexity.ln(), out);
    });
    let both = |(place, one): (usize, &f32)| {
        let (row, column) = (place / items, place % items);
        (one + wanted[column * items + row]) / (2.0 * items as f32)
    };
    wanted.iter().enumerate().map(both).collect()
}

/// Weights that fall with the distance, as fast as leaves the wanted entropy.
fn weigh(distances: &[f32], item: usize, entropy: f32, out: &mut [f32]) {
    let nearest = distances
        .iter()
        .enumerate()
        .filter(|(other, _)| *other != item)
        .map(|(_, d)| *d)
        .fold(f32::MAX, f32::min);
    let (mut low, mut high, mut sharpness) = (0.0f32, f32::INFINITY, 1.0f32);
    for _ in 0..50 {
        let (mut total, mut mean) = (0.0, 0.0);
        for (other, (out, distance)) in out.iter_mut().zip(distances).enumerate() {
            *out = if other == item { 0.0 } else { (-(distance - nearest) * sharpness).exp() };
            total += *out;
            mean += *out * (distance - nearest);
        }
        out.iter_mut().for_each(|value| *value /= total);
        let found = total.ln() + sharpness * mean / total;
        if (found - entropy).abs() < 1e-4 {
            break;
        }
        if found > entropy {
            low = sharpness
        } else {
            high = sharpness
        }
        sharpness = if high.is_finite() { (low + high) / 2.0 } else { sharpness * 2.0 };
    }
}

/// Where every point is drawn from: away from where it is wanted.
fn slopes(points: &[Point], wanted: &[f32], pull: f32) -> Vec<Point> {
    let items = points.len();
    let near = |a: Point, b: Point| {
        let (x, y) = (a[0] - b[0], a[1] - b[1]);
        1.0 / (1.0 + x * x + y * y)
    };
    let sums: Vec<f32> =
        points.par_iter().map(|a| points.iter().map(|b| near(*a, *b)).sum::<f32>() - 1.0).collect();
    let total: f32 = sums.iter().sum::<f32>().max(1e-12);
    let slope = |(a, wanted): (&Point, &[f32])| {
        let mut slope = [0.0; 2];
        for (b, wanted) in points.iter().zip(wanted) {
            let near = near(*a, *b);
            let force = 4.0 * (pull * wanted - near / total) * near;
            slope[0] += force * (a[0] - b[0]);
            slope[1] += force * (a[1] - b[1]);
        }
        slope
    };
    points.par_iter().zip(wanted.par_chunks_exact(items)).map(slope).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn heaps(heaps: usize, items: usize) -> Embeddings {
        let scatter = |row: usize, column: usize| ((row * 37 + column * 101) as f32 * 0.7).sin() * 0.4;
        let value = |row: usize, column: usize| if row / items == column % heaps { 2.0 } else { 0.0 } + scatter(row, column);
        let values =
            (0..heaps * items).flat_map(|row| (0..12).map(move |column| value(row, column))).collect();
        let labels = (0..heaps * items).map(|row| format!("{}", row / items)).collect();
        Embeddings::from_rows(values, 12, labels).unwrap()
    }

    /// The share of points whose nearest point is of the same class.
    fn order(data: &Embeddings, points: &[Point]) -> f64 {
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
    fn items_that_are_alike_lie_together() {
        let data = heaps(6, 12);
        let points = map(&data, &()).unwrap();
        assert!(points.iter().flatten().all(|value| value.is_finite()));
        assert!(order(&data, &points) > 0.95, "{}", order(&data, &points));
    }

    #[test]
    fn the_map_is_the_same_with_any_number_of_threads() {
        let data = heaps(4, 10);
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
    fn few_many_and_equal_items_have_places_too() {
        let equal =
            Embeddings::from_rows(vec![1.0; 40], 4, (0..10).map(|row| format!("{}", row / 5)).collect())
                .unwrap();
        for data in [heaps(2, 1), heaps(2, 600), equal] {
            let points = map(&data, &()).unwrap();
            assert_eq!(points.len(), data.len());
            assert!(points.iter().flatten().all(|value| value.is_finite()));
        }
    }
}
