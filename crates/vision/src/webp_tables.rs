//! Computes how much memory the lookup tables of the prefix codes (Huffman codes) of a lossless WebP file take. Start
//! with [`table_bytes`], which `decode_memory` adds to the other memory that decoding takes.
//!
//! A lossless WebP may have up to 65,536 groups of five prefix codes, each described by a few bits. The decoder (crate
//! `image-webp`) builds the tables of all groups before it decodes a pixel, so a file of half a megabyte can make it
//! allocate gigabytes, and the header does not give their size. So this module reads the bit stream up to the last
//! table, as the decoder does, and counts the tables instead of building them. A truncated or invalid stream is counted
//! up to that position, because the decoder gets no further: functions that read the stream return `None` there.
//!
//! The bit stream of an image consists of:
//!
//! 1. up to four transformations, most of which have a small image of parameters (a *sub-image*) with its own codes;
//! 2. the size of the colour cache, a hash table of recent colours;
//! 3. optionally a sub-image that assigns a group of codes to every block of pixels;
//! 4. the groups of codes, which this module counts;
//! 5. the pixels, which it does not read.
//!
//! The format is described at <https://developers.google.com/speed/webp/docs/webp_lossless_bitstream_specification>.

/// The code lengths of a prefix code are themselves stored with a prefix code, the *inner code* of 19 symbols. Its own
/// code lengths are stored in this order, which the format defines.
const CODE_LENGTH_ORDER: [usize; 19] = [17, 18, 0, 1, 2, 3, 4, 5, 16, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15];
/// The number of symbols of the five codes of a group: green, red, blue and alpha with 256 levels each, and 40 for
/// distances of copied pixels. The first code also has 24 symbols for the lengths of copies, and one per entry of the
/// colour cache.
const ALPHABET_SIZES: [usize; 5] = [256 + 24, 256, 256, 256, 40];
/// Bits that the decoder looks up in a table; longer codes continue in a tree.
const TABLE_BITS: usize = 10;
/// Bytes of an entry of the decoder's tables.
const TABLE_ENTRY_BYTES: u64 = 4;
/// Bytes of a node of the decoder's trees.
const TREE_NODE_BYTES: u64 = 16;
/// Allowance for the five structures of a group, in a vector that grows by doubling.
const GROUP_BYTES: u64 = 1 << 10;
/// Allowance for a code with more than one symbol, besides its table and its tree; for one with two symbols it includes
/// both.
const PAIR_BYTES: u64 = 128;

/// The pixels that the distance codes 1 to 120 stand for, relative to the current pixel: columns to the left (negative:
/// to the right) and rows above.
#[rustfmt::skip]
const NEIGHBOURS: [(i64, i64); 120] = [
    (0, 1),  (1, 0),  (1, 1),  (-1, 1), (0, 2),  (2, 0),  (1, 2),  (-1, 2),
    (2, 1),  (-2, 1), (2, 2),  (-2, 2), (0, 3),  (3, 0),  (1, 3),  (-1, 3),
    (3, 1),  (-3, 1), (2, 3),  (-2, 3), (3, 2),  (-3, 2), (0, 4),  (4, 0),
    (1, 4),  (-1, 4), (4, 1),  (-4, 1), (3, 3),  (-3, 3), (2, 4),  (-2, 4),
    (4, 2),  (-4, 2), (0, 5),  (3, 4),  (-3, 4), (4, 3),  (-4, 3), (5, 0),
    (1, 5),  (-1, 5), (5, 1),  (-5, 1), (2, 5),  (-2, 5), (5, 2),  (-5, 2),
    (4, 4),  (-4, 4), (3, 5),  (-3, 5), (5, 3),  (-5, 3), (0, 6),  (6, 0),
    (1, 6),  (-1, 6), (6, 1),  (-6, 1), (2, 6),  (-2, 6), (6, 2),  (-6, 2),
    (4, 5),  (-4, 5), (5, 4),  (-5, 4), (3, 6),  (-3, 6), (6, 3),  (-6, 3),
    (0, 7),  (7, 0),  (1, 7),  (-1, 7), (5, 5),  (-5, 5), (7, 1),  (-7, 1),
    (4, 6),  (-4, 6), (6, 4),  (-6, 4), (2, 7),  (-2, 7), (7, 2),  (-7, 2),
    (3, 7),  (-3, 7), (7, 3),  (-7, 3), (5, 6),  (-5, 6), (6, 5),  (-6, 5),
    (8, 0),  (4, 7),  (-4, 7), (7, 4),  (-7, 4), (8, 1),  (8, 2),  (6, 6),
    (-6, 6), (8, 3),  (5, 7),  (-5, 7), (7, 5),  (-7, 5), (8, 4),  (6, 7),
    (-6, 7), (7, 6),  (-7, 6), (8, 5),  (7, 7),  (-7, 7), (8, 6),  (8, 7),
];

