//! The stack machine that executes the instructions of a pickle in order; there are no jumps. Start with
//! [`StackMachine::run`], which [`Pickle::read`] calls.
//!
//! An instruction is one byte, followed by its argument if it has one. Python's module `pickletools` documents all of
//! them; comments here give their names in it. The machine has:
//!
//! - `nodes`, the list of all values. A value is referred to by its index in the list ([`ValueId`]).
//! - `stack`, on which instructions put values, and from which they take their operands.
//! - `marks`, positions of the stack: the operands of an instruction that makes a collection start at the last mark.
//! - `memo`, in which the pickle stores values under numbers, to put them on the stack again.

use std::collections::HashMap;

use bytes::Bytes;

use super::functions::Function;
use super::{Node, Pickle, PickleError, Span, ValueId, owner, string_escapes};

/// The most values of a pickle; the largest file of TieredImageNet has four million.
const MAX_VALUES: usize = 1 << 25;
/// The deepest nesting of collections; data sets need two or three.
const MAX_DEPTH: usize = 256;
/// The longest name of a function or type, in bytes.
const MAX_NAME_BYTES: usize = 256;
/// Bytes of decoded strings that are always allowed, besides the length of the file.
const ALWAYS_ALLOWED_DECODED_BYTES: usize = 1 << 16;

/// The state of the machine.
pub(super) struct StackMachine {
    file: Bytes,
    /// The offset of the next instruction or argument.
    next: usize,
    /// The offset of the current instruction, for errors.
    current: usize,
    nodes: Vec<Node>,
    stack: Vec<ValueId>,
    marks: Vec<usize>,
    memo: HashMap<u64, ValueId>,
    /// The values of the integers from 0 to 1023, which are stored once: files have millions of labels.
    small_integers: Vec<Option<ValueId>>,
    /// Strings that are not in the file in this form, but decoded from escapes.
    decoded: Vec<Bytes>,
    /// The total length of `decoded`.
    decoded_bytes: usize,
}

/// The indices in `nodes` of the three values with which every machine starts.
const NONE: ValueId = 0;
const TRUE: ValueId = 1;
const FALSE: ValueId = 2;

impl StackMachine {
    /// A machine at the first instruction of a file.
    pub fn new(file: Bytes) -> Self {
        StackMachine {
            file,
            next: 0,
            current: 0,
            nodes: vec![Node::None, Node::Bool(true), Node::Bool(false)],
            stack: Vec::new(),
            marks: Vec::new(),
            memo: HashMap::new(),
            small_integers: vec![None; 1024],
            decoded: Vec::new(),
            decoded_bytes: 0,
        }
    }

    /// Executes instructions up to `STOP`. The value on top of the stack is then the one that was pickled.
    pub fn run(mut self) -> Result<Pickle, PickleError> {
        loop {
            self.current = self.next;
            let [instruction] = self.take()?;
            // STOP
            if instruction == b'.' {
                break;
            }
            self.step(instruction)?;
            if self.stack.len() > MAX_VALUES || self.memo.len() > MAX_VALUES {
                return Err(too_many());
            }
        }
        let root = self.pop()?;
        Ok(Pickle { nodes: self.nodes, root, file: self.file, decoded: self.decoded })
    }

