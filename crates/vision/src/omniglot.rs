//! Omniglot, the built-in data set: 1,623 handwritten characters of 50 alphabets, each drawn by 20 people. Start with
//! [`Omniglot::embedded`].
//!
//! Lake, Salakhutdinov and Tenenbaum published it under the MIT licence. Each drawing has one bit per pixel. All
//! drawings of an alphabet are compressed together, as one *stream*. `crates/omniglot/assets/pack_omniglot.py` writes
//! the file; `docs/built-in.md` has its sources and the reasons for the format.
//!
//! The file, integers little-endian:
//!
//! | bytes | what |
//! |---|---|
//! | 8 | `OMNIGLT1` |
//! | 2, 2, 2 | side of a drawing in pixels, drawings per character, number of alphabets |
//! | per alphabet: 1, 2 | half of the data set (0 background, 1 evaluation), number of characters |
//! | per alphabet: 1, 4 | length of the name in bytes, length of the stream in bytes |
//! | per alphabet: as many | the name, UTF-8 |
//! | the streams, one per alphabet | zlib: the drawings, character by character |
//!
//! A drawing consists of strips of eight columns, from left to right; a strip has one byte per row, from top to bottom.
//!
//! Opening reads only the table of alphabets. An alphabet is unpacked when one of its drawings is first needed: a demo
//! needs a few characters and not the 48 MB of all alphabets. Unpacking everything takes about a tenth of a second. The
//! file is treated as untrusted: every length is checked before it is used, sizes before anything is allocated.

use std::io::Read;
use std::ops::RangeInclusive;
use std::sync::{LazyLock, OnceLock};

use flate2::bufread::ZlibDecoder;
use thiserror::Error;

use crate::drawing::Bitmap;

const MAGIC: &[u8; 8] = b"OMNIGLT1";
/// The largest side of a drawing that is allowed; Omniglot's is 105.
const MAX_SIDE: usize = 512;
/// The most bytes an alphabet may unpack to; the largest of Omniglot takes 1.6 MB.
const MAX_UNPACKED: usize = 64 << 20;
/// The largest compression factor of deflate; a stream that claims more is refused unread.
const MAX_DEFLATE_RATIO: usize = 1032;

static EMBEDDED: LazyLock<Result<Omniglot<'static>, OmniglotError>> =
    LazyLock::new(|| Omniglot::open(omniglot_bytes()?));

static SAMPLE: LazyLock<Omniglot<'static>> = LazyLock::new(|| {
    let bytes = include_bytes!("../assets/omniglot-sample.bin");
    Omniglot::open(bytes).expect("the sample that is built in can be read")
});

#[cfg(feature = "drawings")]
fn omniglot_bytes() -> Result<&'static [u8], OmniglotError> {
    Ok(trueshot_omniglot::DRAWINGS)
}

/// Without the built-in drawings, reads them once from a file.
#[cfg(not(feature = "drawings"))]
fn omniglot_bytes() -> Result<&'static [u8], OmniglotError> {
    Ok(Vec::leak(read_external_asset("omniglot.bin")?))
}

/// Reads an Omniglot file that is not built in.
#[cfg(not(feature = "drawings"))]
pub(crate) fn read_external_asset(name: &str) -> Result<Vec<u8>, OmniglotError> {
    let folder = std::env::var_os(ASSETS_VARIABLE).ok_or(OmniglotError::NotBuiltIn)?;
    let path = std::path::Path::new(&folder).join(name);
    std::fs::read(&path).map_err(|error| OmniglotError::File(path.display().to_string(), error.to_string()))
}

/// The environment variable with the folder of the assets that are not built in.
pub(crate) const ASSETS_VARIABLE: &str = "TRUESHOT_ASSETS";

