//! Reader of Parquet files: checks the footer and all page headers, then decodes the needed columns.
//!
//! A Parquet file consists of row groups; each stores every column as one chunk, a sequence of pages. The footer has
//! the schema and the positions of all chunks. Footers and page headers are structures in Thrift's compact protocol
//! ([`CompactReader`]), whose fields have numbers.
//!
//! Start with [`read`]. The decoder of the `parquet` crate trusts the file: it reserves memory for all children that a
//! schema claims, decompresses gzip without a limit, and repeats a value as often as a page header says. So three
//! checks come first: the schema in the footer, the header of every page that will be read, and the numbers of strings
//! that pages in the encoding DELTA_LENGTH_BYTE_ARRAY claim. They bound all of this by the size of the file. Only then
//! does the decoder run, and only on the needed columns.

use std::sync::Arc;

use arrow_schema::{DataType, Field, Schema};
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::{
    ArrowReaderMetadata, ArrowReaderOptions, ParquetRecordBatchReaderBuilder,
};
use parquet::basic::{Compression, Encoding, Type};
use parquet::column::page::{Page, PageReader};
use parquet::file::metadata::ColumnChunkMetaData;
use parquet::file::serialized_reader::SerializedPageReader;

use super::Parts;
use super::guard::guarded;
use super::source::Source;
use super::table::{Columns, Table};
use super::thrift::{CompactReader, wire};
use crate::error::{Error, Result};

const FORMAT: &str = "Parquet";
/// The first and the last bytes of a file.
const MAGIC: &[u8] = b"PAR1";

/// The maximum depth of nested groups in a schema; a column of lists has three levels.
const MAX_SCHEMA_DEPTH: usize = 32;

/// The number of rows that are decoded at a time.
const BATCH_ROWS: usize = 1024;

/// Reads a Parquet file: columns of features, labels and, if there are any, item names.
pub(crate) fn read(source: &Source) -> Result<Parts> {
    check_footer(source).map_err(|problem| source.malformed(FORMAT, problem))?;
    let (metadata, columns) = guarded(source, FORMAT, || read_metadata(source))?;
    let mask = ProjectionMask::roots(metadata.parquet_schema(), columns.indices());
    check_pages(source, &metadata, &mask)?;
    guarded(source, FORMAT, || decode(source, metadata, mask, columns))
}

/// Checks the footer: its schema must be a tree of bounded depth with the number of nodes that it claims.
fn check_footer(source: &Source) -> Result<(), String> {
    let bytes = &source.bytes;
    // Files with an encrypted footer end with these bytes.
    if bytes.ends_with(b"PARE") {
        return Err("it is encrypted".into());
    }
    // The shortest file: the magic bytes twice and the length of the footer, four bytes each.
    if !bytes.starts_with(MAGIC) || !bytes.ends_with(MAGIC) || bytes.len() < 12 {
        return Err("it does not begin and end with PAR1".into());
    }
    // A file ends with the footer, the length of the footer in four bytes, and the magic bytes.
    let footer_end = bytes.len() - 8;
    let length: [u8; 4] = bytes[footer_end..footer_end + 4].try_into().expect("four bytes");
    // The footer cannot start within the magic bytes at the start of the file.
    let start = footer_end.checked_sub(u32::from_le_bytes(length) as usize).filter(|&start| start >= 4);
    let footer = &bytes[start.ok_or("its footer is longer than the file")?..footer_end];
    // FileMetaData: field 2 is the schema. There must be exactly one.
    let mut schemas = 0;
    let result = CompactReader::new(footer).fields(0, |reader, id, kind| match (id, kind) {
        (2, wire::LIST) => {
            schemas += 1;
            check_schema(reader).map(|()| true)
        }
        (2, _) => None,
        _ => Some(false),
    });
    match (result, schemas) {
        (Some(()), 1) => Ok(()),
        _ => Err("its footer is damaged".into()),
    }
}

