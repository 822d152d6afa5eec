//! The functions that the page calls. Numbers and addresses are 32-bit; there is one engine per module.
//!
//! The page copies bytes into memory from [`allocate`] and hands it over: [`load`] takes the backbone and the classifier,
//! [`classify`] an image. Both return the address of an answer, which is valid until the next call: a `u32` that is 0 for
//! success, a `u32` length, and either that many `f32` (the probability of none of the classes, then of every class) or, after
//! a failure, the bytes of a message.

#![allow(unsafe_code, reason = "memory is shared with the page through addresses")]

use std::cell::RefCell;

use crate::engine::Engine;

thread_local! {
    static ENGINE: RefCell<Option<Engine>> = const { RefCell::new(None) };
    static ANSWER: RefCell<Vec<u32>> = const { RefCell::new(Vec::new()) };
}

/// Memory for `length` bytes, which the page fills and hands to [`load`] or [`classify`].
#[unsafe(no_mangle)]
pub extern "C" fn allocate(length: usize) -> *mut u8 {
    Box::leak(vec![0; length].into_boxed_slice()).as_mut_ptr()
}

/// Reads the engine's files.
///
/// # Safety
/// Both buffers come from [`allocate`] with these lengths and are not used afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn load(
    backbone: *mut u8,
    backbone_length: usize,
    classifier: *mut u8,
    classifier_length: usize,
) -> *const u32 {
    // SAFETY: required of the caller.
    let (backbone, classifier) =
        unsafe { (taken(backbone, backbone_length), taken(classifier, classifier_length)) };
    answer(Engine::read(backbone, classifier).map(|engine| {
        ENGINE.set(Some(engine));
        Vec::new()
    }))
}

/// Classifies an RGBA image of `width * height` pixels.
///
/// # Safety
/// The buffer comes from [`allocate`] with `4 * width * height` bytes and is not used afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn classify(pixels: *mut u8, width: usize, height: usize) -> *const u32 {
    // SAFETY: required of the caller.
    let pixels = unsafe { taken(pixels, 4 * width * height) };
    answer(ENGINE.with_borrow_mut(|engine| {
        let engine = engine.as_mut().ok_or("no classifier is loaded")?;
        let found = engine.classify(&pixels, width, height)?;
        Ok(std::iter::once(found.unknown).chain(found.probabilities).collect())
    }))
}

/// Takes ownership of the bytes that the page has written.
///
/// # Safety
/// The buffer comes from [`allocate`] with this length and is not used afterwards.
unsafe fn taken(buffer: *mut u8, length: usize) -> Vec<u8> {
    // SAFETY: `allocate` leaked a boxed slice of this address and length.
    unsafe { Box::from_raw(std::ptr::slice_from_raw_parts_mut(buffer, length)) }.into_vec()
}

/// Stores an answer and returns its address.
fn answer(result: Result<Vec<f32>, String>) -> *const u32 {
    ANSWER.with_borrow_mut(|answer| {
        answer.clear();
        match result {
            Ok(values) => {
                answer.extend([0, values.len() as u32]);
                answer.extend(values.iter().map(|value| value.to_bits()));
            }
            Err(message) => {
                answer.extend([1, message.len() as u32]);
                let words = message.as_bytes().chunks(4).map(|bytes| {
                    let mut word = [0; 4];
                    word[..bytes.len()].copy_from_slice(bytes);
                    u32::from_le_bytes(word)
                });
                answer.extend(words);
            }
        }
        answer.as_ptr()
    })
}
