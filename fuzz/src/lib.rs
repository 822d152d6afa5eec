//! The functions of the fuzz targets in `fuzz_targets/`: each reads arbitrary bytes as a file of one format and, if the
//! reader accepts them, checks what it returned.
//!
//! A run fails on a panic, on a failed assertion, and if a reader allocates as much memory as a header claims without
//! checking the claim against the size of the file. `run.sh` limits inputs to 64 KiB. `Source::allow` lets such a file
//! unpack to at most 68 MiB, far below the limit of the allocator.

use std::alloc::System;

use cap::Cap;
use trueshot::embeddings::{Embeddings, inspect};
use trueshot_vision::pickle::{Pickle, Value};
use trueshot_vision::{Backbone, Channels, Collection, SourceOptions};

/// Allocations fail, which ends the run, once 1 GiB is in use.
#[global_allocator]
static MEMORY: Cap<System> = Cap::new(System, 1 << 30);

/// Reads bytes as an embeddings file with this extension. If they are accepted, counts of rows, classes and names must
/// agree.
pub fn read(bytes: &[u8], extension: &str) {
    let Ok(mut embeddings) = Embeddings::read_bytes(bytes.to_vec(), extension) else { return };
    let is_valid = embeddings.check().is_ok();
    let inspection = inspect(&embeddings);
    // Only valid rows have a fingerprint, a hash of all values.
    assert_eq!(is_valid, inspection.fingerprint.is_some());
    assert_eq!(inspection.rows, embeddings.labels().len());
    assert_eq!(inspection.classes.iter().map(|class| class.count).sum::<usize>(), inspection.rows);
    (0..embeddings.len()).for_each(|row| assert_eq!(embeddings.item(row).is_some(), inspection.has_items));
}

/// Reads a pickle, and all values in it down to three levels.
pub fn read_pickle(bytes: &[u8]) {
    let Ok(pickle) = Pickle::read(bytes.to_vec().into()) else { return };
    look_at(pickle.value(), 3);
}

/// Checks an ONNX file as `vision::onnx` does before it loads a model. The model is not run: it is a program, and runs
/// in a process with limits.
pub fn check_model(bytes: &[u8]) {
    let _ = Backbone::check_onnx(bytes, "fuzzed");
}

/// Reads a ZIP archive of images from a file, and every image in it.
pub fn read_zip(bytes: &[u8]) {
    let path = std::env::temp_dir().join(format!("trueshot-fuzz-{}.zip", std::process::id()));
    std::fs::write(&path, bytes).expect("a temporary file");
    let Ok(collection) = Collection::open(&path, SourceOptions::default()) else { return };
    for entry in collection.entries() {
        // Names from the archive must not lead outside of the folder that it is unpacked to.
        assert!(entry.item.split('/').all(|part| !matches!(part, "" | "." | "..")), "{}", entry.item);
        let _ = collection.read_image(entry, Channels::Colour);
    }
}

/// Reads a value of a pickle in every way, and the values in it down to `depth` levels: a value may contain itself.
fn look_at(value: Value<'_>, depth: usize) {
    let _ = (value.integer(), value.float(), value.text(), value.whole_numbers());
    if let Some(array) = value.array() {
        let elements = array.shape.iter().product::<usize>();
        assert_eq!(elements * array.width, array.data.len());
    }
    if depth == 0 {
        return;
    }
    // A few bytes can make a long list whose entries are all the same long list. Ten entries of each are enough.
    value.items().into_iter().flatten().take(10).for_each(|item| look_at(item, depth - 1));
    value.pairs().into_iter().flatten().take(10).for_each(|(_, value)| look_at(value, depth - 1));
}
