//! Model files: [`Model`] is a trained network's parameters as named tensors in a safetensors file, with its
//! configuration in notes (texts in the metadata of the file).
//!
//! A model is a backbone, which turns images into feature vectors (`conv4`), a head, which classifies episodes of
//! feature vectors (`tranfs`, `relabel`), or both in one file ([`JOINT`]). Networks keep their parameters in one flat
//! buffer; a `ParameterLayout` says which range of it is which tensor, and [`named`] and [`flat`] convert between the
//! two forms.
//!
//! The note `format` is the version of the file format, `kind` the network (`tranfs`, `relabel`, `conv4`, `maml`,
//! `joint`), `config` its sizes (JSON) and `training` the configuration it was trained with (TOML). Opening a file
//! checks its format; [`Model::parameters`] checks that its tensors are exactly those of the network, and names the
//! first that is not.

use std::borrow::Cow;
use std::ops::RangeInclusive;
use std::path::Path;

use serde::Serialize;
use serde::de::DeserializeOwned;
use trueshot_nn::parameters::ParameterLayout;

use crate::error::{Error, Result};
use crate::tensors::{MODEL, Tensors, check_contents};

/// The version of the file format, in the note `format`.
pub const VERSION: &str = "trueshot-model/1";

/// The kind of a file that holds a backbone and a head that were trained together. Its tensors are those of both, with
/// the prefixes `backbone.` and `head.`; its notes are those of the backbone, and `head_kind` and `head_config`.
/// [`joint_file`] makes such a file, [`backbone_part`] and [`Model::open`] take one part of it.
pub const JOINT: &str = "joint";

/// The dimensions of features that a model file may have. Files are not trusted, and the dimension decides how much
/// memory a network needs.
pub(crate) const MODEL_DIMS: RangeInclusive<usize> = 1..=1 << 20;
/// The problem of a model file whose configuration has other sizes.
pub(crate) const IMPOSSIBLE_SIZES: &str = "its metadata 'config' has sizes that no model has";

/// The contents of a model file: named parameters and notes.
///
/// ```
/// use trueshot::model::Model;
/// use trueshot_nn::parameters::{ParameterLayout, Role};
///
/// let mut layout = ParameterLayout::default();
/// layout.add("weight", &[2, 2], Role::Trained);
/// let model = Model::new("example", &serde_json::json!({ "width": 2 }), &layout, &[1.0, 0.0, 0.0, 1.0]);
/// let read = Model::read_bytes(&model.tensors().to_bytes(), "example.safetensors")?;
/// assert_eq!(read.kind(), "example");
/// assert_eq!(read.parameters(&layout)?, [1.0, 0.0, 0.0, 1.0]);
/// # Ok::<(), trueshot::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Model {
    tensors: Tensors,
}

impl Model {
    /// A model of a kind from its configuration and its flat parameter buffer; `layout` names the parts of the buffer.
    pub fn new(kind: &str, config: &impl Serialize, layout: &ParameterLayout, parameters: &[f32]) -> Self {
        let mut tensors = named(layout, parameters);
        tensors.set_note("format", VERSION);
        tensors.set_note("kind", kind);
        tensors.set_note("config", serde_json::to_string(config).expect("a configuration is plain data"));
        Model { tensors }
    }