/// The most bytes that the tables of a WebP file of `width` x `height` pixels take; 0 without lossless parts. `file` is
/// the whole file: `RIFF`, a length and `WEBP` (12 bytes), then chunks.
pub(crate) fn table_bytes(file: &[u8], width: u32, height: u32) -> u64 {
    let size = (width as usize, height as usize);
    // The decoder uses the first chunk of each kind, and the first frame of an animation.
    let first_chunk =
        |wanted: &[u8]| RiffChunks(file.get(12..).unwrap_or_default()).find(|(kind, _)| *kind == wanted);
    let frame = first_chunk(b"ANMF").map_or(&[][..], |(_, data)| data);
    // A frame starts with its x and y, its width and height minus 1 (three bytes each), a duration and flags: 16 bytes.
    // Its chunks follow, at most one of transparency and one of colours.
    let frame_size = (three_bytes(frame, 6) + 1, three_bytes(frame, 9) + 1);
    let frame_chunks =
        RiffChunks(frame.get(16..).unwrap_or_default()).take(2).map(|chunk| (chunk, frame_size));
    // The decoder refuses a frame that is larger than the image.
    let frame_chunks = frame_chunks.filter(|_| frame_size.0 <= size.0 && frame_size.1 <= size.1);
    let image_chunks =
        [first_chunk(b"VP8L"), first_chunk(b"ALPH")].into_iter().flatten().map(|chunk| (chunk, size));
    let counted = image_chunks.chain(frame_chunks).map(|((kind, data), size)| match kind {
        b"VP8L" => lossless_table_bytes(data, size),
        b"ALPH" => alpha_table_bytes(data, size),
        _ => 0,
    });
    // Not the sum: the file is a still image or an animation, and only a lossy image has a chunk `ALPH`.
    counted.max().unwrap_or(0)
}

/// The little-endian number in the three bytes from `at` on; 0 beyond the end.
fn three_bytes(bytes: &[u8], at: usize) -> usize {
    bytes.get(at..at + 3).map_or(0, |three| u32::from_le_bytes([three[0], three[1], three[2], 0]) as usize)
}

/// The chunks of a file, each as its kind (four letters) and its contents. Contents of odd length are followed by a
/// padding byte.
struct RiffChunks<'a>(&'a [u8]);

impl<'a> Iterator for RiffChunks<'a> {
    type Item = (&'a [u8], &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let (kind, rest) = self.0.split_at_checked(4)?;
        let (length, rest) = rest.split_first_chunk::<4>()?;
        let length = u32::from_le_bytes(*length) as usize;
        let data = &rest[..length.min(rest.len())];
        self.0 = rest.get(length.saturating_add(length % 2)..).unwrap_or_default();
        Some((kind, data))
    }
}

/// Bytes of the tables in a chunk `VP8L`: a signature of 8 bits, width and height minus 1 in 14 bits each, 4 bits for
/// transparency and version, then the stream. The decoder refuses a size other than the expected one.
fn lossless_table_bytes(data: &[u8], (width, height): (usize, usize)) -> u64 {
    let mut bits = BitReader { bytes: data, position: 8 };
    let size_minus_1 = bits.read(14).zip(bits.read(14));
    if size_minus_1 != Some((width - 1, height - 1)) {
        return 0;
    }
    // 8 + 14 + 14 + 4 bits.
    bits.position = 40;
    stream_table_bytes(&mut bits, width, height)
}

/// Bytes of the tables in a chunk `ALPH`, the transparency of a lossy image. The lowest two bits of its first byte are
/// 1 if it is compressed like a lossless image; a stream without a header follows, of the size of the image.
fn alpha_table_bytes(data: &[u8], (width, height): (usize, usize)) -> u64 {
    match data.split_first() {
        Some((kind, data)) if kind & 3 == 1 => {
            stream_table_bytes(&mut BitReader { bytes: data, position: 0 }, width, height)
        }
        _ => 0,
    }
}

