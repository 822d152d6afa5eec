//! The native half of the Python package `trueshot`: conversion only.
//!
//! Arrays and Arrow come in without a copy where their form allows it (`memory`, `capsules`), work runs on threads of our
//! own with the interpreter's lock released (`work`), and errors become the exceptions that users of scikit-learn expect
//! (`problem`). What can be said in Python is said there, in `python/trueshot/`: labels of any type, estimators,
//! defaults and documentation. Nothing in here is meant to be called by users.

mod arrow_capsules;
mod audit;
mod batch;
mod classifier;
mod columns;
mod command_line;
mod evaluation;
mod exceptions;
mod interruptible;
mod methods;
mod numpy_features;
mod thread_pools;
mod training;

use pyo3::prelude::*;

/// What `trueshot` is made of; users import that instead.
#[pymodule]
mod _native {
    #[pymodule_export]
    use crate::arrow_capsules::Batches;
    #[pymodule_export]
    use crate::audit::{Audit, audit};
    #[pymodule_export]
    use crate::batch::{audit_batch, fit_batch, prototypes_batch};
    #[pymodule_export]
    use crate::classifier::Classifier;
    #[pymodule_export]
    use crate::command_line::main_from;
    #[pymodule_export]
    use crate::evaluation::{Evaluation, evaluate, sample_episodes};
    #[pymodule_export]
    use crate::training::train_head;

    use pyo3::prelude::*;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