    /// Reads a model file. From a file with a backbone and a head that were trained together ([`JOINT`]), it takes the
    /// head.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        Ok(Model { tensors: head_part(Tensors::open_if(path.as_ref(), check_format)?) })
    }

    /// Reads the bytes of a model file; error messages call it `name`.
    pub fn read_bytes(bytes: &[u8], name: &str) -> Result<Self> {
        let tensors = Tensors::read_bytes(bytes.to_vec(), name)?;
        check_format(&tensors)?;
        Ok(Model { tensors: head_part(tensors) })
    }

    /// The kind of network, for instance `tranfs`, `relabel` or `conv4`.
    pub fn kind(&self) -> &str {
        self.tensors.note("kind").unwrap_or("unknown")
    }

    /// Checks that the model is of a kind; otherwise [`Error::OtherModel`].
    pub fn expect_kind(&self, kind: &'static str) -> Result<()> {
        match self.kind() == kind {
            true => Ok(()),
            false => Err(Error::OtherModel {
                path: self.tensors.path().into(),
                found: self.kind().into(),
                wanted: kind,
            }),
        }
    }

    /// The configuration of the network, parsed from the note `config`.
    pub fn config<C: DeserializeOwned>(&self) -> Result<C> {
        let text = self.tensors.note("config").unwrap_or_default();
        serde_json::from_str(text)
            .map_err(|problem| self.malformed(format!("its metadata 'config': {problem}")))
    }

    /// The parameters as a flat buffer in the order of `layout`, whose tensors must be exactly those of the file.
    pub fn parameters(&self, layout: &ParameterLayout) -> Result<Vec<f32>> {
        flat(layout, &self.tensors)
    }

    /// The text of a note, if it exists, such as `training`.
    pub fn note(&self, key: &str) -> Option<&str> {
        self.tensors.note(key)
    }

    /// Adds or replaces a note.
    pub fn set_note(&mut self, key: &str, text: impl Into<String>) {
        self.tensors.set_note(key, text);
    }

    /// The tensors and notes of the file.
    pub fn tensors(&self) -> &Tensors {
        &self.tensors
    }

    /// Writes the file atomically: if writing fails, an existing file stays unchanged.
    pub fn write(&self, path: &Path) -> Result<()> {
        self.tensors.write(path)
    }

    /// An [`Error::Malformed`] about this file.
    pub fn malformed(&self, problem: impl Into<String>) -> Error {
        Error::Malformed { path: self.tensors.path().into(), format: "model", problem: problem.into() }
    }
}

fn check_format(tensors: &Tensors) -> Result<()> {
    check_contents(tensors.path(), tensors.note("format"), MODEL)?;
    let problem = match tensors.note("format") {
        Some(VERSION) => return Ok(()),
        Some(other) => format!("its format is '{other}'; a model has '{VERSION}'"),
        None => format!("it has no metadata 'format'; a model has '{VERSION}'"),
    };
    Err(Error::Malformed { path: tensors.path().into(), format: "model", problem })
}

/// The file of a backbone and a head that were trained together. Notes of the backbone are kept.
pub fn joint_file(backbone: &Tensors, head: &Model) -> Tensors {
    let mut file = Tensors::default();
    backbone.notes().for_each(|(key, text)| file.set_note(key, text));
    file.set_note("kind", JOINT);
    file.set_note("head_kind", head.kind());
    file.set_note("head_config", head.note("config").unwrap_or_default());
    file.insert_all("backbone.", backbone);
    file.insert_all("head.", head.tensors());
    file
}

/// The head of a joint file, with the notes `format`, `kind` and `config`; any other file unchanged.
fn head_part(file: Tensors) -> Tensors {
    if file.note("kind") != Some(JOINT) {
        return file;
    }
    let mut head = file.with_prefix("head.");
    head.set_note("format", VERSION);
    head.set_note("kind", file.note("head_kind").unwrap_or("unknown"));
    head.set_note("config", file.note("head_config").unwrap_or_default());
    head
}

/// The backbone of a joint file; any other file unchanged. Its kind is the note `architecture`, because that of the
/// file is [`JOINT`].
pub fn backbone_part(file: &Tensors) -> Cow<'_, Tensors> {
    if file.note("kind") != Some(JOINT) {
        return Cow::Borrowed(file);
    }
    let mut backbone = file.with_prefix("backbone.");
    file.notes().for_each(|(key, text)| backbone.set_note(key, text));
    backbone.set_note("kind", file.note("architecture").unwrap_or("unknown"));
    Cow::Owned(backbone)
}

/// Converts a flat parameter buffer to named tensors.
pub fn named(layout: &ParameterLayout, parameters: &[f32]) -> Tensors {
    let mut tensors = Tensors::default();
    for tensor in layout.tensors() {
        tensors.insert(&tensor.name, &tensor.shape, parameters[tensor.range.clone()].to_vec());
    }
    tensors
}

