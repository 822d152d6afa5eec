//! Ten training steps against the CPU.

use super::*;
use crate::testing::{Run, assert_same_run, print_bits};

#[test]
fn ten_steps_are_those_of_the_cpu() {
    let config = Config { dropout: 0.1, ..config(40, 3, 16, 2) };
    let network = Tranfs::new(config).unwrap();
    let (input, rows) = step(40, &[&[&[3, 4, 2], &[2, 2]], &[&[5, 1, 3]]], 5);
    // With an epsilon this large, updates are proportional to gradients: with the usual one, the first updates depend
    // on the signs of gradients alone, also where these are almost 0.
    let optimiser = AdamWConfig { epsilon: 0.01, l2: 1e-3, ..AdamWConfig::default() };
    let start = parameters(&network);
    let (mut expected, mut losses) = (start.clone(), Vec::new());
    let mut adamw = AdamW::new(network.layout(), optimiser);
    for _ in 0..10 {
        let (terms, gradient) = cpu_losses(&network, &expected, &input, &rows);
        losses.push(terms.iter().sum());
        // From the sum over three episodes to their mean.
        adamw.step(1e-2, 1.0 / 3.0, &mut expected, &mut [gradient]);
    }
    let cpu = Run::new(losses, &start, &expected);

    let device = device();
    let limits = Limits { episodes: 3, support: 9, queries: 6 };
    let options = TranfsOptions { optimiser, clip: 0.0, limits };
    let features = device.upload(&rows[..FEATURE_ROWS].concat()).unwrap();
    let mut training = TranfsTraining::new(&device, &network, options, &start, features).unwrap();
    let terms = training.run(&vec![input; 10]).unwrap();
    let parameters = training.parameters().unwrap();
    print_bits("tranfs", &[&terms.concat()[..], &parameters[..]].concat());
    let losses = terms.iter().map(|terms| terms.iter().map(|&term| f64::from(term)).sum()).collect();
    assert_same_run("tranfs", &Run::new(losses, &start, &parameters), &cpu, 5e-3, 2e-2);
}
