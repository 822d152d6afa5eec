//! Reader of Arrow IPC: files with a footer (also Feather version 2) and streams of messages.
//!
//! An Arrow file is a list of blocks: dictionaries and record batches (groups of rows), each with metadata (a message
//! in FlatBuffers) and a body (the buffers of its columns).
//!
//! Start with [`read`]. Both forms are checked first ([`BlockIndex`]): every message and every buffer must be inside
//! the file, compressed buffers must not claim more than the file size justifies, and a footer must not list the same
//! batch until memory is exhausted. The decoder of the `arrow` crates then sees only checked blocks and the needed
//! columns. Uncompressed features of a single batch stay in the memory map.

use std::sync::Arc;

use arrow_buffer::Buffer;
use arrow_ipc::convert::try_fb_to_schema;
use arrow_ipc::reader::FileDecoder;
use arrow_ipc::{
    Block, Endianness, FieldNode, Message, MessageHeader, MetadataVersion, RecordBatch, root_as_footer,
    root_as_message,
};
use arrow_schema::{DataType, Schema};

use super::Parts;
use super::guard::guarded;
use super::source::Source;
use super::table::{Columns, Table};
use crate::error::Result;

const FORMAT: &str = "Arrow";
/// The first and the last bytes of a file with a footer.
const MAGIC: &[u8] = b"ARROW1";
/// Precedes the length of a message.
const CONTINUATION: [u8; 4] = [0xff; 4];

/// Reads columns of features, labels and, if there are any, item names.
pub(crate) fn read(source: &Source) -> Result<Parts> {
    read_columns(source, Columns::choose)
}

/// Like [`read`], for data without labels: all rows get the same label.
pub(crate) fn read_unlabelled(source: &Source) -> Result<Parts> {
    read_columns(source, Columns::choose_unlabelled)
}

/// Checks all blocks, then decodes the columns that `choose` selects.
fn read_columns(source: &Source, choose: fn(&Schema) -> Result<Columns, String>) -> Result<Parts> {
    let index = guarded(source, FORMAT, || BlockIndex::new(source))?;
    let columns = choose(&index.schema).map_err(|problem| source.malformed(FORMAT, problem))?;
    let unpacked = index.check_blocks(source)?;
    source.allow(unpacked)?;
    guarded(source, FORMAT, || decode(source, index, columns))
}

/// The schema, and the positions of all dictionaries and record batches in the order in which they must be read.
struct BlockIndex {
    schema: Arc<Schema>,
    version: MetadataVersion,
    blocks: Vec<Block>,
}

impl BlockIndex {
    /// Finds the blocks of a file or stream. The blocks themselves are not checked.
    fn new(source: &Source) -> Result<Self> {
        let bytes = &source.bytes[..];
        let index = match bytes {
            _ if bytes.starts_with(MAGIC) => Self::from_file(bytes),
            _ if bytes.starts_with(b"FEA1") => {
                Err("it is Feather version 1; only version 2 is supported".into())
            }
            _ => Self::from_stream(bytes),
        };
        index.map_err(|problem| source.malformed(FORMAT, problem))
    }

    /// The blocks of a file, which its footer lists: dictionaries first.
    fn from_file(bytes: &[u8]) -> Result<Self, String> {
        // A file ends with the footer, the length of the footer in four bytes, and the magic bytes.
        let body = bytes.strip_suffix(MAGIC).ok_or("it does not end with ARROW1: it may be truncated")?;
        let (body, length) = body.split_last_chunk::<4>().ok_or("it ends within its footer")?;
        let length = u32::from_le_bytes(*length) as usize;
        let start = body.len().checked_sub(length).ok_or("its footer is longer than the file")?;
        let footer =
            root_as_footer(&body[start..]).map_err(|problem| format!("its footer is damaged: {problem}"))?;
        let dictionaries = footer.dictionaries().into_iter().flatten().copied();
        let batches = footer.recordBatches().into_iter().flatten().copied();
        let blocks = dictionaries.chain(batches).collect();
        let schema = schema_of(footer.schema().ok_or("its footer has no schema")?)?;
        Ok(BlockIndex { schema, version: footer.version(), blocks })
    }

