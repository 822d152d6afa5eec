//! Initial values of parameters: uniform, normal and orthogonal. The argument `random` is the caller's generator and
//! always yields uniform numbers in [0, 1).

/// Fills `values` with uniform numbers in [-bound, bound).
pub fn fill_uniform(values: &mut [f32], bound: f64, random: &mut dyn FnMut() -> f64) {
    for value in values {
        *value = (bound * (2.0 * random() - 1.0)) as f32;
    }
}

/// Fills `values` with standard normal numbers.
pub fn fill_normal(values: &mut [f32], random: &mut dyn FnMut() -> f64) {
    for value in values {
        *value = normal(random) as f32;
    }
}

/// A standard normal number, by the Box-Muller transform.
fn normal(random: &mut dyn FnMut() -> f64) -> f64 {
    // 1 - u is never 0, so its logarithm is finite.
    let radius = (-2.0 * (1.0 - random()).ln()).sqrt();
    radius * (std::f64::consts::TAU * random()).cos()
}

/// The bound of Xavier-uniform weights (Glorot and Bengio, 2010), which keeps the variance of activations and gradients
/// about the same from layer to layer.
pub fn xavier_bound(inputs: usize, outputs: usize) -> f64 {
    (6.0 / (inputs + outputs) as f64).sqrt()
}

/// Fills `matrix` (`[rows, columns]`) with a random matrix whose columns are orthonormal. If there are fewer rows
/// than columns, the rows are orthonormal instead.
///
/// # Panics
/// If `matrix` does not have `rows * columns` elements.
pub fn fill_orthogonal(matrix: &mut [f32], rows: usize, columns: usize, random: &mut dyn FnMut() -> f64) {
    assert_eq!(matrix.len(), rows * columns);
    let (count, dim) = (rows.min(columns), rows.max(columns));
    let mut vectors: Vec<Vec<f64>> = Vec::with_capacity(count);
    for _ in 0..count {
        vectors.push(orthogonal_direction(&vectors, dim, random));
    }
    for (v, vector) in vectors.iter().enumerate() {
        for (d, &value) in vector.iter().enumerate() {
            let index = if rows >= columns { d * columns + v } else { v * columns + d };
            matrix[index] = value as f32;
        }
    }
}

/// A random unit vector orthogonal to `previous`, which are unit vectors (Gram-Schmidt, twice for precision).
fn orthogonal_direction(previous: &[Vec<f64>], dim: usize, random: &mut dyn FnMut() -> f64) -> Vec<f64> {
    let mut vector: Vec<f64> = (0..dim).map(|_| normal(random)).collect();
    for unit in previous.iter().chain(previous) {
        let projection: f64 = vector.iter().zip(unit).map(|(a, b)| a * b).sum();
        for (value, component) in vector.iter_mut().zip(unit) {
            *value -= projection * component;
        }
    }
    let norm = vector.iter().map(|value| value * value).sum::<f64>().sqrt();
    vector.iter_mut().for_each(|value| *value /= norm);
    vector
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gradient_check::TestRng;

    #[test]
    fn the_shorter_side_of_an_orthogonal_matrix_is_orthonormal() {
        for (rows, columns) in [(40, 7), (7, 40), (12, 12), (1, 1)] {
            let mut rng = TestRng::new(1);
            let mut matrix = vec![0.0; rows * columns];
            fill_orthogonal(&mut matrix, rows, columns, &mut || rng.uniform());
            // Number `d` of vector `i`: a column of a tall matrix, a row of a wide one.
            let element = |i: usize, d: usize| {
                f64::from(if rows >= columns { matrix[d * columns + i] } else { matrix[i * columns + d] })
            };
            for i in 0..rows.min(columns) {
                for j in 0..=i {
                    let product: f64 = (0..rows.max(columns)).map(|d| element(i, d) * element(j, d)).sum();
                    assert!((product - if i == j { 1.0 } else { 0.0 }).abs() < 1e-6);
                }
            }
        }
    }

    #[test]
    fn normal_numbers_have_mean_0_and_variance_1() {
        let (mut rng, mut values) = (TestRng::new(2), vec![0.0; 50_000]);
        fill_normal(&mut values, &mut || rng.uniform());
        let mean = values.iter().map(|&v| f64::from(v)).sum::<f64>() / 5e4;
        let square = values.iter().map(|&v| f64::from(v).powi(2)).sum::<f64>() / 5e4;
        assert!(mean.abs() < 0.02 && (square - 1.0).abs() < 0.03, "{mean} {square}");
    }
}
