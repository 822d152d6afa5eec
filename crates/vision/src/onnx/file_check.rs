//! Checks the bytes of an ONNX file before the library that runs it sees them. Start with [`check`].
//!
//! ONNX is protocol buffers: nested messages of numbered fields. The numbers in this module are those of `onnx.proto`;
//! the ones that matter are listed where a message is read. [`Fields`] reads one message, and `export` and
//! `external_data` use it too.
//!
//! The check walks through all messages without allocating and refuses files that are not ONNX, tensors that claim more
//! numbers than they hold or have a type that rten does not know, graphs with too many nodes, and constants that ask
//! for arrays no image model needs (shapes, paddings). This gives precise errors for what can be seen in the file. What
//! a model computes while it is loaded and run is bounded by its worker process ([`super::worker`]).

use std::fmt;

/// The deepest nesting of messages: an attribute of a node may contain a graph, whose nodes have attributes. This
/// module counts the graphs and attributes on the path, `external_data` also the model and the nodes.
pub(super) const MAX_DEPTH: usize = 24;
/// The most nodes of all graphs together. The deepest path through them must fit on the worker's stack.
pub(super) const MAX_NODES: usize = 100_000;
/// The most elements of an array whose shape is a constant.
const MAX_ELEMENTS: u64 = 1 << 28;
/// The largest padding, stride, kernel or dilation.
const MAX_SIDE: u64 = 4096;
/// Integer constants of more numbers than this are not taken for shapes.
const MAX_SHAPE_LEN: u64 = 8;

/// What is wrong with a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum FileProblem {
    NotOnnx,
    /// An ONNX file that is refused, with the reason.
    Refused(String),
}

impl fmt::Display for FileProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FileProblem::NotOnnx => write!(f, "it is not an ONNX file, or it is truncated"),
            FileProblem::Refused(problem) => write!(f, "{problem}"),
        }
    }
}

/// The result of reading or checking a part of a file.
pub(super) type CheckResult<T = ()> = Result<T, FileProblem>;

/// The error for an ONNX file that is refused.
pub(super) fn refused<T>(problem: impl Into<String>) -> CheckResult<T> {
    Err(FileProblem::Refused(problem.into()))
}

/// The value of a field.
pub(super) enum FieldValue<'a> {
    /// A number of variable length.
    Number(u64),
    /// Everything else: a nested message, a text, packed numbers, or a number of 4 or 8 bytes.
    Bytes(&'a [u8]),
}

/// Reads the fields of a message, one after the other. Holds the bytes that are not read yet.
pub(super) struct Fields<'a>(pub &'a [u8]);

impl<'a> Fields<'a> {
    /// Reads a number of variable length: 7 bits per byte, lowest first; the highest bit says whether more bytes
    /// follow.
    fn varint(&mut self) -> CheckResult<u64> {
        let mut number = 0_u64;
        for shift in (0..64).step_by(7) {
            let (&byte, rest) = self.0.split_first().ok_or(FileProblem::NotOnnx)?;
            self.0 = rest;
            number |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(number);
            }
        }
        Err(FileProblem::NotOnnx)
    }

    /// Takes the next `length` bytes.
    fn take_bytes(&mut self, length: u64) -> CheckResult<&'a [u8]> {
        let length = usize::try_from(length).map_err(|_| FileProblem::NotOnnx)?;
        let (taken, rest) = self.0.split_at_checked(length).ok_or(FileProblem::NotOnnx)?;
        self.0 = rest;
        Ok(taken)
    }

    /// The number and the value of the next field; `None` at the end of the message.
    pub fn next_field(&mut self) -> CheckResult<Option<(u64, FieldValue<'a>)>> {
        if self.0.is_empty() {
            return Ok(None);
        }
        // The lowest three bits are the kind of the value, the others the number of the field. Kinds: 0 a number of
        // variable length, 1 eight bytes, 2 a length and bytes, 5 four bytes.
        let key = self.varint()?;
        let value = match key & 7 {
            0 => FieldValue::Number(self.varint()?),
            1 => FieldValue::Bytes(self.take_bytes(8)?),
            2 => {
                let length = self.varint()?;
                FieldValue::Bytes(self.take_bytes(length)?)
            }
            5 => FieldValue::Bytes(self.take_bytes(4)?),
            _ => return Err(FileProblem::NotOnnx),
        };
        match key >> 3 {
            0 => Err(FileProblem::NotOnnx),
            number => Ok(Some((number, value))),
        }
    }

    /// The next field, and all its bytes.
    pub fn next_with_bytes(&mut self) -> CheckResult<Option<(u64, FieldValue<'a>, &'a [u8])>> {
        let before = self.0;
        let field = self.next_field()?;
        Ok(field.map(|(number, value)| (number, value, &before[..before.len() - self.0.len()])))
    }
}

