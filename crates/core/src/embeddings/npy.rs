//! Reader of NumPy's `.npy` format: one array per file, so features and labels are a pair of files.
//!
//! Start with [`read_pair`]. The header is the text of a Python dictionary with three known keys. It is parsed here
//! without recursion, because a general parser of Python literals can be led into a stack overflow. Rows of
//! little-endian `f16` or `f32` stay in the memory map; `f64` is converted to `f32`, and big-endian or column-major
//! arrays are reordered. Object arrays are pickles, which can execute code: they are refused.

use std::path::{Path, PathBuf};

use bytes::Bytes;

use super::features::{Features, Precision};
use super::names::Names;
use super::safetensors::whole_numbers;
use super::source::Source;
use super::{Labels, Parts};
use crate::arrays;
use crate::error::{Error, Result};

const FORMAT: &str = "npy";
const MAGIC: &[u8] = b"\x93NUMPY";

/// Reads a file of features, `[rows, dim]`, and one of labels, `[rows]`. Values are not checked.
pub(crate) fn read_pair(features: &Source, labels: &Source) -> Result<Parts> {
    let features = NpyArray::parse(features, features.bytes.clone())?.features()?;
    let labels = NpyArray::parse(labels, labels.bytes.clone())?.labels()?.without_classes();
    Ok(Parts { features, labels, items: None, backbone: None })
}

/// Reads a file of features, `[rows, dim]`, without labels: all rows get the same class. Values are not checked.
pub(crate) fn read_unlabelled(features: &Source) -> Result<Parts> {
    let features = NpyArray::parse(features, features.bytes.clone())?.features()?;
    let labels = Labels::Numbered(vec![0; features.rows()]);
    Ok(Parts { features, labels, items: None, backbone: None })
}

/// Reads one array of any type and shape.
pub(crate) fn read_array(source: &Source) -> Result<arrays::Array> {
    Ok(NpyArray::parse(source, source.bytes.clone())?.into_plain())
}

/// The path of the labels that belong to a file of features: the first of [`label_names`] that exists in its folder.
pub(crate) fn labels_path(features: &Path) -> Result<PathBuf> {
    let stem = features.file_stem().unwrap_or_default().to_string_lossy();
    let candidates = label_names(&stem);
    let existing = candidates.iter().map(|name| features.with_file_name(name)).find(|path| path.is_file());
    existing.ok_or_else(|| Error::NoLabels { path: features.into(), looked_for: candidates.join(", ") })
}

/// Usual file names of labels for a features file with the given stem, such as `y_train.npy` for `X_train`.
fn label_names(stem: &str) -> Vec<String> {
    let mut names = vec![format!("{stem}.labels.npy"), format!("{stem}_labels.npy")];
    let conventions = [
        ("features", ["labels", "y"]),
        ("embeddings", ["labels", "y"]),
        ("X", ["y", "labels"]),
        ("x", ["y", "labels"]),
    ];
    // `X_train` starts with `X`, so `y_train.npy` and `labels_train.npy` are possible labels.
    for (features, labels) in conventions {
        if let Some(suffix) = stem.strip_prefix(features) {
            names.extend(labels.map(|labels| format!("{labels}{suffix}.npy")));
        }
    }
    names
}

/// The labels of an array: numbers or strings.
pub(crate) enum LabelArray {
    Numbers(Vec<i64>),
    Strings(Names),
}

impl LabelArray {
    /// Labels whose classes are the distinct values, sorted.
    pub fn without_classes(self) -> Labels {
        match self {
            LabelArray::Numbers(numbers) => Labels::Numbered(numbers),
            LabelArray::Strings(names) => names.into_labels(),
        }
    }

    /// Labels with the given classes: numbers are indices into them; `Err` if a string is not among them.
    pub fn with_classes(self, classes: Vec<String>) -> Result<Labels, String> {
        match self {
            LabelArray::Numbers(labels) => Ok(Labels::Indexed { labels, classes }),
            LabelArray::Strings(names) => names.into_labels_with(classes),
        }
    }
}

/// An array with a parsed header, whose shape fits the size of its data.
pub(crate) struct NpyArray<'a> {
    /// The file of the array, for error messages; a `.npz` file contains several arrays.
    source: &'a Source,
    header: Header,
    data: Bytes,
}

