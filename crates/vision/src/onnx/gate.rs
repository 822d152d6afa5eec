//! The gate that an ONNX file passes before the library that runs it may see it.
//!
//! ONNX is protocol buffers: nested messages of numbered fields. We walk through all of them without allocating
//! and refuse files that are not ONNX, tensors that claim more numbers than they hold, weights in other files, graphs of
//! too many nodes, and constants that ask for arrays no image model needs (shapes, paddings). This gives a precise message
//! at once for what can be seen in the file. A model is a program all the same: what it computes while it is loaded and
//! run is bounded by the process it runs in ([`super::worker`]).

use std::fmt;

/// Messages within messages: a model, its graph, a node, an attribute, a graph within it, ..
const DEEPEST: usize = 24;
/// The most nodes of all graphs together. The deepest path through them must fit on the worker's stack.
pub(super) const MOST_NODES: usize = 100_000;
/// The most numbers that a constant may ask for as a shape.
const MOST_NUMBERS: u64 = 1 << 28;
/// The largest padding, stride or kernel.
const LARGEST_SIDE: u64 = 4096;
/// Constants of more numbers than this are weights, not shapes.
const LONGEST_SHAPE: u64 = 8;

/// What is wrong with a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Problem {
    /// Not a message of this kind at all.
    NotOnnx,
    /// The message is one, and this is wrong with it.
    Refused(String),
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Problem::NotOnnx => write!(f, "it is not an ONNX file, or it is truncated"),
            Problem::Refused(problem) => write!(f, "{problem}"),
        }
    }
}

type Outcome<T = ()> = Result<T, Problem>;

fn refused<T>(problem: impl Into<String>) -> Outcome<T> {
    Err(Problem::Refused(problem.into()))
}

/// A field of a message: its number and what it holds.
enum Value<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

/// The fields of a message, one after the other.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn number(&mut self) -> Outcome<u64> {
        let mut number = 0_u64;
        for shift in (0..64).step_by(7) {
            let (&byte, rest) = self.0.split_first().ok_or(Problem::NotOnnx)?;
            self.0 = rest;
            number |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(number);
            }
        }
        Err(Problem::NotOnnx)
    }

    fn take(&mut self, length: u64) -> Outcome<&'a [u8]> {
        let length = usize::try_from(length).map_err(|_| Problem::NotOnnx)?;
        let (taken, rest) = self.0.split_at_checked(length).ok_or(Problem::NotOnnx)?;
        self.0 = rest;
        Ok(taken)
    }

    fn next(&mut self) -> Outcome<Option<(u64, Value<'a>)>> {
        if self.0.is_empty() {
            return Ok(None);
        }
        let key = self.number()?;
        let value = match key & 7 {
            0 => Value::Number(self.number()?),
            1 => Value::Bytes(self.take(8)?),
            2 => {
                let length = self.number()?;
                Value::Bytes(self.take(length)?)
            }
            5 => Value::Bytes(self.take(4)?),
            _ => return Err(Problem::NotOnnx),
        };
        match key >> 3 {
            0 => Err(Problem::NotOnnx),
            number => Ok(Some((number, value))),
        }
    }
}

/// Looks at a whole file.
pub(super) fn check(bytes: &[u8]) -> Outcome {
    let (mut fields, mut graph, mut version) = (Fields(bytes), None, None);
    while let Some((number, value)) = fields.next()? {
        match (number, value) {
            (1, Value::Number(found)) => version = Some(found),
            (7, Value::Bytes(found)) => graph = Some(found),
            _ => (),
        }
    }
    match (graph, version) {
        (Some(graph), Some(_)) => check_graph(graph, DEEPEST, &mut 0),
        _ => Err(Problem::NotOnnx),
    }
}

/// `nodes` counts those of all graphs.
fn check_graph(bytes: &[u8], depth: usize, nodes: &mut usize) -> Outcome {
    let Some(depth) = depth.checked_sub(1) else { return refused("its graphs are nested too deep") };
    let (mut fields, before) = (Fields(bytes), *nodes);
    while let Some((number, value)) = fields.next()? {
        match (number, value) {
            (1, Value::Bytes(node)) => {
                *nodes += 1;
                if *nodes > MOST_NODES {
                    return refused(format!("it has more than {MOST_NODES} nodes"));
                }
                check_node(node, depth, nodes)?;
            }
            (5, Value::Bytes(tensor)) => check_tensor(tensor)?,
            (15, _) => return refused("it has sparse weights, which are not supported"),
            _ => (),
        }
    }
    if *nodes == before { refused("its graph is empty") } else { Ok(()) }
}

fn check_node(bytes: &[u8], depth: usize, nodes: &mut usize) -> Outcome {
    let mut fields = Fields(bytes);
    while let Some((number, value)) = fields.next()? {
        if let (5, Value::Bytes(attribute)) = (number, value) {
            check_attribute(attribute, depth, nodes)?;
        }
    }
    Ok(())
}

