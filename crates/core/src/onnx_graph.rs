//! Writing of ONNX files: [`OnnxGraph`] collects nodes and constants and encodes them as a model. Classifiers are
//! exported with it (`predictor::graph`), alone or together with the network that computes their embeddings
//! (`vision::export`).
//!
//! ONNX is protocol buffers: nested messages of numbered fields. Writing them takes few kinds of fields (integers,
//! floats, and byte strings, which are also texts and messages), so they are encoded here without a crate. The numbers
//! of the fields are those of `onnx.proto`; comments name the message and its fields. Values are named by counting
//! them, and nothing depends on time or addresses, so that the same calls give the same bytes.

use std::collections::BTreeMap;

/// The version of the operators of a new graph, which onnxruntime reads since 1.12 (2022).
pub const OPSET: u64 = 17;
/// The oldest version of the operators that nodes can be appended to: earlier ones have `Clip` and `TopK` in another
/// form.
pub const MIN_OPSET: u64 = 11;
/// From this version on, reductions take their axes as an input instead of an attribute.
const REDUCTION_AXES_INPUT: u64 = 18;
/// The version of the file format that belongs to [`OPSET`].
const IR_VERSION: u64 = 8;

/// The type of the elements of a tensor. Its numbers are those of `TensorProto.DataType`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ElementType {
    /// 32-bit float.
    Float = 1,
    /// Unsigned 8-bit integer.
    Byte = 2,
    /// Signed 64-bit integer.
    Integer = 7,
}

/// The length of one axis of an input or output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Axis {
    /// The number of items in a batch, which is chosen when the model is run.
    Batch,
    /// A fixed length.
    Fixed(usize),
}

/// A value of a graph: an input, a constant or the output of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GraphValue(String);

impl GraphValue {
    /// The value with this name in an imported graph.
    pub fn named(name: impl Into<String>) -> Self {
        GraphValue(name.into())
    }
}