/// Checks the schema, a tree in depth-first order whose nodes say how many children follow.
fn check_schema(reader: &mut CompactReader<'_>) -> Option<()> {
    let (kind, nodes) = reader.list()?;
    if kind != wire::STRUCT {
        return None;
    }
    // The number of children that are still missing in each open group, the outermost first. The first entry is
    // for the root itself: one node is still to come.
    let mut missing = vec![1usize];
    for node in 0..nodes {
        let children = schema_children(reader)?;
        let innermost = missing.last_mut()?;
        *innermost = innermost.checked_sub(1)?;
        // No more children than nodes that follow.
        if children > nodes - node - 1 {
            return None;
        }
        missing.push(children);
        while missing.last() == Some(&0) {
            missing.pop();
        }
        if missing.len() > MAX_SCHEMA_DEPTH {
            return None;
        }
    }
    missing.is_empty().then_some(())
}

/// Reads a node of the schema and returns the number of its children.
fn schema_children(reader: &mut CompactReader<'_>) -> Option<usize> {
    // SchemaElement: field 5 is the number of children, which a column does not have.
    let mut children = 0;
    reader.fields(1, |reader, id, kind| match (id, kind) {
        (5, wire::I32) => {
            children = usize::try_from(reader.i32()?).ok()?;
            Some(true)
        }
        (5, _) => None,
        _ => Some(false),
    })?;
    Some(children)
}

/// Reads the metadata and chooses the columns.
fn read_metadata(source: &Source) -> Result<(ArrowReaderMetadata, Columns)> {
    let malformed = |problem| source.malformed(FORMAT, problem);
    // The Arrow schema that some writers embed is not needed, and would be one more untrusted structure.
    let options = ArrowReaderOptions::new().with_skip_arrow_metadata(true);
    let metadata = ArrowReaderMetadata::load(&source.bytes, options.clone()).map_err(malformed)?;
    let columns = Columns::choose(metadata.schema()).map_err(|problem| source.malformed(FORMAT, problem))?;
    let schema_with_views = with_views(metadata.schema(), &columns);
    let metadata =
        ArrowReaderMetadata::try_new(metadata.metadata().clone(), options.with_schema(schema_with_views));
    Ok((metadata.map_err(malformed)?, columns))
}

/// The schema with strings as views into the page, so that a name repeated a million times is stored once.
fn with_views(schema: &Schema, columns: &Columns) -> Arc<Schema> {
    let indices = columns.indices();
    let fields = schema.fields().iter().enumerate().map(|(index, field)| {
        match indices.contains(&index) && *field.data_type() == DataType::Utf8 {
            true => Arc::new(Field::clone(field).with_data_type(DataType::Utf8View)),
            false => field.clone(),
        }
    });
    Arc::new(Schema::new_with_metadata(fields.collect::<Vec<_>>(), schema.metadata().clone()))
}

/// Checks all pages that will be read, and that the memory that decoding them takes is allowed.
fn check_pages(source: &Source, metadata: &ArrowReaderMetadata, mask: &ProjectionMask) -> Result<()> {
    let mut claimed = 0u64;
    for group in metadata.metadata().row_groups() {
        for (leaf, chunk) in group.columns().iter().enumerate() {
            if mask.leaf_included(leaf) {
                claimed = claimed.saturating_add(check_chunk(source, chunk)?);
                source.allow(claimed)?;
            }
        }
    }
    Ok(())
}

/// Checks the pages of one column chunk and returns the number of bytes of memory that decoding them takes
/// ([`PageHeader::claim`]).
fn check_chunk(source: &Source, chunk: &ColumnChunkMetaData) -> Result<u64> {
    let damaged = || damaged_column(source, chunk);
    let mut unread = bytes_of(source, chunk).ok_or_else(damaged)?;
    // `claimed` is the return value; `delta_lengths`: whether a page has the encoding that `check_delta_lengths`
    // checks.
    let (mut claimed, mut delta_lengths) = (0u64, false);
    while !unread.is_empty() {
        let mut reader = CompactReader::new(unread);
        let page = PageHeader::read(&mut reader).ok_or_else(damaged)?;
        let body = &unread[reader.position()..];
        let (body, next) = body.split_at_checked(page.compressed).ok_or_else(damaged)?;
        claimed = claimed.saturating_add(page.claim(chunk));
        source.allow(claimed)?;
        page.check_body(source, chunk, body)?;
        delta_lengths |= page.delta_lengths;
        unread = next;
    }
    if delta_lengths {
        guarded(source, FORMAT, || check_delta_lengths(source, chunk))?;
    }
    Ok(claimed)
}

