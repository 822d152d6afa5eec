//! The messages between this program and the worker process that runs an ONNX model.
//!
//! The worker writes [`GREETING`], reads a [`LoadRequest`] and the bytes of the model, and answers with a
//! `Result<ModelDescription, String>`. After that, every request is a number and an image, and every reply is the
//! number of its request and an embedding or an error. Both ends are the same build on the same machine, so numbers are
//! in native byte order.

use std::io::{self, Read, Write};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::model::MAX_DIM;

/// The first bytes of a worker's output. Anything before them, such as startup output of an interpreter, is skipped.
pub const GREETING: &[u8] = b"trueshot onnx worker 1\n";
/// The most bytes that are skipped in search of the greeting.
const MAX_SKIPPED_BYTES: usize = 1 << 16;
/// The maximum length of a JSON message. Embeddings are not JSON; their length is limited by [`MAX_DIM`].
const MAX_MESSAGE_BYTES: usize = 1 << 16;

/// The parameters for loading a model.
#[derive(Debug, Serialize, Deserialize)]
pub struct LoadRequest {
    /// The length of the model in bytes, which follows.
    pub bytes: u64,
    /// Height and width of images, for a model without a fixed size.
    pub size: Option<usize>,
    /// The requested output.
    pub output: Option<String>,
    /// Bytes of memory per thread that embeds.
    pub memory: u64,
    /// Processor seconds for one image, and for loading the model.
    pub seconds: u64,
}

/// The properties of a loaded model.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ModelDescription {
    /// Height and width of images.
    pub size: usize,
    /// 1 or 3.
    pub channels: usize,
    /// The length of an embedding.
    pub dim: usize,
    /// The name of the input.
    pub input: String,
    /// Whether the input is `[batch, channels, rows, columns]`; otherwise the channels are last.
    pub has_channels_first: bool,
    /// Whether the model takes one image at a time.
    pub is_batch_fixed: bool,
    /// The name of the output that is used.
    pub output: String,
    /// The number of axes of the output.
    pub output_rank: usize,
}

/// The row of one image, or the error.
pub type EmbeddingReply = Result<Vec<f32>, String>;

/// Reads up to and including the greeting.
pub fn skip_to_greeting(reader: &mut impl Read) -> io::Result<()> {
    let mut last = Vec::with_capacity(GREETING.len());
    for _ in 0..MAX_SKIPPED_BYTES {
        let mut byte = [0];
        reader.read_exact(&mut byte)?;
        if last.len() == GREETING.len() {
            last.remove(0);
        }
        last.push(byte[0]);
        if last == GREETING {
            return Ok(());
        }
    }
    Err(io::ErrorKind::InvalidData.into())
}

/// Writes a message as JSON, after its length.
pub fn write_json(writer: &mut impl Write, message: &impl Serialize) -> io::Result<()> {
    write_bytes(writer, &serde_json::to_vec(message)?)?;
    writer.flush()
}

/// Reads a message that [`write_json`] wrote.
pub fn read_json<T: DeserializeOwned>(reader: &mut impl Read) -> io::Result<T> {
    Ok(serde_json::from_slice(&read_bytes(reader, MAX_MESSAGE_BYTES)?)?)
}

/// Writes a request: its number (u64) and the values of its image (f32).
pub fn write_request(writer: &mut impl Write, number: u64, image: &[f32]) -> io::Result<()> {
    writer.write_all(&number.to_ne_bytes())?;
    writer.write_all(bytemuck::cast_slice(image))?;
    writer.flush()
}

/// The number of the next request or reply; `None` at the end of the stream.
pub fn read_request_number(reader: &mut impl Read) -> io::Result<Option<u64>> {
    let mut number = [0; 8];
    match reader.read_exact(&mut number) {
        Ok(()) => Ok(Some(u64::from_ne_bytes(number))),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(None),
        Err(error) => Err(error),
    }
}

/// Reads the image of a request, which has this number of values.
pub fn read_image(reader: &mut impl Read, values: usize) -> io::Result<Vec<f32>> {
    let mut image = vec![0.0; values];
    reader.read_exact(bytemuck::cast_slice_mut(&mut image))?;
    Ok(image)
}

/// Writes a reply: the number of its request (u64), 1 for an embedding or 0 for an error, and the length and bytes of
/// the embedding (f32 values) or of the message.
pub fn write_reply(writer: &mut impl Write, number: u64, row: &EmbeddingReply) -> io::Result<()> {
    writer.write_all(&number.to_ne_bytes())?;
    match row {
        Ok(row) => {
            writer.write_all(&[1])?;
            write_bytes(writer, bytemuck::cast_slice(row))?;
        }
        Err(problem) => {
            writer.write_all(&[0])?;
            write_bytes(writer, problem.as_bytes())?;
        }
    }
    writer.flush()
}

/// Reads a reply that [`write_reply`] wrote, with the number of its request; `None` at the end of the stream.
pub fn read_reply(reader: &mut impl Read) -> io::Result<Option<(u64, EmbeddingReply)>> {
    let Some(number) = read_request_number(reader)? else { return Ok(None) };
    let mut is_row = [0];
    reader.read_exact(&mut is_row)?;
    let bytes = read_bytes(reader, MAX_DIM * size_of::<f32>())?;
    let row = match is_row {
        [1] => Ok(bytemuck::pod_collect_to_vec(&bytes)),
        _ => Err(String::from_utf8_lossy(&bytes).into_owned()),
    };
    Ok(Some((number, row)))
}

/// Writes bytes after their length (u32).
fn write_bytes(writer: &mut impl Write, bytes: &[u8]) -> io::Result<()> {
    let length = u32::try_from(bytes.len()).map_err(|_| io::ErrorKind::InvalidData)?;
    writer.write_all(&length.to_ne_bytes())?;
    writer.write_all(bytes)
}

/// Reads bytes that [`write_bytes`] wrote; an error if they are more than `max`.
fn read_bytes(reader: &mut impl Read, max: usize) -> io::Result<Vec<u8>> {
    let mut length = [0; 4];
    reader.read_exact(&mut length)?;
    let length = u32::from_ne_bytes(length) as usize;
    if length > max {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut bytes = vec![0; length];
    reader.read_exact(&mut bytes)?;
    Ok(bytes)
}
