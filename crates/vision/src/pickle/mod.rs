//! A reader of Python's pickles that calls no functions of Python. Start with [`Pickle::read`].
//!
//! A pickle is a program for a small stack machine whose instructions can call any Python function. This reader
//! executes only the instructions that build data: numbers, strings, bytes, lists, tuples and dictionaries. The few
//! functions that rebuild NumPy arrays are recognised by name and implemented here; a pickle that calls any other
//! function is refused with its name.
//!
//! The file is untrusted: a length is compared with the rest of the file before it is used, and the total of what many
//! small instructions can create is limited. Values are in one list and refer to each other by index, so that no
//! nesting, however deep or circular, leads to recursion, not even on drop. Bytes and arrays are views into the file,
//! which may be a memory map of gigabytes.
//!
//! Reads protocols 0 to 5, as written by Python 2 and 3 and NumPy 1 and 2. Sets, complex numbers, arrays of objects and
//! out-of-band buffers are not supported.

mod functions;
mod stack_machine;
mod string_escapes;

use std::borrow::Cow;

use bytes::Bytes;
use trueshot::arrays::{Array, Element};

/// Why a pickle was not read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PickleError {
    /// It calls a function that is not one of the known ones.
    #[error(
        "it calls {0}; only functions that restore NumPy arrays are known, and no function is ever executed"
    )]
    Call(String),
    /// It is truncated.
    #[error("it is truncated at byte {0}")]
    Truncated(usize),
    /// It refers to a value that is stored outside the file: a persistent id or an out-of-band buffer.
    #[error("it refers to {0}, which lies outside the file")]
    Outside(&'static str),
    /// It exceeds a limit.
    #[error("it is made of more than {0}")]
    TooMuch(String),
    /// It contains something that is not supported.
    #[error("it contains {0}, which no supported data set contains")]
    Unknown(String),
    /// It is malformed.
    #[error("at byte {at}: {problem}")]
    Malformed {
        /// The offset of the instruction.
        at: usize,
        /// What is wrong.
        problem: String,
    },
}

/// The index of a value in the list of all values.
type ValueId = u32;

/// A value in the list; its parts are indices of other values.
#[derive(Debug)]
enum Node {
    None,
    Bool(bool),
    Int(i64),
    Float(f64),
    /// Unicode, checked to be UTF-8.
    Text(Span),
    /// Bytes, or a string of Python 2.
    Bytes(Span),
    List(Vec<ValueId>),
    Tuple(Vec<ValueId>),
    Dict(Vec<(ValueId, ValueId)>),
    Array(Box<Array>),
    /// A function that the pickle may call.
    Function(functions::Function),
    /// An element type that an array will get.
    Element(Element),
    /// An array whose contents are not set yet.
    EmptyArray,
}

/// A range of bytes, in the file or in bytes decoded from escapes.
#[derive(Debug, Clone, Copy)]
struct Span {
    /// 0 is the file; `n` is the `n`-th decoded string.
    owner: u32,
    start: usize,
    end: usize,
}

/// The values of a pickle.
#[derive(Debug)]
pub struct Pickle {
    nodes: Vec<Node>,
    /// The value that was pickled.
    root: ValueId,
    file: Bytes,
    /// Strings decoded from escapes, which [`Span::owner`] numbers from 1.
    decoded: Vec<Bytes>,
}

impl Pickle {
    /// Reads the pickle in `file`, which usually is a memory map.
    pub fn read(file: Bytes) -> Result<Self, PickleError> {
        stack_machine::StackMachine::new(file).run()
    }

    /// The value that was pickled.
    pub fn value(&self) -> Value<'_> {
        Value { pickle: self, id: self.root }
    }

    /// The bytes of a range, which keep the file or the decoded string alive.
    fn bytes(&self, span: Span) -> Bytes {
        owner(&self.file, &self.decoded, span).slice(span.start..span.end)
    }

    /// The bytes of a range.
    fn slice(&self, span: Span) -> &[u8] {
        &owner(&self.file, &self.decoded, span)[span.start..span.end]
    }
}

