//! Who is looked at together. The head compares all items of a set with each other for all classes, which is meant for
//! some dozens of items. A small collection is one room. Of a large one, every room has a few items of one class, the
//! classes they resemble, and representatives of those.

use rayon::prelude::*;
use trueshot_nn::relabel::{Judgement, Space};
use trueshot_nn::{Isa, products};

use super::Judged;
use super::verdict::Opinion;
use crate::embeddings::Embeddings;
use crate::error::Result;
use crate::method::TrainedRelabel;
use crate::task::{Support, Task};

/// A collection of at most so many items and classes is one room.
const ROOM_ITEMS: usize = 120;
const ROOM_CLASSES: usize = 8;
/// Items of a class that are asked about in one room.
const ASKED: usize = 10;
/// Others of every class that they are compared with.
const REPRESENTATIVES: usize = 10;
/// Classes every item may belong to besides its own.
const CANDIDATES: usize = 3;
/// Rooms between two words to the watcher.
pub(super) const AT_ONCE: usize = 64;

/// Items that are looked at together; some of them are asked about.
pub(super) struct Room {
    /// Numbers of classes in the data.
    classes: Vec<u32>,
    /// Rows of the data; those that are asked about come first.
    rows: Vec<u32>,
    asked: usize,
}

/// All rooms; every item is asked about in one.
pub(super) struct Rooms(Vec<Room>);

impl Rooms {
    pub fn new(data: &Embeddings) -> Self {
        let classes = data.classes().len();
        if data.len() <= ROOM_ITEMS && classes <= ROOM_CLASSES {
            let room = Room {
                classes: (0..classes as u32).collect(),
                rows: (0..data.len() as u32).collect(),
                asked: data.len(),
            };
            return Rooms(vec![room]);
        }
        let layout = Layout::of(data);
        let rooms = (0..classes).into_par_iter().flat_map_iter(|class| layout.rooms(data, class).into_iter());
        Rooms(rooms.collect())
    }

    pub fn all(&self) -> &[Room] {
        &self.0
    }
}