/// Checks a whole file.
pub(super) fn check(bytes: &[u8]) -> CheckResult {
    let (mut fields, mut graph, mut version) = (Fields(bytes), None, None);
    while let Some((number, value)) = fields.next_field()? {
        // A model: 1 version of the format, 7 graph.
        match (number, value) {
            (1, FieldValue::Number(number)) => version = Some(number),
            (7, FieldValue::Bytes(message)) => graph = Some(message),
            _ => (),
        }
    }
    match (graph, version) {
        (Some(graph), Some(_)) => check_graph(graph, MAX_DEPTH, &mut 0),
        _ => Err(FileProblem::NotOnnx),
    }
}

/// Checks a graph. `depth` is how many more graphs and attributes may nest; `nodes` counts the nodes of all graphs.
fn check_graph(bytes: &[u8], depth: usize, nodes: &mut usize) -> CheckResult {
    let Some(depth) = depth.checked_sub(1) else { return refused("its graphs are nested too deep") };
    let (mut fields, nodes_before) = (Fields(bytes), *nodes);
    while let Some((number, value)) = fields.next_field()? {
        // A graph: 1 node, 5 constant, 15 sparse constant.
        match (number, value) {
            (1, FieldValue::Bytes(node)) => {
                *nodes += 1;
                if *nodes > MAX_NODES {
                    return refused(format!("it has more than {MAX_NODES} nodes"));
                }
                check_node(node, depth, nodes)?;
            }
            (5, FieldValue::Bytes(tensor)) => check_tensor(tensor)?,
            (15, _) => return refused("it has sparse weights, which are not supported"),
            _ => (),
        }
    }
    if *nodes == nodes_before { refused("its graph is empty") } else { Ok(()) }
}

/// Checks the attributes (field 5) of a node.
fn check_node(bytes: &[u8], depth: usize, nodes: &mut usize) -> CheckResult {
    let mut fields = Fields(bytes);
    while let Some((number, value)) = fields.next_field()? {
        if let (5, FieldValue::Bytes(attribute)) = (number, value) {
            check_attribute(attribute, depth, nodes)?;
        }
    }
    Ok(())
}

/// Checks an attribute of a node, which may contain tensors, graphs or integers.
fn check_attribute(bytes: &[u8], depth: usize, nodes: &mut usize) -> CheckResult {
    let Some(depth) = depth.checked_sub(1) else { return refused("its graphs are nested too deep") };
    let (mut fields, mut name) = (Fields(bytes), &[][..]);
    // The largest absolute value of its integers.
    let mut largest = 0_u64;
    while let Some((number, value)) = fields.next_field()? {
        // An attribute: 1 name, 5 tensor, 10 tensors, 6 graph, 11 graphs, 8 integers, packed or one per field.
        match (number, value) {
            (1, FieldValue::Bytes(text)) => name = text,
            (5 | 10, FieldValue::Bytes(tensor)) => check_tensor(tensor)?,
            (6 | 11, FieldValue::Bytes(graph)) => check_graph(graph, depth, nodes)?,
            (8, FieldValue::Number(integer)) => largest = largest.max(unsigned_abs(integer)),
            (8, FieldValue::Bytes(packed)) => {
                let mut packed = Fields(packed);
                while !packed.0.is_empty() {
                    largest = largest.max(unsigned_abs(packed.varint()?));
                }
            }
            _ => (),
        }
    }
    let sides: [&[u8]; 5] = [b"pads", b"strides", b"kernel_shape", b"dilations", b"output_padding"];
    if sides.contains(&name) && largest > MAX_SIDE {
        let name = String::from_utf8_lossy(name);
        return refused(format!("its {name} of {largest} are more than {MAX_SIDE}"));
    }
    Ok(())
}

/// The absolute value of a signed integer, which is read as an unsigned one.
fn unsigned_abs(number: u64) -> u64 {
    number.cast_signed().unsigned_abs()
}

/// What a tensor claims about itself.
#[derive(Default)]
struct TensorHeader<'a> {
    name: &'a [u8],
    /// The ONNX number of the type of its elements.
    kind: u64,
    /// The number of elements: the product of its dimensions.
    elements: u64,
    /// The elements as bytes, if they are stored like this.
    raw: Option<&'a [u8]>,
    /// Bytes (at least one per element) of elements that are listed in fields instead.
    listed: u64,
    /// For a tensor of integers the product of its values. If the tensor is a shape, that is the number of elements of
    /// an array of this shape.
    product: Option<u64>,
}

