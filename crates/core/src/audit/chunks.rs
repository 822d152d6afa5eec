//! Who is looked at together. The head compares all items of a set with each other for all classes, which is meant for
//! some dozens of items. A small collection is one chunk. Of a large one, every chunk has a few items of one class, the
//! classes they resemble, and representatives of those.
//!
//! Representatives are picked evenly, wrong ones too: from picked ones the head would learn that there is no noise. But what
//! is wrong among them is mostly of classes that the chunk has not, so it calls what is wrong an outlier more often than
//! it should. Whoever is as close to the centre of another class as its own items are is therefore taken to be of that class.

use rayon::prelude::*;
use trueshot_nn::products;
use trueshot_nn::relabel::{GramSpace, RelabelOutput};

use super::verdict::Posterior;
use super::{Poll, ScoredItem};
use crate::embeddings::Embeddings;
use crate::error::Result;
use crate::method::TrainedRelabel;
use crate::task::{SupportSet, Task};

/// A collection of at most so many items and classes is one chunk.
const CHUNK_ITEMS: usize = 120;
const CHUNK_CLASSES: usize = 8;
/// Items of a class that are asked about in one chunk.
const ASKED: usize = 10;
/// Others of every class that they are compared with.
const REPRESENTATIVES: usize = 10;
/// Representatives that are kept: a few more than are needed, for some may be asked about themselves.
const WANTED: usize = REPRESENTATIVES + ASKED;
/// Classes every item may belong to besides its own.
const CANDIDATES: usize = 3;
/// Chunks between two progress updates.
pub(super) const CHUNKS_PER_UPDATE: usize = 64;

/// Items that are looked at together; some of them are asked about.
pub(super) struct Chunk {
    /// Numbers of classes in the data.
    classes: Vec<u32>,
    /// Rows of the data; those that are asked about come first.
    rows: Vec<u32>,
    asked: usize,
    /// For those that are asked about in a large collection the class they are closest to besides their own, and how
    /// readily they would be taken for one of its items, from 0 to 1.
    closest: Vec<(u32, f32)>,
}

/// All chunks; every item is asked about in one.
pub(super) struct Chunks(Vec<Chunk>);

impl Chunks {
    pub fn new(data: &Embeddings, poll: &Poll<'_>) -> Result<Self> {
        let classes = data.classes().len();
        if data.len() <= CHUNK_ITEMS && classes <= CHUNK_CLASSES {
            let chunk = Chunk {
                classes: (0..classes as u32).collect(),
                rows: (0..data.len() as u32).collect(),
                asked: data.len(),
                closest: Vec::new(),
            };
            return Ok(Chunks(vec![chunk]));
        }
        let geometry = ClassGeometry::of(data, poll)?;
        let chunks = (0..classes).into_par_iter().map(|class| geometry.chunks(data, class, poll));
        Ok(Chunks(chunks.collect::<Result<Vec<_>>>()?.into_iter().flatten().collect()))
    }

    pub fn all(&self) -> &[Chunk] {
        &self.0
    }
}

impl Chunk {
    /// How many items are asked about.
    pub fn asked(&self) -> usize {
        self.asked
    }

    /// What the head says of those that are asked about, by row.
    pub fn judge(
        &self,
        data: &Embeddings,
        head: &TrainedRelabel,
        neighbours: usize,
    ) -> Result<Vec<(u32, ScoredItem)>> {
        let rows = &self.rows;
        let values = decode(data, rows);
        let place = |row: &u32| {
            let class = data.labels()[*row as usize];
            self.classes.iter().position(|c| *c == class).expect("a chunk has its items' classes") as u32
        };
        let given: Vec<u32> = rows.iter().map(place).collect();
        let support = SupportSet::new(values.chunks_exact(data.dim()).collect(), given, self.classes.len());
        let task = Task::new(support);
        let RelabelOutput { probabilities, weights, .. } = head.judge(&[&task])?.remove(0);
        let nearest = self.neighbours(&task, neighbours);
        let judged = probabilities.chunks_exact(self.classes.len() + 1).zip(nearest).enumerate();
        let judged = judged.map(|(item, (shares, neighbours))| {
            let own = task.support.given()[item] as usize;
            let (&none, classes) = shares.split_last().expect("a share for none");
            let classes = self.classes.iter().copied().zip(classes.iter().copied()).collect();
            let mut posterior = Posterior::new(self.classes[own], classes, none, data.classes().len());
            if let Some(&(class, readiness)) = self.closest.get(item) {
                posterior.prefer(class, readiness);
            }
            let weight = weights[own * rows.len() + item] * task.support.members()[own].len() as f32;
            (rows[item], ScoredItem { posterior, weight, neighbours })
        });
        Ok(judged.collect())
    }

    /// For every item those most like it: rows and similarities.
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
        space.gram().chunks_exact(items).enumerate().take(self.asked).map(of_item).collect()
    }
}

