//! Positions of the labels at the ends of the lines of a chart.

/// Moves the labels at heights `ideal` apart until they are `gap` apart, keeping their order; none is below `bottom`.
pub(crate) fn spread_labels(ideal: Vec<f64>, gap: f64, bottom: f64) -> Vec<f64> {
    let mut order: Vec<usize> = (0..ideal.len()).collect();
    order.sort_by(|&a, &b| ideal[a].total_cmp(&ideal[b]));
    let mut heights = ideal.clone();
    let mut last = f64::NEG_INFINITY;
    for &label in &order {
        heights[label] = ideal[label].max(last + gap);
        last = heights[label];
    }
    // Labels below the bottom of the chart move up again, together with their neighbours.
    let mut limit = bottom;
    for &label in order.iter().rev() {
        heights[label] = heights[label].min(limit);
        limit = heights[label] - gap;
    }
    heights
}
