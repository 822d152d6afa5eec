//! The functions that a pickle may call: the few of NumPy that build arrays, types and numbers, each implemented in
//! this module. The stack machine calls [`Function::named`] for a name, [`StackMachine::call`] for a call, and
//! [`StackMachine::build`] to set the state of a result.
//!
//! NumPy pickles an array as "reconstruct an empty array, then set its state", or, from protocol 5 on, as "make an
//! array of this buffer"; a type as its name and a state with the byte order; a typed number as its type and its bytes.
//! Bytes that Python 2 must be able to read are pickled as text that is to be encoded.

use bytes::Bytes;
use trueshot::arrays::{Array, Element};

use super::stack_machine::StackMachine;
use super::{Node, PickleError, ValueId};

/// The most dimensions of an array, which is NumPy's limit.
const MAX_DIMENSIONS: usize = 64;

/// The functions that a pickle may name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Function {
    /// Makes an empty array, whose state is set later.
    Reconstruct,
    /// The class of arrays, an argument of `Reconstruct`.
    ArrayType,
    /// Makes the type of elements from its name.
    ElementType,
    /// Makes an array of a buffer.
    FromBuffer,
    /// Makes a number from its type and its bytes.
    Scalar,
    /// Encodes text as bytes.
    Encode,
    /// Makes empty bytes.
    BytesType,
    /// Makes a bytearray of bytes or text.
    ByteArrayType,
}

impl Function {
    /// The function of that name; an error if it is not in the list.
    pub fn named(module: &str, name: &str) -> Result<Self, PickleError> {
        Ok(match (module, name) {
            ("numpy.core.multiarray" | "numpy._core.multiarray", "_reconstruct") => Function::Reconstruct,
            ("numpy.core.multiarray" | "numpy._core.multiarray", "scalar") => Function::Scalar,
            ("numpy.core.numeric" | "numpy._core.numeric", "_frombuffer") => Function::FromBuffer,
            ("numpy", "ndarray") => Function::ArrayType,
            ("numpy", "dtype") => Function::ElementType,
            ("_codecs", "encode") => Function::Encode,
            ("__builtin__" | "builtins", "bytes") => Function::BytesType,
            ("__builtin__" | "builtins", "bytearray") => Function::ByteArrayType,
            _ => {
                let shown: String =
                    format!("{module}.{name}").chars().filter(|c| !c.is_control()).take(80).collect();
                return Err(PickleError::Call(shown));
            }
        })
    }
}

impl StackMachine {
    /// Computes the result of a function for a tuple of arguments.
    pub(super) fn call(&mut self, function: ValueId, arguments: ValueId) -> Result<ValueId, PickleError> {
        let &Node::Function(function) = self.node(function) else {
            return Err(PickleError::Call("something that is not a function".into()));
        };
        let Node::Tuple(arguments) = self.node(arguments) else {
            return Err(self.malformed("a call without arguments"));
        };
        // No function has more than four arguments; longer tuples are not copied whole.
        let arguments: Vec<ValueId> = arguments.iter().take(5).copied().collect();
        let node = match (function, &arguments[..]) {
            (Function::Reconstruct, [kind, ..]) => match self.node(*kind) {
                Node::Function(Function::ArrayType) => Node::EmptyArray,
                _ => return Err(PickleError::Unknown("an array of another class than numpy.ndarray".into())),
            },
            (Function::ElementType, [name, ..]) => Node::Element(self.element(*name)?),
            (Function::FromBuffer, [buffer, element, shape, order]) => {
                let fortran = self.name(*order) == Some("F");
                Node::Array(self.array(*element, fortran, *shape, *buffer)?.into())
            }
            (Function::Scalar, [element, bytes]) => self.scalar(*element, *bytes)?,
            (Function::Encode, [text, ..]) => return self.encode(*text, arguments.get(1).copied()),
            (Function::BytesType | Function::ByteArrayType, []) => {
                let span = self.store_decoded(Vec::new())?;
                return self.add_node(Node::Bytes(span));
            }
            (Function::ByteArrayType, [bytes]) if matches!(self.node(*bytes), Node::Bytes(_)) => {
                return Ok(*bytes);
            }
            // Before protocol 3, a bytearray was pickled as text and the name of its encoding.
            (Function::ByteArrayType, [text, name]) => return self.encode(*text, Some(*name)),
            _ => return Err(self.malformed("a function with arguments that it does not take")),
        };
        self.add_node(node)
    }

    /// Sets the contents of an empty array, or the byte order of a type.
    pub(super) fn build(&mut self, target: ValueId, state: ValueId) -> Result<(), PickleError> {
        let Node::Tuple(parts) = self.node(state) else {
            return Err(PickleError::Call("a method that sets the state of an object".into()));
        };
        // The states of arrays and types have fewer parts; longer tuples are not copied whole.
        let parts: Vec<ValueId> = parts.iter().take(16).copied().collect();
        let node = match *self.node(target) {
            Node::EmptyArray => {
                // The version number in front was added in NumPy 1.
                let parts = if parts.len() == 5 { &parts[1..] } else { &parts[..] };
                let &[shape, element, order, data] = parts else {
                    return Err(self.malformed("the state of an array has other parts than NumPy gives it"));
                };
                let fortran = matches!(self.node(order), Node::Bool(true) | Node::Int(1));
                Node::Array(self.array(element, fortran, shape, data)?.into())
            }
            Node::Element(element) => {
                // The state of a type starts with a version number; the byte order follows.
                let byte_order = parts.get(1).and_then(|&order| self.name(order));
                Node::Element(Element { big_endian: byte_order == Some(">"), ..element })
            }
            _ => return Err(PickleError::Call("a method that sets the state of an object".into())),
        };
        self.replace(target, node);
        Ok(())
    }