/// The error about damaged pages of a column.
fn damaged_column(source: &Source, chunk: &ColumnChunkMetaData) -> Error {
    source.malformed(FORMAT, format!("the pages of column '{}' are damaged", chunk.column_path().string()))
}

/// The bytes of a column chunk; `None` if it is outside the file.
fn bytes_of<'a>(source: &'a Source, chunk: &ColumnChunkMetaData) -> Option<&'a [u8]> {
    // A dictionary page comes before the data pages.
    let start = chunk.dictionary_page_offset().unwrap_or(chunk.data_page_offset());
    let length = usize::try_from(chunk.compressed_size()).ok()?;
    source.bytes.get(usize::try_from(start).ok()?..)?.get(..length)
}

/// Checks strings in the encoding DELTA_LENGTH_BYTE_ARRAY, which start with a list of their lengths. The decoder
/// reserves memory for the number of strings that this list claims, and the claim is inside the compressed page; so
/// a chunk with such pages is decompressed once more than others.
fn check_delta_lengths(source: &Source, chunk: &ColumnChunkMetaData) -> Result<()> {
    let malformed = |problem| source.malformed(FORMAT, problem);
    let mut pages =
        SerializedPageReader::new(Arc::new(source.bytes.clone()), chunk, 0, None).map_err(malformed)?;
    while let Some(page) = pages.get_next_page().map_err(malformed)? {
        if page.encoding() == Encoding::DELTA_LENGTH_BYTE_ARRAY {
            let claimed = values_of(&page, chunk).and_then(delta_count);
            if claimed.is_none_or(|claimed| claimed > u64::from(page.num_values())) {
                return Err(damaged_column(source, chunk));
            }
        }
    }
    Ok(())
}

/// The values of a data page, without the repetition and definition levels in front of them.
fn values_of<'a>(page: &'a Page, chunk: &ColumnChunkMetaData) -> Option<&'a [u8]> {
    match page {
        // Repetition levels, then definition levels, each with its length in four bytes; a level whose maximum is 0 is
        // left out.
        Page::DataPage { buf, def_level_encoding, rep_level_encoding, .. } => {
            let descr = chunk.column_descr();
            let levels =
                [(descr.max_rep_level(), rep_level_encoding), (descr.max_def_level(), def_level_encoding)];
            levels.into_iter().filter(|(max_level, _)| *max_level > 0).try_fold(
                &buf[..],
                |unread, (_, encoding)| {
                    // The older encoding of levels has no length in front. Writers do not combine it with strings in
                    // DELTA_LENGTH_BYTE_ARRAY, so a page that does is refused.
                    let (length, unread) =
                        unread.split_first_chunk::<4>().filter(|_| *encoding == Encoding::RLE)?;
                    unread.get(u32::from_le_bytes(*length) as usize..)
                },
            )
        }
        Page::DataPageV2 { buf, def_levels_byte_len, rep_levels_byte_len, .. } => {
            buf.get((*def_levels_byte_len as usize).checked_add(*rep_levels_byte_len as usize)?..)
        }
        Page::DictionaryPage { .. } => None,
    }
}

/// The number of values that a delta-encoded list claims: the third number of its header.
fn delta_count(bytes: &[u8]) -> Option<u64> {
    let mut reader = CompactReader::new(bytes);
    let (_block_size, _miniblocks) = (reader.varint()?, reader.varint()?);
    reader.varint()
}

/// The parts of the header of a page that the checks need.
#[derive(Default)]
struct PageHeader {
    /// The size of the page after decompression, in bytes.
    uncompressed: usize,
    /// The size of the page as it is stored, in bytes.
    compressed: usize,
    /// The number of values that the page claims to have.
    values: u64,
    /// Whether the encoding is DELTA_LENGTH_BYTE_ARRAY.
    delta_lengths: bool,
    /// Whether the encoding is DELTA_BYTE_ARRAY.
    delta_strings: bool,
    /// The number of bytes of repetition and definition levels, which are not compressed, in front of the values (data
    /// pages of version 2).
    levels: usize,
    /// Whether the values are not compressed (data pages of version 2).
    plain_body: bool,
    /// The CRC-32 of the stored page without this header; writers may leave it out.
    checksum: Option<u32>,
}

