//! The data files of Omniglot: the drawings, and a TraNFS head trained on their embeddings.
//!
//! `trueshot-vision` reads both (`trueshot_vision::omniglot`, `trueshot_vision::built_in`). They are in a separate crate
//! because one package with all built-in data would be larger than package registries accept. Sources, licences and the
//! commands that made the files: `docs/built-in.md`.

/// The packed drawings; the format is documented in `trueshot_vision::omniglot`.
pub static DRAWINGS: &[u8] = include_bytes!("../assets/omniglot.bin");

/// A TraNFS head for embeddings of the drawings, as a model file.
pub static TRANFS: &[u8] = include_bytes!("../assets/omniglot-tranfs.safetensors");
