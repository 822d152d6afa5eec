//! The method `baseline++` (Chen et al., 2019): a cosine classifier with logits `s cos(w_c, h)` for class c and
//! features h, trained on the support items and their given labels by SGD. It is a baseline without any protection
//! against wrong labels.
//!
//! The weight vector `w_c` of a class starts as a linear combination of the unit-length items (or as a random vector),
//! and every SGD step adds multiples of items to it. So training runs on the coefficients of that combination
//! ([`Combination`]) and on the cosines between items, and a step costs the same whatever the dimension of the
//! features.

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
    transductive: false,
    build: |given: &Parameters| {
        Ok(Box::new(BaselinePlusPlus {
            init: given.choice(
                "init",
                "means or random",
                &[("means", Init::Means), ("random", Init::Random)],
            )?,
            // Above 88, the exponential of a logit overflows.
            scale: given.parsed("scale", "a number above 0 and at most 80", |scale: &f32| {
                *scale > 0.0 && *scale <= 80.0
            })?,
            epochs: given.count("epochs")?,
            batch: given.count("batch")?,
            rate: given.positive("rate")?,
            momentum: given.fraction("momentum")?,
            dampening: given.fraction("dampening")?,
            decay: given.not_negative("decay")?,
        }))
    },
};

/// The weight vectors before training.
#[derive(Clone, Copy, PartialEq)]
enum Init {
    /// The class means.
    Means,
    /// Random vectors, uniform in `±1/sqrt(dim)`.
    Random,
}

struct BaselinePlusPlus {
    init: Init,
    /// s: the factor from cosines to logits.
    scale: f32,
    /// Passes over the support set.
    epochs: usize,
    /// Items per step.
    batch: usize,
    /// Learning rate.
    rate: f32,
    /// The momentum of PyTorch's SGD: the velocity is multiplied by it in every step.
    momentum: f32,
    /// The dampening of PyTorch's SGD: the velocity grows by `1 - dampening` times the gradient.
    dampening: f32,
    /// Weight decay: this times the weight vector is added to the gradient.
    decay: f32,
}

/// A vector in the span of the unit-length items and the random initial vector, stored as its coefficients.
#[derive(Clone)]
struct Combination {
    /// Coefficients of the unit-length items.
    items: Vec<f32>,
    /// Coefficient of the random initial vector; 0 with `init=means`.
    start: f32,
    /// Inner products of this vector with the unit-length items. They follow from the coefficients, and are updated
    /// along with them.
    products: Vec<f32>,
}

impl Combination {
    /// `self = a * self + b * other`
    fn scale_and_add(&mut self, a: f32, b: f32, other: &Combination) {
        let update = |x: &mut [f32], y: &[f32]| {
            x.iter_mut().zip(y).for_each(|(x, y)| *x = a * *x + b * y);
        };
        update(&mut self.items, &other.items);
        update(&mut self.products, &other.products);
        self.start = a * self.start + b * other.start;
    }
}

/// The training state of one class.
struct ClassState {
    /// The weight vector `w_c`.
    weight: Combination,
    /// The momentum buffer of SGD.
    velocity: Combination,
    /// Inner products of the random initial vector with the unit-length items.
    start_products: Vec<f32>,
    /// Squared length of the random initial vector.
    start_squared: f32,
}

impl ClassState {
    /// The length of the weight vector, `|w_c|`.
    fn length(&self) -> f32 {
        let w = &self.weight;
        // With a = sum of coefficients times items, r the random vector and k = w.start, w_c = a + k r and
        // |w_c|^2 = <a, w_c> + k (<a, r> + k <r, r>). 1e-12 keeps |w_c|^2 above 0.
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
        let mut states: Vec<ClassState> = (0..task.support.classes())
            .map(|class| initial_state(task, class, &cosines, &lengths, random.get(class)))
            .collect();
        self.train(task.support.given(), &cosines, &mut states, rng);
        Ok(Fitted { classifier: classifier(task, &states, &lengths, &random), assessments: None })
    }
}

impl BaselinePlusPlus {
    /// Random initial vectors, one per class; empty unless `init=random`.
    fn random_starts(&self, task: &Task<'_>, rng: &mut Rng) -> Vec<Vec<f32>> {
        let dim = task.support.dim();
        let bound = (dim as f32).sqrt().recip();
        let classes = if self.init == Init::Random { task.support.classes() } else { 0 };
        (0..classes).map(|_| (0..dim).map(|_| bound * (2.0 * rng.uniform() - 1.0)).collect()).collect()
    }

    /// Trains the weight vectors in place; `given` are the labels of the items and `cosines` is `[items, items]`.
    fn train(&self, given: &[u32], cosines: &[f32], states: &mut [ClassState], rng: &mut Rng) {
        let mut order: Vec<usize> = (0..given.len()).collect();
        let mut first = true;
        for _ in 0..self.epochs {
            rng.shuffle(&mut order);
            for batch in order.chunks(self.batch) {
                self.step(batch, given, cosines, states, first);
                first = false;
            }
        }
    }

