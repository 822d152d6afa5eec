//! Random Fourier features ([`waves`]): a linear regression on them approximates a kernel regression, so it can follow
//! boundaries between classes that are not planes (Rahimi and Recht, "Random Features for Large-Scale Kernel Machines",
//! 2007).
//!
//! A row `x` becomes `cos(w x)` and `sin(w x)` for random vectors `w` from a normal distribution. For rows of unit
//! length, the inner products of the features approximate the kernel `exp(-SCALE (1 - cosine))`. The vectors are the
//! same for all collections, so one item more or less does not change the features of the others, and
//! `bench/peers/audit_evidence.py`, with which the network of the audit was trained, computes the same ones.

use rayon::prelude::*;
use trueshot_nn::products;

/// Number of random vectors `w`, here called frequencies; each gives a cosine and a sine.
const FREQUENCIES: usize = 256;
/// Features per row.
pub(super) const WAVES: usize = 2 * FREQUENCIES;
/// The sharpness of the kernel (see above), which is also the variance of the frequencies.
const SCALE: f32 = 1.5;
/// Rows per task of the thread pool.
const BLOCK: usize = 64;

/// The features of all rows, `[rows][WAVES]`: first the cosines of a row, then its sines. The features of a row have
/// unit length.
pub(super) fn waves(rows: &[&[f32]]) -> Vec<f32> {
    let dim = rows[0].len();
    let frequencies: Vec<f32> =
        (0..FREQUENCIES * dim).into_par_iter().map(|n| SCALE.sqrt() * normal(n as u64)).collect();
    let frequencies: Vec<&[f32]> = frequencies.chunks_exact(dim).collect();
    let length = (FREQUENCIES as f32).sqrt().recip();
    let mut features = vec![0.0; rows.len() * WAVES];
    features.par_chunks_mut(BLOCK * WAVES).zip(rows.par_chunks(BLOCK)).for_each(|(features, rows)| {
        let mut products = vec![0.0; rows.len() * FREQUENCIES];
        products::products(&frequencies, rows, &mut products);
        for (features, products) in features.chunks_exact_mut(WAVES).zip(products.chunks_exact(FREQUENCIES)) {
            let (cosines, sines) = features.split_at_mut(FREQUENCIES);
            for ((cosine, sine), product) in cosines.iter_mut().zip(sines).zip(products) {
                (*sine, *cosine) = (length * product.sin(), length * product.cos());
            }
        }
    });
    features
}

/// The `n`-th of a fixed sequence of numbers from the standard normal distribution (Box-Muller transform).
fn normal(n: u64) -> f32 {
    let radius = (-2.0 * uniform(2 * n).ln()).sqrt();
    (radius * (std::f64::consts::TAU * uniform(2 * n + 1)).cos()) as f32
}

/// The `n`-th of a fixed sequence of uniform numbers between 0 and 1, by the generator SplitMix64.
fn uniform(n: u64) -> f64 {
    let mut mixed = (n + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^= mixed >> 31;
    ((mixed >> 11) as f64 + 0.5) / (1u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_approximate_the_kernel() {
        let angle = |degrees: f32| [degrees.to_radians().cos(), degrees.to_radians().sin()];
        let rows = [0.0, 30.0, 90.0, 180.0].map(angle);
        let views: Vec<&[f32]> = rows.iter().map(|row| &row[..]).collect();
        let features = waves(&views);
        let features: Vec<&[f32]> = features.chunks_exact(WAVES).collect();
        for (row, other) in [(0, 0), (0, 1), (0, 2), (0, 3), (1, 2)] {
            let cosine: f32 = rows[row].iter().zip(&rows[other]).map(|(a, b)| a * b).sum();
            let product: f32 = features[row].iter().zip(features[other]).map(|(a, b)| a * b).sum();
            let kernel = (-SCALE * (1.0 - cosine)).exp();
            assert!((product - kernel).abs() < 0.1, "{row} and {other}: {product}, not {kernel}");
        }
    }
}
