//! Writes the seed corpus of the fuzz targets: a small file of every format and variant.
//!
//! It is an ignored test instead of a program because it uses the test samples and dev-dependencies.

mod samples;

use std::path::Path;

use samples::{Sample, npy};

#[test]
#[ignore = "run by fuzz/run.sh"]
fn write_the_seed_corpus_of_the_fuzz_targets() {
    let corpus = std::env::var("TRUESHOT_SEEDS").expect("TRUESHOT_SEEDS names a folder");
    for (size, sample) in [("small", Sample::new(3, 2)), ("medium", Sample::new(24, 5))] {
        for (form, extension, bytes) in sample.every_form() {
            save(corpus.as_ref(), extension, &format!("{size} {form}"), &bytes);
        }
        let halves = npy::half_features(&sample);
        let arrays = [npy::features(&sample), halves, npy::fortran_features(&sample), npy::labels(&sample)];
        for (number, bytes) in arrays.iter().enumerate() {
            save(corpus.as_ref(), "npy", &format!("{size} array {number}"), bytes);
        }
    }
}

fn save(corpus: &Path, format: &str, name: &str, bytes: &[u8]) {
    let folder = corpus.join(format);
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join(name.replace(' ', "-")), bytes).unwrap();
}