    /// One step of SGD on a batch of item indices; `cosines` is `[items, items]`, and `first` says whether it is the
    /// first step of the training.
    fn step(&self, batch: &[usize], given: &[u32], cosines: &[f32], states: &mut [ClassState], first: bool) {
        // The prefix `d_` marks gradients of the loss.
        let lengths: Vec<f32> = states.iter().map(ClassState::length).collect();
        let d_logits = self.logit_gradients(batch, given, states, &lengths);
        // PyTorch's SGD takes the first gradient whole, whatever the dampening.
        let (momentum, undamped) = if first { (0.0, 1.0) } else { (self.momentum, 1.0 - self.dampening) };
        let n = given.len();
        for ((state, length), d_logits) in
            states.iter_mut().zip(lengths).zip(d_logits.chunks_exact(batch.len()))
        {
            // With respect to w, the gradient of the logit s cos(w, u) of item u is s (u - cos(w, u) w / |w|) / |w|. So
            // the gradient of the loss has a part along each item of the batch, with the coefficients `along_items`,
            // and a part along w, to which weight decay is added.
            let ClassState { weight, velocity, .. } = state;
            let along_items = d_logits.iter().map(|d_logit| self.scale * d_logit / length);
            let along_weight: f32 =
                along_items.clone().zip(batch).map(|(d_item, &item)| d_item * weight.products[item]).sum();
            let decayed = self.decay - along_weight / (length * length);
            velocity.scale_and_add(momentum, undamped * decayed, weight);
            // Adding a multiple of an item changes its coefficient, and the products by multiples of its cosines.
            for (d_item, &item) in along_items.zip(batch) {
                velocity.items[item] += undamped * d_item;
                let row = &cosines[item * n..(item + 1) * n];
                velocity
                    .products
                    .iter_mut()
                    .zip(row)
                    .for_each(|(product, cosine)| *product += undamped * d_item * cosine);
            }
            weight.scale_and_add(1.0, -self.rate, velocity);
        }
    }

    /// The gradient `[classes, batch]` of the mean cross-entropy with respect to the logits: softmax minus the one-hot
    /// target, divided by the batch size.
    fn logit_gradients(
        &self,
        batch: &[usize],
        given: &[u32],
        states: &[ClassState],
        lengths: &[f32],
    ) -> Vec<f32> {
        let mut gradients = vec![0.0; states.len() * batch.len()];
        // `position` is the index of the item in the batch.
        for (position, &item) in batch.iter().enumerate() {
            // Logits lie between -scale and scale, and the scale is at most 80, so the exponential cannot overflow and
            // the maximum need not be subtracted.
            let exp = |(state, length): (&ClassState, &f32)| {
                (self.scale * state.weight.products[item] / length).exp()
            };
            let exps: Vec<f32> = states.iter().zip(lengths).map(exp).collect();
            let total: f32 = exps.iter().sum();
            for (class, exp) in exps.into_iter().enumerate() {
                let target = if class == given[item] as usize { 1.0 } else { 0.0 };
                gradients[class * batch.len() + position] = (exp / total - target) / batch.len() as f32;
            }
        }
        gradients
    }
}

/// Cosines between all items, `[items, items]`, and the lengths of the items; a row of zeros gets length 1.
fn cosines(task: &Task<'_>) -> (Vec<f32>, Vec<f32>) {
    let (gram, n) = (task.gram(), task.support.len());
    let length = |item: usize| if gram[item * n + item] > 0.0 { gram[item * n + item].sqrt() } else { 1.0 };
    let lengths: Vec<f32> = (0..n).map(length).collect();
    let cosine = |index: usize| gram[index] / (lengths[index / n] * lengths[index % n]);
    ((0..n * n).map(cosine).collect(), lengths)
}

/// The state of a class before training: its weight vector is the mean of its items, or the given random vector.
/// `cosines` is `[items, items]`, and `lengths` has the length of each item.
fn initial_state(
    task: &Task<'_>,
    class: usize,
    cosines: &[f32],
    lengths: &[f32],
    random: Option<&Vec<f32>>,
) -> ClassState {
    let n = task.support.len();
    let zero = Combination { items: vec![0.0; n], start: 0.0, products: vec![0.0; n] };
    let mut weight = zero.clone();
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
            // An item is its length times the item of unit length.
            let coefficient = lengths[item as usize] / members.len() as f32;
            weight.items[item as usize] = coefficient;
            let row = &cosines[item as usize * n..][..n];
            weight
                .products
                .iter_mut()
                .zip(row)
                .for_each(|(product, cosine)| *product += coefficient * cosine);
        }
    }
    ClassState { weight, velocity: zero, start_products, start_squared }
}

/// The trained classifier. Coefficients of unit-length items become coefficients of the items themselves. Random
/// initial vectors are no combinations of items, so in that case the classifier has explicit vectors `[classes][dim]`.
fn classifier(task: &Task<'_>, states: &[ClassState], lengths: &[f32], random: &[Vec<f32>]) -> Classifier {
    let item_weights = |state: &ClassState| {
        state.weight.items.iter().zip(lengths).map(|(coefficient, length)| coefficient / length).collect()
    };
    let weights: Vec<Vec<f32>> = states.iter().map(item_weights).collect();
    let mixture = Mixture::across_classes(task, &weights);
    if random.is_empty() {
        return Classifier::Cosine(mixture);
    }
    // The combinations of items, plus each class's remaining part of its initial vector.
    let mut vectors = mixture.vectors(task);
    for ((vector, start), state) in vectors.iter_mut().zip(random).zip(states) {
        vector.iter_mut().zip(start).for_each(|(value, start)| *value += state.weight.start * start);
    }
    Classifier::CosineVectors(vectors)
}
