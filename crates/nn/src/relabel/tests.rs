//! The head as a whole: gradients, symmetry, precision, and what it makes of strange support sets.

use super::*;
use crate::differences::{Numbers, check_some};
use crate::parameters::Role;

/// An episode that owns its numbers.
#[derive(Clone)]
struct Owned {
    classes: usize,
    support: Vec<Vec<f64>>,
    given: Vec<u32>,
    truth: Vec<Option<u32>>,
    queries: Vec<Vec<f64>>,
    query_classes: Vec<u32>,
}

impl Owned {
    /// Classes of these sizes around centres of their own, some items wrong.
    fn new(sizes: &[usize], dim: usize, queries: usize, seed: u64) -> Self {
        let mut numbers = Numbers::new(seed);
        let classes = sizes.len();
        let centres: Vec<Vec<f64>> = (0..classes + 1).map(|_| numbers.doubles(dim)).collect();
        let near = |class: usize, numbers: &mut Numbers| -> Vec<f64> {
            centres[class].iter().zip(numbers.doubles(dim)).map(|(c, n)| 0.5 + c + 0.7 * n).collect()
        };
        let (mut support, mut given, mut truth) = (Vec::new(), Vec::new(), Vec::new());
        for (class, &size) in sizes.iter().enumerate() {
            for item in 0..size {
                let really = if item % 3 == 2 { numbers.below(classes + 1) } else { class };
                support.push(near(really, &mut numbers));
                given.push(class as u32);
                truth.push((really < classes).then_some(really as u32));
            }
        }
        let query_classes: Vec<u32> = (0..queries).map(|_| numbers.below(classes) as u32).collect();
        let queries = query_classes.iter().map(|&class| near(class as usize, &mut numbers)).collect();
        Owned { classes, support, given, truth, queries, query_classes }
    }