/// Bytes of the tables in a stream, up to its end or its first error.
fn stream_table_bytes(bits: &mut BitReader<'_>, width: usize, height: usize) -> u64 {
    let mut bytes = 0;
    // `None` means that the decoder stops there; what was counted until then stays counted.
    let _ = add_stream_tables(bits, width, height, &mut bytes);
    bytes
}

/// Reads a stream of `width` x `height` pixels up to its last table, and adds the bytes of the tables to `bytes`.
fn add_stream_tables(
    bits: &mut BitReader<'_>,
    mut width: usize,
    height: usize,
    bytes: &mut u64,
) -> Option<()> {
    // Each kind of transformation can occur once.
    for _ in 0..4 {
        if bits.read(1)? == 0 {
            break;
        }
        match bits.read(2)? {
            // Prediction and colour transformation: a sub-image with one pixel per block.
            0 | 1 => {
                let block_bits = bits.read(3)? + 2;
                drop(decode_subimage(bits, block_count(width, block_bits), block_count(height, block_bits))?);
            }
            // Subtraction of green has no parameters.
            2 => {}
            // A palette is a sub-image of one row. Up to 2, 4 or 16 colours: 8, 4 or 2 pixels are packed into one.
            _ => {
                let colours = bits.read(8)? + 1;
                drop(decode_subimage(bits, colours, 1)?);
                // The binary logarithm of the number of pixels that are packed into one.
                let packing_bits = match colours {
                    0..=2 => 3,
                    3..=4 => 2,
                    5..=16 => 1,
                    _ => 0,
                };
                width = block_count(width, packing_bits);
            }
        }
    }
    let cache_bits = read_cache_bits(bits)?;
    let mut groups = 1;
    if bits.read(1)? == 1 {
        let block_bits = bits.read(3)? + 2;
        // The group of a block is in the red and green bytes of its pixel; every group up to the largest is stored.
        let pixels = decode_subimage(bits, block_count(width, block_bits), block_count(height, block_bits))?;
        groups = pixels.iter().map(|pixel| (pixel >> 8 & 0xffff) as usize).max().unwrap_or(0) + 1;
    }
    for _ in 0..groups {
        *bytes += GROUP_BYTES;
        for alphabet in alphabet_sizes(cache_bits) {
            *bytes += read_prefix_code(bits, alphabet)?.bytes;
        }
    }
    Some(())
}

/// Number of blocks of `1 << bits` pixels that cover a side of `side` pixels.
fn block_count(side: usize, bits: usize) -> usize {
    side.div_ceil(1 << bits)
}

/// Reads the size of the colour cache, as the number of bits of its indices (1 to 11); 0 without a cache.
fn read_cache_bits(bits: &mut BitReader<'_>) -> Option<usize> {
    match bits.read(1)? {
        0 => Some(0),
        _ => bits.read(4).filter(|bits| (1..=11).contains(bits)),
    }
}

/// The number of symbols of the five codes of a group, for a colour cache with indices of `cache_bits` bits.
fn alphabet_sizes(cache_bits: usize) -> [usize; 5] {
    let mut alphabets = ALPHABET_SIZES;
    alphabets[0] += if cache_bits == 0 { 0 } else { 1 << cache_bits };
    alphabets
}

/// Decodes a sub-image, on which the number or size of the following tables depends. Pixels are ARGB, row by row.
///
/// Its own tables are not counted: the decoder frees them before it builds those of the image.
fn decode_subimage(bits: &mut BitReader<'_>, width: usize, height: usize) -> Option<Vec<u32>> {
    let cache_bits = read_cache_bits(bits)?;
    let mut codes = Vec::with_capacity(5);
    for alphabet in alphabet_sizes(cache_bits) {
        codes.push(read_prefix_code(bits, alphabet)?);
    }
    // The colour cache: each pixel is stored at the index that the format's hash function gives. Without a cache there
    // is one entry, which is never read.
    let mut recent = vec![0_u32; 1 << cache_bits];
    let slot = |pixel: u32| {
        if cache_bits == 0 { 0 } else { (0x1e35_a7bd_u32.wrapping_mul(pixel) >> (32 - cache_bits)) as usize }
    };
    let count = width * height;
    let mut pixels: Vec<u32> = Vec::new();
    while pixels.len() < count {
        let symbol = codes[0].read(bits)?;
        match symbol {
            // A pixel: the symbol is its green level, and the other three follow.
            0..256 => {
                let (red, blue, alpha) = (codes[1].read(bits)?, codes[2].read(bits)?, codes[3].read(bits)?);
                let pixel = (alpha << 24 | red << 16 | symbol << 8 | blue) as u32;
                // If each of the four codes has one symbol, all pixels are equal and take no bits.
                let repeat =
                    if codes[..4].iter().all(PrefixCode::is_single) { count - pixels.len() } else { 1 };
                pixels.resize(pixels.len() + repeat, pixel);
                recent[slot(pixel)] = pixel;
            }
            // A copy of `length` earlier pixels, which start `distance` pixels before this one.
            256..280 => {
                let length = read_length(bits, symbol - 256)?;
                let symbol = codes[4].read(bits)?;
                let distance = pixel_distance(read_length(bits, symbol)?, width);
                if distance > pixels.len() || length > count - pixels.len() {
                    return None;
                }
                for _ in 0..length {
                    let pixel = pixels[pixels.len() - distance];
                    pixels.push(pixel);
                    recent[slot(pixel)] = pixel;
                }
            }
            // A colour of the cache.
            _ => pixels.push(*recent.get(symbol - 280).filter(|_| cache_bits > 0)?),
        }
    }
    Some(pixels)
}

