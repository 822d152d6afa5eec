//! Baseline++ (Chen et al., 2019): a cosine classifier `s cos(W_c, h)` trained on the given labels by SGD.
//!
//! W starts as a combination of unit-length items (or a random vector) and SGD only ever adds items to it, so
//! training runs on combinations and cosines: a step costs the same whatever the dimension of the features.

use trueshot_nn::products;

use super::registry::{MethodInfo, Parameter, Parameters};
use super::{Fitted, Method};
use crate::classifier::{Classifier, Mixture};
use crate::error::Result;
use crate::rng::Rng;
use crate::task::Task;

pub(super) const INFO: MethodInfo = MethodInfo {
    name: "baseline++",
    summary: "a cosine classifier trained on the given labels by SGD",
    parameters: &[
        Parameter {
            name: "init",
            default: "means",
            meaning: "'means' (class means) or 'random' (its authors)",
        },
        Parameter { name: "scale", default: "2", meaning: "scale of the cosines" },
        Parameter { name: "epochs", default: "100", meaning: "passes over the support set" },
        Parameter { name: "batch", default: "4", meaning: "batch size" },
        Parameter { name: "rate", default: "0.01", meaning: "learning rate" },
        Parameter { name: "momentum", default: "0.9", meaning: "momentum" },
        Parameter { name: "dampening", default: "0.9", meaning: "dampening of the gradient" },
        Parameter { name: "decay", default: "0.001", meaning: "weight decay" },
    ],
    build: |given: &Parameters| {
        Ok(Box::new(BaselinePlusPlus {
            init: given.choice(
                "init",
                "means or random",
                &[("means", Init::Means), ("random", Init::Random)],
            )?,
            scale: given.positive("scale")?,
            epochs: given.count("epochs")?,
            batch: given.count("batch")?,
            rate: given.positive("rate")?,
            momentum: given.share("momentum")?,
            dampening: given.share("dampening")?,
            decay: given.not_negative("decay")?,
        }))
    },
};

#[derive(Clone, Copy, PartialEq)]
enum Init {
    Means,
    Random,
}

struct BaselinePlusPlus {
    init: Init,
    scale: f32,
    epochs: usize,
    batch: usize,
    rate: f32,
    momentum: f32,
    dampening: f32,
    decay: f32,
}

/// A vector in the span of the unit-length items and the vector W started at.
#[derive(Clone)]
struct Combination {
    /// Coefficients of the unit-length items.
    items: Vec<f32>,
    /// Coefficient of the start.
    start: f32,
    /// Inner products with the unit-length items.
    products: Vec<f32>,
}

impl Combination {
    /// `self = keep * self + add * other`
    fn blend(&mut self, keep: f32, add: f32, other: &Combination) {
        let blend = |mine: &mut [f32], theirs: &[f32]| {
            mine.iter_mut().zip(theirs).for_each(|(mine, theirs)| *mine = keep * *mine + add * theirs);
        };
        blend(&mut self.items, &other.items);
        blend(&mut self.products, &other.products);
        self.start = keep * self.start + add * other.start;
    }
}

/// The classifier of one class while it is trained.
struct Direction {
    weight: Combination,
    velocity: Combination,
    /// Inner products of the start with the unit-length items, and with itself.
    start_products: Vec<f32>,
    start_squared: f32,
}

impl Direction {
    fn length(&self) -> f32 {
        let w = &self.weight;
        let among_items = products::short_dot(&w.items, &w.products);
        let with_start =
            if w.start == 0.0 { 0.0 } else { products::short_dot(&w.items, &self.start_products) };
        (among_items + w.start * (with_start + w.start * self.start_squared)).max(1e-12).sqrt()
    }
}

impl Method for BaselinePlusPlus {
    fn fit(&self, task: &Task<'_>, rng: &mut Rng) -> Result<Fitted> {
        let (cosines, lengths) = cosines(task);
        let random = self.random_starts(task, rng);
        let mut directions: Vec<Direction> = (0..task.support.classes())
            .map(|class| start(task, class, &cosines, &lengths, random.get(class)))
            .collect();
        self.train(task.support.given(), &cosines, &mut directions, rng);
        Ok(Fitted { classifier: finish(task, &directions, &lengths, &random), assessments: None })
    }
}

impl BaselinePlusPlus {
    fn random_starts(&self, task: &Task<'_>, rng: &mut Rng) -> Vec<Vec<f32>> {
        let dim = task.support.dim();
        let bound = (dim as f32).sqrt().recip();
        let classes = if self.init == Init::Random { task.support.classes() } else { 0 };
        (0..classes).map(|_| (0..dim).map(|_| bound * (2.0 * rng.uniform() - 1.0)).collect()).collect()
    }

    fn train(&self, given: &[u32], cosines: &[f32], directions: &mut [Direction], rng: &mut Rng) {
        let mut order: Vec<usize> = (0..given.len()).collect();
        let mut first = true;
        for _ in 0..self.epochs {
            rng.shuffle(&mut order);
            for batch in order.chunks(self.batch) {
                self.update(batch, given, cosines, directions, first);
                first = false;
            }
        }
    }