/// Where the classes of a large collection lie.
struct ClassGeometry {
    mean: Vec<f32>,
    /// One a class, of unit length, in the space minus the mean.
    centres: Vec<Vec<f32>>,
    /// Of every class rows from its beginning to its end.
    representatives: Vec<Vec<u32>>,
    /// The cosines of the better part of every class with its centre, the smallest first.
    usual: Vec<Vec<f32>>,
}

impl ClassGeometry {
    fn of(data: &Embeddings, poll: &Poll<'_>) -> Result<Self> {
        let count = data.classes().len();
        let means = of_classes(count, poll, |class| Ok(mean_of(data, class)))?;
        let mut mean = vec![0.0; data.dim()];
        for class in &means {
            mean.iter_mut().zip(class).for_each(|(mean, value)| *mean += value / count as f32);
        }
        let centres = of_classes(count, poll, |class| centre(data, class, &mean, poll))?;
        let representatives = (0..count).map(|class| spread(data.rows_of(class), WANTED)).collect();
        let mut geometry = ClassGeometry { mean, centres, representatives, usual: Vec::new() };
        geometry.usual = of_classes(count, poll, |class| Ok(geometry.usual_of(data, class)))?;
        Ok(geometry)
    }

    fn usual_of(&self, data: &Embeddings, class: usize) -> Vec<f32> {
        let placed = placed(data, data.rows_of(class), &self.mean);
        let mut cosines: Vec<f32> =
            placed.chunks_exact(data.dim()).map(|row| dot(row, &self.centres[class])).collect();
        cosines.sort_by(f32::total_cmp);
        cosines.split_off(cosines.len() / 3)
    }

    /// How readily an item with that cosine to a class's centre would be taken for one of it: fully if a fifth of the
    /// better items is no closer.
    fn readiness(&self, class: u32, cosine: f32) -> f32 {
        let usual = &self.usual[class as usize];
        let no_closer = usual.iter().filter(|&&own| own <= cosine).count();
        (5.0 * no_closer as f32 / usual.len().max(1) as f32).min(1.0)
    }

    /// The chunks in which the items of one class are asked about.
    fn chunks(&self, data: &Embeddings, class: usize, poll: &Poll<'_>) -> Result<Vec<Chunk>> {
        let rows = data.rows_of(class);
        let count = rows.len().div_ceil(ASKED);
        // Neighbours in the file are often alike, wrong ones too: every chunk gets some from everywhere.
        let asked = |chunk: usize| rows.iter().copied().skip(chunk).step_by(count).collect::<Vec<u32>>();
        let chunk = |chunk: usize| {
            poll.check()?;
            Ok(self.chunk(data, class as u32, &asked(chunk)))
        };
        (0..count).map(chunk).collect()
    }

    fn chunk(&self, data: &Embeddings, class: u32, asked: &[u32]) -> Chunk {
        let placed = placed(data, asked, &self.mean);
        let items: Vec<&[f32]> = placed.chunks_exact(data.dim()).collect();
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
            .map(|(item, best)| (best[0], self.readiness(best[0], cosine(best[0], item))));
        let classes = candidates(class, &ranked, &cosine);
        let mut rows = asked.to_vec();
        for &class in &classes {
            let mut others = self.representatives[class as usize].clone();
            others.retain(|row| !asked.contains(row));
            let own = if class == classes[0] { asked.len() } else { 0 };
            rows.extend(spread(&others, REPRESENTATIVES.saturating_sub(own)));
        }
        Chunk { closest: closest.collect(), rows, classes, asked: asked.len() }
    }
}

/// Something of every class, on all threads.
fn of_classes<T: Send>(
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

/// The class itself and those that its items resemble most: first everybody's first choice, among equal ranks those that are
/// closest.
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
    let placed = placed(data, rows, mean);
    let items: Vec<&[f32]> = placed.chunks_exact(data.dim()).collect();
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

/// So many of some rows, from the first to the last.
fn spread(rows: &[u32], wanted: usize) -> Vec<u32> {
    let wanted = wanted.min(rows.len());
    (0..wanted).map(|n| rows[n * rows.len() / wanted]).collect()
}

fn mean_of(data: &Embeddings, class: usize) -> Vec<f32> {
    let rows = data.rows_of(class);
    let values = decode(data, rows);
    let items: Vec<&[f32]> = values.chunks_exact(data.dim()).collect();
    sum(&items, &vec![1.0 / rows.len().max(1) as f32; rows.len()])
}

fn decode(data: &Embeddings, rows: &[u32]) -> Vec<f32> {
    let mut values = vec![0.0; rows.len() * data.dim()];
    for (row, out) in rows.iter().zip(values.chunks_exact_mut(data.dim())) {
        data.features().decode_row(*row as usize, out);
    }
    values
}

/// Rows minus the mean, at unit length.
fn placed(data: &Embeddings, rows: &[u32], mean: &[f32]) -> Vec<f32> {
    let mut values = decode(data, rows);
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
