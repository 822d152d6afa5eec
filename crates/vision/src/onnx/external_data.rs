//! Inlines weights of an ONNX model that are stored in other files, as PyTorch's exporter writes them.
//!
//! A tensor names a file and a range of its bytes. [`inline`] replaces the reference by the bytes, so that everything
//! else (file check, hash, worker process, export) works on one model in memory. The total size of all ranges is
//! limited before any of them is read, because many tensors may name the same range.
//!
//! The path of a file comes from an untrusted model. A path that leaves the model's folder (absolute, or with `..`) is
//! refused. Symbolic links in the folder are followed, also out of it, because the files in Hugging Face's cache are
//! links. A model alone cannot make links, but a downloaded folder or an unpacked archive may contain some.

use std::collections::HashMap;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Component, Path};

use trueshot::onnx_graph::push_message;

use super::file_check::{CheckResult, FieldValue, Fields, MAX_DEPTH, refused};

/// Protocol buffer messages that can contain tensors.
#[derive(Clone, Copy)]
enum Message {
    Model,
    Graph,
    Node,
    Attribute,
    Tensor,
}

impl Message {
    /// The kind of message in a field, if it can contain tensors: the graph of a model (7), the nodes (1) and constants
    /// (5) of a graph, the attributes of a node (5), and of an attribute its graphs (6, 11) and tensors (5, 10).
    fn child(self, field: u64) -> Option<Message> {
        match (self, field) {
            (Message::Model, 7) | (Message::Attribute, 6 | 11) => Some(Message::Graph),
            (Message::Graph, 1) => Some(Message::Node),
            (Message::Node, 5) => Some(Message::Attribute),
            (Message::Graph, 5) | (Message::Attribute, 5 | 10) => Some(Message::Tensor),
            _ => None,
        }
    }
}

/// The model with all weights inside. `folder` is the folder of the model, `max_bytes` the largest allowed result.
pub(super) fn inline(model: Vec<u8>, folder: &Path, max_bytes: u64) -> CheckResult<Vec<u8>> {
    // `location` is the key of the entry that names a file. Most models do not contain it and are returned unchanged.
    if memchr::memmem::find(&model, b"location").is_none() {
        return Ok(model);
    }
    let bytes_left = max_bytes.saturating_sub(model.len() as u64);
    let mut inliner = Inliner { folder, files: HashMap::new(), bytes_left, max_bytes };
    inliner.rewrite(Message::Model, &model, MAX_DEPTH)
}

/// Copies the messages of a model, with the weights from other files.
struct Inliner<'a> {
    /// The folder of the model.
    folder: &'a Path,
    /// Open files by name, with their lengths.
    files: HashMap<String, (File, u64)>,
    /// How many bytes of weights may still be read.
    bytes_left: u64,
    /// The largest allowed result, for errors.
    max_bytes: u64,
}

impl Inliner<'_> {
    /// Copies a message, with the weights of all tensors in it. `depth` is how many more levels messages may nest.
    fn rewrite(&mut self, message: Message, bytes: &[u8], depth: usize) -> CheckResult<Vec<u8>> {
        if let Message::Tensor = message {
            return self.tensor(bytes);
        }
        let Some(depth) = depth.checked_sub(1) else { return refused("its graphs are nested too deep") };
        let (mut fields, mut out) = (Fields(bytes), Vec::with_capacity(bytes.len()));
        while let Some((number, value, raw)) = fields.next_with_bytes()? {
            match (value, message.child(number)) {
                (FieldValue::Bytes(inner), Some(child)) => {
                    push_message(&mut out, number, &self.rewrite(child, inner, depth)?);
                }
                _ => out.extend_from_slice(raw),
            }
        }
        Ok(out)
    }

    /// Copies a tensor, with its weights if they are in another file. Fields of a tensor: 8 name, 9 its numbers as
    /// bytes, 13 an entry (key and value) on the file with its numbers, 14 whether they are in a file.
    fn tensor(&mut self, bytes: &[u8]) -> CheckResult<Vec<u8>> {
        let (mut fields, mut out) = (Fields(bytes), Vec::new());
        let mut entries = HashMap::new();
        let mut name = String::new();
        while let Some((number, value, raw)) = fields.next_with_bytes()? {
            match (number, value) {
                (13, FieldValue::Bytes(entry)) => {
                    let (key, value) = key_and_value(entry)?;
                    entries.insert(key, value);
                }
                // The data location and numbers stored in the model: replaced.
                (9 | 14, _) => (),
                (8, FieldValue::Bytes(text)) => {
                    name = String::from_utf8_lossy(text).chars().take(80).collect();
                    out.extend_from_slice(raw);
                }
                _ => out.extend_from_slice(raw),
            }
        }
        let Some(location) = entries.get("location") else { return Ok(bytes.to_vec()) };
        let number = |key: &str| match entries.get(key).map(|text| text.trim().parse::<u64>()) {
            None => Ok(None),
            Some(Ok(number)) => Ok(Some(number)),
            Some(Err(_)) => refused(format!("the {key} of its tensor '{name}' is not a number")),
        };
        let (offset, length) = (number("offset")?.unwrap_or(0), number("length")?);
        let data = self.read(location, offset, length, &name)?;
        push_message(&mut out, 9, &data);
        Ok(out)
    }

    /// Reads the range of a file with the numbers of the tensor `name`; without `length`, up to the end of the file.
    fn read(&mut self, location: &str, offset: u64, length: Option<u64>, name: &str) -> CheckResult<Vec<u8>> {
        if !self.files.contains_key(location) {
            let opened = self.open(location)?;
            self.files.insert(location.into(), opened);
        }
        let (file, file_len) = self.files.get_mut(location).expect("opened above");
        let length = length.unwrap_or(file_len.saturating_sub(offset));
        if offset.checked_add(length).is_none_or(|end| end > *file_len) {
            return refused(format!(
                "its tensor '{name}' is {length} bytes from byte {offset} of '{location}', which has {file_len} bytes"
            ));
        }
        let Some(bytes_left) = self.bytes_left.checked_sub(length) else {
            return refused(format!("it has more than {} bytes with its weights", self.max_bytes));
        };
        self.bytes_left = bytes_left;
        let mut data = vec![0; length as usize];
        let outcome = file.seek(SeekFrom::Start(offset)).and_then(|_| file.read_exact(&mut data));
        match outcome {
            Ok(()) => Ok(data),
            Err(error) => refused(format!("its weights in '{location}' cannot be read: {error}")),
        }
    }

    /// Opens a file by its path within the folder of the model, and returns its length too. Follows symbolic links.
    fn open(&self, location: &str) -> CheckResult<(File, u64)> {
        let path = Path::new(location);
        let is_below = path.components().all(|part| matches!(part, Component::Normal(_)));
        if location.is_empty() || !is_below {
            return refused(format!(
                "its weights are in '{location}', which is not in the folder of the model"
            ));
        }
        let path = self.folder.join(path);
        let opened = std::fs::metadata(&path).and_then(|metadata| {
            // Opening a pipe would wait for its writer.
            if !metadata.is_file() {
                return Err(std::io::Error::other("not a file"));
            }
            Ok((File::open(&path)?, metadata.len()))
        });
        match opened {
            Ok(opened) => Ok(opened),
            Err(error) => {
                refused(format!("its weights are in '{location}' next to it, which cannot be read: {error}"))
            }
        }
    }
}