/// Decodes a length or a distance code, 1 or more: symbols below 4 are the number minus 1; the others give its two
/// highest bits, 10 or 11, and the number of extra bits that follow.
fn read_length(bits: &mut BitReader<'_>, symbol: usize) -> Option<usize> {
    if symbol < 4 {
        return Some(symbol + 1);
    }
    let extra_bits = (symbol - 2) >> 1;
    Some(((2 + (symbol & 1)) << extra_bits) + bits.read(extra_bits)? + 1)
}

/// The distance, in pixels of an image of this width, that a distance code (1 or more) stands for.
fn pixel_distance(code: usize, width: usize) -> usize {
    match NEIGHBOURS.get(code - 1) {
        Some((x, y)) => (x + y * width as i64).max(1) as usize,
        None => code - NEIGHBOURS.len(),
    }
}

/// A canonical prefix code: the codes of one length are consecutive numbers, in the order of their symbols.
struct PrefixCode {
    /// Number of codes of each length in bits.
    counts: [u16; 16],
    /// The symbols in the order of their codes. A code with one symbol takes no bits.
    symbols: Vec<u16>,
    /// Bytes of the tables that the decoder builds for this code.
    bytes: u64,
}

impl PrefixCode {
    /// Makes a code from the length of the code of each symbol in bits; 0: the symbol does not occur. `None` if the
    /// decoder refuses it.
    fn new(lengths: &[u8]) -> Option<Self> {
        let mut counts = [0_u16; 16];
        lengths.iter().for_each(|&length| counts[usize::from(length)] += 1);
        counts[0] = 0;
        let mut by_length: Vec<u16> =
            (0..lengths.len() as u16).filter(|&symbol| lengths[usize::from(symbol)] > 0).collect();
        by_length.sort_by_key(|&symbol| lengths[usize::from(symbol)]);
        match by_length.len() {
            0 => return None,
            1 => return Some(PrefixCode { counts: [0; 16], symbols: by_length, bytes: 0 }),
            _ => {}
        }
        // The code must be complete: each of the 2^15 sequences of 15 bits starts with exactly one code. A code of
        // `length` bits is the start of 2^(15 - length) of them.
        let covered: u32 =
            counts.iter().enumerate().skip(1).map(|(length, &count)| u32::from(count) << (15 - length)).sum();
        if covered != 1 << 15 {
            return None;
        }
        let longest = counts.iter().rposition(|&count| count > 0).unwrap_or(0);
        // Codes longer than the table's index are leaves of trees, for which the decoder allocates two nodes per leaf.
        let leaves: u64 = counts.iter().skip(TABLE_BITS + 1).map(|&count| u64::from(count)).sum();
        let bytes =
            PAIR_BYTES + (TABLE_ENTRY_BYTES << longest.min(TABLE_BITS)) + 2 * leaves * TREE_NODE_BYTES;
        Some(PrefixCode { counts, symbols: by_length, bytes })
    }

    /// A code with one symbol, which takes no bits.
    fn single(symbol: u16) -> Self {
        PrefixCode { counts: [0; 16], symbols: vec![symbol], bytes: 0 }
    }

    /// A code with two symbols, of one bit each.
    fn pair(first: u16, second: u16) -> Self {
        let mut counts = [0; 16];
        counts[1] = 2;
        PrefixCode { counts, symbols: vec![first, second], bytes: PAIR_BYTES }
    }

