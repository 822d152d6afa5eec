//! A reader of Python's pickles that calls no functions of Python.
//!
//! Python's `pickle` is a program for a small stack machine whose instructions can call any function there is.
//! Data sets are published in it all the same, so this is the machine without the calls: it knows numbers,
//! strings, bytes, lists, tuples and dictionaries, and the half dozen functions by which NumPy's arrays are put
//! together, which it recognises by name and does itself. Everything else that a pickle wants to
//! call is refused by name.
//!
//! The file is not believed: a length is compared with what is left before anything is done with it, and what
//! many small instructions could add up to is limited. Values lie side by side in one list and refer to each
//! other by number, so that no nesting, however deep or circular, can lead to recursion, not even when they are
//! dropped. Bytes and arrays stay views into the file, which may be a memory map of gigabytes.
//!
//! Protocols 0 to 5 are read, by Python 2 and 3 and NumPy 1 and 2. Sets, complex numbers, arrays of objects
//! and buffers outside the file are left out.

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
    /// It wants something called.
    #[error(
        "it calls {0}; only functions that restore NumPy arrays are known, and no function is ever executed"
    )]
    Call(String),
    /// It ends in the middle.
    #[error("it is truncated at byte {0}")]
    CutOff(usize),
    /// It refers to something that it does not hold.
    #[error("it refers to {0}, which lies outside the file")]
    Outside(&'static str),
    /// It is built of too many parts.
    #[error("it is made of more than {0}")]
    TooMuch(String),
    /// It has something that this reader leaves out.
    #[error("it contains {0}, which no supported data set contains")]
    Unknown(String),
    /// It contradicts itself.
    #[error("at byte {at}: {problem}")]
    Malformed {
        /// Where the instruction begins.
        at: usize,
        /// What is wrong.
        problem: String,
    },
}

/// A value's number.
type ValueId = u32;

/// One value; parts are numbers of other values.
#[derive(Debug)]
enum Node {
    None,
    Bool(bool),
    Int(i64),
    Float(f64),
    /// Unicode, checked to be UTF-8.
    Text(Span),
    /// Bytes, and the strings of Python 2, which are the same.
    Bytes(Span),
    List(Vec<ValueId>),
    Tuple(Vec<ValueId>),
    Dict(Vec<(ValueId, ValueId)>),
    Array(Box<Array>),
    /// A function of NumPy that may be asked for.
    Function(functions::Function),
    /// A type of elements on its way into an array.
    Element(Element),
    /// An array that is still to get its contents.
    EmptyArray,
}

/// Where bytes are: in the file, or among those made of escapes.
#[derive(Debug, Clone, Copy)]
struct Span {
    /// 0 is the file; n the n-th of those made.
    owner: u32,
    start: usize,
    end: usize,
}

/// What a pickle holds.
#[derive(Debug)]
pub struct Pickle {
    nodes: Vec<Node>,
    root: ValueId,
    file: Bytes,
    made: Vec<Bytes>,
}

impl Pickle {
    /// Reads a pickle.
    pub fn read(file: Bytes) -> Result<Self, PickleError> {
        stack_machine::StackMachine::new(file).run()
    }

    /// The value it is of.
    pub fn value(&self) -> Value<'_> {
        Value { pickle: self, id: self.root }
    }

    fn bytes(&self, span: Span) -> Bytes {
        owner(&self.file, &self.made, span).slice(span.start..span.end)
    }

    fn slice(&self, span: Span) -> &[u8] {
        &owner(&self.file, &self.made, span)[span.start..span.end]
    }
}

fn owner<'a>(file: &'a Bytes, made: &'a [Bytes], span: Span) -> &'a Bytes {
    match span.owner {
        0 => file,
        number => &made[number as usize - 1],
    }
}

/// A value of a pickle.
#[derive(Debug, Clone, Copy)]
pub struct Value<'a> {
    pickle: &'a Pickle,
    id: ValueId,
}

impl<'a> Value<'a> {
    fn node(self) -> &'a Node {
        &self.pickle.nodes[self.id as usize]
    }

    /// What it is, in a word, for messages.
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

    /// A whole number.
    pub fn integer(self) -> Option<i64> {
        match *self.node() {
            Node::Int(number) => Some(number),
            Node::Bool(truth) => Some(truth.into()),
            _ => None,
        }
    }

    /// A number.
    pub fn float(self) -> Option<f64> {
        match *self.node() {
            Node::Float(number) => Some(number),
            _ => self.integer().map(|number| number as f64),
        }
    }

    /// A string; bytes are one in Python 2, and then Latin-1.
    pub fn text(self) -> Option<Cow<'a, str>> {
        match *self.node() {
            Node::Text(span) => std::str::from_utf8(self.pickle.slice(span)).ok().map(Cow::Borrowed),
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

    /// Bytes.
    pub fn bytes(self) -> Option<Bytes> {
        match *self.node() {
            Node::Bytes(span) => Some(self.pickle.bytes(span)),
            _ => None,
        }
    }

    /// An array.
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

    /// Keys and values of a dictionary, in their order.
    pub fn pairs(self) -> Option<impl ExactSizeIterator<Item = (Value<'a>, Value<'a>)>> {
        match self.node() {
            Node::Dict(pairs) => {
                let value = move |id| Value { pickle: self.pickle, id };
                Some(pairs.iter().map(move |&(key, held)| (value(key), value(held))))
            }
            _ => None,
        }
    }

    /// What a dictionary has under a name; as in Python, the last one counts.
    pub fn get(self, name: &str) -> Option<Value<'a>> {
        self.pairs()?
            .filter(|(key, _)| key.text().is_some_and(|key| key == name))
            .last()
            .map(|(_, held)| held)
    }

    /// Whole numbers, be they a list, a tuple or an array.
    pub fn whole_numbers(self) -> Option<Vec<i64>> {
        match self.items() {
            Some(items) => items.map(Value::integer).collect(),
            None => self.array()?.whole_numbers(),
        }
    }
}

#[cfg(test)]
mod tests;
