//! Tests with networks that are closures.

use std::sync::mpsc;

use super::*;

const SHAPE: BatchShape = BatchShape { image_len: 2, dim: 3, batch: 4 };

/// An image for a number below 65,536.
fn image(number: usize) -> Vec<u8> {
    vec![(number / 256) as u8, (number % 256) as u8]
}

/// The row of that image by [`embed`].
fn row(number: usize) -> Vec<f32> {
    vec![number as f32, 1.0, -(number as f32)]
}

/// A network that sends the size of every batch.
fn embed(batches: mpsc::Sender<usize>) -> EmbedBatch {
    Box::new(move |images| {
        batches.send(images.len() / 2).unwrap();
        let numbers = images.chunks_exact(2).map(|image| usize::from(image[0]) * 256 + usize::from(image[1]));
        Ok(numbers.flat_map(row).collect())
    })
}

/// The failure of the devices in these tests.
fn failure() -> DeviceFailure {
    DeviceFailure { message: "no more".into(), hint: "look".into() }
}

#[test]
fn rows_of_many_threads_belong_to_their_images_and_every_image_is_in_one_batch() {
    let (sender, batches) = mpsc::channel();
    let queue = BatchQueue::start(SHAPE, || Ok(embed(sender)));
    std::thread::scope(|scope| {
        for thread in 0..5 {
            let queue = &queue;
            scope.spawn(move || {
                let rows: Vec<PendingRow> =
                    (0..50).map(|number| queue.submit(image(thread * 1000 + number))).collect();
                for (number, pending) in rows.into_iter().enumerate() {
                    assert_eq!(pending.wait(), Ok(row(thread * 1000 + number)));
                }
            });
        }
    });
    assert_eq!(queue.failure(), None);
    let pending: Vec<PendingRow> = (0..11).map(|number| queue.submit(image(number))).collect();
    let sizes = || batches.try_iter().collect::<Vec<usize>>();
    // The last batch is not full, and starts when a thread waits for its last row.
    let sizes_before = sizes();
    assert!(sizes_before.iter().all(|size| (1..=SHAPE.batch).contains(size)), "{sizes_before:?}");
    for (number, pending) in pending.into_iter().enumerate().rev() {
        assert_eq!(pending.wait(), Ok(row(number)));
    }
    let total: usize = sizes_before.iter().chain(&sizes()).sum();
    assert_eq!(total, 5 * 50 + 11);
}

#[test]
fn a_batch_starts_when_it_is_full() {
    let (sender, batches) = mpsc::channel();
    let queue = BatchQueue::start(SHAPE, || Ok(embed(sender)));
    let pending: Vec<PendingRow> = (0..SHAPE.batch).map(|number| queue.submit(image(number))).collect();
    assert_eq!(batches.recv(), Ok(SHAPE.batch), "a full batch starts although no thread waits for a row");
    let last = queue.submit(image(9));
    assert_eq!(last.wait(), Ok(row(9)));
    assert_eq!(batches.recv(), Ok(1), "a row that is waited for does not wait for a full batch");
    for (number, pending) in pending.into_iter().enumerate() {
        assert_eq!(pending.wait(), Ok(row(number)));
    }
}

#[test]
fn a_device_that_fails_answers_every_image_with_the_failure() {
    let queue = BatchQueue::start(SHAPE, || {
        let mut calls = 0;
        Ok(Box::new(move |images: &[u8]| {
            calls += 1;
            if calls == 1 { Ok(vec![0.0; images.len() / 2 * 3]) } else { Err(failure()) }
        }))
    });
    assert_eq!(queue.submit(image(1)).wait(), Ok(vec![0.0; 3]));
    let pending: Vec<PendingRow> = (0..10).map(|number| queue.submit(image(number))).collect();
    for pending in pending {
        assert_eq!(pending.wait(), Err(Unreadable::Network("no more".into())));
    }
    assert_eq!(queue.failure(), Some(failure()));
    assert_eq!(queue.submit(image(3)).wait(), Err(Unreadable::Network("no more".into())));
}

#[test]
fn a_device_that_cannot_be_opened_and_a_panic_are_failures() {
    let unopened = BatchQueue::start(SHAPE, || Err(failure()));
    assert!(unopened.submit(image(1)).wait().is_err());
    assert_eq!(unopened.failure(), Some(failure()));
    let panics = BatchQueue::start(SHAPE, || Ok(Box::new(|_: &[u8]| panic!("for the test"))));
    assert!(panics.submit(image(1)).wait().is_err());
    assert!(panics.failure().unwrap().message.contains("panicked"));
    let short = BatchQueue::start(SHAPE, || Ok(Box::new(|_: &[u8]| Ok(vec![1.0]))));
    assert!(short.submit(image(1)).wait().is_err());
    assert!(short.failure().unwrap().message.contains("1 numbers for 1 images"));
}

#[test]
fn a_queue_that_is_dropped_ends_its_thread_while_images_wait() {
    let (sender, batches) = mpsc::channel();
    let queue = BatchQueue::start(SHAPE, || Ok(embed(sender)));
    let pending = queue.submit(image(1));
    drop(queue);
    assert!(batches.recv().is_err(), "the thread and its network are gone");
    assert!(pending.wait().is_err(), "the row will not be computed");
}
