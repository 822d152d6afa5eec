//! Parquet: columns in pages, each page encoded and compressed for itself.
//!
//! The decoder believes what it reads: it reserves room for as many children as a schema claims, unpacks
//! gzip to whatever comes out, and repeats a value as often as a page header says. So three walks come
//! first, over the footer and over the header of every page that will be read, and bound all of that by
//! what the file can justify. Only then, and only for the needed columns, does the decoder run.

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
use super::thrift::{Compact, wire};
use crate::error::{Error, Result};

const FORMAT: &str = "Parquet";
const MAGIC: &[u8] = b"PAR1";

/// Groups within groups: a list column needs three levels.
const DEEPEST_SCHEMA: usize = 32;

/// Rows decoded at once.
const BATCH: usize = 1024;

/// Reads a file's structure and decodes its needed columns.
pub(crate) fn read(source: &Source) -> Result<Parts> {
    check_footer(source).map_err(|problem| source.malformed(FORMAT, problem))?;
    let (metadata, columns) = guarded(source, FORMAT, || plan(source))?;
    let mask = ProjectionMask::roots(metadata.parquet_schema(), columns.places());
    check_pages(source, &metadata, &mask)?;
    guarded(source, FORMAT, || decode(source, metadata, mask, columns))
}

/// Walks the footer: its schema must be a tree of bounded depth with as many nodes as it claims.
fn check_footer(source: &Source) -> Result<(), String> {
    let bytes = &source.bytes;
    if bytes.ends_with(b"PARE") {
        return Err("it is encrypted".into());
    }
    if !bytes.starts_with(MAGIC) || !bytes.ends_with(MAGIC) || bytes.len() < 12 {
        return Err("it does not begin and end with PAR1".into());
    }
    let tail = bytes.len() - 8;
    let length: [u8; 4] = bytes[tail..tail + 4].try_into().expect("four bytes");
    let start = tail.checked_sub(u32::from_le_bytes(length) as usize).filter(|&start| start >= 4);
    let footer = &bytes[start.ok_or("its footer is longer than the file")?..tail];
    let mut schemas = 0;
    let walked = Compact::new(footer).fields(0, |walk, id, kind| match (id, kind) {
        (2, wire::LIST) => {
            schemas += 1;
            check_schema(walk).map(|()| true)
        }
        (2, _) => None,
        _ => Some(false),
    });
    match (walked, schemas) {
        (Some(()), 1) => Ok(()),
        _ => Err("its footer is damaged".into()),
    }
}

/// The schema is a tree written depth first: every node says how many children follow.
fn check_schema(walk: &mut Compact<'_>) -> Option<()> {
    let (kind, nodes) = walk.list()?;
    if kind != wire::STRUCT {
        return None;
    }
    // How many children each open group still waits for; the file as a whole waits for the root.
    let mut open = vec![1usize];
    for node in 0..nodes {
        let children = schema_children(walk)?;
        let waiting = open.last_mut()?;
        *waiting = waiting.checked_sub(1)?;
        if children > nodes - node - 1 {
            return None;
        }
        open.push(children);
        while open.last() == Some(&0) {
            open.pop();
        }
        if open.len() > DEEPEST_SCHEMA {
            return None;
        }
    }
    open.is_empty().then_some(())
}

fn schema_children(walk: &mut Compact<'_>) -> Option<usize> {
    let mut children = 0;
    walk.fields(1, |walk, id, kind| match (id, kind) {
        (5, wire::I32) => {
            children = usize::try_from(walk.i32()?).ok()?;
            Some(true)
        }
        (5, _) => None,
        _ => Some(false),
    })?;
    Some(children)
}

/// Reads the metadata and chooses columns.
fn plan(source: &Source) -> Result<(ArrowReaderMetadata, Columns)> {
    let malformed = |problem| source.malformed(FORMAT, problem);
    // The Arrow schema that some writers embed is one more structure to distrust, and tells nothing we need.
    let options = ArrowReaderOptions::new().with_skip_arrow_metadata(true);
    let metadata = ArrowReaderMetadata::load(&source.bytes, options.clone()).map_err(malformed)?;
    let columns = Columns::choose(metadata.schema()).map_err(|problem| source.malformed(FORMAT, problem))?;
    let hinted = with_views(metadata.schema(), &columns);
    let metadata = ArrowReaderMetadata::try_new(metadata.metadata().clone(), options.with_schema(hinted));
    Ok((metadata.map_err(malformed)?, columns))
}

