//! Training of the head TraNFS: the default configuration ([`Configuration::tranfs`]), and how its options become a
//! network, a model file and a method. The training itself is in the parent module.

use trueshot_nn::head::{Head, JointHead};
use trueshot_nn::tranfs::Tranfs;

use super::configuration::{Configuration, CountRange, Data, Episodes, Validation};
use super::{HeadOptions, LearnedHead};
use crate::error::Result;
use crate::method::{Method, TRANFS, TrainedTranfs, TranfsConfig, TranfsOptions};
use crate::model::Model;
use crate::training::Optimiser;

impl Configuration<TranfsOptions> {
    /// The default configuration of TraNFS, that of the paper's main experiment: one model for symmetric noise, 5 ways
    /// and 5 shots.
    pub fn tranfs() -> Self {
        let noise = vec!["symmetric=0,20,40".parse().expect("a valid constant")];
        Configuration {
            seed: 0,
            steps: 25_000,
            parts: 4,
            from: Default::default(),
            data: Data::default(),
            episodes: Episodes {
                per_step: 16,
                ways: vec![CountRange::exactly(5)],
                shots: vec![CountRange::exactly(5)],
                queries: 15,
                noise,
                blended: 0.0,
                mixed: 0.0,
            },
            validation: Validation {
                every: 1000,
                episodes: 500,
                ways: vec![],
                shots: vec![],
                queries: 15,
                noise: vec![],
                seed: 0,
            },
            optimiser: Optimiser::default(),
            model: TranfsOptions::default(),
        }
    }
}

/// The TraNFS network with the options it was built from.
struct TranfsHead {
    options: TranfsOptions,
    network: Tranfs,
}

impl HeadOptions for TranfsOptions {
    const KIND: &'static str = TRANFS;

    fn check(&self) -> Result<()> {
        TranfsOptions::check(self)
    }

    fn for_episodes(&self, ways: usize) -> Self {
        let classes = if self.classes == 0 { ways } else { self.classes };
        TranfsOptions { classes, ..self.clone() }
    }

    fn max_classes(&self) -> Option<usize> {
        Some(self.classes)
    }

    fn build(&self, dim: usize) -> Result<Box<dyn LearnedHead>> {
        Ok(Box::new(TranfsHead { options: self.clone(), network: self.network(dim)? }))
    }
}

impl LearnedHead for TranfsHead {
    fn head(&self) -> &dyn JointHead {
        &self.network
    }

    fn model(&self, parameters: &[f32]) -> Model {
        let config = TranfsConfig { dim: self.network.config().dim, options: self.options.clone() };
        Model::new(TRANFS, &config, self.network.layout(), parameters)
    }

    fn method(&self, parameters: &[f32]) -> Box<dyn Method> {
        Box::new(TrainedTranfs::new(self.network.clone(), parameters.to_vec()))
    }

    fn max_classes(&self) -> Option<usize> {
        Some(self.options.classes)
    }

    #[cfg(feature = "cuda")]
    fn gpu_head(&self) -> Option<super::GpuHead<'_>> {
        Some(super::GpuHead::Tranfs(&self.network))
    }
}