/// Key and value of an entry of `external_data`.
fn key_and_value(bytes: &[u8]) -> CheckResult<(String, String)> {
    let (mut fields, mut key, mut text) = (Fields(bytes), String::new(), String::new());
    while let Some((number, value)) = fields.next_field()? {
        match (number, value) {
            (1, FieldValue::Bytes(bytes)) => key = String::from_utf8_lossy(bytes).into_owned(),
            (2, FieldValue::Bytes(bytes)) => text = String::from_utf8_lossy(bytes).into_owned(),
            _ => (),
        }
    }
    Ok((key, text))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A field with a message.
    fn message(field: u64, bytes: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        push_message(&mut out, field, bytes);
        out
    }

    /// A model whose tensors are all in the file `weights`.
    fn model(tensors: usize) -> Vec<u8> {
        let entry = [message(1, b"location"), message(2, b"weights")].concat();
        let tensor = [message(8, b"w"), message(13, &entry)].concat();
        message(7, &message(5, &tensor).repeat(tensors))
    }

    #[test]
    fn the_size_of_all_weights_together_is_limited() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("weights"), [1; 100]).unwrap();
        let inlined = |tensors| inline(model(tensors), folder.path(), 1000);
        let tensor = [message(8, b"w"), message(9, &[1; 100])].concat();
        assert_eq!(inlined(2).unwrap(), message(7, &message(5, &tensor).repeat(2)));
        let problem = inlined(20).unwrap_err().to_string();
        assert_eq!(problem, "it has more than 1000 bytes with its weights");
    }

    #[test]
    #[cfg(unix)]
    fn links_in_the_folder_of_the_model_are_followed() {
        let (folder, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let target = elsewhere.path().join("blob");
        std::fs::write(&target, [1; 4]).unwrap();
        std::os::unix::fs::symlink(&target, folder.path().join("weights")).unwrap();
        let tensor = [message(8, b"w"), message(9, &[1; 4])].concat();
        assert_eq!(inline(model(1), folder.path(), 1000).unwrap(), message(7, &message(5, &tensor)));
    }

    #[test]
    fn tensors_in_nodes_and_in_their_graphs_are_found() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("weights"), [1; 4]).unwrap();
        let whole = model(1);
        let graph = Fields(&whole).next_field().unwrap();
        let Some((7, FieldValue::Bytes(graph))) = graph else { panic!("a graph") };
        let tensor = Fields(graph).next_field().unwrap();
        let Some((5, FieldValue::Bytes(tensor))) = tensor else { panic!("a tensor") };
        for attribute in [message(5, tensor), message(10, tensor), message(6, graph), message(11, graph)] {
            let nested = message(7, &message(1, &message(5, &attribute)));
            let inlined = inline(nested, folder.path(), 1000).unwrap();
            // Field 9 of the kind 2 (bytes), the length 4, and the bytes of `weights`.
            assert!(memchr::memmem::find(&inlined, &[9 << 3 | 2, 4, 1, 1, 1, 1]).is_some(), "{inlined:?}");
            assert!(memchr::memmem::find(&inlined, b"location").is_none());
        }
    }
}
