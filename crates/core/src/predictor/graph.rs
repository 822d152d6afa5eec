//! A classifier as a part of an ONNX graph ([`Predictor::add_to_graph`]), for programs that predict without trueshot.
//! `trueshot export` appends it to the nodes of a backbone.
//!
//! Every step of [`Predictor::predict`] has nodes here, in the same order of operations: the scoring rule, the softmax,
//! the four similarities and the probability of "none of the classes". Results agree up to rounding. Each `add_…`
//! function appends nodes and returns the name of their result (a [`GraphValue`]); comments give its shape, where
//! `batch` is the number of rows.

use serde_json::json;
use trueshot_nn::products;

use super::Predictor;
use super::novelty::{INTERCEPT, MAX_LOG_ODDS, MAX_STANDARDISED, WEIGHTS, unit_rows};
use super::scoring_rule::ScoringRule;
use super::similarity::MEASURES;
use crate::classifier::Classifier;
use crate::embeddings::Embeddings;
use crate::onnx_graph::{Attribute, Axis, ElementType, GraphValue, OnnxGraph};

/// Lower bound of a length that a row is divided by. Only a row of zeros is shorter, and it stays a row of zeros.
const MIN_LENGTH: f32 = 1e-30;

/// The names of the outputs of an exported classifier.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutputNames {
    /// The probabilities of the classes, `[batch, classes]`.
    pub probabilities: String,
    /// The probability of "none of the classes", `[batch]`.
    pub unknown: String,
}

impl Default for OutputNames {
    fn default() -> Self {
        OutputNames { probabilities: "probabilities".into(), unknown: "unknown".into() }
    }
}

impl Predictor {
    /// The classifier as an ONNX model whose input `embedding` is `[batch, dim]`.
    pub fn to_graph(&self) -> OnnxGraph {
        let mut graph = OnnxGraph::new();
        let shape = [Axis::Batch, Axis::Fixed(self.dim())];
        let embedding = graph.input("embedding", ElementType::Float, &shape);
        self.add_to_graph(&mut graph, &embedding, &OutputNames::default(), Axis::Batch);
        graph
    }

    /// Adds the classifier to a graph: from embeddings `[batch, dim]` to two outputs called `names`. `batch` is the
    /// axis of the batch: fixed or not. The metadata of the model gets the names of the classes (`classes`, a JSON
    /// list), the `method` and the `embedder`.
    pub fn add_to_graph(
        &self,
        graph: &mut OnnxGraph,
        embedding: &GraphValue,
        names: &OutputNames,
        batch: Axis,
    ) {
        let scores = self.uncalibrated.rule.add_to_graph(graph, embedding, self.support());
        // Probabilities given that the row belongs to one of the classes, times the probability that it does.
        let if_known = add_softmax(graph, &scores, self.sharpness);
        let unknown = self.add_unknown(graph, embedding);
        let one = graph.floats(&[], &[1.0]);
        let known = graph.node("Sub", &[&one, &unknown], &[]);
        let probabilities = graph.node("Mul", &[&if_known, &known], &[]);
        // From `[batch, 1]` to `[batch]`.
        let rows = graph.integers(&[-1]);
        let unknown = graph.node("Reshape", &[&unknown, &rows], &[]);
        graph.output(&names.probabilities, &probabilities, &[batch, Axis::Fixed(self.classes().len())]);
        graph.output(&names.unknown, &unknown, &[batch]);
        graph.set_metadata("classes", json!(self.classes()).to_string());
        graph.set_metadata("method", self.method());
        if let Some(embedder) = self.embedder() {
            graph.set_metadata("embedder", embedder);
        }
    }