    /// Executes one instruction. Instructions of one kind differ in the form of their argument (text, or binary of
    /// several lengths) or in how they add to a collection.
    fn step(&mut self, instruction: u8) -> Result<(), PickleError> {
        match instruction {
            // PROTO
            0x80 => self.protocol(),
            // FRAME: only helps readers that read ahead; the contents of a frame are read as if they were in none.
            0x95 => self.take::<8>().map(drop),
            // NONE, NEWTRUE, NEWFALSE
            b'N' => self.put(NONE),
            0x88 => self.put(TRUE),
            0x89 => self.put(FALSE),
            // INT, BININT, BININT1, BININT2, LONG, LONG1, LONG4
            b'I' | b'J' | b'K' | b'M' | b'L' | 0x8a | 0x8b => self.number(instruction),
            // FLOAT, BINFLOAT
            b'F' | b'G' => self.float(instruction),
            // STRING, BINSTRING, SHORT_BINSTRING, BINBYTES, SHORT_BINBYTES, BINBYTES8, BYTEARRAY8
            b'S' | b'T' | b'U' | b'B' | b'C' | 0x8e | 0x96 => self.byte_string(instruction),
            // UNICODE, BINUNICODE, SHORT_BINUNICODE, BINUNICODE8
            b'V' | b'X' | 0x8c | 0x8d => self.unicode(instruction),
            // MARK, POP, POP_MARK, DUP
            b'(' => self.mark(),
            b'0' => self.discard(),
            b'1' => self.since_mark().map(drop),
            b'2' => self.top().and_then(|id| self.put(id)),
            // EMPTY_LIST, LIST, APPEND, APPENDS
            b']' | b'l' | b'a' | b'e' => self.list(instruction),
            // EMPTY_TUPLE, TUPLE, TUPLE1 to TUPLE3
            b')' | b't' | 0x85..=0x87 => self.tuple(instruction),
            // EMPTY_DICT, DICT, SETITEM, SETITEMS
            b'}' | b'd' | b's' | b'u' => self.dictionary(instruction),
            // PUT, BINPUT, LONG_BINPUT, MEMOIZE
            b'p' | b'q' | b'r' | 0x94 => self.remember(instruction),
            // GET, BINGET, LONG_BINGET
            b'g' | b'h' | b'j' => self.recall(instruction),
            // GLOBAL, STACK_GLOBAL, REDUCE, BUILD, INST, OBJ, NEWOBJ, NEWOBJ_EX
            b'c' | 0x93 | b'R' | b'b' | b'i' | b'o' | 0x81 | 0x92 => self.function(instruction),
            _ => Err(self.refusal(instruction)),
        }
    }

    /// The error for an instruction that is not executed.
    fn refusal(&self, instruction: u8) -> PickleError {
        match instruction {
            // PERSID, BINPERSID; NEXT_BUFFER, READONLY_BUFFER; EXT1 to EXT4; EMPTY_SET, ADDITEMS, FROZENSET
            b'P' | b'Q' => PickleError::Outside("an object by a persistent id"),
            0x97 | 0x98 => PickleError::Outside("a buffer"),
            0x82..=0x84 => PickleError::Call("a registered extension".into()),
            0x8f..=0x91 => PickleError::Unknown("a set".into()),
            _ => self.malformed(&format!("{instruction:#04x} is not a pickle opcode")),
        }
    }

    /// Checks the version of the protocol.
    fn protocol(&mut self) -> Result<(), PickleError> {
        match self.take()? {
            [0..=5] => Ok(()),
            [version] => Err(PickleError::Unknown(format!("a pickle of protocol {version}"))),
        }
    }

    /// Reads an integer and puts it on the stack.
    fn number(&mut self, instruction: u8) -> Result<(), PickleError> {
        let number = match instruction {
            b'J' => i64::from(i32::from_le_bytes(self.take()?)),
            b'K' => i64::from(u8::from_le_bytes(self.take()?)),
            b'M' => i64::from(u16::from_le_bytes(self.take()?)),
            0x8a | 0x8b => {
                let length = self.length(instruction)?;
                let span = self.span(length)?;
                little_endian(&self.bytes(span)).ok_or_else(|| self.invalid_integer())?
            }
            _ => {
                let line = self.line()?;
                let text = std::str::from_utf8(line).unwrap_or_default();
                match (instruction, text) {
                    // In protocol 0, `True` and `False` are written like this.
                    (b'I', "01") => return self.put(TRUE),
                    (b'I', "00") => return self.put(FALSE),
                    // The text of LONG ends with `L`.
                    _ => text.trim_end_matches('L').parse().map_err(|_| self.invalid_integer())?,
                }
            }
        };
        let is_small = usize::try_from(number).is_ok_and(|number| number < self.small_integers.len());
        if !is_small {
            return self.put_new(Node::Int(number));
        }
        let id = match self.small_integers[number as usize] {
            Some(id) => id,
            None => self.add_node(Node::Int(number))?,
        };
        self.small_integers[number as usize] = Some(id);
        self.put(id)
    }

    /// The error for an integer that is invalid or too large.
    fn invalid_integer(&self) -> PickleError {
        self.malformed("not an integer of at most 64 bits")
    }

    /// Reads a float and puts it on the stack.
    fn float(&mut self, instruction: u8) -> Result<(), PickleError> {
        let number = match instruction {
            b'G' => f64::from_be_bytes(self.take()?),
            _ => {
                let number = std::str::from_utf8(self.line()?).ok().and_then(|text| text.parse().ok());
                number.ok_or_else(|| self.malformed("not a number"))?
            }
        };
        self.put_new(Node::Float(number))
    }