/// The number of the encoding in which a list of lengths is followed by the strings.
const DELTA_LENGTH_BYTE_ARRAY: i32 = 6;
/// The number of the encoding in which a string repeats the beginning of the previous one.
const DELTA_BYTE_ARRAY: i32 = 7;

impl PageHeader {
    /// Reads a header; `None` if it is damaged.
    fn read(reader: &mut CompactReader<'_>) -> Option<Self> {
        let mut page = PageHeader::default();
        // Fields of PageHeader: 2 is the size after decompression, 3 the stored size, 4 the CRC-32, and 5, 7 and 8 are
        // the inner headers of the kinds of pages.
        let mut has_size = [false; 2]; // whether fields 2 and 3 were read
        reader.fields(0, |reader, id, kind| match (id, kind) {
            (2 | 3, wire::I32) => {
                let size = usize::try_from(reader.i32()?).ok()?;
                *(if id == 2 { &mut page.uncompressed } else { &mut page.compressed }) = size;
                has_size[usize::from(id == 3)] = true;
                Some(true)
            }
            (4, wire::I32) => {
                page.checksum = Some(reader.i32()? as u32);
                Some(true)
            }
            // A data page, a dictionary, or (8) a data page of the second version.
            (5 | 7, wire::STRUCT) => page.read_values(reader, 2).map(|()| true),
            (8, wire::STRUCT) => page.read_values(reader, 4).map(|()| true),
            (2 | 3 | 4 | 5 | 7 | 8, _) => None,
            _ => Some(false),
        })?;
        (has_size == [true; 2]).then_some(page)
    }

    /// Reads the inner header; `encoding` is the id of the field with the encoding: 4 in data pages of the second
    /// version, otherwise 2. Field 1 is the number of values. In the second version, fields 5 and 6 are the lengths of
    /// the levels, and field 7 says whether the values are compressed.
    fn read_values(&mut self, reader: &mut CompactReader<'_>, encoding: i16) -> Option<()> {
        let second_version = encoding == 4;
        reader.fields(1, |reader, id, kind| match (id, kind) {
            (1, wire::I32) => {
                // If there are several inner headers, the largest number counts: any of them may be decoded.
                self.values = self.values.max(u64::try_from(reader.i32()?).ok()?);
                Some(true)
            }
            (id, wire::I32) if id == encoding => {
                let number = reader.i32()?;
                self.delta_lengths |= number == DELTA_LENGTH_BYTE_ARRAY;
                self.delta_strings |= number == DELTA_BYTE_ARRAY;
                Some(true)
            }
            (5 | 6, wire::I32) if second_version => {
                let length = usize::try_from(reader.i32()?).ok()?;
                self.levels = self.levels.checked_add(length).filter(|&sum| sum <= self.uncompressed)?;
                Some(true)
            }
            (7, wire::FALSE) if second_version => {
                self.plain_body = true;
                Some(true)
            }
            (1, _) => None,
            (id, _) if id == encoding => None,
            _ => Some(false),
        })
    }

    /// The memory in bytes that decoding the page takes: the decompressed page and its decoded values.
    fn claim(&self, chunk: &ColumnChunkMetaData) -> u64 {
        let width = match chunk.column_type() {
            Type::BOOLEAN => 1,
            Type::INT32 | Type::FLOAT => 4,
            Type::INT64 | Type::DOUBLE => 8,
            // Strings are decoded into views of 16 bytes. INT96 has 12 bytes, which is rounded up.
            Type::INT96 | Type::BYTE_ARRAY => 16,
            Type::FIXED_LEN_BYTE_ARRAY => chunk.column_descr().type_length().max(1) as u64,
        };
        (self.uncompressed as u64).saturating_add(self.values.saturating_mul(width))
    }

