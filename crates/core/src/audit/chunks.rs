//! Splits a collection into chunks of items that the head scores together.
//!
//! The Relabel head compares all items of a set with each other and with all classes, so it is meant for some dozens of
//! items. A small collection is one chunk. In a large one, each chunk has up to [`CHUNK_QUERIES`] query items of one
//! class, the classes that they resemble, and representatives of those classes. Every item is a query in one chunk.
//!
//! Representatives are taken at even distances, wrongly labelled items included: a cleaned selection would look to the
//! head like a collection without noise. Most wrong items among them belong to classes outside the chunk, so the head
//! takes wrong items for outliers too often. To correct this, an item that is as close to the centre of another class as
//! that class's own items moves probability from "none of the classes" to that class.

use rayon::prelude::*;
use trueshot_nn::products;
use trueshot_nn::relabel::{GramSpace, RelabelOutput};

use super::verdict::Posterior;
use super::{Poll, ScoredItem};
use crate::embeddings::Embeddings;
use crate::error::Result;
use crate::method::TrainedRelabel;
use crate::task::{SupportSet, Task};

/// A collection with at most this many items and classes is one chunk.
const CHUNK_ITEMS: usize = 120;
const CHUNK_CLASSES: usize = 8;
/// Query items per chunk.
const CHUNK_QUERIES: usize = 10;
/// Representatives per class in a chunk.
const REPRESENTATIVES: usize = 10;
/// Representatives to select per class: more than a chunk needs, because some may be its queries.
const SELECTED_REPRESENTATIVES: usize = REPRESENTATIVES + CHUNK_QUERIES;
/// Classes besides its own that an item adds to its chunk.
const CANDIDATES: usize = 3;
/// Chunks between two progress updates.
pub(super) const CHUNKS_PER_UPDATE: usize = 64;

/// Items that are scored together. The first [`Chunk::queries`] rows are the queries, the others are representatives.
pub(super) struct Chunk {
    /// Class numbers of the data; the class of the queries comes first.
    classes: Vec<u32>,
    /// Rows of the data, queries first.
    rows: Vec<u32>,
    queries: usize,
    /// Per query the closest class besides its own, and how typical the query would be there, from 0 to 1. Empty if the
    /// collection is one chunk.
    closest: Vec<(u32, f32)>,
}

/// All chunks of a collection. Every item is a query in exactly one.
pub(super) struct Chunks(Vec<Chunk>);

impl Chunks {
    pub fn new(data: &Embeddings, poll: &Poll<'_>) -> Result<Self> {
        let classes = data.classes().len();
        if data.len() <= CHUNK_ITEMS && classes <= CHUNK_CLASSES {
            let chunk = Chunk {
                classes: (0..classes as u32).collect(),
                rows: (0..data.len() as u32).collect(),
                queries: data.len(),
                closest: Vec::new(),
            };
            return Ok(Chunks(vec![chunk]));
        }
        let geometry = ClassGeometry::new(data, poll)?;
        let chunks = (0..classes).into_par_iter().map(|class| geometry.chunks(data, class, poll));
        Ok(Chunks(chunks.collect::<Result<Vec<_>>>()?.into_iter().flatten().collect()))
    }

    pub fn all(&self) -> &[Chunk] {
        &self.0
    }
}

impl Chunk {
    /// The number of query items.
    pub fn queries(&self) -> usize {
        self.queries
    }

    /// Scores the query items; the result has the row of each.
    pub fn score(
        &self,
        data: &Embeddings,
        head: &TrainedRelabel,
        neighbours: usize,
    ) -> Result<Vec<(u32, ScoredItem)>> {
        let rows = &self.rows;
        let values = data.gather(rows);
        let class_index = |row: &u32| {
            let class = data.labels()[*row as usize];
            self.classes.iter().position(|c| *c == class).expect("a chunk has its items' classes") as u32
        };
        let given: Vec<u32> = rows.iter().map(class_index).collect();
        let support = SupportSet::new(values.chunks_exact(data.dim()).collect(), given, self.classes.len());
        let task = Task::new(support);
        let RelabelOutput { probabilities, weights, .. } = head.judge(&[&task])?.remove(0);
        let nearest = self.neighbours(&task, neighbours);
        let scored = probabilities.chunks_exact(self.classes.len() + 1).zip(nearest).enumerate();
        let scored = scored.map(|(item, (shares, neighbours))| {
            let own = task.support.given()[item] as usize;
            let (&none, classes) = shares.split_last().expect("a share for none");
            let classes = self.classes.iter().copied().zip(classes.iter().copied()).collect();
            let mut posterior = Posterior::new(self.classes[own], classes, none, data.classes().len());
            if let Some(&(class, typicality)) = self.closest.get(item) {
                posterior.prefer(class, typicality);
            }
            let weight = weights[own * rows.len() + item] * task.support.members()[own].len() as f32;
            (rows[item], ScoredItem { posterior, weight, neighbours })
        });
        Ok(scored.collect())
    }