    /// Reads bytes, or a string of Python 2, and puts them on the stack.
    fn byte_string(&mut self, instruction: u8) -> Result<(), PickleError> {
        let span = match instruction {
            b'S' => {
                let bytes = string_escapes::quoted(self.line()?);
                let bytes = bytes.ok_or_else(|| self.malformed("a string with a wrong quote or escape"))?;
                self.store_decoded(bytes)?
            }
            _ => {
                let length = self.length(instruction)?;
                self.span(length)?
            }
        };
        self.put_new(Node::Bytes(span))
    }

    /// Reads a Unicode string and puts it on the stack.
    fn unicode(&mut self, instruction: u8) -> Result<(), PickleError> {
        if instruction == b'V' {
            let text = string_escapes::unicode(self.line()?);
            let text = text.ok_or_else(|| self.malformed("a string with a wrong escape"))?;
            let span = self.store_decoded(text.into_bytes())?;
            return self.put_new(Node::Text(span));
        }
        let length = self.length(instruction)?;
        let span = self.span(length)?;
        if std::str::from_utf8(&self.file[span.start..span.end]).is_err() {
            return Err(self.malformed("a string that is not UTF-8"));
        }
        self.put_new(Node::Text(span))
    }

    /// Marks the position of the stack at which the operands of a later instruction start.
    fn mark(&mut self) -> Result<(), PickleError> {
        if self.marks.len() == MAX_DEPTH {
            return Err(PickleError::TooMuch(format!("{MAX_DEPTH} nested collections")));
        }
        self.marks.push(self.stack.len());
        Ok(())
    }

    /// Pops a mark if it is on top, otherwise a value, as Python does.
    fn discard(&mut self) -> Result<(), PickleError> {
        if self.marks.last() == Some(&self.stack.len()) {
            self.marks.pop();
            return Ok(());
        }
        self.pop().map(drop)
    }

    /// Makes a list, empty or of the values since the mark, or appends one value or the values since the mark to the
    /// list below them.
    fn list(&mut self, instruction: u8) -> Result<(), PickleError> {
        let added = match instruction {
            b']' => return self.put_new(Node::List(Vec::new())),
            b'l' => {
                let items = self.since_mark()?;
                return self.put_new(Node::List(items));
            }
            b'a' => vec![self.pop()?],
            _ => self.since_mark()?,
        };
        let list = self.top()?;
        match &mut self.nodes[list as usize] {
            Node::List(items) => items.extend(added),
            _ => return Err(self.malformed("an item is appended to something that is not a list")),
        }
        Ok(())
    }

    /// Makes a tuple: empty, of the values since the mark, or of the top one to three values.
    fn tuple(&mut self, instruction: u8) -> Result<(), PickleError> {
        let mut items = Vec::new();
        match instruction {
            b')' => {}
            b't' => items = self.since_mark()?,
            _ => {
                // TUPLE1 is 0x85, TUPLE2 and TUPLE3 follow.
                for _ in 0x85..=instruction {
                    items.push(self.pop()?);
                }
                items.reverse();
            }
        }
        self.put_new(Node::Tuple(items))
    }

    /// Makes a dictionary, empty or of the keys and values since the mark, or sets one or several keys of the
    /// dictionary below them.
    fn dictionary(&mut self, instruction: u8) -> Result<(), PickleError> {
        let added = match instruction {
            b'}' => return self.put_new(Node::Dict(Vec::new())),
            b's' => {
                let value = self.pop()?;
                vec![self.pop()?, value]
            }
            _ => self.since_mark()?,
        };
        let (pairs, unpaired) = added.as_chunks::<2>();
        if !unpaired.is_empty() {
            return Err(self.malformed("a key without a value"));
        }
        let pairs = pairs.iter().map(|&[key, value]| (key, value));
        if instruction == b'd' {
            return self.put_new(Node::Dict(pairs.collect()));
        }
        let dictionary = self.top()?;
        match &mut self.nodes[dictionary as usize] {
            Node::Dict(present) => present.extend(pairs),
            _ => return Err(self.malformed("a key is set in something that is not a dictionary")),
        }
        Ok(())
    }

    /// Stores the value on top of the stack in the memo. MEMOIZE gives no number; its entry gets the number of entries.
    fn remember(&mut self, instruction: u8) -> Result<(), PickleError> {
        let key = match instruction {
            0x94 => self.memo.len() as u64,
            _ => self.memo_key(instruction)?,
        };
        let id = self.top()?;
        self.memo.insert(key, id);
        Ok(())
    }