/// Asks for strings as views into the page: a name repeated a million times is then stored once.
fn with_views(schema: &Schema, columns: &Columns) -> Arc<Schema> {
    let places = columns.places();
    let hinted = schema.fields().iter().enumerate().map(|(place, field)| {
        match places.contains(&place) && *field.data_type() == DataType::Utf8 {
            true => Arc::new(Field::clone(field).with_data_type(DataType::Utf8View)),
            false => field.clone(),
        }
    });
    Arc::new(Schema::new_with_metadata(hinted.collect::<Vec<_>>(), schema.metadata().clone()))
}

/// Walks the page headers of all chunks that will be read, and adds up what they claim.
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

/// Walks one chunk; returns what its pages claim to become.
fn check_chunk(source: &Source, chunk: &ColumnChunkMetaData) -> Result<u64> {
    let damaged = || damaged_column(source, chunk);
    let mut rest = bytes_of(source, chunk).ok_or_else(damaged)?;
    let (mut claimed, mut delta_lengths) = (0u64, false);
    while !rest.is_empty() {
        let mut walk = Compact::new(rest);
        let page = PageHeader::read(&mut walk).ok_or_else(damaged)?;
        let body = &rest[walk.position()..];
        let (body, behind) = body.split_at_checked(page.compressed).ok_or_else(damaged)?;
        claimed = claimed.saturating_add(page.claim(chunk));
        source.allow(claimed)?;
        page.check_body(source, chunk, body)?;
        delta_lengths |= page.delta_lengths;
        rest = behind;
    }
    if delta_lengths {
        guarded(source, FORMAT, || check_delta_lengths(source, chunk))?;
    }
    Ok(claimed)
}

fn damaged_column(source: &Source, chunk: &ColumnChunkMetaData) -> Error {
    source.malformed(FORMAT, format!("the pages of column '{}' are damaged", chunk.column_path().string()))
}

/// The bytes of a chunk, if it lies inside the file.
fn bytes_of<'a>(source: &'a Source, chunk: &ColumnChunkMetaData) -> Option<&'a [u8]> {
    let start = chunk.dictionary_page_offset().unwrap_or(chunk.data_page_offset());
    let length = usize::try_from(chunk.compressed_size()).ok()?;
    source.bytes.get(usize::try_from(start).ok()?..)?.get(..length)
}

/// Strings behind a list of lengths: the decoder makes room for as many as the list claims, and the claim
/// stands inside the compressed page. Only here are pages unpacked twice.
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

/// What stands behind the levels of a data page.
fn values_of<'a>(page: &'a Page, chunk: &ColumnChunkMetaData) -> Option<&'a [u8]> {
    match page {
        Page::DataPage { buf, def_level_encoding, rep_level_encoding, .. } => {
            let descr = chunk.column_descr();
            let levels =
                [(descr.max_rep_level(), rep_level_encoding), (descr.max_def_level(), def_level_encoding)];
            levels.into_iter().filter(|(deepest, _)| *deepest > 0).try_fold(
                &buf[..],
                |rest, (_, encoding)| {
                    // The older form of levels has no length in front; nobody writes it with such strings.
                    let (length, rest) =
                        rest.split_first_chunk::<4>().filter(|_| *encoding == Encoding::RLE)?;
                    rest.get(u32::from_le_bytes(*length) as usize..)
                },
            )
        }
        Page::DataPageV2 { buf, def_levels_byte_len, rep_levels_byte_len, .. } => {
            buf.get((*def_levels_byte_len as usize).checked_add(*rep_levels_byte_len as usize)?..)
        }
        Page::DictionaryPage { .. } => None,
    }
}

/// How many numbers a list of differences claims: the third number of its header.
fn delta_count(bytes: &[u8]) -> Option<u64> {
    let mut walk = Compact::new(bytes);
    let (_block, _parts) = (walk.varint()?, walk.varint()?);
    walk.varint()
}

/// What a page says about itself.
#[derive(Default)]
struct PageHeader {
    uncompressed: usize,
    compressed: usize,
    values: u64,
    /// Whether an inner header speaks of strings behind a list of lengths.
    delta_lengths: bool,
    /// Whether an inner header speaks of strings that repeat the beginning of the one before.
    delta_strings: bool,
    /// Bytes of levels before the compressed part (the second version of data pages).
    levels: usize,
    plain_body: bool,
    /// The CRC-32 of the page as it is stored, without this header; optional.
    checksum: Option<u32>,
}

/// Parquet's numbers for two encodings of strings.
const DELTA_LENGTH_BYTE_ARRAY: i32 = 6;
const DELTA_BYTE_ARRAY: i32 = 7;

