//! A method in another crate: it is registered by name, parsed from text with its parameters, and evaluated next to the
//! built-in ones on the same episodes.
//!
//!     cargo run --release -p trueshot --example own_method
//!
//! A method learns from the few labelled items of each class (the support set of a task), some of which have a wrong
//! label. This one is a trimmed mean: of every class, the items farthest from the mean of the class are left out, and a
//! query gets the class with the nearest mean. Start with [`TRIMMED`], which describes the method, and [`TrimmedMean`].

use trueshot::classifier::{Classifier, Mixture};
use trueshot::method::{Fitted, ItemAssessment, Method, MethodInfo, Parameter, Parameters, Registry};
use trueshot::rng::Rng;
use trueshot::task::Task;
use trueshot::{Embeddings, Evaluation, Result};

/// The description of the method, from which parsing, help texts and error messages are made.
const TRIMMED: MethodInfo = MethodInfo {
    name: "trimmed",
    summary: "mean of the items nearest to the mean of their class",
    parameters: &[Parameter {
        name: "share",
        default: "0.4",
        meaning: "share of the items of a class that is left out",
    }],
    transductive: false,
    build,
};

/// Makes the method from its parameters.
fn build(parameters: &Parameters<'_>) -> Result<Box<dyn Method>> {
    Ok(Box::new(TrimmedMean { share: parameters.fraction("share")? }))
}

/// The method: prototypes are the means of the items that are not left out.
struct TrimmedMean {
    /// The share of the items of a class that is left out, 0 to 1.
    share: f32,
}

impl Method for TrimmedMean {
    fn fit(&self, task: &Task<'_>, _rng: &mut Rng) -> Result<Fitted> {
        let weights: Vec<Vec<f32>> =
            (0..task.support.classes()).map(|class| self.weights(task, class)).collect();
        // The weight that results report is relative to the average item of the class: 1 is average, 0 is left out.
        // Items with low weights count as suspicious.
        let mut assessments =
            vec![ItemAssessment { weight: 0.0, p_wrong: None, decision: None }; task.support.len()];
        for (members, weights) in task.support.members().iter().zip(&weights) {
            for (&item, weight) in members.iter().zip(weights) {
                assessments[item as usize].weight = weight * members.len() as f32;
            }
        }
        let prototypes = Mixture::within_classes(task, &weights);
        Ok(Fitted { classifier: Classifier::Prototypes(prototypes), assessments: Some(assessments) })
    }
}

impl TrimmedMean {
    /// The weights of the items of a class; they sum to 1.
    fn weights(&self, task: &Task<'_>, class: usize) -> Vec<f32> {
        let distances = distances_to_mean(task, class);
        let mut order: Vec<usize> = (0..distances.len()).collect();
        order.sort_by(|&a, &b| distances[a].total_cmp(&distances[b]));
        let left_out = (self.share * distances.len() as f32) as usize;
        order.truncate((distances.len() - left_out).max(1));
        let mut weights = vec![0.0; distances.len()];
        order.iter().for_each(|&item| weights[item] = 1.0 / order.len() as f32);
        weights
    }
}

/// The squared distance of every item of a class to the mean of the class, up to a term that is the same for all items.
/// It is made of inner products, which the methods of an evaluation share: `|x|^2 - 2 <x, mean>`, without `|mean|^2`.
fn distances_to_mean(task: &Task<'_>, class: usize) -> Vec<f32> {
    let members = &task.support.members()[class];
    let (gram, items) = (task.gram(), task.support.len());
    let product = |a: u32, b: u32| gram[a as usize * items + b as usize];
    let distance = |&item: &u32| {
        let with_others: f32 = members.iter().map(|&other| product(item, other)).sum();
        product(item, item) - 2.0 * with_others / members.len() as f32
    };
    members.iter().map(distance).collect()
}

/// Eight classes of forty points with 16 values: values c and c + 8 of class c are 3 on average, its others 0, plus
/// random numbers from -2 to 2. `Embeddings::open` reads a file instead.
fn data() -> Result<Embeddings> {
    let mut rng = Rng::new(0, trueshot::rng::Purpose::Items, 0);
    let mut value = |row: usize, column: usize| {
        let centre = if row / 40 == column % 8 { 3.0 } else { 0.0 };
        centre + 4.0 * (rng.uniform() - 0.5)
    };
    let values = (0..320 * 16).map(|i| value(i / 16, i % 16)).collect();
    Embeddings::from_rows(values, 16, (0..320).map(|row| format!("class {}", row / 40)).collect())
}

fn main() -> Result<()> {
    let mut registry = Registry::default();
    registry.register(TRIMMED);
    let data = data()?;
    let evaluation = Evaluation::of(&data).noise("symmetric=0,20,40")?.episodes(1000);
    println!("{}", evaluation.methods_of(&registry, "oracle,protonet,trimmed,trimmed:share=0.2")?.run()?);
    Ok(())
}

#[test]
fn the_method_withstands_wrong_labels_better_than_the_mean_and_finds_them() {
    main().unwrap();
    let mut registry = Registry::default();
    registry.register(TRIMMED);
    let data = data().unwrap();
    let evaluation = Evaluation::of(&data).noise("symmetric=40").unwrap().episodes(300);
    let results = evaluation.methods_of(&registry, "protonet,trimmed").unwrap().run().unwrap();
    let [protonet, trimmed] = &results.settings[0].methods[..] else { unreachable!() };
    assert!(trimmed.accuracy > protonet.accuracy, "{results}");
    assert!(trimmed.detection.as_ref().unwrap().auroc > 0.6, "{results}");
    let refused = registry.parse("trimmed:share=2").err().unwrap().to_string();
    assert!(refused.ends_with("share is a number from 0 to 1"), "{refused}");
}
