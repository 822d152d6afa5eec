//! Item names, packed: one run of bytes and where each name ends, as in the file.

use bytes::Bytes;

/// Names of items, one a row.
#[derive(Clone)]
pub struct Items {
    text: Bytes,
    /// n + 1 ascending offsets, from 0 to the length of the text, each on a character boundary.
    offsets: Vec<u64>,
}

impl Items {
    /// Takes packed names; `None` if the offsets or the text are not what they should be.
    pub(crate) fn from_packed(text: Bytes, offsets: Vec<u64>) -> Option<Self> {
        let valid = std::str::from_utf8(&text).ok()?;
        let ascending = offsets.windows(2).all(|w| w[0] <= w[1]);
        let spans = offsets.first() == Some(&0) && offsets.last() == Some(&(valid.len() as u64));
        let whole = ascending && spans && offsets.iter().all(|&o| valid.is_char_boundary(o as usize));
        whole.then_some(Items { text, offsets })
    }

    /// Packs names.
    pub fn from_names<S: AsRef<str>>(names: impl IntoIterator<Item = S>) -> Self {
        let (mut text, mut offsets) = (String::new(), vec![0]);
        for name in names {
            text.push_str(name.as_ref());
            offsets.push(text.len() as u64);
        }
        Items { text: text.into(), offsets }
    }

    /// Number of names.
    pub fn len(&self) -> usize {
        self.offsets.len() - 1
    }

    /// Whether there is no name.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// One name.
    pub fn get(&self, row: usize) -> Option<&str> {
        let (start, end) = (*self.offsets.get(row)?, *self.offsets.get(row + 1)?);
        std::str::from_utf8(&self.text[start as usize..end as usize]).ok()
    }

    /// All bytes, and the offsets between names.
    pub(crate) fn packed(&self) -> (&[u8], &[u64]) {
        (&self.text, &self.offsets)
    }
}