/// Converts named tensors to a flat parameter buffer. The tensors must be exactly those of the layout, in its shapes;
/// otherwise [`Error::Malformed`] names the first one that is not.
pub fn flat(layout: &ParameterLayout, tensors: &Tensors) -> Result<Vec<f32>> {
    let malformed =
        |problem: String| Error::Malformed { path: tensors.path().into(), format: "model", problem };
    if let Some((extra, _)) =
        tensors.iter().find(|(name, _)| !layout.tensors().iter().any(|known| known.name == *name))
    {
        return Err(malformed(format!("tensor '{extra}' is not part of its configuration")));
    }
    // All shapes are checked before the buffer is allocated, so that it is no larger than the file.
    for expected in layout.tensors() {
        let name = &expected.name;
        let tensor = tensors.get(name).ok_or_else(|| malformed(format!("it has no tensor '{name}'")))?;
        if tensor.shape != expected.shape {
            let (shape, expected) = (&tensor.shape, &expected.shape);
            return Err(malformed(format!("tensor '{name}' has shape {shape:?} instead of {expected:?}")));
        }
    }
    let mut parameters = vec![0.0; layout.len()];
    let pairs = layout.tensors().iter().filter_map(|expected| Some((expected, tensors.get(&expected.name)?)));
    for (expected, tensor) in pairs {
        parameters[expected.range.clone()].copy_from_slice(&tensor.values);
    }
    Ok(parameters)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensors::tests::{flips, without_checksum};
    use trueshot_nn::parameters::Role;

    fn layout(width: usize) -> ParameterLayout {
        let mut layout = ParameterLayout::default();
        layout.add("first.weight", &[2, width], Role::Trained);
        layout.add("table", &[3], Role::Constant);
        layout
    }

    fn sample() -> Model {
        let parameters: Vec<f32> = (0..11).map(|value| value as f32).collect();
        Model::new("tranfs", &serde_json::json!({ "width": 4 }), &layout(4), &parameters)
    }

    #[test]
    fn a_written_model_is_read_back_unchanged() {
        let model = Model::read_bytes(&sample().tensors().to_bytes(), "m").unwrap();
        assert_eq!(model.parameters(&layout(4)).unwrap()[10], 10.0);
        assert_eq!(model.config::<serde_json::Value>().unwrap()["width"], 4);
        assert!(model.expect_kind("tranfs").is_ok());
        let error = model.expect_kind("relabel").unwrap_err();
        assert_eq!(error.to_string(), "m is a model of kind 'tranfs', not 'relabel'");
        assert!(error.hint().unwrap().contains("tranfs:model="));
    }

    #[test]
    fn a_model_with_any_bit_flipped_is_refused_and_one_without_a_checksum_is_read() {
        let bytes = sample().tensors().to_bytes();
        for (bit, damaged) in flips(&bytes).enumerate() {
            assert!(Model::read_bytes(&damaged, "m").is_err(), "bit {bit}");
        }
        let earlier = Model::read_bytes(&without_checksum(&bytes), "m").unwrap();
        assert_eq!(earlier.parameters(&layout(4)).unwrap(), sample().parameters(&layout(4)).unwrap());
    }

    #[test]
    fn missing_unexpected_and_misshapen_tensors_are_named() {
        let error = |layout: &ParameterLayout| sample().parameters(layout).unwrap_err().to_string();
        assert!(error(&layout(5)).contains("'first.weight' has shape [2, 4] instead of [2, 5]"));
        let mut larger = layout(4);
        larger.add("second.bias", &[1], Role::Trained);
        assert!(error(&larger).contains("no tensor 'second.bias'"));
        let mut smaller = ParameterLayout::default();
        smaller.add("table", &[3], Role::Constant);
        assert!(error(&smaller).contains("tensor 'first.weight' is not part of its configuration"));
    }

    #[test]
    fn an_embeddings_file_is_refused_as_a_model() {
        let mut tensors = Tensors::default();
        tensors.set_note("format", "trueshot-embeddings/1");
        let problem = check_format(&tensors).unwrap_err().to_string();
        assert!(problem.contains("contains embeddings, not a model"), "{problem}");
    }
}
