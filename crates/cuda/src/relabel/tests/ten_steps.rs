//! Ten training steps against the CPU.

use super::*;
use crate::testing::{Run, assert_same_run, print_bits};

#[test]
fn ten_steps_are_those_of_the_cpu() {
    let mut random = random(15);
    let episodes: Vec<OwnedEpisode> = [&[3usize, 3, 3][..], &[2, 4]]
        .iter()
        .map(|sizes| OwnedEpisode::new(sizes, 12, 6, &mut random))
        .collect();
    let parts = [(&episodes[..1], 21), (&episodes[1..], 22)];
    let view = ItemView { dim: 12, width: 6, dropout: 0.2, target: ViewTarget::States };
    let network = Relabel::new(Config { width: 16, heads: 2, hidden: 16, item_view: Some(view), ..small() });
    // AdamW divides by the root of the mean square gradient plus epsilon. With the usual epsilon, the first updates are
    // the signs of the gradients, so a rounding error in a gradient near 0 changes them fully. With an epsilon far
    // above the gradients, updates are proportional to gradients.
    let adamw = AdamWConfig { epsilon: 0.01, ..AdamWConfig::default() };
    let start = parameters(&network, 4);
    let (mut expected, mut losses) = (start.clone(), Vec::new());
    let mut optimiser = AdamW::new(network.layout(), adamw);
    for _ in 0..10 {
        let (terms, gradient) = cpu_losses(&network, &expected, &parts);
        losses.push(terms.iter().sum());
        optimiser.step(1e-2, 1.0, &mut expected, &mut [gradient]);
    }
    let cpu = Run::new(losses, &start, &expected);

    let options = OptimiserOptions { adamw, clip: 0.0 };
    let mut training = RelabelTraining::new(&device(), &network, options, &start, &[]).unwrap();
    let terms = training.run(&vec![step(1e-2, &parts); 10]).unwrap();
    let parameters = training.parameters().unwrap();
    let losses: Vec<f32> = terms.iter().map(|terms| terms.items + terms.queries).collect();
    print_bits("relabel", &[&losses[..], &parameters[..]].concat());
    let losses = losses.iter().map(|&loss| f64::from(loss)).collect();
    assert_same_run("relabel", &Run::new(losses, &start, &parameters), &cpu, 5e-3, 4e-2);
}