    /// Puts a value of the memo on the stack.
    fn recall(&mut self, instruction: u8) -> Result<(), PickleError> {
        let key = self.memo_key(instruction)?;
        let id = self.memo.get(&key).copied();
        let id =
            id.ok_or_else(|| self.malformed(&format!("memo entry {key} is read but was never written")))?;
        self.put(id)
    }

    /// Reads the number of a memo entry.
    fn memo_key(&mut self, instruction: u8) -> Result<u64, PickleError> {
        match instruction {
            b'q' | b'h' => self.take().map(|[key]| u64::from(key)),
            b'r' | b'j' => self.take().map(|key| u64::from(u32::from_le_bytes(key))),
            _ => {
                let key = std::str::from_utf8(self.line()?).ok().and_then(|text| text.parse().ok());
                key.ok_or_else(|| self.malformed("not the number of a memo entry"))
            }
        }
    }

    /// Instructions that name a function (its result is the function itself), call one, or set the state of a value.
    /// Functions are only those of [`Function`]; constructors of classes are refused.
    fn function(&mut self, instruction: u8) -> Result<(), PickleError> {
        match instruction {
            b'c' => {
                let module = String::from_utf8_lossy(self.line()?).into_owned();
                let name = String::from_utf8_lossy(self.line()?).into_owned();
                self.put_new(Node::Function(Function::named(&module, &name)?))
            }
            0x93 => {
                let (name, module) = (self.pop()?, self.pop()?);
                let (Some(module), Some(name)) = (self.name(module), self.name(name)) else {
                    return Err(self.malformed("a function whose name is not a string"));
                };
                let function = Function::named(module, name)?;
                self.put_new(Node::Function(function))
            }
            b'i' => {
                let module = String::from_utf8_lossy(self.line()?).into_owned();
                let name = String::from_utf8_lossy(self.line()?).into_owned();
                Function::named(&module, &name)?;
                Err(PickleError::Call(format!("{module}.{name} as a class")))
            }
            b'R' => {
                let (arguments, function) = (self.pop()?, self.pop()?);
                let value = self.call(function, arguments)?;
                self.put(value)
            }
            b'b' => {
                let (state, target) = (self.pop()?, self.top()?);
                self.build(target, state)
            }
            _ => Err(PickleError::Call("the constructor of a class".into())),
        }
    }

    /// Reads the length that precedes a value: one byte, eight, or four, depending on the instruction.
    fn length(&mut self, instruction: u8) -> Result<usize, PickleError> {
        let length = match instruction {
            b'U' | b'C' | 0x8c | 0x8a => self.take().map(|[length]| u64::from(length))?,
            0x8d | 0x8e | 0x96 => u64::from_le_bytes(self.take()?),
            _ => u64::from(u32::from_le_bytes(self.take()?)),
        };
        // What exceeds the address space also exceeds the file.
        usize::try_from(length).map_err(|_| PickleError::Truncated(self.file.len()))
    }

    /// Takes the next bytes of the file: an instruction, or an argument of fixed length.
    fn take<const COUNT: usize>(&mut self) -> Result<[u8; COUNT], PickleError> {
        let bytes = self.file.get(self.next..).and_then(|rest| rest.first_chunk::<COUNT>());
        let bytes = *bytes.ok_or(PickleError::Truncated(self.file.len()))?;
        self.next += COUNT;
        Ok(bytes)
    }

    /// Takes the next `length` bytes of the file as a range, without copying them.
    fn span(&mut self, length: usize) -> Result<Span, PickleError> {
        let end = self.next.checked_add(length).filter(|&end| end <= self.file.len());
        let end = end.ok_or(PickleError::Truncated(self.file.len()))?;
        let span = Span { owner: 0, start: self.next, end };
        self.next = end;
        Ok(span)
    }

    /// Reads up to the end of the line.
    fn line(&mut self) -> Result<&[u8], PickleError> {
        let rest = &self.file[self.next..];
        let length =
            rest.iter().position(|&byte| byte == b'\n').ok_or(PickleError::Truncated(self.file.len()))?;
        self.next += length + 1;
        let line = &rest[..length];
        Ok(line.strip_suffix(b"\r").unwrap_or(line))
    }

    /// Puts a value on the stack. Always `Ok`, so that it can be the last expression of an instruction.
    fn put(&mut self, id: ValueId) -> Result<(), PickleError> {
        self.stack.push(id);
        Ok(())
    }

    /// Adds a value to the list and puts it on the stack.
    fn put_new(&mut self, node: Node) -> Result<(), PickleError> {
        let id = self.add_node(node)?;
        self.put(id)
    }