    /// Items and classes in another order.
    fn reordered(&self, items: &[usize], classes: &[u32]) -> Self {
        Owned {
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

/// Runs something over borrowed episodes of either precision.
fn with_episodes<T, R>(
    owned: &[Owned],
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

fn losses(head: &Relabel, owned: &[Owned], parameters: &[f64], gradient: &mut [f64]) -> Vec<f64> {
    with_episodes(owned, <[Vec<f64>]>::to_vec, |episodes| {
        head.losses_of(Isa::current(), parameters, episodes, 7, gradient)
    })
}

fn judge(head: &Relabel, owned: &Owned, parameters: &[f64]) -> Judgement<f64> {
    let rows = slices(&owned.support);
    let support = Support { classes: owned.classes, given: &owned.given, rows: &rows, gram: None };
    head.judge(Isa::current(), parameters, &[support]).remove(0)
}

/// Parameters as training might leave them: nothing zero.
fn parameters(head: &Relabel, seed: u64) -> Vec<f64> {
    let mut numbers = Numbers::new(seed);
    let initial = head.initial(&mut || numbers.uniform());
    let noise = numbers.doubles(initial.len());
    initial.iter().zip(noise).map(|(&value, noise)| f64::from(value) + 0.1 * noise).collect()
}

fn small() -> Config {
    Config { width: 4, layers: 2, heads: 2, hidden: 6, edge_hidden: 5, ..Config::default() }
}

fn configs() -> Vec<(&'static str, Config)> {
    let view = ItemView { dim: 6, width: 5, dropout: 0.3, reach: Reach::States };
    vec![
        ("relations", small()),
        ("centred", Config { centred: true, ..small() }),
        ("item view", Config { item_view: Some(view.clone()), ..small() }),
        ("suspicion", Config { item_view: Some(ItemView { reach: Reach::None, ..view.clone() }), ..small() }),
        ("both", Config { item_view: Some(view), centred: true, layers: 1, ..small() }),
    ]
}

fn ragged() -> Vec<Owned> {
    vec![
        Owned::new(&[3, 1, 5], 6, 4, 1),
        Owned::new(&[1, 1], 6, 3, 2),
        Owned::new(&[2, 4, 1, 3], 6, 5, 3),
        Owned::new(&[1, 1, 1], 6, 0, 4),
        Owned::new(&[4], 6, 2, 5),
        Owned::new(&[0, 3, 2], 6, 3, 6),
    ]
}

#[test]
fn gradients_are_those_of_central_differences() {
    for (name, config) in configs() {
        let head = Relabel::new(config);
        // A seed for which no maximum over classes changes hands within a difference.
        let at = parameters(&head, 15);
        let mut gradient = vec![0.0; at.len()];
        losses(&head, &ragged(), &at, &mut gradient);
        let mut unused = vec![0.0; at.len()];
        let mut loss = |at: &[f64]| losses(&head, &ragged(), at, &mut unused).iter().sum();
        for tensor in head.layout().tensors().iter().filter(|tensor| tensor.role == Role::Trained) {
            let what = format!("{name}: {}", tensor.name);
            check_some(&what, &at, &gradient, tensor.range.clone(), &mut loss);
            let moved = gradient[tensor.range.clone()].iter().any(|&g| g != 0.0);
            assert!(moved, "{what} has no gradient at all");
        }
    }
}

#[test]
fn gradients_of_a_head_of_full_size_are_right_too() {
    let head = Relabel::new(Config::default());
    let at = parameters(&head, 12);
    let owned = [Owned::new(&[5, 1, 4], 6, 4, 8)];
    let mut gradient = vec![0.0; at.len()];
    losses(&head, &owned, &at, &mut gradient);
    let mut numbers = Numbers::new(5);
    let places: Vec<usize> = (0..60).map(|_| numbers.below(at.len())).collect();
    let mut unused = vec![0.0; at.len()];
    let loss = |at: &[f64]| losses(&head, &owned, at, &mut unused).iter().sum();
    check_some("some parameters", &at, &gradient, places.into_iter(), loss);
}

#[test]
fn gradients_are_added_to_what_is_there() {
    let head = Relabel::new(small());
    let at = parameters(&head, 3);
    let (mut once, mut twice) = (vec![0.0; at.len()], vec![0.5; at.len()]);
    losses(&head, &ragged(), &at, &mut once);
    losses(&head, &ragged(), &at, &mut twice);
    assert!(once.iter().zip(&twice).all(|(a, b)| (a + 0.5 - b).abs() < 1e-9));
}

#[test]
fn losses_of_a_call_are_those_of_its_episodes() {
    let head = Relabel::new(small());
    let at = parameters(&head, 4);
    let mut unused = vec![0.0; at.len()];
    let together = losses(&head, &ragged(), &at, &mut unused);
    let mut alone = [0.0, 0.0];
    for owned in ragged() {
        let one = losses(&head, &[owned], &at, &mut unused);
        alone.iter_mut().zip(one).for_each(|(sum, loss)| *sum += loss);
    }
    assert!(together.iter().zip(&alone).all(|(a, b)| (a - b).abs() < 1e-9), "{together:?} and {alone:?}");
}

#[test]
fn the_same_call_gives_the_same_bytes_whatever_was_done_before() {
    let head = Relabel::new(Config { item_view: Some(ItemView::new(6)), ..small() });
    let at: Vec<f32> = parameters(&head, 5).iter().map(|&value| value as f32).collect();
    let run = |owned: &[Owned], seed: u64| {
        let mut gradient = vec![0.0f32; at.len()];
        with_episodes(owned, rounded, |episodes| {
            head.losses(Isa::current(), &at, episodes, seed, &mut gradient);
        });
        gradient.iter().map(|value| value.to_bits()).collect::<Vec<u32>>()
    };
    let first = run(&ragged(), 3);
    assert_ne!(first, run(&ragged(), 4), "another seed drops other numbers");
    run(&[Owned::new(&[9, 9, 9, 9], 6, 50, 1)], 5);
    assert_eq!(first, run(&ragged(), 3));
}

#[test]
fn the_order_of_items_and_classes_does_not_matter() {
    for (name, config) in configs() {
        let head = Relabel::new(Config { layers: 3, ..config });
        let at = parameters(&head, 6);
        let owned = Owned::new(&[3, 1, 5, 2], 6, 0, 9);
        let (items, classes) = ([4, 9, 0, 7, 2, 10, 5, 1, 8, 3, 6], [2, 0, 3, 1]);
        let (first, second) =
            (judge(&head, &owned, &at), judge(&head, &owned.reordered(&items, &classes), &at));
        for (to, &from) in items.iter().enumerate() {
            let mut pairs = vec![(first.shares[from * 5 + 4], second.shares[to * 5 + 4])];
            for (class, &moved) in classes.iter().enumerate() {
                pairs.push((first.shares[from * 5 + class], second.shares[to * 5 + moved as usize]));
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
    let view = ItemView { dim: 6, width: 16, dropout: 0.2, reach: Reach::States };
    for config in [Config::default(), Config { item_view: Some(view), centred: true, ..Config::default() }] {
        let head = Relabel::new(config);
        let wide = parameters(&head, 7);
        let narrow: Vec<f32> = wide.iter().map(|&value| value as f32).collect();
        let wide: Vec<f64> = narrow.iter().map(|&value| f64::from(value)).collect();
        let owned: Vec<Owned> = [&[5, 5, 5, 5, 5][..], &[1, 4, 2], &[1, 1, 1]]
            .iter()
            .map(|sizes| Owned::new(sizes, 6, 20, 3))
            .collect();
        let mut expected = vec![0.0; wide.len()];
        let exact = |rows: &[Vec<f64>]| -> Vec<Vec<f64>> {
            rounded(rows).iter().map(|row| row.iter().map(|&value| f64::from(value)).collect()).collect()
        };
        let sums = with_episodes(&owned, exact, |episodes| {
            head.losses_of(Isa::Portable, &wide, episodes, 5, &mut expected)
        });
        let size = expected.iter().map(|g| g * g).sum::<f64>().sqrt();
        for isa in Isa::ALL.into_iter().filter(|isa| isa.is_usable()) {
            let mut gradient = vec![0.0; narrow.len()];
            let found = with_episodes(&owned, rounded, |episodes| {
                head.losses(isa, &narrow, episodes, 5, &mut gradient)
            });
            assert!(
                found.iter().zip(&sums).all(|(a, b)| (a - b).abs() < 1e-3 * b.abs()),
                "{found:?}, {sums:?}"
            );
            let off: f64 = gradient.iter().zip(&expected).map(|(&a, b)| (f64::from(a) - b).powi(2)).sum();
            assert!(
                off.sqrt() < 2e-3 * size,
                "{isa:?}: the gradient of size {size} is off by {}",
                off.sqrt()
            );
        }
    }
}

#[test]
fn strange_support_sets_get_finite_answers() {
    let same = |count: usize| vec![vec![0.3f32; 6]; count];
    let zeros = |count: usize| vec![vec![0.0f32; 6]; count];
    let mut mixed = rounded(&Owned::new(&[4], 6, 0, 1).support);
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
        (rounded(&Owned::new(&[1, 1], 6, 0, 5).support), vec![0, 1]),
    ];
    for (name, config) in configs() {
        let head = Relabel::new(config);
        let at: Vec<f32> = parameters(&head, 8).iter().map(|&value| value as f32).collect();
        for (rows, given) in &sets {
            let rows = slices(rows);
            let support = Support { classes: 2, given, rows: &rows, gram: None };
            let Judgement { shares, weights, .. } = &head.judge(Isa::current(), &at, &[support])[0];
            assert!(shares.iter().chain(weights).all(|value| value.is_finite()), "{name}: {rows:?}");
            for row in shares.chunks_exact(3).chain(weights.chunks_exact(given.len())) {
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
            let losses = head.losses(Isa::current(), &at, &[episode], 1, &mut gradient);
            assert!(losses.iter().all(|loss| loss.is_finite()), "{name}: {losses:?} for {rows:?}");
            assert!(gradient.iter().all(|value| value.is_finite()), "{name}: gradient for {rows:?}");
        }
    }
}

#[test]
fn before_training_prototypes_are_close_to_the_means_of_their_items() {
    let head = Relabel::new(Config::default());
    let mut numbers = Numbers::new(1);
    let at: Vec<f64> =
        head.initial(&mut || numbers.uniform()).iter().map(|&value| f64::from(value)).collect();
    for sizes in [&[1, 1, 1, 1, 1][..], &[5, 5, 5], &[3, 2, 4], &[2; 20]] {
        let owned = Owned::new(sizes, 6, 0, 2);
        let items = owned.given.len();
        let judgement = judge(&head, &owned, &at);
        for (class, &size) in sizes.iter().enumerate() {
            let weights = &judgement.weights[class * items..(class + 1) * items];
            let own = weights.iter().zip(&owned.given).filter(|&(_, &given)| given as usize == class);
            let own: f64 = own.map(|(weight, _)| weight).sum();
            assert!(own > 0.6, "class {class} of {sizes:?}: {size} items weigh {own}");
        }
    }
}

#[test]
fn products_may_be_handed_in() {
    let head = Relabel::new(Config { centred: true, ..small() });
    let at = parameters(&head, 9);
    let owned = Owned::new(&[3, 2], 6, 0, 4);
    let gram: Vec<f64> = owned
        .support
        .iter()
        .flat_map(|a| owned.support.iter().map(move |b| a.iter().zip(b).map(|(a, b)| a * b).sum()))
        .collect();
    let support = Support { classes: 2, given: &owned.given, rows: &[], gram: Some(&gram) };
    let found = &head.judge(Isa::current(), &at, &[support])[0];
    let expected = judge(&head, &owned, &at);
    assert!(found.shares.iter().zip(&expected.shares).all(|(a, b)| (a - b).abs() < 1e-9));
}

#[test]
fn the_default_head_has_a_quarter_of_a_million_parameters() {
    let head = Relabel::new(Config::default());
    assert!((200_000..300_000).contains(&head.layout().trained()), "{}", head.layout().trained());
}
