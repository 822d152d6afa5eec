//! A trained backbone: what turns pictures into embeddings.
//!
//! The file is safetensors with named tensors; its notes say `architecture` (`conv4`), `input_size`, and `mean`
//! and `std` of every channel. That is the form of the reference backbone, and the one training writes.

use std::path::Path;

use trueshot::model;
use trueshot::tensors::Tensors;
use trueshot_nn::Isa;
use trueshot_nn::conv4::{self, Embedder, Scratch, Shape};

use crate::error::{Error, Result};
use crate::picture::Channels;
use crate::preprocess::Preprocessing;
use crate::resize::Fit;

/// The only architecture there is of a backbone.
pub const ARCHITECTURE: &str = "conv4";

/// A backbone ready to embed.
pub struct Backbone {
    embedder: Embedder,
    preprocessing: Preprocessing,
    name: String,
}

impl Backbone {
    /// Reads a file.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let tensors = Tensors::open(path)?;
        let stem = path.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
        Self::from_tensors(&tensors, &stem)
    }

    /// Takes tensors with their notes; `name` is what results call the backbone by, with a hash behind it.
    pub fn from_tensors(tensors: &Tensors, name: &str) -> Result<Self> {
        let preprocessing = preprocessing_of(tensors, ARCHITECTURE)?;
        let shape = Shape { size: preprocessing.size, channels: preprocessing.channels.count() };
        let parameters = model::flat(&conv4::layout(shape.channels), tensors)?;
        let embedder = Embedder::new(shape, &parameters);
        Ok(Backbone {
            embedder,
            preprocessing,
            name: format!("{name} ({ARCHITECTURE}, {})", hash(&parameters)),
        })
    }

    /// Takes parameters in memory, for instance in the middle of training.
    pub fn from_parameters(preprocessing: Preprocessing, parameters: &[f32]) -> Self {
        let shape = Shape { size: preprocessing.size, channels: preprocessing.channels.count() };
        let name = format!("{ARCHITECTURE}, {}", hash(parameters));
        Backbone { embedder: Embedder::new(shape, parameters), preprocessing, name }
    }

    /// What it is called in the files it makes: name, architecture and a hash of its parameters.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What its pictures must be.
    pub fn preprocessing(&self) -> &Preprocessing {
        &self.preprocessing
    }

    /// Decides what becomes of pictures that are no squares.
    pub fn set_fit(&mut self, fit: Fit) {
        self.preprocessing.fit = fit;
    }

    /// Numbers of an embedding.
    pub fn dim(&self) -> usize {
        self.embedder.shape().features()
    }

    /// Working memory for one thread.
    pub fn scratch(&self) -> Scratch {
        self.embedder.scratch()
    }

    /// Embeds normalised pictures on the calling thread.
    pub fn embed(&self, isa: Isa, pictures: &[f32], out: &mut [f32], scratch: &mut Scratch) {
        self.embedder.embed(isa, pictures, out, scratch);
    }
}

/// The first 16 digits of the parameters' hash.
fn hash(parameters: &[f32]) -> String {
    let mut hasher = blake3::Hasher::new();
    for value in parameters {
        hasher.update(&value.to_le_bytes());
    }
    hasher.finalize().to_hex()[..16].to_owned()
}

/// The notes that belong to preprocessing, as training writes them.
pub(crate) fn note_preprocessing(tensors: &mut Tensors, preprocessing: &Preprocessing, architecture: &str) {
    let list = |values: &[f32]| values.iter().map(f32::to_string).collect::<Vec<_>>().join(",");
    tensors.set_note("architecture", architecture);
    tensors.set_note("input_size", preprocessing.size.to_string());
    tensors.set_note("mean", list(&preprocessing.mean));
    tensors.set_note("std", list(&preprocessing.std));
}

pub(crate) fn preprocessing_of(tensors: &Tensors, wanted: &str) -> Result<Preprocessing> {
    let bad = |problem: String| Error::NotABackbone { path: tensors.path().into(), problem };
    let note = |key: &str| tensors.note(key).ok_or_else(|| bad(format!("it has no note '{key}'")));
    let architecture = note("architecture")?;
    if architecture != wanted {
        return Err(bad(format!("its architecture is '{architecture}'; known is '{wanted}'")));
    }
    let numbers = |key: &str| -> Result<Vec<f32>> {
        let text = note(key)?;
        let numbers = text.split(',').map(|number| number.trim().parse());
        numbers.collect::<Result<_, _>>().map_err(|_| bad(format!("its note '{key}' is '{text}'")))
    };
    let (mean, std) = (numbers("mean")?, numbers("std")?);
    let channels = match mean.len() {
        1 => Channels::Grey,
        3 => Channels::Colour,
        other => return Err(bad(format!("its note 'mean' has {other} numbers; pictures have 1 or 3"))),
    };
    let size = note("input_size")?;
    let size = size.trim().parse().map_err(|_| bad(format!("its note 'input_size' is '{size}'")))?;
    if !(Shape { size, channels: channels.count() }).is_possible() {
        let (least, most) = (Shape::SMALLEST, Shape::LARGEST);
        return Err(bad(format!("its note 'input_size' is {size}; possible are {least} to {most}")));
    }
    let preprocessing = Preprocessing { size, channels, mean, std, fit: Fit::default() };
    preprocessing.check()?;
    Ok(preprocessing)
}