impl<'a> NpyArray<'a> {
    /// Parses the header and checks that the shape fits the number of bytes.
    pub fn parse(source: &'a Source, bytes: Bytes) -> Result<Self> {
        let malformed = |problem: String| source.malformed(FORMAT, problem);
        let (header, start) = Header::parse(&bytes).map_err(malformed)?;
        let data = bytes.slice(start..);
        let claimed = header.shape.iter().try_fold(header.width, |size, &n| size.checked_mul(n));
        match claimed == Some(data.len()) {
            true => Ok(NpyArray { source, header, data }),
            false => Err(malformed(format!(
                "shape {:?} of type '{}' does not fit the {} bytes of data",
                header.shape,
                header.descr,
                data.len()
            ))),
        }
    }

    /// The array without interpretation of its values.
    pub fn into_plain(self) -> arrays::Array {
        let Header { kind, width, big_endian, fortran_order, shape, .. } = self.header;
        arrays::Array { kind, width, big_endian, fortran_order, shape, data: self.data }
    }

    /// The array as a feature matrix.
    pub fn features(&self) -> Result<Features> {
        let &[rows, dim] = self.header.shape.as_slice() else {
            return Err(self
                .malformed(format!("features have shape {:?}, not (rows, dimensions)", self.header.shape)));
        };
        // A shape such as (2^60, 0) takes no bytes, but a loop over its rows would not end.
        if rows == 0 || dim == 0 {
            return Err(Error::Empty);
        }
        let precision = match (self.header.kind, self.header.width) {
            ('f', 2) => Precision::F16,
            ('f', 4) => Precision::F32,
            ('f', 8) => return Ok(Features::from_f32(self.f64_to_f32(), dim)),
            _ => {
                let given = &self.header.descr;
                return Err(self.malformed(format!("features are '{given}'; supported: f2, f4 and f8")));
            }
        };
        let in_order = !self.header.fortran_order && !self.header.big_endian;
        let bytes = if in_order { self.data.clone() } else { self.reordered().into() };
        Ok(Features::new(bytes, precision, rows, dim))
    }

    /// The stored bytes of each element of a two-dimensional array, row by row, for both memory orders.
    fn elements(&self) -> impl Iterator<Item = &[u8]> {
        let (rows, dim) = (self.header.shape[0], self.header.shape[1]);
        let width = self.header.width;
        // Element [row][column] is stored at the index `row * row_stride + column * column_stride`.
        let (row_stride, column_stride) = if self.header.fortran_order { (1, rows) } else { (dim, 1) };
        let indices = (0..rows)
            .flat_map(move |row| (0..dim).map(move |column| row * row_stride + column * column_stride));
        indices.map(move |index| &self.data[index * width..(index + 1) * width])
    }

    /// The stored numbers row by row, little-endian.
    fn reordered(&self) -> Vec<u8> {
        let mut ordered = Vec::with_capacity(self.data.len());
        for element in self.elements() {
            match self.header.big_endian {
                true => ordered.extend(element.iter().rev()),
                false => ordered.extend(element),
            }
        }
        ordered
    }

    /// The values of an `f64` array as `f32`, row by row.
    fn f64_to_f32(&self) -> Vec<f32> {
        let double = |element: &[u8]| {
            let bytes: [u8; 8] = element.try_into().expect("only arrays of 8-byte numbers come here");
            if self.header.big_endian { f64::from_be_bytes(bytes) } else { f64::from_le_bytes(bytes) }
        };
        self.elements().map(|element| double(element) as f32).collect()
    }

    /// The array as labels: integers, booleans or strings.
    pub fn labels(&self) -> Result<LabelArray> {
        self.only_dimension("labels")?;
        let Header { kind, width, big_endian, .. } = self.header;
        match kind {
            'i' | 'u' | 'b' if matches!(width, 1 | 2 | 4 | 8) => {
                whole_numbers(&self.data, width, kind == 'i', big_endian)
                    .map(LabelArray::Numbers)
                    .ok_or_else(|| self.malformed(format!("the labels contain a number above {}", i64::MAX)))
            }
            'U' | 'S' => {
                let mut names = Names::default();
                self.for_each_string(|string| names.push(&string))?;
                Ok(LabelArray::Strings(names))
            }
            _ => {
                let given = &self.header.descr;
                Err(self.malformed(format!("labels are '{given}'; supported: integers and strings")))
            }
        }
    }

