//! Checks that the GPU kernel that prepares images gives the same values as [`Augmenter`], on an emulated device.

use trueshot_cuda::Device;
use trueshot_cuda::conv4::{
    Conv4Options, Conv4Training, DeviceImages, ImageRequest, Prototypes, StepImages, StepInput,
};
use trueshot_nn::adamw::AdamWConfig;
use trueshot_nn::conv4::{Shape, layout};

use super::*;

/// Widths and heights: smaller and larger than the input of the network, strips, and a single pixel.
const SIZES: [(usize, usize); 6] = [(20, 20), (37, 23), (9, 50), (1, 1), (64, 61), (200, 16)];

/// An image of random values, with black, white and grey parts, in which hue and saturation are not defined.
fn image(width: usize, height: usize, channels: Channels) -> DecodedImage {
    let mut rng = Rng::new(width as u64, Purpose::Items, height as u64);
    let mut pixels = vec![0; width * height * channels.count()];
    pixels.iter_mut().for_each(|value| *value = rng.below(256) as u8);
    let part = pixels.len() / 6;
    pixels[..part].fill(0);
    pixels[part..2 * part].fill(255);
    pixels[2 * part..3 * part].fill(100);
    DecodedImage::new(width, height, channels, pixels)
}

/// Parameters of every kind: no change, each jitter alone, all jitters in random order with a random crop and flip, and
/// crops at the corners.
fn changes(width: usize, height: usize) -> Vec<DrawnAugmentation> {
    let whole = DrawnAugmentation::identity(width, height);
    let jitters = [
        Jitter::Brightness(1.7),
        Jitter::Brightness(0.0),
        Jitter::Contrast(0.4),
        Jitter::Contrast(1.9),
        Jitter::Saturation(0.0),
        Jitter::Saturation(2.5),
        Jitter::Hue(2.9),
        Jitter::Hue(-1.3),
    ];
    // One jitter at each of the four positions; the other three change nothing.
    let alone = jitters.into_iter().enumerate().map(|(number, jitter)| {
        let mut drawn = whole.clone();
        drawn.jitters[number % 4] = jitter;
        drawn.jitters[(number + 1) % 4] = Jitter::Brightness(1.0);
        drawn.jitters[(number + 2) % 4] = Jitter::Hue(0.0);
        drawn.jitters[(number + 3) % 4] = Jitter::Contrast(1.0);
        drawn
    });
    let strong = Augmentation {
        crop_scale: [0.1, 1.0],
        brightness: 0.6,
        contrast: 0.6,
        saturation: 0.9,
        hue: 0.5,
        ..Augmentation::default()
    };
    let (seed, image) = (1, 2);
    let random = (0..6).map(|copy| strong.draw(seed, image, copy, width, height));
    let (crop_width, crop_height) = (width.div_ceil(3), height.div_ceil(2));
    let corners = [(0, 0), (width - crop_width, 0), (0, height - crop_height)]
        .into_iter()
        .chain([(width - crop_width, height - crop_height)])
        .map(|(left, top)| DrawnAugmentation {
            left,
            top,
            width: crop_width,
            height: crop_height,
            flip: left > 0,
            ..whole.clone()
        });
    [whole.clone(), DrawnAugmentation { flip: true, ..whole.clone() }]
        .into_iter()
        .chain(alone)
        .chain(random)
        .chain(corners)
        .collect()
}

/// The images of all requests, prepared by the emulated GPU.
fn prepared_by_gpu(images: &[DecodedImage], requests: Vec<ImageRequest>, to: &Preprocessing) -> Vec<f32> {
    // Rounds as GPUs do.
    let device = Device::emulated(false);
    let shape = Shape { size: to.size, channels: to.channels.count() };
    let sources = images.iter().map(|image| (&image.pixels[..], image.width, image.height));
    let images = DeviceImages::upload(&device, sources, to.scale_and_shift(1.0)).unwrap();
    // The requests are one episode of one support item and queries; of the step, only the images are prepared.
    let options = Conv4Options {
        shape,
        classes: 1,
        support: 1,
        queries: requests.len() - 1,
        prototypes: Prototypes::Mean,
        optimiser: AdamWConfig::default(),
        clip: 0.0,
    };
    let parameters = vec![0.0; layout(shape.channels).len()];
    let mut training = Conv4Training::new(&device, options, &parameters, Some(images)).unwrap();
    let labels = vec![0; requests.len()];
    training
        .prepared_images(&StepInput { rate: 0.0, labels, images: StepImages::Requests(requests) })
        .unwrap()
}

/// Prepares images with all changes on the CPU and on the emulated GPU, and compares them.
fn assert_same_images(to: &Preprocessing) {
    let images = SIZES.map(|(width, height)| image(width, height, to.channels));
    let mut augmenter = Augmenter::default();
    let (mut requests, mut expected, mut changed) = (Vec::new(), Vec::new(), Vec::new());
    for (number, image) in images.iter().enumerate() {
        for drawn in changes(image.width, image.height) {
            let mut out = vec![0.0; to.input_len()];
            augmenter.apply(image, &drawn, to, &mut out);
            requests.push(drawn.request(number as u32));
            expected.extend(out);
            changed.push((number, drawn));
        }
    }
    let values = prepared_by_gpu(&images, requests, to);
    assert_eq!(values.len(), expected.len());
    for (i, (value, expected)) in values.iter().zip(&expected).enumerate() {
        // The GPU rounds to f16: half a unit in the last of 11 bits, plus the difference from another order of sums.
        let tolerance = expected.abs() / 2048.0 + 1e-4;
        let (image, index) = (i / to.input_len(), i % to.input_len());
        assert!(
            (value - expected).abs() <= tolerance,
            "value {index} of {:?}: {value} and {expected}",
            changed[image]
        );
    }
}

#[test]
fn a_gpu_changes_colour_images_as_the_cpu_does() {
    assert_same_images(&Preprocessing::colour(21));
}

#[test]
fn a_gpu_changes_grey_images_as_the_cpu_does() {
    assert_same_images(&Preprocessing::drawings(28));
}

#[test]
fn a_gpu_changes_images_that_do_not_fit_into_shared_memory_as_the_cpu_does() {
    assert_same_images(&Preprocessing::colour(96));
}
