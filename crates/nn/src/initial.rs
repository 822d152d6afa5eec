//! What parameters start as.

/// Uniform numbers in [-bound, bound).
pub fn fill_uniform(values: &mut [f32], bound: f64, random: &mut dyn FnMut() -> f64) {
    for value in values {
        *value = (bound * (2.0 * random() - 1.0)) as f32;
    }
}

/// Normal numbers (Box and Muller).
pub fn fill_normal(values: &mut [f32], random: &mut dyn FnMut() -> f64) {
    for value in values {
        *value = normal(random) as f32;
    }
}

fn normal(random: &mut dyn FnMut() -> f64) -> f64 {
    // 1 - u is never 0.
    let radius = (-2.0 * (1.0 - random()).ln()).sqrt();
    radius * (std::f64::consts::TAU * random()).cos()
}

/// The bound of Xavier's uniform numbers.
pub fn xavier(inputs: usize, outputs: usize) -> f64 {
    (6.0 / (inputs + outputs) as f64).sqrt()
}

/// A random matrix (rows x columns) whose columns are orthonormal, or its rows if those are fewer.
///
/// # Panics
/// If `matrix` is not rows x columns long.
pub fn orthogonal(matrix: &mut [f32], rows: usize, columns: usize, random: &mut dyn FnMut() -> f64) {
    assert_eq!(matrix.len(), rows * columns);
    let (count, dim) = (rows.min(columns), rows.max(columns));
    let mut vectors: Vec<Vec<f64>> = Vec::with_capacity(count);
    for _ in 0..count {
        vectors.push(next_direction(&vectors, dim, random));
    }
    for (v, vector) in vectors.iter().enumerate() {
        for (d, &value) in vector.iter().enumerate() {
            let place = if rows >= columns { d * columns + v } else { v * columns + d };
            matrix[place] = value as f32;
        }
    }
}

/// A random direction at right angles to some others (Gram and Schmidt, twice for precision).
fn next_direction(others: &[Vec<f64>], dim: usize, random: &mut dyn FnMut() -> f64) -> Vec<f64> {
    let mut vector: Vec<f64> = (0..dim).map(|_| normal(random)).collect();
    for other in others.iter().chain(others) {
        let share: f64 = vector.iter().zip(other).map(|(a, b)| a * b).sum();
        for (value, other) in vector.iter_mut().zip(other) {
            *value -= share * other;
        }
    }
    let norm = vector.iter().map(|value| value * value).sum::<f64>().sqrt();
    vector.iter_mut().for_each(|value| *value /= norm);
    vector
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::differences::Numbers;

    #[test]
    fn the_shorter_side_of_an_orthogonal_matrix_is_orthonormal() {
        for (rows, columns) in [(40, 7), (7, 40), (12, 12), (1, 1)] {
            let mut numbers = Numbers::new(1);
            let mut matrix = vec![0.0; rows * columns];
            orthogonal(&mut matrix, rows, columns, &mut || numbers.uniform());
            let side = |i: usize, d: usize| {
                f64::from(if rows >= columns { matrix[d * columns + i] } else { matrix[i * columns + d] })
            };
            for i in 0..rows.min(columns) {
                for j in 0..=i {
                    let product: f64 = (0..rows.max(columns)).map(|d| side(i, d) * side(j, d)).sum();
                    assert!((product - if i == j { 1.0 } else { 0.0 }).abs() < 1e-6);
                }
            }
        }
    }

    #[test]
    fn normal_numbers_have_mean_0_and_deviation_1() {
        let (mut numbers, mut values) = (Numbers::new(2), vec![0.0; 50_000]);
        fill_normal(&mut values, &mut || numbers.uniform());
        let mean = values.iter().map(|&v| f64::from(v)).sum::<f64>() / 5e4;
        let square = values.iter().map(|&v| f64::from(v).powi(2)).sum::<f64>() / 5e4;
        assert!(mean.abs() < 0.02 && (square - 1.0).abs() < 0.03, "{mean} {square}");
    }
}