fn check_attribute(bytes: &[u8], depth: usize, nodes: &mut usize) -> Outcome {
    let Some(depth) = depth.checked_sub(1) else { return refused("its graphs are nested too deep") };
    let (mut fields, mut name) = (Fields(bytes), &[][..]);
    let mut largest = 0_u64;
    while let Some((number, value)) = fields.next()? {
        match (number, value) {
            (1, Value::Bytes(found)) => name = found,
            (5 | 10, Value::Bytes(tensor)) => check_tensor(tensor)?,
            (6 | 11, Value::Bytes(graph)) => check_graph(graph, depth, nodes)?,
            (8, Value::Number(whole)) => largest = largest.max(magnitude(whole)),
            (8, Value::Bytes(packed)) => {
                let mut packed = Fields(packed);
                while !packed.0.is_empty() {
                    largest = largest.max(magnitude(packed.number()?));
                }
            }
            _ => (),
        }
    }
    let sides: [&[u8]; 5] = [b"pads", b"strides", b"kernel_shape", b"dilations", b"output_padding"];
    if sides.contains(&name) && largest > LARGEST_SIDE {
        let name = String::from_utf8_lossy(name);
        return refused(format!("its {name} of {largest} are more than {LARGEST_SIDE}"));
    }
    Ok(())
}

fn magnitude(number: u64) -> u64 {
    number.cast_signed().unsigned_abs()
}

/// What a tensor says about itself.
#[derive(Default)]
struct Claims<'a> {
    name: &'a [u8],
    kind: u64,
    /// The product of its sides.
    numbers: u64,
    raw: Option<&'a [u8]>,
    /// Bytes of numbers that are stored one by one.
    listed: u64,
    /// The product of what an integer tensor holds.
    product: Option<u64>,
}

fn check_tensor(bytes: &[u8]) -> Outcome {
    let claims = claims(bytes)?;
    let name = || String::from_utf8_lossy(claims.name).chars().take(80).collect::<String>();
    let Some(width) = width(claims.kind) else {
        return refused(format!("its tensor '{}' is of an unknown type ({})", name(), claims.kind));
    };
    let enough = match claims.raw {
        Some(raw) => claims.numbers.checked_mul(width) == Some(raw.len() as u64),
        // A number takes a byte at least; complex ones and text are stored in ways of their own.
        None => claims.numbers <= claims.listed,
    };
    if !enough {
        return refused(format!(
            "its tensor '{}' claims {} numbers that it does not hold",
            name(),
            claims.numbers
        ));
    }
    match claims.product {
        Some(product) if claims.numbers <= LONGEST_SHAPE && product > MOST_NUMBERS => {
            refused(format!("its constant '{}' asks for {product} numbers, more than {MOST_NUMBERS}", name()))
        }
        _ => Ok(()),
    }
}

fn claims(bytes: &[u8]) -> Outcome<Claims<'_>> {
    let mut fields = Fields(bytes);
    let mut claims = Claims { numbers: 1, ..Claims::default() };
    let side = |claims: &mut Claims<'_>, side: u64| {
        claims.numbers = claims
            .numbers
            .checked_mul(side)
            .ok_or(Problem::Refused("a tensor of too many numbers".into()))?;
        Ok(())
    };
    while let Some((number, value)) = fields.next()? {
        match (number, value) {
            (1, Value::Number(found)) => side(&mut claims, found)?,
            (1, Value::Bytes(packed)) => {
                let mut packed = Fields(packed);
                while !packed.0.is_empty() {
                    let found = packed.number()?;
                    side(&mut claims, found)?;
                }
            }
            (2, Value::Number(kind)) => claims.kind = kind,
            (4..=7 | 10 | 11, Value::Number(found)) => {
                claims.listed += 1;
                claims.product = Some(claims.product.unwrap_or(1).saturating_mul(positive(found)));
            }
            (7, Value::Bytes(packed)) => {
                claims.listed += packed.len() as u64;
                let mut packed = Fields(packed);
                while !packed.0.is_empty() {
                    let found = positive(packed.number()?);
                    claims.product = Some(claims.product.unwrap_or(1).saturating_mul(found));
                }
            }
            (4..=6 | 10 | 11, Value::Bytes(packed)) => claims.listed += packed.len() as u64,
            (8, Value::Bytes(name)) => claims.name = name,
            (9, Value::Bytes(raw)) => claims.raw = Some(raw),
            (13, _) | (14, Value::Number(1..)) => {
                return refused("it keeps its weights in another file, which is not supported");
            }
            _ => (),
        }
    }
    if claims.kind == INT64
        && let Some(raw) = claims.raw
    {
        let numbers = raw.as_chunks::<8>().0.iter().map(|bytes| positive(u64::from_le_bytes(*bytes)));
        claims.product = Some(numbers.take(LONGEST_SHAPE as usize).fold(1, u64::saturating_mul));
    }
    Ok(claims)
}

/// A side of a shape: 0 and -1 stand for "as it is", and take no room of their own.
fn positive(number: u64) -> u64 {
    // The largest number says "to the end" where a slice is meant.
    match number.cast_signed() {
        1..=0x7fff_fffe => number,
        0x7fff_ffff | i64::MAX | ..1 => 1,
        _ => number,
    }
}

const INT64: u64 = 7;

/// Bytes of a number, by the format's own list of types.
fn width(kind: u64) -> Option<u64> {
    Some(match kind {
        2 | 3 | 8 | 9 | 17..=20 => 1,
        4 | 5 | 10 | 16 => 2,
        1 | 6 | 12 => 4,
        7 | 11 | 13 | 14 => 8,
        15 => 16,
        _ => return None,
    })
}
