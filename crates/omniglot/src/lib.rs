//! The data files of Omniglot: the drawings, and a TraNFS head trained on their embeddings.
//!
//! `trueshot-vision` reads both (`trueshot_vision::omniglot`, `trueshot_vision::built_in`). They are in a separate
//! crate because one package with all built-in data would be larger than package registries accept. Sources, licences
//! and the commands that made the files: `docs/built-in.md`.

/// The packed drawings; the format is documented in `trueshot_vision::omniglot`.
pub static DRAWINGS: &[u8] = include_bytes!("../assets/omniglot.bin");

/// A trained TraNFS head for embeddings of the drawings by the backbone `omniglot-conv4`, as a model file
/// (safetensors). TraNFS is a network that classifies embeddings by a few labelled examples, some of them with wrong
/// labels.
pub static TRANFS: &[u8] = include_bytes!("../assets/omniglot-tranfs.safetensors");