impl Room {
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
    ) -> Result<Vec<(u32, Judged)>> {
        let values = decode(data, &self.rows);
        let rows: Vec<&[f32]> = values.chunks_exact(data.dim()).collect();
        let place = |row: &u32| {
            let class = data.labels()[*row as usize];
            self.classes.iter().position(|c| *c == class).expect("a room has its items' classes") as u32
        };
        let given: Vec<u32> = self.rows.iter().map(place).collect();
        let task = Task::new(Support::new(rows, given, self.classes.len()));
        let Judgement { shares, weights, .. } = head.judge(&[&task])?.remove(0);
        let nearest = self.neighbours(&task, neighbours);
        let judged = shares.chunks_exact(self.classes.len() + 1).zip(nearest).enumerate();
        let judged = judged.take(self.asked).map(|(item, (shares, neighbours))| {
            let own = task.support.given()[item] as usize;
            let (&none, classes) = shares.split_last().expect("a share for none");
            let classes = self.classes.iter().copied().zip(classes.iter().copied()).collect();
            let opinion = Opinion::new(self.classes[own], classes, none, data.classes().len());
            let weight = weights[own * self.rows.len() + item] * task.support.members()[own].len() as f32;
            (self.rows[item], Judged { opinion, weight, neighbours })
        });
        Ok(judged.collect())
    }

    /// For every item those most like it: rows and similarities.
    fn neighbours(&self, task: &Task<'_>, count: usize) -> Vec<Vec<(u32, f32)>> {
        let items = self.rows.len();
        let space = Space::new(task.gram().to_vec(), items, true);
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
struct Layout {
    mean: Vec<f32>,
    /// One a class, of unit length, in the space minus the mean.
    centres: Vec<Vec<f32>>,
    /// Of every class some rows.
    representatives: Vec<Vec<u32>>,
}

impl Layout {
    fn of(data: &Embeddings) -> Self {
        let count = data.classes().len();
        let means: Vec<Vec<f32>> = (0..count).into_par_iter().map(|class| mean_of(data, class)).collect();
        let mut mean = vec![0.0; data.dim()];
        for class in &means {
            mean.iter_mut().zip(class).for_each(|(mean, value)| *mean += value / count as f32);
        }
        let centres = (0..count).into_par_iter().map(|class| centre(data, class, &mean)).collect();
        let representatives = (0..count).map(|class| representatives(data.rows_of(class))).collect();
        Layout { mean, centres, representatives }
    }

    /// The rooms in which the items of one class are asked about.
    fn rooms(&self, data: &Embeddings, class: usize) -> Vec<Room> {
        let rows = data.rows_of(class);
        let count = rows.len().div_ceil(ASKED);
        // Neighbours in the file are often alike, wrong ones too: every room gets some from everywhere.
        let asked = |room: usize| rows.iter().copied().skip(room).step_by(count).collect::<Vec<u32>>();
        (0..count).map(|room| self.room(data, class as u32, &asked(room))).collect()
    }

    fn room(&self, data: &Embeddings, class: u32, asked: &[u32]) -> Room {
        let classes = self.candidates(data, class, asked);
        let mut rows = asked.to_vec();
        for &class in &classes {
            let others = self.representatives[class as usize].iter().filter(|row| !asked.contains(row));
            let wanted = REPRESENTATIVES.saturating_sub(if class == classes[0] { asked.len() } else { 0 });
            rows.extend(others.take(wanted));
        }
        Room { classes, rows, asked: asked.len() }
    }

    /// The class itself and those that its items resemble most.
    fn candidates(&self, data: &Embeddings, class: u32, asked: &[u32]) -> Vec<u32> {
        let placed = placed(data, asked, &self.mean);
        let rows: Vec<&[f32]> = placed.chunks_exact(data.dim()).collect();
        let centres: Vec<&[f32]> = self.centres.iter().map(Vec::as_slice).collect();
        let mut cosines = vec![0.0; rows.len() * centres.len()];
        products::products(Isa::current(), &rows, &centres, &mut cosines);
        let cosine = |class: u32, item: usize| cosines[class as usize * rows.len() + item];
        let others = || (0..self.centres.len() as u32).filter(|&other| other != class);
        let mut wanted: Vec<(usize, f32, u32)> = Vec::new();
        for item in 0..rows.len() {
            let mut best: Vec<u32> = others().collect();
            best.sort_by(|&a, &b| cosine(b, item).total_cmp(&cosine(a, item)).then(a.cmp(&b)));
            let ranked = best.into_iter().take(CANDIDATES).enumerate();
            wanted.extend(ranked.map(|(rank, other)| (rank, -cosine(other, item), other)));
        }
        // First everybody's first choice; among equal ranks those that are closest.
        wanted.sort_by(|a, b| a.0.cmp(&b.0).then(a.1.total_cmp(&b.1)).then(a.2.cmp(&b.2)));
        let mut classes = vec![class];
        for (.., other) in wanted {
            if classes.len() < ROOM_CLASSES && !classes.contains(&other) {
                classes.push(other);
            }
        }
        classes
    }
}

/// The centre of a class in the space minus the mean, for which what is far from it counts little.
fn centre(data: &Embeddings, class: usize, mean: &[f32]) -> Vec<f32> {
    let rows = data.rows_of(class);
    let placed = placed(data, rows, mean);
    let items: Vec<&[f32]> = placed.chunks_exact(data.dim()).collect();
    let mut centre = unit(&sum(&items, &vec![1.0; items.len()]));
    for _ in 0..3 {
        let weights: Vec<f32> = items.iter().map(|item| dot(item, &centre).max(0.0).powi(2)).collect();
        if weights.iter().sum::<f32>() > 0.0 {
            centre = unit(&sum(&items, &weights));
        }
    }
    centre
}

/// Rows of a class from its beginning to its end. Not the best ones: the head takes the noise it sees in one class for that
/// of all, and among well-chosen others no label would look wrong to it.
fn representatives(rows: &[u32]) -> Vec<u32> {
    // A few more than are needed, for some may be asked about themselves.
    let wanted = (REPRESENTATIVES + ASKED).min(rows.len());
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
    products::weighted_sum(Isa::current(), rows, weights, &mut sum);
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