    /// Adds a value to the list, not to the stack.
    pub fn add_node(&mut self, node: Node) -> Result<ValueId, PickleError> {
        if self.nodes.len() >= MAX_VALUES {
            return Err(too_many());
        }
        self.nodes.push(node);
        Ok((self.nodes.len() - 1) as ValueId)
    }

    /// The position of the stack below which no instruction may take operands: the last mark.
    fn floor(&self) -> usize {
        self.marks.last().copied().unwrap_or(0)
    }

    /// The value on top of the stack.
    fn top(&self) -> Result<ValueId, PickleError> {
        let above = self.stack.get(self.floor()..).and_then(|above| above.last());
        above.copied().ok_or_else(|| self.malformed("the stack is empty"))
    }

    /// Takes the value on top of the stack.
    fn pop(&mut self) -> Result<ValueId, PickleError> {
        let top = self.top()?;
        self.stack.pop();
        Ok(top)
    }

    /// Takes the last mark, and all values above it from the stack.
    fn since_mark(&mut self) -> Result<Vec<ValueId>, PickleError> {
        let mark =
            self.marks.pop().ok_or_else(|| self.malformed("a collection ends that was never started"))?;
        Ok(self.stack.split_off(mark))
    }

    /// A value in the list.
    pub fn node(&self, id: ValueId) -> &Node {
        &self.nodes[id as usize]
    }

    /// Replaces a value in the list, for all values that refer to it.
    pub fn replace(&mut self, id: ValueId, node: Node) {
        self.nodes[id as usize] = node;
    }

    /// The bytes of a range.
    pub fn bytes(&self, span: Span) -> Bytes {
        owner(&self.file, &self.decoded, span).slice(span.start..span.end)
    }

    /// The value as a string of at most [`MAX_NAME_BYTES`]: names are read repeatedly, so long ones would cost too
    /// much.
    pub fn name(&self, id: ValueId) -> Option<&str> {
        match *self.node(id) {
            Node::Text(span) | Node::Bytes(span) if span.end - span.start <= MAX_NAME_BYTES => {
                std::str::from_utf8(&owner(&self.file, &self.decoded, span)[span.start..span.end]).ok()
            }
            _ => None,
        }
    }

    /// Limits the decoded strings by the size of the file: a pickle can have one string encoded many times.
    pub fn check_decoded_size(&self, length: usize) -> Result<(), PickleError> {
        let most = self.file.len().saturating_add(ALWAYS_ALLOWED_DECODED_BYTES);
        if self.decoded_bytes.saturating_add(length) > most {
            return Err(PickleError::TooMuch(format!("{most} bytes of strings")));
        }
        Ok(())
    }

    /// Stores bytes that are not in the file in this form.
    pub fn store_decoded(&mut self, bytes: Vec<u8>) -> Result<Span, PickleError> {
        self.check_decoded_size(bytes.len())?;
        self.decoded_bytes += bytes.len();
        let end = bytes.len();
        self.decoded.push(bytes.into());
        Ok(Span { owner: self.decoded.len() as u32, start: 0, end })
    }

    /// The error for a problem with the current instruction.
    pub fn malformed(&self, problem: &str) -> PickleError {
        PickleError::Malformed { at: self.current, problem: problem.into() }
    }
}

/// The error for a pickle with more than [`MAX_VALUES`] values.
fn too_many() -> PickleError {
    PickleError::TooMuch(format!("{MAX_VALUES} values"))
}

/// A little-endian signed integer of any length; `None` if it does not fit into 64 bits. Nine bytes fit if the last one
/// only repeats the sign, as Python writes some numbers.
fn little_endian(bytes: &[u8]) -> Option<i64> {
    // The byte of which all higher bytes consist: copies of the sign, which is the highest bit.
    let is_negative = |byte: u8| byte & 0x80 != 0;
    let sign_byte = if bytes.last().is_some_and(|&last| is_negative(last)) { 0xff } else { 0 };
    let repeats_sign = |bytes: &[u8]| bytes[8] == sign_byte && is_negative(bytes[7]) == (sign_byte == 0xff);
    if bytes.len() > 8 && !(bytes.len() == 9 && repeats_sign(bytes)) {
        return None;
    }
    let mut extended = [sign_byte; 8];
    let length = bytes.len().min(8);
    extended[..length].copy_from_slice(&bytes[..length]);
    Some(i64::from_le_bytes(extended))
}
