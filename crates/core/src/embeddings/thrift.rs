//! A reader of Thrift's compact protocol ([`CompactReader`]) that reads as much as is needed to check the headers of
//! Parquet files before the decoder of the `parquet` crate sees them.
//!
//! It builds nothing and allocates nothing: it moves over the bytes field by field and stops where they end. Nesting is
//! bounded, so that a file cannot exhaust the stack.

/// The wire types of the protocol: the numbers that mark the type of a field. A boolean field has no further bytes: its
/// wire type is its value.
pub(crate) mod wire {
    pub const TRUE: u8 = 1;
    pub const FALSE: u8 = 2;
    pub const BYTE: u8 = 3;
    pub const I16: u8 = 4;
    pub const I32: u8 = 5;
    pub const I64: u8 = 6;
    pub const DOUBLE: u8 = 7;
    pub const BINARY: u8 = 8;
    pub const LIST: u8 = 9;
    pub const SET: u8 = 10;
    pub const MAP: u8 = 11;
    pub const STRUCT: u8 = 12;
    pub const UUID: u8 = 13;
}

/// The maximum nesting depth; no structure of Parquet is that deep.
const MAX_DEPTH: usize = 24;

/// A position in a byte slice. Every method returns `None` if the bytes do not follow the protocol.
pub(crate) struct CompactReader<'a> {
    bytes: &'a [u8],
    position: usize,
}

impl<'a> CompactReader<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        CompactReader { bytes, position: 0 }
    }

    /// The number of bytes read so far.
    pub fn position(&self) -> usize {
        self.position
    }

    fn remaining(&self) -> usize {
        self.bytes.len() - self.position
    }

    fn advance(&mut self, length: usize) -> Option<()> {
        self.position = self.position.checked_add(length).filter(|&end| end <= self.bytes.len())?;
        Some(())
    }

    fn byte(&mut self) -> Option<u8> {
        let byte = *self.bytes.get(self.position)?;
        self.position += 1;
        Some(byte)
    }

    /// Reads an unsigned number (a varint): seven bits per byte, the lowest first. The eighth bit of a byte says
    /// whether another byte follows. A `u64` takes at most ten bytes.
    pub fn varint(&mut self) -> Option<u64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Some(value);
            }
        }
        None
    }

    /// Reads a signed number in zigzag encoding: 0, -1, 1, -2 are stored as the varints 0, 1, 2, 3. The lowest bit is
    /// the sign; of a negative number, the other bits are inverted.
    fn zigzag(&mut self) -> Option<i64> {
        let value = self.varint()?;
        Some((value >> 1) as i64 ^ -((value & 1) as i64))
    }

    /// Reads an `i32`; `None` if the number does not fit.
    pub fn i32(&mut self) -> Option<i32> {
        self.zigzag()?.try_into().ok()
    }

    /// Reads the fields of a structure at nesting depth `depth` (0 for the outermost one). `visit` gets the id and the
    /// wire type of each field; it returns `Some(true)` if it has read the value, `Some(false)` if the value shall be
    /// skipped, and `None` if the structure is invalid. If it calls `fields` itself, it passes `depth + 1`.
    pub fn fields(
        &mut self,
        depth: usize,
        mut visit: impl FnMut(&mut Self, i16, u8) -> Option<bool>,
    ) -> Option<()> {
        // The id of the previous field.
        let mut last = 0i16;
        if depth > MAX_DEPTH {
            return None;
        }
        loop {
            let head = self.byte()?;
            let kind = head & 0x0f;
            // A wire type of 0 marks the end of the structure.
            if kind == 0 {
                return Some(());
            }
            // The upper four bits are the difference from the previous id; 0 if the id follows as a number.
            last = match head >> 4 {
                0 => self.zigzag()?.try_into().ok()?,
                step => last.checked_add(i16::from(step))?,
            };
            if !visit(self, last, kind)? {
                self.skip(kind, depth)?;
            }
        }
    }

    /// Reads the wire type and length of a list; `None` if it is longer than the remaining bytes, because every element
    /// takes at least one byte.
    pub fn list(&mut self) -> Option<(u8, usize)> {
        // The upper four bits are the length; 15 if the length follows as a number.
        let head = self.byte()?;
        let length = match head >> 4 {
            15 => self.varint()?.try_into().ok()?,
            short => usize::from(short),
        };
        (length <= self.remaining()).then_some((head & 0x0f, length))
    }

    /// Skips the value of a field with the wire type `kind`.
    fn skip(&mut self, kind: u8, depth: usize) -> Option<()> {
        match kind {
            wire::TRUE | wire::FALSE => Some(()),
            wire::BYTE => self.advance(1),
            wire::I16 | wire::I32 | wire::I64 => self.varint().map(|_| ()),
            wire::DOUBLE => self.advance(8),
            wire::UUID => self.advance(16),
            wire::BINARY => {
                let length = self.varint()?.try_into().ok()?;
                self.advance(length)
            }
            wire::LIST | wire::SET => {
                let (kind, length) = self.list()?;
                (0..length).try_for_each(|_| self.skip_element(kind, depth + 1))
            }
            wire::MAP => self.skip_map(depth + 1),
            wire::STRUCT => self.fields(depth + 1, |_, _, _| Some(false)),
            _ => None,
        }
    }

    /// Skips a map: its length, one byte with the wire types of keys and values, then keys and values in turn.
    fn skip_map(&mut self, depth: usize) -> Option<()> {
        let length: usize = self.varint()?.try_into().ok()?;
        if length == 0 {
            return Some(());
        }
        let kinds = self.byte()?;
        (0..length).try_for_each(|_| {
            self.skip_element(kinds >> 4, depth)?;
            self.skip_element(kinds & 0x0f, depth)
        })
    }

    /// Skips an element of a list, set or map. Unlike in fields, where the wire type is the value, booleans take one
    /// byte.
    fn skip_element(&mut self, kind: u8, depth: usize) -> Option<()> {
        match kind {
            _ if depth > MAX_DEPTH => None,
            wire::TRUE | wire::FALSE => self.advance(1),
            _ => self.skip(kind, depth),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_fields_are_read() {
        // Field 1: i32 -3; field 2: binary "ab"; field 18 (its id follows as a number): i32 64, whose varint is 128 and
        // takes two bytes; end. All numbers but the length of the binary are in zigzag encoding.
        let bytes = [0x15, 5, 0x18, 2, b'a', b'b', 0x05, 36, 0x80, 1, 0];
        let mut seen = Vec::new();
        let mut reader = CompactReader::new(&bytes);
        reader
            .fields(0, |reader, id, kind| {
                if kind != wire::I32 {
                    return Some(false);
                }
                seen.push((id, reader.i32()?));
                Some(true)
            })
            .unwrap();
        assert_eq!((seen, reader.position()), (vec![(1, -3), (18, 64)], bytes.len()));
    }

    #[test]
    fn deep_nesting_and_lengths_beyond_the_end_are_refused() {
        let skip_all = |bytes: &[u8]| CompactReader::new(bytes).fields(0, |_, _, _| Some(false));
        assert_eq!(skip_all(&[0x1c; 100_000]), None, "nested structures");
        assert_eq!(skip_all(&[0x19; 100_000]), None, "nested lists");
        let long_binary = [0x18, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f];
        assert_eq!(skip_all(&long_binary), None);
        let long_list = [0x19, 0xf5, 0xff, 0xff, 0x7f, 0];
        assert_eq!(skip_all(&long_list), None);
        assert_eq!(skip_all(&[]), None, "the end of the structure is missing");
    }
}