    /// The probability of "none of the classes", `[batch, 1]`: `Novelty::probabilities` as nodes.
    fn add_unknown(&self, graph: &mut OnnxGraph, embedding: &GraphValue) -> GraphValue {
        let (similarity, calibration) = (&self.novelty.similarity, &self.novelty.calibration);
        // The four similarities, `[batch, 4]`: for each kind of vectors the largest product of a row with one of them.
        let unit = add_unit(graph, embedding);
        let mean = graph.floats(&[self.dim()], &similarity.mean);
        let centred = graph.node("Sub", &[embedding, &mean], &[]);
        let centred = add_unit(graph, &centred);
        let plain = add_products(graph, &unit, &similarity.plain);
        let from_mean = add_products(graph, &centred, &similarity.centred);
        let items = add_products(graph, &unit, &similarity.items);
        let discriminants = add_products(graph, &centred, &similarity.discriminants);
        let biases = graph.floats(&[similarity.biases.len()], &similarity.biases);
        let discriminants = graph.node("Add", &[&discriminants, &biases], &[]);
        let largest = [plain, from_mean, items, discriminants]
            .map(|products| graph.reduce("ReduceMax", &products, 1, true));
        let similarities = graph.node("Concat", &largest.each_ref(), &[Attribute::Int("axis", 1)]);
        // Standardise them, and sum them with their weights.
        let middle = graph.floats(&[MEASURES], &calibration.middle);
        let width = graph.floats(&[MEASURES], &calibration.width);
        let distance = graph.node("Sub", &[&similarities, &middle], &[]);
        let standardised = graph.node("Div", &[&distance, &width], &[]);
        let standardised = graph.clip(&standardised, [-MAX_STANDARDISED, MAX_STANDARDISED]);
        let weights = graph.floats(&[MEASURES, 1], &WEIGHTS);
        let weighted = graph.node("MatMul", &[&standardised, &weights], &[]);
        let offset = graph.floats(&[], &[INTERCEPT - calibration.threshold]);
        let log_odds = graph.node("Sub", &[&offset, &weighted], &[]);
        let log_odds = graph.clip(&log_odds, [-MAX_LOG_ODDS, MAX_LOG_ODDS]);
        graph.node("Sigmoid", &[&log_odds], &[])
    }
}

impl ScoringRule {
    /// Adds the scores `[batch, classes]` of rows `[batch, dim]`.
    fn add_to_graph(&self, graph: &mut OnnxGraph, rows: &GraphValue, support: &Embeddings) -> GraphValue {
        match self {
            ScoringRule::Vectors(Classifier::CosineVectors(vectors)) => {
                // Rows are not scaled to unit length: as in `Classifier::scores`, only the prototypes are.
                let zero = vec![0.0; support.dim()];
                let unit = |vector: &Vec<f32>| crate::classifier::centred_unit(vector, &zero);
                add_products(graph, rows, &vectors.iter().map(unit).collect::<Vec<_>>())
            }
            ScoringRule::Vectors(Classifier::Linear { weights, bias }) => {
                let products = add_products(graph, rows, weights);
                let bias = graph.floats(&[bias.len()], bias);
                graph.node("Add", &[&products, &bias], &[])
            }
            ScoringRule::Vectors(Classifier::CentredVectors { mean, vectors }) => {
                let mean = graph.floats(&[mean.len()], mean);
                let centred = graph.node("Sub", &[rows, &mean], &[]);
                let centred = add_unit(graph, &centred);
                add_nearest(graph, &centred, vectors)
            }
            ScoringRule::Vectors(Classifier::Vectors(vectors)) => add_nearest(graph, rows, vectors),
            ScoringRule::Items(Classifier::Neighbours(k)) => add_vote_shares(graph, rows, support, *k),
            // Matching: the sum of `exp(cosine)` over the items of each class.
            ScoringRule::Items(_) => {
                let unit = add_unit(graph, rows);
                let cosines = add_products(graph, &unit, &unit_rows(support));
                let exps = graph.node("Exp", &[&cosines], &[]);
                let members = add_members(graph, support);
                graph.node("MatMul", &[&exps, &members], &[])
            }
            ScoringRule::Vectors(_) => unreachable!("a rule of vectors is one of the four above"),
        }
    }
}

