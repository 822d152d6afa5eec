//! What all fuzzers do: read bytes as a file of one format, and use what is accepted.
//!
//! Panics and failed assertions end a run, and so does memory taken on a header's word: the allocator
//! refuses to go beyond a limit. The largest input is 64 KiB, which the gates let unpack to 68 MiB.

use std::alloc::System;

use cap::Cap;
use trueshot::embeddings::{Embeddings, inspect};
use trueshot_vision::pickle::{Pickle, Value};
use trueshot_vision::{Backbone, Channels, Collection, SourceOptions};

#[global_allocator]
static MEMORY: Cap<System> = Cap::new(System, 1 << 30);

/// Reads bytes; what is accepted must be consistent.
pub fn read(bytes: &[u8], extension: &str) {
    let Ok(mut embeddings) = Embeddings::read_bytes(bytes.to_vec(), extension) else { return };
    let finite = embeddings.check().is_ok();
    let found = inspect(&embeddings);
    assert_eq!(finite, found.fingerprint.is_some());
    assert_eq!(found.rows, embeddings.labels().len());
    assert_eq!(found.classes.iter().map(|class| class.count).sum::<usize>(), found.rows);
    (0..embeddings.len()).for_each(|row| assert_eq!(embeddings.item(row).is_some(), found.has_items));
}

/// Reads a pickle; what is accepted can be looked at.
pub fn read_pickle(bytes: &[u8]) {
    let Ok(pickle) = Pickle::read(bytes.to_vec().into()) else { return };
    look_at(pickle.value(), 3);
}

/// Looks at an ONNX file as `onnx::file_check` does. What passes is a program, and is not run here: what it asks for while it runs
/// is its own business.
pub fn check_model(bytes: &[u8]) {
    let _ = Backbone::check_onnx(bytes, "fuzzed");
}

/// Reads a ZIP archive of images from a file, and every image in it.
pub fn read_zip(bytes: &[u8]) {
    let path = std::env::temp_dir().join(format!("trueshot-fuzz-{}.zip", std::process::id()));
    std::fs::write(&path, bytes).expect("a temporary file");
    let Ok(collection) = Collection::open(&path, SourceOptions::default()) else { return };
    for entry in collection.entries() {
        assert!(entry.item.split('/').all(|part| !matches!(part, "" | "." | "..")), "{}", entry.item);
        let _ = collection.read_image(entry, Channels::Colour);
    }
}

/// As far as a reader of data sets would look: a pickle may hold itself.
fn look_at(value: Value<'_>, depth: usize) {
    let _ = (value.integer(), value.float(), value.text(), value.whole_numbers());
    if let Some(array) = value.array() {
        let elements = array.shape.iter().product::<usize>();
        assert_eq!(elements * array.width, array.data.len());
    }
    if depth == 0 {
        return;
    }
    // A long list may be listed many times over: ten of everything are enough.
    value.items().into_iter().flatten().take(10).for_each(|item| look_at(item, depth - 1));
    value.pairs().into_iter().flatten().take(10).for_each(|(_, held)| look_at(held, depth - 1));
}