impl PageHeader {
    fn read(walk: &mut Compact<'_>) -> Option<Self> {
        let mut page = PageHeader::default();
        let mut sizes = 0;
        walk.fields(0, |walk, id, kind| match (id, kind) {
            (2 | 3, wire::I32) => {
                let size = usize::try_from(walk.i32()?).ok()?;
                *(if id == 2 { &mut page.uncompressed } else { &mut page.compressed }) = size;
                sizes |= id;
                Some(true)
            }
            (4, wire::I32) => {
                page.checksum = Some(walk.i32()? as u32);
                Some(true)
            }
            // A data page, a dictionary, or a data page of the second version.
            (5 | 7, wire::STRUCT) => page.read_values(walk, 2).map(|()| true),
            (8, wire::STRUCT) => page.read_values(walk, 4).map(|()| true),
            (2 | 3 | 4 | 5 | 7 | 8, _) => None,
            _ => Some(false),
        })?;
        (sizes == 3).then_some(page)
    }

    /// Reads the inner header; the encoding's place differs between the kinds of page.
    fn read_values(&mut self, walk: &mut Compact<'_>, encoding: i16) -> Option<()> {
        let second_version = encoding == 4;
        walk.fields(1, |walk, id, kind| match (id, kind) {
            (1, wire::I32) => {
                // The largest counts, should a header hold several: the decoder picks by the kind of page.
                self.values = self.values.max(u64::try_from(walk.i32()?).ok()?);
                Some(true)
            }
            (id, wire::I32) if id == encoding => {
                let given = walk.i32()?;
                self.delta_lengths |= given == DELTA_LENGTH_BYTE_ARRAY;
                self.delta_strings |= given == DELTA_BYTE_ARRAY;
                Some(true)
            }
            (5 | 6, wire::I32) if second_version => {
                let length = usize::try_from(walk.i32()?).ok()?;
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

    /// What the page becomes: its bytes, and its values once decoded with their levels.
    fn claim(&self, chunk: &ColumnChunkMetaData) -> u64 {
        let width = match chunk.column_type() {
            Type::BOOLEAN => 1,
            Type::INT32 | Type::FLOAT => 4,
            Type::INT64 | Type::DOUBLE => 8,
            // Strings are decoded into views.
            Type::INT96 | Type::BYTE_ARRAY => 16,
            Type::FIXED_LEN_BYTE_ARRAY => chunk.column_descr().type_length().max(1) as u64,
        };
        (self.uncompressed as u64).saturating_add(self.values.saturating_mul(width))
    }

    /// Compares the checksum, and bounds what the page unpacks to.
    ///
    /// Two of the decoder's codecs unpack without a limit, and so does one encoding: the pages of those codecs
    /// are measured first, the encoding is refused.
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
                let claimed = self.uncompressed.saturating_sub(self.levels) as u64;
                let packed = body.get(self.levels..).unwrap_or_default();
                match inflates_beyond(packed, claimed) {
                    true => {
                        let problem = format!("a page unpacks to more than the {claimed} bytes it claims");
                        Err(source.malformed(FORMAT, problem))
                    }
                    false => Ok(()),
                }
            }
            // LZ4 cannot do better than 255.
            Compression::LZ4 => source.allow(255 * body.len() as u64),
            _ => Ok(()),
        }
    }
}

fn inflates_beyond(packed: &[u8], limit: u64) -> bool {
    use std::io::Read;
    let mut unpacked = flate2::read::MultiGzDecoder::new(packed).take(limit + 1);
    // Damaged data is the decoder's to refuse; it stops where this stops.
    let mut window = [0; 1 << 14];
    let mut length = 0;
    while let Ok(read @ 1..) = unpacked.read(&mut window) {
        length += read as u64;
    }
    length > limit
}

/// Decodes the chosen columns, some rows at a time.
fn decode(
    source: &Source,
    metadata: ArrowReaderMetadata,
    mask: ProjectionMask,
    columns: Columns,
) -> Result<Parts> {
    let malformed = |problem: &dyn std::fmt::Display| source.malformed(FORMAT, problem);
    let reader = ParquetRecordBatchReaderBuilder::new_with_metadata(source.bytes.clone(), metadata)
        .with_projection(mask)
        .with_batch_size(BATCH)
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

    /// A list of schema nodes with these numbers of children.
    fn schema(children: &[u8]) -> Option<()> {
        let mut bytes = vec![0xfc, children.len() as u8];
        // Field 5, a number (doubled, as Thrift writes those without a sign), end of the node.
        children.iter().for_each(|&count| bytes.extend([0x55, 2 * count, 0]));
        check_schema(&mut Compact::new(&bytes))
    }

    #[test]
    fn a_schema_has_the_nodes_it_claims_and_is_not_endlessly_deep() {
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
    fn the_claim_of_a_list_of_lengths_is_its_third_number() {
        assert_eq!(delta_count(&[0x80, 0x01, 4, 12, 0]), Some(12));
        assert_eq!(delta_count(&[0x80, 0x01, 4]), None);
    }
}
