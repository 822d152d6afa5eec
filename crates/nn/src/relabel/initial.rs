//! Fresh parameters.

use super::parts::{Plan, Start};

/// Draws all tensors in order; `random` yields uniform numbers in [0, 1).
pub(super) fn numbers(plan: &Plan, random: &mut dyn FnMut() -> f64) -> Vec<f32> {
    let mut numbers = Vec::with_capacity(plan.layout.len());
    for (tensor, start) in plan.layout.tensors().iter().zip(&plan.starts) {
        let count = tensor.range.len();
        match start {
            Start::Fill(value) => numbers.extend(std::iter::repeat_n(*value as f32, count)),
            Start::Values(values) => numbers.extend(values.iter().map(|&value| value as f32)),
            Start::Uniform(bound) => {
                numbers.extend((0..count).map(|_| (bound * (2.0 * random() - 1.0)) as f32));
            }
            Start::Orthogonal => numbers.extend(orthogonal(tensor.shape[0], tensor.shape[1], random)),
        }
    }
    numbers
}

/// A matrix of rows x columns with orthogonal columns of unit length, or rows where they are fewer: normal numbers,
/// each vector less its part along those before it.
fn orthogonal(rows: usize, columns: usize, random: &mut dyn FnMut() -> f64) -> Vec<f32> {
    let (count, length) = (rows.min(columns), rows.max(columns));
    let mut vectors: Vec<Vec<f64>> = Vec::with_capacity(count);
    while vectors.len() < count {
        let mut vector: Vec<f64> = (0..length).map(|_| normal(random)).collect();
        // Twice, because once leaves what rounding made.
        for _ in 0..2 {
            for other in &vectors {
                let along: f64 = vector.iter().zip(other).map(|(a, b)| a * b).sum();
                vector.iter_mut().zip(other).for_each(|(a, b)| *a -= along * b);
            }
        }
        let size = vector.iter().map(|a| a * a).sum::<f64>().sqrt();
        if size > 1e-6 {
            vector.iter_mut().for_each(|a| *a /= size);
            vectors.push(vector);
        }
    }
    let at =
        |row: usize, column: usize| if rows >= columns { vectors[column][row] } else { vectors[row][column] };
    (0..rows * columns).map(|place| at(place / columns, place % columns) as f32).collect()
}

/// Box and Muller.
fn normal(random: &mut dyn FnMut() -> f64) -> f64 {
    let (radius, angle) = (1.0 - random(), random());
    (-2.0 * radius.ln()).sqrt() * (std::f64::consts::TAU * angle).cos()
}

#[cfg(test)]
mod tests {
    use super::orthogonal;
    use crate::differences::Numbers;

    #[test]
    fn the_shorter_side_of_an_orthogonal_matrix_is_orthogonal() {
        for (rows, columns) in [(9, 4), (4, 9), (5, 5), (1, 3)] {
            let mut numbers = Numbers::new(2);
            let matrix = orthogonal(rows, columns, &mut || numbers.uniform());
            let count = rows.min(columns);
            let at = |vector: usize, place: usize| {
                let (row, column) = if rows >= columns { (place, vector) } else { (vector, place) };
                f64::from(matrix[row * columns + column])
            };
            for i in 0..count {
                for j in 0..count {
                    let product: f64 = (0..rows.max(columns)).map(|place| at(i, place) * at(j, place)).sum();
                    assert!(
                        (product - f64::from(u8::from(i == j))).abs() < 1e-6,
                        "{rows} x {columns}: {i}, {j}"
                    );
                }
            }
        }
    }
}
