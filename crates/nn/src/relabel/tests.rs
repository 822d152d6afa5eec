//! Tests of the whole head: gradients, permutations, precision, and degenerate support sets.

use super::*;
use crate::gradient_check::{TestRng, check_gradient_at, check_gradient_within};
use crate::isa::Isa;
use crate::parameters::Role;

/// An episode that owns its rows.
#[derive(Clone)]
struct OwnedEpisode {
    classes: usize,
    support: Vec<Vec<f64>>,
    given: Vec<u32>,
    truth: Vec<Option<u32>>,
    queries: Vec<Vec<f64>>,
    query_classes: Vec<u32>,
}

impl OwnedEpisode {
    /// Classes of these sizes, each around its own centre, with every third item drawn from a random class.
    fn new(sizes: &[usize], dim: usize, queries: usize, seed: u64) -> Self {
        let mut rng = TestRng::new(seed);
        let classes = sizes.len();
        let centres: Vec<Vec<f64>> = (0..classes + 1).map(|_| rng.f64s(dim)).collect();
        let near = |class: usize, rng: &mut TestRng| -> Vec<f64> {
            centres[class].iter().zip(rng.f64s(dim)).map(|(c, n)| 0.5 + c + 0.7 * n).collect()
        };
        let (mut support, mut given, mut truth) = (Vec::new(), Vec::new(), Vec::new());
        for (class, &size) in sizes.iter().enumerate() {
            for item in 0..size {
                let true_class = if item % 3 == 2 { rng.below(classes + 1) } else { class };
                support.push(near(true_class, &mut rng));
                given.push(class as u32);
                truth.push((true_class < classes).then_some(true_class as u32));
            }
        }
        let query_classes: Vec<u32> = (0..queries).map(|_| rng.below(classes) as u32).collect();
        let queries = query_classes.iter().map(|&class| near(class as usize, &mut rng)).collect();
        OwnedEpisode { classes, support, given, truth, queries, query_classes }
    }

    /// The episode with items and classes in another order.
    fn permuted(&self, items: &[usize], classes: &[u32]) -> Self {
        OwnedEpisode {
            classes: self.classes,
            support: items.iter().map(|&i| self.support[i].clone()).collect(),
            given: items.iter().map(|&i| classes[self.given[i] as usize]).collect(),
            truth: items.iter().map(|&i| self.truth[i].map(|class| classes[class as usize])).collect(),
            queries: self.queries.clone(),
            query_classes: self.query_classes.iter().map(|&class| classes[class as usize]).collect(),
        }
    }
}

fn rounded(rows: &[Vec<f64>]) -> Vec<Vec<f32>> {
    rows.iter().map(|row| row.iter().map(|&value| value as f32).collect()).collect()
}

fn slices<T>(rows: &[Vec<T>]) -> Vec<&[T]> {
    rows.iter().map(Vec::as_slice).collect()
}