/// An error of a packed Omniglot file, or a character or drawing that does not exist.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum OmniglotError {
    /// The program was built without the drawings.
    #[error("the drawings of Omniglot are not part of this program")]
    NotBuiltIn,
    /// The file with the drawings cannot be read.
    #[error("cannot read {0}: {1}")]
    File(String, String),
    /// The file does not start with the magic bytes.
    #[error("not a packed omniglot file: it does not start with `OMNIGLT1`")]
    Magic,
    /// The file is truncated.
    #[error("the packed omniglot file is truncated: {what} needs {needed} bytes, {left} are left")]
    Truncated {
        /// What was being read.
        what: &'static str,
        /// The length of that part in bytes.
        needed: usize,
        /// The bytes that are left.
        left: usize,
    },
    /// A number in the file is outside its range.
    #[error("{what} is {given} in the packed omniglot file; allowed: {least} to {most}")]
    OutOfRange {
        /// What the number counts.
        what: &'static str,
        /// The number in the file.
        given: usize,
        /// The smallest allowed.
        least: usize,
        /// The largest allowed.
        most: usize,
    },
    /// The name of an alphabet is not UTF-8.
    #[error("name of alphabet {alphabet} in packed omniglot file is not UTF-8")]
    Name {
        /// Which alphabet, from 0.
        alphabet: usize,
    },
    /// There are bytes after the last stream.
    #[error("packed omniglot file has {surplus} bytes after its end")]
    Surplus {
        /// Number of bytes.
        surplus: usize,
    },
    /// A stream does not unpack to exactly the drawings of its alphabet.
    #[error("drawings of alphabet `{alphabet}` in packed omniglot file are damaged: {reason}")]
    Damaged {
        /// The alphabet's name.
        alphabet: String,
        /// What is wrong.
        reason: String,
    },
    /// There is no such character.
    #[error("there is no character {given}; allowed: 0 to {most}")]
    NoCharacter {
        /// The requested index.
        given: usize,
        /// The largest index.
        most: usize,
    },
    /// There is no such drawing of a character.
    #[error("there is no drawing {given} of a character; allowed: 0 to {most}")]
    NoDrawing {
        /// The requested index.
        given: usize,
        /// The largest index.
        most: usize,
    },
}

/// The two halves of the published data set; each alphabet is in one of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OmniglotHalf {
    /// 964 characters of 30 alphabets, for training.
    Background,
    /// 659 characters of 20 other alphabets, for evaluation.
    Evaluation,
}

/// One character: a class of the data set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Character<'a> {
    /// The name of the alphabet's folder in the published data: `Old_Church_Slavonic_(Cyrillic)`.
    pub alphabet: &'a str,
    /// The name within the alphabet: `character01`.
    pub name: String,
    /// The half of the data that it belongs to.
    pub half: OmniglotHalf,
    /// The index of the alphabet's stream.
    stream: usize,
    /// The index of the character in its alphabet, from 0.
    index_in_alphabet: usize,
}

/// The packed drawings of one alphabet, unpacked on first use.
#[derive(Debug)]
struct PackedAlphabet<'a> {
    /// The name, for errors.
    name: &'a str,
    /// The stream.
    packed: &'a [u8],
    /// The bytes of all drawings of the alphabet.
    unpacked_length: usize,
    unpacked: OnceLock<Result<Vec<u8>, OmniglotError>>,
}

/// The data set: its characters, and their drawings on demand.
#[derive(Debug)]
pub struct Omniglot<'a> {
    side: usize,
    drawings_per_character: usize,
    characters: Vec<Character<'a>>,
    streams: Vec<PackedAlphabet<'a>>,
}

impl Omniglot<'static> {
    /// The built-in data set, or, in a program without it, the file in the folder `TRUESHOT_ASSETS`. Unpacked drawings
    /// are kept for the life of the process.
    pub fn embedded() -> Result<&'static Self, OmniglotError> {
        EMBEDDED.as_ref().map_err(Clone::clone)
    }

    /// Four alphabets that every program contains: 77 characters of the evaluation half, which are in the test split of
    /// [`Split::omniglot`](crate::split::Split::omniglot), and 22 of the background half, which are in its validation
    /// split.
    pub fn sample() -> &'static Self {
        &SAMPLE
    }
}