    /// Whether the code has one symbol.
    fn is_single(&self) -> bool {
        self.symbols.len() == 1
    }

    /// Reads one symbol, bit by bit. For each length, `first` is the smallest code of that length and `index` the
    /// position of its symbol.
    fn read(&self, bits: &mut BitReader<'_>) -> Option<usize> {
        if self.is_single() {
            return Some(usize::from(self.symbols[0]));
        }
        let (mut code, mut first, mut index) = (0, 0, 0);
        for count in &self.counts[1..] {
            let count = usize::from(*count);
            code |= bits.read(1)?;
            if code < first + count {
                return self.symbols.get(index + code - first).map(|&symbol| usize::from(symbol));
            }
            // The codes of the next length continue after those of this length, with one bit more.
            index += count;
            first = (first + count) << 1;
            code <<= 1;
        }
        None
    }
}

/// Reads the description of a code of `alphabet` symbols.
fn read_prefix_code(bits: &mut BitReader<'_>, alphabet: usize) -> Option<PrefixCode> {
    // The short form lists one or two symbols.
    if bits.read(1)? == 1 {
        let is_pair = bits.read(1)? == 1;
        let width = if bits.read(1)? == 1 { 8 } else { 1 };
        let first = bits.read(width)?;
        let second = if is_pair { Some(bits.read(8)?) } else { None };
        if first.max(second.unwrap_or(0)) >= alphabet {
            return None;
        }
        return Some(second.map_or(PrefixCode::single(first as u16), |second| {
            PrefixCode::pair(first as u16, second as u16)
        }));
    }
    // The long form describes an inner code, with which the lengths of the codes of all symbols are stored.
    let mut lengths = [0_u8; 19];
    let count = 4 + bits.read(4)?;
    for symbol in &CODE_LENGTH_ORDER[..count] {
        lengths[*symbol] = bits.read(3)? as u8;
    }
    let code = PrefixCode::new(&lengths)?;
    // The number of symbols of the inner code that follow; the remaining lengths are 0.
    let mut symbols_left = alphabet;
    if bits.read(1)? == 1 {
        let width = 2 + 2 * bits.read(3)?;
        symbols_left = bits.read(width).map(|number| number + 2).filter(|number| *number <= alphabet)?;
    }
    // Symbols 0 to 15 are lengths, 16 repeats the last length that is not 0 (at first 8), 17 and 18 repeat 0.
    let (mut lengths, mut previous) = (Vec::with_capacity(alphabet), 8);
    while lengths.len() < alphabet && symbols_left > 0 {
        symbols_left -= 1;
        let (length, repeat) = match code.read(bits)? {
            symbol @ 0..16 => (symbol as u8, 1),
            16 => (previous, bits.read(2)? + 3),
            17 => (0, bits.read(3)? + 3),
            _ => (0, bits.read(7)? + 11),
        };
        if length != 0 {
            previous = length;
        }
        if lengths.len() + repeat > alphabet {
            return None;
        }
        lengths.resize(lengths.len() + repeat, length);
    }
    lengths.resize(alphabet, 0);
    PrefixCode::new(&lengths)
}

/// Reads bits, starting with the lowest bit of the first byte.
struct BitReader<'a> {
    bytes: &'a [u8],
    /// The position of the next bit.
    position: usize,
}

