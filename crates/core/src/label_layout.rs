//! Positions of the labels that name the lines of a chart at their right ends: [`spread_labels`] keeps them from
//! overlapping.

/// Moves labels apart vertically until they are at least `gap` apart, keeping their order.
///
/// `ideal` are the y coordinates of the ends of the lines, in units of the SVG, in which y grows downwards; no label is
/// moved below `bottom`. Returns the y coordinate of every label, in the order of `ideal`.
pub(crate) fn spread_labels(ideal: Vec<f64>, gap: f64, bottom: f64) -> Vec<f64> {
    let mut order: Vec<usize> = (0..ideal.len()).collect();
    order.sort_by(|&a, &b| ideal[a].total_cmp(&ideal[b]));
    let mut positions = ideal.clone();
    // From top to bottom, every label moves down until it is `gap` below the one before it.
    let mut previous = f64::NEG_INFINITY;
    for &label in &order {
        positions[label] = ideal[label].max(previous + gap);
        previous = positions[label];
    }
    // From bottom to top, labels below the bottom of the chart move up again and push those above them up.
    let mut limit = bottom;
    for &label in order.iter().rev() {
        positions[label] = positions[label].min(limit);
        limit = positions[label] - gap;
    }
    positions
}