/// Checks that a tensor holds the elements that it claims, of a supported type, and that it is not the shape of an
/// array that is too large.
fn check_tensor(bytes: &[u8]) -> CheckResult {
    let claims = tensor_header(bytes)?;
    let name = || String::from_utf8_lossy(claims.name).chars().take(80).collect::<String>();
    let Some(width) = element_bytes(claims.kind) else {
        return refused(format!("its tensor '{}' is of an unknown type ({})", name(), claims.kind));
    };
    // 16 is bfloat16, 17 to 20 are types of 8-bit floats.
    if let 16..=20 = claims.kind {
        let kind = if claims.kind == 16 { "bfloat16" } else { "float8" };
        return refused(format!(
            "its tensor '{}' is of type {kind}, which is not supported: export the model in f32 or f16 (model.float())",
            name()
        ));
    }
    let is_complete = match claims.raw {
        Some(raw) => claims.elements.checked_mul(width) == Some(raw.len() as u64),
        // An element takes at least one byte, whatever its encoding.
        None => claims.elements <= claims.listed,
    };
    if !is_complete {
        return refused(format!(
            "its tensor '{}' claims {} numbers that it does not hold",
            name(),
            claims.elements
        ));
    }
    match claims.product {
        Some(product) if claims.elements <= MAX_SHAPE_LEN && product > MAX_ELEMENTS => {
            refused(format!("its constant '{}' asks for {product} numbers, more than {MAX_ELEMENTS}", name()))
        }
        _ => Ok(()),
    }
}

/// Reads what a tensor claims about itself.
fn tensor_header(bytes: &[u8]) -> CheckResult<TensorHeader<'_>> {
    let mut fields = Fields(bytes);
    // A tensor without dimensions has one element.
    let mut claims = TensorHeader { elements: 1, ..TensorHeader::default() };
    let add_dimension = |claims: &mut TensorHeader<'_>, length: u64| {
        claims.elements = claims
            .elements
            .checked_mul(length)
            .ok_or(FileProblem::Refused("a tensor of too many numbers".into()))?;
        Ok(())
    };
    while let Some((number, value)) = fields.next_field()? {
        // A tensor: 1 dimensions, 2 type, 4 to 7, 10 and 11 elements by type (7: 64-bit integers), 8 name, 9 raw
        // elements, 13 and 14 elements in another file. Dimensions and elements may be packed in one field, or be one
        // per field.
        match (number, value) {
            (1, FieldValue::Number(length)) => add_dimension(&mut claims, length)?,
            (1, FieldValue::Bytes(packed)) => {
                let mut packed = Fields(packed);
                while !packed.0.is_empty() {
                    let length = packed.varint()?;
                    add_dimension(&mut claims, length)?;
                }
            }
            (2, FieldValue::Number(kind)) => claims.kind = kind,
            (4..=7 | 10 | 11, FieldValue::Number(element)) => {
                claims.listed += 1;
                claims.product = Some(claims.product.unwrap_or(1).saturating_mul(shape_side(element)));
            }
            (7, FieldValue::Bytes(packed)) => {
                claims.listed += packed.len() as u64;
                let mut packed = Fields(packed);
                while !packed.0.is_empty() {
                    let side = shape_side(packed.varint()?);
                    claims.product = Some(claims.product.unwrap_or(1).saturating_mul(side));
                }
            }
            (4..=6 | 10 | 11, FieldValue::Bytes(packed)) => claims.listed += packed.len() as u64,
            (8, FieldValue::Bytes(name)) => claims.name = name,
            (9, FieldValue::Bytes(raw)) => claims.raw = Some(raw),
            (13, _) | (14, FieldValue::Number(1..)) => {
                return refused("it keeps weights in another file, which was not given");
            }
            _ => (),
        }
    }
    if claims.kind == INT64
        && let Some(raw) = claims.raw
    {
        let sides = raw.as_chunks::<8>().0.iter().map(|bytes| shape_side(u64::from_le_bytes(*bytes)));
        // Longer tensors are not taken for shapes, so their product is not used.
        claims.product = Some(sides.take(MAX_SHAPE_LEN as usize).fold(1, u64::saturating_mul));
    }
    Ok(claims)
}

/// A dimension of a shape; 0 and -1 mean "unchanged" and count as 1.
fn shape_side(number: u64) -> u64 {
    // The largest 32-bit or 64-bit number means "to the end" in a slice.
    match number.cast_signed() {
        1..=0x7fff_fffe => number,
        0x7fff_ffff | i64::MAX | ..1 => 1,
        _ => number,
    }
}

/// The ONNX number of the type of 64-bit integers.
const INT64: u64 = 7;

/// Bytes per element of an ONNX type (`TensorProto.DataType` in `onnx.proto`); `None` for an unknown type.
fn element_bytes(kind: u64) -> Option<u64> {
    Some(match kind {
        2 | 3 | 8 | 9 | 17..=20 => 1,
        4 | 5 | 10 | 16 => 2,
        1 | 6 | 12 => 4,
        7 | 11 | 13 | 14 => 8,
        15 => 16,
        _ => return None,
    })
}
