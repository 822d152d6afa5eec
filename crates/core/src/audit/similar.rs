//! The nearest neighbours of every item by cosine ([`neighbours`]): they vote for classes (`evidence`), are reported to
//! the user, and are the candidates for duplicates (`duplicates`).

use rayon::prelude::*;
use trueshot_nn::products;

use super::Poll;
use crate::error::Result;
use crate::rng::{Purpose, Rng};

/// One matrix product compares this many items with [`OTHERS`] others: the products fit into the second-level cache.
const BLOCK: usize = 64;
/// Rows that the items of a block are compared with at a time.
const OTHERS: usize = 2048;

/// In collections with more items than this, candidates for neighbours are searched in a random projection, and only
/// they are compared exactly: comparing all pairs of 100,000 items in 1280 dimensions takes minutes.
const MAX_EXACT_ITEMS: usize = 20_000;
/// Dimensions of the projection. Rows of fewer dimensions are always compared exactly.
const PROJECTED_DIM: usize = 256;
/// Candidates found in the projection per wanted neighbour.
const CANDIDATES_PER_NEIGHBOUR: usize = 4;

/// For each row up to `count` other rows with their cosines, in descending order. Rows must have unit length; in large
/// collections (see [`MAX_EXACT_ITEMS`]) a neighbour may be missed.
pub(super) fn neighbours(rows: &[&[f32]], count: usize, poll: &Poll<'_>) -> Result<Vec<Vec<(u32, f32)>>> {
    let dim = rows.first().map_or(0, |row| row.len());
    if rows.len() <= MAX_EXACT_ITEMS || dim <= PROJECTED_DIM {
        return search(rows, count, poll);
    }
    let projected = project(rows, dim);
    let projected: Vec<&[f32]> = projected.chunks_exact(PROJECTED_DIM).collect();
    let mut neighbours = search(&projected, CANDIDATES_PER_NEIGHBOUR * count, poll)?;
    // Replace the cosines in the projection by the exact ones, and keep the best.
    neighbours.par_iter_mut().enumerate().for_each(|(row, candidates)| {
        let compared: Vec<&[f32]> = candidates.iter().map(|&(other, _)| rows[other as usize]).collect();
        let mut cosines = vec![0.0; compared.len()];
        products::products(&compared, &[rows[row]], &mut cosines);
        candidates.iter_mut().zip(cosines).for_each(|(candidate, cosine)| candidate.1 = cosine);
        candidates.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        candidates.truncate(count);
        candidates.shrink_to_fit();
    });
    Ok(neighbours)
}

/// The neighbours as in [`neighbours`], by comparing all pairs: for each block of items, the best so far are kept while
/// the products with all other rows are computed.
fn search(rows: &[&[f32]], count: usize, poll: &Poll<'_>) -> Result<Vec<Vec<(u32, f32)>>> {
    let count = count.min(rows.len().saturating_sub(1));
    let blocks: Vec<_> = rows.chunks(BLOCK).enumerate().collect();
    let of_block = |&(block, items): &(usize, &[&[f32]])| {
        poll.check()?;
        let mut best: Vec<Vec<(u32, f32)>> = vec![Vec::with_capacity(count + 1); items.len()];
        let mut cosines = vec![0.0; items.len() * OTHERS];
        for (part, others) in rows.chunks(OTHERS).enumerate() {
            let cosines = &mut cosines[..items.len() * others.len()];
            products::products(others, items, cosines);
            for (item, (best, cosines)) in best.iter_mut().zip(cosines.chunks_exact(others.len())).enumerate()
            {
                let row = block * BLOCK + item;
                // `best` is sorted. Among equal cosines, the lower row number wins.
                for (column, &cosine) in cosines.iter().enumerate() {
                    let other = part * OTHERS + column;
                    let is_better = best.len() < count || best.last().is_some_and(|last| cosine > last.1);
                    if is_better && other != row {
                        let position = best.partition_point(|known| known.1 >= cosine);
                        best.insert(position, (other as u32, cosine));
                        best.truncate(count);
                    }
                }
            }
        }
        Ok(best)
    };
    let by_block: Vec<Vec<Vec<(u32, f32)>>> = blocks.par_iter().map(of_block).collect::<Result<_>>()?;
    Ok(by_block.into_iter().flatten().collect())
}

/// The projections of all rows on [`PROJECTED_DIM`] random directions, scaled to unit length, `[rows][PROJECTED_DIM]`.
/// Cosines stay approximately the same. The directions are the same for all collections.
fn project(rows: &[&[f32]], dim: usize) -> Vec<f32> {
    let mut rng = Rng::for_item(0, Purpose::Projection, 0, 0);
    let directions: Vec<f32> = (0..PROJECTED_DIM * dim).map(|_| rng.uniform() - 0.5).collect();
    let directions: Vec<&[f32]> = directions.chunks_exact(dim).collect();
    let mut projected = vec![0.0; rows.len() * PROJECTED_DIM];
    projected.par_chunks_mut(BLOCK * PROJECTED_DIM).zip(rows.par_chunks(BLOCK)).for_each(|(out, rows)| {
        products::products(&directions, rows, out);
        for row in out.chunks_exact_mut(PROJECTED_DIM) {
            let length = products::squared_norm(row).sqrt();
            row.iter_mut().for_each(|value| *value /= length.max(1e-12));
        }
    });
    projected
}

#[cfg(test)]
mod tests {
    use super::*;

    fn random_rows(count: usize, dim: usize) -> Vec<f32> {
        let mut rng = Rng::for_item(1, Purpose::Projection, 0, 0);
        let mut values: Vec<f32> = (0..count * dim).map(|_| rng.uniform() - 0.5).collect();
        for row in values.chunks_exact_mut(dim) {
            let length = products::squared_norm(row).sqrt();
            row.iter_mut().for_each(|value| *value /= length);
        }
        values
    }

    #[test]
    fn the_nearest_rows_come_first() {
        let values = random_rows(150, 7);
        let rows: Vec<&[f32]> = values.chunks_exact(7).collect();
        let poll = Poll { progress: &(), done: 0, total: 150 };
        let nearest = neighbours(&rows, 4, &poll).unwrap();
        for (row, nearest) in nearest.iter().enumerate() {
            let cosine = |other: usize| rows[row].iter().zip(rows[other]).map(|(a, b)| a * b).sum::<f32>();
            let mut expected: Vec<usize> = (0..150).filter(|&other| other != row).collect();
            expected.sort_by(|&a, &b| cosine(b).total_cmp(&cosine(a)));
            let nearest: Vec<usize> = nearest.iter().map(|&(other, _)| other as usize).collect();
            assert_eq!(nearest, expected[..4]);
        }
    }

    #[test]
    fn two_rows_are_each_others_neighbours() {
        let rows: [&[f32]; 2] = [&[1.0, 0.0], &[0.6, 0.8]];
        let poll = Poll { progress: &(), done: 0, total: 2 };
        assert_eq!(neighbours(&rows, 10, &poll).unwrap(), [vec![(1, 0.6)], vec![(0, 0.6)]]);
    }
}
