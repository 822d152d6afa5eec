//! The networks that turn evidence into class probabilities, one per round of an audit ([`Scorer`]).
//!
//! `evidence` computes the features of an item with each of its candidate classes (its given class and up to seven
//! others), and [`Scorer::probabilities`] turns them into the probabilities of these classes and of "none of the
//! classes". The same weights score every candidate, so any number of classes is possible.

use crate::error::Result;
use crate::tensors::Tensors;

/// Features of an item with a candidate class, in this order: those of the candidate, those of the item, and
/// differences to the other candidates.
pub(super) const FEATURES: usize = CLASS_FEATURES + ITEM_FEATURES + RELATIVE_FEATURES;
/// Seven scores, the log-probability of the logit model, and three features of the class and the given label.
pub(super) const CLASS_FEATURES: usize = 11;
/// Features that are the same for all candidates of an item, most of them for the whole collection
/// (`Evidence::item_features`).
pub(super) const ITEM_FEATURES: usize = 19;
/// The first of the class features (the scores and the log-probability), minus the best value among the other
/// candidates.
pub(super) const RELATIVE_FEATURES: usize = 8;
/// Hidden units per layer.
const WIDTH: usize = 32;

/// Trained by `bench/measure/train_audit.py` on simulated label noise. The number of rounds of an audit is the number
/// of networks in this file: three.
const BUILT_IN: &[u8] = include_bytes!("../../assets/audit.safetensors");

/// A network with two hidden layers (ReLU) and one output.
struct Network {
    inputs: usize,
    /// Per layer, the weights `[outputs][inputs]` and the biases `[outputs]`.
    layers: Vec<(Vec<f32>, Vec<f32>)>,
}

impl Network {
    /// Reads the tensors `NAME.LAYER.weight` and `NAME.LAYER.bias` of the layers 0, 1 and 2.
    fn new(tensors: &Tensors, name: &str, inputs: usize) -> Result<Self> {
        let layer = |(number, (inputs, outputs)): (usize, (usize, usize))| {
            let values = |kind: &str, count: usize| -> Result<Vec<f32>> {
                Ok(tensors.values(&format!("{name}.{number}.{kind}"), count)?.to_vec())
            };
            Ok((values("weight", inputs * outputs)?, values("bias", outputs)?))
        };
        let shapes = [(inputs, WIDTH), (WIDTH, WIDTH), (WIDTH, 1)];
        Ok(Network { inputs, layers: shapes.into_iter().enumerate().map(layer).collect::<Result<_>>()? })
    }

    /// The output for one vector of features, `[inputs]`.
    fn output(&self, features: &[f32]) -> f32 {
        assert_eq!(features.len(), self.inputs);
        let mut values = features.to_vec();
        for (number, (weights, biases)) in self.layers.iter().enumerate() {
            // ReLU before every layer but the first.
            if number > 0 {
                values.iter_mut().for_each(|value| *value = value.max(0.0));
            }
            let rows = weights.chunks_exact(values.len()).zip(biases);
            values = rows
                .map(|(row, bias)| bias + row.iter().zip(&values).map(|(a, b)| a * b).sum::<f32>())
                .collect();
        }
        values[0]
    }
}

/// The two networks of one round.
pub(super) struct Scorer {
    /// The logit of a candidate class, from its features.
    class: Network,
    /// The logit of "none of the classes", from the pooled features of all candidates.
    none: Network,
}

impl Scorer {
    /// The built-in networks, one for each round.
    pub fn built_in() -> Result<Vec<Scorer>> {
        let tensors = Tensors::read_bytes(BUILT_IN.to_vec(), "the built-in audit model")?;
        let rounds = (0..).take_while(|round| tensors.get(&format!("round{round}.class.0.weight")).is_some());
        let scorer = |round: usize| {
            Ok(Scorer {
                class: Network::new(&tensors, &format!("round{round}.class"), FEATURES)?,
                none: Network::new(&tensors, &format!("round{round}.none"), 3 * FEATURES)?,
            })
        };
        rounds.map(scorer).collect()
    }

    /// The probabilities of the classes whose features are `candidates`, in the same order: the softmax over their
    /// logits and that of "none of the classes", which has the remaining probability. The first candidate must be the
    /// given class.
    pub fn probabilities(&self, candidates: &[[f32; FEATURES]]) -> Vec<f32> {
        let mut logits: Vec<f32> = candidates.iter().map(|features| self.class.output(features)).collect();
        // Maximum and mean of every feature over the candidates, and the features of the given class.
        let mut pooled = Vec::with_capacity(3 * FEATURES);
        let of_feature = |n: usize| candidates.iter().map(move |features| features[n]);
        pooled.extend((0..FEATURES).map(|n| of_feature(n).fold(f32::NEG_INFINITY, f32::max)));
        pooled.extend((0..FEATURES).map(|n| of_feature(n).sum::<f32>() / candidates.len() as f32));
        pooled.extend(candidates[0]);
        logits.push(self.none.output(&pooled));
        // The largest logit is subtracted so that `exp` cannot overflow.
        let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let mut probabilities: Vec<f32> = logits.iter().map(|logit| (logit - largest).exp()).collect();
        let sum: f32 = probabilities.iter().sum();
        // Without that of "none of the classes".
        probabilities.pop();
        probabilities.iter_mut().for_each(|probability| *probability /= sum);
        probabilities
    }
}
