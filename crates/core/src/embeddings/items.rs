//! Item names of embeddings: [`Items`], one name per row, such as the path of an image.
//!
//! The names are packed into one text with offsets, as in the file, so that a million names need no allocation each.

use bytes::Bytes;

/// Item names, one per row.
///
/// ```
/// use trueshot::embeddings::Items;
///
/// let items = Items::from_names(["cat/1.jpg", "dog/1.jpg"]);
/// assert_eq!((items.len(), items.get(1), items.get(2)), (2, Some("dog/1.jpg"), None));
/// ```
#[derive(Clone)]
pub struct Items {
    /// All names one after the other, in UTF-8.
    text: Bytes,
    /// `len + 1` ascending byte offsets, from 0 to the length of the text, each on a character boundary.
    offsets: Vec<u64>,
}

impl Items {
    /// Item names from packed text; `None` if the text is not UTF-8 or the offsets do not divide it into names.
    pub(crate) fn from_packed(text: Bytes, offsets: Vec<u64>) -> Option<Self> {
        let string = std::str::from_utf8(&text).ok()?;
        let ascending = offsets.windows(2).all(|w| w[0] <= w[1]);
        let spans_text = offsets.first() == Some(&0) && offsets.last() == Some(&(string.len() as u64));
        let is_valid =
            ascending && spans_text && offsets.iter().all(|&o| string.is_char_boundary(o as usize));
        is_valid.then_some(Items { text, offsets })
    }

    /// Item names from a list.
    pub fn from_names<S: AsRef<str>>(names: impl IntoIterator<Item = S>) -> Self {
        let (mut text, mut offsets) = (String::new(), vec![0]);
        for name in names {
            text.push_str(name.as_ref());
            offsets.push(text.len() as u64);
        }
        Items { text: text.into(), offsets }
    }

    /// The number of names.
    pub fn len(&self) -> usize {
        self.offsets.len() - 1
    }

    /// Whether there are no names.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The name of a row; `None` if there is no such row.
    pub fn get(&self, row: usize) -> Option<&str> {
        let (start, end) = (*self.offsets.get(row)?, *self.offsets.get(row + 1)?);
        std::str::from_utf8(&self.text[start as usize..end as usize]).ok()
    }

    /// The packed text and the `len + 1` offsets.
    pub(crate) fn packed(&self) -> (&[u8], &[u64]) {
        (&self.text, &self.offsets)
    }
}