/// An attribute of a node.
#[derive(Debug, Clone, Copy)]
pub enum Attribute<'a> {
    /// An integer, with the name of the attribute.
    Int(&'static str, i64),
    /// A list of integers.
    Ints(&'static str, &'a [i64]),
    /// A number.
    Float(&'static str, f32),
}

/// The parts of an existing model that [`OnnxGraph::import`] copies into a graph.
#[derive(Debug, Clone, Default)]
pub struct ImportedModel {
    /// The version of the file format.
    pub ir_version: u64,
    /// The version of the operators of the default domain.
    pub opset: u64,
    /// The encoded fields of the `ModelProto` to copy: the versions of the operator sets, and functions.
    pub model_fields: Vec<u8>,
    /// The encoded fields of the `GraphProto`, without its name, outputs and the input that is replaced.
    pub graph_fields: Vec<u8>,
}

/// An ONNX model under construction.
///
/// ```
/// use trueshot::onnx_graph::{Axis, ElementType, OnnxGraph};
///
/// let mut graph = OnnxGraph::new();
/// let rows = graph.input("rows", ElementType::Float, &[Axis::Batch, Axis::Fixed(2)]);
/// let weights = graph.floats(&[2, 1], &[0.5, -1.0]);
/// let sums = graph.node("MatMul", &[&rows, &weights], &[]);
/// graph.output("sums", &sums, &[Axis::Batch, Axis::Fixed(1)]);
/// assert!(graph.to_bytes("example").starts_with(&[0x08, 8]), "the version of the format");
/// ```
#[derive(Debug, Clone)]
pub struct OnnxGraph {
    ir_version: u64,
    opset: u64,
    /// Encoded fields of the `ModelProto` that [`OnnxGraph::to_bytes`] does not make itself, at least the versions of
    /// the operator sets.
    model_fields: Vec<u8>,
    /// Encoded fields of the `GraphProto` in the order of the calls: a node comes after the nodes that it depends on,
    /// as ONNX demands.
    graph_fields: Vec<u8>,
    metadata: BTreeMap<String, String>,
    /// Prefix of the names of values that are not inputs or outputs, to keep them apart from those of an imported
    /// model.
    prefix: String,
    /// Number of values named so far.
    values: usize,
}

impl Default for OnnxGraph {
    fn default() -> Self {
        OnnxGraph {
            ir_version: IR_VERSION,
            opset: OPSET,
            model_fields: operator_set(OPSET),
            graph_fields: Vec::new(),
            metadata: BTreeMap::new(),
            prefix: String::new(),
            values: 0,
        }
    }
}

impl OnnxGraph {
    /// An empty graph.
    pub fn new() -> Self {
        Self::default()
    }

    /// An empty graph whose nodes have the operators of an existing model, which [`OnnxGraph::import`] adds. Names of
    /// new values start with `prefix`.
    pub fn for_model(model: &ImportedModel, prefix: &str) -> Self {
        OnnxGraph {
            ir_version: model.ir_version,
            opset: model.opset,
            model_fields: model.model_fields.clone(),
            prefix: prefix.into(),
            ..Self::default()
        }
    }

    /// Adds the nodes, constants and inputs of an existing model.
    pub fn import(&mut self, model: &ImportedModel) {
        self.graph_fields.extend_from_slice(&model.graph_fields);
    }

    /// Adds an input.
    pub fn input(&mut self, name: &str, kind: ElementType, shape: &[Axis]) -> GraphValue {
        // GraphProto.input
        push_message(&mut self.graph_fields, 11, &value_info(name, kind, shape));
        GraphValue(name.into())
    }

    /// Adds a float output that equals a value.
    pub fn output(&mut self, name: &str, value: &GraphValue, shape: &[Axis]) {
        self.alias(value, name);
        // GraphProto.output
        push_message(&mut self.graph_fields, 12, &value_info(name, ElementType::Float, shape));
    }

    /// Gives a value another name.
    pub fn alias(&mut self, value: &GraphValue, name: &str) {
        self.push_node("Identity", &[value], &[], &[name.into()]);
    }

    /// Adds a node with one output.
    pub fn node(
        &mut self,
        operator: &str,
        inputs: &[&GraphValue],
        attributes: &[Attribute<'_>],
    ) -> GraphValue {
        let output = self.new_value();
        self.push_node(operator, inputs, attributes, std::slice::from_ref(&output.0));
        output
    }

    /// Adds a node with two outputs.
    pub fn node_of_two(
        &mut self,
        operator: &str,
        inputs: &[&GraphValue],
        attributes: &[Attribute<'_>],
    ) -> [GraphValue; 2] {
        let outputs = [self.new_value(), self.new_value()];
        self.push_node(operator, inputs, attributes, &outputs.each_ref().map(|value| value.0.clone()));
        outputs
    }

    /// Adds a reduction (`ReduceMax`, `ReduceMean`, `ReduceSumSquare`) over one axis, which then has length 1, or is
    /// gone if `keeps_axis` is false.
    pub fn reduce(&mut self, operator: &str, value: &GraphValue, axis: i64, keeps_axis: bool) -> GraphValue {
        let keepdims = Attribute::Int("keepdims", keeps_axis.into());
        if self.opset >= REDUCTION_AXES_INPUT {
            let axes = self.integers(&[axis]);
            return self.node(operator, &[value, &axes], &[keepdims]);
        }
        self.node(operator, &[value], &[Attribute::Ints("axes", &[axis]), keepdims])
    }

    /// Adds a node that limits values to a range.
    pub fn clip(&mut self, value: &GraphValue, [min, max]: [f32; 2]) -> GraphValue {
        let (min, max) = (self.floats(&[], &[min]), self.floats(&[], &[max]));
        self.node("Clip", &[value, &min, &max], &[])
    }

    /// Adds a constant of floats; the empty shape is that of a single number.
    ///
    /// # Panics
    /// If the number of values is not the product of the shape.
    pub fn floats(&mut self, shape: &[usize], values: &[f32]) -> GraphValue {
        assert_eq!(shape.iter().product::<usize>(), values.len(), "one value per element of the shape");
        self.constant(ElementType::Float, shape, |out| {
            values.iter().for_each(|value| out.extend_from_slice(&value.to_le_bytes()));
        })
    }

    /// Adds a constant list of integers.
    pub fn integers(&mut self, values: &[i64]) -> GraphValue {
        self.constant(ElementType::Integer, &[values.len()], |out| {
            values.iter().for_each(|value| out.extend_from_slice(&value.to_le_bytes()));
        })
    }

    /// Adds an entry to the metadata of the model, or replaces it.
    pub fn set_metadata(&mut self, key: &str, text: impl Into<String>) {
        self.metadata.insert(key.into(), text.into());
    }

    /// The bytes of the file; `name` is the name of the graph.
    pub fn to_bytes(&self, name: &str) -> Vec<u8> {
        // ModelProto: ir_version, producer_name, producer_version, graph (with its name and all other fields),
        // metadata_props.
        let mut model = Vec::new();
        push_number(&mut model, 1, self.ir_version);
        push_message(&mut model, 2, b"trueshot");
        push_message(&mut model, 3, env!("CARGO_PKG_VERSION").as_bytes());
        let mut name_field = Vec::new();
        push_message(&mut name_field, 2, name.as_bytes());
        push_parts(&mut model, 7, &[&name_field, &self.graph_fields]);
        model.extend_from_slice(&self.model_fields);
        for (key, text) in &self.metadata {
            // StringStringEntryProto: key, value.
            let mut entry = Vec::new();
            push_message(&mut entry, 1, key.as_bytes());
            push_message(&mut entry, 2, text.as_bytes());
            push_message(&mut model, 14, &entry);
        }
        model
    }

    /// A new name for a value: the prefix and a number.
    fn new_value(&mut self) -> GraphValue {
        self.values += 1;
        GraphValue(format!("{}{}", self.prefix, self.values))
    }

    /// Adds a node that computes the values named `outputs`.
    fn push_node(
        &mut self,
        operator: &str,
        inputs: &[&GraphValue],
        attributes: &[Attribute<'_>],
        outputs: &[String],
    ) {
        // NodeProto: input, output, name, op_type, attribute.
        let mut node = Vec::new();
        inputs.iter().for_each(|input| push_message(&mut node, 1, input.0.as_bytes()));
        outputs.iter().for_each(|output| push_message(&mut node, 2, output.as_bytes()));
        // Programs that show or profile a model identify a node by its name.
        push_message(&mut node, 3, format!("{operator}:{}", outputs[0]).as_bytes());
        push_message(&mut node, 4, operator.as_bytes());
        attributes.iter().for_each(|attribute| push_message(&mut node, 5, &encoded_attribute(attribute)));
        // GraphProto.node
        push_message(&mut self.graph_fields, 1, &node);
    }

    /// Adds a constant whose elements `fill` writes as little-endian bytes in row-major order.
    fn constant(
        &mut self,
        kind: ElementType,
        shape: &[usize],
        fill: impl FnOnce(&mut Vec<u8>),
    ) -> GraphValue {
        let value = self.new_value();
        // TensorProto: dims, data_type, name, raw_data.
        let (mut tensor, mut raw) = (Vec::new(), Vec::new());
        shape.iter().for_each(|&length| push_number(&mut tensor, 1, length as u64));
        push_number(&mut tensor, 2, kind as u64);
        push_message(&mut tensor, 8, value.0.as_bytes());
        fill(&mut raw);
        push_message(&mut tensor, 9, &raw);
        // GraphProto.initializer
        push_message(&mut self.graph_fields, 5, &tensor);
        value
    }
}

/// The field `ModelProto.opset_import` for the default operators (their domain is the empty text) in a version.
fn operator_set(version: u64) -> Vec<u8> {
    // OperatorSetIdProto: domain, version.
    let (mut set, mut field) = (Vec::new(), Vec::new());
    push_message(&mut set, 1, b"");
    push_number(&mut set, 2, version);
    push_message(&mut field, 8, &set);
    field
}

/// A `ValueInfoProto`: the name, element type and shape of an input or output.
fn value_info(name: &str, kind: ElementType, shape: &[Axis]) -> Vec<u8> {
    // TensorShapeProto: one Dimension per axis, with either dim_value or dim_param.
    let mut axes = Vec::new();
    for axis in shape {
        let mut encoded = Vec::new();
        match axis {
            Axis::Fixed(length) => push_number(&mut encoded, 1, *length as u64),
            Axis::Batch => push_message(&mut encoded, 2, b"batch"),
        }
        push_message(&mut axes, 1, &encoded);
    }
    // TypeProto.Tensor (elem_type, shape) in TypeProto.tensor_type in ValueInfoProto (name, type).
    let (mut tensor, mut kind_field, mut info) = (Vec::new(), Vec::new(), Vec::new());
    push_number(&mut tensor, 1, kind as u64);
    push_message(&mut tensor, 2, &axes);
    push_message(&mut kind_field, 1, &tensor);
    push_message(&mut info, 1, name.as_bytes());
    push_message(&mut info, 2, &kind_field);
    info
}

/// An `AttributeProto`: its name (field 1), the value (`f` is field 2, `i` 3, `ints` 8) and the kind of the value
/// (field 20: 1 for a float, 2 for an integer, 7 for a list of integers).
fn encoded_attribute(attribute: &Attribute<'_>) -> Vec<u8> {
    let mut encoded = Vec::new();
    match *attribute {
        Attribute::Int(name, value) => {
            push_message(&mut encoded, 1, name.as_bytes());
            push_number(&mut encoded, 3, value.cast_unsigned());
            push_number(&mut encoded, 20, 2);
        }
        Attribute::Ints(name, values) => {
            push_message(&mut encoded, 1, name.as_bytes());
            values.iter().for_each(|value| push_number(&mut encoded, 8, value.cast_unsigned()));
            push_number(&mut encoded, 20, 7);
        }
        Attribute::Float(name, value) => {
            push_message(&mut encoded, 1, name.as_bytes());
            // Wire type 5: four bytes.
            push_varint(&mut encoded, 2 << 3 | 5);
            encoded.extend_from_slice(&value.to_le_bytes());
            push_number(&mut encoded, 20, 1);
        }
    }
    encoded
}

/// An integer in the variable-length form of protocol buffers: seven bits per byte, the lowest first; all bytes but the
/// last have the high bit set.
fn push_varint(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

/// Appends a field that holds an integer (wire type 0, in the lowest three bits of the field's key).
fn push_number(out: &mut Vec<u8>, field: u64, number: u64) {
    push_varint(out, field << 3);
    push_varint(out, number);
}

/// Appends a field that holds a text, bytes or an encoded message (wire type 2).
pub fn push_message(out: &mut Vec<u8>, field: u64, bytes: &[u8]) {
    push_parts(out, field, &[bytes]);
}

/// [`push_message`] for bytes in several parts, which are written one after the other.
fn push_parts(out: &mut Vec<u8>, field: u64, parts: &[&[u8]]) {
    push_varint(out, field << 3 | 2);
    push_varint(out, parts.iter().map(|part| part.len() as u64).sum());
    parts.iter().for_each(|part| out.extend_from_slice(part));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_texts_are_encoded_as_the_format_says() {
        let mut out = Vec::new();
        push_number(&mut out, 1, 150);
        push_message(&mut out, 2, b"testing");
        assert_eq!(out, [b"\x08\x96\x01\x12\x07".as_slice(), b"testing"].concat());
        let mut minus_one = Vec::new();
        push_number(&mut minus_one, 3, (-1i64).cast_unsigned());
        assert_eq!(minus_one, [&[0x18][..], &[0xff; 9], &[0x01]].concat());
    }

    #[test]
    fn equal_graphs_have_equal_bytes() {
        let build = || {
            let mut graph = OnnxGraph::new();
            let rows = graph.input("rows", ElementType::Float, &[Axis::Batch, Axis::Fixed(3)]);
            let largest = graph.reduce("ReduceMax", &rows, 1, true);
            graph.output("largest", &largest, &[Axis::Batch, Axis::Fixed(1)]);
            graph.set_metadata("b", "2");
            graph.set_metadata("a", "1");
            graph.to_bytes("test")
        };
        assert_eq!(build(), build());
    }
}
