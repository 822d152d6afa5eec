//! The WebAssembly functions that the script of an exported page calls: [`load`] once, then [`classify`] for each
//! image. WebAssembly functions take and return numbers only, so the script passes data through the memory of the
//! module: it asks [`allocate`] for a buffer, fills it and passes its address. `usize` has 32 bits. An instance of the
//! module has one engine.
//!
//! `load` and `classify` return the address of an answer, valid until the next call. An answer is a list of 32-bit
//! words:
//!
//! | word | contents |
//! |---|---|
//! | 0 | status: 0 success, 1 failure |
//! | 1 | length n |
//! | 2 and following | after a failure, a message of n bytes (UTF-8) |
//! | | from `load`, nothing (n is 0) |
//! | | from `classify`, n `f32`: the probability that the image shows none of the classes, then one per class |

#![allow(unsafe_code, reason = "memory is shared with the page through addresses")]

use std::cell::RefCell;

use crate::engine::Engine;

thread_local! {
    /// The engine, `None` before `load`.
    static ENGINE: RefCell<Option<Engine>> = const { RefCell::new(None) };
    /// The latest answer.
    static ANSWER: RefCell<Vec<u32>> = const { RefCell::new(Vec::new()) };
}

/// Allocates `length` zeroed bytes for the script to fill and pass to [`load`] or [`classify`], which free them.
#[unsafe(no_mangle)]
pub extern "C" fn allocate(length: usize) -> *mut u8 {
    Box::leak(vec![0; length].into_boxed_slice()).as_mut_ptr()
}

/// Reads the two safetensors files in the page, a backbone and a classifier. They replace those of an earlier call.
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
        unsafe { (take_buffer(backbone, backbone_length), take_buffer(classifier, classifier_length)) };
    answer(Engine::read(backbone, classifier).map(|engine| {
        ENGINE.set(Some(engine));
        Vec::new()
    }))
}

/// Classifies an RGBA image of `width * height` pixels, one byte per channel, rows from the top.
///
/// # Safety
/// The buffer comes from [`allocate`] with `4 * width * height` bytes and is not used afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn classify(pixels: *mut u8, width: usize, height: usize) -> *const u32 {
    // SAFETY: required of the caller.
    let pixels = unsafe { take_buffer(pixels, 4 * width * height) };
    answer(ENGINE.with_borrow_mut(|engine| {
        let engine = engine.as_mut().ok_or("no classifier is loaded")?;
        let prediction = engine.classify(&pixels, width, height)?;
        Ok(std::iter::once(prediction.unknown).chain(prediction.probabilities).collect())
    }))
}

/// Takes ownership of a buffer that the script has filled.
///
/// # Safety
/// The buffer comes from [`allocate`] with this length and is not used afterwards.
unsafe fn take_buffer(buffer: *mut u8, length: usize) -> Vec<u8> {
    // SAFETY: `allocate` leaked a boxed slice of this address and length.
    unsafe { Box::from_raw(std::ptr::slice_from_raw_parts_mut(buffer, length)) }.into_vec()
}

/// Encodes an answer into `ANSWER`, in the form that the head of this file describes, and returns its address.
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
                // Four bytes per word, in the order of the bytes; the last word is padded with zeros.
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