impl BitReader<'_> {
    /// The next `count` bits as a number, lowest bit first; `None` at the end.
    fn read(&mut self, count: usize) -> Option<usize> {
        let mut value = 0;
        for bit in 0..count {
            let byte = *self.bytes.get(self.position / 8)?;
            value |= usize::from(byte >> (self.position % 8) & 1) << bit;
            self.position += 1;
        }
        Some(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Channels, DecodedImage, Unreadable};

    /// Writes bits, starting with the lowest bit of the first byte.
    #[derive(Default)]
    struct BitWriter {
        bytes: Vec<u8>,
        /// The number of bits written so far.
        written: usize,
    }

    impl BitWriter {
        /// Writes the lowest `count` bits of a value.
        fn put(&mut self, value: usize, count: usize) {
            for bit in 0..count {
                if self.written.is_multiple_of(8) {
                    self.bytes.push(0);
                }
                *self.bytes.last_mut().unwrap() |= ((value >> bit & 1) << (self.written % 8)) as u8;
                self.written += 1;
            }
        }

        /// A code with one symbol: the short form, not a pair, and a symbol of 8 bits.
        fn put_single(&mut self, symbol: usize) {
            self.put(0b101, 3);
            self.put(symbol, 8);
        }
    }

    /// A lossless WebP of 8 x 8 pixels with `groups` groups of prefix codes, each of 2,048 codes of 11 bits.
    fn many_tables(groups: usize) -> Vec<u8> {
        let mut bits = BitWriter::default();
        bits.put(0x2f, 8); // The signature.
        bits.put(8 - 1, 14);
        bits.put(8 - 1, 14); // Width and height.
        bits.put(0, 4);
        bits.put(0, 1); // No transformation.
        bits.put(1, 1);
        bits.put(11, 4); // A colour cache.
        bits.put(1, 1);
        bits.put(0, 3); // Groups for blocks of 4 x 4 pixels.
        bits.put(0, 1); // The sub-image has no colour cache; all its pixels are the largest group.
        for symbol in [(groups - 1) & 0xff, (groups - 1) >> 8, 0, 0, 0] {
            bits.put_single(symbol);
        }
        for _ in 0..groups {
            bits.put(0, 1); // The long form, with an inner code of one symbol: the length 11.
            bits.put(15 - 4, 4);
            for length in &CODE_LENGTH_ORDER[..15] {
                bits.put(usize::from(*length == 11), 3);
            }
            bits.put(1, 1); // The first 2,048 symbols have a length, stored in 2 + 2 * 5 bits.
            bits.put(5, 3);
            bits.put(2048 - 2, 12);
            for _ in 0..4 {
                bits.put_single(0);
            }
        }
        (0..64).for_each(|_| bits.put(0, 11)); // Every pixel is the first symbol.
        let data = bits.bytes;
        let mut file = b"RIFF".to_vec();
        file.extend((data.len() as u32 + 12).to_le_bytes());
        file.extend(b"WEBPVP8L");
        file.extend((data.len() as u32).to_le_bytes());
        file.extend(data);
        file
    }

    #[test]
    fn tables_are_counted_one_by_one() {
        // A table of 2^10 entries, and two nodes for each of the 2,048 codes of 11 bits.
        let group = GROUP_BYTES + PAIR_BYTES + (4 << 10) + 2 * 2048 * 16;
        for groups in [1, 2, 300] {
            assert_eq!(table_bytes(&many_tables(groups), 8, 8), groups as u64 * group, "{groups}");
        }
    }

    #[test]
    fn a_stream_that_ends_is_counted_to_its_end() {
        let file = many_tables(20);
        let counts: Vec<u64> = (0..file.len()).map(|end| table_bytes(&file[..end], 8, 8)).collect();
        assert!(counts.is_sorted() && counts[0] == 0);
    }

    #[test]
    fn real_files_are_read_to_their_last_table() {
        for (name, kind, start, least) in [
            ("lossless-groups.webp", b"VP8L", 40, 5),
            ("lossless-palette.webp", b"VP8L", 40, 1),
            ("lossy-packed-alpha.webp", b"ALPH", 8, 1),
        ] {
            let file = std::fs::read(format!("tests/large/{name}")).unwrap();
            let (_, data) = RiffChunks(&file[12..]).find(|(chunk_kind, _)| chunk_kind == kind).unwrap();
            let (mut bytes, mut bits) = (0, BitReader { bytes: data, position: start });
            assert!(add_stream_tables(&mut bits, 640, 480, &mut bytes).is_some(), "{name}");
            assert!(bytes > least * GROUP_BYTES && bytes < 4 << 20, "{name}: {bytes}");
            assert_eq!(table_bytes(&file, 640, 480), bytes, "{name}");
        }
    }

    #[test]
    fn a_small_file_with_gigabytes_of_tables_is_refused() {
        let file = many_tables(1 << 16);
        assert!(file.len() < 1_000_000);
        let refused = DecodedImage::decode(&file, Channels::Colour).unwrap_err();
        assert!(matches!(refused, Unreadable::OverMemory { need: 4_000_000_000.., .. }), "{refused}");
    }

    #[test]
    fn any_bytes_are_counted_without_a_panic() {
        let mut state = 1_u64;
        let mut random = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize
        };
        for round in 0..3000 {
            let mut file = many_tables(1 + round % 3);
            for _ in 0..1 + random() % 6 {
                let position = 12 + random() % (file.len() - 12);
                file[position] = random() as u8;
            }
            table_bytes(&file, 8, 8);
        }
    }
}