    /// Per query the most similar items of the chunk: rows and similarities.
    fn neighbours(&self, task: &Task<'_>, count: usize) -> Vec<Vec<(u32, f32)>> {
        let items = self.rows.len();
        let space = GramSpace::new(task.gram().to_vec(), items, true);
        let of_item = |(item, row): (usize, &[f32])| {
            let mut others: Vec<(u32, f32)> = self.rows.iter().copied().zip(row.iter().copied()).collect();
            others.remove(item);
            others.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
            others.truncate(count);
            others
        };
        space.gram().chunks_exact(items).enumerate().take(self.queries).map(of_item).collect()
    }
}

/// Centres and representatives of the classes of a large collection.
struct ClassGeometry {
    /// The mean of the class means.
    mean: Vec<f32>,
    /// One centre per class, of unit length, after subtraction of the mean.
    centres: Vec<Vec<f32>>,
    /// Per class, rows at even distances.
    representatives: Vec<Vec<u32>>,
    /// Per class the cosines of its items with its centre in ascending order, without the lowest third.
    typical_cosines: Vec<Vec<f32>>,
}

impl ClassGeometry {
    fn new(data: &Embeddings, poll: &Poll<'_>) -> Result<Self> {
        let count = data.classes().len();
        let means = per_class(count, poll, |class| Ok(mean_of(data, class)))?;
        let mut mean = vec![0.0; data.dim()];
        for class in &means {
            mean.iter_mut().zip(class).for_each(|(mean, value)| *mean += value / count as f32);
        }
        let centres = per_class(count, poll, |class| centre(data, class, &mean, poll))?;
        let representatives =
            (0..count).map(|class| spread(data.rows_of(class), SELECTED_REPRESENTATIVES)).collect();
        let mut geometry = ClassGeometry { mean, centres, representatives, typical_cosines: Vec::new() };
        geometry.typical_cosines =
            per_class(count, poll, |class| Ok(geometry.typical_cosines_of(data, class)))?;
        Ok(geometry)
    }

    fn typical_cosines_of(&self, data: &Embeddings, class: usize) -> Vec<f32> {
        let centred = centred(data, data.rows_of(class), &self.mean);
        let mut cosines: Vec<f32> =
            centred.chunks_exact(data.dim()).map(|row| dot(row, &self.centres[class])).collect();
        cosines.sort_by(f32::total_cmp);
        cosines.split_off(cosines.len() / 3)
    }

    /// How typical an item with this cosine to the centre would be for a class, from 0 to 1: 1 if at least a fifth of the
    /// typical items are no closer.
    fn typicality(&self, class: u32, cosine: f32) -> f32 {
        let typical_cosines = &self.typical_cosines[class as usize];
        let no_closer = typical_cosines.iter().filter(|&&own| own <= cosine).count();
        (5.0 * no_closer as f32 / typical_cosines.len().max(1) as f32).min(1.0)
    }

    /// The chunks whose queries are the items of one class.
    fn chunks(&self, data: &Embeddings, class: usize, poll: &Poll<'_>) -> Result<Vec<Chunk>> {
        let rows = data.rows_of(class);
        let count = rows.len().div_ceil(CHUNK_QUERIES);
        // Items next to each other in a file are often similar, wrong ones too: every chunk takes items from the whole class.
        let queries = |chunk: usize| rows.iter().copied().skip(chunk).step_by(count).collect::<Vec<u32>>();
        let chunk = |chunk: usize| {
            poll.check()?;
            Ok(self.chunk(data, class as u32, &queries(chunk)))
        };
        (0..count).map(chunk).collect()
    }

