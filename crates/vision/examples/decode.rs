//! Reads, decodes and resizes all photos in a folder of class folders on all threads, as `trueshot embed` does, but
//! without embedding them. Prints one JSON object with the number of photos and the seconds.
//! `bench/measure/embed_photos.py` compares this time with that of `trueshot embed`.
//!
//!     cargo run --release -p trueshot-vision --example decode -- PHOTOS [THREADS]

use std::time::Instant;

use rayon::prelude::*;
use trueshot_vision::backbone::{BackboneOptions, EFFICIENTNET_ARCHITECTURE};
use trueshot_vision::{Backbone, Collection, SourceOptions};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let folder = arguments.next().ok_or("usage: decode PHOTOS [THREADS]")?;
    let threads = arguments.next().map_or(Ok(0), |threads| threads.parse())?;
    rayon::ThreadPoolBuilder::new().num_threads(threads).build_global()?;
    let start = Instant::now();
    let backbone = Backbone::find(EFFICIENTNET_ARCHITECTURE, &BackboneOptions::default())?;
    let to = backbone.preprocessing();
    let collection = Collection::open(folder, SourceOptions::default())?;
    let decode = |entry| collection.read_image_then(entry, to.channels, |image| to.fitted(image));
    let is_readable = |entry| decode(entry).is_ok_and(|image| image.pixels.len() == to.input_len());
    let photos = collection.entries().par_iter().with_max_len(1).filter(|entry| is_readable(entry)).count();
    let seconds = start.elapsed().as_secs_f64();
    let threads = rayon::current_num_threads();
    println!(r#"{{"photos": {photos}, "threads": {threads}, "seconds": {seconds:.4}}}"#);
    Ok(())
}