    /// The blocks of a stream: a schema, then messages until the end.
    fn from_stream(bytes: &[u8]) -> Result<Self, String> {
        let (_, first, mut position) = next_message(bytes, 0)?.ok_or("it is empty")?;
        let schema = first.header_as_schema().ok_or("it does not begin with a schema")?;
        let (schema, version) = (schema_of(schema)?, first.version());
        let mut blocks = Vec::new();
        while let Some((block, _, end)) = next_message(bytes, position)? {
            blocks.push(block);
            position = end;
        }
        Ok(BlockIndex { schema, version, blocks })
    }

    /// Checks every block and returns the total number of bytes after decompression.
    fn check_blocks(&self, source: &Source) -> Result<u64> {
        let mut unpacked = 0u64;
        for (number, block) in self.blocks.iter().enumerate() {
            let size = check_block(&source.bytes, block).map_err(|problem| {
                source.malformed(FORMAT, format!("its block {number} is damaged: {problem}"))
            })?;
            unpacked = unpacked.saturating_add(size);
        }
        Ok(unpacked)
    }
}

/// The schema of the columns; `Err` if it is damaged or has big-endian numbers.
fn schema_of(schema: arrow_ipc::Schema<'_>) -> Result<Arc<Schema>, String> {
    if schema.endianness() != Endianness::Little {
        return Err("its numbers are big-endian; only little-endian numbers are supported".into());
    }
    try_fb_to_schema(schema).map(Arc::new).map_err(|problem| format!("its schema is damaged: {problem}"))
}

/// The message of a stream at `position`, as (its block, its metadata, the position of the next message). `None` at the
/// end.
///
/// A message is the continuation marker, the length of the metadata in four bytes, the metadata and the body.
fn next_message(bytes: &[u8], position: usize) -> Result<Option<(Block, Message<'_>, usize)>, String> {
    const TRUNCATED: &str = "it ends within a message: it may be truncated";
    let rest = bytes.get(position..).unwrap_or_default();
    let Some((word, next)) = rest.split_first_chunk::<4>() else {
        // A stream may end without an end marker, but not inside one.
        return if rest.is_empty() { Ok(None) } else { Err(TRUNCATED.into()) };
    };
    // Older writers omit the continuation marker. `prefix` is the number of bytes before the metadata.
    let (word, prefix) = match *word == CONTINUATION {
        true => (next.first_chunk::<4>().ok_or(TRUNCATED)?, 8),
        false => (word, 4),
    };
    // A length of 0 marks the end of the stream.
    let length = i32::from_le_bytes(*word);
    if length == 0 {
        return Ok(None);
    }
    // The length of the metadata, with the bytes before it.
    let metadata_length = usize::try_from(length).map_err(|_| "a message has a negative length")? + prefix;
    let metadata = rest.get(prefix..metadata_length).ok_or(TRUNCATED)?;
    let message = root_as_message(metadata).map_err(|problem| format!("a message is damaged: {problem}"))?;
    let body = usize::try_from(message.bodyLength()).map_err(|_| "a message has a negative length")?;
    let end = position.checked_add(metadata_length).and_then(|end| end.checked_add(body));
    let end = end.filter(|&end| end <= bytes.len()).ok_or(TRUNCATED)?;
    let metadata_length = i32::try_from(metadata_length).map_err(|_| "a message is too long")?;
    Ok(Some((Block::new(position as i64, metadata_length, body as i64), message, end)))
}

/// The bytes of a block: its metadata, including the marker and the length in front, and its body. `None` if the block
/// is outside the file.
fn bytes_of<'a>(bytes: &'a [u8], block: &Block) -> Option<(&'a [u8], &'a [u8])> {
    let start = usize::try_from(block.offset()).ok()?;
    // The marker and the length in front of the metadata take up to eight bytes.
    let metadata = usize::try_from(block.metaDataLength()).ok().filter(|&length| length >= 8)?;
    let body = usize::try_from(block.bodyLength()).ok()?;
    let (metadata, rest) = bytes.get(start..)?.split_at_checked(metadata)?;
    Some((metadata, rest.get(..body)?))
}

