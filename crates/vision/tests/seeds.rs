//! Writes the seed corpus of the fuzz target of ZIP archives: small archives of every kind.
//!
//! It is an ignored test instead of a program because it uses dev-dependencies.

use std::io::{Cursor, Write};
use std::path::Path;

use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipWriter};

#[test]
#[ignore = "run by fuzz/run.sh"]
fn write_the_seed_corpus_of_the_fuzz_target_of_zip_archives() {
    let corpus = std::env::var("TRUESHOT_SEEDS").expect("TRUESHOT_SEEDS names a folder");
    let folder = Path::new(&corpus).join("zip");
    std::fs::create_dir_all(&folder).unwrap();
    let stored = SimpleFileOptions::default().compression_method(CompressionMethod::Stored);
    let deflated = stored.compression_method(CompressionMethod::Deflated);
    for (name, options) in [("stored", stored), ("deflated", deflated), ("zip64", stored.large_file(true))] {
        let mut archive = ZipWriter::new(Cursor::new(Vec::new()));
        archive.add_directory("photos", stored).unwrap();
        for (member, bytes) in [
            ("photos/ant/1.png", trueshot_vision::Bitmap::from_fn(9, 9, |x, y| x == y).to_png()),
            ("photos/k\u{e4}fer/2.png", trueshot_vision::Bitmap::from_fn(7, 3, |x, _| x == 1).to_png()),
            ("photos/ant/notes.txt", b"not an image".to_vec()),
        ] {
            archive.start_file(member, options).unwrap();
            archive.write_all(&bytes).unwrap();
        }
        std::fs::write(folder.join(name), archive.finish().unwrap().into_inner()).unwrap();
    }
}