/// Calls `run` with borrowed episodes, their rows converted by `rows`.
fn with_episodes<T, R>(
    owned: &[OwnedEpisode],
    rows: impl Fn(&[Vec<f64>]) -> Vec<Vec<T>>,
    run: impl FnOnce(&[Episode<'_, T>]) -> R,
) -> R {
    let rows: Vec<_> = owned.iter().map(|owned| (rows(&owned.support), rows(&owned.queries))).collect();
    let slices: Vec<_> = rows.iter().map(|(support, queries)| (slices(support), slices(queries))).collect();
    let episodes: Vec<Episode<'_, T>> = owned
        .iter()
        .zip(&slices)
        .map(|(owned, (support, queries))| Episode {
            classes: owned.classes,
            support,
            given: &owned.given,
            truth: &owned.truth,
            queries,
            query_classes: &owned.query_classes,
        })
        .collect();
    run(&episodes)
}

/// The terms of the loss; adds to `gradient`.
fn losses(head: &Relabel, owned: &[OwnedEpisode], parameters: &[f64], gradient: &mut [f64]) -> Vec<f64> {
    with_episodes(owned, <[Vec<f64>]>::to_vec, |episodes| {
        head.losses_and_gradient(parameters, episodes, 7, gradient, None)
    })
}

fn predict(head: &Relabel, owned: &OwnedEpisode, parameters: &[f64]) -> RelabelOutput<f64> {
    let rows = slices(&owned.support);
    let input = RelabelInput { classes: owned.classes, given: &owned.given, rows: &rows, gram: None };
    head.predict(parameters, &[input]).remove(0)
}

/// Initial parameters with noise, so that none is zero, as in a trained head.
fn parameters(head: &Relabel, seed: u64) -> Vec<f64> {
    let mut rng = TestRng::new(seed);
    let initial = head.initial(&mut || rng.uniform());
    let noise = rng.f64s(initial.len());
    initial.iter().zip(noise).map(|(&value, noise)| f64::from(value) + 0.1 * noise).collect()
}

fn small() -> Config {
    Config { width: 4, layers: 2, heads: 2, hidden: 6, edge_hidden: 5, ..Config::default() }
}

fn configs() -> Vec<(&'static str, Config)> {
    let view = ItemView { dim: 6, width: 5, dropout: 0.3, target: ViewTarget::States };
    let outlier_view = ItemView { target: ViewTarget::Outlier, ..view.clone() };
    vec![
        ("relations", small()),
        ("centred", Config { centred: true, ..small() }),
        ("item view", Config { item_view: Some(view.clone()), ..small() }),
        ("outlier branch", Config { item_view: Some(outlier_view), ..small() }),
        ("training centre", Config { training_centre: Some(6), ..small() }),
        (
            "training centre and item view",
            Config { training_centre: Some(6), item_view: Some(view.clone()), ..small() },
        ),
        ("centred, with item view", Config { item_view: Some(view), centred: true, layers: 1, ..small() }),
    ]
}

/// Episodes of all kinds: ragged, one item per class, without queries, of one class, with an empty class.
fn ragged() -> Vec<OwnedEpisode> {
    vec![
        OwnedEpisode::new(&[3, 1, 5], 6, 4, 1),
        OwnedEpisode::new(&[1, 1], 6, 3, 2),
        OwnedEpisode::new(&[2, 4, 1, 3], 6, 5, 3),
        OwnedEpisode::new(&[1, 1, 1], 6, 0, 4),
        OwnedEpisode::new(&[4], 6, 2, 5),
        OwnedEpisode::new(&[0, 3, 2], 6, 3, 6),
    ]
}

#[test]
fn the_gradients_of_all_parameters_agree_with_central_differences() {
    for (name, config) in configs() {
        let head = Relabel::new(config);
        // With this seed, no maximum over classes changes its class within a difference.
        let at = parameters(&head, 15);
        let mut gradient = vec![0.0; at.len()];
        losses(&head, &ragged(), &at, &mut gradient);
        let mut unused = vec![0.0; at.len()];
        let mut loss = |at: &[f64]| losses(&head, &ragged(), at, &mut unused).iter().sum();
        for tensor in head.layout().tensors().iter().filter(|tensor| tensor.role == Role::Trained) {
            let what = format!("{name}: {}", tensor.name);
            check_gradient_at(&what, &at, &gradient, tensor.range.clone(), &mut loss);
            let has_gradient = gradient[tensor.range.clone()].iter().any(|&g| g != 0.0);
            assert!(has_gradient, "{what}: all gradients are zero");
        }
    }
}

#[test]
fn the_gradients_of_a_head_of_default_size_agree_with_central_differences() {
    let head = Relabel::new(Config::default());
    let at = parameters(&head, 12);
    let owned = [OwnedEpisode::new(&[5, 1, 4], 6, 4, 8)];
    let mut gradient = vec![0.0; at.len()];
    losses(&head, &owned, &at, &mut gradient);
    let mut rng = TestRng::new(5);
    let indices: Vec<usize> = (0..60).map(|_| rng.below(at.len())).collect();
    let mut unused = vec![0.0; at.len()];
    let loss = |at: &[f64]| losses(&head, &owned, at, &mut unused).iter().sum();
    check_gradient_at("some parameters", &at, &gradient, indices.into_iter(), loss);
}

/// The rows of all episodes in the order of a feature gradient.
fn feature_rows(owned: &mut [OwnedEpisode]) -> impl Iterator<Item = &mut Vec<f64>> {
    owned.iter_mut().flat_map(|episode| episode.support.iter_mut().chain(&mut episode.queries))
}

/// Compares the gradient of every feature with central differences.
fn check_features(name: &str, head: &Relabel, owned: &[OwnedEpisode], parameters: &[f64]) {
    let features: Vec<f64> = feature_rows(&mut owned.to_vec()).flat_map(|row| row.clone()).collect();
    let losses = |features: &[f64], feature_gradient: Option<&mut [f64]>| -> f64 {
        let mut owned = owned.to_vec();
        let mut remaining = features;
        for row in feature_rows(&mut owned) {
            let (moved, after) = remaining.split_at(row.len());
            row.copy_from_slice(moved);
            remaining = after;
        }
        let mut unused = vec![0.0; parameters.len()];
        let terms = with_episodes(&owned, <[Vec<f64>]>::to_vec, |episodes| {
            head.losses_and_gradient(parameters, episodes, 7, &mut unused, feature_gradient)
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
fn the_gradients_of_all_features_agree_with_central_differences() {
    for (name, config) in configs() {
        let head = Relabel::new(config);
        let at = parameters(&head, 15);
        check_features(name, &head, &ragged(), &at);
        for (number, owned) in ragged().into_iter().enumerate() {
            check_features(&format!("{name}, episode {number}"), &head, &[owned], &at);
        }
    }
}

#[test]
fn the_gradients_of_features_through_each_term_of_the_loss_agree_with_central_differences() {
    for (name, config) in configs() {
        for (items_weight, queries_weight) in [(1.0, 0.0), (0.0, 2.0)] {
            let head = Relabel::new(Config { items_weight, queries_weight, ..config.clone() });
            let at = parameters(&head, 15);
            check_features(&format!("{name}, weight of items {items_weight}"), &head, &ragged()[..3], &at);
        }
    }
}

#[test]
fn the_gradients_of_features_in_several_batches_agree_with_central_differences() {
    let view = ItemView { dim: 3, width: 5, dropout: 0.3, target: ViewTarget::States };
    let head = Relabel::new(Config { centred: true, item_view: Some(view), layers: 1, ..small() });
    // 18 items in 18 classes have 324 states: the fourth episode does not fit into the batch of the others.
    let owned: Vec<OwnedEpisode> = (0..4).map(|seed| OwnedEpisode::new(&[1; 18], 3, 2, seed)).collect();
    check_features("two batches", &head, &owned, &parameters(&head, 15));
}

#[test]
fn the_feature_gradient_leaves_losses_and_parameter_gradient_equal_to_the_bit() {
    for (name, config) in configs() {
        let head = Relabel::new(config);
        let at: Vec<f32> = parameters(&head, 5).iter().map(|&value| value as f32).collect();
        with_episodes(&ragged(), rounded, |episodes| {
            let (mut alone, mut with_features) = (vec![0.25f32; at.len()], vec![0.25f32; at.len()]);
            let mut of_features = vec![0.0; episodes.iter().map(Episode::feature_count).sum()];
            let expected = head.losses(&at, episodes, 3, &mut alone);
            let losses =
                head.losses_with_feature_gradient(&at, episodes, 3, &mut with_features, &mut of_features);
            let bits = |numbers: &[f32]| numbers.iter().map(|value| value.to_bits()).collect::<Vec<u32>>();
            assert_eq!(losses, expected, "{name}");
            assert_eq!(bits(&with_features), bits(&alone), "{name}");
            assert!(of_features.iter().any(|&value| value != 0.0), "{name}");
        });
    }
}

#[test]
fn gradients_are_added_to_the_buffer() {
    let head = Relabel::new(small());
    let at = parameters(&head, 3);
    let (mut once, mut twice) = (vec![0.0; at.len()], vec![0.5; at.len()]);
    losses(&head, &ragged(), &at, &mut once);
    losses(&head, &ragged(), &at, &mut twice);
    assert!(once.iter().zip(&twice).all(|(a, b)| (a + 0.5 - b).abs() < 1e-9));
}

#[test]
fn the_losses_of_a_call_are_the_sums_of_those_of_its_episodes() {
    let head = Relabel::new(small());
    let at = parameters(&head, 4);
    let mut unused = vec![0.0; at.len()];
    let together = losses(&head, &ragged(), &at, &mut unused);
    let mut alone = [0.0, 0.0];
    for owned in ragged() {
        let terms = losses(&head, &[owned], &at, &mut unused);
        alone.iter_mut().zip(terms).for_each(|(sum, loss)| *sum += loss);
    }
    assert!(together.iter().zip(&alone).all(|(a, b)| (a - b).abs() < 1e-9), "{together:?} and {alone:?}");
}

#[test]
fn the_same_call_gives_the_same_bytes_after_any_other_call() {
    let head = Relabel::new(Config { item_view: Some(ItemView::new(6)), ..small() });
    let at: Vec<f32> = parameters(&head, 5).iter().map(|&value| value as f32).collect();
    let run = |owned: &[OwnedEpisode], seed: u64| {
        let mut gradient = vec![0.0f32; at.len()];
        with_episodes(owned, rounded, |episodes| {
            head.losses(&at, episodes, seed, &mut gradient);
        });
        gradient.iter().map(|value| value.to_bits()).collect::<Vec<u32>>()
    };
    let first = run(&ragged(), 3);
    assert_ne!(first, run(&ragged(), 4), "another seed has another dropout mask");
    run(&[OwnedEpisode::new(&[9, 9, 9, 9], 6, 50, 1)], 5);
    assert_eq!(first, run(&ragged(), 3));
}

#[test]
fn a_permutation_of_items_and_classes_permutes_the_output() {
    for (name, config) in configs() {
        let head = Relabel::new(Config { layers: 3, ..config });
        let at = parameters(&head, 6);
        let owned = OwnedEpisode::new(&[3, 1, 5, 2], 6, 0, 9);
        let (items, classes) = ([4, 9, 0, 7, 2, 10, 5, 1, 8, 3, 6], [2, 0, 3, 1]);
        let first = predict(&head, &owned, &at);
        let second = predict(&head, &owned.permuted(&items, &classes), &at);
        for (to, &from) in items.iter().enumerate() {
            let mut pairs = vec![(first.probabilities[from * 5 + 4], second.probabilities[to * 5 + 4])];
            for (class, &moved) in classes.iter().enumerate() {
                pairs.push((
                    first.probabilities[from * 5 + class],
                    second.probabilities[to * 5 + moved as usize],
                ));
                pairs.push((first.weights[class * 11 + from], second.weights[moved as usize * 11 + to]));
            }
            for (a, b) in pairs {
                assert!((a - b).abs() < 1e-9, "{name}, item {from}: {a} and {b}");
            }
        }
    }
}

#[test]
fn single_precision_agrees_with_double_on_every_instruction_set() {
    let view = ItemView { dim: 6, width: 16, dropout: 0.2, target: ViewTarget::States };
    for config in [Config::default(), Config { item_view: Some(view), centred: true, ..Config::default() }] {
        let head = Relabel::new(config);
        let wide = parameters(&head, 7);
        let narrow: Vec<f32> = wide.iter().map(|&value| value as f32).collect();
        let wide: Vec<f64> = narrow.iter().map(|&value| f64::from(value)).collect();
        let owned: Vec<OwnedEpisode> = [&[5, 5, 5, 5, 5][..], &[1, 4, 2], &[1, 1, 1]]
            .iter()
            .map(|sizes| OwnedEpisode::new(sizes, 6, 20, 3))
            .collect();
        let mut expected = vec![0.0; wide.len()];
        let mut expected_of_features = vec![0.0; (25 + 7 + 3 + 3 * 20) * 6];
        // The rows as f64 numbers that f32 holds exactly, so that both precisions have the same input.
        let exact = |rows: &[Vec<f64>]| -> Vec<Vec<f64>> {
            rounded(rows).iter().map(|row| row.iter().map(|&value| f64::from(value)).collect()).collect()
        };
        let sums = with_episodes(&owned, exact, |episodes| {
            let of_features = Some(expected_of_features.as_mut_slice());
            head.losses_and_gradient(&wide, episodes, 5, &mut expected, of_features)
        });
        for isa in Isa::usable() {
            let (mut gradient, mut of_features) =
                (vec![0.0; narrow.len()], vec![0.0; expected_of_features.len()]);
            let terms = with_episodes(&owned, rounded, |episodes| {
                isa.scope(|| {
                    head.losses_with_feature_gradient(&narrow, episodes, 5, &mut gradient, &mut of_features)
                })
            });
            assert!(
                terms.iter().zip(&sums).all(|(a, b)| (a - b).abs() < 1e-3 * b.abs()),
                "{terms:?}, {sums:?}"
            );
            for (actual, expected) in [(&gradient, &expected), (&of_features, &expected_of_features)] {
                let length = expected.iter().map(|g| g * g).sum::<f64>().sqrt();
                let error: f64 = actual.iter().zip(expected).map(|(&a, b)| (f64::from(a) - b).powi(2)).sum();
                assert!(
                    error.sqrt() < 2e-3 * length,
                    "{isa:?}: the gradient of length {length} is off by {}",
                    error.sqrt()
                );
            }
        }
    }
}

#[test]
fn degenerate_support_sets_give_finite_results() {
    let same = |count: usize| vec![vec![0.3f32; 6]; count];
    let zeros = |count: usize| vec![vec![0.0f32; 6]; count];
    let mut mixed = rounded(&OwnedEpisode::new(&[4], 6, 0, 1).support);
    mixed[1].fill(0.0);
    mixed[2] = mixed[3].clone();
    let huge: Vec<Vec<f32>> =
        mixed.iter().map(|row| row.iter().map(|&value| 1e8 * value).collect()).collect();
    let tiny: Vec<Vec<f32>> =
        mixed.iter().map(|row| row.iter().map(|&value| 1e-8 * value).collect()).collect();
    let sets: Vec<(Vec<Vec<f32>>, Vec<u32>)> = vec![
        (same(4), vec![0, 0, 1, 1]),
        (zeros(3), vec![0, 1, 1]),
        (same(2), vec![0, 1]),
        (mixed, vec![0, 0, 1, 1]),
        (huge, vec![0, 1, 1, 0]),
        (tiny, vec![1, 1, 1, 0]),
        (same(1), vec![1]),
        (zeros(1), vec![0]),
        (rounded(&OwnedEpisode::new(&[1, 1], 6, 0, 5).support), vec![0, 1]),
    ];
    for (name, config) in configs() {
        let head = Relabel::new(config);
        let at: Vec<f32> = parameters(&head, 8).iter().map(|&value| value as f32).collect();
        for (rows, given) in &sets {
            let rows = slices(rows);
            let input = RelabelInput { classes: 2, given, rows: &rows, gram: None };
            let RelabelOutput { probabilities, weights, .. } = &head.predict(&at, &[input])[0];
            assert!(probabilities.iter().chain(weights).all(|value| value.is_finite()), "{name}: {rows:?}");
            for row in probabilities.chunks_exact(3).chain(weights.chunks_exact(given.len())) {
                assert!((row.iter().sum::<f32>() - 1.0).abs() < 1e-5, "{name}: {row:?}");
            }
            let truth: Vec<Option<u32>> = given.iter().map(|&class| (class > 0).then_some(class)).collect();
            let episode = Episode {
                classes: 2,
                support: &rows,
                given,
                truth: &truth,
                queries: &rows,
                query_classes: given,
            };
            let mut gradient = vec![0.0; at.len()];
            let mut of_features = vec![0.0; episode.feature_count()];
            let losses =
                head.losses_with_feature_gradient(&at, &[episode], 1, &mut gradient, &mut of_features);
            assert!(losses.iter().all(|loss| loss.is_finite()), "{name}: {losses:?} for {rows:?}");
            let mut gradients = gradient.iter().chain(&of_features);
            assert!(gradients.all(|value| value.is_finite()), "{name}: gradient for {rows:?}");
        }
    }
}

#[test]
fn the_prototypes_of_an_untrained_head_are_close_to_the_class_means() {
    let head = Relabel::new(Config::default());
    let mut rng = TestRng::new(1);
    let at: Vec<f64> = head.initial(&mut || rng.uniform()).iter().map(|&value| f64::from(value)).collect();
    for sizes in [&[1, 1, 1, 1, 1][..], &[5, 5, 5], &[3, 2, 4], &[2; 20]] {
        let owned = OwnedEpisode::new(sizes, 6, 0, 2);
        let items = owned.given.len();
        let output = predict(&head, &owned, &at);
        for (class, &size) in sizes.iter().enumerate() {
            let weights = &output.weights[class * items..(class + 1) * items];
            let members = weights.iter().zip(&owned.given).filter(|&(_, &given)| given as usize == class);
            let weight: f64 = members.map(|(weight, _)| weight).sum();
            assert!(weight > 0.6, "class {class} of {sizes:?}: {size} items have a weight of {weight}");
        }
    }
}

#[test]
fn a_given_gram_matrix_replaces_the_rows() {
    let head = Relabel::new(Config { centred: true, ..small() });
    let at = parameters(&head, 9);
    let owned = OwnedEpisode::new(&[3, 2], 6, 0, 4);
    let gram: Vec<f64> = owned
        .support
        .iter()
        .flat_map(|a| owned.support.iter().map(move |b| a.iter().zip(b).map(|(a, b)| a * b).sum()))
        .collect();
    let input = RelabelInput { classes: 2, given: &owned.given, rows: &[], gram: Some(&gram) };
    let from_gram = &head.predict(&at, &[input])[0];
    let expected = predict(&head, &owned, &at);
    assert!(from_gram.probabilities.iter().zip(&expected.probabilities).all(|(a, b)| (a - b).abs() < 1e-9));
}

#[test]
fn the_default_head_has_a_quarter_of_a_million_parameters() {
    let head = Relabel::new(Config::default());
    assert!((200_000..300_000).contains(&head.layout().trained()), "{}", head.layout().trained());
}