/// Checks one block and returns the number of bytes after decompression.
fn check_block(bytes: &[u8], block: &Block) -> Result<u64, String> {
    let (metadata, body) = bytes_of(bytes, block).ok_or("it lies outside the file")?;
    let message = message_of(metadata)?;
    let batch = match message.header_type() {
        MessageHeader::RecordBatch => message.header_as_record_batch(),
        MessageHeader::DictionaryBatch => message.header_as_dictionary_batch().and_then(|batch| batch.data()),
        other => return Err(format!("it is {other:?}, not a record batch")),
    };
    check_buffers(batch.ok_or("it has no data")?, body)
}

/// Parses the metadata of a block, which the continuation marker (not in older files) and a length of four bytes
/// precede.
fn message_of(metadata: &[u8]) -> Result<Message<'_>, String> {
    let message =
        metadata.strip_prefix(&CONTINUATION).unwrap_or(metadata).get(4..).ok_or("it is truncated")?;
    root_as_message(message).map_err(|problem| problem.to_string())
}

/// Checks that every buffer is inside the body, and returns the number of bytes after decompression. A compressed
/// buffer starts with its decompressed length in eight bytes, where -1 marks a buffer that is stored as it is.
fn check_buffers(batch: RecordBatch<'_>, body: &[u8]) -> Result<u64, String> {
    let is_valid = |node: &FieldNode| (0..=node.length()).contains(&node.null_count());
    if !batch.nodes().into_iter().flatten().all(is_valid) {
        return Err("a column has more nulls than rows".into());
    }
    let compressed = batch.compression().is_some();
    // A batch without a body counts as 64 bytes, so that the limit of the source also bounds the number of batches.
    let mut unpacked = 64u64;
    for buffer in batch.buffers().into_iter().flatten() {
        let range = usize::try_from(buffer.offset()).ok().zip(usize::try_from(buffer.length()).ok());
        let stored = range.and_then(|(start, length)| body.get(start..)?.get(..length));
        let stored = stored.ok_or("a buffer lies outside the block")?;
        let size = match stored.first_chunk::<8>() {
            Some(prefix) if compressed => i64::from_le_bytes(*prefix),
            None if compressed && !stored.is_empty() => {
                return Err("a compressed buffer has no length".into());
            }
            _ => -1,
        };
        // A negative size: the buffer is not compressed.
        unpacked = unpacked.saturating_add(u64::try_from(size).unwrap_or(stored.len() as u64));
    }
    Ok(unpacked)
}

/// Decodes the chosen columns of every batch.
fn decode(source: &Source, index: BlockIndex, columns: Columns) -> Result<Parts> {
    let malformed = |problem: &dyn std::fmt::Display| source.malformed(FORMAT, problem);
    let dictionaries = dictionary_ids(&index.schema, &columns);
    let file = Buffer::from(source.bytes.clone());
    let mut decoder = FileDecoder::new(index.schema, index.version).with_projection(columns.indices());
    let mut table = Table::new(source, FORMAT, columns);
    for block in &index.blocks {
        let (metadata, body) = bytes_of(&source.bytes, block).ok_or_else(|| malformed(&"a block moved"))?;
        let data = file.slice_with_length(block.offset() as usize, metadata.len() + body.len());
        let message = message_of(metadata).map_err(|problem| malformed(&problem))?;
        if let Some(dictionary) = message.header_as_dictionary_batch() {
            // Dictionaries of other columns can have any type and are not decoded.
            if dictionaries.contains(&dictionary.id()) {
                decoder.read_dictionary(block, &data).map_err(|problem| malformed(&problem))?;
            }
        } else if let Some(batch) =
            decoder.read_record_batch(block, &data).map_err(|problem| malformed(&problem))?
        {
            table.push(&batch)?;
        }
    }
    table.finish()
}

/// The ids of the dictionaries of the chosen columns.
fn dictionary_ids(schema: &Schema, columns: &Columns) -> Vec<i64> {
    let fields = columns.indices().into_iter().map(|index| schema.field(index));
    let encoded = fields.filter(|field| matches!(field.data_type(), DataType::Dictionary(..)));
    // Deprecated because writers no longer choose the id, but a reader has no other way to get it.
    #[allow(deprecated)]
    encoded.filter_map(|field| field.dict_id()).collect()
}
