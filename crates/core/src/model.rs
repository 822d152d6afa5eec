//! Model files: a trained model's parameters under their names, and in the notes everything needed to use them.
//!
//! `format` says that it is ours, `kind` which model, `config` (JSON) how large it is; `training` (TOML) how it
//! came about. A file that lacks a tensor, has one too many or one of another shape is refused by name.

use std::path::Path;

use serde::Serialize;
use serde::de::DeserializeOwned;
use trueshot_nn::parameters::ParameterLayout;

use crate::error::{Error, Result};
use crate::tensors::Tensors;

/// The version of the file format.
pub const VERSION: &str = "trueshot-model/1";

/// A model file's contents.
#[derive(Debug, Clone, PartialEq)]
pub struct Model {
    tensors: Tensors,
}

impl Model {
    /// Names the parameters of a model.
    pub fn new(kind: &str, config: &impl Serialize, layout: &ParameterLayout, parameters: &[f32]) -> Self {
        let mut tensors = named(layout, parameters);
        tensors.set_note("format", VERSION);
        tensors.set_note("kind", kind);
        tensors.set_note("config", serde_json::to_string(config).expect("a configuration is plain data"));
        Model { tensors }
    }

    /// Reads a file.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        Ok(Model { tensors: Tensors::open_if(path.as_ref(), check_format)? })
    }

    /// Reads a model that is part of the program.
    pub fn read_bytes(bytes: &[u8], name: &str) -> Result<Self> {
        let tensors = Tensors::read_bytes(bytes.to_vec(), name)?;
        check_format(&tensors)?;
        Ok(Model { tensors })
    }

    /// Which model it is: `tranfs`, `relabel`, `conv4`.
    pub fn kind(&self) -> &str {
        self.tensors.note("kind").unwrap_or("unknown")
    }

    /// Refuses a model of another kind.
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

    /// Its configuration.
    pub fn config<C: DeserializeOwned>(&self) -> Result<C> {
        let text = self.tensors.note("config").unwrap_or_default();
        serde_json::from_str(text)
            .map_err(|problem| self.malformed(format!("its metadata 'config': {problem}")))
    }

    /// Its parameters as a flat buffer.
    pub fn parameters(&self, layout: &ParameterLayout) -> Result<Vec<f32>> {
        flat(layout, &self.tensors)
    }

    /// A note, for instance on how it was trained.
    pub fn note(&self, key: &str) -> Option<&str> {
        self.tensors.note(key)
    }

    /// Adds a note.
    pub fn set_note(&mut self, key: &str, text: impl Into<String>) {
        self.tensors.set_note(key, text);
    }

    /// Its tensors and notes.
    pub fn tensors(&self) -> &Tensors {
        &self.tensors
    }

    /// Writes a file that appears whole or not at all.
    pub fn write(&self, path: &Path) -> Result<()> {
        self.tensors.write(path)
    }

    /// An error about the contents.
    pub fn malformed(&self, problem: impl Into<String>) -> Error {
        Error::Malformed { path: self.tensors.path().into(), format: "model", problem: problem.into() }
    }
}

fn check_format(tensors: &Tensors) -> Result<()> {
    let problem = match tensors.note("format") {
        Some(VERSION) => return Ok(()),
        Some(other) => format!("its format is '{other}'; a model has '{VERSION}'"),
        None => format!("it has no metadata 'format'; a model has '{VERSION}'"),
    };
    Err(Error::Malformed { path: tensors.path().into(), format: "model", problem })
}

/// A flat buffer as named tensors.
pub fn named(layout: &ParameterLayout, parameters: &[f32]) -> Tensors {
    let mut tensors = Tensors::default();
    for tensor in layout.tensors() {
        tensors.insert(&tensor.name, &tensor.shape, parameters[tensor.range.clone()].to_vec());
    }
    tensors
}

/// Named tensors as a flat buffer: exactly those of the layout, in their shapes.
pub fn flat(layout: &ParameterLayout, tensors: &Tensors) -> Result<Vec<f32>> {
    let problem =
        |problem: String| Error::Malformed { path: tensors.path().into(), format: "model", problem };
    if let Some((extra, _)) =
        tensors.iter().find(|(name, _)| !layout.tensors().iter().any(|known| known.name == *name))
    {
        return Err(problem(format!("tensor '{extra}' is not part of its configuration")));
    }
    // Shapes first: only then is it known that no more is allocated than the file holds.
    for wanted in layout.tensors() {
        let name = &wanted.name;
        let found = tensors.get(name).ok_or_else(|| problem(format!("it has no tensor '{name}'")))?;
        if found.shape != wanted.shape {
            let (found, wanted) = (&found.shape, &wanted.shape);
            return Err(problem(format!("tensor '{name}' has shape {found:?} instead of {wanted:?}")));
        }
    }
    let mut parameters = vec![0.0; layout.len()];
    for (wanted, found) in layout.tensors().iter().filter_map(|t| Some((t, tensors.get(&t.name)?))) {
        parameters[wanted.range.clone()].copy_from_slice(&found.values);
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
    fn a_model_comes_back_whole() {
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
    fn tensors_that_are_missing_misshapen_or_too_many_are_named() {
        let problem = |layout: &ParameterLayout| sample().parameters(layout).unwrap_err().to_string();
        assert!(problem(&layout(5)).contains("'first.weight' has shape [2, 4] instead of [2, 5]"));
        let mut larger = layout(4);
        larger.add("second.bias", &[1], Role::Trained);
        assert!(problem(&larger).contains("no tensor 'second.bias'"));
        let mut smaller = ParameterLayout::default();
        smaller.add("table", &[3], Role::Constant);
        assert!(problem(&smaller).contains("tensor 'first.weight' is not part of its configuration"));
    }

    #[test]
    fn embeddings_are_no_model() {
        let mut tensors = Tensors::default();
        tensors.set_note("format", "trueshot-embeddings/1");
        let problem = check_format(&tensors).unwrap_err().to_string();
        assert!(problem.contains("its format is 'trueshot-embeddings/1'; a model has"), "{problem}");
    }
}
