//! Training of the head Relabel: the default configuration ([`Configuration::relabel`]), and how its options become a
//! network, a model file and a method. The training itself is in the parent module.

use trueshot_nn::head::{Head, JointHead};
use trueshot_nn::relabel::Relabel;

use super::configuration::{Configuration, CountRange, Data, Episodes, Validation};
use super::{HeadOptions, LearnedHead};
use crate::error::Result;
use crate::method::{Method, RELABEL, RelabelConfig, RelabelOptions, TrainedRelabel};
use crate::model::Model;
use crate::training::Optimiser;

impl Configuration<RelabelOptions> {
    /// The default configuration of Relabel: one model for all noise types and for 1 to 10 shots.
    ///
    /// One shot is among them because a single item of a class has no other item to be compared with: a head that was
    /// not trained on this case calls every label wrong.
    pub fn relabel() -> Self {
        let noise = ["symmetric=0,20,40,60", "paired=0,20,40", "outlier=0,20,40,60"];
        Configuration {
            seed: 0,
            steps: 20_000,
            parts: 4,
            from: Default::default(),
            data: Data::default(),
            episodes: Episodes {
                per_step: 32,
                ways: vec![CountRange::exactly(5)],
                shots: [1, 2, 3, 5, 10].map(CountRange::exactly).to_vec(),
                queries: 15,
                noise: noise.map(|levels| levels.parse().expect("a valid constant")).to_vec(),
                blended: 0.0,
                mixed: 0.0,
            },
            validation: Validation {
                every: 1000,
                episodes: 500,
                ways: vec![],
                shots: vec![CountRange::exactly(5)],
                queries: 15,
                noise: vec![],
                seed: 0,
            },
            optimiser: Optimiser::default(),
            model: RelabelOptions::default(),
        }
    }
}

/// The Relabel network with the options it was built from.
struct RelabelHead {
    options: RelabelOptions,
    network: Relabel,
}

impl HeadOptions for RelabelOptions {
    const KIND: &'static str = RELABEL;

    fn check(&self) -> Result<()> {
        RelabelOptions::check(self)
    }

    fn takes_any_dimension(&self) -> bool {
        RelabelOptions::takes_any_dimension(self)
    }

    fn build(&self, dim: usize) -> Result<Box<dyn LearnedHead>> {
        Ok(Box::new(RelabelHead { options: self.clone(), network: self.network(dim)? }))
    }
}

impl LearnedHead for RelabelHead {
    fn head(&self) -> &dyn JointHead {
        &self.network
    }

    fn model(&self, parameters: &[f32]) -> Model {
        let config = RelabelConfig { dim: self.network.config().dim(), options: self.options.clone() };
        Model::new(RELABEL, &config, self.network.layout(), parameters)
    }

    fn method(&self, parameters: &[f32]) -> Box<dyn Method> {
        Box::new(TrainedRelabel::new(self.network.clone(), parameters.to_vec()))
    }

    #[cfg(feature = "cuda")]
    fn gpu_head(&self) -> Option<super::GpuHead<'_>> {
        Some(super::GpuHead::Relabel(&self.network))
    }
}