impl<'a> Omniglot<'a> {
    /// Reads the table of a packed file; drawings are unpacked when they are needed.
    pub fn open(bytes: &'a [u8]) -> Result<Self, OmniglotError> {
        let mut rest = bytes.strip_prefix(MAGIC).ok_or(OmniglotError::Magic)?;
        // These limits are generous; they keep products of counts far from overflow.
        let side = check_range("the side of a drawing", read_u16(&mut rest)?, 1..=MAX_SIDE)?;
        let drawings_per_character = check_range("drawings per character", read_u16(&mut rest)?, 1..=256)?;
        let alphabets = check_range("the number of alphabets", read_u16(&mut rest)?, 1..=1024)?;
        let character_length = drawing_length(side) * drawings_per_character;
        let table = (0..alphabets)
            .map(|index| AlphabetEntry::read(&mut rest, index))
            .collect::<Result<Vec<_>, OmniglotError>>()?;
        let streams = table
            .iter()
            .map(|entry| entry.stream(&mut rest, character_length))
            .collect::<Result<Vec<_>, OmniglotError>>()?;
        if !rest.is_empty() {
            return Err(OmniglotError::Surplus { surplus: rest.len() });
        }
        let characters = table.iter().enumerate().flat_map(|(stream, entry)| entry.characters(stream));
        Ok(Self { side, drawings_per_character, characters: characters.collect(), streams })
    }

    /// Width and height of every drawing, in pixels.
    pub fn side(&self) -> usize {
        self.side
    }

    /// Drawings per character; drawing `n` of each character of an alphabet is by the same person.
    pub fn drawings_per_character(&self) -> usize {
        self.drawings_per_character
    }

    /// All characters: background before evaluation, alphabets by name, characters by number.
    pub fn characters(&self) -> &[Character<'a>] {
        &self.characters
    }

    /// The indices of the characters of one half.
    pub fn characters_of(&self, half: OmniglotHalf) -> impl Iterator<Item = usize> {
        let numbered = self.characters.iter().enumerate();
        numbered.filter(move |(_, character)| character.half == half).map(|(index, _)| index)
    }

    /// Drawing `n` of the character with index `character` in [`Omniglot::characters`], both from 0. Unpacks its
    /// alphabet when that is needed for the first time.
    pub fn drawing(&self, character: usize, n: usize) -> Result<Bitmap, OmniglotError> {
        let no_character =
            || OmniglotError::NoCharacter { given: character, most: self.characters.len() - 1 };
        let &Character { stream, index_in_alphabet, .. } =
            self.characters.get(character).ok_or_else(no_character)?;
        if n >= self.drawings_per_character {
            return Err(OmniglotError::NoDrawing { given: n, most: self.drawings_per_character - 1 });
        }
        let drawings = self.streams[stream].drawings()?;
        let length = drawing_length(self.side);
        let start = (index_in_alphabet * self.drawings_per_character + n) * length;
        let strips = &drawings[start..start + length];
        Ok(Bitmap::from_strips(self.side, self.side, strips).expect("the length is that of the size"))
    }
}

/// Bytes of a drawing: whole strips of eight columns, each with one byte per row.
fn drawing_length(side: usize) -> usize {
    side.div_ceil(8) * side
}

/// An entry of the table of alphabets.
struct AlphabetEntry<'a> {
    half: OmniglotHalf,
    character_count: usize,
    /// Bytes of the stream.
    stream_length: usize,
    name: &'a str,
}

