//! Test fixture: striped images that are easy to tell apart and quick to make, and a check of trainings.

use std::path::Path;

use image::{Rgb, RgbImage};
use trueshot::rng::{Purpose, Rng};
use trueshot::training::Trainee;

/// Writes class folders of striped images: each class has its own direction and one of three widths; shift, brightness
/// and noise differ per image.
fn write_classes(folder: &Path, classes: std::ops::Range<usize>, images: usize) {
    for class in classes {
        let class_folder = folder.join(format!("class {class}"));
        std::fs::create_dir_all(&class_folder).unwrap();
        for number in 0..images {
            let mut rng = Rng::new(class as u64, Purpose::Items, number as u64);
            let (shift, brightness) = (rng.below(16) as f32, rng.below(60) as f32);
            let angle = class as f32 * 0.7;
            let image = RgbImage::from_fn(24, 24, |x, y| {
                let along = x as f32 * angle.cos() + y as f32 * angle.sin() + shift;
                let wave = (along / (1.0 + 0.5 * (class % 3) as f32)).sin() * 50.0 + 90.0 + brightness;
                Rgb([0, 1, 2].map(|_| (wave + rng.below(120) as f32 - 60.0) as u8))
            });
            image.save(class_folder.join(format!("{number}.png"))).unwrap();
        }
    }
}

/// Eight classes to train on and four to validate on, twelve images each.
pub fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    write_classes(&folder.path().join("train"), 0..8, 12);
    write_classes(&folder.path().join("val"), 8..12, 12);
    folder
}

/// Runs `work` in a pool of `threads` threads.
pub fn with_threads<T: Send>(threads: usize, work: impl Fn() -> T + Send) -> T {
    rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap().install(work)
}

/// Checks that a run of `steps` steps has the same result with any number of threads, and if it is stopped after `stop`
/// steps and resumed.
pub fn check_same_result_with_any_threads_and_resumed<T: Trainee>(
    new: impl Fn() -> T + Sync,
    stop: u64,
    steps: u64,
) {
    let run = |trainee: &mut T, steps: std::ops::Range<u64>| {
        steps.for_each(|step| drop(trainee.step(step).unwrap()));
    };
    let bytes = |trainee: &T| [trainee.state(), trainee.model()].map(|file| file.unwrap().to_bytes());
    let uninterrupted = || {
        let mut trainee = new();
        run(&mut trainee, 0..steps);
        bytes(&trainee)
    };
    let resumed = || {
        let (mut first, mut second) = (new(), new());
        run(&mut first, 0..stop);
        second.restore(&first.state().unwrap()).unwrap();
        run(&mut second, stop..steps);
        bytes(&second)
    };
    let expected = with_threads(1, uninterrupted);
    assert!(expected == with_threads(3, uninterrupted), "threads");
    assert!(expected == with_threads(2, resumed), "resumed");
}