    /// Parses a type such as `u1`, `<f4`, `S10` or `b1`: the byte order, the kind, and the number of bytes (of
    /// characters of four bytes for `U`).
    fn element(&self, name: ValueId) -> Result<Element, PickleError> {
        let name = self.name(name).unwrap_or_default();
        let unknown = || {
            PickleError::Unknown(format!("elements of type '{}'", name.chars().take(20).collect::<String>()))
        };
        let big_endian = name.starts_with('>');
        let mut letters = name.trim_start_matches(['<', '>', '|', '=']).chars();
        // Booleans, integers, unsigned integers, floats, bytes and text.
        let kind = letters.next().filter(|kind| "biufSU".contains(*kind)).ok_or_else(unknown)?;
        let count: usize = letters.as_str().parse().map_err(|_| unknown())?;
        let width = if kind == 'U' { count.checked_mul(4) } else { Some(count) };
        let width = width.filter(|&width| width > 0).ok_or_else(unknown)?;
        Ok(Element { kind, width, big_endian })
    }

    /// Makes an array. `fortran`: the elements are stored columns first.
    fn array(
        &self,
        element: ValueId,
        fortran: bool,
        shape: ValueId,
        data: ValueId,
    ) -> Result<Array, PickleError> {
        let &Node::Element(element) = self.node(element) else {
            return Err(self.malformed("an array without a type of its elements"));
        };
        let data = match *self.node(data) {
            Node::Bytes(span) => self.bytes(span),
            Node::List(_) => return Err(PickleError::Unknown("an array of Python objects".into())),
            _ => return Err(self.malformed("an array whose contents are not bytes")),
        };
        let shape = self.shape(shape)?;
        let (claimed, length) = (format!("{shape:?}"), data.len());
        Array::new(element, fortran, shape, data).ok_or_else(|| {
            let width = element.width;
            self.malformed(&format!(
                "an array claims the shape {claimed} of {width} bytes each and has {length} bytes"
            ))
        })
    }

    /// The sizes in a tuple.
    fn shape(&self, shape: ValueId) -> Result<Vec<usize>, PickleError> {
        let refused = || self.malformed("the shape of an array is not a tuple of sizes");
        let Node::Tuple(sizes) = self.node(shape) else { return Err(refused()) };
        if sizes.len() > MAX_DIMENSIONS {
            return Err(refused());
        }
        let size = |&id: &ValueId| match *self.node(id) {
            Node::Int(size) => usize::try_from(size).ok(),
            _ => None,
        };
        sizes.iter().map(size).collect::<Option<_>>().ok_or_else(refused)
    }

    /// Makes a float of 4 or 8 bytes, or an integer.
    fn scalar(&self, element: ValueId, bytes: ValueId) -> Result<Node, PickleError> {
        let (&Node::Element(element), &Node::Bytes(span)) = (self.node(element), self.node(bytes)) else {
            return Err(self.malformed("a number without its type or its bytes"));
        };
        let bytes: Bytes = self.bytes(span);
        if element.kind == 'f' {
            let mut ordered = bytes.to_vec();
            if element.big_endian {
                ordered.reverse();
            }
            let value = match (element.width, &ordered[..]) {
                (4, &[a, b, c, d]) => Some(f64::from(f32::from_le_bytes([a, b, c, d]))),
                (8, _) => ordered.try_into().ok().map(f64::from_le_bytes),
                _ => None,
            };
            return value.map(Node::Float).ok_or_else(|| self.malformed("a number of an unknown size"));
        }
        // As an array with one element.
        let numbers = Array::new(element, false, vec![1], bytes).and_then(|array| array.whole_numbers());
        match numbers.as_deref() {
            Some(&[number]) => Ok(Node::Int(number)),
            _ => Err(self.malformed("a number of an unknown type or size")),
        }
    }

    /// Encodes text as Latin-1, in which Python 3 writes bytes for Python 2.
    fn encode(&mut self, text: ValueId, encoding: Option<ValueId>) -> Result<ValueId, PickleError> {
        let encoding = encoding.and_then(|encoding| self.name(encoding)).unwrap_or("utf-8");
        if !matches!(encoding, "latin1" | "latin-1") {
            return Err(PickleError::Call("_codecs.encode with another encoding than latin1".into()));
        }
        let &Node::Text(span) = self.node(text) else { return Err(self.malformed("no text to encode")) };
        self.check_decoded_size(span.end - span.start)?;
        let text = self.bytes(span);
        let text = std::str::from_utf8(&text).expect("texts were checked to be UTF-8");
        let bytes: Option<Vec<u8>> =
            text.chars().map(|letter| u8::try_from(u32::from(letter)).ok()).collect();
        let bytes = bytes.ok_or_else(|| self.malformed("text that is not Latin-1"))?;
        let span = self.store_decoded(bytes)?;
        self.add_node(Node::Bytes(span))
    }
}
