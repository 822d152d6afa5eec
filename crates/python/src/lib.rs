//! The extension module of the Python package `trueshot`: it converts between Python and the library, and computes
//! nothing itself. Users do not call it.
//!
//! Each function that users reach has a file: `audit`, `classifier`, `evaluation`, `training`, `batch` (tables with one
//! task per row), `embeddings` (files) and `command_line`. The other files are what these share. Arrays and Arrow
//! tables are passed without a copy if their layout allows it (`numpy_features`, `arrow_capsules`, `columns`). Work
//! runs on thread pools of this module with the GIL released (`thread_pools`, `interruptible`), and user-defined
//! functions run on the calling thread (`user_functions`). Errors become the exceptions that users of scikit-learn
//! expect (`exceptions`). Labels of any type, estimators, defaults and documentation are in Python, in
//! `python/trueshot/`; `_native.pyi` there lists everything that this module exports.

mod arrow_capsules;
mod audit;
mod batch;
mod classifier;
mod columns;
mod command_line;
mod embeddings;
mod evaluation;
mod exceptions;
mod interruptible;
mod methods;
mod numpy_features;
mod thread_pools;
mod training;
mod user_functions;

use pyo3::prelude::*;

/// The native part of the package `trueshot`, which users import instead.
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
    use crate::embeddings::{read_embeddings, write_embeddings};
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