    /// The array as a list of strings; `what` names it in messages.
    pub fn strings(&self, what: &str) -> Result<Vec<String>> {
        let rows = self.only_dimension(what)?;
        if !matches!(self.header.kind, 'U' | 'S') {
            return Err(self.malformed(format!("{what} are '{}', not strings", self.header.descr)));
        }
        let mut strings = Vec::with_capacity(rows);
        self.for_each_string(|string| {
            strings.push(string);
            Ok(())
        })?;
        Ok(strings)
    }

    /// The length of a one-dimensional array; an error for any other shape. `what` names the array in messages.
    fn only_dimension(&self, what: &str) -> Result<usize> {
        match self.header.shape.as_slice() {
            &[rows] => Ok(rows),
            shape => Err(self.malformed(format!("{what} have shape {shape:?}, not (rows,)"))),
        }
    }

    /// Decodes each string and passes it to `take`, whose `Err` is a problem with the string.
    fn for_each_string(&self, mut take: impl FnMut(String) -> Result<(), String>) -> Result<()> {
        for (row, stored) in self.data.chunks_exact(self.header.width).enumerate() {
            let string = match self.header.kind {
                'U' => decode_utf32(stored, self.header.big_endian),
                _ => decode_utf8(stored),
            };
            let string =
                string.ok_or_else(|| self.malformed(format!("the string in row {row} is not valid text")))?;
            take(string).map_err(|problem| self.malformed(problem))?;
        }
        Ok(())
    }

    fn malformed(&self, problem: impl std::fmt::Display) -> Error {
        self.source.malformed(FORMAT, problem)
    }
}

/// Decodes a string of type `U`: four bytes per character, padded with zeros. `None` if it is not valid text.
fn decode_utf32(stored: &[u8], big_endian: bool) -> Option<String> {
    let code =
        |four: &[u8; 4]| if big_endian { u32::from_be_bytes(*four) } else { u32::from_le_bytes(*four) };
    let codes = stored.as_chunks::<4>().0;
    let length = codes.iter().rposition(|four| code(four) != 0).map_or(0, |last| last + 1);
    codes[..length].iter().map(|four| char::from_u32(code(four))).collect()
}

/// Decodes a string of type `S`: UTF-8 bytes, padded with zeros. `None` if it is not valid text.
fn decode_utf8(stored: &[u8]) -> Option<String> {
    let length = stored.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
    String::from_utf8(stored[..length].to_vec()).ok()
}

/// The contents of the header of a `.npy` file.
struct Header {
    /// The type as it is written in the file, such as `<f4`, for messages.
    descr: String,
    /// The kind of type: `f` (float), `i` and `u` (signed and unsigned integer), `b` (boolean), `U` (Unicode string),
    /// `S` (byte string) and others.
    kind: char,
    /// The number of bytes per element, never 0.
    width: usize,
    big_endian: bool,
    fortran_order: bool,
    shape: Vec<usize>,
}

impl Header {
    /// Parses the header and returns it with the position of the data.
    fn parse(bytes: &[u8]) -> Result<(Self, usize), String> {
        let rest = bytes.strip_prefix(MAGIC).ok_or("it does not begin with the magic bytes of NumPy")?;
        // Major and minor version, then the length of the header: two bytes in version 1, four in versions 2 and 3.
        let (length, start) = match *rest {
            [1, _, a, b, ..] => (usize::from(u16::from_le_bytes([a, b])), 10usize),
            [2 | 3, _, a, b, c, d, ..] => (u32::from_le_bytes([a, b, c, d]) as usize, 12),
            [version, _, ..] if !(1..=3).contains(&version) => {
                return Err(format!("its version is {version}; supported: 1 to 3"));
            }
            _ => return Err("it ends within the header".into()),
        };
        let text = bytes.get(start..start.saturating_add(length)).ok_or("it ends within the header")?;
        let text = std::str::from_utf8(text).map_err(|_| "its header is not text")?;
        Ok((DictParser { rest: text }.header()?, start + length))
    }

    /// A header from the three values of the dictionary. `descr` is a byte order (`<`, `>`, `|` or `=`), a letter for
    /// the kind of type, and a size: in characters of four bytes for `U`, in bytes otherwise.
    fn new(descr: String, fortran_order: bool, shape: Vec<usize>) -> Result<Self, String> {
        let unknown = || format!("its type '{descr}' is unknown");
        let mut characters = descr.chars();
        let order = characters.next().ok_or_else(unknown)?;
        let kind = characters.next().ok_or_else(unknown)?;
        if kind == 'O' {
            return Err(
                "it contains Python objects (a pickle), which are never loaded; save numbers or strings"
                    .into(),
            );
        }
        let count: usize = characters.as_str().parse().map_err(|_| unknown())?;
        let width = if kind == 'U' { count.checked_mul(4) } else { Some(count) };
        match (order, width) {
            ('<' | '>' | '|' | '=', Some(width @ 1..)) => {
                let big_endian = order == '>';
                Ok(Header { kind, width, big_endian, fortran_order, shape, descr })
            }
            _ => Err(unknown()),
        }
    }
}