/// `x / |x|` of every row; a row of zeros stays a row of zeros.
fn add_unit(graph: &mut OnnxGraph, rows: &GraphValue) -> GraphValue {
    let squared = graph.reduce("ReduceSumSquare", rows, 1, true);
    let length = graph.node("Sqrt", &[&squared], &[]);
    let min_length = graph.floats(&[], &[MIN_LENGTH]);
    let length = graph.node("Max", &[&length, &min_length], &[]);
    graph.node("Div", &[rows, &length], &[])
}

/// The inner products `[batch, vectors]` of rows with vectors.
fn add_products(graph: &mut OnnxGraph, rows: &GraphValue, vectors: &[Vec<f32>]) -> GraphValue {
    let dim = vectors.first().map_or(0, Vec::len);
    // `MatMul` takes the vectors as columns.
    let columns: Vec<f32> =
        (0..dim).flat_map(|feature| vectors.iter().map(move |vector| vector[feature])).collect();
    let columns = graph.floats(&[dim, vectors.len()], &columns);
    graph.node("MatMul", &[rows, &columns], &[])
}

/// Scores `2 <p, x> - |p|^2` for the prototypes `p`, largest for the nearest one.
fn add_nearest(graph: &mut OnnxGraph, rows: &GraphValue, prototypes: &[Vec<f32>]) -> GraphValue {
    let products = add_products(graph, rows, prototypes);
    let two = graph.floats(&[], &[2.0]);
    let doubled = graph.node("Mul", &[&products, &two], &[]);
    let norms: Vec<f32> = prototypes.iter().map(|vector| products::squared_norm(vector)).collect();
    let norms = graph.floats(&[norms.len()], &norms);
    graph.node("Sub", &[&doubled, &norms], &[])
}

/// The share of votes for every class among the k nearest support items, `[batch, classes]`. Of equally near items the
/// first one votes.
fn add_vote_shares(graph: &mut OnnxGraph, rows: &GraphValue, support: &Embeddings, k: usize) -> GraphValue {
    let values = support.all_rows();
    let items: Vec<Vec<f32>> = values.chunks_exact(support.dim()).map(<[f32]>::to_vec).collect();
    let nearness = add_nearest(graph, rows, &items);
    let k = graph.integers(&[k.min(items.len()) as i64]);
    // The outputs are the largest values and their indices.
    let [_, nearest] = graph.node_of_two("TopK", &[&nearness, &k], &[Attribute::Int("axis", 1)]);
    let members = add_members(graph, support);
    let votes = graph.node("Gather", &[&members, &nearest], &[Attribute::Int("axis", 0)]);
    graph.reduce("ReduceMean", &votes, 1, false)
}

/// The table `[items, classes]` with 1 where an item has a class and 0 elsewhere.
fn add_members(graph: &mut OnnxGraph, support: &Embeddings) -> GraphValue {
    let classes = support.classes().len();
    let mut members = vec![0.0; support.len() * classes];
    for (item, &class) in support.labels().iter().enumerate() {
        members[item * classes + class as usize] = 1.0;
    }
    graph.floats(&[support.len(), classes], &members)
}

/// `softmax(sharpness * scores)`. The largest score is subtracted first, because the sharpness can be so large that the
/// product would overflow.
fn add_softmax(graph: &mut OnnxGraph, scores: &GraphValue, sharpness: f32) -> GraphValue {
    let largest = graph.reduce("ReduceMax", scores, 1, true);
    let differences = graph.node("Sub", &[scores, &largest], &[]);
    let sharpness = graph.floats(&[], &[sharpness]);
    let logits = graph.node("Mul", &[&differences, &sharpness], &[]);
    graph.node("Softmax", &[&logits], &[Attribute::Int("axis", 1)])
}
