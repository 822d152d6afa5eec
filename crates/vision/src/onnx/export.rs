//! The parts of an ONNX backbone that an exported classifier contains ([`ExportedModel`]).
//!
//! The classifier becomes one ONNX model: normalisation, then the nodes of the backbone, then those of the classifier
//! ([`crate::export`] puts them together). An ONNX file consists of nested messages of numbered fields (see
//! `file_check`); the numbers in this module are those of `onnx.proto`. The messages of the backbone are copied as
//! bytes.

use std::path::Path;

use trueshot::onnx_graph::{ElementType, ImportedModel, MIN_OPSET, push_message};

use super::OnnxWorker;
use super::file_check::{FieldValue, Fields, FileProblem};
use crate::error::{Error, Result};

/// A backbone whose input and output can be connected to other nodes.
pub(crate) struct ExportedModel<'a> {
    /// The copied messages.
    pub imported: ImportedModel,
    /// The name of its input.
    pub input: String,
    /// The name of the output that is the embedding.
    pub output: String,
    /// Number of axes of the output.
    pub output_rank: usize,
    /// The ONNX type number of the input. rten computes in f32, other programs in the types of the model.
    pub input_type: u64,
    /// The ONNX type number of the output.
    pub output_type: u64,
    /// Whether its input is `[batch, channels, rows, columns]`.
    pub has_channels_first: bool,
    /// Whether it takes one image at a time.
    pub is_batch_fixed: bool,
    /// A prefix that no name in the model has.
    pub prefix: String,
    /// The model file, in which names are searched.
    bytes: &'a [u8],
}

impl ExportedModel<'_> {
    /// The name, with a prefix if the model may use it already. For names shorter than 128 bytes.
    pub fn unused_name(&self, name: &str) -> String {
        // In protocol buffers a text is preceded by its length, here one byte.
        let encoded = [&[name.len() as u8], name.as_bytes()].concat();
        if contains(self.bytes, &encoded) { format!("{}{name}", self.prefix) } else { name.into() }
    }
}

impl OnnxWorker {
    /// See [`super::OnnxNetwork::export`].
    pub(super) fn export(&self, name: &str) -> Result<ExportedModel<'_>> {
        let refused = |problem: String| Error::BadModel {
            path: Path::new(name).into(),
            problem,
            hint: Some("export the classifier alone with --head-only".into()),
        };
        let description = &self.description;
        let imported = import(&self.bytes, &description.input, &description.output);
        let (imported, [input_type, output_type]) =
            imported.map_err(|problem| refused(problem.to_string()))?;
        if imported.opset < MIN_OPSET {
            return Err(refused(format!(
                "its operators are of version {}; a classifier can be appended from version {MIN_OPSET} on",
                imported.opset
            )));
        }
        let is_unused = |prefix: &String| !contains(&self.bytes, prefix.as_bytes());
        let mut prefixes = (1..).map(|number| format!("trueshot{number}/"));
        let prefix = prefixes.find(is_unused).expect("a file does not contain all prefixes");
        Ok(ExportedModel {
            imported,
            input: description.input.clone(),
            output: description.output.clone(),
            output_rank: description.output_rank,
            input_type,
            output_type,
            has_channels_first: description.has_channels_first,
            is_batch_fixed: description.is_batch_fixed,
            prefix,
            bytes: &self.bytes,
        })
    }
}

/// Whether bytes contain other bytes.
fn contains(bytes: &[u8], wanted: &[u8]) -> bool {
    memchr::memmem::find(bytes, wanted).is_some()
}

/// Copies the fields of a model and of its graph that stay as they are. Also returns the types of an input and an
/// output.
fn import(bytes: &[u8], input: &str, output: &str) -> Result<(ImportedModel, [u64; 2]), FileProblem> {
    let (mut model, mut types) = (ImportedModel::default(), [ElementType::Float as u64; 2]);
    let mut fields = Fields(bytes);
    while let Some((number, value, raw)) = fields.next_with_bytes()? {
        // A model: 1 version of the format, 7 graph, 8 operator set, 25 functions.
        match (number, value) {
            (1, FieldValue::Number(version)) => model.ir_version = version,
            (7, FieldValue::Bytes(graph)) => {
                import_graph(graph, input, &mut model.graph_fields)?;
                types = [element_type(graph, 11, input)?, element_type(graph, 12, output)?];
            }
            (8, FieldValue::Bytes(set)) => {
                let (domain, version) = operator_set(set)?;
                if domain.is_empty() || domain == b"ai.onnx" {
                    model.opset = version;
                }
                model.model_fields.extend_from_slice(raw);
            }
            // Functions that the model defines. Its producer, documentation and metadata are not copied.
            (25, _) => model.model_fields.extend_from_slice(raw),
            _ => (),
        }
    }
    Ok((model, types))
}

/// Copies the nodes (1), constants (5 and 15), inputs (11), shapes of inner values (13) and quantisation (14) of a
/// graph to `out`, but neither the input that becomes a computed value nor the outputs.
fn import_graph(bytes: &[u8], input: &str, out: &mut Vec<u8>) -> Result<(), FileProblem> {
    let mut fields = Fields(bytes);
    while let Some((number, value, raw)) = fields.next_with_bytes()? {
        match (number, value) {
            (11, FieldValue::Bytes(info)) if name(info)? == input.as_bytes() => {
                // The input becomes an inner value, whose shape is in field 13.
                push_message(out, 13, info);
            }
            (1 | 5 | 11 | 13 | 14 | 15, _) => out.extend_from_slice(raw),
            _ => (),
        }
    }
    Ok(())
}

/// The type of an input (field 11) or output (field 12) of a graph; f32 if it is not given.
fn element_type(graph: &[u8], field: u64, wanted: &str) -> Result<u64, FileProblem> {
    let mut fields = Fields(graph);
    while let Some((number, value)) = fields.next_field()? {
        match value {
            FieldValue::Bytes(info) if number == field && name(info)? == wanted.as_bytes() => {
                // The type of the value, the type of tensor in it, and the type of its elements.
                let tensor = message(info, 2)?.map(|kind| message(kind, 1)).transpose()?.flatten();
                let mut fields = Fields(tensor.unwrap_or_default());
                while let Some((number, value)) = fields.next_field()? {
                    if let (1, FieldValue::Number(kind)) = (number, value) {
                        return Ok(kind);
                    }
                }
            }
            _ => (),
        }
    }
    Ok(ElementType::Float as u64)
}

/// The message in field number `wanted`, if there is one; of several the last, as protocol buffers define.
fn message(bytes: &[u8], wanted: u64) -> Result<Option<&[u8]>, FileProblem> {
    let (mut fields, mut last) = (Fields(bytes), None);
    while let Some((number, value)) = fields.next_field()? {
        if let FieldValue::Bytes(inner) = value
            && number == wanted
        {
            last = Some(inner);
        }
    }
    Ok(last)
}

/// Domain and version of an operator set.
fn operator_set(bytes: &[u8]) -> Result<(&[u8], u64), FileProblem> {
    let (mut fields, mut domain, mut version) = (Fields(bytes), &[][..], 0);
    while let Some((number, value)) = fields.next_field()? {
        match (number, value) {
            (1, FieldValue::Bytes(text)) => domain = text,
            (2, FieldValue::Number(value)) => version = value,
            _ => (),
        }
    }
    Ok((domain, version))
}

/// The name of an input or output.
fn name(bytes: &[u8]) -> Result<&[u8], FileProblem> {
    Ok(message(bytes, 1)?.unwrap_or_default())
}