/// The bytes that a range belongs to: the file, or a decoded string.
fn owner<'a>(file: &'a Bytes, decoded: &'a [Bytes], span: Span) -> &'a Bytes {
    match span.owner {
        0 => file,
        number => &decoded[number as usize - 1],
    }
}

/// A value of a pickle.
#[derive(Debug, Clone, Copy)]
pub struct Value<'a> {
    pickle: &'a Pickle,
    id: ValueId,
}

impl<'a> Value<'a> {
    /// The value in the list of all values.
    fn node(self) -> &'a Node {
        &self.pickle.nodes[self.id as usize]
    }

    /// The kind of the value, for messages.
    pub fn kind(self) -> &'static str {
        match self.node() {
            Node::None => "nothing",
            Node::Bool(_) => "a truth value",
            Node::Int(_) => "an integer",
            Node::Float(_) => "a number",
            Node::Text(_) => "a string",
            Node::Bytes(_) => "bytes",
            Node::List(_) => "a list",
            Node::Tuple(_) => "a tuple",
            Node::Dict(_) => "a dictionary",
            Node::Array(_) => "an array",
            Node::Function(_) | Node::Element(_) | Node::EmptyArray => "a piece of an array",
        }
    }

    /// The value as an integer; like the following methods, `None` if it is of another kind.
    pub fn integer(self) -> Option<i64> {
        match *self.node() {
            Node::Int(number) => Some(number),
            Node::Bool(truth) => Some(truth.into()),
            _ => None,
        }
    }

    /// The value as a number.
    pub fn float(self) -> Option<f64> {
        match *self.node() {
            Node::Float(number) => Some(number),
            _ => self.integer().map(|number| number as f64),
        }
    }

    /// The value as a string; bytes are read as Latin-1, because they may be a string of Python 2.
    pub fn text(self) -> Option<Cow<'a, str>> {
        match *self.node() {
            Node::Text(span) => {
                let text = std::str::from_utf8(self.pickle.slice(span));
                Some(Cow::Borrowed(text.expect("texts were checked to be UTF-8")))
            }
            Node::Bytes(span) => {
                let bytes = self.pickle.slice(span);
                Some(match std::str::from_utf8(bytes) {
                    Ok(text) if text.is_ascii() => Cow::Borrowed(text),
                    _ => Cow::Owned(bytes.iter().map(|&byte| char::from(byte)).collect()),
                })
            }
            _ => None,
        }
    }

    /// The value as bytes.
    pub fn bytes(self) -> Option<Bytes> {
        match *self.node() {
            Node::Bytes(span) => Some(self.pickle.bytes(span)),
            _ => None,
        }
    }

    /// The value as an array.
    pub fn array(self) -> Option<&'a Array> {
        match self.node() {
            Node::Array(array) => Some(array),
            _ => None,
        }
    }

    /// The values of a list or tuple.
    pub fn items(self) -> Option<impl ExactSizeIterator<Item = Value<'a>>> {
        match self.node() {
            Node::List(items) | Node::Tuple(items) => {
                Some(items.iter().map(move |&id| Value { pickle: self.pickle, id }))
            }
            _ => None,
        }
    }

    /// Keys and values of a dictionary, in order.
    pub fn pairs(self) -> Option<impl ExactSizeIterator<Item = (Value<'a>, Value<'a>)>> {
        match self.node() {
            Node::Dict(pairs) => {
                let value = move |id| Value { pickle: self.pickle, id };
                Some(pairs.iter().map(move |&(key, id)| (value(key), value(id))))
            }
            _ => None,
        }
    }

    /// The value of a key in a dictionary; as in Python, the last one if it is repeated.
    pub fn get(self, name: &str) -> Option<Value<'a>> {
        self.pairs()?
            .filter(|(key, _)| key.text().is_some_and(|key| key == name))
            .last()
            .map(|(_, value)| value)
    }

    /// The integers of a list, a tuple or an array.
    pub fn whole_numbers(self) -> Option<Vec<i64>> {
        match self.items() {
            Some(items) => items.map(Value::integer).collect(),
            None => self.array()?.whole_numbers(),
        }
    }
}

#[cfg(test)]
mod tests;