impl<'a> AlphabetEntry<'a> {
    /// Reads an entry from the start of `rest`, and moves `rest` behind it. `index` is that of the alphabet, for
    /// errors.
    fn read(rest: &mut &'a [u8], index: usize) -> Result<Self, OmniglotError> {
        let [half] = read_array(rest)?;
        let half = match check_range("the half of an alphabet", half.into(), 0..=1)? {
            0 => OmniglotHalf::Background,
            _ => OmniglotHalf::Evaluation,
        };
        let character_count = check_range("the number of characters", read_u16(rest)?, 1..=4096)?;
        let [name_length] = read_array(rest)?;
        let stream_length = u32::from_le_bytes(read_array(rest)?) as usize;
        let name = take_bytes(rest, name_length.into(), "the name of an alphabet")?;
        let name = std::str::from_utf8(name).map_err(|_| OmniglotError::Name { alphabet: index })?;
        Ok(Self { half, character_count, stream_length, name })
    }

    /// Takes the stream of this alphabet from the start of `rest`. `character_length`: bytes of all drawings of a
    /// character.
    fn stream(
        &self,
        rest: &mut &'a [u8],
        character_length: usize,
    ) -> Result<PackedAlphabet<'a>, OmniglotError> {
        let packed = take_bytes(rest, self.stream_length, "the drawings of an alphabet")?;
        // A stream cannot unpack to more than the largest factor of deflate allows.
        let most = MAX_UNPACKED.min(packed.len().saturating_mul(MAX_DEFLATE_RATIO));
        let length = self.character_count.saturating_mul(character_length);
        let unpacked_length = check_range("the unpacked size of an alphabet", length, 1..=most)?;
        Ok(PackedAlphabet { name: self.name, packed, unpacked_length, unpacked: OnceLock::new() })
    }

    /// The characters of the alphabet, whose stream has the index `stream`. Characters are numbered from 1 without
    /// gaps, so the file does not contain their names.
    fn characters(&self, stream: usize) -> impl Iterator<Item = Character<'a>> {
        let (alphabet, half) = (self.name, self.half);
        (0..self.character_count).map(move |index_in_alphabet| {
            let name = format!("character{:02}", index_in_alphabet + 1);
            Character { alphabet, name, half, stream, index_in_alphabet }
        })
    }
}

impl PackedAlphabet<'_> {
    /// The unpacked drawings; unpacks them in the first call.
    fn drawings(&self) -> Result<&[u8], OmniglotError> {
        let unpacked = self.unpacked.get_or_init(|| self.unpack());
        unpacked.as_deref().map_err(Clone::clone)
    }

    /// Decompresses the stream, and checks that it has the expected length and no bytes after its end.
    fn unpack(&self) -> Result<Vec<u8>, OmniglotError> {
        let damaged = |reason: String| OmniglotError::Damaged { alphabet: self.name.into(), reason };
        let mut drawings = Vec::with_capacity(self.unpacked_length);
        let mut decoder = ZlibDecoder::new(self.packed);
        // One byte more than expected: a stream that is too long then has a wrong length, and for one that is not, the
        // decoder reads on to the end and checks the checksum.
        let limit = self.unpacked_length as u64 + 1;
        let outcome = decoder.by_ref().take(limit).read_to_end(&mut drawings);
        outcome.map_err(|error| damaged(error.to_string()))?;
        if drawings.len() != self.unpacked_length {
            return Err(damaged(format!("they do not unpack to {} bytes", self.unpacked_length)));
        }
        if decoder.total_in() != self.packed.len() as u64 {
            return Err(damaged("the stream ends early".into()));
        }
        Ok(drawings)
    }
}

/// Takes `needed` bytes from the start of `rest`; `what` they are, for errors.
fn take_bytes<'a>(rest: &mut &'a [u8], needed: usize, what: &'static str) -> Result<&'a [u8], OmniglotError> {
    let truncated = OmniglotError::Truncated { what, needed, left: rest.len() };
    let (taken, left) = rest.split_at_checked(needed).ok_or(truncated)?;
    *rest = left;
    Ok(taken)
}

