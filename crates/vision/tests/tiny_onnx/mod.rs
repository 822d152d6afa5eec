//! Test fixture: ONNX files of a few nodes, written field by field.
#![allow(dead_code)]

/// A field with bytes: a string, a message or packed numbers.
pub fn bytes(number: u64, value: impl AsRef<[u8]>) -> Vec<u8> {
    let value = value.as_ref();
    [varint(number << 3 | 2), varint(value.len() as u64), value.to_vec()].concat()
}

/// A field with an integer.
pub fn integer(number: u64, value: i64) -> Vec<u8> {
    [varint(number << 3), varint(value.cast_unsigned())].concat()
}

/// A number of variable length: 7 bits per byte, lowest first; the highest bit says whether more bytes follow.
pub fn varint(mut value: u64) -> Vec<u8> {
    let mut out = Vec::new();
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
    out
}

/// ONNX type numbers: f32, i64, bool, f16, f64.
pub const FLOAT: i64 = 1;
pub const INT64: i64 = 7;
pub const BOOL: i64 = 9;
pub const HALF: i64 = 10;
pub const DOUBLE: i64 = 11;
pub const BFLOAT16: i64 = 16;

/// An input or output; `sides` are numbers, or names for dynamic dimensions.
pub fn value(name: &str, kind: i64, sides: &[&str]) -> Vec<u8> {
    let side = |side: &&str| match side.parse() {
        Ok(number) => bytes(1, integer(1, number)),
        Err(_) => bytes(1, bytes(2, side)),
    };
    let shape: Vec<u8> = sides.iter().flat_map(side).collect();
    let kind = [integer(1, kind), bytes(2, shape)].concat();
    [bytes(1, name), bytes(2, bytes(1, kind))].concat()
}

/// An attribute with a list of integers.
pub fn ints(name: &str, values: &[i64]) -> Vec<u8> {
    let values: Vec<u8> = values.iter().flat_map(|value| integer(8, *value)).collect();
    [bytes(1, name), values, integer(20, 7)].concat()
}

/// An attribute with an integer.
pub fn int(name: &str, value: i64) -> Vec<u8> {
    [bytes(1, name), integer(3, value), integer(20, 2)].concat()
}

/// A node with one output.
pub fn node(operator: &str, inputs: &[&str], output: &str, attributes: &[Vec<u8>]) -> Vec<u8> {
    let mut node: Vec<u8> = inputs.iter().flat_map(|input| bytes(1, input)).collect();
    node.extend(bytes(2, output));
    node.extend(bytes(3, format!("{operator}-{output}")));
    node.extend(bytes(4, operator));
    node.extend(attributes.iter().flat_map(|attribute| bytes(5, attribute)));
    node
}

/// A tensor with raw data.
pub fn tensor(name: &str, kind: i64, sides: &[i64], raw: &[u8]) -> Vec<u8> {
    let sides: Vec<u8> = sides.iter().flat_map(|side| integer(1, *side)).collect();
    [sides, integer(2, kind), bytes(8, name), bytes(9, raw)].concat()
}

/// A tensor with data in another file; entries are `location`, `offset` and `length`.
pub fn external_tensor(name: &str, kind: i64, sides: &[i64], entries: &[(&str, &str)]) -> Vec<u8> {
    let sides: Vec<u8> = sides.iter().flat_map(|side| integer(1, *side)).collect();
    let entries = entries.iter().flat_map(|(key, text)| bytes(13, [bytes(1, key), bytes(2, text)].concat()));
    [sides, integer(2, kind), bytes(8, name), entries.collect(), integer(14, 1)].concat()
}

/// The encoded messages of a graph.
#[derive(Default)]
pub struct Graph {
    pub nodes: Vec<Vec<u8>>,
    pub tensors: Vec<Vec<u8>>,
    pub inputs: Vec<Vec<u8>>,
    pub outputs: Vec<Vec<u8>>,
}

impl Graph {
    /// The graph as a message, for a model or for an attribute of a node.
    pub fn message(&self) -> Vec<u8> {
        let mut graph: Vec<u8> = self.nodes.iter().flat_map(|node| bytes(1, node)).collect();
        graph.extend(bytes(2, "tiny"));
        graph.extend(self.tensors.iter().flat_map(|tensor| bytes(5, tensor)));
        graph.extend(self.inputs.iter().flat_map(|input| bytes(11, input)));
        graph.extend(self.outputs.iter().flat_map(|output| bytes(12, output)));
        graph
    }

    /// A model file with this graph, of operator set 13.
    pub fn file(&self) -> Vec<u8> {
        let opset = bytes(8, [bytes(1, ""), integer(2, 13)].concat());
        [integer(1, 8), bytes(2, "test"), opset, bytes(7, self.message())].concat()
    }
}

/// A model that computes the mean of every channel, with a channels-first input of these sides.
pub fn means(sides: &[&str]) -> Graph {
    Graph {
        nodes: vec![
            node("GlobalAveragePool", &["input"], "pooled", &[]),
            node("Flatten", &["pooled"], "features", &[]),
        ],
        inputs: vec![value("input", FLOAT, sides)],
        outputs: vec![value("features", FLOAT, &["N", "C"])],
        ..Graph::default()
    }
}