    /// One step of SGD on a batch.
    fn update(
        &self,
        batch: &[usize],
        given: &[u32],
        cosines: &[f32],
        directions: &mut [Direction],
        first: bool,
    ) {
        let lengths: Vec<f32> = directions.iter().map(Direction::length).collect();
        let errors = self.errors(batch, given, directions, &lengths);
        // PyTorch's SGD takes the first gradient whole, whatever the dampening.
        let (keep, fresh) = if first { (0.0, 1.0) } else { (self.momentum, 1.0 - self.dampening) };
        let n = given.len();
        for ((direction, length), errors) in
            directions.iter_mut().zip(lengths).zip(errors.chunks_exact(batch.len()))
        {
            // The gradient of s cos(w, u) is s (u - cos(w, u) w / |w|) / |w|: a part along each item of the
            // batch, and a part along w, which weight decay joins.
            let Direction { weight, velocity, .. } = direction;
            let pulls = errors.iter().map(|error| self.scale * error / length);
            let along: f32 = pulls.clone().zip(batch).map(|(pull, &item)| pull * weight.products[item]).sum();
            velocity.blend(keep, fresh * (self.decay - along / (length * length)), weight);
            for (pull, &item) in pulls.zip(batch) {
                velocity.items[item] += fresh * pull;
                let row = &cosines[item * n..(item + 1) * n];
                velocity
                    .products
                    .iter_mut()
                    .zip(row)
                    .for_each(|(product, cosine)| *product += fresh * pull * cosine);
            }
            weight.blend(1.0, -self.rate, velocity);
        }
    }

    /// For every class and item of the batch: the softmax's share minus one if it is the item's class, over
    /// the size of the batch.
    fn errors(&self, batch: &[usize], given: &[u32], directions: &[Direction], lengths: &[f32]) -> Vec<f32> {
        let mut errors = vec![0.0; directions.len() * batch.len()];
        for (place, &item) in batch.iter().enumerate() {
            // Scores lie within the scale, so no maximum needs to be taken out before the exponential.
            let share = |(direction, length): (&Direction, &f32)| {
                (self.scale * direction.weight.products[item] / length).exp()
            };
            let shares: Vec<f32> = directions.iter().zip(lengths).map(share).collect();
            let total: f32 = shares.iter().sum();
            for (class, share) in shares.into_iter().enumerate() {
                let target = if class == given[item] as usize { 1.0 } else { 0.0 };
                errors[class * batch.len() + place] = (share / total - target) / batch.len() as f32;
            }
        }
        errors
    }
}

/// Cosines between all items, and the lengths of the items; those without length keep 1.
fn cosines(task: &Task<'_>) -> (Vec<f32>, Vec<f32>) {
    let (gram, n) = (task.gram(), task.support.len());
    let length = |item: usize| if gram[item * n + item] > 0.0 { gram[item * n + item].sqrt() } else { 1.0 };
    let lengths: Vec<f32> = (0..n).map(length).collect();
    let cosine = |place: usize| gram[place] / (lengths[place / n] * lengths[place % n]);
    ((0..n * n).map(cosine).collect(), lengths)
}

/// A class's direction before training: the mean of its items, or a random vector.
fn start(
    task: &Task<'_>,
    class: usize,
    cosines: &[f32],
    lengths: &[f32],
    random: Option<&Vec<f32>>,
) -> Direction {
    let n = task.support.len();
    let nothing = Combination { items: vec![0.0; n], start: 0.0, products: vec![0.0; n] };
    let mut weight = nothing.clone();
    let (mut start_products, mut start_squared) = (vec![0.0; n], 0.0);
    if let Some(random) = random {
        products::products(task.support.rows(), &[random], &mut start_products);
        start_products.iter_mut().zip(lengths).for_each(|(product, length)| *product /= length);
        start_squared = products::squared_norm(random);
        weight.start = 1.0;
        weight.products.copy_from_slice(&start_products);
    } else {
        let members = &task.support.members()[class];
        for &item in members {
            let share = lengths[item as usize] / members.len() as f32;
            weight.items[item as usize] = share;
            let row = &cosines[item as usize * n..][..n];
            weight.products.iter_mut().zip(row).for_each(|(product, cosine)| *product += share * cosine);
        }
    }
    Direction { weight, velocity: nothing, start_products, start_squared }
}

/// Back from unit-length items to the items themselves.
fn finish(task: &Task<'_>, directions: &[Direction], lengths: &[f32], random: &[Vec<f32>]) -> Classifier {
    let of_items = |d: &Direction| d.weight.items.iter().zip(lengths).map(|(a, length)| a / length).collect();
    let weights: Vec<Vec<f32>> = directions.iter().map(of_items).collect();
    let mixture = Mixture::across_classes(task, &weights);
    if random.is_empty() {
        return Classifier::Cosine(mixture);
    }
    let mut vectors = mixture.vectors(task);
    for ((vector, start), direction) in vectors.iter_mut().zip(random).zip(directions) {
        vector.iter_mut().zip(start).for_each(|(value, start)| *value += direction.weight.start * start);
    }
    Classifier::CosineVectors(vectors)
}