    /// Checks the checksum of a page and limits its decompressed size.
    ///
    /// Two codecs of the decoder (gzip and LZ4) decompress without a limit: gzip pages are decompressed here to measure
    /// them, and the size of LZ4 pages is estimated. One encoding (DELTA_BYTE_ARRAY) can expand without a limit: it is
    /// refused.
    fn check_body(&self, source: &Source, chunk: &ColumnChunkMetaData, body: &[u8]) -> Result<()> {
        if self.checksum.is_some_and(|checksum| crc32fast::hash(body) != checksum) {
            return Err(source.damaged(format!("a page of column '{}'", chunk.column_path().string())));
        }
        if self.delta_strings {
            let column = chunk.column_path().string();
            let problem = format!(
                "column '{column}' is encoded as DELTA_BYTE_ARRAY, which can claim any length; write it with a dictionary"
            );
            return Err(source.malformed(FORMAT, problem));
        }
        match chunk.compression() {
            Compression::GZIP(_) if !self.plain_body => {
                // The levels in front of the values are not compressed.
                let claimed = self.uncompressed.saturating_sub(self.levels) as u64;
                let packed = body.get(self.levels..).unwrap_or_default();
                if inflates_beyond(packed, claimed) {
                    let problem = format!("a page unpacks to more than the {claimed} bytes it claims");
                    return Err(source.malformed(FORMAT, problem));
                }
                Ok(())
            }
            // LZ4 compresses by a factor of at most 255.
            Compression::LZ4 => source.allow(255 * body.len() as u64),
            _ => Ok(()),
        }
    }
}

/// Whether gzip data decompresses to more than `limit` bytes.
fn inflates_beyond(packed: &[u8], limit: u64) -> bool {
    use std::io::Read;
    // One byte more than the limit is enough to notice that the data is longer.
    let mut unpacked = flate2::read::MultiGzDecoder::new(packed).take(limit + 1);
    // Damaged data ends the loop; the decoder refuses it later.
    let mut buffer = [0; 1 << 14];
    let mut length = 0;
    while let Ok(read @ 1..) = unpacked.read(&mut buffer) {
        length += read as u64;
    }
    length > limit
}

/// Decodes the chosen columns, [`BATCH_ROWS`] rows at a time.
fn decode(
    source: &Source,
    metadata: ArrowReaderMetadata,
    mask: ProjectionMask,
    columns: Columns,
) -> Result<Parts> {
    let malformed = |problem: &dyn std::fmt::Display| source.malformed(FORMAT, problem);
    let reader = ParquetRecordBatchReaderBuilder::new_with_metadata(source.bytes.clone(), metadata)
        .with_projection(mask)
        .with_batch_size(BATCH_ROWS)
        .build()
        .map_err(|problem| malformed(&problem))?;
    let mut table = Table::new(source, FORMAT, columns);
    for batch in reader {
        table.push(&batch.map_err(|problem| malformed(&problem))?)?;
    }
    table.finish()
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    /// Checks a schema whose nodes have these numbers of children.
    fn schema(children: &[u8]) -> Option<()> {
        // A list of structures whose length follows.
        let mut bytes = vec![0xfc, children.len() as u8];
        // Each node: field 5 with a number in zigzag encoding (2 n for n), and the end of the structure.
        children.iter().for_each(|&count| bytes.extend([0x55, 2 * count, 0]));
        check_schema(&mut CompactReader::new(&bytes))
    }

    #[test]
    fn a_schema_with_missing_nodes_or_too_many_levels_is_refused() {
        assert_eq!(schema(&[2, 0, 1, 0]), Some(()));
        assert_eq!(schema(&[3, 0, 1, 0]), None, "a child is missing");
        assert_eq!(schema(&[1, 0, 0]), None, "a node has no parent");
        assert_eq!(schema(&[60, 0]), None, "more children than nodes");
        assert_eq!(schema(&[vec![1; 100], vec![0]].concat()), None, "a hundred levels");
    }

    #[test]
    fn a_gzip_page_that_unpacks_beyond_its_claim_is_noticed() {
        let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
        packed.write_all(&[0; 100_000]).unwrap();
        let packed = packed.finish().unwrap();
        assert!(!inflates_beyond(&packed, 100_000));
        assert!(inflates_beyond(&packed, 99_999));
        assert!(inflates_beyond(&packed, 0));
        assert!(!inflates_beyond(b"not gzip", 0));
    }

    #[test]
    fn the_number_of_delta_encoded_values_is_the_third_number_of_the_header() {
        assert_eq!(delta_count(&[0x80, 0x01, 4, 12, 0]), Some(12));
        assert_eq!(delta_count(&[0x80, 0x01, 4]), None);
    }
}