/// A parser of the Python dictionary in a header, such as
/// `{'descr': '<f4', 'fortran_order': False, 'shape': (3, 2), }`.
struct DictParser<'a> {
    /// The text that is not parsed yet.
    rest: &'a str,
}

impl DictParser<'_> {
    /// Parses the whole dictionary.
    fn header(mut self) -> Result<Header, String> {
        let (mut descr, mut fortran_order, mut shape) = (None, None, None);
        self.expect('{')?;
        while !self.accept('}') {
            let key = self.string()?;
            self.expect(':')?;
            match key.as_str() {
                "descr" => descr = Some(self.descr()?),
                "fortran_order" => fortran_order = Some(self.boolean()?),
                "shape" => shape = Some(self.shape()?),
                other => return Err(format!("its header has an unknown key '{other}'")),
            }
            if !self.accept(',') {
                self.expect('}')?;
                break;
            }
        }
        match (descr, fortran_order, shape) {
            (Some(descr), Some(order), Some(shape)) => Header::new(descr, order, shape),
            _ => Err("its header lacks 'descr', 'fortran_order' or 'shape'".into()),
        }
    }

    /// Skips spaces and then `token`, if it is next; returns whether it was.
    fn accept(&mut self, token: char) -> bool {
        self.rest = self.rest.trim_start();
        let rest = self.rest.strip_prefix(token);
        self.rest = rest.unwrap_or(self.rest);
        rest.is_some()
    }

    /// Skips spaces and `token`, which must be next.
    fn expect(&mut self, token: char) -> Result<(), String> {
        match self.accept(token) {
            true => Ok(()),
            false => Err(format!("its header is not the dictionary NumPy writes: '{token}' expected")),
        }
    }

    /// A string in single or double quotes. Escapes are not needed for the strings that occur.
    fn string(&mut self) -> Result<String, String> {
        // A string that does not start with a double quote must start with a single one.
        let quote = if self.accept('"') { '"' } else { '\'' };
        if quote == '\'' {
            self.expect('\'')?;
        }
        let (string, rest) = self.rest.split_once(quote).ok_or("its header has an unterminated string")?;
        self.rest = rest;
        Ok(string.into())
    }

    fn descr(&mut self) -> Result<String, String> {
        match self.accept('[') {
            true => Err("it is a structured array; only plain arrays are supported".into()),
            false => self.string(),
        }
    }

    fn boolean(&mut self) -> Result<bool, String> {
        self.rest = self.rest.trim_start();
        for (keyword, value) in [("True", true), ("False", false)] {
            if let Some(rest) = self.rest.strip_prefix(keyword) {
                self.rest = rest;
                return Ok(value);
            }
        }
        Err("'fortran_order' in its header is neither True nor False".into())
    }

    /// A tuple of integers.
    fn shape(&mut self) -> Result<Vec<usize>, String> {
        let mut shape = Vec::new();
        self.expect('(')?;
        while !self.accept(')') {
            self.rest = self.rest.trim_start();
            let digit_count =
                self.rest.len() - self.rest.trim_start_matches(|c: char| c.is_ascii_digit()).len();
            let (number, rest) = self.rest.split_at(digit_count);
            shape.push(number.parse().map_err(|_| "its shape is not a list of integers")?);
            // Python 2 wrote long integers with an L.
            self.rest = rest.strip_prefix('L').unwrap_or(rest);
            if !self.accept(',') {
                self.expect(')')?;
                break;
            }
        }
        Ok(shape)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// The bytes of a `.npy` file.
    pub(crate) fn array(descr: &str, fortran: bool, shape: &str, data: &[u8]) -> Vec<u8> {
        let order = if fortran { "True" } else { "False" };
        let text = format!("{{'descr': '{descr}', 'fortran_order': {order}, 'shape': {shape}, }}\n");
        let mut bytes = [MAGIC, &[1, 0], &(text.len() as u16).to_le_bytes()].concat();
        bytes.extend(text.as_bytes());
        bytes.extend(data);
        bytes
    }

    fn source(bytes: Vec<u8>) -> Source {
        Source::in_memory(bytes, "npy")
    }

    fn all_rows(bytes: Vec<u8>) -> Vec<f32> {
        let source = source(bytes);
        let features = NpyArray::parse(&source, source.bytes.clone()).unwrap().features().unwrap();
        let mut out = vec![0.0; features.rows() * features.dim()];
        out.chunks_exact_mut(features.dim()).enumerate().for_each(|(row, out)| features.decode_row(row, out));
        out
    }

    fn refusal(bytes: Vec<u8>) -> String {
        let source = source(bytes);
        match read_pair(&source, &source) {
            Err(Error::Malformed { problem, .. }) => problem,
            _ => panic!("this file must be refused as malformed"),
        }
    }

    #[test]
    fn every_byte_order_and_layout_gives_the_same_rows() {
        let rows = [[1.0f32, 2.0, 3.0], [4.0, 5.0, 6.0]];
        let flat: Vec<f32> = rows.concat();
        let columns = [1.0f32, 4.0, 2.0, 5.0, 3.0, 6.0];
        let little: Vec<u8> = flat.iter().flat_map(|v| v.to_le_bytes()).collect();
        let big: Vec<u8> = flat.iter().flat_map(|v| v.to_be_bytes()).collect();
        let fortran: Vec<u8> = columns.iter().flat_map(|v| v.to_le_bytes()).collect();
        let double: Vec<u8> = columns.iter().flat_map(|&v| f64::from(v).to_be_bytes()).collect();
        let half: Vec<u8> = flat.iter().flat_map(|&v| half::f16::from_f32(v).to_be_bytes()).collect();
        assert_eq!(all_rows(array("<f4", false, "(2, 3)", &little)), flat);
        assert_eq!(all_rows(array(">f4", false, "(2, 3)", &big)), flat);
        assert_eq!(all_rows(array("<f4", true, "(2, 3)", &fortran)), flat);
        assert_eq!(all_rows(array(">f8", true, "(2L, 3L)", &double)), flat);
        assert_eq!(all_rows(array(">f2", false, "(2,3)", &half)), flat);
    }

    #[test]
    fn strings_are_decoded_without_their_padding() {
        let wide: Vec<u8> =
            ['ä' as u32, 0, 'b' as u32, 'c' as u32].iter().flat_map(|c| c.to_le_bytes()).collect();
        let source = source(array("<U2", false, "(2,)", &wide));
        let strings = NpyArray::parse(&source, source.bytes.clone()).unwrap().strings("classes").unwrap();
        assert_eq!(strings, ["ä", "bc"]);
        assert_eq!(decode_utf8(b"ab\0\0").as_deref(), Some("ab"));
        assert_eq!(decode_utf8(b"\xff"), None);
    }

    #[test]
    fn an_array_of_python_objects_is_refused() {
        assert!(refusal(array("|O", false, "(2,)", b"pickle")).contains("pickle"));
    }

    #[test]
    fn a_shape_larger_than_the_file_is_refused() {
        assert!(refusal(array("<f4", false, "(1000000000, 1000000000)", &[0; 8])).contains("does not fit"));
        assert!(refusal(array("<f4", false, "(4611686018427387904, 4)", &[])).contains("does not fit"));
        assert!(refusal(array("<U0", false, "(1000000000,)", &[])).contains("unknown"));
    }

    #[test]
    fn nested_brackets_do_not_exhaust_the_stack() {
        let shape = "(".repeat(60_000);
        refusal(array("<f4", false, &shape, &[]));
    }

    #[test]
    fn many_rows_without_columns_are_refused() {
        for descr in ["<f2", ">f4", "<f8"] {
            let source = source(array(descr, true, "(1152921504606846976, 0)", &[]));
            assert!(matches!(read_pair(&source, &source), Err(Error::Empty)));
        }
    }

    #[test]
    fn labels_are_found_by_their_usual_names() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        for (features, labels) in [
            ("a.npy", "a.labels.npy"),
            ("b.npy", "b_labels.npy"),
            ("features.npy", "labels.npy"),
            ("X_train.npy", "y_train.npy"),
        ] {
            std::fs::write(path(labels), []).unwrap();
            assert_eq!(labels_path(&path(features)).unwrap(), path(labels));
        }
        let missing = labels_path(&path("c.npy")).unwrap_err();
        assert!(
            matches!(&missing, Error::NoLabels { looked_for, .. } if looked_for.contains("c_labels.npy"))
        );
    }
}