    fn chunk(&self, data: &Embeddings, class: u32, queries: &[u32]) -> Chunk {
        let centred = centred(data, queries, &self.mean);
        let items: Vec<&[f32]> = centred.chunks_exact(data.dim()).collect();
        let centres: Vec<&[f32]> = self.centres.iter().map(Vec::as_slice).collect();
        let mut cosines = vec![0.0; items.len() * centres.len()];
        products::products(&items, &centres, &mut cosines);
        let cosine = |class: u32, item: usize| cosines[class as usize * items.len() + item];
        let ranked: Vec<Vec<u32>> = (0..items.len())
            .map(|item| {
                let mut best: Vec<u32> = (0..centres.len() as u32).filter(|&other| other != class).collect();
                best.sort_by(|&a, &b| cosine(b, item).total_cmp(&cosine(a, item)).then(a.cmp(&b)));
                best.truncate(CANDIDATES);
                best
            })
            .collect();
        let closest = ranked
            .iter()
            .enumerate()
            .map(|(item, best)| (best[0], self.typicality(best[0], cosine(best[0], item))));
        let classes = candidates(class, &ranked, &cosine);
        let mut rows = queries.to_vec();
        for &class in &classes {
            let mut others = self.representatives[class as usize].clone();
            others.retain(|row| !queries.contains(row));
            let own = if class == classes[0] { queries.len() } else { 0 };
            rows.extend(spread(&others, REPRESENTATIVES.saturating_sub(own)));
        }
        Chunk { closest: closest.collect(), rows, classes, queries: queries.len() }
    }
}

/// Computes something for every class in parallel.
fn per_class<T: Send>(
    count: usize,
    poll: &Poll<'_>,
    of_class: impl Fn(usize) -> Result<T> + Sync,
) -> Result<Vec<T>> {
    let of_class = |class: usize| {
        poll.check()?;
        of_class(class)
    };
    (0..count).into_par_iter().map(of_class).collect()
}

/// The class of the queries, then the classes they resemble most: ordered by rank in the queries' lists, and by cosine among
/// equal ranks.
fn candidates(class: u32, ranked: &[Vec<u32>], cosine: &impl Fn(u32, usize) -> f32) -> Vec<u32> {
    let mut wanted: Vec<(usize, f32, u32)> = Vec::new();
    for (item, best) in ranked.iter().enumerate() {
        wanted.extend(best.iter().enumerate().map(|(rank, &other)| (rank, -cosine(other, item), other)));
    }
    wanted.sort_by(|a, b| a.0.cmp(&b.0).then(a.1.total_cmp(&b.1)).then(a.2.cmp(&b.2)));
    let mut classes = vec![class];
    for (.., other) in wanted {
        if classes.len() < CHUNK_CLASSES && !classes.contains(&other) {
            classes.push(other);
        }
    }
    classes
}

/// The centre of a class in the space minus the mean, for which what is far from it counts little.
fn centre(data: &Embeddings, class: usize, mean: &[f32], poll: &Poll<'_>) -> Result<Vec<f32>> {
    let rows = data.rows_of(class);
    let centred = centred(data, rows, mean);
    let items: Vec<&[f32]> = centred.chunks_exact(data.dim()).collect();
    let mut centre = unit(&sum(&items, &vec![1.0; items.len()]));
    for _ in 0..3 {
        poll.check()?;
        let weights: Vec<f32> = items.iter().map(|item| dot(item, &centre).max(0.0).powi(2)).collect();
        if weights.iter().sum::<f32>() > 0.0 {
            centre = unit(&sum(&items, &weights));
        }
    }
    Ok(centre)
}

/// Up to `wanted` rows at even distances.
fn spread(rows: &[u32], wanted: usize) -> Vec<u32> {
    let wanted = wanted.min(rows.len());
    (0..wanted).map(|n| rows[n * rows.len() / wanted]).collect()
}

fn mean_of(data: &Embeddings, class: usize) -> Vec<f32> {
    let rows = data.rows_of(class);
    let values = data.gather(rows);
    let items: Vec<&[f32]> = values.chunks_exact(data.dim()).collect();
    sum(&items, &vec![1.0 / rows.len().max(1) as f32; rows.len()])
}

/// The rows after subtraction of the mean, at unit length.
fn centred(data: &Embeddings, rows: &[u32], mean: &[f32]) -> Vec<f32> {
    let mut values = data.gather(rows).into_owned();
    for row in values.chunks_exact_mut(data.dim()) {
        row.iter_mut().zip(mean).for_each(|(value, mean)| *value -= mean);
        let scale = inverse_length(row);
        row.iter_mut().for_each(|value| *value *= scale);
    }
    values
}

fn sum(rows: &[&[f32]], weights: &[f32]) -> Vec<f32> {
    let mut sum = vec![0.0; rows.first().map_or(0, |row| row.len())];
    products::weighted_sum(rows, weights, &mut sum);
    sum
}

fn dot(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn inverse_length(row: &[f32]) -> f32 {
    let length = dot(row, row).sqrt();
    if length > 0.0 { length.recip() } else { 0.0 }
}

fn unit(row: &[f32]) -> Vec<f32> {
    let scale = inverse_length(row);
    row.iter().map(|value| value * scale).collect()
}
