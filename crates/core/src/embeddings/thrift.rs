//! As much of Thrift's compact protocol as it takes to look at Parquet's headers before its decoder does.
//!
//! Nothing is built and nothing allocated: the reader walks over the bytes, knows the wire type of every
//! field, and ends where the bytes end. Nesting is bounded, so that a walk cannot exhaust the stack.

/// Wire types.
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

/// Deeper than any structure of Parquet.
const DEEPEST: usize = 24;

/// A place in the bytes. Every method gives `None` where the bytes are not what the protocol says.
pub(crate) struct Compact<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Compact<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Compact { bytes, at: 0 }
    }

    /// How many bytes were walked over.
    pub fn position(&self) -> usize {
        self.at
    }

    fn remaining(&self) -> usize {
        self.bytes.len() - self.at
    }

    fn advance(&mut self, length: usize) -> Option<()> {
        self.at = self.at.checked_add(length).filter(|&at| at <= self.bytes.len())?;
        Some(())
    }

    fn byte(&mut self) -> Option<u8> {
        let byte = *self.bytes.get(self.at)?;
        self.at += 1;
        Some(byte)
    }

    /// A number of seven bits a byte.
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

    fn zigzag(&mut self) -> Option<i64> {
        let value = self.varint()?;
        Some((value >> 1) as i64 ^ -((value & 1) as i64))
    }

    /// A number declared as `i32`; one that does not fit is no such number.
    pub fn i32(&mut self) -> Option<i32> {
        self.zigzag()?.try_into().ok()
    }

    /// Walks the fields of a structure. `visit` gets id and wire type, and returns whether it has consumed
    /// the field; what it leaves is skipped.
    pub fn fields(
        &mut self,
        depth: usize,
        mut visit: impl FnMut(&mut Self, i16, u8) -> Option<bool>,
    ) -> Option<()> {
        let mut last = 0i16;
        if depth > DEEPEST {
            return None;
        }
        loop {
            let head = self.byte()?;
            let kind = head & 0x0f;
            if kind == 0 {
                return Some(());
            }
            last = match head >> 4 {
                0 => self.zigzag()?.try_into().ok()?,
                step => last.checked_add(i16::from(step))?,
            };
            if !visit(self, last, kind)? {
                self.skip(kind, depth)?;
            }
        }
    }

    /// Wire type and length of a list. Every element takes at least a byte, so a longer list is a lie.
    pub fn list(&mut self) -> Option<(u8, usize)> {
        let head = self.byte()?;
        let length = match head >> 4 {
            15 => self.varint()?.try_into().ok()?,
            short => usize::from(short),
        };
        (length <= self.remaining()).then_some((head & 0x0f, length))
    }

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

    /// In a list a truth takes a byte of its own; in a field it is the wire type.
    fn skip_element(&mut self, kind: u8, depth: usize) -> Option<()> {
        match kind {
            _ if depth > DEEPEST => None,
            wire::TRUE | wire::FALSE => self.advance(1),
            _ => self.skip(kind, depth),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_fields_are_walked() {
        // Field 1: i32 -3; field 2: binary "ab"; field 18 (long form): i32 64; stop.
        let bytes = [0x15, 5, 0x18, 2, b'a', b'b', 0x05, 36, 0x80, 1, 0];
        let mut seen = Vec::new();
        let mut walk = Compact::new(&bytes);
        walk.fields(0, |walk, id, kind| {
            if kind != wire::I32 {
                return Some(false);
            }
            seen.push((id, walk.i32()?));
            Some(true)
        })
        .unwrap();
        assert_eq!((seen, walk.position()), (vec![(1, -3), (18, 64)], bytes.len()));
    }

    #[test]
    fn endless_nesting_and_lying_lengths_are_refused() {
        let skip_all = |bytes: &[u8]| Compact::new(bytes).fields(0, |_, _, _| Some(false));
        assert_eq!(skip_all(&[0x1c; 100_000]), None);
        assert_eq!(skip_all(&[0x19; 100_000]), None);
        assert_eq!(skip_all(&[0x18, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f]), None);
        assert_eq!(skip_all(&[0x19, 0xf5, 0xff, 0xff, 0x7f, 0]), None);
        assert_eq!(skip_all(&[]), None);
    }
}
