//! Tests of the whole model: gradients, precision, permutations, and agreement with PyTorch.

use super::*;
use crate::gradient_check::{TestRng, check_gradient, check_gradient_within};
use crate::isa::Isa;

/// An episode that owns its rows.
#[derive(Clone)]
struct OwnedEpisode<T> {
    classes: usize,
    support: Vec<Vec<T>>,
    given: Vec<u32>,
    truth: Vec<Option<u32>>,
    queries: Vec<Vec<T>>,
    query_classes: Vec<u32>,
}

/// One episode per entry of `sizes`, which are the sizes of its classes. Items are shuffled; a quarter has no true
/// class, another quarter a random one.
fn episodes(dim: usize, sizes: &[&[usize]], seed: u64) -> Vec<OwnedEpisode<f64>> {
    let mut rng = TestRng::new(seed);
    let episode = |sizes: &&[usize]| {
        let classes = sizes.len();
        let mut given: Vec<u32> =
            sizes.iter().enumerate().flat_map(|(c, &n)| std::iter::repeat_n(c as u32, n)).collect();
        for i in (1..given.len()).rev() {
            given.swap(i, rng.below(i + 1));
        }
        let mut true_class = |given: u32| match rng.below(4) {
            0 => None,
            1 => Some(rng.below(classes) as u32),
            _ => Some(given),
        };
        let truth = given.iter().map(|&given| true_class(given)).collect();
        let rows = |count: usize, rng: &mut TestRng| (0..count).map(|_| rng.f64s(dim)).collect();
        let support = rows(given.len(), &mut rng);
        let queries = rows(2 * classes + 1, &mut rng);
        let query_classes = (0..2 * classes + 1).map(|_| rng.below(classes) as u32).collect();
        OwnedEpisode { classes, support, given, truth, queries, query_classes }
    };
    sizes.iter().map(episode).collect()
}

/// The episodes in single precision.
fn narrowed(owned: &[OwnedEpisode<f64>]) -> Vec<OwnedEpisode<f32>> {
    let narrow = |rows: &[Vec<f64>]| rows.iter().map(|row| row.iter().map(|&x| x as f32).collect()).collect();
    let narrowed = |owned: &OwnedEpisode<f64>| OwnedEpisode {
        classes: owned.classes,
        support: narrow(&owned.support),
        given: owned.given.clone(),
        truth: owned.truth.clone(),
        queries: narrow(&owned.queries),
        query_classes: owned.query_classes.clone(),
    };
    owned.iter().map(narrowed).collect()
}

fn slices<T>(rows: &[Vec<T>]) -> Vec<&[T]> {
    rows.iter().map(Vec::as_slice).collect()
}