fn read_array<const LENGTH: usize>(rest: &mut &[u8]) -> Result<[u8; LENGTH], OmniglotError> {
    let taken = take_bytes(rest, LENGTH, "the table")?;
    Ok(taken.try_into().expect("as many bytes as were taken"))
}

fn read_u16(rest: &mut &[u8]) -> Result<usize, OmniglotError> {
    Ok(u16::from_le_bytes(read_array(rest)?).into())
}

/// Returns a number of the file if it is in the allowed range; `what` it counts, for errors.
fn check_range(
    what: &'static str,
    given: usize,
    allowed: RangeInclusive<usize>,
) -> Result<usize, OmniglotError> {
    if allowed.contains(&given) {
        return Ok(given);
    }
    Err(OmniglotError::OutOfRange { what, given, least: *allowed.start(), most: *allowed.end() })
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::Compression;
    use flate2::write::ZlibEncoder;
    use proptest::prelude::*;

    use super::*;
    use crate::split::Split;

    #[test]
    fn the_sample_has_alphabets_of_the_data_set_that_no_model_was_trained_on() {
        let (sample, all) = (Omniglot::sample(), Omniglot::embedded().unwrap());
        let (test, val) = (Split::omniglot("test").unwrap(), Split::omniglot("val").unwrap());
        for (index_in_sample, character) in sample.characters().iter().enumerate() {
            let is_same =
                |other: &Character| (other.alphabet, &other.name) == (character.alphabet, &character.name);
            let index = all.characters().iter().position(is_same).unwrap();
            for number in 0..sample.drawings_per_character() {
                assert_eq!(
                    sample.drawing(index_in_sample, number).unwrap(),
                    all.drawing(index, number).unwrap()
                );
            }
            let split = match character.half {
                OmniglotHalf::Evaluation => &test,
                OmniglotHalf::Background => &val,
            };
            assert!(split.contains(&format!("{}/{}", character.alphabet, character.name)), "{character:?}");
        }
        assert_eq!(sample.characters_of(OmniglotHalf::Evaluation).count(), 77);
        assert_eq!(sample.characters_of(OmniglotHalf::Background).count(), 22);
    }

    /// A file with two alphabets, of one and two characters. Each character has two drawings of 9 px, 18 bytes each.
    /// The first byte of a drawing is its number in the alphabet.
    fn small_file() -> Vec<u8> {
        let mut file = [MAGIC.as_slice(), &[9, 0, 2, 0, 2, 0]].concat();
        let mut streams = Vec::new();
        for (split, name, characters) in [(0_u8, "First", 1_u8), (1, "Second", 2)] {
            let stream = deflated(characters);
            file.extend([split, characters, 0, name.len() as u8]);
            file.extend((stream.len() as u32).to_le_bytes());
            file.extend(name.as_bytes());
            streams.extend(stream);
        }
        [file, streams].concat()
    }

    /// The stream of an alphabet of [`small_file`].
    fn deflated(characters: u8) -> Vec<u8> {
        let mut encoder = ZlibEncoder::new(Vec::new(), Compression::best());
        for drawing in 0..characters * 2 {
            let mut strips = [0; 18];
            strips[0] = drawing;
            encoder.write_all(&strips).unwrap();
        }
        encoder.finish().unwrap()
    }

    /// Every drawing of a file, or the first error.
    fn read_everything(bytes: &[u8]) -> Result<Vec<Bitmap>, OmniglotError> {
        let omniglot = Omniglot::open(bytes)?;
        let drawings = 0..omniglot.drawings_per_character();
        let all = (0..omniglot.characters().len()).flat_map(|c| drawings.clone().map(move |n| (c, n)));
        all.map(|(character, n)| omniglot.drawing(character, n)).collect()
    }

    #[test]
    fn the_built_in_data_set_is_all_of_omniglot() {
        let omniglot = Omniglot::embedded().unwrap();
        assert_eq!((omniglot.side(), omniglot.drawings_per_character()), (105, 20));
        assert_eq!(omniglot.characters_of(OmniglotHalf::Background).count(), 964);
        assert_eq!(omniglot.characters_of(OmniglotHalf::Evaluation).count(), 659);
        let last = omniglot.characters().last().unwrap();
        assert_eq!(
            (last.alphabet, last.name.as_str(), last.half),
            ("ULOG", "character26", OmniglotHalf::Evaluation)
        );
        let mut alphabets: Vec<_> = omniglot.characters().iter().map(|c| c.alphabet).collect();
        alphabets.dedup();
        assert_eq!(alphabets.len(), 50);
    }

    #[cfg(feature = "drawings")]
    #[test]
    fn every_built_in_drawing_unpacks_and_all_ink_is_there() {
        let drawings = read_everything(trueshot_omniglot::DRAWINGS).unwrap();
        assert_eq!(drawings.len(), 32_460);
        // Counted in the published PNG files.
        assert_eq!(drawings.iter().map(|drawing| drawing.ink().count()).sum::<usize>(), 28_814_268);
    }

    #[test]
    fn a_drawing_is_at_its_position_in_the_stream_of_its_alphabet() {
        let file = small_file();
        let omniglot = Omniglot::open(&file).unwrap();
        assert_eq!(omniglot.characters()[2].alphabet, "Second");
        assert_eq!(omniglot.characters()[2].name, "character02");
        // Drawing 3 of the alphabet: the bits of 3 are the last two of the first strip's first row.
        let expected = Bitmap::from_fn(9, 9, |x, y| y == 0 && (x == 6 || x == 7));
        assert_eq!(omniglot.drawing(2, 1).unwrap(), expected);
    }

    #[test]
    fn a_missing_character_or_drawing_is_an_error_with_the_allowed_range() {
        let omniglot = Omniglot::embedded().unwrap();
        assert_eq!(omniglot.drawing(1623, 0), Err(OmniglotError::NoCharacter { given: 1623, most: 1622 }));
        assert_eq!(omniglot.drawing(0, 20), Err(OmniglotError::NoDrawing { given: 20, most: 19 }));
    }

    #[test]
    fn truncated_and_extended_files_are_refused() {
        let file = small_file();
        for length in 0..file.len() {
            assert!(read_everything(&file[..length]).is_err(), "cut to {length} bytes");
        }
        let longer = [file.as_slice(), &[0]].concat();
        assert_eq!(read_everything(&longer), Err(OmniglotError::Surplus { surplus: 1 }));
    }

    #[test]
    fn a_size_that_the_stream_cannot_hold_is_refused_before_it_is_allocated() {
        let mut file = small_file();
        file[10] = 0xff; // Drawings per character: 255.
        file[8..10].copy_from_slice(&512_u16.to_le_bytes()); // Side of a drawing.
        let refused = Omniglot::open(&file).unwrap_err();
        assert!(matches!(refused, OmniglotError::OutOfRange { given: 8_355_840, .. }), "{refused}");
    }

    proptest! {
        #[test]
        fn changed_bytes_never_panic(
            changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        ) {
            let mut file = small_file();
            for (index, byte) in changes {
                let position = index.index(file.len());
                file[position] = byte;
            }
            let _ = read_everything(&file);
        }

        #[test]
        fn any_bytes_after_the_magic_never_panic(tail in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = read_everything(&[MAGIC.as_slice(), &tail].concat());
        }

        #[test]
        fn a_changed_stream_is_never_taken_for_the_right_drawings(index: prop::sample::Index, flip in 1_u8..) {
            let file = small_file();
            let streams_length = deflated(1).len() + deflated(2).len();
            let mut changed = file.clone();
            let position = file.len() - streams_length + index.index(streams_length);
            changed[position] ^= flip;
            let drawings = read_everything(&changed);
            // Some bits of a zlib header do not affect the drawings; all others are detected.
            prop_assert!(drawings.is_err() || drawings == read_everything(&file));
        }
    }
}