/// Calls `job` with episodes that borrow the rows of `owned`.
fn borrowed<T, R>(owned: &[OwnedEpisode<T>], job: impl FnOnce(&[Episode<'_, T>]) -> R) -> R {
    let supports: Vec<Vec<&[T]>> = owned.iter().map(|episode| slices(&episode.support)).collect();
    let queries: Vec<Vec<&[T]>> = owned.iter().map(|episode| slices(&episode.queries)).collect();
    let episodes: Vec<Episode<'_, T>> = owned
        .iter()
        .zip(supports.iter().zip(&queries))
        .map(|(episode, (support, queries))| Episode {
            classes: episode.classes,
            support,
            given: &episode.given,
            truth: &episode.truth,
            queries,
            query_classes: &episode.query_classes,
        })
        .collect();
    job(&episodes)
}

fn small() -> Config {
    Config { classes: 4, width: 8, heads: 2, feed_forward: 6, layers: 2, dropout: 0.0, ..Config::new(11) }
}

fn model(config: &Config) -> (Tranfs, Vec<f32>) {
    let model = Tranfs::new(config.clone()).unwrap();
    let mut rng = TestRng::new(12);
    let parameters = model.initial(&mut || rng.uniform());
    (model, parameters)
}

/// If the items of a class move, the prototype of an untrained model moves with them: a model that has to learn this
/// first may not succeed.
#[test]
fn the_prototypes_of_an_untrained_model_move_with_their_items() {
    let (dim, classes, shots) = (64, 5, 5);
    let (model, mut parameters) = model(&Config { dropout: 0.0, ..Config::new(dim) });
    let mut rng = TestRng::new(7);
    let mut row = || -> Vec<f32> { (0..dim).map(|_| rng.uniform() as f32 - 0.5).collect() };
    // The variance of a uniform number is 1/12.
    let spread = (dim as f64 / 12.0).sqrt();
    model.fit_normalisation(&mut parameters, &|| FeatureStatistics { mean: vec![0.0; dim], spread });
    let given: Vec<u32> = (0..classes * shots).map(|item| (item / shots) as u32).collect();
    let items: Vec<Vec<f32>> = given.iter().map(|_| row()).collect();
    let direction = row();
    let prototypes = |moved: Option<u32>| {
        let shifted = |item: &[f32]| item.iter().zip(&direction).map(|(value, d)| value + d).collect();
        let items: Vec<Vec<f32>> = items
            .iter()
            .zip(&given)
            .map(|(item, &class)| if moved == Some(class) { shifted(item) } else { item.clone() })
            .collect();
        let items: Vec<&[f32]> = items.iter().map(Vec::as_slice).collect();
        let input = TranfsInput { classes, items: &items, given: &given, order: None };
        model.prototypes(&parameters, &[input]).remove(0).prototypes
    };
    let before = prototypes(None);
    for class in 0..classes {
        let after = prototypes(Some(class as u32));
        // How far a prototype has moved in the direction of the shift, times its length.
        let along = |class: usize| -> f32 {
            (0..dim).map(|d| (after[class * dim + d] - before[class * dim + d]) * direction[d]).sum()
        };
        let largest_other = (0..classes).filter(|&c| c != class).map(along).fold(f32::MIN, f32::max);
        assert!(along(class) > 1.2 * largest_other.max(0.0), "{class}: {} and {largest_other}", along(class));
    }
}

const SIZES: &[&[usize]] = &[&[3, 1, 2], &[2, 0, 4, 1], &[1]];

/// Compares the gradient of every parameter with central differences.
fn check_whole_model(name: &str, config: Config) {
    let (model, parameters) = model(&config);
    let mut rng = TestRng::new(4);
    // Not at the initial values, where biases are zero and scales one.
    let at: Vec<f64> = parameters.iter().map(|&p| f64::from(p) + 0.2 * (rng.uniform() - 0.5)).collect();
    let owned = episodes(config.dim, SIZES, 5);
    borrowed(&owned, |episodes| {
        let mut gradient = vec![0.0; at.len()];
        model.losses_and_gradient(&at, episodes, 77, &mut gradient, None, &mut Workspace::default());
        for tensor in model.layout.tensors() {
            let range = tensor.range.clone();
            check_gradient(
                &format!("{name}: {}", tensor.name),
                &at[range.clone()],
                &gradient[range.clone()],
                |moved| {
                    let mut parameters = at.clone();
                    parameters[range.clone()].copy_from_slice(moved);
                    let mut ignored = vec![0.0; at.len()];
                    let terms = model.losses_and_gradient(
                        &parameters,
                        episodes,
                        77,
                        &mut ignored,
                        None,
                        &mut Workspace::default(),
                    );
                    terms.iter().sum()
                },
            );
        }
    });
}

#[test]
fn the_gradient_of_every_parameter_agrees_with_central_differences() {
    check_whole_model("tied", small());
    check_whole_model("untied", Config { tied: false, ..small() });
    check_whole_model("dropout", Config { dropout: 0.3, layers: 1, ..small() });
}

#[test]
fn the_gradients_with_every_kind_of_table_and_loss_agree_with_central_differences() {
    let learned = Config { class_tokens: ClassTokens::Learned, ..small() };
    check_whole_model("learned class tokens", learned.clone());
    check_whole_model("random positions", Config { positions: Positions::Random, ..learned });
    let mean = Config { class_tokens: ClassTokens::ClassMean, tied: false, ..small() };
    check_whole_model("class means", mean);
    check_whole_model(
        "cosine",
        Config { clean_loss: CleanLoss::NegativeCosine, clean_weight: 3.0, ..small() },
    );
    check_whole_model("no clean loss", Config { clean_weight: 0.0, mislabelled_weight: 2.0, ..small() });
}

/// The rows of all episodes in the order of a feature gradient.
fn feature_rows<T>(owned: &mut [OwnedEpisode<T>]) -> impl Iterator<Item = &mut Vec<T>> {
    owned.iter_mut().flat_map(|episode| episode.support.iter_mut().chain(&mut episode.queries))
}

/// Compares the gradient of every feature with central differences.
fn check_features(name: &str, config: Config) {
    let (model, parameters) = model(&config);
    let mut rng = TestRng::new(4);
    let at: Vec<f64> = parameters.iter().map(|&p| f64::from(p) + 0.2 * (rng.uniform() - 0.5)).collect();
    let mut owned = episodes(config.dim, SIZES, 5);
    // An episode without queries.
    owned[2].queries.clear();
    owned[2].query_classes.clear();
    let features: Vec<f64> = feature_rows(&mut owned).flat_map(|row| row.clone()).collect();
    let losses = |features: &[f64], feature_gradient: Option<&mut [f64]>| -> f64 {
        let mut owned = owned.clone();
        for (row, moved) in feature_rows(&mut owned).zip(features.chunks_exact(config.dim)) {
            row.copy_from_slice(moved);
        }
        let mut ignored = vec![0.0; at.len()];
        let workspace = &mut Workspace::default();
        let terms = borrowed(&owned, |episodes| {
            model.losses_and_gradient(&at, episodes, 77, &mut ignored, feature_gradient, workspace)
        });
        terms.iter().sum()
    };
    // The gradient is added to what is there.
    let mut gradient = vec![0.5; features.len()];
    losses(&features, Some(&mut gradient));
    gradient.iter_mut().for_each(|g| *g -= 0.5);
    check_gradient_within(1e-6, name, &features, &gradient, |moved| losses(moved, None));
}

#[test]
fn the_gradient_of_every_feature_agrees_with_central_differences() {
    check_features("tied", small());
    check_features("untied", Config { tied: false, ..small() });
    check_features("dropout", Config { dropout: 0.3, layers: 1, ..small() });
    let class_tokens = ClassTokens::ClassMean;
    check_features("class means", Config { class_tokens, ..small() });
    check_features("class means, untied", Config { class_tokens, tied: false, dropout: 0.2, ..small() });
    check_features(
        "learned class tokens, random positions",
        Config { class_tokens: ClassTokens::Learned, positions: Positions::Random, ..small() },
    );
    check_features("cosine", Config { clean_loss: CleanLoss::NegativeCosine, clean_weight: 3.0, ..small() });
    check_features("no clean loss", Config { clean_weight: 0.0, mislabelled_weight: 2.0, ..small() });
}

#[test]
fn the_feature_gradient_leaves_losses_and_parameter_gradient_equal_to_the_bit() {
    for class_tokens in [ClassTokens::Random, ClassTokens::ClassMean] {
        let config = Config { classes: 7, class_tokens, ..Config::new(40) };
        let (model, parameters) = model(&config);
        let owned = narrowed(&episodes(40, &[&[5; 5], &[5, 9, 2, 1, 0, 3, 4]], 3));
        borrowed(&owned, |episodes| {
            let (mut alone, mut with_features) = (vec![0.25; parameters.len()], vec![0.25; parameters.len()]);
            let mut of_features = vec![0.0; episodes.iter().map(Episode::feature_count).sum()];
            let expected = model.losses(&parameters, episodes, 8, &mut alone);
            let losses = model.losses_with_feature_gradient(
                &parameters,
                episodes,
                8,
                &mut with_features,
                &mut of_features,
            );
            let bits = |numbers: &[f32]| numbers.iter().map(|g| g.to_bits()).collect::<Vec<u32>>();
            assert_eq!(losses, expected);
            assert_eq!(bits(&with_features), bits(&alone));
            assert!(of_features.iter().any(|&g| g != 0.0));
        });
    }
}

#[test]
#[should_panic(expected = "the feature gradient needs one value per value of the episodes' rows")]
fn a_feature_gradient_of_another_length_is_refused() {
    let (model, parameters) = model(&small());
    let owned = narrowed(&episodes(11, &[&[2, 1]], 3));
    let mut gradient = vec![0.0; parameters.len()];
    borrowed(&owned, |episodes| {
        model.losses_with_feature_gradient(&parameters, episodes, 8, &mut gradient, &mut [0.0; 7])
    });
}

#[test]
fn single_precision_agrees_with_double_on_every_instruction_set() {
    for dropout in [0.0, 0.2] {
        let config = Config { classes: 7, dropout, ..Config::new(100) };
        let (model, parameters) = model(&config);
        let wide: Vec<f64> = parameters.iter().map(|&p| f64::from(p)).collect();
        let owned = episodes(config.dim, &[&[5; 5], &[5, 9, 2, 1, 0, 3, 4], &[10, 10]], 3);
        let mut expected_gradient = vec![0.0; wide.len()];
        let mut expected_of_features = vec![0.0; (25 + 11 + 24 + 15 + 20 + 5) * config.dim];
        let expected = borrowed(&owned, |episodes| {
            let of_features = Some(expected_of_features.as_mut_slice());
            let workspace = &mut Workspace::default();
            model.losses_and_gradient(&wide, episodes, 5, &mut expected_gradient, of_features, workspace)
        });
        for isa in Isa::usable() {
            let mut gradient = vec![0.0; wide.len()];
            let mut of_features = vec![0.0; expected_of_features.len()];
            let terms = borrowed(&narrowed(&owned), |e| {
                isa.scope(|| {
                    model.losses_with_feature_gradient(&parameters, e, 5, &mut gradient, &mut of_features)
                })
            });
            for (term, expected) in terms.iter().zip(expected) {
                assert!((term - expected).abs() < 1e-4 * (1.0 + expected), "{isa:?}: {term} and {expected}");
            }
            for (actual, expected) in [(&gradient, &expected_gradient), (&of_features, &expected_of_features)]
            {
                let largest = expected.iter().fold(0.0f64, |largest, g| largest.max(g.abs()));
                for (index, (g, expected)) in actual.iter().zip(expected).enumerate() {
                    let error = (f64::from(*g) - expected).abs();
                    assert!(error < 1e-4 * largest, "{isa:?} at {index}: {g} and {expected}");
                }
            }
        }
    }
}

/// The expected values are those of a PyTorch model of `TransformerEncoderLayer`s with the parameters
/// 0.4 sin(1.7 i + 0.5) (plus 1 for the scales of norms), items sin(0.9 i) and queries cos(0.7 i).
#[test]
fn the_model_computes_what_pytorch_does() {
    let sizes = Config { classes: 3, width: 8, heads: 2, feed_forward: 10, layers: 2, ..Config::new(6) };
    let model = Tranfs::new(Config { dropout: 0.0, ..sizes }).unwrap();
    let mut parameters: Vec<f64> = (0..1099).map(|i| 0.4 * (1.7 * f64::from(i) + 0.5).sin()).collect();
    for tensor in model.layout.tensors().iter().filter(|tensor| tensor.name.ends_with(".scale")) {
        parameters[tensor.range.clone()].iter_mut().for_each(|scale| *scale += 1.0);
    }
    let rows = |count: u32, f: &dyn Fn(f64) -> f64| -> Vec<Vec<f64>> {
        (0..count).map(|i| (0..6).map(|d| f(f64::from(6 * i + d))).collect()).collect()
    };
    let owned = [OwnedEpisode {
        classes: 3,
        support: rows(5, &|i| (0.9 * i).sin()),
        given: vec![2, 0, 1, 2, 0],
        truth: [2, 0, 1, 0, 0].map(Some).to_vec(),
        queries: rows(4, &|i| (0.7 * i).cos()),
        query_classes: vec![0, 2, 1, 1],
    }];
    let mut gradient = vec![0.0; parameters.len()];
    let terms = borrowed(&owned, |episodes| {
        model.losses_and_gradient(&parameters, episodes, 0, &mut gradient, None, &mut Workspace::default())
    });
    let check = |actual: f64, expected: f64| {
        assert!((actual - expected).abs() < 1e-6, "{actual}, {expected}");
    };
    for (term, expected) in terms.into_iter().zip([1.072280355, 11.233081634, 0.591509522]) {
        check(term, expected);
    }
    let parameters: Vec<f32> = parameters.iter().map(|&p| p as f32).collect();
    let output = &outputs(&model, &parameters, &narrowed(&owned), None)[0];
    let prototype = [-0.108746647, -1.528037196, -1.45505882, 0.038918381, 1.494888202, 1.490962141];
    // Prototypes in f32 are less precise, so the tolerance is ten times as large.
    for (&value, expected) in output.prototypes[6..12].iter().zip(prototype) {
        check(f64::from(value) / 10.0, expected / 10.0);
    }
    for (&probability, expected) in
        output.mislabelled.iter().zip([0.877991397, 0.811267372, 0.637651215, 0.534593815, 0.395051224])
    {
        check(f64::from(probability), expected);
    }
}

#[test]
fn the_same_call_gives_the_same_bits_after_any_other_call() {
    let config = Config { classes: 7, ..Config::new(40) };
    let (model, parameters) = model(&config);
    let (first_call, other_call) = (
        narrowed(&episodes(40, &[&[5; 5], &[3, 2]], 1)),
        narrowed(&episodes(40, &[&[2, 9, 2, 1, 0, 3, 4], &[7, 7], &[1, 1, 1]], 2)),
    );
    let run = |owned: &[OwnedEpisode<f32>]| {
        let mut gradient = vec![0.0; parameters.len()];
        let terms = borrowed(owned, |e| model.losses(&parameters, e, 8, &mut gradient));
        (terms, gradient)
    };
    let first = run(&first_call);
    let _ = run(&other_call);
    assert_eq!(run(&first_call), first);
    assert_eq!(model.clone().layout(), model.layout());
}

/// The outputs for the support sets of episodes, with an order for each or `None`.
fn outputs(
    model: &Tranfs,
    parameters: &[f32],
    owned: &[OwnedEpisode<f32>],
    orders: Option<&[Vec<u32>]>,
) -> Vec<TranfsOutput> {
    borrowed(owned, |episodes| {
        let inputs: Vec<TranfsInput<'_>> = episodes
            .iter()
            .enumerate()
            .map(|(i, e)| TranfsInput {
                classes: e.classes,
                items: e.support,
                given: e.given,
                order: orders.map(|orders| orders[i].as_slice()),
            })
            .collect();
        model.prototypes(parameters, &inputs)
    })
}

#[test]
fn a_support_set_has_the_same_output_alone_and_among_others() {
    let (model, parameters) = model(&Config { classes: 5, ..Config::new(50) });
    let sizes: Vec<&[usize]> = (0..20).map(|i| [&[5usize, 5, 5][..], &[1, 4, 2, 0, 3]][i % 2]).collect();
    let owned = narrowed(&episodes(50, &sizes, 6));
    let all = outputs(&model, &parameters, &owned, None);
    for (i, output) in all.iter().enumerate() {
        assert_eq!(outputs(&model, &parameters, &owned[i..=i], None)[0], *output);
        assert!(output.mislabelled.iter().all(|p| (0.0..=1.0).contains(p)));
        assert_eq!(output.prototypes.len(), owned[i].classes * 50);
    }
}

#[test]
fn the_order_of_items_does_not_matter_and_that_of_classes_only_through_the_tables() {
    let (model, parameters) = model(&Config { classes: 6, ..Config::new(30) });
    let owned = narrowed(&episodes(30, &[&[4, 3, 5]], 6));
    let output = &outputs(&model, &parameters, &owned, None)[0];
    let close = |a: &[f32], b: &[f32]| a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-4);

    let mut reversed = narrowed(&episodes(30, &[&[4, 3, 5]], 6));
    reversed[0].support.reverse();
    reversed[0].given.reverse();
    let mut of_reversed = outputs(&model, &parameters, &reversed, None).remove(0);
    of_reversed.mislabelled.reverse();
    assert!(close(&of_reversed.prototypes, &output.prototypes));
    assert!(close(&of_reversed.mislabelled, &output.mislabelled));

    // Classes renamed 0 -> 1 -> 2 -> 0, each with the row of the tables it had.
    let mut renamed = narrowed(&episodes(30, &[&[4, 3, 5]], 6));
    renamed[0].given.iter_mut().for_each(|class| *class = (*class + 1) % 3);
    let same_rows = &outputs(&model, &parameters, &renamed, Some(&[vec![2, 0, 1]]))[0];
    assert!(close(&same_rows.mislabelled, &output.mislabelled));
    assert!(close(&same_rows.prototypes[30..], &output.prototypes[..60]));
    let other_rows = &outputs(&model, &parameters, &renamed, Some(&[vec![5, 0, 1]]))[0];
    assert!(
        !close(&other_rows.prototypes, &same_rows.prototypes),
        "another row of the tables changes the output"
    );
}

#[test]
fn attention_maps_have_rows_that_sum_to_1_for_every_layer_and_head() {
    let (model, parameters) = model(&small());
    let owned = narrowed(&episodes(11, &[&[4, 1, 5]], 6));
    let maps = borrowed(&owned, |e| {
        let input = TranfsInput { classes: 3, items: e[0].support, given: e[0].given, order: None };
        model.attention(&parameters, input)
    });
    assert_eq!((maps.tokens.len(), maps.weights.len()), (13, 2 * 2 * 13 * 13));
    assert_eq!(maps.tokens[..3], [TranfsToken::Class(0), TranfsToken::Class(1), TranfsToken::Class(2)]);
    let classes: Vec<u32> = maps.tokens[3..]
        .iter()
        .map(|token| match token {
            TranfsToken::Item(item) => owned[0].given[*item],
            TranfsToken::Class(_) => panic!("items follow the classes"),
        })
        .collect();
    assert!(classes.is_sorted());
    for row in maps.weights.chunks_exact(13) {
        assert!((row.iter().sum::<f32>() - 1.0).abs() < 1e-5);
    }
    assert_eq!(maps.head(1, 1).len(), 169);
}

#[test]
fn a_few_steps_of_training_lower_every_term() {
    use crate::adamw::{AdamW, AdamWConfig};
    let config = Config { dropout: 0.0, ..Config::new(24) };
    let (model, mut parameters) = model(&config);
    let owned = narrowed(&episodes(24, &[&[5; 5], &[5; 5]], 2));
    let mut optimiser = AdamW::new(model.layout(), AdamWConfig::default());
    let mut gradients = vec![vec![0.0; parameters.len()]];
    let mut history = Vec::new();
    for step in 0..60 {
        history.push(borrowed(&owned, |e| model.losses(&parameters, e, step, &mut gradients[0])));
        optimiser.step(2e-3, 0.5, &mut parameters, &mut gradients);
    }
    for (term, name) in model.loss_terms().iter().enumerate() {
        assert!(history[59][term] < 0.9 * history[0][term], "{name}: {:?} {:?}", history[0], history[59]);
    }
}

#[test]
fn constant_tables_are_not_trained_and_an_invalid_configuration_is_refused() {
    let (model, _) = model(&small());
    let constant: Vec<&str> = model
        .layout
        .tensors()
        .iter()
        .filter(|tensor| tensor.role == Role::Constant)
        .map(|tensor| tensor.name.as_str())
        .collect();
    assert_eq!(constant, ["class_tokens"]);
    let error = Tranfs::new(Config { heads: 3, ..small() }).unwrap_err();
    assert_eq!(error, "3 heads do not divide a width of 8");
    assert!(Tranfs::new(Config { layers: 0, ..small() }).is_err());
    assert!(Tranfs::new(Config { dropout: 1.0, ..small() }).is_err());
}

/// 64 episodes of 5 classes with 5 shots and 15 queries each, and embeddings of 1600 numbers.
fn benchmark_episodes() -> Vec<OwnedEpisode<f32>> {
    let mut owned = narrowed(&episodes(1600, &[&[5; 5][..]; 64], 2));
    let mut rng = TestRng::new(3);
    for owned in &mut owned {
        owned.queries = (0..75).map(|_| rng.f32s(1600)).collect();
        owned.query_classes = (0..75).map(|i| i / 15).collect();
    }
    owned
}

/// The fastest of many runs, in milliseconds.
fn best(mut job: impl FnMut()) -> f64 {
    let timed = |_| {
        let start = std::time::Instant::now();
        job();
        1e3 * start.elapsed().as_secs_f64()
    };
    (0..100).map(timed).fold(f64::INFINITY, f64::min)
}

/// Prints milliseconds: `cargo test --release -p trueshot-nn speed_of_ -- --ignored --nocapture`.
#[test]
#[ignore = "measures speed, checks nothing"]
fn speed_of_a_training_step() {
    use crate::adamw::{AdamW, AdamWConfig};
    const PARTS: usize = 4;
    let (model, mut parameters) = model(&Config::new(1600));
    let mut optimiser = AdamW::new(model.layout(), AdamWConfig::default());
    let mut gradients = vec![vec![0.0; parameters.len()]; PARTS];
    borrowed(&benchmark_episodes()[..16], |episodes| {
        let part = |number: usize, parameters: &[f32], gradient: &mut [f32]| {
            let episodes = &episodes[number * 16 / PARTS..(number + 1) * 16 / PARTS];
            model.losses(parameters, episodes, number as u64, gradient);
        };
        for threads in [1, 2] {
            let step = best(|| {
                std::thread::scope(|scope| {
                    for (thread, gradients) in gradients.chunks_mut(PARTS / threads).enumerate() {
                        let (part, parameters) = (&part, &parameters);
                        scope.spawn(move || {
                            for (i, gradient) in gradients.iter_mut().enumerate() {
                                part(thread * PARTS / threads + i, parameters, gradient);
                            }
                        });
                    }
                });
                let mut chunks = optimiser.chunks(1e-5, 1.0 / 16.0, &mut parameters, &mut gradients, 1 << 14);
                std::thread::scope(|scope| {
                    while !chunks.is_empty() {
                        let of_thread = chunks.split_off(chunks.len() - chunks.len().div_ceil(threads));
                        scope.spawn(move || of_thread.into_iter().for_each(|chunk| chunk.apply()));
                    }
                });
            });
            println!("{threads} threads: a training step of 16 episodes in {step:.2} ms");
        }
    });
}

/// Prints milliseconds, see [`speed_of_a_training_step`].
#[test]
#[ignore = "measures speed, checks nothing"]
fn speed_of_prototypes() {
    let (model, parameters) = model(&Config::new(1600));
    borrowed(&benchmark_episodes(), |episodes| {
        let inputs: Vec<TranfsInput<'_>> = episodes
            .iter()
            .map(|e| TranfsInput { classes: e.classes, items: e.support, given: e.given, order: None })
            .collect();
        for threads in [1, 2] {
            let forward = best(|| {
                std::thread::scope(|scope| {
                    for inputs in inputs.chunks(64 / threads) {
                        let (model, parameters) = (&model, &parameters);
                        scope.spawn(move || model.prototypes(parameters, inputs));
                    }
                });
            });
            println!("{threads} threads: prototypes of 64 episodes in {forward:.2} ms");
        }
    });
}
